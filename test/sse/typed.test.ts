/** The streams of the Responses and the Messages API: what their typed events stamp, count and end. */
import t from 'tap'
import { bytesOf, counts, cutAt, DONE, data, type Json, play, summary, textOf } from './streams.js'

/** An event that names its type twice, as both APIs send it. */
const typed = (type: string, members: Json = {}): string => `event: ${type}\n${data({ type, ...members })}`

const response = (status: string, members: Json = {}) => ({
  id: 'resp_1',
  object: 'response',
  status,
  error: null,
  output: [],
  usage: null,
  ...members,
})
const CREATED = typed('response.created', { response: response('in_progress'), sequence_number: 0 })
const delta = (type: string, text: unknown = 'a') =>
  typed(type, { item_id: 'i', output_index: 0, delta: text })
const item = (type: string) =>
  typed('response.output_item.added', { output_index: 0, item: { id: 'i', type } })
const used = {
  input_tokens: 30,
  input_tokens_details: { cached_tokens: 16, cache_write_tokens: 2 },
  output_tokens: 7,
  output_tokens_details: { reasoning_tokens: 3 },
  total_tokens: 37,
}
const COMPLETED = typed('response.completed', {
  response: response('completed', {
    output: [{ id: 'msg_1', type: 'message', content: [{ type: 'output_text', text: 'ab' }] }],
    usage: used,
  }),
})

const message = (members: Json = {}) => ({
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  content: [],
  stop_reason: null,
  ...members,
})
const start = (usage: Json) => typed('message_start', { message: message({ usage }) })
const block = (type: string, members: Json = {}) =>
  typed('content_block_start', { index: 0, content_block: { type, ...members } })
const part = (type: string, members: Json) =>
  typed('content_block_delta', { index: 0, delta: { type, ...members } })
const text = (value: string) => part('text_delta', { text: value })
const stop = (usage: Json, reason: string | null = 'end_turn') =>
  typed('message_delta', { delta: { stop_reason: reason, stop_sequence: null }, usage })
const STOP = typed('message_stop')
const PING = typed('ping')

/** Each event at its own time: 0, 10, 20, and so on. */
const paced = (events: readonly string[]) => events.map((event, i) => [10 * i, event] as const)
const responses = (events: readonly string[]) => play(paced(events), undefined, { shape: 'responses' })
const messages = (events: readonly string[]) => play(paced(events), undefined, { shape: 'messages' })

t.test('responses: the clock starts at the first delta, and ends with the completed response', async t => {
  const events = [
    CREATED,
    typed('response.in_progress', { response: response('in_progress') }),
    item('message'),
    typed('response.content_part.added', { part: { type: 'output_text', text: '' } }),
    delta('response.output_text.delta', ''),
    delta('response.output_text.delta', 'a'),
    delta('response.output_text.delta', 'b'),
    typed('response.output_text.done', { text: 'ab' }),
    COMPLETED,
    DONE,
  ]
  const { meter, sent } = responses(events)
  t.same(summary(meter), {
    firstEvent: 0,
    firstOutput: 50,
    firstVisible: 50,
    lastOutput: 60,
    longestGap: 10,
    marks: 2,
    longestChoiceMarks: 2,
    usage: { promptTokens: 30, completionTokens: 7, cachedTokens: 16, reasoningTokens: 3 },
    responseId: 'resp_1',
    done: true,
    finished: true,
    aborted: false,
    error: undefined,
    unparsed: 0,
    partial: false,
  })
  t.equal(textOf(sent), events.join(''), 'byte for byte')
})

t.test('responses: deltas of every kind are output, but only text and refusal are visible', async t => {
  const kinds = [
    'output_text',
    'refusal',
    'reasoning_text',
    'reasoning_summary_text',
    'function_call_arguments',
    'custom_tool_call_input',
    'mcp_call_arguments',
    'code_interpreter_call_code',
    'audio',
    'audio.transcript',
    'yet_unknown',
  ]
  for (const kind of kinds) {
    const { meter } = responses([CREATED, delta(`response.${kind}.delta`)])
    const visible = kind === 'output_text' || kind === 'refusal' ? 10 : undefined
    t.match(summary(meter), { firstOutput: 10, firstVisible: visible, marks: 1, done: false }, kind)
    const empty = responses([CREATED, delta(`response.${kind}.delta`, '')])
    t.match(summary(empty.meter), { firstOutput: undefined, marks: 0 }, `${kind}, empty`)
  }
})

t.test('responses: the call of a tool is output when it begins, other items are not', async t => {
  for (const type of ['function_call', 'custom_tool_call', 'mcp_call', 'web_search_call', 'computer_call']) {
    const { meter } = responses([CREATED, item(type)])
    t.match(summary(meter), { firstOutput: 10, firstVisible: undefined, marks: 1 }, type)
  }
  for (const type of ['message', 'reasoning', 'function_call_output', 'calls']) {
    t.equal(responses([CREATED, item(type)]).meter.firstOutput, undefined, type)
  }
  const done = typed('response.output_item.done', { item: { type: 'function_call' } })
  t.equal(responses([CREATED, done]).meter.firstOutput, undefined, 'nor is its end')
})

t.test('responses: the order of the members means nothing, nor does the event line', async t => {
  const plain = data({
    delta: 'a',
    response: null,
    sequence_number: 4,
    item: null,
    type: 'response.output_text.delta',
  })
  const last = data({ response: response('completed', { usage: used }), type: 'response.completed' })
  const { meter } = responses([plain, last])
  t.match(summary(meter), { firstVisible: 0, marks: 1, done: true, usage: { completionTokens: 7 } })
})

t.test('responses: an incomplete response is an end, a failed one is an error', async t => {
  const incomplete = typed('response.incomplete', {
    response: response('incomplete', { incomplete_details: { reason: 'max_output_tokens' }, usage: used }),
  })
  t.match(summary(responses([CREATED, delta('response.output_text.delta'), incomplete]).meter), {
    done: true,
    finished: true,
    error: undefined,
    usage: { completionTokens: 7 },
  })
  const errors: [event: string, status: number | undefined][] = [
    [
      typed('response.failed', { response: response('failed', { error: { code: 'server_error' } }) }),
      undefined,
    ],
    [typed('response.failed', { response: response('failed', { error: { code: 503 } }) }), 503],
    [typed('response.failed'), undefined],
    [typed('error', { code: 'server_error', message: 'x', param: null }), undefined],
    [typed('error', { code: '429', message: 'x' }), 429],
    [typed('error', { error: { type: 'too_many_requests', code: 429, message: 'x' } }), 429],
    [data({ type: 'error', error: { code: 'x' } }), undefined],
    [data({ error: { message: 'x', code: 504 } }), 504],
  ]
  for (const [event, status] of errors) {
    const { meter } = responses([CREATED, event])
    const body = event.slice(event.indexOf('data: ') + 6, -2)
    t.match(summary(meter), { done: false, finished: false, firstOutput: undefined }, event)
    t.same(meter.error, { status, body })
  }
  const cancelled = typed('response.completed', { response: response('cancelled') })
  t.match(summary(responses([CREATED, cancelled]).meter), { done: true, aborted: true, error: undefined })
})

t.test('responses: usage counts only when the response is over', async t => {
  const zeros = { input_tokens: 0, output_tokens: 0 }
  const early = typed('response.created', { response: response('in_progress', { usage: zeros }) })
  t.equal(responses([early, delta('response.output_text.delta')]).meter.usage, undefined)
  const bare = typed('response.completed', { response: response('completed', { usage: zeros }) })
  t.same(responses([early, bare]).meter.usage, {
    promptTokens: 0,
    completionTokens: 0,
    cachedTokens: undefined,
    reasoningTokens: undefined,
  })
})

t.test('responses: the id is the first that was told, and a mad one is none', async t => {
  const ids = (...list: unknown[]) =>
    responses(list.map(id => typed('response.created', { response: { id } }))).meter.responseId
  t.equal(ids(null, 7, '', 'resp_a', 'resp_b'), 'resp_a')
  t.equal(ids('r\\"é🙂\n'), 'r\\"é🙂\n', 'escapes are decoded')
  t.equal(ids('r'.repeat(1024)), 'r'.repeat(1024))
  t.equal(ids('r'.repeat(1025)), undefined)
  t.equal(responses([data({ id: 'x', item: { id: 'y' } })]).meter.responseId, undefined)
  const bad = 'data: {"type":"response.created","response":{"id":"resp_1"}\n\n'
  t.match(counts(responses([bad]).meter), { responseId: undefined, unparsed: 1 })
})

t.test('[DONE] ends no typed stream: without its own end the answer was cut', async t => {
  t.match(counts(responses([CREATED, delta('response.output_text.delta'), DONE]).meter), {
    done: false,
    finished: false,
    unparsed: 0,
  })
  t.match(counts(messages([start({}), text('a'), DONE]).meter), { done: false, finished: false, unparsed: 0 })
})

t.test('messages: the clock starts at the first text, and ends with message_stop', async t => {
  const events = [
    start({
      input_tokens: 5,
      cache_read_input_tokens: 20,
      cache_creation_input_tokens: 10,
      output_tokens: 1,
    }),
    block('text', { text: '' }),
    PING,
    text(''),
    text('a'),
    text('b'),
    part('citations_delta', { citation: { cited_text: 'x' } }),
    typed('content_block_stop', { index: 0 }),
    stop({ output_tokens: 9, output_tokens_details: { thinking_tokens: 4 } }),
    STOP,
  ]
  const { meter, sent } = messages(events)
  t.same(summary(meter), {
    firstEvent: 0,
    firstOutput: 40,
    firstVisible: 40,
    lastOutput: 50,
    longestGap: 10,
    marks: 2,
    longestChoiceMarks: 2,
    usage: { promptTokens: 35, completionTokens: 9, cachedTokens: 20, reasoningTokens: 4 },
    responseId: 'msg_1',
    done: true,
    finished: true,
    aborted: false,
    error: undefined,
    unparsed: 0,
    partial: false,
  })
  t.equal(textOf(sent), events.join(''), 'byte for byte')
})

t.test(
  'messages: thinking and the input of tools are output that nobody sees, a signature is none',
  async t => {
    const hidden = [
      part('thinking_delta', { thinking: 'a' }),
      part('input_json_delta', { partial_json: '{' }),
      block('tool_use', { id: 't', name: 'f', input: {} }),
      block('server_tool_use', { id: 't', name: 'web_search', input: {} }),
    ]
    for (const event of hidden) {
      t.match(
        summary(messages([PING, event]).meter),
        { firstOutput: 10, firstVisible: undefined, marks: 1 },
        event,
      )
    }
    const nothing = [
      part('thinking_delta', { thinking: '' }),
      part('input_json_delta', { partial_json: '' }),
      part('signature_delta', { signature: 'EqQB' }),
      block('text', { text: 'a' }),
      block('thinking', { thinking: '' }),
      block('web_search_tool_result', { tool_use_id: 't', content: [] }),
      typed('content_block_stop', { content_block: { type: 'tool_use' } }),
      typed('message_delta', { delta: { text: 'a' } }),
    ]
    for (const event of nothing) t.equal(messages([PING, event]).meter.firstOutput, undefined, event)
  },
)

t.test('messages: usage is the last told of each count, and none before the first message_delta', async t => {
  const head = start({ input_tokens: 12, cache_read_input_tokens: 4, output_tokens: 1 })
  t.equal(messages([head, text('a')]).meter.usage, undefined, 'its 1 is no count of a cut answer')
  const usage = (...deltas: Json[]) => messages([head, ...deltas.map(one => stop(one, null))]).meter.usage
  const told = { promptTokens: 16, completionTokens: 3, cachedTokens: 4, reasoningTokens: undefined }
  t.same(usage({ output_tokens: 3 }), told)
  t.same(usage({ output_tokens: 2 }, { output_tokens: 3 }), told, 'cumulative, not added up')
  t.same(usage({ output_tokens: 3 }, {}), told)
  t.same(usage({ output_tokens: 3, input_tokens: null, cache_read_input_tokens: null }), told)
  t.same(usage({ output_tokens: 3, input_tokens: 10 }), { ...told, promptTokens: 14 }, 'told again')
  t.equal(usage({ input_tokens: 10 }), undefined)
  const cutEvent = 'data: {"type":"message_delta","usage":{"output_tokens":8}\n\n'
  t.equal(messages([head, cutEvent]).meter.usage, undefined, 'an event that is not JSON tells nothing')
  t.same(messages([head, cutEvent, stop({ output_tokens: 3 })]).meter.usage, told)
})

t.test('messages: a stop reason finishes, message_stop is the end', async t => {
  const finished = messages([start({}), text('a'), stop({ output_tokens: 1 }, 'max_tokens')]).meter
  t.match(counts(finished), { finished: true, done: false })
  t.notOk(messages([start({}), text('a'), stop({ output_tokens: 1 }, null)]).meter.finished)
  t.match(counts(messages([start({}), STOP]).meter), { finished: false, done: true, marks: 0 })
})

t.test('messages: an error has the status that its type stands for', async t => {
  const types: [type: string, status: number | undefined][] = [
    ['invalid_request_error', 400],
    ['authentication_error', 401],
    ['billing_error', 402],
    ['permission_error', 403],
    ['not_found_error', 404],
    ['conflict_error', 409],
    ['request_too_large', 413],
    ['rate_limit_error', 429],
    ['api_error', 500],
    ['timeout_error', 504],
    ['overloaded_error', 529],
    ['internal_error', undefined],
  ]
  for (const [type, status] of types) {
    const event = typed('error', { error: { type, message: 'Overloaded' } })
    const { meter } = messages([PING, event])
    t.same(meter.error, { status, body: event.slice(event.indexOf('data: ') + 6, -2) }, type)
  }
  const numbered = messages([data({ type: 'error', error: { type: 'api_error', code: 503 } })])
  t.equal(numbered.meter.error?.status, 503, 'a number says more than a type')
  const cutEvent = 'data: {"type":"error","error":{"type":"api_error"}\n\n'
  t.equal(messages([cutEvent, typed('error')]).meter.error?.status, undefined, 'and is not left over')
  const chat = play([[0, data({ error: { type: 'overloaded_error' } })]])
  t.equal(chat.meter.error?.status, undefined, 'the types are those of this API alone')
})

t.test('usage is never taken out of a typed stream, asked for or not', async t => {
  const usageOnly = data({ choices: [], usage: { prompt_tokens: 1, completion_tokens: 2 } })
  for (const [shape, events] of [
    ['responses', [CREATED, usageOnly, COMPLETED]],
    ['messages', [start({}), usageOnly, stop({ output_tokens: 3 }), STOP]],
  ] as const) {
    const { sent } = play([[0, events.join('')]], 1, { shape, takeUsage: true })
    t.equal(textOf(sent), events.join(''), shape)
  }
})

t.test('typed events that are cut anywhere are stamped when their last byte came', async t => {
  for (const [shape, events] of [
    ['responses', [CREATED, delta('response.output_text.delta', '你🙂'), COMPLETED]],
    ['messages', [start({ input_tokens: 1 }), text('你🙂'), stop({ output_tokens: 3 }), STOP]],
  ] as const) {
    const body = bytesOf(events.join(''))
    const firstEnd = bytesOf(events.slice(0, 2).join('')).length
    const whole = counts(play([[0, body]], 1, { shape }).meter)
    const wrong: number[] = []
    for (let at = 1; at < body.length; at++) {
      const pieces = cutAt(body, [at]).map((piece, i) => [i, piece] as const)
      const { meter } = play(pieces, 9, { shape })
      const same = JSON.stringify(counts(meter)) === JSON.stringify(whole)
      if (!same || meter.firstOutput !== (at >= firstEnd ? 0 : 1)) wrong.push(at)
    }
    t.same(wrong, [], shape)
  }
})
