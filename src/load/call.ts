/** One streamed call, timed by the player's own clock and read by a parser that is not Weir's. */
import type { IncomingHttpHeaders } from 'node:http'
import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceMessage, type EventSourceParser } from 'eventsource-parser'
import type { Dispatcher } from 'undici'
import type { Ms } from '../time.js'

/**
 * complete   the stream said that it was finished, and ended
 * shed       429 or 503 with a code of Weir's
 * error      another status, an error event, no connection, or no event stream
 * truncated  the stream broke or ended without saying that it was finished
 * left       the player hung up: by plan, at the end of the drain, or when stopped
 */
export type Outcome = 'complete' | 'shed' | 'error' | 'truncated' | 'left'

/** What came of one call. Spans count from `sentAt`; `undefined` is "never came". */
export interface PlayRecord {
  readonly label: string
  /** Of agent traffic: one played session. */
  readonly session: string | undefined
  /** Since the player began. */
  readonly sentAt: Ms
  /** How much later than planned the player sent it; 0 where nothing was planned. */
  readonly lateMs: Ms
  readonly inputTokens: number
  /** Answer length of the trace row. */
  readonly wantedTokens: number
  readonly outcome: Outcome
  readonly status: number | undefined
  /** `error.code` of the answer, or the player's own word for what went wrong. */
  readonly code: string | undefined
  readonly retryAfterMs: Ms | undefined
  /** To the first event with output: text, reasoning, refusal or tool call; a role alone is none. */
  readonly ttftMs: Ms | undefined
  /** To the last event with output. */
  readonly lastMs: Ms | undefined
  /** To the end of the call. */
  readonly e2eMs: Ms
  /** From usage where the stream has it, else its output events, which may carry several tokens each. */
  readonly tokens: number
  readonly tokensFrom: 'usage' | 'events'
  readonly cachedTokens: number | undefined
  /** Response headers x-weir-class, x-weir-pool and x-weir-decision. */
  readonly weirClass: string | undefined
  readonly pool: string | undefined
  readonly decision: string | undefined
}

export interface CallPlan {
  readonly label: string
  readonly session: string | undefined
  readonly lateMs: Ms
  readonly inputTokens: number
  readonly wantedTokens: number
  readonly path: string
  readonly headers: Record<string, string>
  readonly body: Uint8Array
}

/** An error body longer than this is cut, bytes. */
const ERROR_BODY_LIMIT = 64 * 1024

/** Handler of one undici dispatch: nothing is allocated for an event but what parsing it takes. */
export class Call implements Dispatcher.DispatchHandler {
  readonly plan: CallPlan
  readonly #begin: Ms
  readonly #onEnd: (record: PlayRecord) => void
  readonly #decoder = new StringDecoder('utf8')
  #controller: Dispatcher.DispatchController | undefined
  #parser: EventSourceParser | undefined
  #sent: Ms = 0
  #now: Ms = 0
  #ended = false
  #status: number | undefined
  #headers: IncomingHttpHeaders = {}
  #errorBody = ''
  #code: string | undefined
  #failed = false
  #first: Ms | undefined
  #last: Ms | undefined
  #events = 0
  #usageTokens: number | undefined
  #cachedTokens: number | undefined
  #finished = false
  #done = false

  /**
   * @param begin  when the player began, on `performance.now()`
   * @param onEnd  called once, after `send` or inside it
   */
  constructor(plan: CallPlan, begin: Ms, onEnd: (record: PlayRecord) => void) {
    this.plan = plan
    this.#begin = begin
    this.#onEnd = onEnd
  }

  send(target: Dispatcher): void {
    this.#sent = performance.now()
    const { path, headers, body } = this.plan
    target.dispatch({ method: 'POST', path, headers, body }, this)
  }

  /** Hangs up. What was whole before stays complete. */
  leave(): void {
    if (this.#ended) return
    this.#now = performance.now()
    this.#end(this.#done ? 'complete' : 'left')
    this.#controller?.abort(new Error('the player left'))
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#ended) controller.abort(new Error('the player left'))
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): void {
    if (status < 200) return
    this.#status = status
    this.#headers = headers
    const streamed = /^text\/event-stream\s*(;|$)/i.test(headers['content-type'] ?? '')
    if (status === 200 && streamed)
      this.#parser = createParser({ onEvent: (event: EventSourceMessage) => this.#onEvent(event.data) })
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#ended) return
    this.#now = performance.now()
    const text = this.#decoder.write(chunk)
    if (this.#parser !== undefined) this.#parser.feed(text)
    else if (this.#errorBody.length < ERROR_BODY_LIMIT) this.#errorBody += text
  }

  onResponseEnd(): void {
    if (this.#ended) return
    this.#now = performance.now()
    if (this.#parser === undefined) this.#endUnstreamed()
    else if (this.#failed) this.#end(this.#code === 'weir_upstream_truncated' ? 'truncated' : 'error')
    else this.#end(this.#done || this.#finished ? 'complete' : 'truncated')
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    if (this.#ended) return
    this.#now = performance.now()
    if (this.#done && !this.#failed) {
      this.#end('complete')
      return
    }
    this.#code ??= errorCode(error)
    this.#end(this.#parser === undefined || this.#failed ? 'error' : 'truncated')
  }

  #endUnstreamed(): void {
    const status = this.#status ?? 0
    this.#code = bodyCode(this.#errorBody) ?? (status === 200 ? 'not_a_stream' : undefined)
    const refused = (status === 429 || status === 503) && this.#code?.startsWith('weir_')
    this.#end(refused ? 'shed' : 'error')
  }

  #onEvent(data: string): void {
    if (data === '[DONE]') {
      this.#done = true
      return
    }
    try {
      this.#read(JSON.parse(data) as Chunk)
    } catch {
      // No JSON, or JSON of another shape than the API's.
      this.#fail('unparsable_event')
    }
  }

  #read(chunk: Chunk): void {
    if (chunk.error !== undefined && chunk.error !== null) {
      this.#fail(codeOf(chunk) ?? 'error_event')
      return
    }
    if (typeof chunk.usage?.completion_tokens === 'number') {
      this.#usageTokens = chunk.usage.completion_tokens
      this.#cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens
    }
    for (const choice of chunk.choices ?? []) {
      if (hasOutput(choice.delta)) {
        this.#first ??= this.#now
        this.#last = this.#now
        this.#events++
      }
      const reason = choice.finish_reason
      if (reason === 'abort' || reason === 'error') this.#fail(`finish_${reason}`)
      else if (typeof reason === 'string') this.#finished = true
    }
  }

  /** The first cause stays. */
  #fail(code: string): void {
    this.#failed = true
    this.#code ??= code
  }

  #end(outcome: Outcome): void {
    this.#ended = true
    const since = (at: Ms | undefined): Ms | undefined => (at === undefined ? undefined : at - this.#sent)
    this.#onEnd({
      label: this.plan.label,
      session: this.plan.session,
      sentAt: this.#sent - this.#begin,
      lateMs: this.plan.lateMs,
      inputTokens: this.plan.inputTokens,
      wantedTokens: this.plan.wantedTokens,
      outcome,
      status: this.#status,
      code: this.#code,
      retryAfterMs: retryAfterMs(this.#headers),
      ttftMs: since(this.#first),
      lastMs: since(this.#last),
      e2eMs: this.#now - this.#sent,
      tokens: this.#usageTokens ?? this.#events,
      tokensFrom: this.#usageTokens === undefined ? 'events' : 'usage',
      cachedTokens: this.#cachedTokens,
      weirClass: one(this.#headers['x-weir-class']),
      pool: one(this.#headers['x-weir-pool']),
      decision: one(this.#headers['x-weir-decision']),
    })
  }
}

interface FunctionCall {
  readonly name?: string | null
  readonly arguments?: string | null
}

interface Delta {
  readonly content?: string | null
  readonly refusal?: string | null
  readonly reasoning?: string | null
  readonly reasoning_content?: string | null
  readonly function_call?: FunctionCall | null
  readonly tool_calls?: readonly { readonly function?: FunctionCall | null }[] | null
}

/** What of a chat.completion.chunk, or of an error body, is looked at. */
interface Chunk {
  readonly error?: unknown
  readonly choices?:
    | readonly { readonly delta?: Delta | null; readonly finish_reason?: string | null }[]
    | null
  readonly usage?: {
    readonly completion_tokens?: number
    readonly prompt_tokens_details?: { readonly cached_tokens?: number } | null
  } | null
}

function hasOutput(delta: Delta | null | undefined): boolean {
  if (delta === null || delta === undefined) return false
  return Boolean(
    delta.content ||
      delta.reasoning_content ||
      delta.reasoning ||
      delta.refusal ||
      delta.function_call?.name ||
      delta.function_call?.arguments ||
      delta.tool_calls?.some(call => call.function?.name || call.function?.arguments),
  )
}

function bodyCode(text: string): string | undefined {
  try {
    return codeOf(JSON.parse(text) as Chunk)
  } catch {
    return undefined
  }
}

function codeOf({ error }: Chunk): string | undefined {
  if (typeof error !== 'object' || error === null) return undefined
  const code = 'code' in error && error.code !== null ? error.code : 'type' in error ? error.type : undefined
  return typeof code === 'string' || typeof code === 'number' ? String(code).slice(0, 64) : undefined
}

function errorCode(error: Error): string {
  return 'code' in error && typeof error.code === 'string' ? error.code : error.name
}

/** Milliseconds where they are told, else the whole seconds of RFC 9110; a date counts as not told. */
function retryAfterMs(headers: IncomingHttpHeaders): Ms | undefined {
  const ms = Number(one(headers['retry-after-ms']) ?? Number.NaN)
  if (Number.isFinite(ms)) return ms
  const seconds = Number(headers['retry-after'] ?? Number.NaN)
  return Number.isFinite(seconds) ? seconds * 1000 : undefined
}

function one(value: string | string[] | undefined): string | undefined {
  return Array.isArray(value) ? value[0] : value
}
