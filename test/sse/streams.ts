/** Event streams for the tests of src/sse, in the notation of the bug cases. */
import { Meter, type MeterOptions } from '../../src/sse/meter.js'

export type Json = Record<string, unknown>

const encoder = new TextEncoder()
const decoder = new TextDecoder()

export const bytesOf = (text: string): Uint8Array => encoder.encode(text)
export const textOf = (bytes: Uint8Array): string => decoder.decode(bytes)

export const data = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`

/** One chunk with one choice. */
export const choice = (delta: unknown, finish: string | null = null, index = 0): string =>
  data({ id: 'c1', object: 'chat.completion.chunk', choices: [{ index, delta, finish_reason: finish }] })

export const ROLE = choice({ role: 'assistant', content: '' })
export const tok = (content: string, index = 0): string => choice({ content }, null, index)
export const FIN = choice({}, 'stop')
export const usage = (prompt: number, completion: number): string =>
  data({
    id: 'c1',
    choices: [],
    usage: { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion },
  })
export const DONE = 'data: [DONE]\n\n'

/** The same stream with other line ends. */
export const withLineEnds = (text: string, lineEnd: string): string => text.replaceAll('\n', lineEnd)

export function newMeter(options: Partial<MeterOptions> = {}): Meter {
  return new Meter({ shape: 'chat', takeUsage: false, eventLimit: 1 << 20, ...options })
}

export function concat(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

export interface Played {
  readonly meter: Meter
  /** All that was sent on; joined at the very end, so that a slice that was written over shows. */
  readonly sent: Uint8Array
}

/** Pushes texts at the times before them, then ends at `endAt` (undefined: no end). */
export function play(
  steps: readonly (readonly [at: number, bytes: string | Uint8Array])[],
  endAt?: number,
  options: Partial<MeterOptions> = {},
): Played {
  const meter = newMeter(options)
  const parts: Uint8Array[] = []
  for (const [at, bytes] of steps) {
    meter.push(typeof bytes === 'string' ? bytesOf(bytes) : bytes, at)
    parts.push(...meter.out)
  }
  if (endAt !== undefined) {
    meter.end(endAt)
    parts.push(...meter.out)
  }
  return { meter, sent: concat(parts) }
}

/** Cuts at the places given, in any order; places outside do nothing. */
export function cutAt(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const inside = places.filter(place => place > 0 && place < bytes.length)
  const edges = [0, ...new Set(inside.sort((a, b) => a - b)), bytes.length]
  return edges.slice(1).map((edge, i) => bytes.subarray(edges[i], edge))
}

/** What a stream told in the end, for comparing two ways of cutting it. */
export function summary(meter: Meter): Record<string, unknown> {
  const { firstEvent, firstOutput, firstVisible, lastOutput, longestGap } = meter
  return { firstEvent, firstOutput, firstVisible, lastOutput, longestGap, ...counts(meter) }
}

/** The part of it in which there are no times. */
export function counts(meter: Meter): Record<string, unknown> {
  const { marks, longestChoiceMarks, usage, responseId, done, finished, aborted, error, unparsed, partial } =
    meter
  return { marks, longestChoiceMarks, usage, responseId, done, finished, aborted, error, unparsed, partial }
}
