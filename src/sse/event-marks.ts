/** What one event, or one whole JSON answer, carries: the same facts for every shape of stream. */
import type { Usage } from '../slo/latency.js'
import { ascii, type JsonWalk } from './json.js'

/** Choices told apart, the most that the API's `n` allows; all further indices share one more slot. */
export const CHOICE_SLOTS = 129
const LAST_SLOT = CHOICE_SLOTS - 1

/** Bits of a choice in one event. */
const SEEN = 1
export const OUTPUT = 2
export const FINISHED = 4

/** Bytes; a longer id is not taken, since whoever keeps ids keeps many. */
const MAX_ID = 1024

const CODE = ascii('code')
const STATUS = ascii('status')
const TYPE = ascii('type')

/** HTTP statuses that stand for the words of `error.type`. */
export type ErrorTypes = readonly (readonly [type: Uint8Array, status: number])[]

const NO_TYPES: ErrorTypes = []

/** Reads the JSON of one shape. One reader serves one stream: it may remember what earlier events told. */
export interface EventReader {
  /**
   * Reads one event's data into the marks that the reader was made with, over what the last event left there.
   * @returns false if the bytes are not one JSON value: what the marks tell then means nothing
   */
  read(bytes: Uint8Array, from: number, to: number): boolean
  /** The same for the body of an answer that is no stream. */
  readBody(bytes: Uint8Array): boolean
}

/** How an API calls the members of its usage. */
export interface UsageNames {
  readonly prompt: Uint8Array
  readonly promptDetails: Uint8Array
  readonly completion: Uint8Array
  readonly completionDetails: Uint8Array
}

const CACHED_TOKENS = ascii('cached_tokens')
const REASONING_TOKENS = ascii('reasoning_tokens')

/** Filled anew by each `read` of a reader. One object serves all events of a stream. */
export class EventMarks {
  /** Output of any kind, in any choice. */
  output = false
  /** Content, text or refusal: what a user sees of an answer. */
  visible = false
  /** `choices` is there and not empty. */
  hasChoices = false
  /** Usage is there, and counts for the whole answer. */
  hasUsage = false
  /** The event ends the stream by the protocol of its shape. */
  done = false
  /** A finish reason that is no end of an answer. */
  aborted = false
  /** The event says that the answer failed. */
  error = false
  /** The slots that `bits` speaks of: the first `count` of them. */
  readonly slots = new Uint8Array(CHOICE_SLOTS)
  readonly bits = new Uint8Array(CHOICE_SLOTS)
  count = 0

  /** Tokens, as `Usage` names them; NaN where they are not told. */
  prompt = Number.NaN
  completion = Number.NaN
  cached = Number.NaN
  reasoning = Number.NaN
  /** `code` beside the error, not inside it. */
  rootCode = Number.NaN

  /** Where the id of the answer lies in the bytes read, between its quotes. */
  #idFrom = 0
  #idTo = 0
  #code = Number.NaN
  #status = Number.NaN
  #typeStatus = Number.NaN

  reset(): void {
    for (let i = 0; i < this.count; i++) this.bits[this.slots[i] as number] = 0
    this.count = 0
    this.output = false
    this.visible = false
    this.hasChoices = false
    this.hasUsage = false
    this.done = false
    this.aborted = false
    this.error = false
    this.prompt = Number.NaN
    this.completion = Number.NaN
    this.cached = Number.NaN
    this.reasoning = Number.NaN
    this.rootCode = Number.NaN
    this.#idFrom = 0
    this.#idTo = 0
    this.#code = Number.NaN
    this.#status = Number.NaN
    this.#typeStatus = Number.NaN
  }

  /** Notes that the event speaks of the choice at `index`. Answers without choices are one, at 0. */
  choice(index: number, output: boolean, finished: boolean): void {
    if (output) this.output = true
    const slot = index >= 0 && index < LAST_SLOT && Number.isInteger(index) ? index : LAST_SLOT
    if (this.bits[slot] === 0) this.slots[this.count++] = slot
    this.bits[slot] = (this.bits[slot] as number) | SEEN | (output ? OUTPUT : 0) | (finished ? FINISHED : 0)
  }

  /** Undefined without a number of completion tokens; prompt tokens that are not told count as 0. */
  usage(): Usage | undefined {
    const completionTokens = tokens(this.completion)
    if (completionTokens === undefined) return undefined
    return {
      promptTokens: tokens(this.prompt) ?? 0,
      completionTokens,
      cachedTokens: tokens(this.cached),
      reasoningTokens: tokens(this.reasoning),
    }
  }

  /** An HTTP status, 400 to 599: `error.code`, else `error.status`, else what its type stands for, else `rootCode`. */
  errorStatus(): number | undefined {
    return (
      httpStatus(this.#code) ??
      httpStatus(this.#status) ??
      httpStatus(this.#typeStatus) ??
      httpStatus(this.rootCode)
    )
  }

  /** The value of a `usage` member; one that is no object tells nothing. */
  readUsage(json: JsonWalk, names: UsageNames): void {
    if (!json.enterObject()) {
      json.skip()
      return
    }
    this.hasUsage = true
    while (json.member()) {
      if (json.is(names.prompt)) this.prompt = json.number()
      else if (json.is(names.completion)) this.completion = json.number()
      else if (json.is(names.promptDetails)) this.cached = json.numberIn(CACHED_TOKENS)
      else if (json.is(names.completionDetails)) this.reasoning = json.numberIn(REASONING_TOKENS)
      else json.skip()
    }
  }

  /** The value of an `error` member: an error if it is an object, or a text that is not empty. */
  readError(json: JsonWalk, types = NO_TYPES): void {
    if (!json.enterObject()) {
      if (json.text()) this.error = true
      return
    }
    this.error = true
    while (json.member()) {
      if (json.is(CODE)) this.#code = json.numberOrDigits()
      else if (json.is(STATUS)) this.#status = json.numberOrDigits()
      else if (json.is(TYPE)) {
        if (json.text()) for (const [type, status] of types) if (json.is(type)) this.#typeStatus = status
      } else json.skip()
    }
  }

  /** The value of an `id` member. */
  readId(json: JsonWalk): void {
    if (!json.text()) return
    this.#idFrom = json.from
    this.#idTo = json.to
  }

  get hasId(): boolean {
    return this.#idTo > this.#idFrom
  }

  /** Decodes the id. Call it only after a `read` of these bytes that was true. */
  id(bytes: Uint8Array): string | undefined {
    if (!this.hasId || this.#idTo - this.#idFrom > MAX_ID) return undefined
    return JSON.parse(new TextDecoder().decode(bytes.subarray(this.#idFrom - 1, this.#idTo + 1)))
  }
}

/** A number of tokens, undefined where none was told that can be one. */
export function tokens(count: number): number | undefined {
  return Number.isSafeInteger(count) && count >= 0 ? count : undefined
}

function httpStatus(code: number): number | undefined {
  return Number.isInteger(code) && code >= 400 && code <= 599 ? code : undefined
}
