/** Large bodies and large heads, in both directions: whole and unchanged, or refused by a limit with a name. */
import { randomBytes } from 'node:crypto'
import { request } from 'node:http'
import { pipeline } from 'node:stream/promises'
import t from 'tap'
import { LAX, startBefore } from '../fixtures/before.js'
import { ask, body, errorOf, RAW, raw } from '../fixtures/client.js'
import { DONE, FIN, ROLE, TOK, TOLD } from '../fixtures/events.js'
import { HDR, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

/** A chat body with an image, of exactly so many bytes. */
function withImage(bytes: number): Buffer {
  const make = (image: string): string =>
    body({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: image } }] }] })
  const lead = 'data:image/png;base64,'
  const room = bytes - make(lead).length
  return Buffer.from(
    make(
      lead +
        randomBytes(Math.ceil(room * 0.75) + 3)
          .toString('base64')
          .slice(0, room),
    ),
  )
}

const PIECE = 256 * 1024

/** Sends a body in pieces, without saying how long it will be. */
async function chunked(url: string, bytes: Buffer): Promise<{ status: number; text: string }> {
  const outgoing = request(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'transfer-encoding': 'chunked' },
  })
  const answered = new Promise<{ status: number; text: string }>((resolve, reject) => {
    outgoing.on('error', reject)
    outgoing.on('response', response => {
      let text = ''
      response.on('data', part => {
        text += part
      })
      response.on('close', () => resolve({ status: response.statusCode ?? 0, text }))
      response.on('error', () => undefined)
    })
  })
  async function* pieces(): AsyncIterable<Buffer> {
    for (let at = 0; at < bytes.length; at += PIECE) yield bytes.subarray(at, at + PIECE)
  }
  // The answer may come, and the connection close, before all of it is sent.
  pipeline(pieces, outgoing).catch(() => undefined)
  return answered
}

const MB = 1_000_000

/** The upstream, the clients and Weir share one thread here, and move the same bytes. */
const LONGEST_GAP_MS = 250

t.test('images arrive to the byte, up to the limit, and running streams keep their pace', async t => {
  const upstream = await startUpstream(t, async function* ({ body: sent }) {
    yield HDR
    yield ROLE
    if (sent.includes('image_url')) yield TOK('seen')
    else {
      for (let i = 0; i < 150; i++) {
        yield TOK(`${i} `)
        yield { wait: 20 }
      }
    }
    yield FIN + DONE
    yield 'EOF'
  })
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: { chat: LAX } }, { ask_usage: false, max_in_flight: 100 }),
  )
  const bodies = [1.1, 4.9, 20].map(size => withImage(size * MB))
  let longest = Infinity
  // Whatever else the machine does only makes gaps longer: one quiet round is proof.
  for (let round = 0; round < 3 && longest > LONGEST_GAP_MS; round++) {
    const running = Array.from({ length: 10 }, () => ask(weir.url))
    await Promise.all(running.map(one => one.received(500)))
    for (const bytes of bodies) {
      const announced = await ask(weir.url, { body: bytes }).answer
      t.equal(announced.status, 200, `${bytes.length} bytes`)
      t.ok(upstream.requests.at(-1)?.body.equals(bytes), 'to the byte')
      t.equal((await chunked(weir.url, bytes)).status, 200, `${bytes.length} bytes, in chunks`)
      t.ok(upstream.requests.at(-1)?.body.equals(bytes), 'to the byte')
    }
    const streams = await Promise.all(running.map(({ answer }) => answer))
    const gaps = streams.flatMap(({ reads }) => reads.slice(1).map(({ at }, i) => at - (reads[i]?.at ?? 0)))
    longest = Math.min(longest, Math.max(...gaps))
  }
  t.ok(longest <= LONGEST_GAP_MS, `longest gap ${Math.round(longest)} ms, where 20 ms were sent`)
  await weir.atRest()
})

t.test('a body over 32 MiB is refused with the limit in words, as soon as that is known', async t => {
  const { weir, upstream } = await startBefore(t, [() => [HDR, TOLD('a'), 'EOF']])
  const over = 33 * 1024 * 1024 + 1
  const started = performance.now()
  const announced = await raw(weir.port, RAW('', `content-length: ${over}`))
  t.ok(performance.now() - started < 500, 'before a byte of it is sent')
  const bytes = withImage(over)
  const sent = await chunked(weir.url, bytes).catch(error => ({ status: 413, text: String(error.code) }))
  t.equal(sent.status, 413)
  t.match(announced, /^HTTP\/1.1 413 .*"code":"weir_too_large"/s)
  t.match(announced, '33554432 bytes (limits.body)')
  t.equal(upstream.requests.length, 0)
  t.equal(await weir.metric('weir_replica_up'), 1, 'no replica is blamed')
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), 2)
  t.equal((await ask(weir.url).answer).status, 200)
  await weir.atRest()
})

t.test('a head that is too long is refused by the name of its limit, from either side', async t => {
  const long = 'x'.repeat(20 * 1024)
  const upstream = await startUpstream(t, ({ path }) =>
    path === '/v1/embeddings'
      ? [WHOLE(200, '{}', 'application/json', `X-Long: ${long}\r\n`)]
      : [HDR.replace('\r\n\r\n', `\r\nX-Long: ${long}\r\n\r\n`), TOLD('a'), 'EOF'],
  )
  const start = (limits: object) =>
    startTestWeir(
      t,
      configData([upstream.url], { classes: { chat: LAX }, limits }, { allow: ['embeddings'] }),
    )
  const [weir, roomy] = await Promise.all([start({}), start({ headers: '64KiB' })])
  const request = await ask(weir.url, { headers: { 'x-long': long } }).answer
  t.equal(request.status, 431)
  t.match(errorOf(request).message, '16384 bytes (limits.headers)')
  t.equal(upstream.requests.length, 0)
  for (let i = 0; i < 7; i++) {
    const answer = await ask(weir.url).answer
    t.equal(answer.status, 502)
    t.equal(errorOf(answer).code, 'weir_upstream_error')
    t.match(errorOf(answer).message, 'over 16384 bytes (limits.headers)')
  }
  t.equal(await weir.metric('weir_replica_up'), 1)
  const passed = await ask(weir.url, { path: '/v1/embeddings', body: '{}' }).answer
  t.equal(passed.status, 502)
  t.match(errorOf(passed).message, 'over 16384 bytes (limits.headers)')

  const text = body()
  const length = `content-length: ${text.length}\r\nconnection: close`
  const answer = await raw(roomy.port, RAW(text, `${length}\r\nx-long: ${long}`))
  t.match(answer, /^HTTP\/1.1 200 /, 'where the limit allows it')
  t.ok(answer.includes(`X-Long: ${long}\r\n`))
  t.equal(upstream.requests.at(-1)?.headers['x-long'], long)
  await weir.atRest()
})
