/** What holds for every stream, however it is cut: the meter beside eventsource-parser and JSON.parse. */
import assert from 'node:assert/strict'
import { createParser } from 'eventsource-parser'
import fc from 'fast-check'
import t from 'tap'
import type { Meter } from '../../src/sse/meter.js'
import {
  bytesOf,
  concat,
  counts,
  cutAt,
  DONE,
  data,
  newMeter,
  play,
  summary,
  textOf,
  withLineEnds,
} from './streams.js'

type Json = Record<string, unknown>

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
const chunks: fc.Arbitrary<Json> = fc
  .record({
    id: words,
    object: fc.constantFrom('chat.completion.chunk', 'chat.completion.chunk', 'error'),
    choices: fc.option(choices, { freq: 8, nil: undefined }),
    usage: rare(usages),
    error: rare(errors),
    code: rare(fc.constantFrom(503, 'x')),
    extra: rare(fc.jsonValue()),
  })
  .chain(chunk =>
    fc
      .shuffledSubarray(Object.keys(chunk), { minLength: 7 })
      .map(keys => Object.fromEntries(keys.map(key => [key, chunk[key as keyof typeof chunk]]))),
  )

/** By way of bytes: half a surrogate pair has none of its own. */
const cutOff = (chunk: Json, length: number): string =>
  textOf(bytesOf(`data: ${JSON.stringify(chunk).slice(0, length)}\n\n`))

/** Whole blocks with LF as line end; not all are events. */
const blocks = fc.oneof(
  { weight: 8, arbitrary: chunks.map(data) },
  { weight: 1, arbitrary: chunks.map(chunk => data(chunk).replace('data: ', 'data:')) },
  // White space between the members, so that an event has several data lines.
  {
    weight: 1,
    arbitrary: chunks.map(
      chunk => `data: ${JSON.stringify(chunk, null, 1).replaceAll('\n', '\ndata: ')}\n\n`,
    ),
  },
  { weight: 1, arbitrary: chunks.map(chunk => `event: error\n: note\n${data(chunk)}`) },
  { weight: 1, arbitrary: chunks.map(chunk => `id: 1\nevent: message\n${data(chunk)}`) },
  { weight: 1, arbitrary: fc.tuple(chunks, fc.nat(200)).map(([chunk, length]) => cutOff(chunk, length)) },
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
const streams = fc.array(blocks, { minLength: 1, maxLength: 12 })
const lineEnds = fc.constantFrom('\n', '\r\n', '\r')
const cuts = fc.array(fc.nat(4000), { maxLength: 12 })

/** The second opinion: what one stream tells, from whole events, each with the time at which it is complete. */
function judge(events: readonly { readonly text: string; readonly at: number }[], takeUsage: boolean) {
  const told = {
    firstEvent: undefined as number | undefined,
    firstOutput: undefined as number | undefined,
    firstVisible: undefined as number | undefined,
    lastOutput: undefined as number | undefined,
    longestGap: undefined as number | undefined,
    marks: 0,
    longestChoiceMarks: 0,
    usage: undefined as Json | undefined,
    done: false,
    finished: false,
    aborted: false,
    error: undefined as Json | undefined,
    unparsed: 0,
    partial: false,
  }
  const perChoice = new Map<number, { marks: number; finished: boolean }>()
  const kept: string[] = []
  for (const { text, at } of events) {
    kept.push(text)
    for (const { event, data: raw } of parsed(text)) {
      told.firstEvent ??= at
      if (raw.trim() === '[DONE]') {
        told.done = true
        continue
      }
      let json: unknown
      try {
        json = JSON.parse(raw)
      } catch {
        if (raw.trim() !== '') told.unparsed++
        if (event === 'error') {
          told.error ??= { status: undefined, body: JSON.stringify({ error: { message: raw.trim() } }) }
        }
        continue
      }
      const root: Json =
        typeof json === 'object' && json !== null && !Array.isArray(json) ? (json as Json) : {}
      const failure = root['error']
      const isFailure =
        (typeof failure === 'object' && failure !== null) || (typeof failure === 'string' && failure !== '')
      if (event === 'error' || root['object'] === 'error' || isFailure) {
        const inner = typeof failure === 'object' && failure !== null ? (failure as Json) : {}
        const status = [inner['code'], inner['status'], root['code']]
          .map(code => (typeof code === 'number' || typeof code === 'string' ? Number(code) : Number.NaN))
          .find(code => code >= 400 && code <= 599)
        told.error ??= { status, body: raw.trim() }
        continue
      }
      const list = Array.isArray(root['choices']) ? (root['choices'] as Json[]) : []
      const used = root['usage'] as Json | null | undefined
      if (typeof used === 'object' && used !== null) {
        if (takeUsage && list.length === 0) kept.pop()
        if (used['completion_tokens'] !== undefined) {
          told.usage = {
            promptTokens: used['prompt_tokens'] ?? 0,
            completionTokens: used['completion_tokens'],
            cachedTokens: (used['prompt_tokens_details'] as Json | null | undefined)?.['cached_tokens'],
            reasoningTokens: (used['completion_tokens_details'] as Json | null | undefined)?.[
              'reasoning_tokens'
            ],
          }
        }
      }
      let output = false
      for (const one of list) {
        const index = one['index'] as number
        const choice = perChoice.get(index) ?? { marks: 0, finished: false }
        perChoice.set(index, choice)
        const { visible, other } = outputOf((one['delta'] ?? {}) as Json)
        if (visible) told.firstVisible ??= at
        if (visible || other) {
          output = true
          choice.marks++
        }
        const reason = one['finish_reason']
        if (typeof reason === 'string' && reason !== '') choice.finished = true
        if (reason === 'abort') told.aborted = true
      }
      if (!output) continue
      told.firstOutput ??= at
      if (told.lastOutput !== undefined)
        told.longestGap = Math.max(told.longestGap ?? 0, at - told.lastOutput)
      told.lastOutput = at
      told.marks++
    }
  }
  const all = [...perChoice.values()]
  told.longestChoiceMarks = Math.max(0, ...all.map(choice => choice.marks))
  told.finished = all.length > 0 && all.every(choice => choice.finished)
  return { told, kept: kept.join('') }
}

function outputOf(one: Json): { visible: boolean; other: boolean } {
  const filled = (value: unknown) => (typeof value === 'string' || Array.isArray(value)) && value.length > 0
  const called = (value: unknown) =>
    filled((value as Json | undefined)?.['name']) || filled((value as Json | undefined)?.['arguments'])
  const calls = (one['tool_calls'] ?? []) as Json[]
  return {
    visible: filled(one['content']) || filled(one['refusal']),
    other:
      filled(one['reasoning_content']) ||
      filled(one['reasoning']) ||
      filled((one['audio'] as Json | undefined)?.['data']) ||
      calls.some(item => called(item['function'])) ||
      called(one['function_call']),
  }
}

function parsed(text: string): { event: string | undefined; data: string }[] {
  const events: { event: string | undefined; data: string }[] = []
  const parser = createParser({ onEvent: ({ event, data }) => events.push({ event, data }) })
  parser.feed(text)
  // The parser waits for what follows a CR.
  parser.feed(':\n')
  return events
}

/** Index of the chunk that holds the byte before `end`. */
function arrival(pieces: readonly Uint8Array[], end: number): number {
  let at = 0
  return pieces.findIndex(piece => {
    at += piece.length
    return at >= end
  })
}

const numbered = (pieces: readonly Uint8Array[]) => pieces.map((piece, i) => [i, piece] as const)

t.test('it agrees with eventsource-parser and JSON.parse on every stream, line end and cut', async t => {
  const law = fc.property(streams, lineEnds, cuts, fc.boolean(), (texts, lineEnd, places, takeUsage) => {
    const ended = texts.map(text => withLineEnds(text, lineEnd))
    const bytes = bytesOf(ended.join(''))
    const pieces = cutAt(bytes, places)
    let end = 0
    const events = ended.map(text => {
      end += bytesOf(text).length
      return { text, at: arrival(pieces, end) }
    })
    const { told, kept } = judge(events, takeUsage)
    const { meter, sent } = play(numbered(pieces), pieces.length, { takeUsage })
    assert.deepEqual(summary(meter), told)
    assert.equal(textOf(sent), kept)
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 1500 }))
})

t.test('one byte per write tells what one write tells', async t => {
  const law = fc.property(streams, lineEnds, (texts, lineEnd) => {
    const bytes = bytesOf(withLineEnds(texts.join(''), lineEnd))
    const whole = play([[0, bytes]], 1, { takeUsage: true })
    const single = play(
      Array.from(bytes, (_, i) => [i, bytes.subarray(i, i + 1)] as const),
      bytes.length,
      { takeUsage: true },
    )
    assert.deepEqual(counts(single.meter), counts(whole.meter))
    assert.deepEqual(single.sent, whole.sent)
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 200 }))
})

t.test('a comment put in wherever it may be changes no event for the client', async t => {
  const law = fc.property(streams, lineEnds, cuts, (texts, lineEnd, places) => {
    const bytes = bytesOf(withLineEnds(texts.join(''), lineEnd))
    const meter = newMeter({ eventLimit: 100 })
    const seen: Uint8Array[] = []
    const note = (meter: Meter) => {
      seen.push(...meter.out)
      if (meter.between) seen.push(bytesOf(': weir\n\n'))
    }
    for (const [i, piece] of numbered(cutAt(bytes, places))) {
      meter.push(piece, i)
      note(meter)
    }
    meter.end(99)
    note(meter)
    assert.deepEqual(parsed(textOf(concat(seen))), parsed(textOf(bytes)))
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 500 }))
})

t.test('whatever the bytes are, they pass through, and the cut changes no count', async t => {
  // Mostly bytes that mean something to a parser, so that it gets further than its first line.
  const parts = fc.oneof(
    fc.uint8Array({ maxLength: 8 }),
    fc
      .constantFrom(
        'data:',
        'data: ',
        '\n',
        '\r\n',
        '\r',
        '\n\n',
        ':',
        '{"choices":[',
        '{"delta":{"content":"',
        '"',
        '}]}',
      )
      .map(bytesOf),
    fc
      .constantFrom(
        'event: error',
        '\\u00',
        '\ufeff',
        '"usage":{',
        '1e',
        'null',
        'data: {}\n\n',
        'data: [DONE]\r\r',
      )
      .map(bytesOf),
  )
  const garbage = fc.array(parts, { maxLength: 40 }).map(concat)
  const limits = fc.constantFrom(16, 64, 1 << 20)
  const law = fc.property(garbage, cuts, limits, (bytes, places, eventLimit) => {
    const whole = play([[0, bytes]], 1, { eventLimit })
    const cut = play(
      numbered(
        cutAt(
          bytes,
          places.map(place => place % 120),
        ),
      ),
      99,
      { eventLimit },
    )
    const single = play(
      numbered(
        cutAt(
          bytes,
          Array.from(bytes, (_, i) => i),
        ),
      ),
      9999,
      { eventLimit },
    )
    assert.deepEqual(whole.sent, bytes)
    assert.deepEqual(cut.sent, bytes)
    assert.deepEqual(single.sent, bytes)
    assert.deepEqual(counts(cut.meter), counts(whole.meter))
    assert.deepEqual(counts(single.meter), counts(whole.meter))
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 3000 }))
})
