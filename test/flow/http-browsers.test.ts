/** What browsers, probes and scanners send besides requests: paths, HEAD, OPTIONS, origins and upgrades. */
import { createHash } from 'node:crypto'
import { Agent } from 'node:http'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { LAX } from '../fixtures/before.js'
import { ask, body, errorOf, raw } from '../fixtures/client.js'
import { TOLD } from '../fixtures/events.js'
import { HDR, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

const PAGE = 'https://app.example'

t.test(
  'paths that mean another than they say get no further, and odd names that are none arrive',
  async t => {
    const upstream = await startUpstream(t, () => [WHOLE(200, '{"data":[{"id":"org/name"},{"id":"a...b"}]}')])
    const data = configData([upstream.url], { pools: { main: { model: '*', replicas: [upstream.url] } } })
    const weir = await startTestWeir(t, data)
    const admin = new URL(weir.admin).port
    const get = (port: number, path: string): Promise<string> =>
      raw(port, `GET ${path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n`)
    for (const path of [
      '/v1/../metrics',
      '/v1/%2e%2e/metrics',
      '/v1/chat%2f..%2f..%2fmetrics',
      '/v1/%5c..%5cmetrics',
      '//evil.example/v1/models',
      'http://evil.example/v1/models',
      `http://127.0.0.1:${admin}/metrics`,
      '*',
      '/v1/models/%00',
      '/v1/models/%zz',
      '/v1/models/..',
      '/v1/models/%2e%2e%2f%2e%2e%2fmetrics',
      `/v1/models/${'x'.repeat(3000)}`,
      `/${'x'.repeat(3000)}/v1/models`,
      '/%63hat/v1/%6dodels/..',
      '/metrics',
      '/livez',
      '/-/reload',
    ]) {
      const answer = await get(weir.port, path)
      t.match(answer, /^HTTP\/1.1 40[04] /, path)
      t.match(answer, /content-type: application\/json/i, path)
      t.match(answer, /\{"error":\{"message":"[^"]+.*"code":"weir_(unknown_route|bad_request)"\}\}$/, path)
    }
    t.equal(upstream.requests.filter(({ path }) => path !== '/v1/models').length, 0)
    for (const [path, id] of [
      ['/v1/models/org%2Fname', 'org/name'],
      ['/v1/models/org/name', 'org/name'],
      ['/v1/models/a...b', 'a...b'],
      ['/chat/v1/models/a...b?x=..', 'a...b'],
    ] as const) {
      const answer = await get(weir.port, path)
      t.match(answer, /^HTTP\/1.1 200 /, path)
      t.match(answer, `"id":"${id}"`, path)
    }
    t.equal(await weir.metric('weir_requests_total'), 0)
  },
)

t.test('HEAD is answered at once and without a body, and its connection goes on', async t => {
  const upstream = await startUpstream(t, () => [HDR, TOLD('a'), 'EOF'])
  const weir = await startTestWeir(t, configData([upstream.url]))
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.teardown(() => agent.destroy())
  for (const [path, status] of [
    ['/v1/models', 200],
    ['/v1/models/m', 200],
    ['/', 404],
    ['/v1/chat/completions', 405],
    ['/v1/embeddings', 405],
  ] as const) {
    const answer = await ask(weir.url, { path, method: 'HEAD', body: '', agent }).answer
    t.equal(answer.status, status, path)
    t.equal(answer.text, '', path)
    t.ok(answer.headAt < 100, `${path}: ${Math.round(answer.headAt)} ms`)
  }
  t.equal(
    (await ask(weir.url, { agent }).answer).text,
    TOLD('a').replace(/data: [^\n]*"usage"[^\n]*\n\n/, ''),
  )
  t.equal(Object.values(agent.freeSockets).flat().length, 1)
  t.equal(await weir.metric('weir_requests_total'), 1)
})

t.test('a known path with another method is a 405 that says which it takes', async t => {
  const upstream = await startUpstream(t, () => [])
  const weir = await startTestWeir(
    t,
    configData([upstream.url], {}, { allow: ['files', 'rerank', 'realtime'] }),
  )
  for (const [method, path, allow] of [
    ['GET', '/v1/chat/completions', 'POST'],
    ['DELETE', '/v1/chat/completions', 'POST'],
    ['PUT', '/chat/v1/completions', 'POST'],
    ['POST', '/v1/models', 'GET, HEAD'],
    ['DELETE', '/models/m', 'GET, HEAD'],
    ['GET', '/v1/rerank', 'POST'],
    ['PUT', '/v1/files/f', 'GET, HEAD, POST, DELETE'],
    ['PATCH', '/v1/files', 'GET, HEAD, POST, DELETE'],
  ] as const) {
    const answer = await ask(weir.url, { method, path, body: '' }).answer
    t.equal(answer.status, 405, `${method} ${path}`)
    t.equal(answer.headers.allow, allow, `${method} ${path}`)
    t.equal(errorOf(answer).code, 'weir_unknown_route')
    t.match(errorOf(answer).message, `This path takes ${allow}`)
    const options = await ask(weir.url, { method: 'OPTIONS', path, body: '' }).answer
    t.equal(options.status, 204, path)
    t.equal(options.headers.allow, `${allow}, OPTIONS`, path)
  }
  t.equal(upstream.requests.length, 0)
  t.equal(await weir.metric('weir_requests_total'), 0, 'none of them is an arrival')
  t.equal(await weir.metric('weir_in_flight'), 0)
})

t.test('a page that is configured may call and read every answer, errors too, and no other page', async t => {
  const up =
    'Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n'
  const upstream = await startUpstream(t, ({ path, body: sent }) => {
    if (path.includes('embeddings')) return [WHOLE(200, '{}', 'application/json', up)]
    if (sent.includes('wrong')) return [WHOLE(400, '{"error":{"message":"x"}}', 'application/json', up)]
    if (sent.includes('"stream":false')) return [WHOLE(200, '{}', 'application/json', up)]
    return [HDR.replace('\r\n\r\n', `\r\n${up}\r\n`), TOLD('a'), 'EOF']
  })
  const { mkdtempSync, writeFileSync } = await import('node:fs')
  const { tmpdir } = await import('node:os')
  const { join } = await import('node:path')
  const file = join(mkdtempSync(join(tmpdir(), 'weir-')), 'keys.yaml')
  writeFileSync(file, 'keys: [{ label: a, key: sk-0123456789abcdef }]')
  const weir = await startTestWeir(
    t,
    configData(
      [upstream.url],
      { classes: { chat: LAX }, cors: { origins: [PAGE, 'http://localhost:3000'] }, auth: { keys: file } },
      { allow: ['embeddings'] },
    ),
  )
  const preflight = (origin: string, path = '/v1/chat/completions') =>
    ask(weir.url, {
      method: 'OPTIONS',
      path,
      body: '',
      headers: {
        origin,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization, content-type',
      },
    }).answer
  for (const path of ['/v1/chat/completions', '/chat/v1/embeddings', '/models']) {
    const answer = await preflight(PAGE, path)
    t.equal(answer.status, 204, path)
    t.match(answer.headers, {
      'access-control-allow-origin': PAGE,
      'access-control-allow-methods': path === '/models' ? 'GET, HEAD, OPTIONS' : 'POST, OPTIONS',
      'access-control-allow-headers': 'authorization, content-type',
      'access-control-max-age': '600',
      vary: 'origin',
    })
  }
  for (const origin of ['https://evil.example', 'https://app.example.evil', `${PAGE}:444`, 'null']) {
    const answer = await preflight(origin)
    t.equal(answer.status, 204, origin)
    t.notOk('access-control-allow-origin' in answer.headers, origin)
    t.notOk('access-control-allow-methods' in answer.headers, origin)
  }
  t.equal(upstream.requests.length, 0, 'none was passed on or queued')

  const key = { authorization: 'Bearer sk-0123456789abcdef' }
  const asked: Record<string, readonly [number, Parameters<typeof ask>[1]]> = {
    stream: [200, { headers: key }],
    json: [200, { headers: key, body: body({ stream: false }) }],
    'refused by the upstream': [400, { headers: key, body: body({ wrong: true }) }],
    'refused by the policy': [404, { headers: key, body: body({ model: 'none' }) }],
    'no key': [401, {}],
    'no JSON': [400, { headers: key, body: '{' }],
    'no such path': [404, { headers: key, path: '/v1/none' }],
    'no such method': [405, { headers: key, method: 'PUT' }],
    models: [200, { headers: key, method: 'GET', path: '/v1/models', body: '' }],
    'passed on': [200, { headers: key, path: '/v1/embeddings', body: '{}' }],
  }
  for (const [name, [status, one]] of Object.entries(asked)) {
    const mine = await ask(weir.url, { ...one, headers: { ...one?.headers, origin: PAGE } }).answer
    t.equal(mine.status, status, name)
    t.equal(mine.headers['access-control-allow-origin'], PAGE, name)
    t.match(mine.headers['access-control-expose-headers'], 'x-request-id', name)
    t.match(mine.headers.vary, 'origin', name)
    t.notOk('access-control-allow-credentials' in mine.headers, `${name}: not the engine’s word`)
    const other = await ask(weir.url, {
      ...one,
      headers: { ...one?.headers, origin: 'https://evil.example' },
    }).answer
    t.notOk('access-control-allow-origin' in other.headers, name)
    const none = await ask(weir.url, one).answer
    t.notOk('access-control-allow-origin' in none.headers, `${name}: nor without an origin`)
  }
  t.ok(
    upstream.requests.every(({ headers }) => !('origin' in headers)),
    'the engine is not asked for its opinion',
  )
  await weir.atRest()
  const any = await startTestWeir(t, configData([upstream.url], { cors: { origins: ['*'] } }))
  const answer = await ask(any.url, { headers: { origin: 'https://any.example' } }).answer
  t.equal(answer.headers['access-control-allow-origin'], 'https://any.example')
  const closed = await startTestWeir(t, configData([upstream.url]))
  const silent = await ask(closed.url, { headers: { origin: PAGE } }).answer
  t.notOk('access-control-allow-origin' in silent.headers, 'without cors.origins no page may')
})

const KEY = 'dGhlIHNhbXBsZSBub25jZQ=='
const ACCEPT = createHash('sha1').update(`${KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')
const upgrade = (path: string, more = ''): string =>
  `GET ${path} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: ${KEY}\r\n${more}\r\n`

/** A replica of realtime sessions on a raw socket. */
async function sessions(
  t: { teardown(fn: () => unknown): unknown },
  play: (socket: Socket, head: string) => void,
) {
  const sockets = new Set<Socket>()
  const heads: string[] = []
  const server = createServer(socket => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
    socket.on('error', () => undefined)
    socket.once('data', bytes => {
      const head = bytes.toString('latin1')
      // Weir asks engines how they are, too.
      if (head.startsWith('GET /base/metrics ')) return socket.destroy()
      heads.push(head)
      play(socket, bytes.toString('latin1'))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return { url: `http://127.0.0.1:${address.port}/base`, sockets, heads }
}

/** Sends an upgrade and keeps its connection. */
function client(port: number, path: string, more = '') {
  const socket = connect(port, '127.0.0.1')
  const got = { text: '' }
  socket.on('error', () => undefined)
  socket.on('data', bytes => {
    got.text += bytes.toString('latin1')
  })
  socket.write(upgrade(path, more))
  const closed = new Promise<number>(resolve => socket.once('close', () => resolve(performance.now())))
  return { socket, got, closed }
}

t.test('an upgrade that is not for anybody is refused in words, and its connection closed', async t => {
  const upstream = await startUpstream(t, () => [WHOLE(200, '{}')])
  const weir = await startTestWeir(t, configData([upstream.url]))
  for (const path of [
    '/v1/realtime',
    '/realtime?model=m',
    '/chat/v1/realtime',
    '/v1/nothing',
    '/v1/chat/completions',
  ]) {
    const started = performance.now()
    const { got, closed } = client(weir.port, path)
    await closed
    t.ok(performance.now() - started < 1000, path)
    t.match(got.text, /^HTTP\/1.1 40[45] .*connection: close/is, path)
    t.match(got.text, /"code":"weir_unknown_route"/, path)
    if (path.includes('realtime')) t.match(got.text, 'pools.NAME.allow: [realtime]', path)
  }
  const plain = await ask(weir.url, { method: 'GET', path: '/v1/realtime', body: '' }).answer
  t.equal(plain.status, 404)
  t.equal(upstream.requests.length, 0)
  t.equal(await weir.metric('weir_requests_total'), 0)
  t.equal((await ask(weir.url, { method: 'GET', path: '/v1/models', body: '' }).answer).status, 200)
})

t.test('where a pool allows it both sides talk to each other, and both close when one does', async t => {
  const replica = await sessions(t, (socket, head) => {
    const path = head.split(' ')[1] ?? ''
    if (path.includes('never')) return
    if (path.includes('no-such')) {
      socket.write(WHOLE(404, '{"error":{"message":"no such model"}}'))
      return
    }
    if (path.includes('credential')) {
      socket.write(WHOLE(401, '{}'))
      return
    }
    if (path.includes('reset')) {
      socket.resetAndDestroy()
      return
    }
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${ACCEPT}\r\nX-Weir-Pool: forged\r\n\r\nhello`,
    )
    socket.on('data', bytes => {
      if (bytes.includes('bye')) socket.end('over')
      else if (bytes.includes('crash')) socket.resetAndDestroy()
      else socket.write(`echo ${bytes}`)
    })
  })
  const weir = await startTestWeir(
    t,
    configData([replica.url], { timeouts: { connect: '500ms' } }, { allow: ['realtime'], api_key: 'sk-up' }),
  )
  const gone = (): Promise<void> =>
    weir.until('the replica has no socket left', () => replica.sockets.size === 0, 1000)
  const talk = async (more = '') => {
    const one = client(weir.port, '/v1/realtime?model=m&key=sk-client', more)
    await weir.until('hello', () => one.got.text.endsWith('hello'))
    one.socket.write('a frame')
    await weir.until('its echo', () => one.got.text.endsWith('echo a frame'))
    return one
  }
  const first = await talk(
    'authorization: Bearer sk-client\r\nsec-websocket-protocol: realtime, openai-insecure-api-key.sk-client\r\norigin: https://x\r\nx-kept: 1\r\n',
  )
  t.match(first.got.text, /^HTTP\/1.1 101 Switching Protocols\r\n/)
  t.match(first.got.text, `Sec-WebSocket-Accept: ${ACCEPT}`)
  t.match(first.got.text, /x-weir-pool: main\r\n/)
  const [head = ''] = replica.heads
  t.match(head, /^GET \/base\/v1\/realtime\?model=m HTTP\/1.1\r\n/)
  t.match(head, /authorization: Bearer sk-up/i)
  t.match(head, /sec-websocket-protocol: realtime\r\n/i)
  t.match(head, /x-kept: 1/i)
  t.notMatch(head, 'sk-client')

  const ways: Record<string, (one: Awaited<ReturnType<typeof talk>>) => void> = {
    'the client ends': one => one.socket.end(),
    'the client breaks off': one => one.socket.resetAndDestroy(),
    'the replica ends': one => one.socket.write('bye'),
    'the replica breaks off': one => one.socket.write('crash'),
  }
  ways['the client ends']?.(first)
  await gone()
  await first.closed
  for (const [name, end] of Object.entries(ways)) {
    const one = await talk()
    const started = performance.now()
    end(one)
    await one.closed
    await gone()
    t.ok(performance.now() - started < 1000, name)
    if (name === 'the replica ends') t.ok(one.got.text.endsWith('over'), 'with its last words')
  }

  const answers: Record<string, RegExp> = {
    'no-such': /^HTTP\/1.1 404 .*no such model/s,
    credential: /^HTTP\/1.1 502 .*answered 401/s,
    reset: /^HTTP\/1.1 502 .*weir_upstream_error/s,
    never: /^HTTP\/1.1 504 .*within 0.5 s \(timeouts.connect\)/s,
  }
  for (const [model, says] of Object.entries(answers)) {
    const one = client(weir.port, `/v1/realtime?model=m&case=${model}`)
    await one.closed
    t.match(one.got.text, says, model)
    await gone()
    t.pass(`${model}: nothing is left open`)
  }
  const leaver = client(weir.port, '/v1/realtime?case=never')
  await weir.until('it is asked', () => replica.sockets.size === 1)
  leaver.socket.destroy()
  await gone()

  const plain = await ask(weir.url, { method: 'GET', path: '/v1/realtime', body: '' }).answer
  t.match(plain, { status: 426, headers: { upgrade: 'websocket' } })
  const other = await ask(weir.url, { method: 'GET', path: '/v1/realtime?model=else', body: '' }).answer
  t.equal(other.status, 404, 'a model that none of them serves')
  t.equal(await weir.metric('weir_requests_total'), 0)

  const open = await talk()
  await weir.weir.drain(300)
  await weir.weir.close()
  await open.closed
  await sleep(50)
  t.equal(replica.sockets.size, 0, 'a shutdown ends what is open')
})
