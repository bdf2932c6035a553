/** Streams for the laws: whole blocks of every shape, with what may be odd about them. */
import fc from 'fast-check'
import type { StreamShape } from '../../src/sse/meter.js'
import { bytesOf, DONE, data, type Json, textOf } from './streams.js'

const words = fc.string({ unit: 'grapheme', maxLength: 6 })
/** Content as it may come: there, empty, null, or in parts. */
const content = fc.oneof(
  words,
  fc.constant(null),
  fc.array(fc.constant({ type: 'text', text: 'a' }), { maxLength: 2 }),
)
const call = fc.record({ name: words, arguments: words }, { requiredKeys: [] })
const delta = fc.record(
  {
    role: fc.constant('assistant'),
    content,
    refusal: content,
    reasoning_content: content,
    reasoning: content,
    audio: fc.record({ id: words, data: words }, { requiredKeys: [] }),
    tool_calls: fc.array(fc.record({ index: fc.nat(2), id: words, function: call }, { requiredKeys: [] }), {
      maxLength: 2,
    }),
    function_call: call,
  },
  { requiredKeys: [] },
)
const choices = fc.uniqueArray(
  fc.record({
    index: fc.nat(3),
    delta,
    logprobs: fc.constant(null),
    finish_reason: fc.constantFrom(null, null, null, 'stop', 'length', 'abort', ''),
  }),
  { selector: one => one.index, maxLength: 3 },
)
const usages = fc.oneof(
  fc.constant(null),
  fc.record(
    {
      prompt_tokens: fc.nat(),
      completion_tokens: fc.nat(),
      total_tokens: fc.double({ noDefaultInfinity: true, noNaN: true }),
      prompt_tokens_details: fc.option(fc.record({ cached_tokens: fc.nat() })),
      completion_tokens_details: fc.option(fc.record({ reasoning_tokens: fc.nat() })),
    },
    { requiredKeys: ['total_tokens'] },
  ),
)
const errors = fc.oneof(
  fc.constantFrom(null, '', 'broken', 5),
  fc.record({
    message: words,
    code: fc.constantFrom(null, 504, '429', 'x', 7),
    status: fc.constantFrom(500, '503'),
  }),
)
const rare = <T>(value: fc.Arbitrary<T>) => fc.option(value, { freq: 4, nil: undefined })

/** JSON.stringify leaves out what is undefined; members come in any order. */
function shuffled(members: Record<string, fc.Arbitrary<unknown>>): fc.Arbitrary<Json> {
  const names = Object.keys(members)
  return fc
    .tuple(fc.record(members), fc.shuffledSubarray(names, { minLength: names.length }))
    .map(([values, order]) => Object.fromEntries(order.map(name => [name, values[name]])))
}

const chunks = shuffled({
  id: words,
  object: fc.constantFrom('chat.completion.chunk', 'chat.completion.chunk', 'error'),
  choices: fc.option(choices, { freq: 8, nil: undefined }),
  usage: rare(usages),
  error: rare(errors),
  code: rare(fc.constantFrom(503, 'x')),
  extra: rare(fc.jsonValue()),
})

const counted = (...names: string[]) =>
  fc.option(shuffled(Object.fromEntries(names.map(name => [name, rare(fc.option(fc.nat()))]))))
const absent = fc.constant(undefined)
const seldom = <T>(value: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 30, arbitrary: absent }, { weight: 1, arbitrary: value })

const response = shuffled({
  id: fc.constantFrom('resp_1', 'resp_"\\é', '', 7, undefined),
  object: fc.constant('response'),
  status: fc.oneof(
    { weight: 20, arbitrary: fc.constantFrom('in_progress', 'completed', 'incomplete', null) },
    { weight: 1, arbitrary: fc.constantFrom('failed', 'cancelled') },
  ),
  error: fc.oneof({ weight: 20, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: errors }),
  output: fc.constantFrom([], [{ id: 'msg_1', status: 'failed', usage: { output_tokens: 1 }, error: {} }]),
  usage: fc.option(
    shuffled({
      input_tokens: rare(fc.nat()),
      output_tokens: rare(fc.nat()),
      input_tokens_details: counted('cached_tokens', 'cache_write_tokens'),
      output_tokens_details: counted('reasoning_tokens'),
    }),
  ),
})
const responseEvents = fc.oneof(
  {
    weight: 6,
    arbitrary: shuffled({
      type: fc.constantFrom(
        'response.output_text.delta',
        'response.refusal.delta',
        'response.reasoning_text.delta',
        'response.reasoning_summary_text.delta',
        'response.function_call_arguments.delta',
        'response.audio.delta',
        'response.output_text.done',
        'response.deltas',
        '.delta',
        'delta',
      ),
      delta: fc.oneof(words, absent, fc.constantFrom(null, 5, [], ['a'], { text: 'a' })),
      item_id: words,
      logprobs: fc.constant([]),
      response: seldom(response),
    }),
  },
  {
    weight: 2,
    arbitrary: shuffled({
      type: fc.constantFrom('response.output_item.added', 'response.output_item.done'),
      item: fc.oneof(
        shuffled({
          type: fc.constantFrom(
            'function_call',
            'mcp_call',
            'web_search_call',
            'message',
            '_call',
            'call',
            null,
          ),
          id: words,
          arguments: fc.constant(''),
        }),
        fc.constantFrom(null, 'function_call'),
      ),
      delta: seldom(words),
    }),
  },
  {
    weight: 3,
    arbitrary: shuffled({
      type: fc.constantFrom(
        'response.created',
        'response.in_progress',
        'response.completed',
        'response.incomplete',
      ),
      response: fc.oneof(
        { weight: 8, arbitrary: response },
        { weight: 1, arbitrary: fc.constantFrom(null, 'x') },
      ),
      sequence_number: fc.nat(),
    }),
  },
  { weight: 1, arbitrary: shuffled({ type: fc.constant('response.failed'), response }) },
  {
    weight: 1,
    arbitrary: shuffled({
      type: fc.constantFrom('error', 'errors', 'ping'),
      code: fc.constantFrom(503, '429', 'server_error', null),
      message: words,
      error: rare(errors),
    }),
  },
)

const messageUsage = fc.option(
  shuffled({
    input_tokens: rare(fc.option(fc.nat())),
    cache_read_input_tokens: rare(fc.option(fc.nat())),
    cache_creation_input_tokens: rare(fc.option(fc.nat())),
    output_tokens: rare(fc.nat()),
    output_tokens_details: counted('thinking_tokens'),
  }),
)
const messageEvents = fc.oneof(
  {
    weight: 1,
    arbitrary: shuffled({
      type: fc.constant('message_start'),
      message: fc.oneof(
        shuffled({
          id: fc.constantFrom('msg_1', '', null),
          type: fc.constant('message'),
          usage: messageUsage,
          stop_reason: fc.constant(null),
        }),
        fc.constant(null),
      ),
    }),
  },
  {
    weight: 2,
    arbitrary: shuffled({
      type: fc.constantFrom('content_block_start', 'content_block_stop'),
      index: fc.nat(3),
      content_block: fc.oneof(
        shuffled({
          type: fc.constantFrom('text', 'thinking', 'tool_use', 'server_tool_use', 'tool_result', null),
          text: words,
          input: fc.constant({}),
        }),
        absent,
      ),
    }),
  },
  {
    weight: 6,
    arbitrary: shuffled({
      type: fc.constantFrom(
        'content_block_delta',
        'content_block_delta',
        'content_block_delta',
        'message_delta',
        'x',
      ),
      delta: fc.oneof(
        {
          weight: 8,
          arbitrary: shuffled({
            type: fc.constantFrom('text_delta', 'thinking_delta', 'input_json_delta', 'signature_delta'),
            text: rare(words),
            thinking: rare(words),
            partial_json: rare(words),
            signature: rare(words),
            stop_reason: fc.constantFrom(undefined, null, 'end_turn', ''),
          }),
        },
        { weight: 1, arbitrary: fc.constantFrom(null, 'text') },
      ),
      usage: messageUsage,
    }),
  },
  { weight: 1, arbitrary: fc.constantFrom<Json>({ type: 'message_stop' }, { type: 'ping' }) },
  {
    weight: 1,
    arbitrary: shuffled({
      type: fc.constantFrom('error', 'errors', undefined),
      error: fc.oneof(
        errors,
        shuffled({
          type: fc.constantFrom(
            'overloaded_error',
            'invalid_request_error',
            'billing_error',
            'internal_error',
            null,
          ),
          message: words,
          code: rare(fc.constantFrom(503, 'x')),
        }),
      ),
      message: words,
    }),
  },
)

/** By way of bytes: half a surrogate pair has none of its own. */
const cutOff = (chunk: Json, length: number): string =>
  textOf(bytesOf(`data: ${JSON.stringify(chunk).slice(0, length)}\n\n`))

/** Whole blocks with LF as line end; not all are events. */
const blocksOf = (events: fc.Arbitrary<Json>) =>
  fc.oneof(
    { weight: 8, arbitrary: events.map(data) },
    { weight: 1, arbitrary: events.map(event => data(event).replace('data: ', 'data:')) },
    // White space between the members, so that an event has several data lines.
    {
      weight: 1,
      arbitrary: events.map(
        event => `data: ${JSON.stringify(event, null, 1).replaceAll('\n', '\ndata: ')}\n\n`,
      ),
    },
    { weight: 1, arbitrary: events.map(event => `event: error\n: note\n${data(event)}`) },
    { weight: 1, arbitrary: events.map(event => `id: 1\nevent: message\n${data(event)}`) },
    { weight: 1, arbitrary: fc.tuple(events, fc.nat(200)).map(([event, length]) => cutOff(event, length)) },
    { weight: 2, arbitrary: fc.jsonValue().map(data) },
    {
      weight: 2,
      arbitrary: fc.constantFrom(
        DONE,
        'data:[DONE]\n\n',
        ':\n\n',
        ': ping\n',
        '\n',
        'data\n\n',
        'event: x\n\n',
        'x: y\n\n',
      ),
    },
  )
const streamsOf = (events: fc.Arbitrary<Json>) => fc.array(blocksOf(events), { minLength: 1, maxLength: 12 })

/** Now and then an event of another shape: a gateway's error, or nothing that means anything. */
const mixed = (events: fc.Arbitrary<Json>) =>
  fc.oneof({ weight: 12, arbitrary: events }, { weight: 1, arbitrary: chunks })

export const STREAMS: Readonly<Record<Exclude<StreamShape, 'completions'>, fc.Arbitrary<string[]>>> = {
  chat: streamsOf(chunks),
  responses: streamsOf(mixed(responseEvents)),
  messages: streamsOf(mixed(messageEvents)),
}
export const lineEnds = fc.constantFrom('\n', '\r\n', '\r')
export const cuts = fc.array(fc.nat(4000), { maxLength: 12 })
