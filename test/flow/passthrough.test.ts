/** What is passed on unmeasured: to whom, with which headers, and what is never in reach. */
import { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { type Ask, ask, errorOf, RAW, raw } from '../fixtures/client.js'
import { TOLD } from '../fixtures/events.js'
import { live, MiB } from '../fixtures/memory.js'
import { deadPort, HDR, type Step, startUpstream, type UpstreamRequest, WHOLE } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir } from '../fixtures/weir.js'

const GROUPS = ['embeddings', 'audio', 'images', 'files', 'rerank', 'tokenize']

const JSON_BODY = '{"model":"m","input":"hi"}'

/** Answers with what it was asked. */
function* echo({ method, path, body }: UpstreamRequest): Iterable<Step> {
  if (path.includes('/chat/completions')) {
    yield HDR
    yield TOLD('a')
    yield 'EOF'
  } else
    yield WHOLE(
      200,
      JSON.stringify({ method, path, bytes: body.length }),
      'application/json',
      'X-Kept: yes\r\n',
    )
}

t.test('each group of routes goes on as it was sent, where a pool allows it', async t => {
  const upstream = await startUpstream(t, echo)
  const classes = { chat: CHAT, agent: AGENT }
  const routes = [{ class: 'chat' }]
  const weir = await startTestWeir(
    t,
    configData([`${upstream.url}/base`], { classes, routes }, { allow: GROUPS, api_key: 'sk-up' }),
  )
  const multipart = { 'content-type': 'multipart/form-data; boundary="x y"' }
  const sent: (Ask & { readonly path: string; readonly arrives: string })[] = [
    { path: '/v1/embeddings', arrives: '/v1/embeddings' },
    { path: '/embeddings', arrives: '/v1/embeddings' },
    { path: '/agent/v1/embeddings', arrives: '/v1/embeddings' },
    {
      path: '/v1/embeddings?dry=1&key=sk-client&api_key=sk-client&x=%2F',
      arrives: '/v1/embeddings?dry=1&x=%2F',
    },
    { path: '/v1/rerank', arrives: '/v1/rerank' },
    { path: '/rerank', arrives: '/rerank' },
    { path: '/tokenize', arrives: '/tokenize' },
    { path: '/v1/tokenize', arrives: '/v1/tokenize' },
    { path: '/v1/messages/count_tokens', arrives: '/v1/messages/count_tokens' },
    { path: '/detokenize', arrives: '/detokenize' },
    { path: '/agent/v1/detokenize', arrives: '/v1/detokenize' },
    { path: '/v1/audio/speech', arrives: '/v1/audio/speech' },
    {
      path: '/audio/transcriptions',
      headers: multipart,
      body: Buffer.from([0, 255, 13, 10]),
      arrives: '/v1/audio/transcriptions',
    },
    { path: '/v1/images/generations', arrives: '/v1/images/generations' },
    { path: '/v1/files', headers: multipart, body: 'a file', arrives: '/v1/files' },
    { path: '/v1/files', method: 'GET', body: '', arrives: '/v1/files' },
    { path: '/v1/files?purpose=batch', method: 'GET', body: '', arrives: '/v1/files?purpose=batch' },
    { path: '/v1/files/a...b', method: 'GET', body: '', arrives: '/v1/files/a...b' },
    {
      path: '/v1/files/org%2Fname%20x/content',
      method: 'GET',
      body: '',
      arrives: '/v1/files/org%2Fname%20x/content',
    },
    { path: '/agent/v1/files/f-1', method: 'DELETE', body: '', arrives: '/v1/files/f-1' },
  ]
  for (const { arrives, ...one } of sent) {
    const payload = one.body ?? JSON_BODY
    const answer = await ask(weir.url, {
      ...one,
      body: payload,
      headers: {
        authorization: 'Bearer sk-client',
        'x-api-key': 'sk-client',
        cookie: 'a=sk-client',
        'x-weir-session': 's',
        'accept-encoding': 'gzip',
        connection: 'x-hop',
        'x-hop': '1',
        te: 'trailers',
        'x-request-id': 'req-1',
        'X-Kept': 'as it is',
        ...one.headers,
      },
    }).answer
    const got = upstream.requests.at(-1)
    t.equal(answer.status, 200, arrives)
    t.match(answer.headers, { 'x-kept': 'yes', 'x-request-id': 'req-1', 'x-weir-pool': 'main' }, arrives)
    t.same(JSON.parse(answer.text), {
      method: one.method ?? 'POST',
      path: `/base${arrives}`,
      bytes: Buffer.byteLength(payload),
    })
    t.equal(answer.headers['content-length'], String(answer.body.length), 'its length is kept')
    t.ok(got?.body.equals(Buffer.from(payload)), `${arrives}: to the byte`)
    t.match(got?.headers, {
      authorization: 'Bearer sk-up',
      'accept-encoding': 'identity',
      'x-request-id': 'req-1',
      host: `127.0.0.1:${upstream.port}`,
      'x-kept': 'as it is',
    })
    if (payload !== '')
      t.equal(got?.headers['content-type'], one.headers?.['content-type'] ?? 'application/json')
    for (const gone of ['x-api-key', 'cookie', 'x-weir-session', 'x-hop', 'te']) {
      t.notOk(gone in (got?.headers ?? {}), `${arrives}: no ${gone}`)
    }
    t.notMatch(got?.rawHead ?? '', 'sk-client', `${arrives}: no credential of the client`)
  }
  t.equal(upstream.requests.length, sent.length)
  t.equal(await weir.metric('weir_requests_total'), 0, 'none of them is an arrival')
  t.equal(await weir.metric('weir_in_flight'), 0)
  const lines = weir.logs.filter(line => line['msg'] === 'passed')
  t.equal(lines.length, sent.length, 'each has a line in the log')
  t.match(lines[0], { route: '/v1/embeddings', pool: 'main', method: 'POST', status: 200, id: 'req-1' })
  t.notMatch(weir.logText(), 'sk-', 'without a credential')

  const head = await ask(weir.url, { path: '/v1/files/f', method: 'HEAD', body: '' }).answer
  t.equal(head.status, 200)
  t.equal(upstream.requests.at(-1)?.method, 'HEAD')
})

t.test('a route that no pool allows, and every other route of an engine, is a 404', async t => {
  const upstream = await startUpstream(t, echo)
  const weir = await startTestWeir(t, configData([upstream.url], {}, { allow: ['tokenize'] }))
  for (const [path, group] of [
    ['/v1/embeddings', 'embeddings'],
    ['/chat/v1/embeddings', 'embeddings'],
    ['/v1/audio/speech', 'audio'],
    ['/v1/images/edits', 'images'],
    ['/v1/files/x', 'files'],
    ['/rerank', 'rerank'],
  ] as const) {
    const answer = await ask(weir.url, { path, body: JSON_BODY }).answer
    t.equal(answer.status, 404, path)
    t.equal(errorOf(answer).code, 'weir_unknown_route')
    t.match(errorOf(answer).message, `can allow it: pools.NAME.allow: [${group}]`, path)
  }
  // vLLM's and SGLang's, some of them with what a filter might let through.
  const control = [
    ...['/reset_prefix_cache', '/flush_cache', '/sleep', '/wake_up', '/start_profile', '/stop_profile'],
    ...['/v1/load_lora_adapter', '/v1/unload_lora_adapter', '/update_weights_from_disk', '/pause'],
    ...['/collective_rpc', '/server_info', '/get_server_info', '/metrics', '/health', '/version', '/docs'],
    ...['/tokenize/../flush_cache', '/v1/tokenize/flush_cache', '/tokenize%2f..%2fflush_cache', '/tokenize/'],
    ...['/v1/tokenize%00', '/chat/tokenize', '/chat/flush_cache', '/v1/tokenizer_info', '/V1/tokenize'],
  ]
  for (const path of control) {
    for (const method of ['GET', 'POST']) {
      const answer = await raw(
        weir.port,
        `${method} ${path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}`,
      )
      t.match(answer, /^HTTP\/1.1 40[045] /, `${method} ${path}`)
      t.match(answer, /"code":"weir_(unknown_route|bad_request)"/, `${method} ${path}`)
    }
  }
  t.equal(upstream.requests.length, 0)
  t.equal((await ask(weir.url, { path: '/tokenize', body: JSON_BODY }).answer).status, 200)
})

t.test('the pool is the one that serves the model, at home first, and its least busy replica', async t => {
  const replica = async (name: string) =>
    startUpstream(t, async function* (request) {
      if (request.path.includes('/chat/')) {
        yield HDR
        yield TOLD('a').replace('data: [DONE]\n\n', '')
        yield 'HOLD'
      } else yield WHOLE(200, name)
    })
  const [home, other, embed1, embed2, any] = await Promise.all(
    ['home', 'other', 'embed', 'embed', 'any'].map(replica),
  )
  const dead = `http://127.0.0.1:${await deadPort()}`
  const weir = await startTestWeir(t, {
    classes: { chat: CHAT, agent: { ...AGENT, pools: ['other'] } },
    routes: [{ class: 'chat' }],
    pools: {
      main: { model: 'm', replicas: [home?.url], allow: ['rerank'] },
      other: { model: 'm', replicas: [other?.url], allow: ['rerank', 'tokenize'], refuse_members: ['kv'] },
      embed: { model: 'e', replicas: [embed1?.url, dead, embed2?.url], allow: ['embeddings', 'files'] },
      any: { model: '*', replicas: [any?.url], allow: ['embeddings'] },
    },
  })
  const to = async (path: string, body: string, headers: Record<string, string> = {}): Promise<string> =>
    (await ask(weir.url, { path, body, headers }).answer).text
  t.equal(await to('/v1/rerank', '{"model":"m"}'), 'home', 'the first that allows it')
  t.equal(await to('/agent/v1/rerank', '{"model":"m"}'), 'other', 'the asked class’s own')
  t.equal(await to('/v1/rerank', '{}', { 'x-weir-class': 'agent' }), 'other')
  t.equal(await to('/v1/tokenize', '{"model":"m"}'), 'other', 'the only one')
  t.equal(
    await to('/agent/v1/embeddings', '{"model":"e"}'),
    'embed',
    'beyond the class, where it allows none',
  )
  t.equal(await to('/v1/embeddings', '{"mod\\u0065l":"e"}'), 'embed')
  t.equal(await to('/v1/embeddings', '{"model":"else"}'), 'any')
  t.match(await to('/v1/rerank', '{"model":"else"}'), 'Set \\"model\\" to one of: m.')
  t.match(await to('/v1/rerank', '{"model":"m","model":"x"}'), '\\"model\\" twice')
  t.match(await to('/v1/rerank', '[1]'), 'not a valid JSON object')
  t.match(await to('/v1/rerank', '{"model":"m"'), 'not a valid JSON object')
  t.match(await to('/v1/rerank', '{}', { 'content-encoding': 'gzip' }), 'without content-encoding')
  t.match(await to('/agent/v1/rerank', '{"model":"m","kv":1}'), 'takes no \\"kv\\" in a body')
  t.match(await to('/v1/rerank', '{}', { 'x-weir-class': 'nobody' }), 'names no class')

  const before = [embed1, embed2].map(one => one?.requests.length ?? 0)
  for (let i = 0; i < 12; i++) t.equal(await to('/v1/embeddings', '{"model":"e"}'), 'embed')
  const taken = [embed1, embed2].map((one, i) => (one?.requests.length ?? 0) - (before[i] ?? 0))
  t.ok(
    taken.every(count => count >= 4),
    `in turn, and past the one that refuses connections: ${taken}`,
  )
  for (let i = 0; i < 3; i++) await ask(weir.url, { path: '/v1/files/f-1', method: 'GET', body: '' }).answer
  t.equal(embed1?.requests.filter(({ method }) => method === 'GET').length, 3, 'files stay on one replica')
})

t.test('a key that may not ask for a class gets nothing there, and without a key nobody does', async t => {
  const upstream = await startUpstream(t, echo)
  const { mkdtempSync, writeFileSync } = await import('node:fs')
  const { tmpdir } = await import('node:os')
  const { join } = await import('node:path')
  const keys = join(mkdtempSync(join(tmpdir(), 'weir-')), 'keys.yaml')
  writeFileSync(keys, 'keys: [{ label: a, key: sk-0123456789abcdef, classes: [chat] }]')
  const weir = await startTestWeir(t, {
    ...configData(
      [upstream.url],
      { classes: { chat: CHAT, agent: AGENT }, routes: [{ class: 'chat' }] },
      { allow: GROUPS },
    ),
    auth: { keys },
  })
  const headers = { authorization: 'Bearer sk-0123456789abcdef' }
  t.equal((await ask(weir.url, { path: '/v1/embeddings', body: JSON_BODY }).answer).status, 401)
  t.equal((await ask(weir.url, { path: '/v1/embeddings', body: JSON_BODY, headers }).answer).status, 200)
  const other = await ask(weir.url, { path: '/agent/v1/embeddings', body: JSON_BODY, headers }).answer
  t.equal(other.status, 401)
  t.match(errorOf(other).message, 'may not ask for class agent')
  t.equal(upstream.requests.length, 1)
})

t.test('a client that leaves frees its upstream at once, in every phase', async t => {
  const phases: Record<string, (at: UpstreamRequest) => Iterable<Step>> = {
    *'/v1/embeddings'() {
      yield 'HOLD'
    },
    *'/v1/audio/speech'() {
      yield 'HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n'
      yield 'first'
      yield 'HOLD'
    },
    *'/v1/images/generations'() {
      yield 'HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 100000000\r\n\r\n'
      yield 'first'
      yield 'HOLD'
    },
  }
  const upstream = await startUpstream(t, request => phases[request.path]?.(request) ?? echo(request))
  const weir = await startTestWeir(t, configData([upstream.url], {}, { allow: GROUPS }))
  for (const path of Object.keys(phases)) {
    const asked = ask(weir.url, { path, body: '{}' })
    if (path === '/v1/embeddings') await weir.until('it is asked', () => upstream.running === 1)
    else await asked.received(5)
    const left = performance.now()
    asked.leave()
    await weir.until('the upstream is free', () => upstream.running === 0)
    t.ok(performance.now() - left < 300, path)
    await asked.answer.catch(() => undefined)
  }
  await sleep(50)
  t.equal(weir.logs.filter(line => line['msg'] === 'passed').length, 3, 'a line each')
  t.ok(upstream.sockets <= 1, `${upstream.sockets} connections left`)
  for (let i = 0; i < 3; i++) {
    t.equal((await ask(weir.url, { path: '/v1/rerank', body: '{}' }).answer).status, 200, 'and it goes on')
  }
})

t.test('more than 128 are passed on at once, and a client that does not read holds the upstream', async t => {
  let written = 0
  const upstream = await startUpstream(t, async function* ({ path }) {
    if (path === '/v1/files/big') {
      yield 'HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nTransfer-Encoding: chunked\r\n\r\n'
      const piece = Buffer.alloc(256 * 1024, 'x')
      for (; written < 128 * MiB; written += piece.length) yield piece
      yield 'EOF'
      return
    }
    yield { wait: 1500 }
    yield WHOLE(200, '{}')
  })
  const weir = await startTestWeir(t, configData([upstream.url], {}, { allow: GROUPS }))
  const agent = new Agent({ keepAlive: true, maxSockets: 300 })
  t.teardown(() => agent.destroy())
  const asked = Array.from({ length: 200 }, () =>
    ask(weir.url, { path: '/v1/embeddings', body: '{}', agent }),
  )
  const answers = await Promise.all(asked.map(({ answer }) => answer))
  t.ok(answers.every(({ status }) => status === 200))
  t.equal(upstream.most, 200, 'all of them ran at once')

  const before = live()
  const { request } = await import('node:http')
  const idle = request(`${weir.url}/v1/files/big`)
  idle.on('error', () => undefined)
  idle.end()
  const response = await new Promise<{ pause(): void }>(resolve => idle.once('response', resolve))
  response.pause()
  await sleep(800)
  const stopped = written
  await sleep(200)
  t.equal(written, stopped, 'the upstream waits')
  t.ok(written < 64 * MiB)
  t.ok(live() - before < 16 * MiB)
  idle.destroy()
  await weir.until('the upstream is free', () => upstream.running === 0)
})

t.test('the clocks of the pool run for what is passed on, and no other', async t => {
  const upstream = await startUpstream(t, async function* ({ path }) {
    if (path === '/v1/embeddings') yield 'HOLD'
    yield 'HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nTransfer-Encoding: chunked\r\n\r\n'
    for (let i = 0; i < 8; i++) {
      yield 'piece'
      yield { wait: 150 }
    }
    yield path === '/v1/rerank' ? 'EOF' : 'HOLD'
  })
  const weir = await startTestWeir(
    t,
    configData(
      [upstream.url],
      { timeouts: { first_token: '400ms', stall: '400ms', total: 'off' } },
      { allow: GROUPS },
    ),
  )
  const started = performance.now()
  const [late, stalled, slow] = await Promise.all(
    ['/v1/embeddings', '/v1/audio/speech', '/v1/rerank'].map(
      path => ask(weir.url, { path, body: '{}' }).answer,
    ),
  )
  t.equal(late?.status, 504)
  t.match(late && errorOf(late).message, /No answer within 0.4 s \(timeouts.first_token\)/)
  t.equal(stalled?.text, 'piece'.repeat(8))
  t.equal(stalled?.whole, false, 'a stream that stalls is broken off, and looks so')
  t.equal(slow?.whole, true, 'one that goes on for longer than any clock is not')
  t.ok(performance.now() - started < 4000)
  await weir.until('all upstreams are free', () => upstream.running === 0)
  const passed = () => weir.logs.filter(line => line['msg'] === 'passed')
  await weir.until('a line each', () => passed().length === 3)
  const details = Object.fromEntries(passed().map(line => [line['route'], line['detail']]))
  t.match(details['/v1/embeddings'], /No answer within 0.4 s/)
  t.equal(details['/v1/audio/*'], 'one of its clocks ran out')
  t.equal(details['/v1/rerank'], undefined)
})

t.test('failures and refusals of the upstream are told truly, and no address gets out', async t => {
  const answers: Record<string, readonly Step[]> = {
    '/v1/embeddings': ['RST'],
    '/v1/audio/a': [WHOLE(429, '{"error":{"message":"full"}}', 'application/json', 'Retry-After: 3\r\n')],
    '/v1/audio/b': [WHOLE(401, '{}')],
    '/v1/audio/c': [WHOLE(307, '', 'text/plain', 'Location: http://10.9.8.7/\r\n')],
    '/v1/audio/d': [WHOLE(500, 'it broke', 'text/plain')],
    '/v1/audio/e': ['HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf', 'CUT'],
    '/v1/audio/f': [
      'HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nAccess-Control-Allow-Origin: *\r\nConnection: x-up\r\nX-Up: 1\r\nContent-Length: 2\r\n\r\nok',
    ],
    '/v1/audio/g': ['nonsense'],
    '/v1/files/503': [WHOLE(503, 'busy', 'text/plain', 'Retry-After: 0\r\n')],
    '/v1/files/304': ['HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n'],
  }
  const upstream = await startUpstream(t, ({ path }) => answers[path] ?? [])
  const weir = await startTestWeir(t, configData([upstream.url], {}, { allow: GROUPS }))
  const get = (path: string) =>
    ask(weir.url, path.includes('files') ? { path, method: 'GET', body: '' } : { path, body: '{}' }).answer
  const reset = await get('/v1/embeddings')
  t.equal(reset.status, 502)
  t.equal(errorOf(reset).code, 'weir_upstream_error')
  const busy = await get('/v1/audio/a')
  t.match(busy, { status: 429, headers: { 'retry-after': '3' }, text: /full/ })
  const credential = await get('/v1/audio/b')
  t.equal(credential.status, 502)
  t.match(errorOf(credential).message, 'must set pools.main.api_key')
  t.match(weir.logText(), 'set pools.main.api_key to a key it accepts')
  const redirect = await get('/v1/audio/c')
  t.equal(redirect.status, 502)
  t.notMatch(JSON.stringify(redirect), '10.9.8.7')
  t.match(await get('/v1/audio/d'), { status: 500, text: 'it broke' })
  const half = await get('/v1/audio/e')
  t.match(half, { status: 200, text: 'half', whole: false })
  const lines = await get('/v1/audio/f')
  t.same(lines.headers['set-cookie'], ['a=1', 'b=2'])
  t.notOk(
    'access-control-allow-origin' in lines.headers,
    'which pages may read it is not the engine’s to say',
  )
  t.notOk('x-up' in lines.headers)
  t.equal((await get('/v1/audio/g')).status, 502)
  const sent = upstream.requests.length
  t.match(await get('/v1/files/503'), { status: 503, text: 'busy' })
  t.equal(upstream.requests.length, sent + 1, 'and nothing is sent again')
  t.match(await get('/v1/files/304'), { status: 304, headers: { etag: '"x"' } })
  t.notMatch(weir.logText(), '"level":50', 'no fault of the router’s own')

  await upstream.close()
  const gone = await get('/v1/embeddings')
  t.equal(gone.status, 502)
  t.notMatch(gone.text, /127\.0\.0\.1/)
})

t.test('a body over the limit, and a path that an upstream might read as another, are refused', async t => {
  const upstream = await startUpstream(t, echo)
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { limits: { body: '64KiB' } }, { allow: GROUPS }),
  )
  const big = await raw(
    weir.port,
    RAW('', 'content-length: 70000').replace('/chat/completions', '/audio/speech'),
  )
  t.match(big, /^HTTP\/1.1 413 .*65536 bytes \(limits.body\)/s)
  const fits = { path: '/v1/audio/speech', body: 'x'.repeat(65_536), headers: { 'content-type': 'audio/x' } }
  t.equal((await ask(weir.url, fits).answer).status, 200)
  for (const path of [
    '/v1/files/../models',
    '/v1/files/..',
    '/v1/files/%2e%2e/models',
    '/v1/files/a%2f..%2f..%2fmetrics',
    '/v1/files/x%5c..%5cmetrics',
    '/v1/files/x\\..\\metrics',
    '/v1/files/%252e%252e%252fmetrics',
    '/v1/files/%00',
    '/v1/files/a%0d%0ab',
    '/v1/files/%zz',
    '//evil.example/v1/files',
    'http://evil.example/v1/files',
    '/v1/audio/../../reset_prefix_cache',
  ]) {
    for (const method of ['GET', 'POST']) {
      const answer = await raw(
        weir.port,
        `${method} ${path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`,
      )
      t.match(answer, /^HTTP\/1.1 40[045] /, `${method} ${path}`)
      t.match(answer, /"code":"weir_(unknown_route|bad_request)"/, `${method} ${path}`)
    }
  }
  t.equal(upstream.requests.length, 1)
  t.equal(await weir.metric('weir_requests_total'), 0, 'and none is an arrival')
})

t.test('what is passed on follows a new config', async t => {
  const [before, after] = await Promise.all([startUpstream(t, echo), startUpstream(t, echo)])
  const weir = await startTestWeir(t, configData([before?.url ?? ''], {}, { allow: ['rerank'] }))
  const { loadData } = await import('../../src/config/load.js')
  t.equal((await ask(weir.url, { path: '/rerank', body: '{}' }).answer).status, 200)
  const loaded = loadData(configData([after?.url ?? ''], {}, { allow: ['embeddings'] }), 'test', {
    listen: { port: 0 },
    admin: { port: 0 },
  })
  if (loaded.ok !== undefined) weir.weir.reconfigure(loaded.ok)
  t.equal((await ask(weir.url, { path: '/rerank', body: '{}' }).answer).status, 404)
  t.equal((await ask(weir.url, { path: '/v1/embeddings', body: '{}' }).answer).status, 200)
  t.same([before?.requests.length, after?.requests.length], [1, 1])
})
