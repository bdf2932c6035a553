/** Drives the policy on the real clock: hands its decisions to whoever waits for them, and wakes what asked to be woken. */
import type { Decision, Ending, Failure } from '../policy/decision.js'
import type { Policy, PolicySpec } from '../policy/policy.js'
import type { RequestFacts, Ticket } from '../request.js'
import type { Judgement } from '../slo/verdict.js'
import type { Clock, Ms } from '../time.js'

/** Decisions about one ticket, as opposed to news. */
export type TicketDecision = Extract<Decision, { ticket: Ticket }>

/** Whoever holds one request's sockets. */
export interface Outlet {
  decided(decision: TicketDecision): void
}

/** Something with clocks of its own. */
export interface Timed {
  /** When `due` is to be called next. May move later freely; earlier only within `watch`. */
  readonly dueAt: Ms
  due(now: Ms): void
}

/** Clocks are looked at no more often than this, so that thousands of streams cost one pass. */
const TICK_MS: Ms = 10

export class Driver {
  private readonly outlets = new Map<Ticket, Outlet>()
  private readonly timed = new Set<Timed>()
  private timer: NodeJS.Timeout | undefined
  private timerAt: Ms = Infinity

  /** @param news  told of every decision, before its outlet: for counters and the log */
  constructor(
    private readonly policy: Policy,
    private readonly clock: Clock,
    private readonly news: (decision: Decision) => void,
  ) {}

  /** Asks the policy where a request goes; the answer comes to `outlet`, mostly before this returns. */
  arrive(facts: RequestFacts, outlet: Outlet): Ticket {
    const { ticket, decisions } = this.policy.arrive(facts, this.clock.now())
    this.outlets.set(ticket, outlet)
    this.deliver(decisions)
    return ticket
  }

  firstToken(ticket: Ticket, now: Ms): void {
    this.deliver(this.policy.firstToken(ticket, now))
  }

  mark(ticket: Ticket, now: Ms, events: number): void {
    this.policy.mark(ticket, now, events)
  }

  /** @returns whether the request goes on: a decision for it came, or will come from the queue */
  failed(ticket: Ticket, failure: Failure, now: Ms): boolean {
    const { again, decisions } = this.policy.failed(ticket, failure, now)
    if (again !== undefined) this.deliver([again])
    this.deliver(decisions)
    return again !== undefined
  }

  finish(ticket: Ticket, ending: Ending, now: Ms): Judgement {
    const { judgement, decisions } = this.policy.finish(ticket, ending, now)
    this.outlets.delete(ticket)
    this.deliver(decisions)
    return judgement
  }

  /** The policy follows a new config. */
  reconfigure(spec: PolicySpec): void {
    this.deliver(this.policy.reconfigure(spec, this.clock.now()))
  }

  /** Looks after the clocks of `timed` until `unwatch`. Call again after `dueAt` moved earlier. */
  watch(timed: Timed): void {
    this.timed.add(timed)
    this.arm(timed.dueAt)
  }

  unwatch(timed: Timed): void {
    this.timed.delete(timed)
  }

  /** Stops the timer; nothing is woken any more. */
  stop(): void {
    clearTimeout(this.timer)
    this.timer = undefined
    this.timed.clear()
  }

  private deliver(decisions: readonly Decision[]): void {
    for (const decision of decisions) {
      this.news(decision)
      if (!('ticket' in decision)) continue
      const outlet = this.outlets.get(decision.ticket)
      if (decision.kind === 'shed' || decision.kind === 'refuse') this.outlets.delete(decision.ticket)
      outlet?.decided(decision)
    }
    const { wakeAt } = this.policy
    if (wakeAt !== undefined) this.arm(wakeAt)
  }

  private arm(at: Ms): void {
    if (at >= this.timerAt || at === Infinity) return
    clearTimeout(this.timer)
    this.timerAt = at
    // Node fires a timer up to 1 ms early by its own rounding; a span past 2^31 ms would fire at once.
    this.timer = setTimeout(() => this.tick(), Math.min(Math.max(TICK_MS, at - this.clock.now() + 1), 1e9))
  }

  private tick(): void {
    this.timerAt = Infinity
    const now = this.clock.now()
    const { wakeAt } = this.policy
    if (wakeAt !== undefined && wakeAt <= now) this.deliver(this.policy.wake(now))
    let next = Infinity
    for (const timed of this.timed) {
      if (timed.dueAt <= now) timed.due(now)
      if (this.timed.has(timed)) next = Math.min(next, timed.dueAt)
    }
    this.arm(Math.min(next, this.policy.wakeAt ?? Infinity))
  }
}
