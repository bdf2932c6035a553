/** `weir serve` as a process: how it starts, what it says, and how signals end it. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { serve } from '../../src/cli/serve.js'
import { ask, errorOf } from '../fixtures/client.js'
import { DONE, FIN, ROLE, TOK } from '../fixtures/events.js'
import { deadPort, HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData } from '../fixtures/weir.js'

type Test = Parameters<typeof startUpstream>[0]

interface Running {
  readonly child: ChildProcess
  readonly data: string
  readonly admin: string
  /** Exit code and signal. */
  readonly exit: Promise<readonly [number | null, NodeJS.Signals | null]>
  readonly out: () => string
  readonly err: () => string
}

/** Runs the program with the loader that this test runs with. */
async function run(t: Test, ...args: readonly string[]): Promise<Running> {
  const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
  const child = fork(main, ['serve', '--port', '0', '--admin-port', '0', ...args], { silent: true })
  t.teardown(() => child.kill('SIGKILL'))
  const text = { out: '', err: '' }
  child.stdout?.on('data', bytes => {
    text.out += bytes
  })
  child.stderr?.on('data', bytes => {
    text.err += bytes
  })
  const exit = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>
  const ready = once(child, 'message').then(([urls]) => urls as { data: string; admin: string })
  const urls = await Promise.race([ready, exit.then(() => undefined)])
  if (urls === undefined) throw new Error(`it ended: ${text.err}`)
  return { child, ...urls, exit, out: () => text.out, err: () => text.err }
}

/** A folder with the config, for `testdir`. */
const files = (data: object) => ({ 'weir.yaml': JSON.stringify(data) })

const LONG: readonly Step[] = [
  ...[HDR, ROLE, TOK('a'), { wait: 900 }, TOK('b'), { wait: 900 }, FIN, DONE, 'EOF' as const],
]

t.test('SIGTERM: readiness red, nothing new, the open streams and the queue end whole, exit 0', async t => {
  const upstream = await startUpstream(t, ({ index }) =>
    index < 2 ? LONG : [HDR, ROLE, TOK('q'), FIN, DONE, 'EOF'],
  )
  const folder = t.testdir(
    files(
      configData(
        [upstream.url],
        {
          classes: { chat: CHAT, agent: AGENT },
          routes: [{ when: { path: '/agent/*' }, class: 'agent' }, { class: 'chat' }],
        },
        { max_in_flight: 2 },
      ),
    ),
  )
  const weir = await run(t, '--json', '-c', `${folder}/weir.yaml`)
  const open = [ask(weir.data), ask(weir.data)]
  await Promise.all(open.map(one => one.received(1)))
  const queued = ask(weir.data, { path: '/agent/v1/chat/completions' })
  await new Promise(resolve => setTimeout(resolve, 200))
  t.equal((await fetch(`${weir.admin}/readyz`)).status, 200)

  weir.child.kill('SIGTERM')
  const red = async (): Promise<boolean> => (await fetch(`${weir.admin}/readyz`)).status === 503
  for (const end = performance.now() + 5000; !(await red()); ) {
    if (performance.now() > end) return t.fail('readiness stays green')
  }
  const late = await ask(weir.data).answer
  t.equal(late.status, 503)
  t.equal(errorOf(late).code, 'weir_draining')
  t.match(late.headers['retry-after'], /^[1-9]/)

  const answers = await Promise.all(open.map(one => one.answer))
  for (const answer of answers) {
    t.equal(answer.text, ROLE + TOK('a') + TOK('b') + FIN + DONE)
    t.ok(answer.whole)
  }
  const last = await queued.answer
  t.equal(last.text, ROLE + TOK('q') + FIN + DONE)
  t.equal(last.headers['x-weir-decision'], 'queued')
  t.same(await weir.exit, [0, null])
  t.equal(upstream.requests.length, 3)
  for (const end = performance.now() + 5000; !weir.out().includes('"stopped"'); ) {
    if (performance.now() > end) return t.fail(`it did not say that it stopped: ${weir.out()}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
  const lines = weir
    .out()
    .trim()
    .split('\n')
    .map(line => JSON.parse(line))
  t.equal(lines.filter(({ msg }) => msg === 'request').length, 4)
  t.match(lines.at(-1), { msg: 'stopped' })
  t.equal(weir.err(), '', '--json: log lines only')
})

t.test('a second signal ends it at once', async t => {
  const upstream = await startUpstream(t, () => [HDR, ROLE, TOK('a'), 'HOLD'])
  const weir = await run(t, '-c', `${t.testdir(files(configData([upstream.url])))}/weir.yaml`)
  const one = ask(weir.data)
  await one.received(1)
  weir.child.kill('SIGINT')
  for (;;) if ((await fetch(`${weir.admin}/readyz`)).status === 503) break
  await new Promise(resolve => setTimeout(resolve, 400))
  t.equal(weir.child.exitCode, null, 'it waits for the stream')
  const begin = performance.now()
  weir.child.kill('SIGTERM')
  t.same(await weir.exit, [0, null])
  t.ok(performance.now() - begin < 10_000, 'long before its 30 s of grace')
  t.notOk((await one.answer).whole, 'what was cut does not look whole')
})

t.test('--upstream alone is enough, what is assumed is said, and it ends with whoever forked it', async t => {
  const upstream = await startUpstream(t, ({ path }) =>
    path === '/v1/models'
      ? [WHOLE(200, '{"object":"list","data":[{"id":"m"}]}')]
      : [HDR, ROLE, TOK('a'), FIN, DONE, 'EOF'],
  )
  const weir = await run(t, '--upstream', `${upstream.url}/v1/`, '--upstream-key', 'UP-KEY-secret')
  t.match(weir.err(), `Weir listens on ${weir.data}/v1; metrics are at ${weir.admin}/metrics.`)
  t.match(weir.err(), /class chat: p90 .*500 ?ms.*40 ?ms.*\(assumed, not yours: run weir sweep\)/)
  t.match(weir.err(), /class agent: p95 .*(60 ?s|1m)/)
  t.match(weir.err(), `curl -N ${weir.data}/v1/chat/completions`)
  t.match(weir.err(), '"model":"m"')
  t.equal(upstream.requests[0]?.headers['authorization'], 'Bearer UP-KEY-secret')
  const answer = await ask(weir.data).answer
  t.equal(answer.status, 200)
  t.equal(answer.headers['x-weir-class'], 'chat')
  t.equal(upstream.requests[1]?.headers['authorization'], 'Bearer UP-KEY-secret')
  t.equal((await ask(weir.data, { body: '{"model":"n"}' }).answer).status, 404)
  weir.child.disconnect()
  t.same(await weir.exit, [0, null])
  t.notMatch(weir.out() + weir.err(), 'UP-KEY-secret')
})

/** Runs it in this process, as far as it comes. */
async function refused(...args: readonly string[]): Promise<readonly [number, string]> {
  let err = ''
  const io = {
    out: () => undefined,
    err: (text: string) => {
      err += text
    },
    env: {},
  }
  const code = await serve.run(['--port', '0', '--admin-port', '0', ...args], io)
  return [code, err]
}

t.test('what is wrong is said, and nothing is started', async t => {
  const folder = t.testdir({ 'weir.yaml': JSON.stringify(configData([], { colour: 'red' })) })
  const [bad, problems] = await refused('-c', `${folder}/weir.yaml`)
  t.equal(bad, 1)
  t.match(problems, /colour.*\n.*a key Weir does not know/)
  t.match(problems, /pools\.main\.replicas/, 'all of it at once')
  t.match(await refused('-c', `${folder}/none.yaml`), [2, /no such file/])
  t.match(await refused('--port', '70000'), [1, /--port: got 70000; allowed: a port from 0 to 65535/])
  t.match(await refused('--log-level', 'loud'), [1, /--log-level: got loud; allowed: debug, info/])
  t.match(await refused('-c', 'x', '--upstream', 'y'), [1, /exclude each other/])
  const gone = await refused('--upstream', `http://127.0.0.1:${await deadPort()}`)
  t.match(gone, [1, /--upstream: no answer to GET .*ECONNREFUSED\nStart the server first/])
  const notOne = await startUpstream(t, () => [WHOLE(200, '<html>', 'text/html')])
  t.match(await refused('--upstream', notOne.url), [1, /did not answer with a list of models/])

  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.teardown(() => taken.close())
  const { port } = taken.address() as { readonly port: number }
  const good = t.testdir({ 'weir.yaml': JSON.stringify(configData([`http://127.0.0.1:${port}`])) })
  const [code, text] = await refused('-c', `${good}/weir.yaml`, '--port', String(port))
  t.equal(code, 1)
  t.match(text, /cannot start: .*EADDRINUSE/)
})

t.test(
  'SIGHUP, a changed file and POST /-/reload read the config anew; a bad file leaves the old one',
  async t => {
    const upstream = await startUpstream(t, () => [HDR, ROLE, TOK('a'), FIN, DONE, 'EOF'])
    const folder = t.testdir(files(configData([upstream.url])))
    const file = `${folder}/weir.yaml`
    const weir = await run(t, '-c', file)
    const write = (model: string) =>
      writeFile(file, JSON.stringify(configData([upstream.url], {}, { model })))
    const served = async (): Promise<string> => {
      const list = (await (await fetch(`${weir.data}/v1/models`)).json()) as { data: { id: string }[] }
      return list.data.map(({ id }) => id).join()
    }
    const until = async (model: string): Promise<void> => {
      for (let tries = 0; tries < 100 && (await served()) !== model; tries++) await sleep(50)
      t.equal(await served(), model)
    }
    const post = (headers: Record<string, string> = {}) =>
      fetch(`${weir.admin}/-/reload`, { method: 'POST', headers })

    t.equal(await served(), 'm')
    await write('by-post')
    t.match(await (await post()).json(), { ok: true })
    t.equal(await served(), 'by-post')

    await writeFile(file, 'classes: 1')
    const bad = await post()
    t.equal(bad.status, 422)
    t.match(await bad.json(), { ok: false, why: /classes +\(line 1\)/ })
    t.equal(await served(), 'by-post', 'the one before goes on')
    t.equal((await post({ origin: 'http://evil.example' })).status, 403)
    t.equal((await fetch(`${weir.admin}/-/reload`)).status, 405)

    await write('by-signal')
    weir.child.kill('SIGHUP')
    await until('by-signal')
    await sleep(1100)
    await write('by-file')
    await until('by-file')
    t.match(weir.out(), /"the config was not reloaded: the one before goes on"/)
    weir.child.kill('SIGTERM')
    t.same(await weir.exit, [0, null])
  },
)
