/** The shapes of stream and of answer, and which reader reads which. */
import type { Usage } from '../slo/latency.js'
import { EventMarks, type EventReader } from './event-marks.js'
import { ChatReader } from './marks-chat.js'
import { MessagesReader } from './marks-messages.js'
import { ResponsesReader } from './marks-responses.js'

/** chat.completion.chunk; text_completion; the OpenAI Responses API; Anthropic's Messages API. */
export type StreamShape = 'chat' | 'completions' | 'responses' | 'messages'

/** @param marks  what the reader fills */
export function readerOf(shape: StreamShape, marks: EventMarks): EventReader {
  switch (shape) {
    case 'responses':
      return new ResponsesReader(marks)
    case 'messages':
      return new MessagesReader(marks)
    default:
      return new ChatReader(marks, shape === 'completions')
  }
}

/** What an answer that is one JSON body tells of itself. */
export interface AnswerFacts {
  /** The body is one JSON value; if not, the rest tells nothing. */
  readonly json: boolean
  /** Of a response or a message. */
  readonly id: string | undefined
  readonly usage: Usage | undefined
  /** The body holds an error, whatever its status line said; or a response that failed. */
  readonly error: boolean
  /** As `EventMarks.errorStatus`. */
  readonly errorStatus: number | undefined
  /** A choice's finish reason is `abort` or `error`; a response was cancelled. */
  readonly aborted: boolean
}

/** Of the whole answer that is being read; every reader begins by emptying them. */
const marks = new EventMarks()

/** Reads the whole body of an answer that is no stream. Linear in its length; never throws. */
export function readAnswer(body: Uint8Array, shape: StreamShape = 'chat'): AnswerFacts {
  const json = readerOf(shape, marks).readBody(body)
  return {
    json,
    id: json ? marks.id(body) : undefined,
    usage: json ? marks.usage() : undefined,
    error: json && marks.error,
    errorStatus: json && marks.error ? marks.errorStatus() : undefined,
    aborted: json && marks.aborted,
  }
}
