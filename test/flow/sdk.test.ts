/** The official openai SDK against Weir over the simulated engine: it notices nothing, and its errors are its own. */
import OpenAI from 'openai'
import t from 'tap'
import { startEngine } from '../../src/sim/server.js'
import { LAX } from '../fixtures/before.js'
import { DONE, FIN, ROLE, TOK } from '../fixtures/events.js'
import { deadPort, HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { AGENT, configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

type Test = Parameters<typeof startUpstream>[0]

const KEY = 'client-key-aaaaaaaa'
const messages = [{ role: 'user' as const, content: 'Say hello.' }]
const TOKENS = { 'x-engine-output-tokens': '8' }
const WEATHER = {
  type: 'function' as const,
  function: { name: 'weather', parameters: { type: 'object', properties: { text: { type: 'string' } } } },
}

const clientOf = (weir: TestWeir, maxRetries = 0, apiKey = KEY): OpenAI =>
  new OpenAI({ baseURL: `${weir.url}/v1`, apiKey, maxRetries })

/** What the SDK throws. */
async function failure(asked: Promise<unknown>): Promise<InstanceType<typeof OpenAI.APIError>> {
  try {
    await asked
  } catch (error) {
    if (error instanceof OpenAI.APIError) return error
    throw error
  }
  throw new Error('it did not fail')
}

async function start(t: Test & { testdir: typeof import('tap')['t']['testdir'] }) {
  const engine = await startEngine({ model: 'm' })
  t.teardown(() => engine.close())
  const folder = t.testdir({ 'keys.yaml': `keys:\n  - { label: team-a, key: ${KEY}, classes: [chat] }\n` })
  const weir = await startTestWeir(
    t,
    configData([engine.url], {
      auth: { keys: `${folder}/keys.yaml` },
      limits: { body: '1MiB' },
      classes: { chat: LAX, agent: AGENT },
      routes: [{ class: 'chat' }],
    }),
  )
  const gauge = async (name: string, label = ''): Promise<number> => {
    const lines = (await (await fetch(`${engine.url}/metrics`)).text()).split('\n')
    return Number(lines.find(line => line.startsWith(`${name}{`) && line.includes(label))?.split(' ')[1])
  }
  return { weir, client: clientOf(weir), gauge }
}

t.test('a streamed chat has its tokens in order, and no usage that nobody asked for', async t => {
  const { weir, client } = await start(t)
  const stream = await client.chat.completions.create(
    { model: 'm', messages, stream: true },
    { headers: TOKENS },
  )
  let text = ''
  const finishes: (string | null | undefined)[] = []
  for await (const chunk of stream) {
    t.equal(chunk.choices.length, 1, 'no event without a choice')
    t.notOk(chunk.usage)
    text += chunk.choices[0]?.delta.content ?? ''
    finishes.push(chunk.choices[0]?.finish_reason)
  }
  t.equal(text.length, 8 * 4, 'eight words')
  t.same(finishes.filter(Boolean), ['stop'])
  const [line] = await weir.requestLogs(1)
  t.match(line, { verdict: 'good', outputTokens: 8, estimated: undefined, key: 'team-a', class: 'chat' })
  t.equal(
    await weir.metric('weir_tokens_total', { kind: 'output' }),
    8,
    'told by the usage that Weir asked for',
  )
  await weir.atRest()
})

t.test('usage is there for those who ask', async t => {
  const { weir, client } = await start(t)
  const stream = await client.chat.completions.create(
    { model: 'm', messages, stream: true, stream_options: { include_usage: true } },
    { headers: TOKENS },
  )
  const usages = []
  for await (const chunk of stream) if (chunk.usage) usages.push([chunk.choices.length, chunk.usage])
  t.match(usages, [[0, { completion_tokens: 8, prompt_tokens: 3 }]], 'once, in the last event')
  await weir.atRest()
})

t.test('a chat that is not streamed, the older completions, and the list of models', async t => {
  const { weir, client } = await start(t)
  const chat = await client.chat.completions
    .create({ model: 'm', messages }, { headers: TOKENS })
    .withResponse()
  t.equal(chat.data.choices[0]?.message.content?.length, 32)
  t.equal(chat.data.usage?.completion_tokens, 8)
  t.equal(chat.request_id, chat.response.headers.get('x-request-id'))
  t.equal(chat.response.headers.get('x-weir-decision'), 'home')
  const plain = await client.completions.create({ model: 'm', prompt: 'Hello' }, { headers: TOKENS })
  t.equal(plain.choices[0]?.text.length, 32)
  let text = ''
  for await (const part of await client.completions.create(
    { model: 'm', prompt: 'Hello', stream: true },
    { headers: TOKENS },
  )) {
    text += part.choices[0]?.text ?? ''
  }
  t.equal(text.length, 32)
  t.same(
    (await client.models.list()).data.map(({ id }) => id),
    ['m'],
  )
  t.equal((await client.models.retrieve('m')).id, 'm')
  await weir.atRest()
})

t.test('tools: the call comes whole, streamed and not, and its first delta counts as output', async t => {
  const { weir, client } = await start(t)
  const request = { model: 'm', messages, tools: [WEATHER], tool_choice: 'required' as const }
  const whole = await client.chat.completions.create(request, { headers: TOKENS })
  const streamed = await client.chat.completions.stream(request, { headers: TOKENS }).finalChatCompletion()
  for (const answer of [whole, streamed]) {
    const [choice] = answer.choices
    t.equal(choice?.finish_reason, 'tool_calls')
    const [call] = choice?.message.tool_calls ?? []
    if (call?.type !== 'function') return t.fail('no call')
    t.equal(call.function.name, 'weather')
    t.match(JSON.parse(call.function.arguments), { text: /^( \w{3})+$/ })
  }
  const lines = await weir.requestLogs(2)
  t.match(lines[1], { verdict: 'good', outputTokens: 8 })
  t.ok(Number(lines[1]?.['ttftMs']) > 0)
  await weir.atRest()
})

t.test('reasoning is output too, and parsed helpers work', async t => {
  const { weir, client } = await start(t)
  const stream = await client.chat.completions.create(
    { model: 'm', messages, stream: true },
    { headers: { ...TOKENS, 'x-engine-reasoning-tokens': '6' } },
  )
  let thought = ''
  for await (const { choices } of stream) {
    const delta = choices[0]?.delta as { readonly reasoning_content?: string } | undefined
    thought += delta?.reasoning_content ?? ''
  }
  t.equal(thought.length, 24)
  t.match(await weir.requestLogs(1), [{ verdict: 'good', outputTokens: 8 }])
  await weir.atRest()
})

t.test('an abort in mid-stream frees the sequence in the engine', async t => {
  const { weir, client, gauge } = await start(t)
  const stream = await client.chat.completions.create(
    { model: 'm', messages, stream: true },
    { headers: { 'x-engine-output-tokens': '5000' } },
  )
  let chunks = 0
  for await (const _ of stream) if (++chunks === 3) stream.controller.abort()
  await weir.until('it runs no more', async () => (await gauge('vllm:num_requests_running')) === 0)
  t.equal(await gauge('vllm:request_success_total', 'finished_reason="abort"'), 1)
  t.match(await weir.requestLogs(1), [{ ending: 'clientLeft' }])
  // One that waits for its head.
  const waiting = new AbortController()
  const asked = client.chat.completions.create(
    { model: 'm', messages },
    { headers: { 'x-engine-output-tokens': '5000' }, signal: waiting.signal },
  )
  await weir.until('it runs', async () => (await gauge('vllm:num_requests_running')) === 1)
  waiting.abort()
  t.ok((await failure(asked)) instanceof OpenAI.APIUserAbortError)
  await weir.until('it runs no more', async () => (await gauge('vllm:num_requests_running')) === 0)
  await weir.atRest()
})

t.test('each error is of the class that the SDK has for it, with a code and a sentence', async t => {
  const { weir, client } = await start(t)
  const chat = (over: object, headers: Record<string, string> = {}) =>
    client.chat.completions.create({ model: 'm', messages, ...over }, { headers })
  const wrongKey = clientOf(weir, 0, 'wrong-key-aaaaaaaa')
  const cases: readonly (readonly [() => Promise<unknown>, new (...args: never[]) => Error, object])[] = [
    [
      () => chat({ model: 'gpt-9' }),
      OpenAI.NotFoundError,
      { status: 404, code: 'weir_unknown_route', message: /one of: m/ },
    ],
    [
      () => chat({ stream: 'yes' }),
      OpenAI.BadRequestError,
      { code: 'weir_bad_request', type: 'invalid_request_error' },
    ],
    [() => chat({ max_tokens: 1e9 }), OpenAI.BadRequestError, { message: /maximum context length/ }],
    [() => chat({ user: 'x'.repeat(8 << 20) }), OpenAI.APIError, { status: 413, code: 'weir_too_large' }],
    [
      () => chat({}, { 'x-weir-class': 'agent' }),
      OpenAI.AuthenticationError,
      { message: /may ask for: chat/ },
    ],
    [() => wrongKey.models.list(), OpenAI.AuthenticationError, { status: 401, code: 'weir_unauthorized' }],
    [
      () => client.embeddings.create({ model: 'm', input: 'x' }),
      OpenAI.NotFoundError,
      { message: /pools.NAME.allow: \[embeddings\]/ },
    ],
    [
      () => chat({ stream: true }, { 'x-engine-fault': 'status=500' }),
      OpenAI.InternalServerError,
      { status: 502, code: 'weir_upstream_error' },
    ],
  ]
  for (const [asked, kind, shape] of cases) {
    const error = await failure(asked())
    t.ok(error instanceof kind, error.message)
    t.match(error, shape)
    t.ok(error.requestID, 'with the id to look for in the log')
  }
  await weir.atRest()
})

t.test('overload, broken streams and error events reach the caller as errors, never as an end', async t => {
  const scripts: Record<string, readonly Step[]> = {
    holds: [HDR, ROLE, TOK('a'), 'HOLD'],
    cut: [HDR, ROLE, TOK('a'), 'CUT'],
    event: [
      HDR,
      ROLE,
      TOK('a'),
      'data: {"error":{"message":"engine failed","code":"boom"}}\n\n',
      DONE,
      'EOF',
    ],
    busy: [WHOLE(429, '{"error":{"message":"full","code":"own"}}')],
    good: [HDR, ROLE, TOK('a'), FIN, DONE, 'EOF'],
  }
  const upstream = await startUpstream(t, ({ body }) => scripts[JSON.parse(body.toString()).user] ?? ['RST'])
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: { chat: LAX } }, { max_in_flight: 1 }),
  )
  const client = clientOf(weir)
  const stream = (user: string) =>
    client.chat.completions.create({ model: 'm', messages, stream: true, user })
  const read = async (user: string): Promise<string> => {
    let text = ''
    for await (const { choices } of await stream(user)) text += choices[0]?.delta.content ?? ''
    return text
  }
  t.equal(await read('good'), 'a')
  t.match(await failure(read('cut')), { code: 'weir_upstream_truncated' })
  t.match(await failure(read('event')), { code: 'boom', message: /engine failed/ })
  await weir.atRest()
  const busy = await failure(read('busy'))
  t.ok(busy instanceof OpenAI.RateLimitError)
  t.equal(busy.code, 'own')
  t.match(await failure(read('reset')), { status: 502, code: 'weir_upstream_error' })
  const holds = await stream('holds')
  t.match(await failure(read('good')), { status: 503, code: 'weir_no_headroom', type: 'overloaded_error' })
  holds.controller.abort()
  await weir.until('there is room again', async () => (await weir.metric('weir_in_flight')) === 0)
  t.equal(await read('good'), 'a')
  await weir.atRest()
})

t.test("the SDK's retries heed Weir: they wait as told, and stop where waiting is pointless", async t => {
  let refused = 0
  const upstream = await startUpstream(t, ({ body }) =>
    body.includes('"holds"') ? [HDR, TOK('a'), 'HOLD'] : [WHOLE(200, '{"choices":[]}')],
  )
  const keyless = await startUpstream(t, () => [WHOLE(401, '{}')])
  const weir = await startTestWeir(t, {
    classes: { chat: LAX, keyless: { ...LAX, pools: ['keyless'] }, gone: { ...LAX, pools: ['gone'] } },
    pools: {
      main: { model: 'm', replicas: [upstream.url], max_in_flight: 1 },
      keyless: { model: 'm', replicas: [keyless.url] },
      gone: { model: 'm', replicas: [`http://127.0.0.1:${await deadPort()}`] },
    },
    routes: [{ class: 'chat' }],
  })
  const client = new OpenAI({
    baseURL: `${weir.url}/v1`,
    apiKey: 'x',
    maxRetries: 2,
    fetch: async (url, init) => {
      const response = await fetch(url, init)
      if (response.status === 503) {
        refused++
        holds.controller.abort()
      }
      return response
    },
  })
  const holds = await clientOf(weir).chat.completions.create({
    model: 'm',
    messages,
    stream: true,
    user: 'holds',
  })
  const begin = performance.now()
  await client.chat.completions.create({ model: 'm', messages })
  t.equal(refused, 1)
  t.ok(performance.now() - begin >= 950, 'it waited for the second that Weir asked for')
  const lines = await weir.requestLogs(3)
  t.match(
    lines.find(({ retry }) => retry === 1),
    { status: 200 },
    'the log knows a retry',
  )

  const headers = { 'x-weir-class': 'keyless' }
  const pointless = await failure(client.chat.completions.create({ model: 'm', messages }, { headers }))
  t.equal(pointless.status, 502)
  t.equal(keyless.requests.length, 1, 'x-should-retry: false')
  await weir.atRest()
})
