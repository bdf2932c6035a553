/** Bodies read as bytes: what is valid, what is found, and what a splice leaves as it was. JSON.parse is the oracle. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { type BodyFacts, BodyFault, type Edit, readBody, setMember, splice } from '../../src/http/body.js'
import { JsonFault, JsonWalk, type Span } from '../../src/http/json.js'
import { MAX_DEPTH } from '../../src/sse/json.js'

// ---- JSON as people and libraries write it: any spacing, any spelling of a string, any number

const space = fc.constantFrom('', '', '', ' ', '\n', '\t', '\r\n  ')

/** A string's text: each character as it is or as an escape. */
const stringText = (value: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(value, fc.array(fc.boolean(), { minLength: 1, maxLength: 4 })).map(([text, escaped]) => {
    const units = [...text].flatMap((character, i) =>
      escaped[i % escaped.length]
        ? [...Array(character.length).keys()].map(
            k => `\\u${character.charCodeAt(k).toString(16).padStart(4, '0')}`,
          )
        : [JSON.stringify(character).slice(1, -1)],
    )
    return `"${units.join('')}"`
  })

const characters = fc.string({
  unit: fc.oneof(
    fc.constantFrom('"', '\\', '/', '\n', '\u0000', 'é', '🙂', '\ud800'),
    fc.string({ minLength: 1, maxLength: 1, unit: 'grapheme' }),
  ),
  maxLength: 8,
})

const numberText = fc.oneof(
  fc.integer().map(String),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map(n => JSON.stringify(n)),
  fc.constantFrom('0', '-0', '1E+5', '1e400', '-1.50', '0.1e-7', '123456789012345678901234567890'),
)

const scalar = fc.oneof(fc.constantFrom('true', 'false', 'null'), numberText, stringText(characters))

const { value } = fc.letrec<{ value: string }>(tie => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    scalar,
    fc.array(tie('value'), { maxLength: 3 }).chain(list),
    fc
      .array(fc.tuple(stringText(characters), tie('value')), { maxLength: 3 })
      .chain(members => objectText(members)),
  ),
}))

function list(items: string[]): fc.Arbitrary<string> {
  return fc.tuple(space, space).map(([a, b]) => `[${a}${items.join(`${b},${a}`)}${b}]`)
}

function objectText(members: [key: string, value: string][]): fc.Arbitrary<string> {
  return fc
    .tuple(space, space, space, space)
    .map(([a, b, c, d]) => `{${a}${members.map(([k, v]) => `${k}${b}:${c}${v}`).join(`${d},${a}`)}${d}}`)
}

const inSpace = (text: fc.Arbitrary<string>) => fc.tuple(space, text, space).map(parts => parts.join(''))

// ---- request bodies

const READ_NAMES = [
  'model',
  'stream',
  'stream_options',
  'tools',
  'functions',
  'max_tokens',
  'max_completion_tokens',
  'n',
  'store',
  'background',
  'prompt',
]

const name = (text: string) => stringText(fc.constant(text))
const member = (key: string, of: fc.Arbitrary<string>) => fc.tuple(name(key), of)
const count = fc.oneof(fc.constantFrom('0', '-1', '1.5', '1e3', '"7"', 'null', '[4]'), fc.nat().map(String))
const options = fc
  .tuple(
    fc.option(member('include_usage', fc.constantFrom('true', 'false', 'null', '1')), { nil: undefined }),
    fc.array(member('x', value), { maxLength: 1 }),
    fc.boolean(),
  )
  .chain(([usage, others, last]) => {
    const own = usage === undefined ? [] : [usage]
    return objectText(last ? [...others, ...own] : [...own, ...others])
  })

const optional = [
  member('stream_options', fc.oneof(options, options, fc.constantFrom('null', '[]', '"x"', '7'))),
  member('tools', fc.oneof(fc.array(value, { maxLength: 2 }).chain(list), value)),
  member('functions', fc.array(value, { maxLength: 2 }).chain(list)),
  member('max_tokens', count),
  member('max_completion_tokens', count),
  member('n', count),
  member('store', fc.constantFrom('true', 'false', 'null', '"true"')),
  member('background', fc.constantFrom('true', 'false')),
  member('prompt', value),
  member('messages', value),
]

const model = stringText(characters.filter(text => text !== ''))

const request = fc
  .tuple(
    member('model', model),
    member('stream', fc.constantFrom('true', 'false', 'null')),
    fc.subarray(optional).chain(chosen => fc.tuple(...chosen)),
    // Members that nobody has heard of, twice if need be.
    fc.array(fc.tuple(stringText(characters.filter(text => !READ_NAMES.includes(text))), value), {
      maxLength: 3,
    }),
  )
  .chain(([first, second, known, unknown]) =>
    fc.shuffledSubarray([first, second, ...known, ...unknown], {
      minLength: 2 + known.length + unknown.length,
    }),
  )
  .chain(members => inSpace(objectText(members)))

const bytesOf = (text: string): Buffer => Buffer.from(text)

const counted = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : undefined

const filled = (value: unknown): boolean => Array.isArray(value) && value.length > 0

t.test('a body’s facts are those that JSON.parse finds, in whatever way it is written', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(request, text => {
        const parsed = JSON.parse(text)
        const facts = readBody(bytesOf(text))
        const { model, stream, tools, maxTokens, choices, stored, asksUsage } = facts
        assert.deepEqual(
          { model, stream, tools, maxTokens, choices, stored, asksUsage },
          {
            model: parsed.model,
            stream: parsed.stream === true,
            tools: filled(parsed.tools) || filled(parsed.functions),
            maxTokens: counted(parsed.max_completion_tokens) ?? counted(parsed.max_tokens),
            choices: counted(parsed.n) ?? 1,
            stored: parsed.store === true || parsed.background === true,
            asksUsage: parsed.stream_options?.include_usage === true,
          },
        )
        assert.ok(Number.isSafeInteger(facts.promptTokens) && facts.promptTokens >= 1)
      }),
      { numRuns: 1000 },
    ),
  )
})

/** The edits that a dispatch makes. */
const editsOf = (facts: BodyFacts, model: string | undefined): Edit[] => [
  ...(model === undefined ? [] : [setMember(facts, 'model', model)]),
  ...(facts.usageEdit === undefined ? [] : [facts.usageEdit]),
]

t.test('a splice changes what it is for, and not one byte beside it', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(request, fc.option(characters, { nil: undefined }), (text, model) => {
        const bytes = bytesOf(text)
        const facts = readBody(bytes)
        const edits = editsOf(facts, model)
        const spliced = Buffer.concat(splice(bytes, edits))

        // The meaning.
        const expected = JSON.parse(text)
        if (model !== undefined) expected.model = model
        const { stream_options: given } = expected
        const object =
          given === undefined || given === null || (typeof given === 'object' && !Array.isArray(given))
        if (expected.stream === true && object) expected.stream_options = { ...given, include_usage: true }
        assert.deepEqual(JSON.parse(spliced.toString()), expected)
        assert.equal(
          facts.usageEdit !== undefined,
          expected.stream === true && object && given?.include_usage !== true,
        )

        // The bytes: what is left when the new texts are taken out again is what is left without the old spans.
        let before = 0
        let after = 0
        for (const { span, text } of [...edits].sort((a, b) => a.span.start - b.span.start)) {
          const kept = span.start - before
          assert.deepEqual(spliced.subarray(after, after + kept), bytes.subarray(before, span.start))
          after += kept
          assert.equal(spliced.subarray(after, after + Buffer.byteLength(text)).toString(), text)
          after += Buffer.byteLength(text)
          before = span.end
        }
        assert.deepEqual(spliced.subarray(after), bytes.subarray(before))
        if (edits.length === 0) assert.equal(splice(bytes, edits).length, 1, 'one piece, nothing copied')
      }),
      { numRuns: 1000 },
    ),
  )
})

/** The members of a document that is one object, as text; undefined if it is not one. */
function walked(bytes: Uint8Array): [key: string, value: string][] | undefined {
  const walk = new JsonWalk(bytes)
  const text = ({ start, end }: Span) => Buffer.from(bytes.subarray(start, end)).toString()
  const found: [string, string][] = []
  try {
    const end = walk.members(0, (key, value) => found.push([text(key), text(value)]))
    return walk.space(end) === bytes.length ? found : undefined
  } catch (error) {
    if (error instanceof JsonFault) return undefined
    throw error
  }
}

/** By the oracle. */
function parsed(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}

t.test('a document is one valid object if and only if JSON.parse says so', async t => {
  const noise = fc.constantFrom(...'{}[]",:\\/utfn0123456789.+-eE \n\t\u0001é')
  const change = fc.record({ at: fc.nat(), cut: fc.nat(2), put: fc.array(noise, { maxLength: 2 }) })
  const mutated = fc
    .tuple(inSpace(fc.oneof(request, value)), fc.array(change, { maxLength: 2 }))
    .map(([text, changes]) => {
      const units = [...text]
      for (const { at, cut, put } of changes) units.splice(at % (units.length + 1), cut, ...put)
      return units.join('')
    })
  let valid = 0
  let broken = 0
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(mutated, text => {
        const expected = parsed(text)
        const found = walked(bytesOf(text))
        assert.equal(found !== undefined, expected !== undefined)
        if (found === undefined) {
          broken++
          return
        }
        valid++
        const rebuilt = Object.fromEntries(found.map(([key, value]) => [JSON.parse(key), JSON.parse(value)]))
        assert.deepEqual(rebuilt, { ...expected })
      }),
      { numRuns: 3000 },
    ),
  )
  t.ok(valid > 200 && broken > 200, `${valid} valid and ${broken} broken documents were tried`)
})

t.test('however a body is broken it is a fault with a sentence, and never another error', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        fc.oneof(
          fc.uint8Array({ maxLength: 40 }),
          fc.tuple(request, fc.nat(), fc.nat(255)).map(([text, at, byte]) => {
            const bytes = bytesOf(text)
            bytes[at % bytes.length] = byte
            return bytes
          }),
          fc.tuple(request, fc.nat()).map(([text, at]) => bytesOf(text).subarray(0, at % (text.length + 1))),
        ),
        bytes => {
          try {
            readBody(bytes)
          } catch (error) {
            assert.ok(error instanceof BodyFault, String(error))
            assert.match(error.message, /\.$/)
          }
        },
      ),
      { numRuns: 2000 },
    ),
  )
})

/** What a body is refused with. */
function messageOf(text: string): string {
  try {
    readBody(bytesOf(text))
  } catch (error) {
    if (error instanceof BodyFault) return error.message
    throw error
  }
  throw new Error(`taken as a request: ${text}`)
}

t.test('what is no request says what to change, and never quotes the body', async t => {
  const cases: Record<string, RegExp> = {
    '': /^The body is empty\. Send a JSON object/,
    '[]': /^The body is not a valid JSON object: expected an object at byte 0\./,
    '"secret"': /expected an object at byte 0/,
    '{"model":"secret"': /expected "," or "}" at byte 17/,
    '{"model":"secret"} {}': /something follows the object at byte 19/,
    '{"model":"secret",}': /expected a member name at byte 18/,
    '{"model":"se\ncret"}': /a control character in a string at byte 12/,
    '{"model":"m","x":01}': /a number with a leading zero at byte 17/,
    '{"model":"m","x":\'y\'}': /expected a value at byte 17/,
    '{"model":"m","x":NaN}': /expected a value at byte 17/,
    '{"messages":["secret"]}': /^The body has no "model"\. Name one of the models of GET \/v1\/models\.$/,
    '{"model":""}': /^"model" must be a non-empty string/,
    '{"model":7}': /^"model" must be a non-empty string/,
    '{"model":{"secret":1}}': /^"model" must be a non-empty string/,
    '{"model":"m","stream":"true"}': /^"stream" must be true or false, without quotes\.$/,
    '{"model":"m","stream":1}': /^"stream" must be true or false/,
    '{"model":"m","stream":trueish}': /not a valid JSON object/,
    '\ufeff{"model":"m"}': /^The body begins with a byte order mark/,
  }
  for (const [text, message] of Object.entries(cases)) {
    const said = messageOf(text)
    t.match(said, message, JSON.stringify(text))
    t.notMatch(said, 'secret')
  }
  t.throws(() => readBody(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d])), {
    message: /^The body is not valid UTF-8/,
  })
})

t.test('a member that Weir reads stands in a body once, however its name is spelled', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        fc
          .constantFrom(...READ_NAMES)
          .chain(read =>
            fc.tuple(
              fc.constant(read),
              name(read),
              name(read),
              fc.array(fc.tuple(name('filler'), value), { maxLength: 2 }),
            ),
          ),
        ([read, first, second, fillers]) => {
          const value = read === 'model' ? '"m"' : read === 'stream' ? 'true' : 'null'
          const filler = fillers.map(([key, value]) => `${key}:${value},`).join('')
          const rest = read === 'model' ? '"stream":true' : '"model":"m"'
          const text = `{${first}:${value},${filler}${second}:${value},${rest}}`
          assert.throws(() => readBody(bytesOf(text)), {
            message: `The body has "${read}" twice. Send it once, so that every reader sees the same value.`,
          })
        },
      ),
    ),
  )
  for (const again of ['include_usage', 'include\\u005fusage']) {
    const text = `{"model":"m","stream":true,"stream_options":{"include_usage":false,"${again}":true}}`
    t.throws(() => readBody(bytesOf(text)), {
      message: '"stream_options" has "include_usage" twice. Send it once.',
    })
  }
  t.doesNotThrow(() => readBody(bytesOf('{"model":"m","x":1,"x":2,"messages":[{"model":"a","model":"b"}]}')))
})

t.test('nesting is followed to its limit, and refused beyond it', async t => {
  const nested = (depth: number): Buffer =>
    bytesOf(`{"model":"m","x":${'['.repeat(depth)}${']'.repeat(depth)}}`)
  t.equal(readBody(nested(MAX_DEPTH - 1)).model, 'm')
  t.throws(() => readBody(nested(MAX_DEPTH + 2)), { message: /nested deeper than 128 at byte/ })
  t.throws(() => readBody(nested(1_000_000)), { message: /nested deeper than 128 at byte/ })
  t.throws(() => readBody(bytesOf(`{"model":"m","x":${'{"a":'.repeat(100_000)}`)), {
    message: /nested deeper/,
  })
})

t.test('prompt tokens are estimated from text and token ids, not from images', async t => {
  const tokens = (over: object): number =>
    readBody(bytesOf(JSON.stringify({ model: 'm', ...over }))).promptTokens
  const none = tokens({})
  t.equal(none, 1)
  t.equal(
    tokens({ messages: [{ role: 'user', content: 'x'.repeat(4000) }] }),
    1 + 1000 + 1,
    'model, role and text',
  )
  const image = `data:image/png;base64,${'A'.repeat(1_000_000)}`
  t.ok(
    tokens({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: image } }] }] }) <
      20,
  )
  t.equal(tokens({ prompt: Array.from({ length: 500 }, (_, i) => i) }), 1 + 500)
  t.equal(tokens({ logit_bias: Object.fromEntries(Array.from({ length: 500 }, (_, i) => [i, 1])) }), none)
})
