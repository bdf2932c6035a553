/** One request passed to a replica as it is: unmeasured, its answer handed back through reply-from. */
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { PoolWire } from '../config/resolved.js'
import type { Timed } from '../live/driver.js'
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import type { AnswerHandler, Call, CallFailure } from '../upstream/call.js'
import { type Answer, soonMs } from './answers.js'
import { Refusal, requestId } from './chat.js'
import { onceClosed } from './closed.js'
import type { ExchangeContext } from './exchange.js'
import { requestHeaders, responseHeaders } from './headers.js'

/** How a request that was passed on ended, for the log. */
export interface Passed {
  readonly id: string
  readonly replica: ReplicaId
  /** As it is written in the router, with its parameters unfilled. */
  readonly route: string
  readonly method: string
  /** Status the client got; undefined when it left before. */
  readonly status: number | undefined
  readonly tookMs: Ms
  /** Why it failed, where it did. */
  readonly detail: string | undefined
}

/** The answer as reply-from takes it. */
export interface Fetched {
  readonly statusCode: number
  readonly headers: Record<string, string | string[]>
  readonly body: Readable
}

type Taker = (error: Error | null, answer?: Fetched) => void

type Phase =
  | { readonly at: 'head' }
  | { readonly at: 'body'; readonly body: Readable }
  /** Nothing is expected of the replica any more. */
  | { readonly at: 'end' }

export class Forward implements AnswerHandler, Timed {
  dueAt: Ms = Infinity
  private phase: Phase = { at: 'head' }
  private call: Call | undefined
  private readonly arrivedAt: Ms
  private readonly id: string
  /** When the replica was asked, or its latest bytes came. */
  private since: Ms = 0
  private detail: string | undefined
  private replica: ReplicaId

  /**
   * @param path      for the upstream, with its query, without a base path
   * @param replicas  the first is asked; the others only where no connection could be had. Not empty
   */
  constructor(
    private readonly context: ExchangeContext,
    private readonly request: FastifyRequest,
    reply: FastifyReply,
    private readonly path: string,
    private readonly replicas: ReplicaId[],
    ended: (passed: Passed) => void,
  ) {
    this.arrivedAt = request.arrivedAt
    this.id = requestId(request.headers['x-request-id'])
    this.replica = replicas[0]!
    onceClosed(reply.raw, () => {
      this.stop()
      ended({
        id: this.id,
        replica: this.replica,
        route: request.routeOptions.url ?? '',
        method: request.method,
        status: reply.raw.headersSent ? reply.raw.statusCode : undefined,
        tookMs: context.clock.now() - this.arrivedAt,
        detail: this.detail,
      })
    })
  }

  /** Asks the next replica. @param taker  called once, with the answer's head and a stream of its body */
  send(taker: Taker): void {
    this.taker = taker
    const { context, request } = this
    this.replica = this.replicas.shift()!
    const { wire } = this
    const headers = requestHeaders(request.raw.rawHeaders, wire.passAuthorization)
    headers.push('x-request-id', this.id, 'accept-encoding', 'identity')
    if (wire.apiKey !== undefined) headers.push('authorization', `Bearer ${wire.apiKey}`)
    const method = request.method as 'GET' | 'HEAD' | 'POST' | 'DELETE'
    this.since = context.clock.now()
    this.call = context.relay.call(
      this.replica,
      {
        method,
        path: this.path,
        headers,
        body: Buffer.isBuffer(request.body) ? [request.body] : method === 'POST' ? NO_BODY : undefined,
        // An upload that is done twice leaves two files.
        repeatable: method !== 'POST' || !this.path.startsWith('/v1/files'),
      },
      this,
    )
    this.schedule()
  }

  // ---- AnswerHandler

  head(status: number, raw: readonly string[]): void {
    const { context, wire } = this
    const pool = context.config.policy.pools[wire.id]!.name
    this.heard()
    if ((status === 401 || status === 403) && !wire.passAuthorization) {
      context.warn(
        { pool, status },
        `the upstream refuses Weir's own credential: set pools.${pool}.api_key to a key it accepts`,
      )
      this.fail({
        code: 'weir_upstream_error',
        message: `The pool ${pool} refuses this router's own credential. Its operator must set pools.${pool}.api_key.`,
        shouldRetry: false,
      })
    } else if (status > 599 || (status >= 300 && status < 400 && status !== 304)) {
      // Where it would lead to is an address of the inside.
      this.failed(`answered ${status}`)
    } else {
      const body = new Readable({
        read: () => this.call?.resume(),
        destroy: (error, done) => {
          this.stop()
          done(error)
        },
      })
      this.phase = { at: 'body', body }
      const own = ['x-request-id', this.id, 'x-weir-pool', pool]
      const headers = grouped([...responseHeaders(raw, true, own), ...own])
      this.taker(null, { statusCode: status, headers, body })
    }
  }

  data(chunk: Buffer): boolean {
    this.heard()
    return this.phase.at !== 'body' || this.phase.body.push(Buffer.from(chunk))
  }

  end(): void {
    if (this.phase.at !== 'body') return
    const { body } = this.phase
    this.rest()
    body.push(null)
  }

  broke({ kind, detail }: CallFailure): void {
    const { phase } = this
    const unsent = kind === 'refused' || kind === 'connect_timeout'
    if (phase.at === 'body') {
      this.detail = detail
      this.rest()
      // Breaks the client's connection too: nobody is to take half a body for a whole one.
      phase.body.destroy(new Error(detail))
    } else if (phase.at === 'head' && unsent && this.replicas.length > 0) this.send(this.taker)
    else if (kind === 'connect_timeout') {
      const { connectMs } = this.wire.timeouts
      this.fail({
        code: 'weir_connect_timeout',
        message: `No connection to a replica within ${connectMs / 1000} s (timeouts.connect).`,
        retryAfterMs: soonMs(),
      })
    } else this.failed(detail)
  }

  repeated(): void {
    this.context.repeated(this.replica)
  }

  // ---- clocks

  due(now: Ms): void {
    if (now < this.nextAt()) this.schedule()
    else if (this.phase.at === 'body') {
      this.call?.abort()
      this.broke({ kind: 'reset', detail: 'one of its clocks ran out' })
    } else {
      const { firstTokenMs, totalMs } = this.wire.timeouts
      const total = now >= this.arrivedAt + (totalMs ?? Infinity)
      const [code, clock, span] = total
        ? (['weir_total_timeout', 'total', totalMs] as const)
        : (['weir_first_token_timeout', 'first_token', firstTokenMs] as const)
      const message = `No answer within ${(span ?? 0) / 1000} s (timeouts.${clock}).`
      this.fail({ code, message, retryAfterMs: soonMs() })
    }
  }

  private schedule(): void {
    this.dueAt = this.nextAt()
    this.context.driver.watch(this)
  }

  private nextAt(): Ms {
    const { firstTokenMs, stallMs, totalMs } = this.wire.timeouts
    const patience = (this.phase.at === 'head' ? firstTokenMs : stallMs) ?? Infinity
    return Math.min(this.since + patience, this.arrivedAt + (totalMs ?? Infinity))
  }

  /** The clock is moved when it goes off: no work a chunk. */
  private heard(): void {
    this.since = this.context.clock.now()
  }

  // ---- the end

  private taker: Taker = () => undefined

  private get wire(): PoolWire {
    const { config } = this.context
    return config.pools[config.replicas[this.replica]!.pool]!
  }

  private failed(detail: string): void {
    this.fail(
      {
        code: 'weir_upstream_error',
        message: `The upstream failed (${detail}).`,
        retryAfterMs: soonMs(),
      },
      detail,
    )
  }

  /** Before the head: the client gets an answer of Weir's. */
  private fail(answer: Answer, detail: string = answer.message): void {
    if (this.phase.at !== 'head') return
    this.detail = detail
    this.stop()
    this.taker(new Refusal(answer))
  }

  /** Frees the replica, at once. */
  private stop(): void {
    if (this.phase.at === 'end') return
    this.rest()
    this.call?.abort()
  }

  private rest(): void {
    this.phase = { at: 'end' }
    this.context.driver.unwatch(this)
  }
}

const NO_BODY: readonly Uint8Array[] = []

/** A flat list as an object; a name that stands in it twice has a list of values. */
function grouped(flat: readonly string[]): Record<string, string | string[]> {
  const values: Record<string, string | string[]> = Object.create(null)
  for (let i = 0; i < flat.length; i += 2) {
    const name = flat[i]!.toLowerCase()
    const before = values[name]
    const value = flat[i + 1]!
    values[name] = before === undefined ? value : [...(Array.isArray(before) ? before : [before]), value]
  }
  return values
}
