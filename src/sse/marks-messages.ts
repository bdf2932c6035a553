/**
 * Reads the events of Anthropic's Messages API, and its answers that are no stream.
 * Source of names and members: anthropics/anthropic-sdk-typescript, src/resources/messages/messages.ts
 * (RawMessageStreamEvent, Usage, MessageDeltaUsage) and src/resources/shared.ts (ErrorObject).
 */
import { type ErrorTypes, type EventMarks, type EventReader, tokens } from './event-marks.js'
import { ascii, JsonWalk } from './json.js'

const TYPE = ascii('type')
const MESSAGE = ascii('message')
const CONTENT_BLOCK = ascii('content_block')
const DELTA = ascii('delta')
const TEXT = ascii('text')
const THINKING = ascii('thinking')
const PARTIAL_JSON = ascii('partial_json')
const STOP_REASON = ascii('stop_reason')
const ID = ascii('id')
const ERROR = ascii('error')
const CODE = ascii('code')
const USAGE = ascii('usage')
const INPUT_TOKENS = ascii('input_tokens')
const CACHE_READ = ascii('cache_read_input_tokens')
const CACHE_CREATION = ascii('cache_creation_input_tokens')
const OUTPUT_TOKENS = ascii('output_tokens')
const OUTPUT_DETAILS = ascii('output_tokens_details')
const THINKING_TOKENS = ascii('thinking_tokens')

const MESSAGE_START = ascii('message_start')
const BLOCK_START = ascii('content_block_start')
const BLOCK_DELTA = ascii('content_block_delta')
const MESSAGE_DELTA = ascii('message_delta')
const MESSAGE_STOP = ascii('message_stop')
/** The end of tool_use, server_tool_use and mcp_tool_use. */
const ANY_TOOL_USE = ascii('tool_use')

/** Source: "Claude API errors", platform.claude.com/docs/en/api/errors. */
const ERROR_TYPES: ErrorTypes = [
  [ascii('invalid_request_error'), 400],
  [ascii('authentication_error'), 401],
  [ascii('billing_error'), 402],
  [ascii('permission_error'), 403],
  [ascii('not_found_error'), 404],
  [ascii('conflict_error'), 409],
  [ascii('request_too_large'), 413],
  [ascii('rate_limit_error'), 429],
  [ascii('api_error'), 500],
  [ascii('timeout_error'), 504],
  [ascii('overloaded_error'), 529],
]

type Kind = 'other' | 'start' | 'block' | 'delta' | 'end' | 'stop' | 'error'

/** A usage object; NaN where a count is null or not there. */
interface Counts {
  input: number
  cacheRead: number
  cacheCreation: number
  output: number
  thinking: number
}

function noCounts(): Counts {
  const none = Number.NaN
  return { input: none, cacheRead: none, cacheCreation: none, output: none, thinking: none }
}

/** A stream is one answer without choices: all its content blocks are one sequence of tokens. */
export class MessagesReader implements EventReader {
  readonly #marks: EventMarks
  readonly #json = new JsonWalk()
  /** Of the event being read. */
  #counts: Counts | undefined
  /** Of the stream so far: counts are cumulative, and the prompt's need not be told again after `message_start`. */
  readonly #told = noCounts()
  /** Of the event being read: what its `delta` holds. */
  #visible = false
  #output = false
  #finished = false

  constructor(marks: EventMarks) {
    this.#marks = marks
  }

  read(bytes: Uint8Array, from: number, to: number): boolean {
    const json = this.#json
    const marks = this.#marks
    this.#reset()
    json.start(bytes, from, to)
    // Members come in any order: what they mean is decided at the end.
    let kind: Kind = 'other'
    let tool = false
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(TYPE)) kind = this.#readType()
        else if (json.is(DELTA)) this.#readDelta()
        else if (json.is(CONTENT_BLOCK)) tool = this.#readBlock()
        else if (json.is(MESSAGE)) this.#readMessage()
        else if (json.is(USAGE)) this.#readUsage()
        else if (json.is(ERROR)) marks.readError(json, ERROR_TYPES)
        else if (json.is(CODE)) marks.rootCode = json.numberOrDigits()
        else json.skip()
      }
    } else json.skip()
    if (!json.whole()) return false
    const finished = kind === 'end' && this.#finished
    marks.visible = kind === 'delta' && this.#visible
    const output = kind === 'delta' ? this.#output : kind === 'block' && tool
    if (output || finished) marks.choice(0, output, finished)
    marks.done = kind === 'stop'
    if (kind === 'error') marks.error = true
    if (kind === 'start') this.#keepPrompt()
    else if (kind === 'end') this.#keepAll()
    return true
  }

  readBody(bytes: Uint8Array): boolean {
    this.#reset()
    this.#json.start(bytes, 0, bytes.length)
    this.#readMessage()
    if (!this.#json.whole()) return false
    this.#keepAll()
    return true
  }

  #reset(): void {
    this.#marks.reset()
    this.#counts = undefined
    this.#visible = false
    this.#output = false
    this.#finished = false
  }

  #readType(): Kind {
    const json = this.#json
    if (!json.text()) return 'other'
    if (json.is(BLOCK_DELTA)) return 'delta'
    if (json.is(BLOCK_START)) return 'block'
    if (json.is(MESSAGE_DELTA)) return 'end'
    if (json.is(MESSAGE_START)) return 'start'
    if (json.is(MESSAGE_STOP)) return 'stop'
    return json.is(ERROR) ? 'error' : 'other'
  }

  /** The delta of a content block, or of the message. */
  #readDelta(): void {
    const json = this.#json
    if (!json.enterObject()) {
      json.skip()
      return
    }
    while (json.member()) {
      if (json.is(TEXT)) this.#visible = json.text()
      else if (json.is(THINKING) || json.is(PARTIAL_JSON)) this.#output = json.text() || this.#output
      else if (json.is(STOP_REASON)) this.#finished = json.text()
      else json.skip()
    }
    this.#output ||= this.#visible
  }

  /** @returns true if the block is the call of a tool */
  #readBlock(): boolean {
    const json = this.#json
    let tool = false
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(TYPE)) tool = json.text() && json.endsWith(ANY_TOOL_USE)
        else json.skip()
      }
    } else json.skip()
    return tool
  }

  /** A message object; or, as a whole body, the error object that came in its place. */
  #readMessage(): void {
    const json = this.#json
    const marks = this.#marks
    if (!json.enterObject()) {
      json.skip()
      return
    }
    while (json.member()) {
      if (json.is(ID)) marks.readId(json)
      else if (json.is(USAGE)) this.#readUsage()
      else if (json.is(TYPE)) {
        if (json.text() && json.is(ERROR)) marks.error = true
      } else if (json.is(ERROR)) marks.readError(json, ERROR_TYPES)
      else json.skip()
    }
  }

  #readUsage(): void {
    const json = this.#json
    if (!json.enterObject()) {
      json.skip()
      return
    }
    const counts = noCounts()
    this.#counts = counts
    while (json.member()) {
      if (json.is(INPUT_TOKENS)) counts.input = json.number()
      else if (json.is(CACHE_READ)) counts.cacheRead = json.number()
      else if (json.is(CACHE_CREATION)) counts.cacheCreation = json.number()
      else if (json.is(OUTPUT_TOKENS)) counts.output = json.number()
      else if (json.is(OUTPUT_DETAILS)) counts.thinking = json.numberIn(THINKING_TOKENS)
      else json.skip()
    }
  }

  /** `message_start` comes before the answer: its output tokens are no count of it. */
  #keepPrompt(): void {
    const told = this.#told
    const counts = this.#counts
    if (counts === undefined) return
    told.input = tokens(counts.input) ?? told.input
    told.cacheRead = tokens(counts.cacheRead) ?? told.cacheRead
    told.cacheCreation = tokens(counts.cacheCreation) ?? told.cacheCreation
  }

  #keepAll(): void {
    const told = this.#told
    const marks = this.#marks
    const counts = this.#counts
    if (counts === undefined) return
    this.#keepPrompt()
    told.output = tokens(counts.output) ?? told.output
    told.thinking = tokens(counts.thinking) ?? told.thinking
    marks.hasUsage = true
    // "Total input tokens in a request is the summation" of the three: doc of `Message.usage` in the source above.
    marks.prompt =
      (tokens(told.input) ?? 0) + (tokens(told.cacheRead) ?? 0) + (tokens(told.cacheCreation) ?? 0)
    marks.completion = told.output
    marks.cached = told.cacheRead
    marks.reasoning = told.thinking
  }
}
