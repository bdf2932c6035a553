/** The walk over JSON bytes accepts what JSON.parse accepts, and reads whole answers. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { JsonWalk } from '../../src/sse/json.js'
import { readAnswer } from '../../src/sse/marks.js'
import { bytesOf } from './streams.js'

function accepts(text: string): boolean {
  // A guard on either side: a walk that read beyond its bounds would see them.
  const bytes = bytesOf(`"${text}"`)
  const walk = new JsonWalk()
  walk.start(bytes, 1, bytes.length - 1)
  walk.skip()
  return walk.whole()
}

function parses(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

function number(text: string): number {
  const bytes = bytesOf(text)
  const walk = new JsonWalk()
  walk.start(bytes, 0, bytes.length)
  const value = walk.numberOrDigits()
  return walk.whole() ? value : Number.POSITIVE_INFINITY
}

t.test('it accepts what JSON.parse accepts, and nothing else', async t => {
  const known = [
    ...[
      '',
      ' ',
      '1',
      '-1',
      '-',
      '01',
      '-0',
      '0.5',
      '.5',
      '5.',
      '1e5',
      '1E+5',
      '1e',
      '1e+',
      '+1',
      '1 2',
      'nul',
      'nulls',
    ],
    ...[
      'true',
      'false',
      'truefalse',
      '"',
      '"a',
      '"a"',
      '"\\"',
      '"\\n"',
      '"\\x"',
      '"\\u12"',
      '"\\uABCD"',
      '"\\u12g4"',
    ],
    ...[
      '"\u0001"',
      '"\u007f"',
      '"é\ud83d\ude42"',
      '[]',
      '[1]',
      '[1,]',
      '[,1]',
      '[1 2]',
      '[',
      ']',
      '[1}',
      '{}',
      '{"a":1}',
    ],
    ...[
      '{"a":1,}',
      '{,}',
      '{"a"}',
      '{"a":}',
      '{a:1}',
      '{"a":1 "b":2}',
      '{"a":{"b":[{}]}}',
      '\t[\r\n]\n ',
      '\u00a0[]',
      '[[]',
      '{}{}',
    ],
  ]
  for (const text of known) t.equal(accepts(text), parses(text), JSON.stringify(text))
  // A byte of a valid text is replaced, dropped or doubled.
  const damaged = fc
    .tuple(
      fc.json({ maxDepth: 4 }),
      fc.nat(),
      fc.constantFrom('', '"', '\\', ',', ':', '{', ']', '0', '-', 'e', ' ', '\n'),
    )
    .map(([text, at, put]) => text.slice(0, at % text.length) + put + text.slice((at % text.length) + 1))
  const law = fc.property(fc.oneof(fc.json(), damaged, fc.string()), text => {
    assert.equal(accepts(text), parses(text))
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 5000 }))
})

t.test('nesting deeper than 128 is refused instead of filling the stack', async t => {
  const nested = (depth: number) => '['.repeat(depth) + ']'.repeat(depth)
  t.ok(accepts(nested(128)))
  t.notOk(accepts(nested(129)))
  t.notOk(accepts('{"a":'.repeat(200_000)))
})

t.test('numbers are read by value, whatever their form', async t => {
  const cases: [string, number][] = [
    ['0', 0],
    ['-7', -7],
    ['504', 504],
    ['"504"', 504],
    ['5.04e2', 504],
    ['5.04E+2', 504],
    ['12345678901234567890', Number('12345678901234567890')],
    ['"12345678901234567890"', Number.NaN],
    ['""', Number.NaN],
    ['"5x"', Number.NaN],
    ['null', Number.NaN],
    ['{"a":1}', Number.NaN],
    [`1.${'0'.repeat(60)}`, Number.NaN],
  ]
  for (const [text, value] of cases) t.same(number(text), value, text)
})

t.test('the body of an answer that is no stream tells its usage, its error, or that it is none', async t => {
  const usage = {
    completion_tokens: 20,
    prompt_tokens: 5,
    total_tokens: 25,
    prompt_tokens_details: { audio_tokens: 1, cached_tokens: 3 },
    completion_tokens_details: null,
  }
  const read = (value: unknown) => readAnswer(bytesOf(JSON.stringify(value, null, 2)))
  const choice = {
    index: 0,
    message: { content: '{"usage":{"completion_tokens":9}}' },
    finish_reason: 'stop',
  }
  const none = {
    json: true,
    id: undefined,
    usage: undefined,
    error: false,
    errorStatus: undefined,
    aborted: false,
  }
  t.same(read({ usage, choices: [choice] }), {
    ...none,
    usage: { promptTokens: 5, completionTokens: 20, cachedTokens: 3, reasoningTokens: undefined },
  })
  t.same(read({ choices: [{ ...choice, finish_reason: 'abort' }], usage: null }), { ...none, aborted: true })
  t.same(read({ usage: { completion_tokens: -1 } }), none)
  t.same(read({ usage: { completion_tokens: '20' } }), none)
  t.same(read({ object: 'error', message: 'x', code: 404 }), { ...none, error: true, errorStatus: 404 })
  t.same(read({ error: { message: 'x', code: 'y' } }), { ...none, error: true })
  for (const body of ['', '<html>', '{"error":{}', '{"usage":{"completion_tokens":20}} x']) {
    t.same(readAnswer(bytesOf(body)), { ...none, json: false }, body)
  }
})

t.test('a response that is one JSON body tells its id, its usage, and whether it failed', async t => {
  const read = (value: unknown) => readAnswer(bytesOf(JSON.stringify(value)), 'responses')
  const body = {
    id: 'resp_1',
    object: 'response',
    status: 'completed',
    error: null,
    output: [{ id: 'msg_1', type: 'message', status: 'failed', content: [{ text: '{"error":{}}' }] }],
    usage: {
      input_tokens: 30,
      input_tokens_details: { cached_tokens: 16 },
      output_tokens: 7,
      output_tokens_details: { reasoning_tokens: 3 },
    },
  }
  const usage = { promptTokens: 30, completionTokens: 7, cachedTokens: 16, reasoningTokens: 3 }
  const whole = { json: true, id: 'resp_1', usage, error: false, errorStatus: undefined, aborted: false }
  t.same(read(body), whole)
  t.same(read({ ...body, status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } }), whole)
  t.same(
    read({ ...body, status: 'queued', usage: null }),
    { ...whole, usage: undefined },
    'in the background',
  )
  t.same(read({ ...body, status: 'cancelled' }), { ...whole, aborted: true })
  t.same(read({ ...body, status: 'failed' }), { ...whole, error: true })
  t.same(read({ ...body, error: { code: 'server_error', message: 'x' } }), { ...whole, error: true })
  const bare = { ...whole, id: undefined, usage: undefined }
  t.same(read({ error: { message: 'x', code: 429 } }), { ...bare, error: true, errorStatus: 429 })
  t.same(read({ type: 'response.completed', response: body }), bare, 'an event is no body')
  t.same(read([body]), bare)
})

t.test('a message that is one JSON body tells its id and its usage, or its error', async t => {
  const read = (value: unknown) => readAnswer(bytesOf(JSON.stringify(value)), 'messages')
  const body = {
    id: 'msg_1',
    type: 'message',
    content: [{ type: 'text', text: '{"error":{}}' }],
    stop_reason: 'end_turn',
    usage: {
      input_tokens: 5,
      cache_read_input_tokens: 20,
      cache_creation_input_tokens: 10,
      output_tokens: 9,
      output_tokens_details: { thinking_tokens: 4 },
    },
  }
  const usage = { promptTokens: 35, completionTokens: 9, cachedTokens: 20, reasoningTokens: 4 }
  const whole = { json: true, id: 'msg_1', usage, error: false, errorStatus: undefined, aborted: false }
  t.same(read(body), whole)
  t.same(
    read({ ...body, usage: { input_tokens: 5, cache_read_input_tokens: null, output_tokens: 9 } }).usage,
    { promptTokens: 5, completionTokens: 9, cachedTokens: undefined, reasoningTokens: undefined },
  )
  const bare = { ...whole, id: undefined, usage: undefined }
  t.same(read({ type: 'error', error: { type: 'overloaded_error', message: 'x' } }), {
    ...bare,
    error: true,
    errorStatus: 529,
  })
  t.same(read({ type: 'error' }), { ...bare, error: true })
  t.same(readAnswer(bytesOf('{"id":"msg_1"'), 'messages'), { ...bare, json: false })
})
