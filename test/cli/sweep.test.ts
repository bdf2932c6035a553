import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { type AddressInfo, createServer as createNetServer, type Server } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { sweep } from '../../src/cli/sweep.js'
import { livePoint, reachTarget } from '../../src/cli/sweep-live.js'
import { load } from '../../src/config/load.js'
import { readSweep } from '../../src/config/sweep-file.js'
import { profileNamed } from '../../src/sim/profiles.js'
import { type EngineServerOptions, startEngine } from '../../src/sim/server.js'
import { presetOf } from '../../src/sim/sweep.js'
import { drawnUsers, runClosedLoop } from '../../src/sim/workload.js'
import type { Slo } from '../../src/slo/slo.js'
import { sweepPoint } from '../../src/slo/sweep.js'
import { answer, type Script, scripted } from '../load/scripted.js'

async function run(args: string[], env: Record<string, string> = {}) {
  let [out, err] = ['', '']
  const code = await sweep.run(args, {
    out: text => {
      out += text
    },
    err: text => {
      err += text
    },
    env,
  })
  return { code, out, err }
}

const target = async (t: Test, script: Script) => {
  const upstream = await scripted(script)
  t.teardown(() => upstream.close())
  return upstream
}

const engine = async (t: Test, options: EngineServerOptions = {}): Promise<string> => {
  const server = await startEngine({ profile: 'worked-example', ...options })
  t.teardown(() => server.close())
  return server.url
}

/** Short prompts and answers, so that a second holds many. */
const SHORT = ['--input-p50', '50', '--input-p90', '90', '--output-p50', '8', '--output-p90', '12']

t.test('the worked example as one object, whose numbers come out of the engine', async t => {
  const out = join(t.testdir(), 'sweeps/example.json')
  const { code, out: text, err } = await run(['--engine', 'worked-example', '--json', '--out', out])
  t.same([code, err], [0, ''])
  const got = JSON.parse(text)
  t.match(got, { knee: 12, binding: 'ttft', steady: { low: 8, high: 10 }, complete: true, warnings: [] })
  t.ok(Math.abs(got.budget_tok_s_per_gpu - 913) < 37, `budget ${got.budget_tok_s_per_gpu}`)
  t.ok(Math.abs(got.scale_out_at - 639) < 26, `scale out at ${got.scale_out_at}`)
  t.same(
    got.points.map((point: { concurrency: number }) => point.concurrency),
    [1, 2, 4, 8, 12, 16, 24, 32, 48, 64],
  )
  for (const point of got.points) {
    t.ok(point.ttft_ms.p50 > 0 && point.ttft_ms.p90 > point.ttft_ms.p50)
    t.ok(point.tpot_ms.p50 > 0 && point.tpot_ms.p90 > point.tpot_ms.p50)
    t.ok(point.goodput_tok_s > 0 && point.goodput_tok_s <= point.output_tok_s)
    t.ok(point.good_share > 0.5 && point.good_share <= 1)
  }
  t.match(
    got.conclusion,
    /^capacity is 9\d\d tok\/s per GPU at concurrency 12; a throughput of .*, 1,[78]\d\d at 48 or .* does not count$/,
  )
  t.match(got, {
    weir_sweep: 1,
    engine: { name: 'worked-example', simulated: true },
    hardware: '1 x H100 SXM 80 GB',
  })
  t.match(got, { weir: { version: /^\d/ }, date: /^\d{4}-\d\d-\d\dT/, slo: { percentile: 90, ttft_ms: 500 } })

  t.same(readSweep(out).ok, got, 'the file is the same object, as the config reads it')
  const picture = readFileSync(out.replace('.json', '.svg'), 'utf8')
  t.match(
    picture,
    /^<svg [\s\S]*bound 500ms[\s\S]*bound 40ms[\s\S]*raw throughput[\s\S]*knee at 12[\s\S]*<\/svg>\n$/,
  )
  t.notMatch(picture, /NaN|undefined|Infinity/)
})

t.test('the table for people marks the knee and what is no capacity', async t => {
  const out = join(t.testdir(), 'x.json')
  const grid = ['--concurrency', '8,12,48', '--out', out]
  const { code, out: text } = await run(['--engine', 'worked-example', ...grid])
  t.equal(code, 0)
  t.match(text, /\n +12 .* holds: the knee\n +48 .* broken, no capacity\n/)
  t.match(
    text,
    /\nbinding {3}TTFT: TTFT p90 is \d+ of 500ms \(9\d %\), TPOT p90 is 13\.\d of 40ms \(3\d %\)\n/,
  )
  t.match(text, /\nrun at {4}concurrency 8 to 10 in steady state/)
  t.match(text, /\nscale out above 6\d\d goodput tok\/s per GPU of demand, 70 % of the budget/)
  t.match(text, /; a throughput of 1,8\d\d at concurrency 48 does not count\n/)
})

t.test('a promise that is never kept names the clause, the load and by how much', async t => {
  const out = join(t.testdir(), 'x.json')
  const args = [
    '--engine',
    'worked-example',
    '--requests',
    '4000',
    '--concurrency',
    '1,2',
    '--out',
    out,
    '--json',
  ]
  const ttft = await run([...args, '--ttft', '100ms'])
  t.equal(ttft.code, 1)
  t.match(JSON.parse(ttft.out), { knee: null, binding: 'ttft', budget_tok_s_per_gpu: null, steady: null })
  t.match(
    ttft.err,
    /^weir sweep: the promise is never kept: TTFT p90 is 3\d\d ms at concurrency 1, 2\d\d ms \(2\d\d %\) over its bound of 100ms: \d\d\.\d % met it\n$/,
  )
  const tpot = await run([...args, '--tpot', '5ms'])
  t.match(
    tpot.err,
    /TPOT p90 is 7\.\d ms at concurrency 1, 2\.\d ms \(5\d %\) over its bound of 5ms: 0\.0 % met it/,
  )
  const joint = await run([
    ...args,
    '--ttft',
    '400ms',
    '--tpot',
    '7.5ms',
    '--mode',
    'joint',
    '--percentile',
    '90',
  ])
  t.match(joint.err, /TPOT p90 is|of requests met TTFT and TPOT both at concurrency 1, 90 % are promised/)
})

t.test('without a class the workload is assumed, and Weir says so', async t => {
  const out = join(t.testdir(), 'x.json')
  const { out: text } = await run([
    ...['--engine', 'llama3-8b', '--concurrency', '4', '--requests', '400', '--out', out, '--json'],
  ])
  const got = JSON.parse(text)
  t.match(got.workload, { source: /Azure/, input_tokens: { p50: 1020, p90: 2734 } })
  t.match(got.warnings, [/assumed, not yours/, /still holds at 4, the last point/])
})

const CONFIG = (url: string): string => `classes:
  chat:
    slo: { target: { percentile: 95, ttft: 2s, tpot: 200ms } }
    workload:
      model: tiny
      input_tokens: { p50: 50, p90: 90 }
      output_tokens: { p50: 3, p90: 4 }
    pools: [main]
  agent:
    slo: { target: { percentile: 95, deadline: 60s } }
    workload:
      model: tiny
      input_tokens: { p50: 50, p90: 90 }
      output_tokens: { p50: 3, p90: 4 }
    pools: [main]
pools:
  main: { model: tiny, gpus_per_replica: 2, replicas: ["${url}"], sweep: sweeps/main.json }
routes: [{ class: chat }]
`

t.test('a class brings promise, workload and GPUs; the file it names is then read by the config', async t => {
  const upstream = await target(t, response => answer(response, 20))
  const dir = t.testdir({ 'weir.yaml': CONFIG(upstream.url) })
  const [config, out] = [join(dir, 'weir.yaml'), join(dir, 'sweeps/main.json')]
  t.match(load(config, {}), { problems: [{ got: /no such file/ }] }, 'it is not there yet')
  const args = ['--target', `${upstream.url}/v1`, '-c', config, '--class', 'chat', '--out', out]
  const measured = ['--concurrency', '2,4', '--point-time', '2s', '--hardware', '2 x H100']
  const { code, out: text, err } = await run([...args, ...measured], { OPENAI_API_KEY: 'secret' })
  t.same([code, err], [0, ''])
  t.match(text, `for ${config}:\n\npools:\n  main:\n    sweep: sweeps/main.json\n`)
  const loaded = load(config, {})
  t.ok(loaded.ok?.sweeps.get('main'), 'the config reads it')
  if (loaded.ok !== undefined)
    t.same(
      loaded.warnings.filter(one => one.path.endsWith('sweep')),
      [],
    )
  const file = readSweep(out).ok
  t.match(file, { class: 'chat', gpus: 2, hardware: '2 x H100', slo: { percentile: 95, ttft_ms: 2000 } })
  t.match(file, {
    target: `${upstream.url}/v1`,
    workload: { model: 'tiny', output_tokens: { p50: 3, p90: 4 } },
  })
  t.match(upstream.received.at(-1), { headers: { 'x-weir-class': 'chat', authorization: 'Bearer secret' } })
  t.match(JSON.parse(upstream.received.at(-1)?.body ?? '{}'), { ignore_eos: true, max_tokens: /\d/ })
  t.notMatch(readFileSync(out, 'utf8'), 'secret')
  t.equal(upstream.open.most, 4, 'no more in flight than asked for')

  const before = upstream.received.length
  const again = await run([...args, '--concurrency', '2,4', '--point-time', '2s', '--json'])
  t.match(again.err, /main\.json: 2 points of 20.* are kept; --fresh measures them anew\n/)
  t.ok(upstream.received.length <= before + 1, 'only the probe was sent')
  t.same(JSON.parse(again.out).points, file?.points)
  const more = await run([...args, '--concurrency', '1', '--point-time', '2s', '--json'])
  t.same(
    JSON.parse(more.out).points.map((point: { concurrency: number }) => point.concurrency),
    [1, 2, 4],
    'a point is added to those that are there',
  )
  const other = await run([...args, '--concurrency', '1', '--point-time', '1s', '--ttft', '1s', '--json'])
  t.equal(JSON.parse(other.out).points.length, 1, 'another promise is another sweep')
  t.match(other.err, /main\.json: a sweep of another target, workload or promise, of 20.*, is replaced\n/)
  writeFileSync(out, other.out.replace(/"knee":\d+/, '"knee":7'))
  t.match(readSweep(out), { why: 'damaged: its knee of 7 is none of its points' })
})

t.test('without a config the whole of a first one is printed, and it is right', async t => {
  const url = await engine(t)
  const dir = t.testdir()
  const out = join(dir, 'main.json')
  const args = ['--target', url, ...SHORT, '--concurrency', '2', '--point-time', '2s', '--out', out]
  const { code, out: text } = await run(args)
  t.equal(code, 0)
  const yaml = text.slice(text.indexOf('classes:\n'))
  writeFileSync(join(dir, 'weir.yaml'), yaml)
  const loaded = load(join(dir, 'weir.yaml'), {})
  t.same(loaded.ok === undefined ? loaded.problems : loaded.warnings, [])
  t.equal(loaded.ok?.sweeps.get('main')?.knee.concurrency, 2)
})

t.test('a point that is too short to decide says how long would', async t => {
  const upstream = await target(t, response => answer(response, 100))
  const out = join(t.testdir(), 'x.json')
  const args = ['--target', upstream.url, ...SHORT, '--concurrency', '1', '--point-time', '2s', '--json']
  const got = JSON.parse((await run([...args, '--out', out])).out)
  t.match(got.points[0], { holds: true, decided: false })
  t.ok(got.points[0].decided_after_s >= 5, `${got.points[0].decided_after_s} s at 10 requests/s for 100`)
  t.match(got.warnings, [
    /concurrency 1 is undecided after \d+ requests \(holds so far\): about \d+ s of it would/,
  ])
})

t.test('what fails counts against the promise, and is said', async t => {
  const half: Script = (response, _, index) => {
    if (index % 2 === 0) return answer(response, 10)
    response.writeHead(500, { 'content-type': 'application/json' })
    return response.end('{"error":{"code":"boom","message":"no"}}')
  }
  const upstream = await target(t, half)
  const out = join(t.testdir(), 'x.json')
  const args = ['--target', upstream.url, ...SHORT, '--concurrency', '8', '--point-time', '3s', '--json']
  const { code, err } = await run([...args, '--out', out])
  t.equal(code, 1)
  // The pause after a failure leaves fewer in flight than asked for, which Little's law shows.
  t.match(err, /no point could be measured\n {2}8: .* in flight, which is not 8 \(Little's law\)/)
})

t.test('a target that is dead, wrong or does not stream is refused at once', async t => {
  const out = join(t.testdir(), 'x.json')
  const sweepOf = (url: string, ...more: string[]) => run(['--target', url, '--out', out, ...more])
  const gone = await scripted(() => {})
  await gone.close()
  t.match(await sweepOf(gone.url), {
    code: 1,
    out: '',
    err: /^weir sweep: http:\S+ cannot be reached: ECONNREFUSED\n {2}fix/,
  })

  const listening = async (server: Server): Promise<string> => {
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => server.close())
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }
  const plain = await listening(createNetServer(socket => socket.end('SSH-2.0-OpenSSH_9.2\r\n')))
  t.match(await sweepOf(plain), {
    code: 1,
    err: /^weir sweep: http:\S+ cannot be reached: .*HTTP.*\n {2}fix/,
  })
  const guarded = await listening(
    createServer((_, response) => {
      response.writeHead(401, { 'content-type': 'application/json' })
      response.end('{"error":{"code":"invalid_api_key"}}')
    }),
  )
  t.match(await sweepOf(guarded), {
    code: 1,
    err: /refuses: GET \/v1\/models answered 401 .*\n {2}fix {6}set OPENAI_API_KEY to a key that it takes\n/,
  })
  const url = await listening(
    createServer((_, response) => {
      response.writeHead(404, { 'content-type': 'text/html' })
      response.end('<html>')
    }),
  )
  t.match(await sweepOf(url), {
    code: 1,
    err: /is no OpenAI API: GET \/v1\/models answered 404 with text\/html\n/,
  })
  t.match(await sweepOf(url, '--model', 'm'), {
    code: 1,
    err: /is no OpenAI API: POST \/v1\/chat\/completions answered 404/,
  })

  const whole = await target(t, response => {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end('{"choices":[{"message":{"content":"all of it"}}]}')
  })
  t.match(await sweepOf(whole.url), {
    code: 1,
    err: /does not stream: a request with "stream": true was answered in one/,
  })

  const strict = await target(t, response => {
    response.writeHead(400, { 'content-type': 'application/json' })
    response.end('{"error":{"code":"unknown_parameter","message":"ignore_eos"}}')
  })
  t.match(await sweepOf(strict.url), {
    code: 1,
    err: /tiny: status 400, unknown_parameter\n.*--natural-lengths/,
  })
  t.equal(strict.received.length, 1, 'one request was enough')
  t.notOk(existsSync(out), 'nothing is written')
})

t.test('a stream that comes in one piece is said', async t => {
  const upstream = await target(t, response => {
    const events = Array.from(
      { length: 16 },
      (_, i) =>
        `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":${i === 15 ? '"stop"' : null}}]}\n\n`,
    )
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(`${events.join('')}data: [DONE]\n\n`)
  })
  const { warnings } = await reachTarget(upstream.url, { model: undefined, exactLengths: true }, {})
  t.match(warnings, [/^16 tokens came within 0\.\d ms: something holds the stream back, TPOT says nothing$/])
})

t.test('a file that is no sweep is not overwritten', async t => {
  const dir = t.testdir({ 'notes.json': '{"mine": true}' })
  const out = join(dir, 'notes.json')
  const { code, err } = await run(['--engine', 'worked-example', '--concurrency', '1', '--out', out])
  t.equal(code, 1)
  t.match(err, /notes\.json: no sweep of Weir’s: it has no weir_sweep\n {2}fix {6}name another with --out/)
  t.equal(readFileSync(out, 'utf8'), '{"mine": true}')
})

t.test('a result that cannot be written is printed all the same', async t => {
  const dir = t.testdir({ 'x.json.new': {} })
  const out = join(dir, 'x.json')
  const args = [
    '--engine',
    'worked-example',
    '--concurrency',
    '1',
    '--requests',
    '400',
    '--json',
    '--out',
    out,
  ]
  const { code, out: text, err } = await run(args)
  t.equal(code, 1)
  t.equal(JSON.parse(text).knee, 1)
  t.match(err, /x\.json cannot be written: EISDIR/)
})

t.test('an interrupted sweep keeps its points, says so, and can go on', async t => {
  const url = await engine(t)
  const dir = t.testdir()
  const out = join(dir, 'sweep.json')
  const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
  const args = ['--target', url, ...SHORT, '--concurrency', '1,2', '--point-time', '2s', '--out', out]
  const child = spawn(process.execPath, [...process.execArgv, main, 'sweep', ...args], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let err = ''
  child.stderr.on('data', data => {
    err += data
  })
  const closed = new Promise<number | null>(resolve => child.once('close', resolve))
  while (!existsSync(out)) await new Promise(resolve => setTimeout(resolve, 50))
  child.kill('SIGINT')
  t.equal(await closed, 130)
  t.match(err, /weir sweep: interrupted; the same command goes on from .*sweep\.json\n/)
  t.match(readSweep(out).ok, { complete: false, points: [{ concurrency: 1 }] })
  const { code, err: kept, out: text } = await run([...args, '--json'])
  t.equal(code, 0)
  t.match(kept, /1 points of .* are kept/)
  t.match(JSON.parse(text), { complete: true, points: [{ concurrency: 1 }, { concurrency: 2 }] })
})

t.test('over a real socket the same users get what virtual time says', async t => {
  const slo = presetOf('worked-example')?.slo as Slo
  const mix = {
    // Long prompts: a fifth of their TTFT is more than a busy machine is late.
    input: { median: 10_000, sigma: 0.2, min: 16, max: 20_000 },
    output: { median: 30, sigma: 0.3, min: 8, max: 90 },
  }
  const { target } = await reachTarget(await engine(t), { model: undefined, exactLengths: true }, {})
  const stop = new AbortController().signal
  const { point } = await livePoint(target, drawnUsers(mix, 0, 3), 4, 5000, slo, stop, () => {})
  const { outcomes } = runClosedLoop({
    profile: profileNamed('worked-example'),
    users: drawnUsers(mix, 0, 3),
    concurrency: 4,
    requests: Number.POSITIVE_INFINITY,
    warmup: 0,
    untilMs: 5000,
  })
  const measured = outcomes.filter(outcome => outcome.endedAt >= 1000)
  const wanted = sweepPoint(
    4,
    measured.map(one => ({ complete: true, ...one })),
    4000,
    slo,
  )
  t.equal(point?.failed, 0)
  const near = (what: string, got: number | null | undefined, expected: number | null): void => {
    const off = (got ?? 0) / (expected ?? 1) - 1
    t.ok(Math.abs(off) < 0.2, `${what}: ${got}, in virtual time ${expected}`)
  }
  near('TTFT p50', point?.ttft_ms.p50, wanted.ttft_ms.p50)
  near('TPOT p50', point?.tpot_ms.p50, wanted.tpot_ms.p50)
  near('output tok/s', point?.output_tok_s, wanted.output_tok_s)
})

t.test('bad options say what was got, what is allowed and how to fix it', async t => {
  const dir = t.testdir({
    'weir.yaml': CONFIG('http://127.0.0.1:1'),
    'bad.yaml': 'classes: 3\n',
    's.jsonl': '{"session":"a","seq":0,"in":70,"out":3,"think_time":0,"hash_ids":[1]}\n',
  })
  mkdirSync(join(dir, 'sweeps'))
  const on = ['--engine', 'llama3-8b']
  const cases: [args: string[], err: RegExp][] = [
    [[], /^--target\n {2}got {6}nothing\n {2}allowed {2}either --target URL or --engine PRESET\n/],
    [[...on, '--target', 'http://x'], /^--target\n {2}got {6}"http:\/\/x"\n {2}allowed {2}either/],
    [['--target', 'here'], /^--target\n {2}got {6}"here"\n {2}allowed {2}a base URL\n/],
    [
      ['--target', 'http://me:pw@x'],
      /^--target\n {2}got {6}"a URL with credentials"\n.*\n {2}fix {6}put the key into/,
    ],
    [['--engine', 'gpt'], /^--engine\n {2}got {6}"gpt"\n {2}allowed {2}one of llama3-8b, .*worked-example/],
    [
      [...on, '--concurrency', '4,2'],
      /^--concurrency\n {2}got {6}"4,2"\n {2}allowed {2}whole numbers above 0, rising/,
    ],
    [[...on, '--concurrency', ''], /^--concurrency\n {2}got {6}""/],
    [
      ['--target', 'http://x', '--point-time', '3'],
      /^--point-time\n {2}got {6}"3"\n {2}allowed {2}a time above 0/,
    ],
    [[...on, '--mode', 'both'], /^--mode\n {2}got {6}"both"\n {2}allowed {2}joint or clause/],
    [
      [...on, '--percentile', '0.9'],
      /^--percentile\n {2}got {6}"0\.9"\n {2}allowed {2}a number from 50 to 99\.9/,
    ],
    [
      [...on, '--input-p50', '10'],
      /^--input-p90\n {2}got {6}nothing\n {2}allowed {2}all four lengths or none/,
    ],
    [
      [...on, ...SHORT, '--output-p90', '2'],
      /^--output-p90\n {2}got {6}"2"\n {2}allowed {2}at least --output-p50/,
    ],
    [
      [...on, ...SHORT, '--cache-hit', '30'],
      /^--cache-hit\n {2}got {6}"30"\n {2}allowed {2}a number from 0 to 1/,
    ],
    [[...on, '--cache-hit', '0.3'], /^--cache-hit\n.*\n {2}allowed {2}beside the four lengths/],
    [
      [...on, '--trace', 'x.csv', ...SHORT],
      /^--input-p50\n.*\n {2}allowed {2}either --trace or the four lengths/,
    ],
    [[...on, '--trace', join(dir, 's.jsonl')], /^--trace\n.*\n {2}allowed {2}a trace of requests/],
    [[...on, '--trace', '/nowhere/x.csv'], /^\/nowhere\/x\.csv: cannot be read: ENOENT/],
    [
      [...on, '-c', join(dir, 'weir.yaml')],
      /^--class\n {2}got {6}nothing\n {2}allowed {2}a class of .*: chat, agent\n/,
    ],
    [[...on, '-c', join(dir, 'weir.yaml'), '--class', 'chta'], /^--class\n {2}got {6}"chta"/],
    [
      [...on, '-c', join(dir, 'weir.yaml'), '--class', 'agent', '--ttft', '1s'],
      /^--ttft\n.*\n {2}allowed {2}classes with ttft/,
    ],
    [[...on, '-c', join(dir, 'bad.yaml')], /bad\.yaml: \d problem/],
  ]
  for (const [args, err] of cases) t.match(await run(args), { code: 2, out: '', err }, args.join(' '))
  await t.rejects(run([...on, '--frob']), { code: 'ERR_PARSE_ARGS_UNKNOWN_OPTION' })
})

t.test('a trace’s own lengths are drawn, and a deadline class is swept by its deadline', async t => {
  const dir = t.testdir({
    't.csv': 't_ms,input_tokens,output_tokens\n0,50,30\n5,70,40\n',
    'weir.yaml': CONFIG('http://127.0.0.1:1'),
  })
  const small = [
    '--engine',
    'llama3-8b',
    '--requests',
    '400',
    '--concurrency',
    '2',
    '--json',
    '--out',
    join(dir, 'x.json'),
  ]
  const traced = JSON.parse((await run([...small, '--trace', join(dir, 't.csv')])).out)
  t.match(traced.workload, {
    source: /^trace /,
    input_tokens: { p50: 50, p90: 70 },
    output_tokens: { p90: 40 },
  })
  const { output_tok_s: tokens, requests_per_s: rate } = traced.points[0]
  t.ok(tokens / rate > 30 && tokens / rate < 40, 'answers of 30 and of 40 tokens')
  const agent = await run([...small, '-c', join(dir, 'weir.yaml'), '--class', 'agent'])
  t.match(JSON.parse(agent.out), {
    binding: 'deadline',
    slo: { deadline_ms: 60_000 },
    gpus: 1,
    class: 'agent',
  })
  t.match(readFileSync(join(dir, 'x.svg'), 'utf8'), /end to end, ms \(log\)[\s\S]*bound 1m/)
})
