/** What holds for every stream, however it is cut: the meter beside eventsource-parser and JSON.parse. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { Meter } from '../../src/sse/meter.js'
import { cuts, lineEnds, STREAMS } from './arbitrary.js'
import { judge, parsed } from './oracle.js'
import { bytesOf, concat, counts, cutAt, newMeter, play, summary, textOf, withLineEnds } from './streams.js'

const SHAPES = ['chat', 'responses', 'messages'] as const

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
  for (const shape of SHAPES) {
    const law = fc.property(
      STREAMS[shape],
      lineEnds,
      cuts,
      fc.boolean(),
      (texts, lineEnd, places, takeUsage) => {
        const ended = texts.map(text => withLineEnds(text, lineEnd))
        const bytes = bytesOf(ended.join(''))
        const pieces = cutAt(bytes, places)
        let end = 0
        const events = ended.map(text => {
          end += bytesOf(text).length
          return { text, at: arrival(pieces, end) }
        })
        const { told, kept } = judge(events, shape, takeUsage)
        const { meter, sent } = play(numbered(pieces), pieces.length, { shape, takeUsage })
        assert.deepEqual(summary(meter), told)
        assert.equal(textOf(sent), kept)
      },
    )
    t.doesNotThrow(() => fc.assert(law, { numRuns: 1000 }), shape)
  }
})

t.test('one byte per write tells what one write tells', async t => {
  for (const shape of SHAPES) {
    const law = fc.property(STREAMS[shape], lineEnds, (texts, lineEnd) => {
      const bytes = bytesOf(withLineEnds(texts.join(''), lineEnd))
      const whole = play([[0, bytes]], 1, { shape, takeUsage: true })
      const single = play(
        Array.from(bytes, (_, i) => [i, bytes.subarray(i, i + 1)] as const),
        bytes.length,
        { shape, takeUsage: true },
      )
      assert.deepEqual(counts(single.meter), counts(whole.meter))
      assert.deepEqual(single.sent, whole.sent)
    })
    t.doesNotThrow(() => fc.assert(law, { numRuns: 200 }), shape)
  }
})

t.test('a comment put in wherever it may be changes no event for the client', async t => {
  const law = fc.property(STREAMS.chat, lineEnds, cuts, (texts, lineEnd, places) => {
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
        'data: {"type":"response.completed","response":{"id":"',
        'data: {"delta":"a","type":"response.x.delta"}\n\n',
        'data: {"type":"message_delta","usage":{"output_tokens":',
        'data: {"type":"error","error":{"type":"api_error"}}\n\n',
      )
      .map(bytesOf),
  )
  const garbage = fc.array(parts, { maxLength: 40 }).map(concat)
  const limits = fc.constantFrom(16, 64, 1 << 20)
  const law = fc.property(
    garbage,
    cuts,
    limits,
    fc.constantFrom(...SHAPES),
    (bytes, places, eventLimit, shape) => {
      const whole = play([[0, bytes]], 1, { shape, eventLimit })
      const cut = play(
        numbered(
          cutAt(
            bytes,
            places.map(place => place % 120),
          ),
        ),
        99,
        { shape, eventLimit },
      )
      const single = play(
        numbered(
          cutAt(
            bytes,
            Array.from(bytes, (_, i) => i),
          ),
        ),
        9999,
        { shape, eventLimit },
      )
      assert.deepEqual(whole.sent, bytes)
      assert.deepEqual(cut.sent, bytes)
      assert.deepEqual(single.sent, bytes)
      assert.deepEqual(counts(cut.meter), counts(whole.meter))
      assert.deepEqual(counts(single.meter), counts(whole.meter))
    },
  )
  t.doesNotThrow(() => fc.assert(law, { numRuns: 3000 }))
})
