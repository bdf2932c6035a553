/** Looks over a policy's shoulder: what happens to each request, read from what goes through the door. */
import type { Asking, Forecast, Sent, SentEnding } from '../predict/forecast.js'
import type { PoolId, ReplicaId, RequestFacts, Ticket } from '../request.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms } from '../time.js'
import type { Decision, Ending, Failure } from './decision.js'
import type { Policy, PolicySpec, PolicyState } from './policy.js'

/** Told of each request that has a class, in the order of things: all calls are O(1) and decide nothing. */
export interface Watcher {
  /** Whatever becomes of it. */
  arrived?(ticket: Ticket, now: Ms): void
  dispatched(ticket: Ticket, pool: PoolId, replica: ReplicaId, now: Ms): void
  firstToken(ticket: Ticket, now: Ms): void
  mark(ticket: Ticket, now: Ms, events: number): void
  /** Its attempt failed; it may be dispatched again. */
  failed(ticket: Ticket, now: Ms): void
  /** The end of one that was refused for load; it is on no replica. */
  shed(ticket: Ticket, judgement: Judgement, now: Ms): void
  /** Any other end. */
  ended(ticket: Ticket, ending: Ending, judgement: Judgement, now: Ms): void
  /** Told before the policy decides anything by it. */
  reconfigure(spec: PolicySpec, now: Ms): void
}

/** The same policy, with somebody who watches it; its decisions are as they were. */
export function witnessed(policy: Policy, watcher: Watcher): Policy {
  return new Witnessed(policy, watcher, policy.forecast)
}

/** For a policy that has no model of its own: feeds one from what passes through its door. */
export function watched(policy: Policy, forecast: Forecast): Policy {
  return new Witnessed(policy, new Feed(forecast), forecast)
}

/** What a model sees of a request. */
export function askingOf({ cls, model, facts }: Ticket): Asking {
  const { promptTokens, maxTokens, stream } = facts
  return { cls: cls ?? 0, model, promptTokens, maxTokens, stream }
}

class Witnessed implements Policy {
  readonly #policy: Policy
  readonly #watcher: Watcher
  readonly forecast?: Forecast

  constructor(policy: Policy, watcher: Watcher, forecast: Forecast | undefined) {
    this.#policy = policy
    this.#watcher = watcher
    if (forecast !== undefined) this.forecast = forecast
  }

  arrive(facts: RequestFacts, now: Ms): ReturnType<Policy['arrive']> {
    const came = this.#policy.arrive(facts, now)
    if (came.decisions[0]?.kind !== 'refuse') this.#watcher.arrived?.(came.ticket, now)
    this.#see(came.decisions, now)
    return came
  }

  firstToken(ticket: Ticket, now: Ms): readonly Decision[] {
    const decisions = this.#policy.firstToken(ticket, now)
    this.#watcher.firstToken(ticket, now)
    this.#see(decisions, now)
    return decisions
  }

  mark(ticket: Ticket, now: Ms, events: number): void {
    this.#policy.mark(ticket, now, events)
    this.#watcher.mark(ticket, now, events)
  }

  failed(ticket: Ticket, failure: Failure, now: Ms): ReturnType<Policy['failed']> {
    const gone = this.#policy.failed(ticket, failure, now)
    this.#watcher.failed(ticket, now)
    if (gone.again !== undefined) this.#see([gone.again], now)
    this.#see(gone.decisions, now)
    return gone
  }

  finish(ticket: Ticket, ending: Ending, now: Ms): ReturnType<Policy['finish']> {
    const closed = this.#policy.finish(ticket, ending, now)
    this.#watcher.ended(ticket, ending, closed.judgement, now)
    this.#see(closed.decisions, now)
    return closed
  }

  wake(now: Ms): readonly Decision[] {
    const decisions = this.#policy.wake(now)
    this.#see(decisions, now)
    return decisions
  }

  reconfigure(spec: PolicySpec, now: Ms): readonly Decision[] {
    this.#watcher.reconfigure(spec, now)
    const decisions = this.#policy.reconfigure(spec, now)
    this.#see(decisions, now)
    return decisions
  }

  get wakeAt(): Ms | undefined {
    return this.#policy.wakeAt
  }

  state(now: Ms): PolicyState {
    return this.#policy.state(now)
  }

  #see(decisions: readonly Decision[], now: Ms): void {
    for (const one of decisions) {
      if (one.kind === 'dispatch') this.#watcher.dispatched(one.ticket, one.pool, one.replica, now)
      else if (one.kind === 'shed') this.#watcher.shed(one.ticket, one.judgement, now)
    }
  }
}

/** Tells a forecast what a policy with a model would tell it. */
class Feed implements Watcher {
  readonly #forecast: Forecast
  readonly #sent = new Map<Ticket, Sent>()

  constructor(forecast: Forecast) {
    this.#forecast = forecast
  }

  dispatched(ticket: Ticket, _pool: PoolId, replica: ReplicaId, now: Ms): void {
    this.#sent.set(ticket, this.#forecast.dispatched(replica, askingOf(ticket), now))
  }

  firstToken(ticket: Ticket, now: Ms): void {
    const sent = this.#sent.get(ticket)
    if (sent !== undefined) this.#forecast.firstToken(sent, now)
  }

  mark(ticket: Ticket, now: Ms, events: number): void {
    const sent = this.#sent.get(ticket)
    if (sent !== undefined) this.#forecast.mark(sent, now, events)
  }

  failed(ticket: Ticket, now: Ms): void {
    this.#end(ticket, { complete: false, progress: undefined }, now)
  }

  shed(ticket: Ticket): void {
    this.#forecast.shed(askingOf(ticket))
  }

  ended(ticket: Ticket, { kind, progress }: Ending, { tpotMs }: Judgement, now: Ms): void {
    this.#end(ticket, { complete: kind === 'complete', progress, tpotMs }, now)
  }

  reconfigure(spec: PolicySpec): void {
    this.#forecast.reconfigure(spec)
  }

  #end(ticket: Ticket, ending: SentEnding, now: Ms): void {
    const sent = this.#sent.get(ticket)
    if (sent === undefined) return
    this.#sent.delete(ticket)
    this.#forecast.ended(sent, ending, now)
  }
}
