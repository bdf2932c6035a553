/** Finds what one event's JSON carries: output by choice, finish reasons, usage, an error. */
import type { Usage } from '../slo/latency.js'
import { ascii, JsonWalk } from './json.js'

/** Shape of the stream: chat.completion.chunk, or text_completion. */
export type StreamShape = 'chat' | 'completions'

/** Choices told apart, the most that the API's `n` allows; all further indices share one more slot. */
export const CHOICE_SLOTS = 129
const LAST_SLOT = CHOICE_SLOTS - 1

/** Bits of a choice in one event. */
const SEEN = 1
export const OUTPUT = 2
export const FINISHED = 4

const CHOICES = ascii('choices')
const USAGE = ascii('usage')
const ERROR = ascii('error')
const OBJECT = ascii('object')
const CODE = ascii('code')
const STATUS = ascii('status')
const INDEX = ascii('index')
const DELTA = ascii('delta')
const TEXT = ascii('text')
const FINISH_REASON = ascii('finish_reason')
const ABORT = ascii('abort')
const CONTENT = ascii('content')
const REFUSAL = ascii('refusal')
const REASONING = ascii('reasoning')
const REASONING_CONTENT = ascii('reasoning_content')
const AUDIO = ascii('audio')
const DATA = ascii('data')
const TOOL_CALLS = ascii('tool_calls')
const FUNCTION = ascii('function')
const FUNCTION_CALL = ascii('function_call')
const NAME = ascii('name')
const ARGUMENTS = ascii('arguments')
const PROMPT_TOKENS = ascii('prompt_tokens')
const PROMPT_DETAILS = ascii('prompt_tokens_details')
const CACHED_TOKENS = ascii('cached_tokens')
const COMPLETION_TOKENS = ascii('completion_tokens')
const COMPLETION_DETAILS = ascii('completion_tokens_details')
const REASONING_TOKENS = ascii('reasoning_tokens')

/** What one event carries. One object serves all events of a stream: `read` overwrites what the last one left. */
export class Marks {
  /** Output of any kind, in any choice. */
  output = false
  /** Content, text or refusal: what a user sees of an answer. */
  visible = false
  /** `choices` is there and not empty. */
  hasChoices = false
  /** `usage` is there and an object. */
  hasUsage = false
  /** A finish reason that is no end of an answer. */
  aborted = false
  /** `error` at the root is an object or a text, or the root itself says that it is an error. */
  error = false
  /** The slots that `bits` speaks of: the first `count` of them. */
  readonly slots = new Uint8Array(CHOICE_SLOTS)
  readonly bits = new Uint8Array(CHOICE_SLOTS)
  count = 0

  readonly #json = new JsonWalk()
  readonly #completions: boolean
  #prompt = Number.NaN
  #completion = Number.NaN
  #cached = Number.NaN
  #reasoning = Number.NaN
  #rootCode = Number.NaN
  #code = Number.NaN
  #status = Number.NaN

  constructor(shape: StreamShape) {
    this.#completions = shape === 'completions'
  }

  /** @returns false if the bytes are not one JSON value: what is told then means nothing */
  read(bytes: Uint8Array, from: number, to: number): boolean {
    this.#reset()
    const json = this.#json
    json.start(bytes, from, to)
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(CHOICES)) this.#readChoices()
        else if (json.is(USAGE)) this.#readUsage()
        else if (json.is(OBJECT)) {
          if (json.text() && json.is(ERROR)) this.error = true
        } else if (json.is(ERROR)) this.#readError()
        else if (json.is(CODE)) this.#rootCode = json.numberOrDigits()
        else json.skip()
      }
    } else json.skip()
    return json.whole()
  }

  /** Undefined without a number of completion tokens; prompt tokens that are not told count as 0. */
  usage(): Usage | undefined {
    const completionTokens = tokens(this.#completion)
    if (completionTokens === undefined) return undefined
    return {
      promptTokens: tokens(this.#prompt) ?? 0,
      completionTokens,
      cachedTokens: tokens(this.#cached),
      reasoningTokens: tokens(this.#reasoning),
    }
  }

  /** An HTTP status, 400 to 599, from `error.code`, else `error.status`, else `code` at the root. */
  errorStatus(): number | undefined {
    return httpStatus(this.#code) ?? httpStatus(this.#status) ?? httpStatus(this.#rootCode)
  }

  #reset(): void {
    for (let i = 0; i < this.count; i++) this.bits[this.slots[i] as number] = 0
    this.count = 0
    this.output = false
    this.visible = false
    this.hasChoices = false
    this.hasUsage = false
    this.aborted = false
    this.error = false
    this.#prompt = Number.NaN
    this.#completion = Number.NaN
    this.#cached = Number.NaN
    this.#reasoning = Number.NaN
    this.#rootCode = Number.NaN
    this.#code = Number.NaN
    this.#status = Number.NaN
  }

  #readChoices(): void {
    const json = this.#json
    if (!json.enterArray()) {
      json.skip()
      return
    }
    for (let place = 0; json.element(); place++) {
      this.hasChoices = true
      if (json.enterObject()) this.#readChoice(place)
      else json.skip()
    }
  }

  /** @param place  stands for the index where there is none */
  #readChoice(place: number): void {
    const json = this.#json
    let index = place
    let visible = false
    let output = false
    let finished = false
    while (json.member()) {
      if (json.is(INDEX)) {
        const told = json.number()
        if (!Number.isNaN(told)) index = told
      } else if (json.is(FINISH_REASON)) {
        if (json.text()) {
          finished = true
          if (json.is(ABORT) || json.is(ERROR)) this.aborted = true
        }
      } else if (this.#completions) {
        if (json.is(TEXT)) visible = json.filled() || visible
        else json.skip()
      } else if (json.is(DELTA) && json.enterObject()) {
        while (json.member()) {
          if (json.is(CONTENT) || json.is(REFUSAL)) visible = json.filled() || visible
          else output = this.#readOther() || output
        }
      } else json.skip()
    }
    if (visible) this.visible = true
    output ||= visible
    if (output) this.output = true
    const slot = index >= 0 && index < LAST_SLOT && Number.isInteger(index) ? index : LAST_SLOT
    if (this.bits[slot] === 0) this.slots[this.count++] = slot
    this.bits[slot] = (this.bits[slot] as number) | SEEN | (output ? OUTPUT : 0) | (finished ? FINISHED : 0)
  }

  /** A member of a delta that is not its content: does it carry output? */
  #readOther(): boolean {
    const json = this.#json
    if (json.is(REASONING_CONTENT) || json.is(REASONING)) return json.filled()
    let output = false
    if (json.is(TOOL_CALLS) && json.enterArray()) {
      while (json.element()) {
        if (json.enterObject()) {
          while (json.member()) {
            if (json.is(FUNCTION)) output = this.#readFunction() || output
            else json.skip()
          }
        } else json.skip()
      }
    } else if (json.is(FUNCTION_CALL)) output = this.#readFunction()
    else if (json.is(AUDIO) && json.enterObject()) {
      while (json.member()) {
        if (json.is(DATA)) output = json.text() || output
        else json.skip()
      }
    } else json.skip()
    return output
  }

  #readFunction(): boolean {
    const json = this.#json
    let output = false
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(NAME) || json.is(ARGUMENTS)) output = json.filled() || output
        else json.skip()
      }
    } else json.skip()
    return output
  }

  #readUsage(): void {
    const json = this.#json
    if (!json.enterObject()) {
      json.skip()
      return
    }
    this.hasUsage = true
    while (json.member()) {
      if (json.is(PROMPT_TOKENS)) this.#prompt = json.number()
      else if (json.is(COMPLETION_TOKENS)) this.#completion = json.number()
      else if (json.is(PROMPT_DETAILS)) this.#cached = this.#readDetail(CACHED_TOKENS)
      else if (json.is(COMPLETION_DETAILS)) this.#reasoning = this.#readDetail(REASONING_TOKENS)
      else json.skip()
    }
  }

  #readDetail(name: Uint8Array): number {
    const json = this.#json
    let detail = Number.NaN
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(name)) detail = json.number()
        else json.skip()
      }
    } else json.skip()
    return detail
  }

  #readError(): void {
    const json = this.#json
    if (!json.enterObject()) {
      if (json.text()) this.error = true
      return
    }
    this.error = true
    while (json.member()) {
      if (json.is(CODE)) this.#code = json.numberOrDigits()
      else if (json.is(STATUS)) this.#status = json.numberOrDigits()
      else json.skip()
    }
  }
}

/** What an answer that is one JSON body tells of itself. */
export interface AnswerFacts {
  /** The body is one JSON value; if not, the rest tells nothing. */
  readonly json: boolean
  readonly usage: Usage | undefined
  /** The body holds an error, whatever its status line said. */
  readonly error: boolean
  /** As `Marks.errorStatus`. */
  readonly errorStatus: number | undefined
  /** A choice's finish reason is `abort` or `error`. */
  readonly aborted: boolean
}

/** Reads the whole body of an answer that is no stream. Linear in its length; never throws. */
export function readAnswer(body: Uint8Array): AnswerFacts {
  const marks = new Marks('chat')
  const json = marks.read(body, 0, body.length)
  return {
    json,
    usage: json ? marks.usage() : undefined,
    error: json && marks.error,
    errorStatus: json && marks.error ? marks.errorStatus() : undefined,
    aborted: json && marks.aborted,
  }
}

function tokens(count: number): number | undefined {
  return Number.isSafeInteger(count) && count >= 0 ? count : undefined
}

function httpStatus(code: number): number | undefined {
  return Number.isInteger(code) && code >= 400 && code <= 599 ? code : undefined
}
