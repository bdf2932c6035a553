/** Reads the members of a request body that Weir decides by, and changes members by splicing bytes. */
import { isUtf8 } from 'node:buffer'
import type { StreamShape } from '../sse/marks.js'
import { JsonFault, JsonWalk, type Span } from './json.js'

/** What Weir reads of a body. Everything else in it goes on unread. */
export interface BodyFacts {
  readonly model: string
  readonly stream: boolean
  readonly tools: boolean
  readonly maxTokens: number | undefined
  /** `n`: answers asked for. */
  readonly choices: number
  /** Estimated prompt tokens: text bytes / 4, plus token ids in `prompt`; at least 1. */
  readonly promptTokens: number
  /** `store` or `background` is true. */
  readonly stored: boolean
  /** The client asked for `stream_options.include_usage`. */
  readonly asksUsage: boolean
  /** How to ask for usage: put `text` in place of `span`. undefined: nothing to change, or not possible. */
  readonly usageEdit: Edit | undefined
  /** `previous_response_id` of the Responses API. */
  readonly previousResponse: string | undefined
  /** All top-level members, by name; of a name that comes twice the last. */
  readonly members: ReadonlyMap<string, Span>
  /** Offset of the body's closing brace. */
  readonly close: number
}

/** Replace the bytes of `span` (may be empty) by `text`. */
export interface Edit {
  readonly span: Span
  readonly text: string
}

/** The body is not a request; `message` says what to change, and never quotes the body's text. */
export class BodyFault extends Error {}

/** Bytes of prompt text to a token, until a replica's usage has taught better (algorithms: 6.1). */
const BYTES_PER_TOKEN = 4

const READ = new Set([
  'model',
  'stream',
  'stream_options',
  'tools',
  'functions',
  'max_tokens',
  'max_completion_tokens',
  'max_output_tokens',
  'n',
  'store',
  'background',
  'prompt',
  'previous_response_id',
  'priority',
])

/**
 * Reads a body once, as bytes.
 * @throws BodyFault when it is not one JSON object with a string `model` and a boolean `stream`, or has a member
 *   that Weir reads twice: Weir and the upstream might then each see another value.
 */
export function readBody(bytes: Uint8Array, shape: StreamShape = 'chat'): BodyFacts {
  if (bytes.length === 0)
    throw new BodyFault('The body is empty. Send a JSON object with "model" and "messages".')
  if (bytes[0] === 0xef && bytes[1] === 0xbb) {
    throw new BodyFault('The body begins with a byte order mark. Send plain UTF-8 JSON without one.')
  }
  if (!isUtf8(bytes)) throw new BodyFault('The body is not valid UTF-8. Send JSON as UTF-8.')
  const walk = new JsonWalk(bytes)
  const found = new Map<string, Span>()
  let tokenIds = 0
  let numbersBefore = 0
  let end: number
  try {
    end = walk.members(0, (key, value) => {
      const name = readString(bytes, key)
      if (READ.has(name) && found.has(name)) {
        throw new BodyFault(
          `The body has "${name}" twice. Send it once, so that every reader sees the same value.`,
        )
      }
      found.set(name, value)
      if (name === 'prompt') tokenIds = walk.numbers - numbersBefore
      numbersBefore = walk.numbers
    })
    const rest = walk.space(end)
    if (rest !== bytes.length) throw new JsonFault('something follows the object', rest)
  } catch (error) {
    if (error instanceof JsonFault) {
      throw new BodyFault(`The body is not a valid JSON object: ${error.message}. Send one JSON object.`)
    }
    throw error
  }

  const modelSpan = found.get('model')
  if (modelSpan === undefined)
    throw new BodyFault('The body has no "model". Name one of the models of GET /v1/models.')
  const model = asString(bytes, modelSpan)
  if (model === undefined || model === '') {
    throw new BodyFault('"model" must be a non-empty string. Name one of the models of GET /v1/models.')
  }
  const stream = asFlag(bytes, found.get('stream'), 'stream')
  const previous = found.get('previous_response_id')
  const usage = usageOf(bytes, found.get('stream_options'), end - 1)
  return {
    model,
    stream,
    tools: isFilledList(walk, found.get('tools')) || isFilledList(walk, found.get('functions')),
    maxTokens: asCount(bytes, found.get('max_completion_tokens')) ?? asCount(bytes, found.get('max_tokens')),
    choices: asCount(bytes, found.get('n')) ?? 1,
    promptTokens: Math.max(1, Math.ceil(walk.textBytes / BYTES_PER_TOKEN) + tokenIds),
    stored: isTrue(bytes, found.get('store')) || isTrue(bytes, found.get('background')),
    asksUsage: usage.asks,
    // The other two APIs tell usage without being asked, and know no such member.
    usageEdit: stream && (shape === 'chat' || shape === 'completions') ? usage.edit : undefined,
    previousResponse: previous === undefined ? undefined : asString(bytes, previous),
    members: found,
    close: end - 1,
  }
}

/** Gives a top-level member this value, in place of the one it has or as a new last member. */
export function setMember(body: BodyFacts, name: string, value: string | number): Edit {
  const span = body.members.get(name)
  const text = JSON.stringify(value)
  return span === undefined
    ? { span: { start: body.close, end: body.close }, text: `,"${name}":${text}` }
    : { span, text }
}

/**
 * Applies edits to a body; bytes outside their spans stay as they are.
 * @param edits  must not overlap
 * @returns the new body in pieces, parts of `bytes` among them: a large one is not copied
 */
export function splice(bytes: Uint8Array, edits: readonly Edit[]): Uint8Array[] {
  const pieces: Uint8Array[] = []
  let at = 0
  for (const { span, text } of edits.toSorted((a, b) => a.span.start - b.span.start)) {
    pieces.push(bytes.subarray(at, span.start), Buffer.from(text))
    at = span.end
  }
  pieces.push(bytes.subarray(at))
  return pieces
}

const ASK = '"include_usage":true'

/** @param close  offset of the body's closing brace */
function usageOf(
  bytes: Uint8Array,
  options: Span | undefined,
  close: number,
): { readonly asks: boolean; readonly edit: Edit | undefined } {
  if (options === undefined) {
    return { asks: false, edit: { span: { start: close, end: close }, text: `,"stream_options":{${ASK}}` } }
  }
  if (textOf(bytes, options) === 'null') return { asks: false, edit: { span: options, text: `{${ASK}}` } }
  // Neither an object nor null: the upstream is to say what is wrong with it.
  if (bytes[options.start] !== 0x7b) return { asks: false, edit: undefined }
  const spans: Span[] = []
  let members = 0
  new JsonWalk(bytes).members(options.start, (key, value) => {
    members++
    if (readString(bytes, key) === 'include_usage') spans.push(value)
  })
  const span = spans[0]
  if (spans.length > 1) {
    throw new BodyFault('"stream_options" has "include_usage" twice. Send it once.')
  }
  if (span === undefined) {
    const at = options.start + 1
    return { asks: false, edit: { span: { start: at, end: at }, text: members === 0 ? ASK : `${ASK},` } }
  }
  const asks = textOf(bytes, span) === 'true'
  return { asks, edit: asks ? undefined : { span, text: 'true' } }
}

function textOf(bytes: Uint8Array, span: Span): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset + span.start, span.end - span.start).toString()
}

/** The string at `span`, escapes resolved, so that no spelling of a name hides it. */
function readString(bytes: Uint8Array, span: Span): string {
  return JSON.parse(textOf(bytes, span)) as string
}

function asString(bytes: Uint8Array, span: Span): string | undefined {
  return bytes[span.start] === 0x22 ? readString(bytes, span) : undefined
}

function asFlag(bytes: Uint8Array, span: Span | undefined, name: string): boolean {
  const text =
    span === undefined
      ? 'null'
      : textOf(bytes, { start: span.start, end: Math.min(span.end, span.start + 5) })
  if (text === 'true') return true
  if (text === 'false' || text === 'null') return false
  throw new BodyFault(`"${name}" must be true or false, without quotes.`)
}

function isTrue(bytes: Uint8Array, span: Span | undefined): boolean {
  return span !== undefined && span.end - span.start === 4 && textOf(bytes, span) === 'true'
}

function asCount(bytes: Uint8Array, span: Span | undefined): number | undefined {
  if (span === undefined || span.end - span.start > 20) return undefined
  const count = Number(textOf(bytes, span))
  return Number.isSafeInteger(count) && count > 0 ? count : undefined
}

function isFilledList(walk: JsonWalk, span: Span | undefined): boolean {
  return (
    span !== undefined && walk.bytes[span.start] === 0x5b && walk.bytes[walk.space(span.start + 1)] !== 0x5d
  )
}
