/** Which class, pool and model a request gets, by path, header, body and key; and what /v1/models says. */
import t from 'tap'
import { type Ask, ask, body, errorOf } from '../fixtures/client.js'
import { JSON_ANSWER, TOLD } from '../fixtures/events.js'
import { HDR, type Step, startUpstream, type Upstream, WHOLE } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir } from '../fixtures/weir.js'

type Test = Parameters<typeof startUpstream>[0]

const streams = (request: { readonly body: Buffer }): boolean => /"stream":true/.test(request.body.toString())

/** Answers as it was asked; has models x and y. */
function engine(t: Test): Promise<Upstream> {
  return startUpstream(t, (request): Step[] => {
    if (request.path === '/v1/models') {
      return [WHOLE(200, JSON.stringify({ object: 'list', data: [{ id: 'x' }, { id: 'y' }] }))]
    }
    return streams(request) ? [HDR, TOLD('a', 'b'), 'EOF'] : [WHOLE(200, JSON_ANSWER(5, 2))]
  })
}

t.test('the data port answers with and without /v1, and under the name of a class', async t => {
  const upstream = await engine(t)
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: { chat: CHAT, agent: AGENT }, routes: [{ class: 'chat' }] }),
  )
  for (const route of ['/chat/completions', '/completions']) {
    for (const [prefix, cls] of [
      ['', 'chat'],
      ['/v1', 'chat'],
      ['/agent/v1', 'agent'],
      ['/chat/v1', 'chat'],
    ] as const) {
      for (const stream of [true, false]) {
        const answer = await ask(weir.url, { path: `${prefix}${route}?x=1`, body: body({ stream }) }).answer
        const what = `${prefix}${route} stream ${stream}`
        t.equal(answer.status, 200, what)
        t.equal(answer.headers['x-weir-class'], cls, what)
        t.equal(answer.headers['x-weir-pool'], 'main', what)
        t.equal(answer.headers['x-weir-decision'], 'home', what)
        t.match(
          answer.headers['server-timing'],
          /^body;dur=\d+\.\d, queue;dur=0\.0, upstream;dur=\d+\.\d$/,
          what,
        )
        t.equal(upstream.requests.at(-1)?.path, `/v1${route}`, what)
        if (stream) t.equal(answer.headers['cache-control'], 'no-cache, no-transform', what)
        else t.equal(answer.text, JSON_ANSWER(5, 2), what)
      }
    }
  }
  t.equal(await weir.metric('weir_requests_total'), 16)
  t.equal(await weir.metric('weir_requests_total', { class: 'agent' }), 4)
  await weir.atRest()
})

t.test("a request's id is the client's own where it can be logged, and goes to the upstream", async t => {
  const upstream = await engine(t)
  const weir = await startTestWeir(t, configData([upstream.url]))
  const own = await ask(weir.url, { headers: { 'x-request-id': 'job-7:a.b_c' } }).answer
  t.equal(own.headers['x-request-id'], 'job-7:a.b_c')
  t.equal(upstream.requests[0]?.headers['x-request-id'], 'job-7:a.b_c')
  const odd = await ask(weir.url, { headers: { 'x-request-id': 'two words' } }).answer
  t.match(odd.headers['x-request-id'], /^[0-9a-f-]{36}$/)
  t.equal(upstream.requests[1]?.headers['x-request-id'], odd.headers['x-request-id'])
  const [first] = await weir.requestLogs(2)
  t.equal(first?.['id'], 'job-7:a.b_c')
  await weir.atRest()
})

t.test('the first route that matches wins, and a class asked for by name wins over it', async t => {
  const upstream = await engine(t)
  const names = ['path', 'header', 'glob', 'tools', 'long', 'plain', 'both', 'rest']
  const routes = [
    { when: { path: '/path/*' }, class: 'path' },
    { when: { header: { 'X-Team': 'a*', 'x-kind': 'k' } }, class: 'both' },
    { when: { header: { 'X-Team': 'a*' } }, class: 'header' },
    { when: { model: '*-agent' }, class: 'glob' },
    { when: { stream: true, tools: true }, class: 'tools' },
    { when: { max_tokens: { min: 1000 } }, class: 'long' },
    { when: { stream: false }, class: 'plain' },
    { class: 'rest' },
  ]
  const classes = Object.fromEntries(names.map(name => [name, CHAT]))
  const weir = await startTestWeir(t, configData([upstream.url], { classes, routes }, { model: '*' }))
  const cases: readonly (readonly [string, Ask])[] = [
    ['path', { path: '/path/v1/chat/completions', headers: { 'x-team': 'a' } }],
    ['header', { headers: { 'x-team': 'alpha' } }],
    ['both', { headers: { 'x-team': 'a', 'x-kind': 'k' } }],
    ['rest', { headers: { 'x-team': 'beta', 'x-kind': 'k' } }],
    ['glob', { body: body({ model: 'small-agent' }) }],
    ['rest', { body: body({ model: 'small-agent-2' }) }],
    ['tools', { body: body({ tools: [{ type: 'function', function: { name: 'f' } }] }) }],
    ['tools', { body: body({ functions: [{ name: 'f' }] }) }],
    ['rest', { body: body({ tools: [] }) }],
    ['plain', { body: body({ stream: false, tools: [{}] }) }],
    ['long', { body: body({ max_tokens: 1000, stream: false }) }],
    ['long', { body: body({ max_tokens: 10, max_completion_tokens: 4000 }) }],
    ['rest', { body: body({ max_tokens: 999 }) }],
    ['glob', { headers: { 'x-weir-class': 'glob' } }],
    ['plain', { headers: { 'x-weir-class': 'plain', 'x-team': 'a' } }],
    ['both', { path: '/both/v1/chat/completions', headers: { 'x-weir-class': 'plain' } }],
  ]
  for (const [cls, request] of cases) {
    const answer = await ask(weir.url, request).answer
    t.equal(answer.headers['x-weir-class'], cls, JSON.stringify(request))
  }
  t.notOk(
    upstream.requests.some(({ rawHead }) => /x-weir-/i.test(rawHead)),
    'no header of Weir goes on',
  )
  await weir.atRest()
})

t.test('a rewritten model changes its bytes in the body, and no others', async t => {
  const upstream = await engine(t)
  const weir = await startTestWeir(
    t,
    configData(
      [upstream.url],
      {
        routes: [{ when: { model: 'alias' }, class: 'chat', rewrite: { model: 'm "1"' } }, { class: 'chat' }],
      },
      { model: '*', ask_usage: false },
    ),
  )
  const send = (model: string) =>
    `{ "seed":9007199254740993, "b":1.0, "mod\\u0065l" : ${model} ,"a":"\\u4f60","messages":[],"stream":true}\n`
  t.equal((await ask(weir.url, { body: send('"al\\u0069as"') }).answer).status, 200)
  t.equal(upstream.requests[0]?.body.toString(), send('"m \\"1\\""'))
  t.equal(upstream.requests[0]?.headers['content-length'], String(send('"m \\"1\\""').length))
  t.equal((await ask(weir.url, { body: send('"other"') }).answer).status, 200)
  t.equal(upstream.requests[1]?.body.toString(), send('"other"'), 'else it is as it was')
  await weir.atRest()
})

t.test(
  '/v1/models is the union of pools and aliases, and asks the replicas of a pool that takes any',
  async t => {
    const upstream = await engine(t)
    const weir = await startTestWeir(t, {
      classes: { chat: { ...CHAT, pools: ['main', 'any', 'gone'] } },
      pools: {
        main: { model: 'm', replicas: ['http://127.0.0.1:1'] },
        any: { model: '*', replicas: ['http://127.0.0.1:2', upstream.url], api_key: 'UPSTREAM-KEY-0001' },
        gone: { model: '*', replicas: ['http://127.0.0.1:3'] },
      },
      routes: [
        { when: { model: 'alias' }, class: 'chat', rewrite: { model: 'm' } },
        { when: { model: '*-agent' }, class: 'chat', rewrite: { model: 'm' } },
        { class: 'chat' },
      ],
    })
    for (const path of ['/v1/models', '/models', '/chat/v1/models']) {
      const answer = await ask(weir.url, { method: 'GET', path, body: '' }).answer
      t.equal(answer.status, 200)
      const list = JSON.parse(answer.text)
      t.equal(list.object, 'list')
      t.same(list.data.map(({ id }: { id: string }) => id).sort(), ['alias', 'm', 'x', 'y'])
      t.match(list.data[0], { object: 'model', created: Number, owned_by: String })
    }
    t.equal(upstream.requests.length, 1, 'asked once for a while')
    t.equal(upstream.requests[0]?.headers['authorization'], 'Bearer UPSTREAM-KEY-0001')
    const one = await ask(weir.url, { method: 'GET', path: '/v1/models/alias', body: '' }).answer
    t.equal(JSON.parse(one.text).id, 'alias')
    const none = await ask(weir.url, { method: 'GET', path: '/v1/models/nope', body: '' }).answer
    t.equal(none.status, 404)
    t.match(errorOf(none), { code: 'weir_unknown_route', message: /See GET \/v1\/models/ })
    t.equal(await weir.metric('weir_requests_total'), 0, 'none of them is an arrival')
  },
)

t.test('requests that match no route are refused, and are told which classes there are', async t => {
  const upstream = await engine(t)
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { routes: [{ when: { header: { 'x-team': 'a' } }, class: 'chat' }] }),
  )
  const answer = await ask(weir.url).answer
  t.equal(answer.status, 404)
  t.equal(errorOf(answer).code, 'weir_unknown_route')
  t.match(errorOf(answer).message, /No route .* takes this request.*x-weir-class.*: chat\./)
  t.equal((await ask(weir.url, { headers: { 'x-weir-class': 'chat' } }).answer).status, 200)
  await weir.requestLogs(2)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error', class: 'none' }), 1)
  t.equal(upstream.requests.length, 1)
  await weir.atRest()
})

t.test('a pool for any model takes the models that no other pool of the class names', async t => {
  const [named, any] = await Promise.all([engine(t), engine(t)])
  const weir = await startTestWeir(t, {
    classes: { chat: { ...CHAT, pools: ['named', 'any'] } },
    pools: { named: { model: 'm', replicas: [named.url] }, any: { model: '*', replicas: [any.url] } },
  })
  t.equal((await ask(weir.url).answer).headers['x-weir-pool'], 'named')
  t.equal((await ask(weir.url, { body: body({ model: 'z' }) }).answer).headers['x-weir-pool'], 'any')
  await weir.atRest()
})

t.test('with keys only their holders come in, and a key says which classes it may ask for', async t => {
  const upstream = await engine(t)
  const folder = t.testdir({
    'keys.yaml': `keys:
  - { label: team-a, key: client-key-aaaaaaaa, classes: [chat] }
  - { label: team-b, key: client-key-bbbbbbbb }
`,
  })
  const weir = await startTestWeir(
    t,
    configData([upstream.url], {
      auth: { keys: `${folder}/keys.yaml` },
      classes: { chat: CHAT, agent: AGENT },
      routes: [{ when: { key: 'team-b', stream: false }, class: 'agent' }, { class: 'chat' }],
    }),
  )
  const a = 'client-key-aaaaaaaa'
  const b = 'client-key-bbbbbbbb'
  const open: readonly Record<string, string>[] = [
    { authorization: `Bearer ${a}` },
    { authorization: `bearer  ${a}` },
    { 'x-api-key': a },
    { 'api-key': a },
  ]
  for (const headers of open) t.equal((await ask(weir.url, { headers }).answer).status, 200)
  const shut: readonly Record<string, string>[] = [
    {},
    { authorization: `Bearer ${a}x` },
    { authorization: `Bearer ${a.slice(1)}` },
    { authorization: a },
    { authorization: `Basic ${a}` },
    { authorization: 'Bearer ' },
    { 'x-api-key': '' },
    { 'api-key': 'team-a' },
  ]
  for (const headers of shut) {
    const answer = await ask(weir.url, { headers }).answer
    t.equal(answer.status, 401, JSON.stringify(headers))
    t.match(errorOf(answer), {
      code: 'weir_unauthorized',
      type: 'authentication_error',
      message: /authorization: Bearer/,
    })
    t.equal(
      (await ask(weir.url, { headers, method: 'GET', path: '/v1/models', body: '' }).answer).status,
      401,
    )
  }
  t.equal((await ask(weir.url, { path: `/v1/chat/completions?key=${a}` }).answer).status, 401)

  const asked = [
    await ask(weir.url, { headers: { 'x-api-key': a, 'x-weir-class': 'agent' } }).answer,
    await ask(weir.url, { headers: { 'x-api-key': a }, path: '/agent/v1/chat/completions' }).answer,
  ]
  for (const answer of asked) {
    t.equal(answer.status, 401)
    t.equal(errorOf(answer).message, 'This key may not ask for class agent. It may ask for: chat.')
  }
  const routed = await ask(weir.url, { headers: { 'x-api-key': b }, body: body({ stream: false }) }).answer
  t.equal(routed.headers['x-weir-class'], 'agent', 'by its label')
  const wrong = shut.length + 1 + asked.length
  t.equal(upstream.requests.length, open.length + 1)
  t.equal(await weir.metric('weir_requests_total'), open.length + wrong + 1)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), wrong)
  const lines = await weir.requestLogs(open.length + wrong + 1)
  t.same(lines.at(-1)?.['key'], 'team-b', 'the log says which key it was, by its label')
  t.notMatch(weir.logText(), /client-key/)
  await weir.atRest()
})

t.test('traffic that home has no room for spills to the next pool, and says so', async t => {
  const home = await startUpstream(t, () => [HDR, TOLD('a').slice(0, -14), 'HOLD'])
  const spare = await engine(t)
  const weir = await startTestWeir(t, {
    classes: { chat: { ...CHAT, pools: ['main', 'spare'] } },
    pools: {
      main: { model: 'm', replicas: [home.url], max_in_flight: 1 },
      spare: { model: 'm', replicas: [spare.url], max_in_flight: 1 },
    },
  })
  const first = ask(weir.url)
  await first.received(1)
  const second = await ask(weir.url).answer
  t.equal(second.headers['x-weir-decision'], 'spill')
  t.equal(second.headers['x-weir-pool'], 'spare')
  t.equal(second.text, TOLD('a', 'b').replace(/data: [^\n]*"usage"[^\n]*\n\n/, ''))
  t.equal(await weir.metric('weir_spill_total', { class: 'chat', from: 'main', to: 'spare' }), 1)
  first.leave()
  await weir.until('home is free', async () => (await weir.metric('weir_in_flight')) === 0)
  const third = await ask(weir.url)
  await third.received(1)
  third.leave()
  t.equal((await third.answer).headers['x-weir-decision'], 'home')
  await weir.atRest()
})

t.test('a class with a queue waits for room, by deadline, and says so', async t => {
  const upstream = await startUpstream(t, () => [HDR, { wait: 400 }, TOLD('a', 'b'), 'EOF'])
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: { agent: AGENT } }, { max_in_flight: 1 }),
  )
  const first = ask(weir.url)
  await weir.until('one runs', () => upstream.running === 1)
  const later = ask(weir.url, { headers: { 'x-weir-deadline-ms': '50000' } })
  await weir.until('one waits', async () => (await weir.metric('weir_queue_depth')) === 1)
  const sooner = ask(weir.url, { headers: { 'x-weir-deadline-ms': '20000' } })
  await weir.until('two wait', async () => (await weir.metric('weir_queue_depth', { class: 'agent' })) === 2)
  t.equal(upstream.requests.length, 1)
  const answers = await Promise.all([first, later, sooner].map(one => one.answer))
  t.same(
    answers.map(({ headers }) => headers['x-weir-decision']),
    ['home', 'queued', 'queued'],
  )
  t.ok((answers[1]?.headAt ?? 0) > (answers[2]?.headAt ?? 0), 'the sooner deadline went first')
  t.ok(Number(/queue;dur=([\d.]+)/.exec(String(answers[1]?.headers['server-timing']))?.[1]) >= 150)
  await weir.requestLogs(3)
  t.equal(await weir.metric('weir_queue_seconds_count', { class: 'agent' }), 3)
  // The later one waits for the whole of the sooner one's answer, at least.
  t.ok((await weir.metric('weir_queue_seconds_sum')) >= 0.4)
  await weir.atRest()
})
