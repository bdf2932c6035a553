/** What every policy does alike: classes, tickets, alarms, health, reroutes, counts and verdicts. A rule decides. */
import { RetryBudget } from '../admission/retry-budget.js'
import { afterAnswer, afterFailure, afterNothing, type Health } from '../fleet/health.js'
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { Forecast } from '../predict/forecast.js'
import type { RequestFacts, Ticket } from '../request.js'
import { type Classified, compileRoutes, mayAsk } from '../routing/classify.js'
import { Ledger } from '../slo/ledger.js'
import type { TrafficClass } from '../slo/slo.js'
import { type Judgement, judge, refusal } from '../slo/verdict.js'
import type { Ms, Rng } from '../time.js'
import { Alarms } from './alarms.js'
import type { Decision, DispatchReason, Ending, Failure, RefuseReason, ShedReason } from './decision.js'
import { Lanes } from './lane.js'
import { Open } from './open.js'
import type { Policy, PolicySpec, PolicyState } from './policy.js'
import { Pools } from './pools.js'
import type { Desk, Rule } from './rule.js'

/** Failures that say nothing about a replica's health. */
const NEUTRAL: ReadonlySet<Failure['kind']> = new Set(['busy', 'first_token', 'head_too_large'])
/** A replica that asks for longer is asked again all the same. */
const MOST_LEFT_ALONE_MS: Ms = 60_000

/** Whatever is due by time is settled first in every call, so decisions do not depend on how punctual `wake` is. */
export class Door implements Policy {
  readonly forecast?: Forecast
  readonly #rng: Rng
  readonly #rule: Rule
  #classify: (facts: RequestFacts) => Classified = compileRoutes([])
  /** By class id. */
  readonly #classes: TrafficClass[] = []
  readonly #pools = new Pools()
  #lanes = new Lanes([], [])
  /** In the order in which they began to wait. */
  readonly #waiting = new Set<Open>()
  readonly #budget: RetryBudget
  readonly #ledger: Ledger
  readonly #alarms = new Alarms()
  #open = 0
  #nextId = 0
  /** Decisions of the call under way. The first one on the ticket that the call is about stands apart. */
  #out: Decision[] = []
  #about: Open | undefined
  #answer: Decision | undefined

  /**
   * @param rng   breaks ties and spreads retries; the same numbers give the same decisions
   * @param rule  asked for once the desk shows the config
   */
  constructor(spec: PolicySpec, rng: Rng, rule: (desk: Desk) => Rule) {
    this.#rng = rng
    this.#budget = new RetryBudget(spec.retries)
    this.#ledger = new Ledger(spec.classes.length)
    this.#follow(spec)
    this.#rule = rule(this.#desk())
    if (this.#rule.forecast !== undefined) this.forecast = this.#rule.forecast
  }

  #desk(): Desk {
    return {
      rng: this.#rng,
      classes: this.#classes,
      pools: this.#pools.all,
      replicas: this.#pools.replicas,
      dispatch: (open, replica, now) => this.#dispatch(open, replica, now),
      queue: (open, now) => this.#enqueue(open, now),
      shed: (open, reason, now, retryAfterMs) => this.#shed(open, reason, now, retryAfterMs),
    }
  }

  reconfigure(spec: PolicySpec, now: Ms): Decision[] {
    const out = this.#begin(now)
    this.#budget.bounds = spec.retries
    this.#ledger.grow(spec.classes.length)
    this.#follow(spec)
    this.#rule.reconfigure?.(spec, now)
    for (const open of this.#waiting) this.#moveOver(open, now)
    this.#rule.freed(now)
    return out
  }

  #follow(spec: PolicySpec): void {
    this.#classify = compileRoutes(spec.routes)
    this.#classes.splice(0, Infinity, ...spec.classes)
    this.#pools.follow(spec)
    this.#lanes = new Lanes(spec.classes, this.#pools.all)
  }

  /** One that waits goes on waiting under the new config, for as long as it was told. */
  #moveOver(open: Open, now: Ms): void {
    const lane = this.#lanes.of(open.cls, open.model)
    if (lane?.traffic.queue === undefined) {
      this.#shed(open, 'no_replica', now)
      return
    }
    open.lane = lane
    lane.waiting++
    this.#rule.waits?.(open, now)
  }

  arrive(facts: RequestFacts, now: Ms): { ticket: Ticket; decisions: Decision[] } {
    const out = this.#begin(now)
    const { route, cls, model } = this.#classify(facts)
    const id = this.#nextId++
    if (!mayAsk(facts)) return this.#refuse({ id, facts, cls: undefined, model, route }, 'class_not_allowed')
    const lane = this.#lanes.of(cls, model)
    if (lane === undefined) return this.#refuse({ id, facts, cls, model, route }, 'unknown_model')

    const open = new Open(id, facts, lane, model, route)
    this.#ledger.arrived(open.cls)
    this.#open++
    const answer = this.#askAbout(open, () => {
      if (open.deadline.by === 'client' && now >= open.deadlineAt) this.#shed(open, 'infeasible', now)
      else this.#rule.arrive(open, now)
    })
    if (answer === undefined) throw new Error(`the rule decided nothing about ticket ${id}`)
    out.unshift(answer)
    return { ticket: open, decisions: out }
  }

  firstToken(ticket: Ticket, now: Ms): Decision[] {
    const open = openTicket(ticket)
    const { place } = open
    if (place.at !== 'replica') throw new Error(`ticket ${open.id} is on no replica: it has no first token`)
    if (open.firstTokenAt !== undefined) throw new Error(`ticket ${open.id} had its first token before`)
    const out: Decision[] = []
    this.#rule.firstToken?.(open, place.replica, now)
    place.replica.prefilled(open.unfilledTokens)
    for (const result of open.decided(now, true)) out.push({ kind: 'clause', result })
    open.firstTokenAt = now
    this.#alarms.arm(open)
    return this.#begin(now, out)
  }

  mark(ticket: Ticket, now: Ms, events: number): void {
    if (this.#rule.mark === undefined) return
    const open = openTicket(ticket)
    if (open.place.at === 'replica') this.#rule.mark(open, open.place.replica, now, events)
  }

  failed(ticket: Ticket, failure: Failure, now: Ms): { again: Decision | undefined; decisions: Decision[] } {
    const open = openTicket(ticket)
    if (open.place.at !== 'replica')
      throw new Error(`ticket ${open.id} is on no replica: no attempt can fail`)
    if (open.firstTokenAt !== undefined) {
      throw new Error(`ticket ${open.id} had output: it ends by finish, and is not sent again`)
    }
    const { replica } = open.place
    const out: Decision[] = []
    this.#out = out
    replica.released(open.unfilledTokens)
    open.place = { at: 'nowhere' }
    this.#failedOn(replica, open, failure, now)
    this.#rule.failed?.(open, replica, failure, now)
    const again = this.#again(open, failure, replica, now)
    this.#alarms.arm(open)
    this.#begin(now, out)
    this.#rule.freed(now)
    return { again, decisions: out }
  }

  finish(ticket: Ticket, ending: Ending, now: Ms): { judgement: Judgement; decisions: Decision[] } {
    const open = openTicket(ticket)
    const { place } = open
    const out: Decision[] = []
    this.#out = out
    if (place.at === 'queue') this.#leaveQueue(open, now)
    const replica = place.at === 'replica' ? place.replica : undefined
    if (replica !== undefined) this.#release(open, replica, ending, now)
    const judgement = judge(open, ending.kind, ending.progress, replica?.tokensPerMark ?? 1, now)
    if (place.at === 'replica' && ending.kind === 'complete') {
      this.#learn(place.replica, ending, now - place.since)
    }
    this.#close(open, judgement)
    this.#rule.ended?.(open, replica, ending, judgement, now)
    this.#begin(now, out)
    this.#rule.freed(now)
    return { judgement, decisions: out }
  }

  wake(now: Ms): Decision[] {
    const out = this.#begin(now)
    this.#rule.freed(now)
    return out
  }

  get wakeAt(): Ms | undefined {
    const alarm = this.#alarms.at
    const { wakeAt } = this.#rule
    return alarm === undefined || wakeAt === undefined ? (alarm ?? wakeAt) : Math.min(alarm, wakeAt)
  }

  state(now: Ms): PolicyState {
    const rule = this.#rule.state?.(now)
    const groups = this.#rule.groups?.()
    return {
      replicas: this.#pools.replicas.flatMap(one => {
        const { spec, health, inFlight, outstandingPrefillTokens } = one
        if (inFlight === 0 && !this.#pools.of(one)?.replicas.includes(one)) return []
        return [{ id: spec.id, pool: spec.pool, up: health.is === 'up', inFlight, outstandingPrefillTokens }]
      }),
      queues: this.#lanes.queues(),
      open: this.#open,
      totals: this.#ledger.totals(),
      ...(groups !== undefined && { groups }),
      ...(rule !== undefined && { rule }),
    }
  }

  /** Begins a call, or its part after what it is about: what was due by now comes first. @returns where decisions go */
  #begin(now: Ms, out: Decision[] = []): Decision[] {
    this.#out = out
    this.#settle(now)
    return out
  }

  /** @returns the first decision about this ticket; further ones go the common way */
  #askAbout(open: Open, ask: () => void): Decision | undefined {
    this.#about = open
    this.#answer = undefined
    ask()
    this.#about = undefined
    return this.#answer
  }

  #decide(open: Open, decision: Decision): void {
    if (open !== this.#about) this.#out.push(decision)
    else {
      this.#about = undefined
      this.#answer = decision
    }
  }

  #dispatch(open: Open, replica: Replica, now: Ms): void {
    const { place } = open
    if (place.at === 'replica' || place.at === 'closed') {
      throw new Error(
        `ticket ${open.id} is ${place.at === 'closed' ? 'closed' : 'on a replica'}: it cannot be sent`,
      )
    }
    const { id, pool } = replica.spec
    let why: DispatchReason = pool === open.lane.pools[0]?.spec.id ? 'home' : 'spill'
    if (open.tried.length > 0) why = 'reroute'
    if (place.at === 'queue') {
      why = 'queued'
      open.waitedMs += now - place.since
      this.#uncount(open)
    }
    if (open.dispatchedAt === undefined) this.#budget.request(now)
    replica.dispatched(open.id, open.promptTokens)
    open.place = { at: 'replica', replica, since: now }
    open.pool = pool
    open.dispatchedAt = now
    open.tried.push(id)
    this.#alarms.arm(open)
    this.#decide(open, { kind: 'dispatch', ticket: open, pool, replica: id, why })
  }

  /** @returns false when its class does not wait, no more of them may, or its own time is up */
  #enqueue(open: Open, now: Ms): boolean {
    const { lane, traffic } = open
    if (traffic.queue === undefined || open.place.at !== 'nowhere') return false
    const giveUpAt = open.giveUpAt(now, traffic.queue.waitMs)
    if (giveUpAt <= now || this.#lanes.waiting(traffic.id) >= traffic.queue.max) return false
    open.place = { at: 'queue', since: now, giveUpAt }
    lane.waiting++
    this.#waiting.add(open)
    this.#alarms.arm(open)
    this.#decide(open, { kind: 'queue', ticket: open, giveUpAt })
    this.#rule.waits?.(open, now)
    return true
  }

  #uncount(open: Open): void {
    this.#waiting.delete(open)
    open.lane.waiting--
  }

  /** It leaves by no act of the rule. */
  #leaveQueue(open: Open, now: Ms): void {
    this.#uncount(open)
    open.place = { at: 'nowhere' }
    this.#rule.left?.(open, now)
  }

  /** The pool where it failed first, then the others of its class; never a replica twice. */
  #again(open: Open, failure: Failure, failed: Replica, now: Ms): Decision | undefined {
    // What one replica keeps, no other can go on from.
    if (open.heldBy !== undefined) return undefined
    const counts = failure.kind !== 'refused'
    if (counts && (!open.facts.repeatable || open.rerouted || !this.#budget.allows(now))) return undefined
    const inPool = (pool: Pool): boolean => pool.spec.id === failed.spec.pool
    const pools = [...open.lane.pools.filter(inPool), ...open.lane.pools.filter(pool => !inPool(pool))]
    const untried = pools.some(pool => pool.replicas.some(({ spec }) => !open.tried.includes(spec.id)))
    if (!untried) return undefined
    const again = this.#askAbout(open, () => this.#rule.again(open, pools, now))
    if (again !== undefined && counts) {
      open.rerouted = true
      this.#budget.reroute(now)
    }
    return again
  }

  /** Does what was due by now: bounds that passed, waiting that is over, replicas that get a trial, the rule's own. */
  #settle(now: Ms): void {
    let trial = false
    for (let due = this.#alarms.take(now); due !== undefined; due = this.#alarms.take(now)) {
      const { ticket } = due
      if (ticket === undefined) {
        trial = true
        continue
      }
      for (const result of ticket.decided(now, false)) this.#out.push({ kind: 'clause', result })
      if (ticket.place.at === 'queue' && now >= ticket.place.giveUpAt) {
        this.#leaveQueue(ticket, now)
        const late = ticket.deadline.by === 'client' && now >= ticket.deadlineAt
        this.#shed(ticket, late ? 'infeasible' : 'queue_timeout', now)
      } else {
        this.#alarms.arm(ticket)
      }
    }
    if (this.#rule.wakeAt !== undefined && this.#rule.wakeAt <= now) this.#rule.wake?.(now)
    if (trial) this.#rule.freed(now)
  }

  #release(open: Open, replica: Replica, ending: Ending, now: Ms): void {
    replica.released(open.unfilledTokens)
    const hadOutput = open.firstTokenAt !== undefined || ending.progress?.firstOutput !== undefined
    const served = ending.kind === 'clientLeft' && hadOutput
    if (ending.failure !== undefined) this.#failedOn(replica, open, ending.failure, now)
    else if (ending.kind === 'complete' || ending.kind === 'clientError' || served) {
      this.#turn(replica, afterAnswer(replica.health, open.id), '', now)
    } else this.#turn(replica, afterNothing(replica.health, open.id, now), '', now)
  }

  #failedOn(replica: Replica, open: Open, failure: Failure, now: Ms): void {
    const neutral = NEUTRAL.has(failure.kind)
    if (failure.retryAfterMs !== undefined) {
      replica.leaveAlone(now + Math.min(failure.retryAfterMs, MOST_LEFT_ALONE_MS))
      this.#alarms.trial(replica.aloneUntil)
    }
    const health = neutral
      ? afterNothing(replica.health, open.id, now)
      : afterFailure(replica.health, open.id, now, this.#pools.of(replica)?.mayEject === true)
    this.#turn(replica, health, `${failure.kind}: ${failure.detail}`, now)
  }

  #turn(replica: Replica, health: Health, why: string, now: Ms): void {
    const before = replica.health
    replica.health = health
    if (before.is === 'trial' && health.is === 'up') {
      this.#out.push({ kind: 'restored', replica: replica.spec.id })
    }
    if (before === health || health.is !== 'down' || health.retryAt <= now) return
    this.#alarms.trial(health.retryAt)
    this.#out.push({ kind: 'ejected', replica: replica.spec.id, retryAt: health.retryAt, why })
  }

  /** Only whole answers teach: a failed one must not look like a fast one. */
  #learn(replica: Replica, { progress }: Ending, tookMs: Ms): void {
    this.#pools.of(replica)?.answered(tookMs)
    const tokens = progress?.usage?.completionTokens ?? 0
    if (progress?.streamed && progress.marks > 0 && tokens > 0) replica.answered(tokens, progress.marks)
  }

  #shed(open: Open, reason: ShedReason, now: Ms, ownRetryMs?: Ms): void {
    const { place } = open
    if (place.at === 'replica' || place.at === 'closed' || (open === this.#about && open.tried.length > 0)) {
      throw new Error(`ticket ${open.id} was sent: it cannot be shed`)
    }
    if (place.at === 'queue') this.#uncount(open)
    const retryAfterMs = ownRetryMs ?? this.#retryAfter(open, now)
    const judgement = judge(open, 'shed', undefined, 1, now)
    this.#close(open, judgement)
    this.#decide(open, { kind: 'shed', ticket: open, reason, retryAfterMs, judgement })
  }

  #retryAfter({ lane }: Open, now: Ms): Ms {
    const room = lane.reservations.next(now, lane.waiting, lane.slotsPerMs, this.#rng)
    return Math.max(room, lane.aloneForMs(now))
  }

  #refuse(ticket: Ticket, reason: RefuseReason): { ticket: Ticket; decisions: Decision[] } {
    const judgement = refusal(ticket.cls)
    this.#ledger.arrived(ticket.cls)
    this.#ledger.judged(judgement)
    return { ticket, decisions: [{ kind: 'refuse', ticket, reason, judgement }, ...this.#out] }
  }

  #close(open: Open, judgement: Judgement): void {
    this.#alarms.disarm(open)
    open.place = { at: 'closed' }
    this.#open--
    this.#ledger.judged(judgement)
  }
}

function openTicket(ticket: Ticket): Open {
  if (!(ticket instanceof Open) || ticket.place.at === 'closed')
    throw new Error(`ticket ${ticket.id} is closed`)
  return ticket
}
