/** Upstreams that compress although they were asked for plain bodies: what the client gets, and what is counted. */
import { request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  brotliCompressSync,
  constants,
  createBrotliCompress,
  createDeflate,
  createDeflateRaw,
  createGzip,
  deflateRawSync,
  deflateSync,
  gzipSync,
} from 'node:zlib'
import t from 'tap'
import { LAX } from '../fixtures/before.js'
import { ask, body, errorOf, lastError } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD, USAGE } from '../fixtures/events.js'
import { live, MiB } from '../fixtures/memory.js'
import { type Script, stage } from '../fixtures/stage.js'
import type { Step } from '../fixtures/upstream.js'

const head = (encoding: string, type = 'text/event-stream', more = ''): string =>
  `HTTP/1.1 200 OK\r\nContent-Type: ${type}\r\nContent-Encoding: ${encoding}\r\n${more}Transfer-Encoding: chunked\r\n\r\n`

const CODERS = {
  gzip: { whole: gzipSync, open: createGzip, label: 'gzip' },
  'x-gzip': { whole: gzipSync, open: createGzip, label: 'X-GZIP' },
  deflate: { whole: deflateSync, open: createDeflate, label: 'deflate' },
  'deflate without its head': { whole: deflateRawSync, open: createDeflateRaw, label: 'deflate' },
  br: { whole: brotliCompressSync, open: createBrotliCompress, label: 'br' },
} as const

/** Each text compressed and flushed for itself, as a server does that streams. */
async function* packed(
  open: () => NodeJS.ReadWriteStream,
  texts: readonly string[],
  gapMs = 0,
): AsyncIterable<Step> {
  const stream = open() as ReturnType<typeof createGzip>
  const out: Buffer[] = []
  stream.on('data', (chunk: Buffer) => out.push(chunk))
  for (const text of texts) {
    stream.write(text)
    await new Promise<void>(resolve => stream.flush(() => resolve()))
    // What is flushed is handed out in a later turn.
    await sleep(1)
    yield Buffer.concat(out.splice(0))
    if (gapMs > 0) await sleep(gapMs)
  }
  stream.end()
  await new Promise(resolve => stream.once('end', resolve))
  yield Buffer.concat(out.splice(0))
}

const TOKENS = Array.from({ length: 6 }, (_, i) => `token-${i} `)
const EVENTS = [ROLE, ...TOKENS.map(text => TOK(text)), FIN + USAGE(5, TOKENS.length), DONE]

const scripts: Record<string, Script> = {}
for (const [name, { whole, open, label }] of Object.entries(CODERS)) {
  scripts[`stream ${name}`] = async function* () {
    yield head(label)
    yield* packed(open as () => NodeJS.ReadWriteStream, EVENTS, 100)
    yield 'EOF'
  }
  scripts[`json ${name}`] = function* () {
    const bytes = whole(JSON_ANSWER(5, 7))
    yield `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: ${label}\r\nContent-Length: ${bytes.length}\r\n\r\n`
    yield bytes
  }
  scripts[`refusal ${name}`] = function* () {
    const bytes = whole('{"error":{"message":"too long","code":"context_length_exceeded"}}')
    yield `HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Encoding: ${label}\r\nContent-Length: ${bytes.length}\r\n\r\n`
    yield bytes
  }
}

t.test(
  'compressed answers reach the client plain, event by event, and are counted like plain ones',
  async t => {
    const { upstream, weir, play } = await stage(
      t,
      {
        ...scripts,
        async *plain() {
          yield 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n'
          for (const event of EVENTS) {
            yield event
            yield { wait: 100 }
          }
          yield 'EOF'
        },
      },
      { classes: { chat: LAX } },
    )
    const headers = { 'accept-encoding': 'gzip, br' }
    const plain = await play('plain', { headers })
    await Promise.all(
      Object.keys(CODERS).map(async name => {
        const stream = await play(`stream ${name}`, { headers })
        t.equal(stream.text, plain.text, `${name}: the same bytes`)
        t.ok(stream.whole, name)
        t.notOk('content-encoding' in stream.headers, `${name}: and no label that says otherwise`)
        t.notOk('content-length' in stream.headers, name)
        t.match(stream.headers, { 'cache-control': /no-transform/, 'x-accel-buffering': 'no' }, name)
        const at = stream.reads.filter(({ bytes }) => bytes.includes('token-')).map(read => read.at)
        t.equal(at.length, TOKENS.length, `${name}: one read an event`)
        const gaps = at.slice(1).map((time, i) => time - (at[i] ?? 0))
        t.ok(
          gaps.every(gap => gap > 50 && gap < 200),
          `${name}: gaps of 100 ms: ${gaps.map(Math.round)}`,
        )
        t.match(stream.log, { verdict: 'good', outputTokens: 6, inputTokens: 5, status: 200 }, name)

        const json = await play(`json ${name}`, { headers, body: body({ stream: false }) })
        t.equal(json.text, JSON_ANSWER(5, 7), name)
        t.notOk('content-encoding' in json.headers, name)
        t.notOk('content-length' in json.headers, `${name}: that of the compressed body is not its length`)
        t.match(json.log, { ending: 'complete', outputTokens: 7 }, name)

        const refusal = await play(`refusal ${name}`, { headers })
        t.equal(refusal.status, 400, name)
        t.equal(errorOf(refusal).code, 'context_length_exceeded', name)
        t.notOk('content-encoding' in refusal.headers, name)
      }),
    )
    t.ok(
      upstream.requests.every(request => request.headers['accept-encoding'] === 'identity'),
      'plain was asked for',
    )
    await weir.atRest()
  },
)

t.test('a compressed stream that is cut, damaged or in an unknown coding never looks complete', async t => {
  const whole = gzipSync(TOLD('a', 'b'))
  const { weir, play } = await stage(t, {
    async *cut() {
      yield head('gzip')
      yield* packed(createGzip, [ROLE, TOK('a'), TOK('b')])
      yield 'CUT'
    },
    *'short of its end'() {
      yield head('gzip')
      yield gzipSync(ROLE + TOK('a') + TOK('b'), { finishFlush: constants.Z_SYNC_FLUSH })
      yield 'EOF'
    },
    async *'damaged after output'() {
      yield head('gzip')
      const stream = gzipSync(ROLE + TOK('a') + TOK('b'), { finishFlush: constants.Z_SYNC_FLUSH })
      yield stream
      yield { wait: 50 }
      yield Buffer.from('this is not deflate at all')
      yield 'HOLD'
    },
    *'damaged from the start'() {
      yield head('gzip')
      yield 'data: {"plain":true}\n\n'
      yield 'HOLD'
    },
    *'unknown coding'() {
      yield head('zstd')
      yield whole
      yield 'EOF'
    },
    *'two codings'() {
      yield head('gzip, gzip')
      yield gzipSync(whole)
      yield 'EOF'
    },
    *'said to be plain'() {
      yield head('identity')
      yield TOLD('a', 'b')
      yield 'EOF'
    },
    *'empty, and said to be gzip'() {
      yield 'HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n'
    },
  })
  for (const name of ['cut', 'short of its end', 'damaged after output']) {
    const answer = await play(name)
    t.ok(answer.text.startsWith(ROLE + TOK('a') + TOK('b')), `${name}: what came is passed on`)
    t.equal(lastError(answer).code, 'weir_upstream_truncated', name)
    t.equal(answer.log['verdict'], 'truncated', name)
  }
  const says: Record<string, RegExp> = {
    'damaged from the start': /its gzip body cannot be unpacked: Z_DATA_ERROR/,
    'unknown coding': /answered in zstd, which was not asked for/,
    'two codings': /answered in gzip, gzip, which/,
  }
  for (const [name, message] of Object.entries(says)) {
    const answer = await play(name)
    t.equal(answer.status, 502, name)
    t.match(errorOf(answer).message, message, name)
  }
  t.equal((await play('said to be plain')).log['verdict'], 'good')
  const empty = await play('empty, and said to be gzip')
  t.equal(empty.status, 400)
  t.equal(empty.text, '')
  await weir.atRest()
})

t.test('who does not read a compressed stream makes its upstream wait, and who leaves frees it', async t => {
  const line = TOK('x'.repeat(60_000))
  let written = 0
  const { upstream, weir } = await stage(
    t,
    {
      // 64 MiB once it is unpacked, and a thousandth of that on the wire.
      async *bomb() {
        yield head('gzip')
        yield* packed(createGzip, [ROLE])
        for (; written < 64 * MiB; written += line.length * 16) yield gzipSync(line.repeat(16))
        yield 'EOF'
      },
      async *slow() {
        yield head('gzip')
        yield* packed(createGzip, Array(200).fill(TOK('a')), 20)
        yield 'EOF'
      },
    },
    { classes: { chat: LAX } },
  )
  const before = live()
  const idle = request(`${weir.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-script': 'bomb' },
  })
  idle.on('error', () => undefined)
  idle.end(body())
  const response = await new Promise<{ pause(): void }>(resolve => idle.once('response', resolve))
  response.pause()
  await sleep(1000)
  const grown = live() - before
  t.ok(grown < 24 * MiB, `${Math.round(grown / MiB)} MiB held for who does not read`)
  idle.destroy()
  await weir.until('the upstream is free', () => upstream.running === 0)

  const leaver = ask(weir.url, { headers: { 'x-script': 'slow' } })
  await leaver.received(300)
  const left = performance.now()
  leaver.leave()
  await weir.until('the upstream is free', () => upstream.running === 0)
  t.ok(performance.now() - left < 500)
  await weir.atRest()
})
