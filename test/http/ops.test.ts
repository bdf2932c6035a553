import { request } from 'node:http'
import { connect } from 'node:net'
import { Registry } from 'prom-client'
import t, { type Test } from 'tap'
import { namedState, type OpsOptions, opsServer, type Readiness } from '../../src/http/ops.js'
import { Recorder } from '../../src/metrics/record.js'
import type { PolicySpec, PolicyState } from '../../src/policy/policy.js'
import { sum } from '../metrics/scraped.js'

const SPEC: PolicySpec = {
  classes: [
    {
      id: 0,
      name: 'chat',
      target: {
        percentile: 90,
        mode: 'joint',
        windowMs: 1,
        clauses: { kind: 'stream', ttftMs: 500, tpotMs: 40 },
      },
      guard: {
        percentile: 99,
        mode: 'joint',
        windowMs: 1,
        clauses: { kind: 'stream', ttftMs: 2000, tpotMs: 100 },
      },
      workload: {
        model: 'm',
        precision: undefined,
        inputTokens: { p50: 1, p90: 2 },
        outputTokens: { p50: 1, p90: 2 },
        cacheHit: 0,
      },
      priority: 0,
      pools: [0],
      queue: undefined,
      ownBounds: undefined,
    },
  ],
  pools: [
    {
      id: 0,
      name: 'main',
      model: undefined,
      replicas: [{ id: 0, pool: 0, name: '10.0.0.1:8000' }],
      maxInFlight: 32,
      gpusPerReplica: 1,
    },
  ],
  replicas: [{ id: 0, pool: 0, name: '10.0.0.1:8000' }],
  routes: [],
  retries: { share: 0.1, floor: 3 },
}
const STATE: PolicyState = {
  replicas: [{ id: 0, pool: 0, up: false, inFlight: 3, outstandingPrefillTokens: 900 }],
  queues: [{ cls: 0, depth: 4 }],
  open: 7,
  totals: [],
}

interface Got {
  readonly status: number
  readonly headers: Record<string, string | string[] | undefined>
  readonly body: string
}

/** Starts an admin listener on a free port; `ask` calls it over a real socket. */
async function started(t: Test, options: Partial<OpsOptions> = {}, host = '127.0.0.1', token?: string) {
  const recorder = new Recorder(new Registry(), SPEC, { version: '1.2.3', node: 'v20' }, () => STATE)
  const ops = opsServer({
    admin: { host, port: 0, token },
    version: '1.2.3',
    metrics: recorder,
    ready: () => ({ ready: true }),
    state: () => namedState(SPEC, STATE),
    ...options,
  })
  const { port } = await ops.listen()
  t.teardown(() => ops.close())
  const ask = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
    new Promise<Got>((resolve, reject) => {
      const call = request({ host: '127.0.0.1', port, path, method, headers, agent: false }, response => {
        let body = ''
        response.setEncoding('utf8')
        response.on('data', part => {
          body += part
        })
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body }),
        )
      })
      call.on('error', reject)
      call.end()
    })
  return { ask, port }
}

const message = (got: Got): string => JSON.parse(got.body).error.message

t.test('/metrics is the scrape, in the media type of Prometheus', async t => {
  const { ask } = await started(t)
  const got = await ask('/metrics?name=x')
  t.equal(got.status, 200)
  t.equal(got.headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8')
  t.equal(got.headers['cache-control'], 'no-store')
  t.equal(sum(got.body, 'weir_build_info', { version: '1.2.3', node: 'v20' }), 1)
  t.equal(sum(got.body, 'weir_in_flight', { pool: 'main', replica: '10.0.0.1:8000' }), 3)
})

t.test('a scrape that fails is a 500 with its reason, and the next page is served', async t => {
  const { ask } = await started(t, {
    metrics: { contentType: 'text/plain', text: () => Promise.reject(new Error('no such gauge')) },
  })
  const got = await ask('/metrics')
  t.equal(got.status, 500)
  t.equal(message(got), 'This page failed: no such gauge')
  t.equal((await ask('/livez')).status, 200)
})

t.test('/readyz tells ready from not, and why not, while /livez stays green', async t => {
  let readiness: Readiness = { ready: true }
  const { ask } = await started(t, { ready: () => readiness })
  t.match(await ask('/readyz'), { status: 200, body: '{"ready":true}\n' })
  readiness = { ready: false, why: 'shutting down: 3 streams left' }
  const got = await ask('/readyz')
  t.equal(got.status, 503)
  t.same(JSON.parse(got.body), { ready: false, why: 'shutting down: 3 streams left' })
  t.match(await ask('/livez'), { status: 200, body: '{"live":true}\n' })
})

t.test('/api/state names classes, pools and replicas', async t => {
  const verdicts = { good: 5 } as never
  const state = { ...STATE, totals: [{ cls: 0, arrivals: 9, offered: 6, shed: 0, verdicts }] }
  const { ask } = await started(t, { state: () => namedState(SPEC, state) })
  const got = await ask('/api/state')
  t.equal(got.headers['content-type'], 'application/json; charset=utf-8')
  t.same(JSON.parse(got.body), {
    version: '1.2.3',
    open: 7,
    classes: [
      { name: 'chat', pools: ['main'], queue_depth: 4, arrivals: 9, offered: 6, verdicts: { good: 5 } },
    ],
    pools: [
      {
        name: 'main',
        model: '*',
        replicas: [
          {
            name: '10.0.0.1:8000',
            up: false,
            in_flight: 3,
            max_in_flight: 32,
            outstanding_prefill_tokens: 900,
          },
        ],
      },
    ],
  })
})

t.test('HEAD answers as GET does, without the body', async t => {
  const { ask } = await started(t)
  const got = await ask('/livez', {}, 'HEAD')
  t.equal(got.status, 200)
  t.equal(got.body, '')
  t.equal(got.headers['content-length'], '14')
})

t.test('a known path with another method is 405 and says which are allowed', async t => {
  const { ask } = await started(t)
  for (const method of ['POST', 'DELETE', 'OPTIONS']) {
    const got = await ask('/metrics', {}, method)
    t.equal(got.status, 405, method)
    t.equal(got.headers['allow'], 'GET, HEAD')
    t.equal(got.headers['access-control-allow-origin'], undefined, 'no page of another site may read here')
  }
})

t.test('every other path is 404, however it is written', async t => {
  const { ask } = await started(t)
  for (const path of ['/', '/v1/models', '/metrics/', '/api/../metrics', '/%6detrics', '//metrics', '/%zz']) {
    const got = await ask(path)
    t.equal(got.status, 404, path)
    t.equal(message(got), 'Nothing here. There is /livez, /readyz, /metrics, /api/state.')
  }
})

t.test('on loopback a Host that is another name is refused, whatever its port', async t => {
  const { ask, port } = await started(t)
  for (const host of ['localhost', `LOCALHOST:${port}`, '127.0.0.1:1', '[::1]:9', '[::1]']) {
    t.equal((await ask('/metrics', { host })).status, 200, host)
  }
  for (const host of [
    'evil.example',
    `evil.example:${port}`,
    'localhost.evil.example',
    '127.0.0.1.evil.example',
  ]) {
    for (const path of ['/metrics', '/api/state', '/livez']) {
      const got = await ask(path, { host })
      t.equal(got.status, 403, `${host}${path}`)
      t.equal(message(got), 'The Host header is not this listener. Ask for it as localhost or 127.0.0.1.')
    }
  }
})

t.test('a Host that is missing, or hidden behind an absolute URL, opens nothing', async t => {
  const { port } = await started(t)
  const raw = (head: string) =>
    new Promise<string>((resolve, reject) => {
      let got = ''
      const socket = connect(port, '127.0.0.1', () => socket.end(head))
      socket.setEncoding('latin1')
      socket.on('data', part => {
        got += part
      })
      socket.on('end', () => resolve(got.slice(9, 12)))
      socket.on('error', reject)
    })
  t.equal(await raw('GET /metrics HTTP/1.0\r\n\r\n'), '403')
  t.equal(await raw('GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n'), '400')
  t.equal(
    await raw('GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'),
    '404',
  )
})

t.test('a page of another site cannot post here', async t => {
  const { ask, port } = await started(t)
  const host = `localhost:${port}`
  t.equal((await ask('/metrics', { host, origin: `http://${host}` }, 'POST')).status, 405)
  for (const origin of ['http://evil.example', 'null', `http://localhost:${port}.evil.example`]) {
    const got = await ask('/metrics', { host, origin }, 'POST')
    t.equal(got.status, 403, origin)
    t.equal(message(got), 'The Origin header is another site: its pages may not change anything here.')
  }
  t.equal(
    (await ask('/metrics', { host, origin: 'http://evil.example' })).status,
    200,
    'reading changes nothing',
  )
})

t.test('beyond loopback all but /livez and /readyz ask for the token', async t => {
  const { ask } = await started(t, {}, '0.0.0.0', 'sécret-token')
  const bytes = Buffer.from('sécret-token').toString('latin1')
  for (const path of ['/metrics', '/api/state', '/nowhere']) {
    for (const authorization of [undefined, 'Bearer wrong', 'Bearer ', `Basic ${bytes}`, bytes]) {
      const got = await ask(path, authorization === undefined ? {} : { authorization })
      t.equal(got.status, 401, `${path} with ${authorization}`)
      t.equal(got.headers['www-authenticate'], 'Bearer')
      t.equal(message(got), 'Send the admin token: "authorization: Bearer TOKEN".')
    }
  }
  t.equal((await ask('/livez')).status, 200)
  t.equal((await ask('/readyz', { host: 'weir.example:8081' })).status, 200, 'its name is its own affair')
  t.equal((await ask('/metrics', { authorization: `Bearer ${bytes}` })).status, 200)
  t.equal((await ask('/metrics', { authorization: `bearer ${bytes}` })).status, 200)
  t.equal((await ask('/nowhere', { authorization: `Bearer ${bytes}` })).status, 404)
})

t.test('a token that is configured counts on loopback too', async t => {
  const { ask } = await started(t, {}, '127.0.0.1', 'token')
  t.equal((await ask('/metrics')).status, 401)
  t.equal((await ask('/metrics', { authorization: 'Bearer token' })).status, 200)
})

t.test('beyond loopback without a token it does not start', async t => {
  const start = (host: string) =>
    opsServer({
      admin: { host, port: 0, token: undefined },
      version: '1',
      metrics: { contentType: '', text: async () => '' },
      ready: () => ({ ready: true }),
      state: () => ({}),
    })
  for (const host of ['0.0.0.0', '::', '10.0.0.7', 'weir.example', '127.evil.example']) {
    t.throws(() => start(host), {
      message: `admin.host is ${host}, which others can reach, and admin.token is not set. Set admin.token, or listen on 127.0.0.1.`,
    })
  }
  for (const host of ['127.0.0.1', '127.0.0.2', '::1', 'localhost']) t.doesNotThrow(() => start(host))
})

t.test('a port that is taken is said by its address', async t => {
  const { port } = await started(t)
  const second = opsServer({
    admin: { host: '127.0.0.1', port, token: undefined },
    version: '1',
    metrics: { contentType: '', text: async () => '' },
    ready: () => ({ ready: true }),
    state: () => ({}),
  })
  await t.rejects(second.listen(), {
    message: `the admin listener cannot start on 127.0.0.1:${port}: listen EADDRINUSE: address already in use 127.0.0.1:${port}`,
  })
})
