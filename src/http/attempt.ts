/** One try of a request on one replica: what is sent, and how its answer is read, held, relayed or passed on. */
import type { PoolWire } from '../config/resolved.js'
import type { Ending, Failure } from '../policy/decision.js'
import type { ReplicaId, Ticket } from '../request.js'
import type { Progress } from '../slo/latency.js'
import { Meter } from '../sse/meter.js'
import type { Ms } from '../time.js'
import type { AnswerHandler, Call, CallFailure } from '../upstream/call.js'
import { soonMs } from './answers.js'
import { HOLD_LIMIT } from './downstream.js'
import type { Exchange } from './exchange.js'
import { headerOf, mediaType, responseHeaders } from './headers.js'
import { JsonAnswer } from './json-answer.js'
import { LateRefusal } from './late-refusal.js'
import { outgoing } from './outgoing.js'
import { ownHead } from './own-head.js'

/**
 * What the upstream is sending. `refusal` is an error answer of its own, which goes on to the client as it is; `late`
 * is one that comes after the head of a stream, and goes on as an event.
 */
type Answer =
  | { readonly kind: 'none' }
  | { readonly kind: 'events'; readonly meter: Meter; readonly headers: readonly string[] }
  | {
      readonly kind: 'json'
      readonly json: JsonAnswer
      readonly status: number
      readonly headers: readonly string[]
    }
  | {
      readonly kind: 'refusal'
      readonly ending: 'clientError' | 'upstreamError'
      readonly status: number
      readonly headers: readonly string[]
    }
  | {
      readonly kind: 'late'
      readonly ending: 'clientError' | 'upstreamError'
      readonly status: number
      readonly refusal: LateRefusal
    }

/** Whom an attempt waits for, and since when: which of the clocks runs. */
export interface Waits {
  readonly for: 'first_token' | 'token' | 'client'
  readonly since: Ms
}

/** A pause longer than this is the client's doing, and its token gaps are no measure of the replica. */
const THROTTLE_MS: Ms = 20

export class Attempt implements AnswerHandler {
  sentAt: Ms = 0
  private call: Call | undefined
  private answer: Answer = { kind: 'none' }
  private over = false
  /** `[DONE]` came, and the ticket is closed. */
  private counted = false
  private askedUsage = false
  /** The id of its response is in the table. */
  private kept = false
  /** This one goes without asking for usage, after a 400 to the same request with it. */
  private retriedWithout = false
  private lastByteAt: Ms = 0
  /** Output events that the policy knows of, of the choice that has most. */
  private marksTold = 0
  private pausedAt: Ms | undefined
  /** `between`, where the upstream's last bytes are kept from the client. */
  private betweenAtEnd: boolean | undefined

  constructor(
    private readonly exchange: Exchange,
    private readonly ticket: Ticket,
    readonly wire: PoolWire,
    readonly replica: ReplicaId,
  ) {}

  send(now: Ms): void {
    const { context, inbound } = this.exchange
    const { wire, ticket } = this
    const asks = inbound.bodyFacts.usageEdit !== undefined && context.asking.asks(wire.id)
    this.askedUsage = asks && !this.retriedWithout
    const priority = wire.sendPriority ? context.config.policy.classes[ticket.cls ?? 0]?.priority : undefined
    this.sentAt = now
    this.call = context.relay.call(
      this.replica,
      outgoing(inbound, ticket, wire, priority, this.askedUsage),
      this,
    )
    if (priority !== undefined) context.member(wire.id, 'replaced')
  }

  /** Frees the replica at once; nothing more is heard of it. */
  abort(): void {
    this.over = true
    this.call?.abort()
  }

  /** What came so far, of an event stream. */
  get progress(): Progress | undefined {
    return this.answer.kind === 'events' ? this.answer.meter : undefined
  }

  /** Events that went through unread. */
  get unparsed(): number {
    return this.answer.kind === 'events' ? this.answer.meter.unparsed : 0
  }

  get sendsJson(): boolean {
    return this.answer.kind === 'json' || this.answer.kind === 'refusal'
  }

  /** What the client has got ends between two events. */
  get between(): boolean {
    return this.betweenAtEnd ?? (this.answer.kind !== 'events' || this.answer.meter.between)
  }

  /** Head for the client, once the upstream's head of an event stream is here. */
  get streamHead(): readonly string[] | undefined {
    return this.answer.kind === 'events' ? this.clientHead(this.answer.headers, false) : undefined
  }

  get waits(): Waits | undefined {
    const { answer } = this
    if (this.over) return undefined
    if (this.pausedAt !== undefined) return { for: 'client', since: this.pausedAt }
    const last = answer.kind === 'events' ? answer.meter.lastOutput : this.lastByteAt
    if (answer.kind === 'none' || last === undefined) return { for: 'first_token', since: this.sentAt }
    return { for: 'token', since: last }
  }

  /** The client has read what a write had to wait for. */
  drained(): void {
    if (this.pausedAt === undefined) return
    const pause = this.exchange.context.clock.now() - this.pausedAt
    if (this.answer.kind === 'events' && pause > THROTTLE_MS) this.answer.meter.throttled = true
    this.pausedAt = undefined
    this.call?.resume()
  }

  // ---- AnswerHandler

  head(status: number, headers: readonly string[]): void {
    this.lastByteAt = this.exchange.context.clock.now()
    if (status >= 200 && status < 300) this.accept(status, headers)
    else this.decline(status, headers)
    this.exchange.schedule()
  }

  data(chunk: Buffer): boolean {
    const now = this.exchange.context.clock.now()
    const { answer } = this
    const { down } = this.exchange
    this.lastByteAt = now
    if (answer.kind === 'none') return true
    if (answer.kind === 'events') {
      answer.meter.push(chunk, now)
      return this.relay(answer.meter, answer.headers, now)
    }
    if (answer.kind === 'late') {
      answer.refusal.push(chunk)
      return true
    }
    if (answer.kind === 'json') answer.json.push(chunk)
    if (down.committed) return this.flow(down.writeAll([chunk]), now)
    // Head and first bytes in one write.
    down.hold([chunk])
    return this.flow(down.commit(answer.status, this.clientHead(answer.headers, true)), now)
  }

  end(): void {
    const { exchange, answer } = this
    const now = exchange.context.clock.now()
    if (answer.kind === 'none') {
      exchange.attemptFailed({ kind: 'reset', detail: 'ended without an answer' })
      return
    }
    if (answer.kind === 'events') {
      const { meter } = answer
      const { between } = meter
      meter.end(now)
      // The half of an event that nobody can read is no use to the client either.
      if (meter.partial) this.betweenAtEnd = between
      else this.relay(meter, answer.headers, now)
      if (!this.over) this.streamEnded(meter)
      return
    }
    if (answer.kind === 'late') {
      const { ending, status, refusal } = answer
      const message = `The upstream answered ${status}.`
      exchange.stop(
        ending,
        { code: 'weir_upstream_error', message, event: refusal.event },
        undefined,
        message,
      )
      return
    }
    if (!exchange.down.committed) exchange.down.commit(answer.status, this.clientHead(answer.headers, true))
    if (answer.kind === 'refusal') exchange.finish(answer.ending, undefined)
    else {
      const { progress, ending, id } = answer.json.end(now)
      this.keeps(id)
      exchange.finish(ending, progress)
    }
    exchange.endClient()
  }

  broke(failure: CallFailure): void {
    const { exchange, answer } = this
    const { kind, detail } = failure
    if (kind === 'connect_timeout') {
      const message = `No connection to a replica within ${this.wire.timeouts.connectMs / 1000} s (timeouts.connect), and no other could take the request.`
      exchange.attemptFailed(
        { kind: 'refused', detail },
        { code: 'weir_connect_timeout', message, retryAfterMs: soonMs() },
      )
    } else if (this.counted || (answer.kind !== 'none' && exchange.down.committed)) {
      this.broken({ kind, detail })
    } else exchange.attemptFailed({ kind, detail })
  }

  repeated(): void {
    this.exchange.context.repeated(this.replica)
  }

  // ---- the answer

  private accept(status: number, headers: readonly string[]): void {
    const { exchange } = this
    const { context, inbound, down } = exchange
    const type = mediaType(headerOf(headers, 'content-type'))
    const events = type === 'text/event-stream' || (type === undefined && inbound.facts.stream)
    if (!events && type !== undefined && type !== 'application/json' && !type.endsWith('+json')) {
      exchange.attemptFailed({ kind: 'not_an_answer', detail: `answered ${status} with ${type}` })
      return
    }
    if (this.askedUsage) context.asking.prove(this.wire.id)
    if (this.retriedWithout && context.asking.refuse(this.wire.id)) {
      context.warn(
        { pool: context.config.policy.pools[this.wire.id]!.name },
        'the upstream refuses stream_options: its tokens are counted by estimate. Set ask_usage: false for this pool.',
      )
    }
    if (!events && down.committed) {
      // The head of a stream is out, and one JSON body cannot follow it.
      exchange.attemptFailed({ kind: 'not_an_answer', detail: 'answered a stream with one JSON body' })
      return
    }
    const eventLimit = context.config.limits.event
    this.answer = events
      ? {
          kind: 'events',
          headers,
          meter: new Meter({ shape: inbound.shape, takeUsage: this.askedUsage, eventLimit }),
        }
      : { kind: 'json', headers, status, json: new JsonAnswer(eventLimit, inbound.shape) }
  }

  /** The upstream answered with an error status, or with one that is no answer. */
  private decline(status: number, headers: readonly string[]): void {
    const { exchange, wire } = this
    const { context } = exchange
    const detail = `answered ${status}`
    if ((status === 400 || status === 422) && this.askedUsage && context.asking.doubtful(wire.id)) {
      this.retriedWithout = true
      this.call?.abort()
      this.send(context.clock.now())
    } else if ((status === 401 || status === 403) && !wire.passAuthorization) {
      const pool = context.config.policy.pools[wire.id]!.name
      context.warn(
        { pool, status },
        `the upstream refuses Weir's own credential: set pools.${pool}.api_key to a key it accepts`,
      )
      exchange.stop(
        'upstreamError',
        {
          code: 'weir_upstream_error',
          message: `The pool ${pool} refuses this router's own credential. Its operator must set pools.${pool}.api_key.`,
          shouldRetry: false,
        },
        undefined,
        detail,
      )
    } else if (status === 429) {
      // The replica is full, and healthy: where no other can help, its own answer says best how long to wait.
      const retryAfterMs = retryAfterOf(headers)
      const busy: Failure = { kind: 'busy', detail, ...(retryAfterMs !== undefined && { retryAfterMs }) }
      if (!exchange.reroutes(busy)) this.passOn(status, headers, 'upstreamError')
    } else if (status >= 400 && status < 500) this.passOn(status, headers, 'clientError')
    else exchange.attemptFailed({ kind: status >= 500 ? 'status' : 'not_an_answer', detail })
  }

  private passOn(status: number, headers: readonly string[], ending: 'clientError' | 'upstreamError'): void {
    this.answer = this.exchange.down.committed
      ? { kind: 'late', ending, status, refusal: new LateRefusal(this.exchange.inbound.shape) }
      : { kind: 'refusal', ending, status, headers }
  }

  /** Lines for the client, as they are now: `server-timing` ends at the commit. */
  private clientHead(headers: readonly string[], keepLength: boolean): readonly string[] {
    const own = ownHead(this.exchange)
    return [...responseHeaders(headers, keepLength, own), ...own]
  }

  /** After each push: commits when it is time, hands bytes on, notes the first output and the end. */
  private relay(meter: Meter, headers: readonly string[], now: Ms): boolean {
    const { exchange } = this
    const { down } = exchange
    let flows = true
    if (down.committed) {
      if (meter.out.length > 0) flows = down.writeAll(meter.out)
    } else if (meter.error !== undefined) {
      this.errorBeforeCommit(meter)
      return true
    } else {
      down.hold(meter.out)
      if (meter.firstOutput !== undefined || meter.done || meter.finished || down.heldBytes > HOLD_LIMIT) {
        flows = down.commit(200, this.clientHead(headers, false))
      }
    }
    if (meter.responseId !== undefined && !this.kept) this.keeps(meter.responseId)
    if (meter.firstOutput === now) exchange.firstOutput(now, exchange.context.clock.now() - now)
    this.tellMarks(meter, now)
    if (meter.done && !this.counted) {
      this.counted = true
      exchange.finish(...endingOf(meter))
      exchange.linger(now)
    }
    return this.flow(flows, now)
  }

  /** Output after the first event. Once its client holds a stream up, its gaps say nothing of the replica. */
  private tellMarks({ longestChoiceMarks, throttled }: Meter, now: Ms): void {
    const more = longestChoiceMarks - Math.max(1, this.marksTold)
    this.marksTold = longestChoiceMarks
    if (more > 0 && !throttled) this.exchange.outputs(now, more)
  }

  /** A response that its replica keeps: whatever goes on from it has to find the way back. */
  private keeps(id: string | undefined): void {
    const { context, inbound } = this.exchange
    if (id === undefined || inbound.shape !== 'responses') return
    this.kept = true
    context.responses.set(id, this.replica)
  }

  /** An error event in a stream of which the client has seen nothing. */
  private errorBeforeCommit(meter: Meter): void {
    const { exchange } = this
    const { down } = exchange
    const { status, body } = meter.error!
    if (status === undefined || status < 400 || status >= 500 || status === 429) {
      exchange.attemptFailed({ kind: 'stream_error', detail: 'an error event in a 200 stream' })
      return
    }
    // The request's own fault, said late: it gets the status it should have had.
    this.abort()
    down.drop()
    down.commit(status, ['content-type', 'application/json; charset=utf-8', ...ownHead(exchange)])
    down.writeAll([Buffer.from(body)])
    exchange.finish('clientError', undefined)
    exchange.endClient()
  }

  /** The upstream's body ended as HTTP bodies do. */
  private streamEnded(meter: Meter): void {
    const { exchange } = this
    if (this.counted) exchange.endClient()
    else if (meter.error === undefined && !meter.finished)
      this.broken({ kind: 'reset', detail: 'ended without a finish' })
    else {
      exchange.finish(...endingOf(meter))
      exchange.endClient()
    }
  }

  /** The stream stopped short. After the commit that is said in band, never as an end like a complete one. */
  private broken(failure: Failure): void {
    const { exchange } = this
    if (this.counted) exchange.endClient()
    else if (!exchange.down.committed) exchange.attemptFailed(failure)
    else {
      const message = 'The upstream broke off before the answer was complete.'
      exchange.stop('truncated', { code: 'weir_upstream_truncated', message }, failure)
    }
  }

  /** Pauses the upstream while the client reads more slowly than it sends. */
  private flow(flows: boolean, now: Ms): boolean {
    if (!flows && this.pausedAt === undefined) {
      this.pausedAt = now
      this.exchange.schedule()
    }
    return flows
  }
}

/** How a stream that came to its own end is to be counted. */
function endingOf(meter: Meter): [Ending['kind'], Progress, Failure?] {
  if (meter.error !== undefined) {
    return ['upstreamError', meter, { kind: 'stream_error', detail: 'an error event after output' }]
  }
  if (meter.aborted) return ['truncated', meter, { kind: 'stream_error', detail: 'finish reason abort' }]
  return ['complete', meter]
}

/** `retry-after` in whole seconds; its other form, a date, is not read. */
function retryAfterOf(headers: readonly string[]): Ms | undefined {
  const text = headerOf(headers, 'retry-after')
  return text !== undefined && /^\d{1,6}$/.test(text) ? Number(text) * 1000 : undefined
}
