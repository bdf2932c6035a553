/** Reads an OpenAI API request as the simulated engine needs it: how long, how answered, which prefix. */
import type { IncomingHttpHeaders } from 'node:http'
import { BLOCK_TOKENS } from './kv-cache.js'

/** Bytes of prompt text that make one token. */
const TOKEN_BYTES = 4

export interface Call {
  readonly shape: 'chat' | 'completions'
  readonly stream: boolean
  /** `stream_options` is there, whatever it says. */
  readonly streamOptions: boolean
  readonly includeUsage: boolean
  /** `max_completion_tokens`, else `max_tokens`. */
  readonly maxTokens: number | undefined
  readonly promptTokens: number
  readonly blockHashes: readonly number[]
  /** Function that the answer has to call: `tool_choice` is "required" or names it. */
  readonly tool: string | undefined
  /** Length the model would answer with if nothing capped it, where a header says so. */
  readonly outputTokens: number | undefined
  readonly tokensPerEvent: number | undefined
  /** The answer's first so many tokens are reasoning. */
  readonly reasoningTokens: number
  readonly stamps: boolean
}

/** What the engine refuses, as vLLM words it. */
export class CallError extends Error {
  readonly status: number
  readonly type: string

  constructor(status: number, type: string, message: string) {
    super(message)
    this.status = status
    this.type = type
  }
}

export function errorBody(status: number, type: string, message: string): string {
  return JSON.stringify({ error: { message, type, param: null, code: status } })
}

const refuse = (message: string): CallError => new CallError(400, 'BadRequestError', message)

type Json = Record<string, unknown>

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** @throws CallError that says what is wrong with the request */
export function readCall(
  shape: Call['shape'],
  headers: IncomingHttpHeaders,
  bytes: Buffer,
  model: string,
): Call {
  let body: unknown
  try {
    body = JSON.parse(bytes.toString())
  } catch {
    throw refuse('the body is not JSON')
  }
  if (!isObject(body)) throw refuse('the body is not an object')
  if (body['model'] !== undefined && body['model'] !== model) {
    throw new CallError(404, 'NotFoundError', `The model \`${String(body['model'])}\` does not exist.`)
  }
  if (body['n'] !== undefined && body['n'] !== null && body['n'] !== 1) throw refuse('n: only 1 choice')
  const stream = body['stream'] === true
  const options = body['stream_options']
  if (isObject(options) && !stream) throw refuse('Stream options can only be defined when `stream=True`.')
  const maxTokens = body['max_completion_tokens'] ?? body['max_tokens'] ?? undefined
  if (maxTokens !== undefined && !(Number.isInteger(maxTokens) && (maxTokens as number) >= 1)) {
    throw refuse('max_tokens must be at least 1')
  }
  const prompt = shape === 'chat' ? chatText(body['messages']) : promptOf(body['prompt'])
  return {
    shape,
    stream,
    streamOptions: isObject(options),
    includeUsage: isObject(options) && options['include_usage'] === true,
    maxTokens: maxTokens as number | undefined,
    ...measure(prompt),
    tool: shape === 'chat' ? toolOf(body) : undefined,
    outputTokens: numberIn(headers, 'x-engine-output-tokens', 1),
    tokensPerEvent: numberIn(headers, 'x-engine-tokens-per-event', 1),
    reasoningTokens: numberIn(headers, 'x-engine-reasoning-tokens', 0) ?? 0,
    stamps: headers['x-engine-stamps'] === '1',
  }
}

function numberIn(headers: IncomingHttpHeaders, name: string, least: number): number | undefined {
  const text = headers[name]
  if (text === undefined) return undefined
  const number = Number(text)
  if (!Number.isInteger(number) || number < least) {
    throw refuse(`${name}: a whole number from ${least}, not "${String(text)}"`)
  }
  return number
}

/** The text of all messages, one after the other. */
function chatText(messages: unknown): string {
  if (!Array.isArray(messages) || messages.length === 0)
    throw refuse('messages: a list with one message at least')
  let text = ''
  for (const message of messages) {
    const content: unknown = isObject(message) ? message['content'] : undefined
    if (typeof content === 'string') text += content
    if (Array.isArray(content)) {
      for (const part of content) if (isObject(part) && typeof part['text'] === 'string') text += part['text']
    }
  }
  return text
}

function promptOf(prompt: unknown): string | number[] {
  if (typeof prompt === 'string') return prompt
  if (Array.isArray(prompt) && prompt.length === 1 && typeof prompt[0] === 'string') return prompt[0]
  if (Array.isArray(prompt) && prompt.length > 0 && prompt.every(Number.isInteger)) return prompt as number[]
  throw refuse('prompt: one text, or the tokens of one')
}

function toolOf(body: Json): string | undefined {
  const choice = body['tool_choice']
  const tools = body['tools']
  const first: unknown = Array.isArray(tools) ? tools[0] : undefined
  const chosen = choice === 'required' ? first : choice
  const named = isObject(chosen) ? chosen['function'] : undefined
  return isObject(named) && typeof named['name'] === 'string' ? named['name'] : undefined
}

/** Length in tokens, and a chained hash for each whole block: of 64 bytes of text, or 16 tokens. */
function measure(prompt: string | number[]): Pick<Call, 'promptTokens' | 'blockHashes'> {
  const text = typeof prompt === 'string'
  const units = text ? Buffer.from(prompt) : prompt
  const unitsPerBlock = text ? BLOCK_TOKENS * TOKEN_BYTES : BLOCK_TOKENS
  const blockHashes: number[] = []
  let high = 0x811c9dc5
  let low = 0x9747b28c
  const whole = units.length - (units.length % unitsPerBlock)
  for (let at = 0; at < whole; ) {
    for (const end = at + unitsPerBlock; at < end; at++) {
      const unit = units[at] as number
      high = Math.imul(high ^ unit, 0x01000193)
      low = Math.imul(low ^ unit, 0x5bd1e995)
      low ^= low >>> 15
    }
    // 53 bits, so that it stays a whole number in a double.
    blockHashes.push((high >>> 0) * 0x200000 + (low >>> 11))
  }
  return {
    promptTokens: Math.max(1, text ? Math.ceil(units.length / TOKEN_BYTES) : units.length),
    blockHashes,
  }
}
