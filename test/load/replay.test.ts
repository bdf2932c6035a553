import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Io } from '../../src/cli/command.js'
import { replay } from '../../src/cli/replay.js'
import { answer, scripted } from './scripted.js'

async function run(args: string[], env: Io['env'] = {}): Promise<{ code: number; out: string; err: string }> {
  let out = ''
  let err = ''
  const io = {
    out: (text: string) => {
      out += text
    },
    err: (text: string) => {
      err += text
    },
    env,
  }
  const code = await replay.run(args, io)
  return { code, out, err }
}

const TRACE = 't_ms,input_tokens,output_tokens\n0,50,3\n200,60,3\n400,5000,3\n600,70,3\n'

const trace = (t: Test): string => join(t.testdir({ 't.csv': TRACE }), 't.csv')

t.test('a trace is replayed at its speed, and the report is one JSON object', async t => {
  const upstream = await scripted(response => answer(response))
  t.teardown(() => upstream.close())
  const flags = ['--class', 'fast', '--ttft', '10s', '--speed', '2', '--max-input', '4096', '--seed', '7']
  const args = ['--trace', trace(t), '--target', `${upstream.url}/v1`, '--json', ...flags]
  const { code, out } = await run(args, { OPENAI_API_KEY: 'secret' })
  t.equal(code, 0)
  const report = JSON.parse(out)
  t.match(report, {
    arrivals: 3,
    offered: 3,
    verdicts: { good: 3 },
    seed: 7,
    speed: 2,
    model: 'tiny',
    left_out: 1,
  })
  t.match(report, { bounds: { ttftMs: 10_000, tpotMs: 40 }, classes: { fast: { good: 3, attainment: 1 } } })
  t.ok(report.duration_s >= 0.3 && report.duration_s < 0.6, `${report.duration_s} s at twice the speed`)
  t.match(upstream.received[0], {
    path: '/v1/chat/completions',
    headers: { 'x-weir-class': 'fast', authorization: 'Bearer secret' },
  })
})

t.test('without --json the report is a table for people, with what it was judged by', async t => {
  const upstream = await scripted(response => answer(response))
  t.teardown(() => upstream.close())
  const args = ['--trace', trace(t), '--target', upstream.url, '--deadline', '60s', '--duration', '100ms']
  const { code, out } = await run([...args, '--exact-lengths'])
  t.equal(code, 0)
  t.match(out, /t\.csv at 1x against http:.*, model tiny, seed \d+\ngood: last token within 1m\n/)
  t.match(out, /\nchat +1 +1 /)
  t.match(JSON.parse(upstream.received[0]?.body ?? ''), { max_tokens: 3 })
  t.notOk('x-weir-class' in (upstream.received[0]?.headers ?? {}))
})

t.test('agent sessions are begun at the rate that was asked for', async t => {
  const upstream = await scripted(response => answer(response))
  t.teardown(() => upstream.close())
  const line = '{"session":"a","seq":0,"in":70,"out":3,"think_time":0,"hash_ids":[1]}\n'
  const path = join(t.testdir({ 's.jsonl': line }), 's.jsonl')
  const args = ['--trace', path, '--target', upstream.url]
  t.match(await run(args), { code: 1, err: /--session-rate\n {2}got {6}nothing/ })
  t.match(await run([...args, '--session-rate', '50']), { code: 1, err: /--duration\n {2}got {6}nothing/ })
  const { code, out } = await run([...args, '--session-rate', '50', '--duration', '1s'])
  t.equal(code, 0)
  t.match(out, /50 sessions\/s begun, each at a random call; think time \/ 20/)
  t.ok(upstream.received.length > 20, `${upstream.received.length} calls, near 50`)
  t.ok(upstream.received.every(request => request.headers['x-weir-session'] !== undefined))
})

t.test('bad flags say what was got, what is allowed and how to fix it, and nothing is sent', async t => {
  const target = ['--target', 'http://127.0.0.1:9']
  const both = ['--trace', trace(t), ...target]
  const cases: [args: string[], err: RegExp][] = [
    [target, /^--trace\n {2}got {6}nothing\n {2}allowed {2}a trace file\n {2}fix {6}add --trace FILE\n/],
    [['--trace', 'x'], /^--target\n {2}got {6}nothing/],
    [['--trace', 'x', '--target', 'here'], /^--target\n {2}got {6}"here"\n {2}allowed {2}a base URL/],
    [[...both, '--speed', '0'], /^--speed\n {2}got {6}"0"\n {2}allowed {2}a number above 0\n {2}fix/],
    [[...both, '--speed', ''], /^--speed\n {2}got {6}""/],
    [[...both, '--max-input', '1.5'], /^--max-input\n {2}got {6}"1\.5"\n {2}allowed {2}a whole number/],
    [[...both, '--ttft', '500'], /^--ttft\n {2}got {6}"500"\n {2}allowed {2}a time above 0 with its unit/],
    [[...both, '--duration', '0s'], /^--duration\n {2}got {6}"0s"/],
    [
      [...both, '--deadline', '60s', '--tpot', '40ms'],
      /^--deadline\n.*\n {2}allowed {2}either --deadline, or/,
    ],
    [
      [...both, '--session-rate', '1'],
      /^--session-rate\n {2}got {6}"1"\n {2}allowed {2}only with agent sessions/,
    ],
    [[...both, '--spede', '1'], /Unknown option '--spede'.*\n {2}allowed {2}--trace --target --speed/],
    [['--trace', '/nowhere/x.csv', ...target], /^\/nowhere\/x\.csv: cannot be read: ENOENT/],
  ]
  for (const [args, err] of cases) t.match(await run(args), { code: 1, out: '', err }, args.join(' '))
})

t.test('a target that is not there is told by its name, with the cause', async t => {
  const upstream = await scripted(() => {})
  await upstream.close()
  const { code, err } = await run(['--trace', trace(t), '--target', upstream.url])
  t.equal(code, 1)
  t.match(err, /weir replay: http:\/\/127\.0\.0\.1:\d+ cannot be reached: ECONNREFUSED\n {2}fix {6}start it/)
})
