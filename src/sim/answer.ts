/** One answer of the engine server: tokens as they come to bytes in the OpenAI shapes, with the fault asked for. */
import type { ServerResponse } from 'node:http'
import type { Ms } from '../time.js'
import { type Call, errorBody } from './call.js'
import type { Finish } from './engine-metrics.js'
import type { Fault } from './fault.js'
import type { EngineRequest, Sequence } from './sequence.js'

// Four bytes each: sent back as a prompt, an answer counts as many tokens as it had.
const WORDS = [
  ' the',
  ' and',
  ' for',
  ' you',
  ' can',
  ' one',
  ' use',
  ' way',
  ' set',
  ' new',
  ' out',
  ' run',
  ' now',
]

/** A reset throws away what the peer has not read yet; so much later it has. */
const RESET_DELAY_MS = 20

export interface AnswerOptions {
  readonly id: number
  readonly call: Call
  readonly fault: Fault | undefined
  readonly model: string
  readonly outputTokens: number
  readonly tokensPerStep: number
  /** Why the answer is as long as it is. */
  readonly finish: 'stop' | 'length'
  /** Monotonic, the same in all processes of the machine; for the stamps. */
  readonly stampMs: () => Ms
}

export class Answer implements EngineRequest {
  readonly promptTokens: number
  readonly outputTokens: number
  readonly blockHashes: readonly number[]
  readonly tokensPerStep: number
  readonly finish: 'stop' | 'length'
  /** Last time it got a token. */
  lastAt: Ms | undefined
  readonly #options: AnswerOptions
  readonly #res: ServerResponse
  readonly #call: Call
  readonly #faultName: Fault['name'] | undefined
  /** Tokens to send before the fault strikes; Infinity where none does. */
  readonly #faultAfter: number
  readonly #created = Math.floor(Date.now() / 1000)
  /** What stands before and after the delta in each event. */
  readonly #open: string
  readonly #close: string
  #silent = false

  constructor(res: ServerResponse, options: AnswerOptions) {
    const { call, fault } = options
    this.#res = res
    this.#options = options
    this.#call = call
    this.promptTokens = call.promptTokens
    this.blockHashes = call.blockHashes
    this.outputTokens = options.outputTokens
    this.tokensPerStep = options.tokensPerStep
    this.finish = options.finish
    this.#faultName = fault?.name
    const strikes =
      fault?.name === 'cut' || fault?.name === 'reset' || fault?.name === 'stall' || fault?.name === 'error'
    this.#faultAfter = strikes ? fault.arg : Number.POSITIVE_INFINITY
    const head = `"id":"${this.#id}","object":"${this.#object}","created":${this.#created},"model":${JSON.stringify(options.model)}`
    this.#open = `data: {${head},"choices":[`
    this.#close = call.includeUsage ? '],"usage":null}\n' : ']}\n'
    if (call.stream) {
      res.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
      res.flushHeaders()
    }
  }

  /**
   * Takes the tokens that came for `sequence`.
   * @returns how the answer failed, where its fault struck for good; the engine may then drop it
   */
  tokens(sequence: Sequence<Answer>): Finish | undefined {
    if (this.#silent) return undefined
    const to = sequence.generated
    const from = to - sequence.fresh
    const ends = to === this.outputTokens
    let out = ''
    if (this.#call.stream && this.#faultAfter > 0) {
      if (from === 0 && this.#call.shape === 'chat') out += this.#first()
      out += this.#event(this.#delta(from, to), 'null')
    }
    if (to >= this.#faultAfter) return this.#strike(out)
    if (ends) this.#end(out, sequence.cachedTokens)
    else if (out !== '') this.#res.write(out)
    return undefined
  }

  get #id(): string {
    return `${this.#call.shape === 'chat' ? 'chatcmpl' : 'cmpl'}-${this.#options.id}`
  }

  get #object(): string {
    if (this.#call.shape === 'completions') return 'text_completion'
    return this.#call.stream ? 'chat.completion.chunk' : 'chat.completion'
  }

  /** `part` is the choice's own member: a delta, or the text. */
  #event(part: string, finish: string): string {
    const stamp = this.#call.stamps ? `: t=${this.#options.stampMs().toFixed(3)}\n` : ''
    return `${this.#open}{"index":0,${part},"logprobs":null,"finish_reason":${finish}}${this.#close}${stamp}\n`
  }

  /** Role, and the call's name where a tool is called: events without a token. */
  #first(): string {
    const { tool } = this.#call
    const role = this.#event(
      `"delta":{"role":"assistant","content":${tool === undefined ? '""' : 'null'}}`,
      'null',
    )
    return tool === undefined
      ? role
      : role + this.#event(`"delta":{"tool_calls":[${this.#toolCall('""', 0)}]}`, 'null')
  }

  #toolCall(argumentsJson: string, index?: number): string {
    const at = index === undefined ? '' : `"index":${index},`
    const name = JSON.stringify(this.#call.tool)
    return `{${at}"id":"call_${this.#options.id}","type":"function","function":{"name":${name},"arguments":${argumentsJson}}}`
  }

  #delta(from: number, to: number): string {
    const text = this.#text(from, to)
    if (this.#call.shape === 'completions') return `"text":"${text}"`
    if (this.#call.tool !== undefined) {
      return `"delta":{"tool_calls":[{"index":0,"function":{"arguments":${JSON.stringify(text)}}}]}`
    }
    return from < this.#call.reasoningTokens
      ? `"delta":{"reasoning_content":"${text}"}`
      : `"delta":{"content":"${text}"}`
  }

  /** Text of the tokens from `from` up to, not including, `to`; needs no escaping unless it is a tool's arguments. */
  #text(from: number, to: number): string {
    let text = ''
    for (let at = from; at < to; at++) text += WORDS[(this.#options.id + at) % WORDS.length]
    if (this.#call.tool === undefined) return text
    return `${from === 0 ? '{"text":"' : ''}${text}${to === this.outputTokens ? '"}' : ''}`
  }

  #usage(cachedTokens: number): string {
    return JSON.stringify({
      prompt_tokens: this.promptTokens,
      completion_tokens: this.outputTokens,
      total_tokens: this.promptTokens + this.outputTokens,
      prompt_tokens_details: { cached_tokens: cachedTokens },
    })
  }

  #end(out: string, cachedTokens: number): void {
    const finish = this.#call.tool === undefined ? `"${this.finish}"` : '"tool_calls"'
    if (!this.#call.stream) {
      this.#json(200, this.#whole(finish, cachedTokens))
      return
    }
    let last = out + this.#event(this.#call.shape === 'completions' ? '"text":""' : '"delta":{}', finish)
    if (this.#call.includeUsage && this.#faultName !== 'no-usage') {
      last += `${this.#open}],"usage":${this.#usage(cachedTokens)}}\n\n`
    }
    if (this.#faultName !== 'no-done') last += 'data: [DONE]\n\n'
    this.#res.end(last)
  }

  #whole(finish: string, cachedTokens: number): string {
    const { shape, tool } = this.#call
    const reasoning = Math.min(this.#call.reasoningTokens, this.outputTokens)
    const text = this.#text(shape === 'chat' && tool === undefined ? reasoning : 0, this.outputTokens)
    let part = `"text":"${text}"`
    if (shape === 'chat' && tool === undefined) {
      const thought = reasoning > 0 ? `"${this.#text(0, reasoning)}"` : 'null'
      part = `"message":{"role":"assistant","content":"${text}","reasoning_content":${thought}}`
    } else if (tool !== undefined) {
      part = `"message":{"role":"assistant","content":null,"tool_calls":[${this.#toolCall(JSON.stringify(text))}]}`
    }
    const usage = this.#faultName === 'no-usage' ? '' : `,"usage":${this.#usage(cachedTokens)}`
    const open = this.#open.slice('data: '.length)
    return `${open}{"index":0,${part},"logprobs":null,"finish_reason":${finish}}]${usage}}`
  }

  #json(status: number, body: string): void {
    this.#res.writeHead(status, {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
    })
    this.#res.end(body)
  }

  /** The fault's moment has come; `out` is what was to be sent up to it. */
  #strike(out: string): Finish | undefined {
    const res = this.#res
    this.#silent = true
    if (this.#faultName === 'error') {
      const body = errorBody(500, 'InternalServerError', 'the engine failed, as it was asked to')
      if (this.#call.stream) res.end(`${out}data: ${body}\n\ndata: [DONE]\n\n`)
      else this.#json(500, body)
      return 'error'
    }
    if (out !== '') res.write(out)
    if (this.#faultName === 'stall') return undefined
    // A whole answer is broken inside its body.
    if (!this.#call.stream) {
      res.writeHead(200, { 'content-type': 'application/json', 'content-length': 1000 })
      res.write('{"id":')
    }
    if (this.#faultName === 'cut') res.socket?.end()
    else setTimeout(() => res.socket?.resetAndDestroy(), RESET_DELAY_MS)
    return 'error'
  }
}
