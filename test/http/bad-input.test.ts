/** What Weir says to requests it cannot read: a 4xx that tells what to change, no upstream call, one client_error. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { type Ask, ask, body, RAW, raw, STREAM } from '../fixtures/client.js'
import { TOLD } from '../fixtures/events.js'
import { HDR, startUpstream, type Upstream } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

type Test = Parameters<typeof startUpstream>[0]

/** A Weir whose upstream would answer anything. */
async function start(t: Test, over: object = {}): Promise<{ weir: TestWeir; upstream: Upstream }> {
  const upstream = await startUpstream(t, () => [HDR, TOLD('a'), 'EOF'])
  const classes = { chat: CHAT, agent: AGENT }
  const routes = [{ class: 'chat' }]
  const weir = await startTestWeir(t, configData([upstream.url], { classes, routes, ...over }))
  return { weir, upstream }
}

interface Wrong extends Ask {
  readonly what: string
  /** 400 unless given. */
  readonly status?: number
  readonly code?: string
  readonly says: RegExp
}

const text = JSON.stringify(STREAM)
const twice = (second: string): string => text.replace('{', `{${second},`)

const WRONG: readonly Wrong[] = [
  { what: 'a body that breaks off', body: '{', says: /not a valid JSON object.*Send one JSON object/ },
  { what: 'a body that is no JSON', body: 'model=m', says: /not a valid JSON object/ },
  { what: 'an empty body', body: '', says: /body is empty. Send a JSON object with "model"/ },
  { what: 'a body of white space', body: ' \n ', says: /not a valid JSON object/ },
  { what: 'a byte order mark', body: `\ufeff${text}`, says: /byte order mark. Send plain UTF-8/ },
  { what: 'UTF-16', body: Buffer.from(text, 'utf16le'), says: /not a valid JSON object|not valid UTF-8/ },
  { what: 'a list', body: '[]', says: /expected an object/ },
  { what: 'two objects', body: `${text}{}`, says: /something follows the object/ },
  { what: 'nesting without end', body: `{"model":"m","x":${'['.repeat(10_000)}`, says: /nested deeper/ },
  { what: 'no model', body: '{"messages":[]}', says: /no "model". Name one of the models of GET/ },
  { what: 'a number for a model', body: '{"model":42}', says: /"model" must be a non-empty string/ },
  { what: 'an object for a model', body: '{"model":{"a":1}}', says: /"model" must be a non-empty string/ },
  { what: 'an empty model', body: '{"model":""}', says: /"model" must be a non-empty string/ },
  { what: 'null for a model', body: '{"model":null}', says: /"model" must be a non-empty string/ },
  {
    what: 'stream as a text',
    body: body({ stream: 'true' }),
    says: /"stream" must be true or false, without/,
  },
  { what: 'stream as a number', body: body({ stream: 1 }), says: /"stream" must be true or false/ },
  { what: 'model twice', body: twice('"model":"other"'), says: /"model" twice. Send it once/ },
  { what: 'model twice, alike', body: twice('"model":"m"'), says: /"model" twice/ },
  { what: 'model twice, once escaped', body: twice('"mod\\u0065l":"other"'), says: /"model" twice/ },
  { what: 'stream twice', body: twice('"stream":false'), says: /"stream" twice/ },
  { what: 'stream twice, once escaped', body: twice('"\\u0073tream":false'), says: /"stream" twice/ },
  {
    what: 'a model that no pool serves',
    body: body({ model: 'gpt-9' }),
    status: 404,
    code: 'weir_unknown_route',
    says: /No pool of class chat serves this model. Set "model" to one of: m\./,
  },
  { what: 'no content type', headers: { 'content-type': '' }, says: /content-type: application\/json/ },
  { what: 'a form', headers: { 'content-type': 'text/plain' }, says: /content-type: application\/json/ },
  { what: 'a compressed body', headers: { 'content-encoding': 'gzip' }, says: /without content-encoding/ },
  {
    what: 'an unknown class by header',
    headers: { 'x-weir-class': 'chatt' },
    says: /x-weir-class names no class.*Allowed: chat, agent/,
  },
  {
    what: 'an unknown class by prefix',
    path: '/chatt/v1/chat/completions',
    status: 404,
    code: 'weir_unknown_route',
    says: /no POST route at that path.*\/CLASS\/v1/,
  },
  ...['-1', '0', 'soon', '1e999', 'NaN', '10s', ''].map(value => ({
    what: `a deadline of "${value}"`,
    headers: { 'x-weir-deadline-ms': value },
    says: /x-weir-deadline-ms must be a positive number of milliseconds, such as 30000/,
  })),
  {
    what: 'a TTFT bound of no number',
    headers: { 'x-weir-ttft-ms': 'fast' },
    says: /x-weir-ttft-ms must be a positive number/,
  },
]

t.test('each wrong request gets a 4xx that says what to change, and never reaches an upstream', async t => {
  const { weir, upstream } = await start(t)
  for (const { what, status = 400, code = 'weir_bad_request', says, ...wrong } of WRONG) {
    const answer = await ask(weir.url, wrong).answer
    t.equal(answer.status, status, what)
    const { error } = JSON.parse(answer.text)
    t.equal(error.code, code, what)
    t.equal(error.type, 'invalid_request_error', what)
    t.match(error.message, says, what)
    t.equal(answer.headers['content-type'], 'application/json; charset=utf-8', what)
    t.ok(answer.headers['x-request-id'], what)
    t.notOk(answer.headers['retry-after'], `${what}: waiting is pointless`)
    t.notOk(answer.headers['x-weir-decision'], `${what}: nothing was decided`)
  }
  t.equal(upstream.requests.length, 0)
  t.equal(await weir.metric('weir_requests_total'), WRONG.length, 'one verdict each')
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), WRONG.length)
  const lines = await weir.requestLogs(WRONG.length)
  t.equal(lines.length, WRONG.length, 'one line each')
  t.notMatch(weir.logText(), 'gpt-9', 'no raw input in the log')
  t.equal((await ask(weir.url).answer).status, 200, 'and it goes on')
  await weir.atRest()
})

t.test('a body over the limit is refused as soon as its length is known, or passed', async t => {
  const { weir, upstream } = await start(t, { limits: { body: '64KiB' } })
  // Announced: no byte of it is needed.
  const announced = await raw(weir.port, RAW('', `content-length: ${65_537}`))
  // Chunked: Weir learns it on the way.
  const chunk = `8000\r\n${' '.repeat(0x8000)}\r\n`
  const chunked = await raw(weir.port, RAW('', 'transfer-encoding: chunked'), chunk, chunk, '1\r\n \r\n')
  for (const answer of [announced, chunked]) {
    t.match(answer, /^HTTP\/1.1 413 /)
    t.match(answer, /"code":"weir_too_large"/)
    t.match(answer, /65536 bytes \(limits.body\)/, 'with the limit')
    t.match(answer, /connection: close/i)
  }
  const fits = body({ pad: 'x'.repeat(65_536 - body({ pad: '' }).length) })
  t.equal(fits.length, 65_536)
  t.equal((await ask(weir.url, { body: fits }).answer).status, 200, 'the limit itself fits')
  t.equal(upstream.requests.length, 1)
  t.equal(upstream.requests[0]?.headers['content-length'], String(upstream.requests[0]?.body.length))
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), 2)
  await weir.atRest()
})

t.test('what is not HTTP gets a 400 and its connection closed', async t => {
  const { weir, upstream } = await start(t)
  const smuggled = 'GET /admin HTTP/1.1\r\nhost: a\r\n\r\n'
  const wrong = [
    RAW(`0\r\n\r\n${smuggled}`, 'content-length: 5\r\ntransfer-encoding: chunked'),
    RAW(smuggled, 'content-length: 0\r\ncontent-length: 38'),
    RAW('{}', 'content-length: +2'),
    RAW('{}', 'content-length: 2, 2'),
    RAW('', 'transfer-encoding: chunked').concat('zz\r\n'),
    'nonsense\r\n\r\n',
  ]
  for (const bytes of wrong) {
    const answer = await raw(weir.port, bytes)
    t.match(answer, /^HTTP\/1.1 400 Bad Request/, bytes)
    t.match(answer, /"code":"weir_bad_request"/)
    t.equal(answer.match(/^HTTP/gm)?.length, 1, 'one answer')
  }
  const long = await raw(weir.port, RAW('{}', `content-length: 2\r\nx-long: ${'x'.repeat(20_000)}`))
  t.match(long, /^HTTP\/1.1 431 Request Header Fields Too Large\r\n/)
  t.match(long, /16384 bytes \(limits.headers\)/)
  t.equal(upstream.requests.length, 0)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), wrong.length + 1)
  t.equal(await weir.metric('weir_requests_total'), wrong.length + 1)
})

t.test('connections that end without a request, or in its body, are no client errors', async t => {
  const { weir, upstream } = await start(t)
  const { connect } = await import('node:net')
  const end = async (bytes: string, how: 'destroy' | 'resetAndDestroy'): Promise<void> => {
    const socket = connect(weir.port, '127.0.0.1')
    socket.on('error', () => undefined)
    await new Promise<void>(resolve => socket.once('connect', () => resolve()))
    if (bytes !== '') socket.write(bytes)
    await sleep(50)
    socket[how]()
  }
  for (const how of ['destroy', 'resetAndDestroy'] as const) await end('', how)
  t.equal(await weir.metric('weir_requests_total'), 0, 'a port scan is no arrival')
  for (const how of ['destroy', 'resetAndDestroy'] as const) {
    await end(RAW('', 'content-length: 100'), how)
  }
  await weir.until('both are counted', async () => (await weir.metric('weir_requests_total')) >= 2)
  await sleep(50)
  t.equal(await weir.metric('weir_requests_total'), 2, 'once each')
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_left' }), 2)
  t.equal(upstream.requests.length, 0)
})

t.test('paths that are not of this router are a 404 that lists those that are, and no arrivals', async t => {
  const { weir, upstream } = await start(t)
  const paths = [
    ...['/', '/v1', '/v1/chat', '/v1/chat/completions/', '/v2/chat/completions', '/admin', '/metrics'],
    ...['/v1/../metrics', '/v1/%2e%2e/metrics', '/v1/chat%2fcompletions'],
    ...['/a/b/v1/chat/completions', '/v1/load_lora_adapter', '/reset_prefix_cache'],
  ]
  for (const path of paths) {
    const answer = await raw(
      weir.port,
      `POST ${path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ${text.length}\r\n\r\n${text}`,
    )
    t.match(answer, /^HTTP\/1.1 404 /, path)
    t.match(answer, /"code":"weir_unknown_route"/, path)
    t.match(answer, /POST \/v1\/chat\/completions, .*GET \/v1\/models/, path)
  }
  const get = await ask(weir.url, { method: 'GET', body: '', path: '/v2/models' }).answer
  t.equal(get.status, 404)
  t.match(JSON.parse(get.text).error.message, /no GET route/)
  t.equal(upstream.requests.length, 0)
  t.equal(await weir.metric('weir_requests_total'), 0)
})
