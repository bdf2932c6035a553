/** Follows one event stream: where its events end, what they carry, and what may go on to the client. */
import type { Progress, Usage } from '../slo/latency.js'
import type { Ms } from '../time.js'
import { CHOICE_SLOTS, EventMarks, type EventReader, FINISHED, OUTPUT } from './event-marks.js'
import { Fields } from './fields.js'
import { ascii } from './json.js'
import { readerOf, type StreamShape } from './marks.js'
import { Scanner } from './scan.js'
import { Tail } from './tail.js'

export type { StreamShape } from './marks.js'

/** Bytes of an incomplete event that are kept back; a longer event goes on as it comes, and is never taken out. */
const HOLD_LIMIT = 64 * 1024

const DONE = ascii('[DONE]')

/** An error event in the stream, as its upstream told it. */
export interface StreamError {
  /**
   * 400 to 599: `error.code`, else `error.status`, else what a message's `error.type` stands for, else `code` at the
   * root; as a number or in digits.
   */
  readonly status: number | undefined
  /** The event's data, as JSON text. Data that is not JSON is the message of an error object. */
  readonly body: string
}

export interface MeterOptions {
  readonly shape: StreamShape
  /** Take out the usage-only event that Weir asked for; chat and completions only, elsewhere usage is the protocol's. */
  readonly takeUsage: boolean
  /** Longest event that is looked into, bytes. A longer one goes through unread and counts as unparsed. */
  readonly eventLimit: number
}

/**
 * The progress of one stream, from its bytes and the times they came. All events that end in one chunk came at that
 * chunk's time. Never throws, whatever the bytes are.
 */
export class Meter implements Progress {
  /** What may go to the client now, in order. Reused: the array is valid until the next call, its bytes for good. */
  readonly out: Uint8Array[] = []
  readonly streamed = true
  firstEvent: Ms | undefined
  firstOutput: Ms | undefined
  /** First content, text or refusal. */
  firstVisible: Ms | undefined
  lastOutput: Ms | undefined
  marks = 0
  longestChoiceMarks = 0
  longestGap: Ms | undefined
  /** The last one told: an engine may tell it with every event. */
  usage: Usage | undefined
  throttled = false
  /** Id of the response or the message, once an event told it; chat and completions have none. */
  responseId: string | undefined
  /** The stream's end came: `[DONE]`; `response.completed` or `response.incomplete`; `message_stop`. */
  done = false
  /** A finish reason that is no end of an answer came: `abort`, `error`; or a response was cancelled. */
  aborted = false
  /** The first error event. */
  error: StreamError | undefined
  /** Events longer than the limit, or whose data is not JSON. */
  unparsed = 0

  /** The shape has a `usage` that may be asked for and an end that is no JSON. */
  readonly #choicesShape: boolean
  readonly #takeUsage: boolean
  readonly #eventLimit: number
  readonly #scanner = new Scanner()
  readonly #fields = new Fields()
  readonly #found = new EventMarks()
  readonly #reader: EventReader
  /** The incomplete block; or, while `#flowing`, a copy of it to read at its end. */
  readonly #tail = new Tail()
  /** A part of the incomplete block was sent on. */
  #flowing = false
  /** The incomplete block is too long, or not an event: no more of it is copied. */
  #unread = false
  /** The last event was taken out, and with it goes what is left of its line end. */
  #took = false
  /** The body ended inside an event that cannot be read. */
  #cut = false

  /** The last event's data could be read. */
  #readable = false
  /** How many of `out` are from this call. An array that keeps its length allocates nothing when it is filled anew. */
  #sent = 0

  readonly #choiceMarks = new Uint32Array(CHOICE_SLOTS)
  readonly #choiceBits = new Uint8Array(CHOICE_SLOTS)
  #choices = 0
  #choicesFinished = 0

  constructor(options: MeterOptions) {
    this.#choicesShape = options.shape === 'chat' || options.shape === 'completions'
    this.#takeUsage = options.takeUsage && this.#choicesShape
    this.#eventLimit = options.eventLimit
    this.#reader = readerOf(options.shape, this.#found)
  }

  /**
   * Everything sent on so far ends between two events: a comment or an error event may be put in here. False after an
   * `end` whose last event had no blank line.
   */
  get between(): boolean {
    return !this.#flowing
  }

  /** An event has begun and is not complete; after `end`, one that was cut so that it could not be read. */
  get partial(): boolean {
    return this.#cut || this.#scanner.open === 'event'
  }

  /** Every choice that was seen has its finish reason, and at least one was seen. */
  get finished(): boolean {
    return this.#choices > 0 && this.#choicesFinished === this.#choices
  }

  /**
   * Reads one chunk that came at `now`. Afterwards `out` holds the bytes so far up to the last complete event or
   * comment line that were not in it before, less the usage event that Weir asked for. An incomplete event is kept
   * back up to 64 KiB; a longer one goes on as it comes.
   * @param chunk  handed on in `out`, itself or in parts: the caller must not write over it
   */
  push(chunk: Uint8Array, now: Ms): void {
    const scanner = this.#scanner
    this.#sent = 0
    let begin = 0
    let unsent = 0
    for (let end = scanner.next(chunk, 0); end >= 0; end = scanner.next(chunk, end)) {
      if (this.#tail.length > 0 || this.#flowing) unsent = this.#endCutBlock(chunk, end, now)
      else if (!this.#readBlock(chunk, begin, end, now)) {
        this.#send(chunk, unsent, begin)
        unsent = end
      }
      begin = end
    }
    if (begin < chunk.length) {
      this.#keep(chunk, begin)
      if (!this.#flowing) {
        this.#send(chunk, unsent, begin)
        unsent = chunk.length
      }
    }
    this.#send(chunk, unsent, chunk.length)
    this.#endOut()
  }

  /**
   * The upstream's body ended properly, at `now`: a last event without its blank line counts, and its bytes are in
   * `out`. Nothing may be pushed after it.
   */
  end(now: Ms): void {
    const tail = this.#tail
    this.#sent = 0
    const whole = this.#scanner.finish()
    let onClient = this.#flowing
    if (this.#unread) this.#readable = false
    else if (tail.length > 0) {
      const stays = this.#readBlock(tail.bytes, 0, tail.length, now)
      if (stays && !onClient) this.#send(tail.bytes, 0, tail.length)
      onClient ||= stays
    }
    this.#cut = !whole && this.#scanner.kind === 'event' && !this.#readable
    this.#flowing = !whole && onClient
    tail.clear()
    this.#endOut()
  }

  #send(bytes: Uint8Array, from: number, to: number): void {
    if (from === to) return
    this.out[this.#sent++] = to - from === bytes.length ? bytes : bytes.subarray(from, to)
  }

  #endOut(): void {
    if (this.out.length !== this.#sent) this.out.length = this.#sent
  }

  /** Takes in what is left of a chunk, the begin or a further part of an incomplete block. */
  #keep(chunk: Uint8Array, from: number): void {
    const tail = this.#tail
    const length = tail.length + chunk.length - from
    if (!this.#flowing && length > Math.min(HOLD_LIMIT, this.#eventLimit)) {
      this.#flowing = true
      this.#send(tail.bytes, 0, tail.length)
    }
    if (this.#unread) return
    const event = this.#scanner.open === 'event'
    if (length > this.#eventLimit || (this.#flowing && !event)) {
      this.#unread = true
      tail.clear()
      if (event) this.unparsed++
    } else tail.add(chunk, from, chunk.length)
  }

  /**
   * The block that began in an earlier chunk ends in this one, at `end`.
   * @returns where the bytes of `chunk` begin that have still to be sent
   */
  #endCutBlock(chunk: Uint8Array, end: number, now: Ms): number {
    const tail = this.#tail
    let unsent = 0
    if (!this.#unread) {
      tail.add(chunk, 0, end)
      const stays = this.#readBlock(tail.bytes, 0, tail.length, now)
      if (!this.#flowing) {
        if (stays) this.#send(tail.bytes, 0, tail.length)
        unsent = end
      }
    } else if (this.#scanner.kind === 'event') this.firstEvent ??= now
    tail.clear()
    this.#flowing = false
    this.#unread = false
    return unsent
  }

  /** @returns false if the block is to be left out of what is sent */
  #readBlock(bytes: Uint8Array, from: number, to: number, now: Ms): boolean {
    const kind = this.#scanner.kind
    if (kind !== 'rest') this.#took = kind === 'event' && this.#readEvent(bytes, from, to, now)
    return !this.#took
  }

  /** @returns true if it is the usage event to take out */
  #readEvent(bytes: Uint8Array, from: number, to: number, now: Ms): boolean {
    this.#readable = false
    if (to - from > this.#eventLimit) {
      this.unparsed++
      this.firstEvent ??= now
      return false
    }
    const fields = this.#fields
    const scanner = this.#scanner
    fields.read(bytes, from + scanner.bom, to, scanner.lines)
    if (fields.dataLines === 0) return false
    this.firstEvent ??= now
    if (isDone(fields)) {
      this.#readable = true
      // Some servers send it after typed events, too. There it ends nothing: an answer without its own end was cut.
      if (this.#choicesShape) this.done = true
      return false
    }
    const found = this.#found
    this.#readable = this.#reader.read(fields.bytes, fields.from, fields.to)
    if (fields.error || (this.#readable && found.error)) {
      this.error ??= streamError(fields, this.#readable, found)
    }
    if (!this.#readable) {
      // Data that is empty is a keep-alive of its own kind.
      if (fields.from < fields.to) this.unparsed++
      return false
    }
    if (fields.error || found.error) return false
    if (found.hasId) this.responseId ??= found.id(fields.bytes)
    if (found.hasUsage) this.usage = found.usage() ?? this.usage
    if (found.output) this.#mark(now)
    if (found.aborted) this.aborted = true
    if (found.done) this.done = true
    for (let i = 0; i < found.count; i++) this.#readChoice(found.slots[i] as number)
    return this.#takeUsage && found.hasUsage && !found.hasChoices && to - from <= HOLD_LIMIT
  }

  #mark(now: Ms): void {
    this.firstOutput ??= now
    if (this.#found.visible) this.firstVisible ??= now
    if (this.lastOutput !== undefined) this.longestGap = Math.max(this.longestGap ?? 0, now - this.lastOutput)
    this.lastOutput = now
    this.marks++
  }

  #readChoice(slot: number): void {
    const before = this.#choiceBits[slot] as number
    const bits = this.#found.bits[slot] as number
    this.#choiceBits[slot] = before | bits
    if (before === 0) this.#choices++
    if ((bits & ~before & FINISHED) !== 0) this.#choicesFinished++
    if ((bits & OUTPUT) === 0) return
    const marks = (this.#choiceMarks[slot] as number) + 1
    this.#choiceMarks[slot] = marks
    if (marks > this.longestChoiceMarks) this.longestChoiceMarks = marks
  }
}

function isDone(fields: Fields): boolean {
  if (fields.to - fields.from !== DONE.length) return false
  for (let i = 0; i < DONE.length; i++) if (fields.bytes[fields.from + i] !== DONE[i]) return false
  return true
}

function streamError(fields: Fields, json: boolean, found: EventMarks): StreamError {
  const text = new TextDecoder().decode(fields.bytes.subarray(fields.from, fields.to))
  if (!json) return { status: undefined, body: JSON.stringify({ error: { message: text } }) }
  return { status: found.errorStatus(), body: text }
}
