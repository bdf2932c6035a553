/** One request from the policy's decision to its end: attempts on replicas, the five clocks, one closing. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Resolved, Timeouts } from '../config/resolved.js'
import type { Driver, Outlet, TicketDecision, Timed } from '../live/driver.js'
import type { DispatchReason, Ending, Failure } from '../policy/decision.js'
import type { PoolId, ReplicaId, RequestFacts, Ticket } from '../request.js'
import type { Progress } from '../slo/latency.js'
import type { Judgement } from '../slo/verdict.js'
import type { StreamShape } from '../sse/meter.js'
import type { Clock, Ms } from '../time.js'
import type { Relay } from '../upstream/call.js'
import { type Answer, shedAnswer, soonMs } from './answers.js'
import { Attempt } from './attempt.js'
import type { BodyFacts } from './body.js'
import { Downstream } from './downstream.js'
import { refusedMember } from './outgoing.js'
import { ownHead, refusalAnswer } from './own-head.js'
import type { ResponseTable } from './response-table.js'
import type { UsageAsking } from './usage-asking.js'

/** What all requests of one server share. */
export interface ExchangeContext {
  /** The one that runs now. A reload replaces it as a whole; ids keep their meaning, so open requests can go on. */
  config: Resolved
  readonly driver: Driver
  readonly relay: Relay
  readonly clock: Clock
  readonly asking: UsageAsking
  /** Which replica keeps which response of the Responses API. */
  readonly responses: ResponseTable
  /** Told once a request, at its end. */
  readonly ended: (exchange: Exchange, report: Report) => void
  /** Told when an engine control in a body is refused, or replaced by Weir's own. */
  readonly member: (pool: PoolId, action: 'refused' | 'replaced') => void
  /** Told when a request goes on to another replica. */
  readonly rerouted: (pool: PoolId, failure: Failure) => void
  /** Told of what an operator should mend. */
  readonly warn: (fields: object, message: string) => void
  /** Told when a dead reused socket made the relay repeat a request. */
  readonly repeated: (replica: ReplicaId) => void
  /** Write answers to the descriptor of a client's socket where that is safe: see `BodyWriter`. */
  readonly directWrite: boolean
  /** Between comments of Weir's own on a stream that committed before its first output. */
  readonly commentEveryMs: Ms
}

/** One request as it was read. */
export interface Inbound {
  readonly id: string
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly facts: RequestFacts
  readonly body: Buffer
  readonly bodyFacts: BodyFacts
  readonly shape: StreamShape
  /** Path for the upstream, without a base path. */
  readonly upstreamPath: string
}

/** How a request ended, for the log and the counters. */
export interface Report {
  readonly judgement: Judgement
  readonly ending: Ending['kind'] | 'shed' | 'refused'
  /** Status the client got; undefined when it left before. */
  readonly status: number | undefined
  /** Weir's code, where the answer was Weir's. */
  readonly code: string | undefined
  readonly detail: string | undefined
  /** Weir's own time: before the first dispatch, less the queue, plus in the first output event. */
  readonly ownMs: Ms | undefined
}

/** How long an upstream may take to close its body after `[DONE]`. */
const LINGER_MS: Ms = 1000

/**
 * `open`: no ending yet. `lingering`: complete and counted, the upstream's last bytes are outstanding. `flushing`: all
 * is written, and the client has not read it.
 */
type Phase =
  | { readonly kind: 'open' }
  | { readonly kind: 'lingering' | 'flushing'; readonly until: Ms }
  | { readonly kind: 'closed' }

const OPEN: Phase = { kind: 'open' }
const CLOSED: Phase = { kind: 'closed' }

export class Exchange implements Outlet, Timed {
  dueAt: Ms = Infinity
  ticket: Ticket | undefined
  attempt: Attempt | undefined
  /** Why the latest replica was chosen. */
  why: DispatchReason | undefined
  /** Time spent in Weir's queue so far. */
  queuedMs: Ms = 0
  /** It is in Weir's queue, or was. */
  queued = false
  readonly down: Downstream
  private phase: Phase = OPEN
  private timeouts: Timeouts
  private queuedAt: Ms | undefined
  private nextCommentAt: Ms | undefined
  private ownMs: Ms | undefined
  private outputSeen = false

  constructor(
    readonly context: ExchangeContext,
    readonly inbound: Inbound,
  ) {
    // Until a pool is chosen only `total` can run, and the config's first pool knows it as well as any.
    this.timeouts = context.config.pools[0]!.timeouts
    this.down = new Downstream(
      inbound.response,
      inbound.shape,
      context.directWrite,
      () => this.attempt?.drained(),
      left => this.closed(left),
    )
  }

  /** Asks the policy; all else follows from its decisions. */
  start(): void {
    this.context.driver.arrive(this.inbound.facts, this)
    this.schedule()
  }

  decided(decision: TicketDecision): void {
    const { clock, config } = this.context
    const now = clock.now()
    this.ticket = decision.ticket
    if (this.queuedAt !== undefined) this.queuedMs += now - this.queuedAt
    this.queuedAt = decision.kind === 'queue' ? now : undefined
    switch (decision.kind) {
      case 'queue':
        this.queued = true
        return
      case 'dispatch': {
        const wire = config.pools[decision.pool]!
        this.why = decision.why
        this.timeouts = wire.timeouts
        const refused = refusedMember(this.inbound, wire)
        if (refused !== undefined) {
          this.context.member(wire.id, 'refused')
          const message = `This router takes no "${refused}" in a body. Leave it out.`
          this.stop('clientError', { code: 'weir_bad_request', message })
          return
        }
        this.attempt = new Attempt(this, decision.ticket, wire, decision.replica)
        this.attempt.send(now)
        this.ownMs ??= clock.now() - this.inbound.facts.bodyAt - this.queuedMs
        this.schedule()
        return
      }
      case 'shed': {
        const name = config.policy.classes[decision.ticket.cls!]!.name
        const { reason, retryAfterMs, judgement } = decision
        this.refuse(
          shedAnswer(reason, name, this.queuedMs, retryAfterMs, config.overloadStatus),
          'shed',
          judgement,
        )
        return
      }
      case 'refuse': {
        this.refuse(refusalAnswer(decision.reason, decision.ticket, config), 'refused', decision.judgement)
      }
    }
  }

  /** The server shuts down and its grace is over. */
  cutOff(): void {
    this.stop('truncated', {
      code: 'weir_draining',
      message: 'This router is shutting down.',
      retryAfterMs: soonMs(),
    })
  }

  // ---- what an attempt tells

  /** @param ownMs  time from the chunk's arrival until it was written on */
  firstOutput(now: Ms, ownMs: Ms): void {
    if (this.outputSeen || this.phase.kind !== 'open') return
    this.outputSeen = true
    this.nextCommentAt = undefined
    this.ownMs = (this.ownMs ?? 0) + ownMs
    this.context.driver.firstToken(this.ticket!, now)
    this.schedule()
  }

  /** Later output events came, the last of them at `now`. */
  outputs(now: Ms, events: number): void {
    if (this.phase.kind === 'open') this.context.driver.mark(this.ticket!, now, events)
  }

  /** The attempt failed before the client saw anything of it. @returns whether another one takes the request */
  reroutes(failure: Failure): boolean {
    if (this.down.committed || this.phase.kind !== 'open') return false
    const failed = this.attempt
    if (!this.context.driver.failed(this.ticket!, failure, this.context.clock.now())) return false
    failed?.abort()
    if (failed !== undefined) this.context.rerouted(failed.wire.id, failure)
    if (this.attempt === failed) this.attempt = undefined
    this.down.drop()
    this.schedule()
    return true
  }

  /** As `reroutes`; answers the client where no other takes it. */
  attemptFailed(failure: Failure, answer?: Answer): void {
    const { committed } = this.down
    if (this.reroutes(failure)) return
    const message = `The upstream failed before it gave any output (${failure.detail}), and no other replica could take the request.`
    this.stop(
      'upstreamError',
      answer ?? { code: 'weir_upstream_error', message, retryAfterMs: soonMs() },
      committed ? failure : undefined,
      failure.detail,
    )
  }

  /** Weir ends it: the upstream is let go, the client told, the ticket closed. */
  stop(ending: Ending['kind'], answer: Answer, failure?: Failure, detail?: string): void {
    if (this.phase.kind !== 'open') return
    const { attempt } = this
    attempt?.abort()
    // Before the commit the client had nothing of it: what an attempt held and lost is no answer to be timed.
    const progress = this.down.committed ? attempt?.progress : undefined
    // One JSON body cannot carry an error event: break it off, so that nobody takes it for whole.
    if (this.down.committed && attempt?.sendsJson) this.down.destroy()
    else this.down.fail(answer, attempt?.between ?? true, ownHead(this))
    this.finish(ending, progress, failure, answer.code, detail)
    this.flush()
  }

  /** The answer came to its end: closes the ticket, once. */
  finish(
    ending: Ending['kind'],
    progress: Progress | undefined,
    failure?: Failure,
    code?: string,
    detail: string | undefined = failure?.detail,
  ): void {
    if (this.phase.kind !== 'open' || this.ticket === undefined) return
    this.phase = CLOSED
    const { driver, clock } = this.context
    const now = clock.now()
    if (this.queuedAt !== undefined) this.queuedMs += now - this.queuedAt
    const closing: Ending =
      failure === undefined ? { kind: ending, progress } : { kind: ending, progress, failure }
    this.close(driver.finish(this.ticket, closing, now), ending, code, detail)
  }

  /** Complete and counted; waits a little for the end of the upstream's body, so that its socket can be used again. */
  linger(now: Ms): void {
    this.phase = { kind: 'lingering', until: now + LINGER_MS }
    this.schedule()
  }

  /** The last byte of the answer is handed on. */
  endClient(): void {
    this.down.end()
    this.flush()
  }

  // ---- clocks

  due(now: Ms): void {
    const { phase } = this
    if (phase.kind !== 'open') {
      if (phase.kind === 'closed' || now < phase.until) return
      if (phase.kind === 'lingering') {
        this.attempt?.abort()
        this.endClient()
      } else this.down.destroy()
      return
    }
    const { totalMs, firstTokenMs, stallMs } = this.timeouts
    const waits = this.attempt?.waits
    if (now >= this.totalAt()) {
      this.stop('timeout', timeout('weir_total_timeout', 'The answer was not complete', 'total', totalMs))
    } else if (now >= this.patienceAt()) {
      if (waits?.for === 'client') this.clientStalled()
      else if (waits?.for === 'token') {
        this.stop('timeout', timeout('weir_stream_stalled', 'No further output', 'stall', stallMs))
      } else
        this.stop('timeout', timeout('weir_first_token_timeout', 'No output', 'first_token', firstTokenMs))
    } else if (now >= this.commitAt()) this.commitEarly(now)
    else if (this.nextCommentAt !== undefined && now >= this.nextCommentAt) this.keepAlive(now)
    this.schedule()
  }

  /** Finds out anew when one of the clocks runs out. */
  schedule(): void {
    if (this.phase.kind === 'closed') return
    this.dueAt =
      this.phase.kind !== 'open'
        ? this.phase.until
        : Math.min(this.totalAt(), this.patienceAt(), this.commitAt(), this.nextCommentAt ?? Infinity)
    this.context.driver.watch(this)
  }

  private totalAt(): Ms {
    return this.inbound.facts.arrivedAt + (this.timeouts.totalMs ?? Infinity)
  }

  /** When whoever the attempt waits for has had its time. The queue's clock is the policy's. */
  private patienceAt(): Ms {
    const waits = this.attempt?.waits
    if (waits === undefined) return Infinity
    const { firstTokenMs, stallMs } = this.timeouts
    return waits.since + ((waits.for === 'first_token' ? firstTokenMs : stallMs) ?? Infinity)
  }

  private commitAt(): Ms {
    const { facts } = this.inbound
    if (this.down.committed || !facts.stream || this.attempt?.sendsJson) return Infinity
    return facts.arrivedAt + (this.context.config.commitAfterMs[this.ticket?.cls ?? 0] ?? Infinity)
  }

  /** Before the first output, so that no load balancer in between takes silence for death. */
  private commitEarly(now: Ms): void {
    const head = this.attempt?.streamHead ?? [
      'content-type',
      'text/event-stream; charset=utf-8',
      ...ownHead(this),
    ]
    this.down.commit(200, head)
    this.keepAlive(now)
  }

  private keepAlive(now: Ms): void {
    if (this.attempt?.between ?? true) this.down.comment('weir')
    this.nextCommentAt = now + this.context.commentEveryMs
  }

  private clientStalled(): void {
    this.attempt?.abort()
    this.down.destroy()
    this.finish('clientLeft', this.attempt?.progress, undefined, undefined, 'the client stopped reading')
  }

  // ---- the end

  /** The client has the stall limit to take what is written. */
  private flush(): void {
    if (this.down.flushed) this.rest()
    else {
      this.phase = { kind: 'flushing', until: this.context.clock.now() + (this.timeouts.stallMs ?? Infinity) }
      this.schedule()
    }
  }

  private closed(left: boolean): void {
    if (left) {
      this.attempt?.abort()
      this.finish('clientLeft', this.attempt?.progress)
    }
    this.rest()
  }

  private rest(): void {
    this.phase = CLOSED
    this.context.driver.unwatch(this)
  }

  /** The policy closed the ticket itself. */
  private refuse(answer: Answer, ending: 'shed' | 'refused', judgement: Judgement): void {
    this.down.fail(answer, true, ownHead(this))
    this.close(judgement, ending, answer.code, answer.message)
    this.flush()
  }

  private close(
    judgement: Judgement,
    ending: Report['ending'],
    code: string | undefined,
    detail: string | undefined,
  ): void {
    this.context.driver.unwatch(this)
    const { response } = this.inbound
    const status = response.headersSent ? response.statusCode : undefined
    const ownMs = this.outputSeen ? this.ownMs : undefined
    this.context.ended(this, { judgement, ending, status, code, detail, ownMs })
  }
}

function timeout(code: Answer['code'], what: string, clock: string, span: Ms | undefined): Answer {
  return {
    code,
    message: `${what} within ${(span ?? 0) / 1000} s (timeouts.${clock}).`,
    retryAfterMs: soonMs(),
  }
}
