/** Where a request ends, and what it may ask of the connection: forms that two readers could read differently. */
import { Agent } from 'node:http'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { LAX } from '../fixtures/before.js'
import { ask, body, RAW, raw } from '../fixtures/client.js'
import { JSON_ANSWER, TOLD } from '../fixtures/events.js'
import { HDR, startUpstream, type Upstream, type UpstreamRequest, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

type Test = Parameters<typeof startUpstream>[0]

async function start(t: Test, over: object = {}): Promise<{ weir: TestWeir; upstream: Upstream }> {
  const upstream = await startUpstream(t, ({ path }) =>
    path.includes('/chat/') ? [HDR, TOLD('a'), 'EOF'] : [WHOLE(200, '{}')],
  )
  const data = configData(
    [upstream.url],
    { classes: { chat: LAX }, ...over },
    { allow: ['embeddings', 'files'] },
  )
  return { weir: await startTestWeir(t, data), upstream }
}

const HIDDEN = 'POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n'
const CHUNKED = 'transfer-encoding: chunked'

/** What stands in place of the length, and what follows the head. */
const SMUGGLED: Record<string, readonly [head: string, rest: string]> = {
  'a length and chunks': [`content-length: 5\r\n${CHUNKED}`, `0\r\n\r\n${HIDDEN}\r\n`],
  'chunks and a length': [`${CHUNKED}\r\ncontent-length: 5`, `0\r\n\r\n${HIDDEN}\r\n`],
  'two lengths': ['content-length: 0\r\ncontent-length: 38', HIDDEN],
  'two lengths, alike': ['content-length: 2\r\ncontent-length: 2', '{}'],
  'two lengths in one line': ['content-length: 5, 5', '{"a":'],
  'a length with a sign': ['content-length: +5', '{"a":'],
  'a negative length': ['content-length: -1', ''],
  'a hexadecimal length': ['content-length: 0x2', '{}'],
  'an empty length': ['content-length: ', '{}'],
  'a length beyond counting': ['content-length: 99999999999999999999', '{}'],
  'a space before the colon': ['content-length : 2', '{}'],
  'chunks with a space before the colon': ['transfer-encoding : chunked', '0\r\n\r\n'],
  'a folded line': ['x-a: 1\r\n content-length: 2', '{}'],
  'chunked not last': ['transfer-encoding: chunked, identity', '0\r\n\r\n'],
  'an unknown coding': ['transfer-encoding: xchunked', '0\r\n\r\n'],
  'chunked twice': ['transfer-encoding: chunked\r\ntransfer-encoding: identity', '0\r\n\r\n'],
  'a chunk of no size': [CHUNKED, 'zz\r\n'],
  'a chunk of a negative size': [CHUNKED, '-1\r\n'],
  'a chunk beyond counting': [CHUNKED, 'fffffffffffffffff\r\n'],
  'a chunk that is longer than it says': [CHUNKED, '2\r\n{}xx\r\n0\r\n\r\n'],
  'a bare line feed after a chunk size': [CHUNKED, '2\n{}\r\n0\r\n\r\n'],
  'a NUL in a value': ['x-a: a\0b\r\ncontent-length: 2', '{}'],
  'a name with a space': ['x a: 1\r\ncontent-length: 2', '{}'],
  'a line without a colon': ['content-length\r\nx-a: 1', '{}'],
}

t.test('a request whose end could be read in two ways is refused, and its connection closed', async t => {
  const { weir, upstream } = await start(t)
  for (const path of ['/chat/completions', '/embeddings']) {
    for (const [name, [head, rest]] of Object.entries(SMUGGLED)) {
      const socket = connect(weir.port, '127.0.0.1')
      socket.on('error', () => undefined)
      socket.write(RAW('', head).replace('/chat/completions', path) + rest)
      let answer = ''
      socket.on('data', bytes => {
        answer += bytes
      })
      await new Promise(resolve => socket.once('close', resolve))
      t.match(answer, /^HTTP\/1.1 400 Bad Request\r\n/, `${path}: ${name}`)
      t.match(answer, /connection: close/i, name)
      t.match(answer, /"code":"weir_bad_request"/, name)
      t.equal(answer.match(/^HTTP/gm)?.length, 1, `${name}: one answer`)
    }
  }
  t.equal(upstream.requests.length, 0, 'and nothing of it reaches an upstream')
  const refused = await weir.metric('weir_requests_total', { verdict: 'client_error' })
  t.equal(refused, await weir.metric('weir_requests_total'))
  t.ok(refused >= Object.keys(SMUGGLED).length)
  t.equal((await ask(weir.url).answer).status, 200, 'and it goes on')
})

t.test('Weir writes its own framing, whatever the client’s was', async t => {
  const { weir, upstream } = await start(t, {})
  const payload = body()
  const half = Math.floor(payload.length / 2)
  const pieces = [payload.slice(0, half), payload.slice(half)]
  const chunks = pieces.map(piece => `${piece.length.toString(16)};name="a b"\r\n${piece}\r\n`).join('')
  const whole = await raw(
    weir.port,
    RAW('', `${CHUNKED}\r\ntrailer: x-t\r\nconnection: close`),
    chunks,
    '0\r\nx-t: 1\r\n\r\n',
  )
  t.match(whole, /^HTTP\/1.1 200 /)
  const [got] = upstream.requests
  const sent = JSON.parse(got?.body.toString() ?? '')
  t.match(sent, JSON.parse(payload))
  t.equal(got?.headers['content-length'], String(got?.body.length))
  for (const gone of ['transfer-encoding', 'trailer', 'x-t']) t.notOk(gone in (got?.headers ?? {}), gone)

  // A GET's body is no business of the upstream's, and no second request either.
  const get = await raw(
    weir.port,
    `GET /v1/files HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: ${HIDDEN.length}\r\n\r\n${HIDDEN}`,
  )
  t.equal(get.match(/^HTTP/gm)?.length, 1)
  t.equal(upstream.requests.length, 2)
  t.equal(upstream.requests[1]?.body.length, 0)

  // HTTP/1.0 has no chunks; pipelined requests have one answer each, in order.
  const old = await raw(
    weir.port,
    `POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: ${payload.length}\r\n\r\n${payload}`,
  )
  t.match(old, /^HTTP\/1.1 200 /)
  t.notMatch(old, /transfer-encoding/i)
  t.ok(old.endsWith('data: [DONE]\n\n'))
  const two = await raw(
    weir.port,
    RAW(payload) + RAW(payload, `content-length: ${payload.length}\r\nconnection: close`),
  )
  t.equal(two.match(/^HTTP\/1.1 200 /gm)?.length, 2)
  await weir.atRest()
})

t.test(
  'lines of one connection do not cross to the other, in either direction, on any kind of answer',
  async t => {
    const up =
      'Connection: close, x-up\r\nX-Up: 1\r\nKeep-Alive: timeout=1\r\nTrailer: x-sum\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n'
    const kinds: Record<string, readonly [path: string, payload: string, type: string, answer: string]> = {
      json: ['/v1/chat/completions', body({ stream: false }), 'application/json', JSON_ANSWER(1, 2)],
      events: ['/v1/chat/completions', body(), 'text/event-stream', TOLD('a', 'b', 'c')],
      passed: ['/v1/embeddings', '{}', 'application/json', '{"data":[]}'],
    }
    for (const [kind, [path, payload, type, answered]] of Object.entries(kinds)) {
      for (const tail of ['0\r\nx-sum: 1\r\n\r\n', '0\r\n\r\n']) {
        const upstream = await startUpstream(t, function* () {
          yield `HTTP/1.1 200 OK\r\nContent-Type: ${type}\r\n${up}Transfer-Encoding: chunked\r\n\r\n`
          yield answered
          yield { raw: tail }
          yield 'CUT'
        })
        const weir = await startTestWeir(
          t,
          configData([upstream.url], { classes: { chat: LAX } }, { allow: ['embeddings'] }),
        )
        const agent = new Agent({ keepAlive: true, maxSockets: 1 })
        t.teardown(() => agent.destroy())
        const headers = {
          connection: 'x-hop, keep-alive',
          'x-hop': '1',
          'keep-alive': 'timeout=9',
          'proxy-authorization': 'Basic eA==',
          te: 'trailers',
          upgrade: 'h2c',
        }
        for (let i = 0; i < 2; i++) {
          const answer = await ask(weir.url, { path, body: payload, headers, agent }).answer
          t.equal(answer.status, 200, kind)
          t.ok(answer.whole, kind)
          if (kind !== 'events') t.equal(answer.text, answered, `${kind}: whole, and no trailer in it`)
          for (const gone of ['x-up', 'trailer', 'proxy-authenticate', 'upgrade']) {
            t.notOk(gone in answer.headers, `${kind}: no ${gone} to the client`)
          }
          t.not(answer.headers['keep-alive'], 'timeout=1')
          const sent = upstream.requests.at(-1)?.headers ?? {}
          for (const gone of ['x-hop', 'keep-alive', 'proxy-authorization', 'te', 'upgrade']) {
            t.notOk(gone in sent, `${kind}: no ${gone} to the upstream`)
          }
        }
        if (kind !== 'passed') {
          const lines = await weir.requestLogs(2)
          t.ok(lines.every(line => line['ending'] === 'complete'))
        }
        await weir.atRest()
      }
    }
  },
)

/** Writes a head, waits for what Weir says to it, and then perhaps the body. */
async function expecting(
  port: number,
  payload: string,
  head = 'expect: 100-continue',
): Promise<{ readonly first: string; readonly all: string }> {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => undefined)
  let text = ''
  const came = new Promise<void>(resolve => {
    socket.on('data', bytes => {
      text += bytes
      resolve()
    })
  })
  const closed = new Promise(resolve => socket.once('close', resolve))
  socket.write(RAW('', `content-length: ${payload.length}\r\n${head}`))
  await came
  const first = text
  if (first.startsWith('HTTP/1.1 100')) {
    await sleep(50)
    socket.write(payload)
    while (!text.includes('[DONE]')) await sleep(10)
    socket.end()
  }
  await closed
  return { first, all: text }
}

t.test(
  'a client that expects 100-continue is told to go on when its body is wanted, and not before',
  async t => {
    const { weir, upstream } = await start(t)
    const { first, all } = await expecting(weir.port, body())
    t.equal(first, 'HTTP/1.1 100 Continue\r\n\r\n')
    t.match(all.slice(first.length), /^HTTP\/1.1 200 OK\r\n/, 'and then the answer')
    t.notOk('expect' in (upstream.requests[0]?.headers ?? {}), 'nothing of it goes to the upstream')

    const refusals: Record<string, readonly [head: string, status: number]> = {
      'another expectation': ['expect: foo', 417],
      'a body that is too large': [`expect: 100-continue\r\nx-size: big`, 413],
    }
    for (const [name, [head, status]] of Object.entries(refusals)) {
      const socket = connect(weir.port, '127.0.0.1')
      const length = status === 413 ? 40 * 1024 * 1024 : 2
      socket.write(RAW('', `content-length: ${length}\r\n${head}`))
      let text = ''
      for await (const bytes of socket) text += bytes
      t.match(text, new RegExp(`^HTTP/1.1 ${status} `), name)
      t.match(text, /connection: close/i, `${name}: nobody knows whether the body still comes`)
      t.match(text, /"code":"weir_/, name)
      t.notMatch(text, /100 Continue/, name)
    }
    t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), 2)

    void weir.weir.drain(1000)
    const drained = await expecting(weir.port, body()).catch(() => undefined)
    t.match(drained?.first, /^HTTP\/1.1 503 .*weir_draining/s, 'while draining, without its body')
    t.equal(upstream.requests.length, 1)
  },
)

t.test('who needs a key is told so before its body is sent', async t => {
  const { mkdtempSync, writeFileSync } = await import('node:fs')
  const { tmpdir } = await import('node:os')
  const { join } = await import('node:path')
  const keys = join(mkdtempSync(join(tmpdir(), 'weir-')), 'keys.yaml')
  writeFileSync(keys, 'keys: [{ label: a, key: sk-0123456789abcdef }]')
  const { weir, upstream } = await start(t, { auth: { keys } })
  const { first } = await expecting(weir.port, body())
  t.match(first, /^HTTP\/1.1 401 .*connection: close/is)
  t.equal(upstream.requests.length, 0)
})

t.test('an offer to speak HTTP/2 is passed over, and the request with it is answered', async t => {
  const { weir, upstream } = await start(t)
  const payload = body()
  const offer =
    'connection: Upgrade, HTTP2-Settings, x-hop\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\nx-hop: 1'
  const head = RAW('', `content-length: ${payload.length}\r\n${offer}`)
  const socket = connect(weir.port, '127.0.0.1')
  let text = ''
  socket.on('data', bytes => {
    text += bytes
  })
  // Its body may be there with the head, or come later; and the connection goes on after it.
  socket.write(head + payload.slice(0, 10))
  await sleep(50)
  socket.write(payload.slice(10))
  await weir.until('the first answer', () => text.includes('[DONE]'))
  socket.write(RAW(payload, `content-length: ${payload.length}\r\nconnection: close`))
  await new Promise(resolve => socket.once('close', resolve))
  t.equal(text.match(/^HTTP\/1.1 200 /gm)?.length, 2)
  t.equal(upstream.requests.length, 2)
  for (const gone of ['upgrade', 'http2-settings', 'x-hop'])
    t.notOk(gone in (upstream.requests[0]?.headers ?? {}), gone)
  await weir.atRest()
})

t.test('those who trickle a head or a body are told 408, and normal clients do not feel them', async t => {
  const { weir, upstream } = await start(t, { limits: { head_time: '600ms', body_time: '600ms' } })
  const trickle = (first: string, byte: string) => {
    const started = performance.now()
    const socket = connect(weir.port, '127.0.0.1')
    socket.on('error', () => undefined)
    socket.write(first)
    const timer = setInterval(() => socket.write(byte), 100)
    let text = ''
    socket.on('data', bytes => {
      text += bytes
    })
    return new Promise<{ text: string; ms: number }>(resolve => {
      socket.once('close', () => {
        clearInterval(timer)
        resolve({ text, ms: performance.now() - started })
      })
    })
  }
  const heads = Array.from({ length: 100 }, () => trickle('POST /v1/chat/completions HTTP/1.1\r\nx-a: ', 'x'))
  const bodies = Array.from({ length: 50 }, () => trickle(RAW('', 'content-length: 1000000'), ' '))
  const normal: number[] = []
  for (let i = 0; i < 10; i++) {
    const answer = await ask(weir.url).answer
    t.equal(answer.status, 200)
    normal.push(answer.headAt)
    t.equal(await weir.metric('weir_in_flight'), 0, 'a slow body holds no slot')
    await sleep(50)
  }
  const [fastest = 0, , , , , middle = 0] = normal.sort((a, b) => a - b)
  t.ok(middle < 300, `from ${Math.round(fastest)} ms, in the middle ${Math.round(middle)} ms`)
  for (const { text, ms } of await Promise.all(heads)) {
    t.match(text, /^HTTP\/1.1 408 Request Timeout\r\n.*limits.head_time/s)
    t.ok(ms > 500 && ms < 2500, `${Math.round(ms)} ms`)
  }
  for (const { text, ms } of await Promise.all(bodies)) {
    t.match(text, /^HTTP\/1.1 408 Request Timeout\r\n.*limits.body_time/s)
    t.ok(ms > 1000 && ms < 3500, `${Math.round(ms)} ms`)
  }
  await weir.until('each is counted', async () => (await weir.metric('weir_requests_total')) === 160)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), 150)
  t.equal(upstream.requests.length, 10)

  // A long answer is no slow request, and neither is a connection that is kept open.
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.teardown(() => agent.destroy())
  t.equal((await ask(weir.url, { agent }).answer).status, 200)
  const port = Object.values(agent.freeSockets).flat()[0]?.localPort
  await sleep(1800)
  t.equal((await ask(weir.url, { agent }).answer).status, 200)
  t.equal(Object.values(agent.freeSockets).flat()[0]?.localPort, port, 'the same connection')
})

t.test('a stream that is longer than a request may take to come in is not cut', async t => {
  const upstream = await startUpstream(t, async function* (_: UpstreamRequest) {
    yield HDR
    yield TOLD('a').split('data: [DONE]')[0] ?? ''
    yield { wait: 2500 }
    yield 'data: [DONE]\n\n'
    yield 'EOF'
  })
  const weir = await startTestWeir(
    t,
    configData([upstream.url], {
      classes: { chat: LAX },
      limits: { head_time: '500ms', body_time: '500ms' },
    }),
  )
  const answer = await ask(weir.url).answer
  t.ok(answer.whole)
  t.ok(answer.text.endsWith('data: [DONE]\n\n'))
})
