/** The Responses and the Messages API: timed, routed and refused like the others, in their own shapes. */
import t from 'tap'
import { ask } from '../fixtures/client.js'
import { HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir } from '../fixtures/weir.js'

const event = (type: string, more: object = {}): string =>
  `event: ${type}\ndata: ${JSON.stringify({ type, ...more })}\n\n`

const response = (id: string, more: object = {}) => ({ response: { id, object: 'response', ...more } })
const USAGE = { input_tokens: 9, output_tokens: 4, total_tokens: 13 }

/** A streamed response with this id. */
const responseStream = (id: string): Step[] => [
  HDR,
  event('response.created', response(id, { status: 'in_progress' })),
  event('response.output_item.added', { item: { type: 'message', id: 'm1' } }),
  { wait: 80 },
  event('response.output_text.delta', { delta: 'hel' }),
  { wait: 60 },
  event('response.output_text.delta', { delta: 'lo' }),
  event('response.completed', response(id, { status: 'completed', usage: USAGE })),
  'EOF',
]
const RESPONSES = JSON.stringify({ model: 'm', stream: true, input: 'hi' })

/** Anthropic's stream of one message. */
const MESSAGE: Step[] = [
  HDR,
  event('message_start', { message: { id: 'msg_1', usage: { input_tokens: 9, output_tokens: 1 } } }),
  event('content_block_start', { index: 0, content_block: { type: 'text', text: '' } }),
  event('ping'),
  { wait: 80 },
  event('content_block_delta', { index: 0, delta: { type: 'text_delta', text: 'hel' } }),
  { wait: 60 },
  event('content_block_delta', { index: 0, delta: { type: 'text_delta', text: 'lo' } }),
  event('content_block_stop', { index: 0 }),
  event('message_delta', { delta: { stop_reason: 'end_turn' }, usage: { output_tokens: 4 } }),
  event('message_stop'),
  'EOF',
]
const MESSAGES = JSON.stringify({
  model: 'm',
  stream: true,
  max_tokens: 100,
  messages: [{ role: 'user', content: 'hi' }],
})

const sent = (steps: readonly Step[]): string =>
  steps.filter(step => typeof step === 'string' && step !== HDR && step !== 'EOF').join('')

for (const [api, path, body, steps] of [
  ['responses', '/v1/responses', RESPONSES, responseStream('resp_1')],
  ['messages', '/v1/messages', MESSAGES, MESSAGE],
] as const) {
  t.test(`a ${api} stream is timed by its first output and passed on to the byte`, async t => {
    const upstream = await startUpstream(t, () => steps)
    const weir = await startTestWeir(t, configData([upstream.url]))
    const { status, text, reads } = await ask(weir.url, { path, body }).answer
    t.equal(status, 200)
    t.equal(text, sent(steps))
    t.equal(upstream.requests[0]?.path, path)
    t.equal(upstream.requests[0]?.body.toString(), body, 'and so is the request: no member is added')
    t.ok((reads[0]?.at ?? 0) > 60, 'nothing goes out before the first output')
    const [line] = await weir.requestLogs(1)
    t.match(line, { verdict: 'good', ending: 'complete', inputTokens: 9, outputTokens: 4 })
    t.ok(Number(line?.['ttftMs']) > 60)
    await weir.atRest()
  })

  t.test(`a ${api} stream that breaks ends with an error event in that API's shape`, async t => {
    const cut = steps.slice(0, -3)
    const upstream = await startUpstream(t, () => [...cut, 'CUT'])
    const weir = await startTestWeir(t, configData([upstream.url]))
    const { text, whole } = await ask(weir.url, { path, body }).answer
    t.ok(whole)
    const [name, data] = text.slice(sent(cut).length).trim().split('\n')
    t.equal(name, 'event: error')
    const error = JSON.parse(data?.replace('data: ', '') ?? '')
    t.match(error, { type: 'error', error: { code: 'weir_upstream_truncated', message: /broke off/ } })
    t.match(await weir.requestLogs(1), [{ verdict: 'truncated' }])
    await weir.atRest()
  })
}

t.test("an answer that is not streamed is counted by that API's usage", async t => {
  const answer = (path: string): string =>
    path.endsWith('messages')
      ? JSON.stringify({
          id: 'msg_1',
          type: 'message',
          content: [],
          usage: { input_tokens: 7, output_tokens: 5 },
        })
      : JSON.stringify({
          id: 'resp_1',
          object: 'response',
          status: 'completed',
          usage: { ...USAGE, output_tokens: 5 },
        })
  const upstream = await startUpstream(t, ({ path }) => [WHOLE(200, answer(path))])
  const weir = await startTestWeir(t, configData([upstream.url], { classes: { agent: AGENT } }))
  for (const [path, body] of [
    ['/v1/responses', RESPONSES],
    ['/v1/messages', MESSAGES],
  ] as const) {
    const { status, text } = await ask(weir.url, { path, body: body.replace('true', 'false') }).answer
    t.equal(status, 200)
    t.equal(text, answer(path))
  }
  t.match(await weir.requestLogs(2), [
    { verdict: 'good', outputTokens: 5 },
    { verdict: 'good', outputTokens: 5, inputTokens: 7 },
  ])
  await weir.atRest()
})

t.test("Weir's own refusals have the API's shape, and its credentials the API's header", async t => {
  const dead = 'http://127.0.0.1:1'
  const weir = await startTestWeir(t, configData([dead]))
  const messages = await ask(weir.url, { path: '/chat/v1/messages', body: MESSAGES }).answer
  t.equal(messages.status, 502)
  t.match(JSON.parse(messages.text), {
    type: 'error',
    error: { type: 'api_error', code: 'weir_upstream_error' },
  })
  const bad = await ask(weir.url, { path: '/v1/messages', body: '{' }).answer
  t.equal(bad.status, 400)
  t.match(JSON.parse(bad.text), {
    type: 'error',
    error: { type: 'invalid_request_error', code: 'weir_bad_request' },
  })
  const responses = await ask(weir.url, { path: '/responses', body: '{' }).answer
  t.match(JSON.parse(responses.text), { error: { type: 'invalid_request_error', code: 'weir_bad_request' } })

  const upstream = await startUpstream(t, () => MESSAGE)
  const keyed = await startTestWeir(t, configData([upstream.url], {}, { api_key: 'UPSTREAM-KEY' }))
  const headers = { 'x-api-key': 'CLIENT-KEY', 'anthropic-version': '2023-06-01' }
  await ask(keyed.url, { path: '/v1/messages', body: MESSAGES, headers }).answer
  t.match(upstream.requests[0]?.headers, { 'x-api-key': 'UPSTREAM-KEY', 'anthropic-version': '2023-06-01' })
})

t.test('what goes on from a response finds the replica that keeps it', async t => {
  const answers = ({ body }: { body: Buffer }, id: string): Step[] =>
    body.includes('"stream":true')
      ? responseStream(id)
      : [WHOLE(200, JSON.stringify({ id, status: 'completed' }))]
  let made = 0
  const a = await startUpstream(t, request => answers(request, `resp_a${made++}`))
  const b = await startUpstream(t, request => answers(request, `resp_b${made++}`))
  const weir = await startTestWeir(t, configData([a.url, b.url], { classes: { chat: CHAT } }))
  for (const stream of [true, false]) {
    for (let round = 0; round < 4; round++) {
      const first = await ask(weir.url, {
        path: '/v1/responses',
        body: JSON.stringify({ model: 'm', stream, input: 'x' }),
      }).answer
      const id = /resp_[ab]\d+/.exec(first.text)?.[0] ?? ''
      const keeper = id.startsWith('resp_a') ? a : b
      const before = [a.requests.length, b.requests.length]
      for (let turn = 0; turn < 3; turn++) {
        const body = JSON.stringify({ model: 'm', stream, input: 'y', previous_response_id: id })
        t.equal((await ask(weir.url, { path: '/v1/responses', body }).answer).status, 200)
      }
      const got = [a.requests.length - before[0]!, b.requests.length - before[1]!]
      t.same(got, keeper === a ? [3, 0] : [0, 3], `all three turns of ${id} go to its replica`)
    }
  }
  await weir.atRest()
})

t.test('a member that the pool refuses is a 400, and its priority stands in for the client’s', async t => {
  const upstream = await startUpstream(t, () => responseStream('r'))
  const classes = { chat: { ...CHAT, priority: 0 }, agent: { ...AGENT, priority: 7 } }
  const routes = [{ when: { header: { 'x-weir-class': 'agent' } }, class: 'agent' }, { class: 'chat' }]
  const weir = await startTestWeir(
    t,
    configData(
      [upstream.url],
      { classes, routes },
      { refuse_members: ['kv_transfer_params'], send_priority: true },
    ),
  )
  const path = '/v1/responses'
  const refused = await ask(weir.url, {
    path,
    body: '{"model":"m","kv_transfer_params":{"a":1},"input":"x"}',
  }).answer
  t.equal(refused.status, 400)
  t.match(JSON.parse(refused.text).error.message, /takes no "kv_transfer_params" in a body/)
  t.equal(upstream.requests.length, 0)

  const headers = { 'x-weir-class': 'agent' }
  await ask(weir.url, { path, headers, body: '{"priority": -99 ,"model":"m","stream":true}' }).answer
  t.equal(upstream.requests[0]?.body.toString(), '{"priority": 7 ,"model":"m","stream":true}')
  await ask(weir.url, { path, body: '{"model":"m","stream":true }' }).answer
  t.equal(upstream.requests[1]?.body.toString(), '{"model":"m","stream":true ,"priority":0}')
  t.equal(await weir.metric('weir_body_members_total', { action: 'refused' }), 1)
  t.equal(await weir.metric('weir_body_members_total', { action: 'replaced' }), 2)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_error' }), 1)
  await weir.atRest()
})

t.test('a response is read, cancelled and deleted at the replica that keeps it', async t => {
  const answers = ({ method, body }: { method: string; body: Buffer }, id: string): Step[] =>
    method === 'POST' && body.length > 0
      ? [WHOLE(200, JSON.stringify({ id, status: 'queued' }))]
      : [WHOLE(200, JSON.stringify({ from: id }))]
  const a = await startUpstream(t, request => answers(request, 'resp_a'))
  const b = await startUpstream(t, request => answers(request, 'resp_b'))
  const weir = await startTestWeir(t, configData([a.url, b.url]))
  const body = JSON.stringify({ model: 'm', input: 'x', background: true })
  const made = new Set<string>()
  while (made.size < 2)
    made.add(JSON.parse((await ask(weir.url, { path: '/v1/responses', body }).answer).text).id)
  for (const [id, keeper] of [
    ['resp_a', a],
    ['resp_b', b],
  ] as const) {
    for (const [method, path] of [
      ['GET', `/v1/responses/${id}`],
      ['GET', `/v1/responses/${id}/input_items?limit=2`],
      ['POST', `/v1/responses/${id}/cancel`],
      ['DELETE', `/v1/responses/${id}`],
    ] as const) {
      const { status, text } = await ask(weir.url, { method, path, body: '' }).answer
      t.match({ status, text }, { status: 200, text: `{"from":"${id}"}` }, `${method} ${path}`)
      t.match(keeper.requests.at(-1), { method, path })
    }
  }
  const unknown = await ask(weir.url, { method: 'GET', path: '/v1/responses/resp_c', body: '' }).answer
  t.equal(unknown.status, 404)
  t.match(JSON.parse(unknown.text).error, { code: 'weir_unknown_route', message: /no replica that keeps/ })
  await weir.atRest()
})
