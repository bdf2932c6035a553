import { fork } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import { fileURLToPath } from 'node:url'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { type EngineServerOptions, startEngine } from '../../src/sim/server.js'

async function engine(t: Test, options: EngineServerOptions = {}): Promise<string> {
  const server = await startEngine(options)
  t.teardown(() => server.close())
  return server.url
}

interface Whole {
  readonly choices: readonly {
    readonly message: { readonly content: string; readonly reasoning_content: string | null }
  }[]
  readonly usage: {
    readonly completion_tokens: number
    readonly prompt_tokens_details: { readonly cached_tokens: number }
  }
}

const json = async (response: Response): Promise<Whole> => (await response.json()) as Whole

interface Ask {
  readonly body?: Record<string, unknown>
  readonly headers?: Record<string, string>
  readonly path?: string
  readonly signal?: AbortSignal
}

function ask(url: string, { body = {}, headers = {}, path = '/v1/chat/completions', signal }: Ask = {}) {
  const prompt = path.includes('chat')
    ? { messages: [{ role: 'user', content: 'What is a p90?' }] }
    : { prompt: 'p90' }
  return fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ ...prompt, ...body }),
    ...(signal === undefined ? {} : { signal }),
  })
}

interface Chunk {
  readonly id: string
  readonly object: string
  readonly model: string
  readonly choices: readonly {
    readonly text?: string
    readonly delta?: {
      readonly role?: string
      readonly content?: string
      readonly reasoning_content?: string
    }
    readonly finish_reason: string | null
  }[]
  readonly usage?: Record<string, unknown> | null
  readonly error?: { readonly message: string; readonly code: number }
}

/** The data of each event; the last may be `[DONE]`. */
const events = (stream: string): string[] =>
  stream
    .split('\n\n')
    .filter(event => event !== '')
    .map(event => (event.split('\n').find(line => line.startsWith('data: ')) ?? '').slice('data: '.length))

const chunks = (stream: string): Chunk[] =>
  events(stream)
    .filter(data => data !== '[DONE]')
    .map(data => JSON.parse(data) as Chunk)

const tokens = (list: readonly Chunk[]): string[] =>
  list
    .map(chunk => chunk.choices[0]?.delta?.content ?? chunk.choices[0]?.text ?? '')
    .filter(part => part !== '')

async function metric(url: string, name: string): Promise<number> {
  const scrape = await (await fetch(`${url}/metrics`)).text()
  const line = scrape.split('\n').find(each => each.startsWith(name))
  return Number(line?.slice(line.lastIndexOf(' ')))
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise(resolve => setTimeout(resolve, 20))
}

const of = (count: number, more: Record<string, string> = {}): Record<string, string> => ({
  'x-engine-output-tokens': String(count),
  ...more,
})

t.test('a chat answer streams: role, tokens, finish, usage, [DONE]', async t => {
  const url = await engine(t)
  const response = await ask(url, {
    body: { stream: true, stream_options: { include_usage: true } },
    headers: of(7),
  })
  t.equal(response.headers.get('content-type'), 'text/event-stream; charset=utf-8')
  const stream = await response.text()
  const list = chunks(stream)
  t.equal(events(stream).at(-1), '[DONE]')
  t.same(list[0]?.choices[0]?.delta, { role: 'assistant', content: '' })
  t.equal(tokens(list).length, 7)
  t.ok(tokens(list).every(token => Buffer.byteLength(token) === 4))
  t.same(
    list.map(chunk => chunk.choices[0]?.finish_reason),
    [...new Array(8).fill(null), 'stop', undefined],
  )
  t.same(list.at(-1)?.usage, {
    prompt_tokens: 4,
    completion_tokens: 7,
    total_tokens: 11,
    prompt_tokens_details: { cached_tokens: 0 },
  })
  t.ok(list.slice(0, -1).every(chunk => chunk.usage === null))
  t.ok(list.every(chunk => chunk.object === 'chat.completion.chunk' && chunk.model === 'llama3-8b'))
  t.equal(new Set(list.map(chunk => chunk.id)).size, 1)
})

t.test('without include_usage no event has a usage, and completions stream text', async t => {
  const url = await engine(t)
  const path = '/v1/completions'
  const list = chunks(
    await (await ask(url, { path, body: { stream: true, max_tokens: 3 }, headers: of(9) })).text(),
  )
  t.equal(tokens(list).length, 3)
  t.equal(list.at(-1)?.choices[0]?.finish_reason, 'length')
  t.ok(list.every(chunk => chunk.object === 'text_completion' && !('usage' in chunk)))
})

t.test('an answer that is not streamed comes whole, with its usage', async t => {
  const url = await engine(t, { model: 'mine' })
  const capped = { body: { model: 'mine', max_completion_tokens: 5 }, headers: of(50) }
  const chat = await json(await ask(url, capped))
  t.match(chat, {
    object: 'chat.completion',
    model: 'mine',
    choices: [{ index: 0, message: { role: 'assistant', reasoning_content: null }, finish_reason: 'length' }],
    usage: { prompt_tokens: 4, completion_tokens: 5, total_tokens: 9 },
  })
  t.equal(chat.choices[0]?.message.content.length, 20)
  const legacy = await (await ask(url, { path: '/v1/completions', headers: of(2) })).json()
  t.match(legacy, {
    object: 'text_completion',
    choices: [{ finish_reason: 'stop' }],
    usage: { completion_tokens: 2 },
  })
  const integers = await ask(url, { path: '/v1/completions', body: { prompt: [5, 6, 7] }, headers: of(1) })
  t.match(await integers.json(), { usage: { prompt_tokens: 3 } })
})

t.test('answer lengths are drawn from the seed, and a header sets them', async t => {
  const lengths = async (seed: number): Promise<number[]> => {
    const url = await engine(t, { seed, outputTokens: { median: 8, sigma: 0.8, min: 1, max: 20 } })
    const found = []
    for (let i = 0; i < 4; i++) found.push((await json(await ask(url))).usage.completion_tokens)
    return found
  }
  const [first, again, other] = [await lengths(1), await lengths(1), await lengths(2)]
  t.same(first, again)
  t.notSame(first, other)
})

t.test('the openai SDK reads it: streamed, whole, a tool call, and an error', async t => {
  const client = new OpenAI({ baseURL: `${await engine(t)}/v1`, apiKey: 'none', maxRetries: 0 })
  const call = { model: 'llama3-8b', messages: [{ role: 'user' as const, content: 'hello' }] }
  const whole = await client.chat.completions.create({ ...call, max_tokens: 3 })
  t.equal(whole.usage?.completion_tokens, 3)
  let streamed = 0
  for await (const chunk of await client.chat.completions.create({ ...call, max_tokens: 4, stream: true })) {
    if (chunk.choices[0]?.delta.content) streamed++
  }
  t.equal(streamed, 4)
  const tools = [{ type: 'function' as const, function: { name: 'search', parameters: { type: 'object' } } }]
  const asked = { ...call, tools, tool_choice: 'required' as const, max_tokens: 6 }
  const message = (await client.chat.completions.create(asked)).choices[0]?.message
  const tool = message?.tool_calls?.[0]
  if (tool?.type !== 'function') throw new Error('no function was called')
  t.equal(tool.function.name, 'search')
  t.equal(typeof JSON.parse(tool.function.arguments).text, 'string')
  const stream = client.chat.completions.stream(asked)
  const final = await stream.finalChatCompletion()
  t.equal(final.choices[0]?.finish_reason, 'tool_calls')
  t.equal(final.choices[0]?.message.tool_calls?.[0]?.function.name, 'search')
  await t.rejects(client.chat.completions.create({ ...call, model: 'other' }), {
    status: 404,
    message: '404 The model `other` does not exist.',
  })
})

t.test('what is no request is refused in the shape of the API', async t => {
  const url = await engine(t)
  const refused = async (body: string, headers: Record<string, string> = {}): Promise<unknown> => {
    const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', body, headers })
    return [response.status, ((await response.json()) as Chunk).error?.message]
  }
  const good = '{"messages":[{"role":"user","content":"hi"}]'
  t.same(await refused('{'), [400, 'the body is not JSON'])
  t.same(await refused('[]'), [400, 'the body is not an object'])
  t.same(await refused('{"messages":[]}'), [400, 'messages: a list with one message at least'])
  t.same(await refused(`${good},"max_tokens":0}`), [400, 'max_tokens must be at least 1'])
  t.same(await refused(`${good},"n":2}`), [400, 'n: only 1 choice'])
  t.match(await refused(`${good},"max_tokens":200000}`), [400, /maximum context length is 131072 tokens/])
  t.match(await refused(`${good},"stream_options":{}}`), [400, /Stream options can only be defined/])
  t.match(await refused(`${good}}`, { 'x-engine-fault': 'explode' }), [
    400,
    /no fault "explode"; there are html/,
  ])
  t.match(await refused(`${good}}`, { 'x-engine-output-tokens': '1.5' }), [
    400,
    /a whole number from 1, not "1.5"/,
  ])
  t.equal((await fetch(`${url}/v2`)).status, 404)
})

t.test('models, health and metrics answer under their vLLM names', async t => {
  const url = await engine(t, { model: 'm' })
  t.match(await (await fetch(`${url}/v1/models`)).json(), {
    object: 'list',
    data: [{ id: 'm', object: 'model', max_model_len: 131072 }],
  })
  t.equal((await fetch(`${url}/health`)).status, 200)
  await (await ask(url, { headers: of(5) })).text()
  await (await ask(url, { headers: of(9), body: { max_tokens: 6 } })).text()
  const response = await fetch(`${url}/metrics`)
  t.match(response.headers.get('content-type'), /^text\/plain; version=0\.0\.4/)
  const lines = (await response.text()).split('\n')
  for (const line of [
    '# TYPE vllm:num_requests_running gauge',
    'vllm:num_requests_running{engine="0",model_name="m"} 0',
    'vllm:num_requests_waiting{engine="0",model_name="m"} 0',
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0',
    'vllm:num_preemptions_total{engine="0",model_name="m"} 0',
    'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 8',
    'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0',
    'vllm:prompt_tokens_total{engine="0",model_name="m"} 8',
    'vllm:generation_tokens_total{engine="0",model_name="m"} 11',
    'vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 1',
    'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 1',
    'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 2',
    'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="0.005"} 0',
    'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="0.1"} 2',
    'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 2',
    'vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 9',
    'vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 2',
    'vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 2',
    'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="28125"} 1',
  ]) {
    t.ok(lines.includes(line), line)
  }
})

t.test('a prompt seen before is found in the prefix cache, by its text', async t => {
  const url = await engine(t)
  const usage = async (content: string): Promise<number> => {
    const response = await ask(url, { body: { messages: [{ role: 'user', content }] }, headers: of(1) })
    return (await json(response)).usage.prompt_tokens_details.cached_tokens
  }
  const base = 'a system prompt that all requests share. '.repeat(20)
  t.equal(await usage(base), 0)
  t.equal(await usage(base), Math.floor((base.length / 4 - 1) / 16) * 16)
  t.equal(await usage(`${base.slice(0, 320)}and then something else, long enough for blocks of its own`), 80)
  t.equal(await usage(`Another start. ${base}`), 0)
  t.ok((await metric(url, 'vllm:prefix_cache_hits_total')) > 80)
})

t.test('a client that leaves frees its sequence at once, before and after its first token', async t => {
  const url = await engine(t)
  const leave = new AbortController()
  const streaming = await ask(url, { body: { stream: true }, headers: of(5000), signal: leave.signal })
  const reader = streaming.body?.getReader()
  await reader?.read()
  const whole = ask(url, { headers: of(5000), signal: leave.signal })
  await until(async () => (await metric(url, 'vllm:num_requests_running')) === 2)
  t.ok((await metric(url, 'vllm:kv_cache_usage_perc')) > 0)
  leave.abort()
  await t.rejects(whole, { name: 'AbortError' })
  await until(async () => (await metric(url, 'vllm:num_requests_running')) === 0)
  t.equal(await metric(url, 'vllm:kv_cache_usage_perc'), 0)
  const aborted = 'vllm:request_success_total{engine="0",model_name="llama3-8b",finished_reason="abort"}'
  t.equal(await metric(url, aborted), 2)
})

t.test('events carry as many tokens as the option or the header says', async t => {
  const url = await engine(t, { tokensPerEvent: 3 })
  const perEvent = async (headers: Record<string, string>): Promise<number[]> => {
    const stream = await (await ask(url, { body: { stream: true }, headers })).text()
    return tokens(chunks(stream)).map(part => part.length / 4)
  }
  t.same(await perEvent(of(9)), [1, 3, 3, 2])
  t.same(await perEvent(of(9, { 'x-engine-tokens-per-event': '8' })), [1, 8])
})

t.test('the first tokens may be reasoning', async t => {
  const url = await engine(t)
  const headers = of(5, { 'x-engine-reasoning-tokens': '2' })
  const list = chunks(await (await ask(url, { body: { stream: true }, headers })).text())
  t.equal(list.filter(chunk => chunk.choices[0]?.delta?.reasoning_content).length, 2)
  t.equal(tokens(list).length, 3)
  const whole = (await json(await ask(url, { headers }))).choices[0]?.message
  t.same([whole?.reasoning_content?.length, whole?.content.length], [8, 12])
})

t.test('stamps come only when asked for, on the machine-wide monotonic clock', async t => {
  const url = await engine(t)
  const before = Number(process.hrtime.bigint()) / 1e6
  const stamped = await (
    await ask(url, { body: { stream: true }, headers: of(20, { 'x-engine-stamps': '1' }) })
  ).text()
  const stamps = [...stamped.matchAll(/^: t=([\d.]+)$/gm)].map(match => Number(match[1]))
  t.equal(stamps.length, 22)
  t.ok((stamps[0] ?? 0) > before && (stamps.at(-1) ?? 0) < Number(process.hrtime.bigint()) / 1e6)
  t.ok((stamps.at(-1) ?? 0) - (stamps[0] ?? 0) > 19 * 5, 'nineteen decodes of about 7 ms')
  const plain = await (await ask(url, { body: { stream: true }, headers: of(3) })).text()
  t.notMatch(plain, /: t=/)
})

t.test('a late timer costs no throughput', async t => {
  const url = await engine(t)
  const began = performance.now()
  const answer = await ask(url, { body: { stream: true }, headers: of(200) })
  const blocked = performance.now()
  while (performance.now() < blocked + 700);
  await answer.text()
  const took = performance.now() - began
  // A decode step of one short sequence takes 7.1 ms, 200 of them 1.42 s.
  t.ok(took > 199 * 7.1 && took < 199 * 7.1 + 500, `${took} ms for 200 tokens, 700 ms of them blocked`)
})

t.test('faults before the head', async t => {
  const url = await engine(t)
  const fault = (name: string, body: Record<string, unknown> = {}): Promise<Response> =>
    ask(url, { body, headers: of(5, { 'x-engine-fault': name }) })

  const refused = await fault('status=503')
  t.equal(refused.status, 503)
  t.match(await refused.json(), { error: { code: 503, message: 'status 503, as asked for' } })
  t.equal((await fault('status=429')).status, 429)

  const html = await fault('html', { stream: true })
  t.same([html.status, html.headers.get('content-type')], [200, 'text/html'])
  await html.text()

  const usage = await fault('refuse-usage', { stream: true, stream_options: { include_usage: true } })
  t.equal(usage.status, 400)
  t.match(await usage.json(), { error: { message: 'stream_options: unknown member' } })
  t.equal(tokens(chunks(await (await fault('refuse-usage', { stream: true })).text())).length, 5)

  const began = performance.now()
  const slow = await fault('slow-head=200', { stream: true })
  t.ok(performance.now() - began > 190)
  t.equal(tokens(chunks(await slow.text())).length, 5)

  const signal = AbortSignal.timeout(300)
  await t.rejects(ask(url, { headers: of(5, { 'x-engine-fault': 'hang' }), signal }), {
    name: 'TimeoutError',
  })
  t.equal(await metric(url, 'vllm:num_requests_running'), 0)
})

/** Bytes of a raw request's answer until the other side ends or resets, and how it did. */
async function raw(url: string, fault: string, stream = true): Promise<{ bytes: string; ended: string }> {
  const { hostname, port } = new URL(url)
  const socket = connect(Number(port), hostname)
  const body = JSON.stringify({ stream, messages: [{ role: 'user', content: 'hi' }] })
  const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n`
  socket.write(`${head}x-engine-output-tokens: 9\r\nx-engine-fault: ${fault}\r\n\r\n${body}`)
  let bytes = ''
  socket.setEncoding('latin1').on('data', part => {
    bytes += part
  })
  const ended = await new Promise<string>(resolve => {
    socket.once('end', () => resolve('FIN'))
    socket.once('error', error => resolve((error as NodeJS.ErrnoException).code ?? error.message))
  })
  socket.destroy()
  return { bytes, ended }
}

t.test('faults inside the answer', async t => {
  const url = await engine(t)
  const sent = (bytes: string): number => bytes.split('"content":" ').length - 1

  const cut = await raw(url, 'cut=3')
  t.same([cut.ended, sent(cut.bytes), cut.bytes.includes('\r\n0\r\n\r\n')], ['FIN', 3, false])
  const cutAtOnce = await raw(url, 'cut=0')
  t.same([cutAtOnce.ended, sent(cutAtOnce.bytes)], ['FIN', 0])
  t.match(cutAtOnce.bytes, /^HTTP\/1.1 200 OK\r\n/)
  const cutAtEnd = await raw(url, 'cut=9')
  t.same([cutAtEnd.ended, sent(cutAtEnd.bytes), cutAtEnd.bytes.includes('"stop"')], ['FIN', 9, false])
  t.match(await raw(url, 'cut=3', false), {
    ended: 'FIN',
    bytes: /content-length: 1000\r\n.*\r\n\r\n\{"id":$/s,
  })

  const reset = await raw(url, 'reset=3')
  t.same([reset.ended, sent(reset.bytes)], ['ECONNRESET', 3])
  t.match(await raw(url, 'reset=3', false), { ended: 'ECONNRESET' })

  const fault = (name: string, body: Record<string, unknown> = { stream: true }): Promise<Response> =>
    ask(url, { body, headers: of(5, { 'x-engine-fault': name }) })
  const error = await (await fault('error=2')).text()
  t.equal(tokens(chunks(error).slice(0, -1)).length, 2)
  t.match(chunks(error).at(-1), { error: { code: 500, message: 'the engine failed, as it was asked to' } })
  t.equal(events(error).at(-1), '[DONE]')
  const whole = await fault('error=2', {})
  t.equal(whole.status, 500)
  await whole.text()

  const undone = await (await fault('no-done')).text()
  t.equal(tokens(chunks(undone)).length, 5)
  t.notMatch(undone, /\[DONE\]/)
  const asked = { stream: true, stream_options: { include_usage: true } }
  const unused = chunks(await (await fault('no-usage', asked)).text())
  t.equal(unused.at(-1)?.choices[0]?.finish_reason, 'stop')
  t.notOk('usage' in (await json(await fault('no-usage', {}))))

  const failed = 'vllm:request_success_total{engine="0",model_name="llama3-8b",finished_reason="error"}'
  t.equal(await metric(url, failed), 8)
  t.equal(await metric(url, 'vllm:num_requests_running'), 0)
})

t.test('a stalled stream holds its connection and frees its sequence when the client goes', async t => {
  const url = await engine(t)
  const leave = new AbortController()
  const headers = of(20_000, { 'x-engine-fault': 'stall=2' })
  const response = await ask(url, { body: { stream: true }, headers, signal: leave.signal })
  let seen = ''
  const reading = (async () => {
    for await (const part of response.body ?? []) seen += Buffer.from(part).toString()
  })()
  await until(async () => (await metric(url, 'vllm:generation_tokens_total')) > 15)
  t.equal(tokens(chunks(seen)).length, 2)
  leave.abort()
  await t.rejects(reading, { name: 'AbortError' })
  await until(async () => (await metric(url, 'vllm:num_requests_running')) === 0)
  t.ok((await metric(url, 'vllm:generation_tokens_total')) < 20_000)
})

t.test(
  'an engine process tells its address, and goes on SIGTERM, SIGINT or when its parent leaves',
  async t => {
    const entry = fileURLToPath(new URL('../../src/sim/process.ts', import.meta.url))
    const start = async () => {
      const child = fork(entry, [JSON.stringify({ profile: 'qwen3-32b' })])
      const [message] = (await once(child, 'message')) as [{ url: string }]
      return { child, url: message.url }
    }
    const ends = (['SIGTERM', 'SIGINT', 'disconnect'] as const).map(async leave => {
      const { child, url } = await start()
      t.match(await json(await fetch(`${url}/v1/models`)), { data: [{ id: 'qwen3-32b' }] })
      if (leave === 'SIGTERM') ask(url, { headers: of(5000) }).catch(() => {})
      if (leave === 'disconnect') child.disconnect()
      else child.kill(leave)
      t.same([leave, ...(await once(child, 'exit'))], [leave, 0, null])
    })
    await Promise.all(ends)
  },
)
