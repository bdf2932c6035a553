/** Reads chat.completion.chunk and text_completion: output by choice, finish reasons, usage, an error. */
import type { EventMarks, EventReader, UsageNames } from './event-marks.js'
import { ascii, JsonWalk } from './json.js'

const CHOICES = ascii('choices')
const USAGE_NAMES: UsageNames = {
  prompt: ascii('prompt_tokens'),
  promptDetails: ascii('prompt_tokens_details'),
  completion: ascii('completion_tokens'),
  completionDetails: ascii('completion_tokens_details'),
}
const USAGE = ascii('usage')
const ERROR = ascii('error')
const OBJECT = ascii('object')
const CODE = ascii('code')
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

export class ChatReader implements EventReader {
  readonly #marks: EventMarks
  readonly #json = new JsonWalk()
  readonly #completions: boolean

  /** @param completions  a choice holds `text`, not a `delta` */
  constructor(marks: EventMarks, completions: boolean) {
    this.#marks = marks
    this.#completions = completions
  }

  read(bytes: Uint8Array, from: number, to: number): boolean {
    const json = this.#json
    const marks = this.#marks
    marks.reset()
    json.start(bytes, from, to)
    if (json.enterObject()) {
      while (json.member()) {
        if (json.is(CHOICES)) this.#readChoices()
        else if (json.is(USAGE)) marks.readUsage(json, USAGE_NAMES)
        else if (json.is(OBJECT)) {
          if (json.text() && json.is(ERROR)) marks.error = true
        } else if (json.is(ERROR)) marks.readError(json)
        else if (json.is(CODE)) marks.rootCode = json.numberOrDigits()
        else json.skip()
      }
    } else json.skip()
    return json.whole()
  }

  readBody(bytes: Uint8Array): boolean {
    return this.read(bytes, 0, bytes.length)
  }

  #readChoices(): void {
    const json = this.#json
    if (!json.enterArray()) {
      json.skip()
      return
    }
    for (let place = 0; json.element(); place++) {
      this.#marks.hasChoices = true
      if (json.enterObject()) this.#readChoice(place)
      else json.skip()
    }
  }

  /** @param place  stands for the index where there is none */
  #readChoice(place: number): void {
    const json = this.#json
    const marks = this.#marks
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
          if (json.is(ABORT) || json.is(ERROR)) marks.aborted = true
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
    if (visible) marks.visible = true
    marks.choice(index, output || visible, finished)
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
}
