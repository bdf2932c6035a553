/** The config is replaced while requests are under way: nothing is cut, nothing refused, nothing half old. */
import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { type Loaded, loadData } from '../../src/config/load.js'
import type { Resolved } from '../../src/config/resolved.js'
import { ask, body } from '../fixtures/client.js'
import { DONE, FIN, ROLE, TOK } from '../fixtures/events.js'
import { HDR, type Step, startUpstream } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir } from '../fixtures/weir.js'

const SHORT: Step[] = [HDR, ROLE, TOK('a'), FIN, DONE, 'EOF']
/** Streams until it is told to end. */
async function* until(end: Promise<unknown>, everyMs: number): AsyncGenerator<Step> {
  yield HDR
  yield ROLE
  let over = false
  void end.then(() => {
    over = true
  })
  while (!over) {
    yield TOK('x')
    yield { wait: everyMs }
  }
  yield FIN
  yield DONE
  yield 'EOF'
}

function resolved(data: object): Resolved {
  const loaded: Loaded = loadData(data, 'test', { listen: { port: 0 }, admin: { port: 0 } })
  if (loaded.ok === undefined) throw new Error(JSON.stringify(loaded.problems))
  return loaded.ok
}

t.test('ten reloads under a thousand streams and 50 requests a second: none cut, none refused', async t => {
  let end: () => void = () => undefined
  const ended = new Promise<void>(resolve => {
    end = resolve
  })
  const script = (one: { body: Buffer }) => (one.body.includes('"long"') ? until(ended, 250) : SHORT)
  const upstreams = await Promise.all([0, 1, 2].map(() => startUpstream(t, script)))
  const [a, b, c] = upstreams.map(({ url }) => url) as [string, string, string]
  const wide = { max_in_flight: 2000 }
  /** Each differs from the one before: a replica less or more, a pool renamed, an SLO, a limit. */
  const configs = [
    configData([a, b], {}, wide),
    configData([a, c], {}, wide),
    {
      classes: { chat: { ...CHAT, pools: ['renamed'] } },
      pools: { renamed: { model: 'm', replicas: [b, c], ...wide } },
    },
    configData(
      [a, b, c],
      { classes: { chat: { ...CHAT, slo: { target: { percentile: 90, ttft: '900ms', tpot: '50ms' } } } } },
      wide,
    ),
    configData([c], { commit_after: '5s' }, { max_in_flight: 3000 }),
  ]
  const weir = await startTestWeir(t, configs[0]!, { level: 'silent' })
  const streams = Array.from({ length: 1000 }, () => ask(weir.url, { body: body({ messages: ['long'] }) }))
  await weir.until('a thousand streams', async () => (await weir.metric('weir_in_flight')) === 1000, 60_000)

  const short: Promise<{ status: number; whole: boolean; text: string }>[] = []
  let reloads = 0
  for (let tick = 0; reloads < 10; tick++) {
    short.push(ask(weir.url).answer)
    if (tick % 15 === 14) weir.weir.reconfigure(resolved(configs[++reloads % configs.length]!))
    await sleep(20)
  }
  end()
  const answers = await Promise.all([...streams.map(({ answer }) => answer), ...short])
  t.same(
    answers.filter(({ status, whole, text }) => status !== 200 || !whole || !text.endsWith(DONE)),
    [],
    `${answers.length} answers are whole`,
  )
  await weir.atRest()
  t.equal(await weir.metric('weir_requests_total'), answers.length, 'counters went on')
  t.equal(await weir.metric('weir_config_reloads_total'), 10)
})

t.test('a replica that was taken out drains, and gets nothing new', async t => {
  let end: () => void = () => undefined
  const ended = new Promise<void>(resolve => {
    end = resolve
  })
  const old = await startUpstream(t, () => until(ended, 20))
  const next = await startUpstream(t, () => SHORT)
  const weir = await startTestWeir(t, configData([old.url]))
  const stream = ask(weir.url)
  await weir.until('its first output', () => old.requests.length === 1)
  weir.weir.reconfigure(resolved(configData([next.url])))
  t.equal((await ask(weir.url).answer).status, 200)
  t.equal(old.requests.length, 1)
  const replica = `127.0.0.1:${old.port}`
  t.equal(await weir.metric('weir_in_flight', { replica }), 1, 'it is still shown')
  end()
  const { text } = await stream.answer
  t.ok(text.endsWith(DONE))
  await weir.atRest()
  t.notMatch(await weir.metrics(), `weir_in_flight{pool="main",replica="${replica}"}`, 'and then no more')
  await weir.until('its connections are closed', () => old.sockets === 0)
})

t.test('one that waits is sent under the new config', async t => {
  let end: () => void = () => undefined
  const ended = new Promise<void>(resolve => {
    end = resolve
  })
  const first = await startUpstream(t, () => until(ended, 20))
  const second = await startUpstream(t, () => SHORT)
  const classes = { agent: { ...AGENT, pools: ['main'] } }
  const weir = await startTestWeir(t, configData([first.url], { classes }, { max_in_flight: 1 }))
  const running = ask(weir.url)
  await weir.until('one runs', () => first.requests.length === 1)
  const waiting = ask(weir.url)
  await weir.until('one waits', async () => (await weir.metric('weir_queue_depth')) === 1)
  const pools = { other: { model: 'm', replicas: [second.url] } }
  weir.weir.reconfigure(resolved({ classes: { agent: { ...AGENT, pools: ['other'] } }, pools }))
  const { status, headers } = await waiting.answer
  t.match(
    { status, headers },
    { status: 200, headers: { 'x-weir-pool': 'other', 'x-weir-decision': 'queued' } },
  )
  end()
  t.equal((await running.answer).headers['x-weir-pool'], 'main')
  await weir.atRest()
})

t.test('new keys hold for the next request, and for one whose body is still on its way', async t => {
  const upstream = await startUpstream(t, () => SHORT)
  const dir = t.testdir({
    'old.yaml': 'keys: [ { label: old, key: old-key-0123456789 } ]',
    'new.yaml': 'keys: [ { label: new, key: new-key-0123456789 } ]',
  })
  const data = (file: string) => configData([upstream.url], { auth: { keys: `${dir}/${file}` } })
  const weir = await startTestWeir(t, data('old.yaml'))
  const send = (key: string) => ask(weir.url, { headers: { authorization: `Bearer ${key}` } }).answer
  t.equal((await send('old-key-0123456789')).status, 200)
  const slow = request(`${weir.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer old-key-0123456789' },
  })
  slow.write(body().slice(0, 10))
  // Its head is judged once an answer to something sent later is here.
  t.equal((await send('old-key-0123456789')).status, 200)
  weir.weir.reconfigure(resolved(data('new.yaml')))
  t.equal((await send('old-key-0123456789')).status, 401)
  t.equal((await send('new-key-0123456789')).status, 200)
  slow.end(body().slice(10))
  const [late] = (await once(slow, 'response')) as [IncomingMessage]
  t.equal(late.statusCode, 401, 'the key it came with is no longer one')
  late.resume()
})

t.test('what only a restart can change is said, and nothing changes', async t => {
  const upstream = await startUpstream(t, () => SHORT)
  const weir = await startTestWeir(t, configData([upstream.url]))
  const next = resolved(configData([upstream.url], { limits: { headers: '32KiB' } }, { max_in_flight: 1 }))
  t.throws(() => weir.weir.reconfigure(next), {
    message: 'limits.headers cannot change while Weir runs: restart it, or change it back',
  })
  t.equal(await weir.metric('weir_config_reloads_total'), 0)
  t.equal((await ask(weir.url).answer).status, 200)
})
