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
  const none = { json: true, usage: undefined, error: false, errorStatus: undefined, aborted: false }
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
