import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gunzipSync, gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { rowLengths, sessionLengths } from '../../src/load/lengths.js'
import { chatBody, promptText } from '../../src/load/prompt.js'
import { type AgentSession, readTrace, type Trace, type TraceRow } from '../../src/load/trace.js'
import { seededRng } from '../../src/time.js'

const data = (name: string): string => fileURLToPath(new URL(`../../bench/data/${name}`, import.meta.url))

const read = (file: string, maxInputTokens?: number): Promise<Trace> =>
  readTrace(file, { rng: seededRng(1), ...(maxInputTokens === undefined ? {} : { maxInputTokens }) })

async function rowsOf(t: Test, file: string, maxInputTokens?: number): Promise<readonly TraceRow[]> {
  const trace = await read(file, maxInputTokens)
  if (trace.kind === 'requests') return trace.rows
  t.fail('request rows were expected')
  return []
}

async function sessionsOf(t: Test, file: string, maxInputTokens?: number): Promise<readonly AgentSession[]> {
  const trace = await read(file, maxInputTokens)
  if (trace.kind === 'sessions') return trace.sessions
  t.fail('agent sessions were expected')
  return []
}

/** A trace file of these lines, plain. */
function file(t: Test, name: string, ...lines: string[]): string {
  return join(t.testdir({ [name]: `${lines.join('\n')}\n` }), name)
}

t.test('the trace files are those whose sums their README states', async t => {
  const readme = readFileSync(data('README.md'), 'utf8')
  const sums = [...readme.matchAll(/^([0-9a-f]{64}) {2}(\S+)$/gm)]
  const files = readdirSync(data('.')).filter(name => name.endsWith('.gz'))
  t.equal(sums.length, files.length)
  for (const [, sum, name = ''] of sums)
    t.equal(
      createHash('sha256')
        .update(readFileSync(data(name)))
        .digest('hex'),
      sum,
      name,
    )
})

t.test('the Azure chat trace reads whole, with the means its README states', async t => {
  const rows = await rowsOf(t, data('azure2023-conv.csv.gz'))
  t.equal(rows.length, 19366)
  t.match(rows[0], { atMs: 0, inputTokens: 374, outputTokens: 44 })
  t.equal(Math.round((rows.at(-1)?.atMs ?? 0) / 100), 35017)
  const { meanInputTokens, meanOutputTokens } = rowLengths(rows)
  t.equal(Math.round(meanInputTokens), 1155)
  t.equal(Math.round(meanOutputTokens), 211)
})

t.test('the Azure code trace reads whole', async t => {
  const rows = await rowsOf(t, data('azure2023-code.csv.gz'))
  t.equal(rows.length, 8819)
  t.equal(Math.round(rowLengths(rows).meanInputTokens), 2048)
})

t.test('the agent sessions read whole, and their block ids cover the full blocks of each prompt', async t => {
  const sessions = await sessionsOf(t, data('agent-claudecode-sessions.jsonl.gz'))
  const calls = sessions.flatMap(session => session.calls)
  t.equal(sessions.length, 184)
  t.equal(calls.length, 7426)
  t.ok(calls.every(call => call.ids.length === Math.floor(call.inputTokens / 64)))
  t.equal(sessions[0]?.calls[1]?.thinkMs, 5000)
})

t.test('calls above the input limit are left out and counted', async t => {
  const trace = await read(data('agent-claudecode-sessions.jsonl.gz'), 16384)
  t.equal(trace.leftOut, 7426 - 133)
  const sessions = await sessionsOf(t, data('agent-claudecode-sessions.jsonl.gz'), 16384)
  t.equal(sessions.length, 37)
  t.ok(sessions.every(session => session.calls.every(call => call.inputTokens <= 16384)))
})

t.test('a plain file reads like a gzipped one, whatever it is called', async t => {
  const lines = gunzipSync(readFileSync(data('azure2023-code.csv.gz')))
    .toString()
    .split('\n')
    .slice(0, 100)
  const dir = t.testdir({ 'plain.txt': lines.join('\n'), 'gzipped.csv': gzipSync(lines.join('\r\n')) })
  const wanted = (await rowsOf(t, data('azure2023-code.csv.gz'))).slice(0, 99)
  t.same(await rowsOf(t, join(dir, 'plain.txt')), wanted)
  t.same(await rowsOf(t, join(dir, 'gzipped.csv')), wanted)
})

t.test('groups of a Mooncake trace are spread up to the next group, at most 3 s', async t => {
  const line = (timestamp: number): string =>
    JSON.stringify({ timestamp, input_length: 600, output_length: 0, hash_ids: [0, 7] })
  const path = file(t, 'm.jsonl', ...[0, 0, 0, 0, 2000, 2000, 2000, 90000, 90000].map(line))
  const rows = await rowsOf(t, path)
  const times = rows.map(row => row.atMs)
  t.same(
    times,
    times.toSorted((a, b) => a - b),
  )
  t.equal(new Set(times).size, 9)
  t.same(
    times.map(at => [2000, 5000, 93000].findIndex(end => at < end)),
    [0, 0, 0, 0, 1, 1, 1, 2, 2],
  )
  t.match(rows[0], { inputTokens: 600, outputTokens: 1, prefix: { blockTokens: 512, ids: [0, 7] } })
  t.same(await rowsOf(t, path), rows, 'the same seed spreads the same')
})

t.test('a bad row is told with its file, its line, what was got and what is allowed', async t => {
  const head = 't_ms,input_tokens,output_tokens'
  const call = '{"session":"a","seq":0,"in":100,"out":1,"think_time":0,"hash_ids":[1]}'
  const cases: [lines: string[], message: RegExp][] = [
    [[head, '0,5,5', '', '1,many,5'], /x:4: input_tokens is "many"; allowed: a whole number from 1; correct/],
    [[head, '0,5,5', '1,0,5'], /x:3: input_tokens is 0; allowed: a whole number from 1/],
    [[head, '-1,5,5'], /x:2: t_ms is -1; allowed: a number from 0/],
    [[head, ',5,5'], /x:2: t_ms is ""; allowed: a number from 0/],
    [[head, '0,5,1.5'], /x:2: output_tokens is 1\.5; allowed: a whole number from 0/],
    [[head, '0,5'], /x:2: the line is "0,5"; allowed: 3 values: t_ms,input_tokens,output_tokens/],
    [[head], /x: holds no rows/],
    [[''], /x:1: not a trace Weir can read: it begins with ""/],
    [[call, '{"session":'], /x:2: the line is .* one JSON object/],
    [[call, '[1]'], /x:2: the line is "\[1\]"; allowed: one JSON object/],
    [[call.replace('"a"', '3')], /x:1: session is 3; allowed: a text/],
    [[call.replace('[1]', '"1"')], /x:1: hash_ids is "1"; allowed: a list of whole/],
    [[call.replace('"out":1,', '')], /x:1: out is missing; allowed: a whole/],
  ]
  for (const [lines, message] of cases)
    await t.rejects(read(file(t, 'x', ...lines)), { name: 'TraceError', message }, String(message))
})

t.test('an unknown format lists the formats that are known', async t => {
  const message =
    /it begins with "arrival,len"\nallowed:\n {2}\.csv {4}with the header t_ms,.*Mooncake.*agent/s
  await t.rejects(read(file(t, 'u.csv', 'arrival,len', '1,2')), { message })
})

t.test('a file that is not there, broken, or all above the limit says so', async t => {
  const broken = gzipSync('t_ms,input_tokens,output_tokens\n0,5,5\n').subarray(0, 25)
  const dir = t.testdir({ 'b.gz': broken, 'x.csv': 't_ms,input_tokens,output_tokens\n0,50,5\n' })
  await t.rejects(read(join(dir, 'none')), { message: /none: cannot be read: ENOENT/ })
  await t.rejects(read(join(dir, 'b.gz')), { message: /b\.gz: broken gzip: unexpected end of file/ })
  await t.rejects(read(join(dir, 'x.csv'), 10), { message: /all 1 rows are above the input limit; raise/ })
})

t.test('session lengths are those of a session entered at a random call', async t => {
  const call = (inputTokens: number, outputTokens: number, ids: number[]) => ({
    ...{ inputTokens, outputTokens, ids },
    thinkMs: 0,
  })
  const one = { id: 'one', calls: [call(64, 10, [1]), call(192, 40, [1, 2, 3])] }
  // Entered at either call alike: 1.5 calls, (64 + 192)/2 + 192/2 in, 10/2 + 40 out; half the time 64 is reused.
  t.same(sessionLengths([one]), {
    meanCalls: 1.5,
    meanInputTokens: 224 / 1.5,
    meanOutputTokens: 45 / 1.5,
    meanNewInputTokens: (224 - 32) / 1.5,
  })
})

t.test('a prompt has 4 bytes a token, and its ids decide what it shares', async t => {
  const prefix = (scope: string, ...ids: number[]) => ({ scope, blockTokens: 64, ids })
  for (const tokens of [1, 63, 64, 65, 200]) {
    t.equal(promptText(tokens, undefined, 'a').length, tokens * 4)
    t.equal(promptText(tokens, prefix('s', 1, 2), 'a').length, tokens * 4)
  }
  const text = promptText(200, prefix('s', 1, 2), 'a').toString()
  t.match(text, /^( [a-z]{3}){200}$/)
  t.equal(promptText(200, prefix('s', 1, 2), 'a').toString(), text, 'the same again')
  const other = promptText(200, prefix('s', 1, 3), 'b').toString()
  t.equal(other.slice(0, 256), text.slice(0, 256), 'equal ids are equal text')
  t.not(other.slice(256, 512), text.slice(256, 512), 'different ids are not')
  t.not(other.slice(512), text.slice(512), 'what has no id is its own')
  t.not(
    promptText(64, prefix('z', 1), 'a').toString(),
    text.slice(0, 256),
    'ids of another scope are not equal',
  )
  t.not(text.slice(0, 256), text.slice(256, 512))
})

t.test('blocks of 512 tokens are shared whole, and a last one is cut where the prompt ends', async t => {
  const text = (tokens: number, ...ids: number[]): string =>
    promptText(tokens, { scope: 'm', blockTokens: 512, ids }, 'a').toString()
  t.equal(text(1024, 5, 6).slice(0, 2048), text(512, 5))
  t.equal(text(600, 5, 6), text(1024, 5, 6).slice(0, 2400))
})

t.test('a body is JSON, and its prompt is the text of the row', async t => {
  const body = chatBody({
    model: 'a "b"',
    inputTokens: 70,
    prefix: undefined,
    unique: 'u',
    askUsage: true,
    exactTokens: 9,
  })
  t.same(JSON.parse(body.toString()), {
    model: 'a "b"',
    messages: [{ role: 'user', content: promptText(70, undefined, 'u').toString() }],
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: 9,
    ignore_eos: true,
  })
})
