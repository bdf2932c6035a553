/**
 * Reads the typed events of the OpenAI Responses API, and its answers that are no stream.
 * Source of names and members: openai/openai-node 6.49, src/resources/responses/responses.ts (ResponseStreamEvent,
 * Response, ResponseUsage). An `error` event is documented flat and sent nested (openai/openai-dotnet issue 881): both.
 */
import type { EventMarks, EventReader, UsageNames } from './event-marks.js'
import { ascii, JsonWalk } from './json.js'

const TYPE = ascii('type')
const DELTA = ascii('delta')
const ITEM = ascii('item')
const RESPONSE = ascii('response')
const ERROR = ascii('error')
const CODE = ascii('code')
const ID = ascii('id')
const STATUS = ascii('status')
const STATUS_FAILED = ascii('failed')
const STATUS_CANCELLED = ascii('cancelled')
const USAGE_NAMES: UsageNames = {
  prompt: ascii('input_tokens'),
  promptDetails: ascii('input_tokens_details'),
  completion: ascii('output_tokens'),
  completionDetails: ascii('output_tokens_details'),
}
const USAGE = ascii('usage')

const ANY_DELTA = ascii('.delta')
const TEXT_DELTA = ascii('response.output_text.delta')
const REFUSAL_DELTA = ascii('response.refusal.delta')
const ITEM_ADDED = ascii('response.output_item.added')
const COMPLETED = ascii('response.completed')
const INCOMPLETE = ascii('response.incomplete')
const FAILED = ascii('response.failed')
/** The end of function_call, custom_tool_call, mcp_call, and of the calls of built-in tools, which come without deltas. */
const ANY_CALL = ascii('_call')

type Kind = 'other' | 'delta' | 'visible' | 'item' | 'done' | 'error'

/** A stream is one answer without choices: all its output items are one sequence of tokens. */
export class ResponsesReader implements EventReader {
  readonly #marks: EventMarks
  readonly #json = new JsonWalk()

  constructor(marks: EventMarks) {
    this.#marks = marks
  }

  read(bytes: Uint8Array, from: number, to: number): boolean {
    const json = this.#json
    const marks = this.#marks
    marks.reset()
    json.start(bytes, from, to)
    // Servers built on openai-python (vLLM) send the type last: what the other members mean is decided at the end.
    let kind: Kind = 'other'
    let filled = false
    let call = false
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(TYPE)) kind = this.#readType()
        else if (json.is(DELTA)) filled = json.filled()
        else if (json.is(ITEM)) call = this.#readItem()
        else if (json.is(RESPONSE)) this.#readResponse()
        else if (json.is(ERROR)) marks.readError(json)
        else if (json.is(CODE)) marks.rootCode = json.numberOrDigits()
        else json.skip()
      }
    } else json.skip()
    if (!json.whole()) return false
    if (kind === 'error') marks.error = true
    marks.done = kind === 'done'
    marks.visible = kind === 'visible' && filled
    // An unfinished response has no usage yet, whatever zeros it is sent with.
    if (!marks.done) marks.hasUsage = false
    const output = marks.visible || (kind === 'delta' && filled) || (kind === 'item' && call)
    if (output || marks.done) marks.choice(0, output, marks.done)
    return true
  }

  readBody(bytes: Uint8Array): boolean {
    this.#marks.reset()
    this.#json.start(bytes, 0, bytes.length)
    this.#readResponse()
    return this.#json.whole()
  }

  #readType(): Kind {
    const json = this.#json
    if (!json.text()) return 'other'
    if (json.endsWith(ANY_DELTA)) return json.is(TEXT_DELTA) || json.is(REFUSAL_DELTA) ? 'visible' : 'delta'
    if (json.is(ITEM_ADDED)) return 'item'
    if (json.is(COMPLETED) || json.is(INCOMPLETE)) return 'done'
    return json.is(FAILED) || json.is(ERROR) ? 'error' : 'other'
  }

  /** @returns true if the item is a call */
  #readItem(): boolean {
    const json = this.#json
    let call = false
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(TYPE)) call = json.text() && json.endsWith(ANY_CALL)
        else json.skip()
      }
    } else json.skip()
    return call
  }

  /** A response object; or, as a whole body, the error object that came in its place. */
  #readResponse(): void {
    const json = this.#json
    const marks = this.#marks
    if (!json.enterObject()) {
      json.skip()
      return
    }
    while (json.member()) {
      if (json.is(ID)) marks.readId(json)
      else if (json.is(STATUS)) {
        if (json.text()) {
          if (json.is(STATUS_FAILED)) marks.error = true
          else if (json.is(STATUS_CANCELLED)) marks.aborted = true
        }
      } else if (json.is(USAGE)) marks.readUsage(json, USAGE_NAMES)
      else if (json.is(ERROR)) marks.readError(json)
      else json.skip()
    }
  }
}
