/** The policy without a model of the engine: counts and limits, least outstanding prefill, a queue by deadline. */
import { LazyHeap } from '../admission/lazy-heap.js'
import { RetryBudget } from '../admission/retry-budget.js'
import { afterAnswer, afterFailure, afterNothing, type Health } from '../fleet/health.js'
import { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { ClassId, RequestFacts, Ticket } from '../request.js'
import { type Classified, compileRoutes, mayAsk } from '../routing/classify.js'
import { pick } from '../routing/pick.js'
import { Ledger } from '../slo/ledger.js'
import { type Judgement, judge, refusal } from '../slo/verdict.js'
import type { Ms, Rng } from '../time.js'
import type { Decision, DispatchReason, Ending, Failure, RefuseReason, ShedReason } from './decision.js'
import { Lane, nextLane } from './lane.js'
import { type Alarm, Open } from './open.js'
import type { Policy, PolicySpec, PolicyState } from './policy.js'

/**
 * Builds the policy. It looks at counts only: a request goes to the home pool's replica with the fewest prompt
 * tokens to prefill that is below its limit, else to the next pool of its class, else it waits where its class
 * waits, else it is shed. Where both kinds of class share a pool, those that wait leave a quarter of each replica's
 * slots to those that do not.
 *
 * Whatever is due by time is settled first in every call, so decisions do not depend on how punctual `wake` is.
 *
 * Goes wrong where the limit does not fit: set too high, every stream of a replica gets slow at once and nothing is
 * shed; set too low, room is wasted. It charges nobody for what a long prompt does to running streams.
 * @param rng  breaks ties and spreads retries; the same numbers give the same decisions
 */
export function createPolicy(spec: PolicySpec, rng: Rng): Policy {
  return new SimplePolicy(spec, rng)
}

/** Failures that say nothing about a replica's health. */
const NEUTRAL: ReadonlySet<Failure['kind']> = new Set(['busy', 'first_token', 'head_too_large'])
/** A replica that asks for longer is asked again all the same. */
const MOST_LEFT_ALONE_MS: Ms = 60_000

class SimplePolicy implements Policy {
  readonly #rng: Rng
  #classify: (facts: RequestFacts) => Classified = compileRoutes([])
  /** By pool id. */
  readonly #pools: Pool[] = []
  /** By replica id, those that retired among them. */
  readonly #replicas: Replica[] = []
  /** By class id. */
  #lanes: readonly ClassLanes[] = []
  #queued: readonly Lane[] = []
  readonly #budget: RetryBudget
  readonly #ledger: Ledger
  readonly #alarms = new LazyHeap<Alarm>((a, b) => a.at - b.at)
  #open = 0
  #nextId = 0

  constructor(spec: PolicySpec, rng: Rng) {
    this.#rng = rng
    this.#budget = new RetryBudget(spec.retries)
    this.#ledger = new Ledger(spec.classes.length)
    this.#follow(spec)
  }

  reconfigure(spec: PolicySpec, now: Ms): Decision[] {
    const out: Decision[] = []
    this.#settle(now, out)
    const waiting = this.#queued.flatMap(({ queue }) => queue?.all() ?? []).sort((a, b) => a.seq - b.seq)
    this.#budget.bounds = spec.retries
    this.#ledger.grow(spec.classes.length)
    this.#follow(spec)
    for (const { item } of waiting) this.#moveOver(item, now, out)
    this.#serve(now, out)
    return out
  }

  #follow(spec: PolicySpec): void {
    this.#classify = compileRoutes(spec.routes)
    for (const pool of spec.pools) {
      const users = spec.classes.filter(({ pools, retired }) => !retired && pools.includes(pool.id))
      const waiting = users.filter(({ queue }) => queue !== undefined)
      const shared = waiting.length > 0 && waiting.length < users.length
      const known = this.#pools[pool.id]
      if (known === undefined) this.#pools[pool.id] = new Pool(pool, shared)
      else known.reconfigure(pool, shared)
    }
    for (const { replicas } of this.#pools) for (const one of replicas) this.#replicas[one.spec.id] = one
    this.#lanes = spec.classes.map(traffic => lanesOf(traffic, this.#pools))
    this.#queued = this.#lanes.flatMap(({ all }) => all).filter(lane => lane.queue !== undefined)
  }

  /** One that waits goes on waiting under the new config, for as long as it was told. */
  #moveOver(open: Open, now: Ms, out: Decision[]): void {
    if (open.place.at !== 'queue') return
    const lane = this.#laneOf(open.cls, open.model)
    if (lane?.queue === undefined) {
      out.push(this.#shed(open, 'no_replica', now))
      return
    }
    const { since, giveUpAt } = open.place
    const waiting = lane.queue.push(open, open.facts.key?.label ?? '', open.deadlineAt, open.promptTokens)
    open.lane = lane
    open.place = { at: 'queue', waiting, since, giveUpAt }
    lane.servedAt = now
  }

  #laneOf(cls: ClassId | undefined, model: string): Lane | undefined {
    const lanes = cls === undefined ? undefined : this.#lanes[cls]
    return lanes?.byModel.get(model) ?? lanes?.rest
  }

  arrive(facts: RequestFacts, now: Ms): { ticket: Ticket; decisions: Decision[] } {
    const news: Decision[] = []
    this.#settle(now, news)
    const { route, cls, model } = this.#classify(facts)
    const id = this.#nextId++
    if (!mayAsk(facts)) {
      return this.#refuse({ id, facts, cls: undefined, model, route }, 'class_not_allowed', news)
    }
    const lane = this.#laneOf(cls, model)
    if (lane === undefined) return this.#refuse({ id, facts, cls, model, route }, 'unknown_model', news)

    const ticket = new Open(id, facts, lane, model, route)
    this.#ledger.arrived(ticket.cls)
    this.#open++
    return { ticket, decisions: [this.#admit(ticket, now), ...news] }
  }

  firstToken(ticket: Ticket, now: Ms): Decision[] {
    const open = openTicket(ticket)
    if (open.place.at !== 'replica')
      throw new Error(`ticket ${open.id} is on no replica: it has no first token`)
    if (open.firstTokenAt !== undefined) throw new Error(`ticket ${open.id} had its first token before`)
    const out: Decision[] = []
    open.place.replica.prefilled(open.unfilledTokens)
    for (const result of open.decided(now, true)) out.push({ kind: 'clause', result })
    open.firstTokenAt = now
    this.#arm(open)
    this.#settle(now, out)
    return out
  }

  mark(): void {}

  failed(ticket: Ticket, failure: Failure, now: Ms): { again: Decision | undefined; decisions: Decision[] } {
    const open = openTicket(ticket)
    if (open.place.at !== 'replica')
      throw new Error(`ticket ${open.id} is on no replica: no attempt can fail`)
    if (open.firstTokenAt !== undefined) {
      throw new Error(`ticket ${open.id} had output: it ends by finish, and is not sent again`)
    }
    const { replica } = open.place
    replica.released(open.unfilledTokens)
    open.place = { at: 'nowhere' }
    const decisions: Decision[] = []
    this.#failedOn(replica, open, failure, now, decisions)
    const again = this.#again(open, failure, replica, now)
    this.#arm(open)
    this.#settle(now, decisions)
    this.#serve(now, decisions)
    return { again, decisions }
  }

  finish(ticket: Ticket, ending: Ending, now: Ms): { judgement: Judgement; decisions: Decision[] } {
    const open = openTicket(ticket)
    const { place } = open
    const decisions: Decision[] = []
    if (place.at === 'queue') open.lane.queue?.remove(place.waiting)
    if (place.at === 'replica') this.#release(open, place.replica, ending, now, decisions)
    const tokensPerMark = place.at === 'replica' ? place.replica.tokensPerMark : 1
    const judgement = judge(open, ending.kind, ending.progress, tokensPerMark, now)
    if (place.at === 'replica' && ending.kind === 'complete') {
      this.#learn(place.replica, ending, now - place.since)
    }
    this.#close(open, judgement)
    this.#settle(now, decisions)
    this.#serve(now, decisions)
    return { judgement, decisions }
  }

  wake(now: Ms): Decision[] {
    const out: Decision[] = []
    this.#settle(now, out)
    this.#serve(now, out)
    return out
  }

  get wakeAt(): Ms | undefined {
    return this.#alarms.peek()?.at
  }

  state(): PolicyState {
    return {
      replicas: this.#replicas.flatMap(one => {
        const { spec, health, inFlight, outstandingPrefillTokens } = one
        if (inFlight === 0 && !this.#pools[spec.pool]?.replicas.includes(one)) return []
        return [{ id: spec.id, pool: spec.pool, up: health.is === 'up', inFlight, outstandingPrefillTokens }]
      }),
      queues: this.#lanes.flatMap(({ all }, cls) => {
        return all.some(lane => lane.queue !== undefined) ? [{ cls, depth: this.#depth(cls) }] : []
      }),
      open: this.#open,
      totals: this.#ledger.totals(),
    }
  }

  #admit(open: Open, now: Ms): Decision {
    const { lane } = open
    if (open.deadline.by === 'client' && now >= open.deadlineAt) return this.#shed(open, 'infeasible', now)
    const replica = this.#pick(open, lane.pools, now)
    if (replica !== undefined) {
      const home = replica.spec.pool === lane.pools[0]?.spec.id
      return this.#dispatch(open, replica, home ? 'home' : 'spill', now)
    }
    const queued = this.#enqueue(open, now)
    if (queued !== undefined) return queued
    return this.#shed(open, lane.queue === undefined && !lane.up ? 'no_replica' : 'no_headroom', now)
  }

  #pick(open: Open, pools: readonly Pool[], now: Ms): Replica | undefined {
    return pick(pools, open.tried, now, this.#rng, open.lane.queue !== undefined, open.heldBy)
  }

  #dispatch(open: Open, replica: Replica, why: DispatchReason, now: Ms): Decision {
    const { id, pool } = replica.spec
    if (open.dispatchedAt === undefined) this.#budget.request(now)
    replica.dispatched(open.id, open.promptTokens)
    open.place = { at: 'replica', replica, since: now }
    open.pool = pool
    open.dispatchedAt = now
    open.tried.push(id)
    this.#arm(open)
    return { kind: 'dispatch', ticket: open, pool, replica: id, why }
  }

  /** @returns undefined when its class does not wait, no more of them may, or its own time is up */
  #enqueue(open: Open, now: Ms): Decision | undefined {
    const { queue, traffic } = open.lane
    if (queue === undefined || traffic.queue === undefined) return undefined
    const giveUpAt = open.giveUpAt(now, traffic.queue.waitMs)
    if (giveUpAt <= now || this.#depth(traffic.id) >= traffic.queue.max) return undefined
    if (queue.size === 0) open.lane.servedAt = now
    const waiting = queue.push(open, open.facts.key?.label ?? '', open.deadlineAt, open.promptTokens)
    open.place = { at: 'queue', waiting, since: now, giveUpAt }
    this.#arm(open)
    return { kind: 'queue', ticket: open, giveUpAt }
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
    const replica = this.#pick(open, pools, now)
    const again =
      replica === undefined ? this.#enqueue(open, now) : this.#dispatch(open, replica, 'reroute', now)
    if (again !== undefined && counts) {
      open.rerouted = true
      this.#budget.reroute(now)
    }
    return again
  }

  /** Sends those who wait, while there is room that one of them may use. */
  #serve(now: Ms, out: Decision[]): void {
    const stuck: Lane[] = []
    for (let lane = nextLane(this.#queued, stuck, now); lane; lane = nextLane(this.#queued, stuck, now)) {
      const { pools } = lane
      let replica: Replica | undefined
      const open = lane.queue?.take(one => {
        replica = this.#pick(one, pools, now)
        return replica !== undefined
      })
      if (open === undefined || replica === undefined) {
        stuck.push(lane)
        continue
      }
      lane.servedAt = now
      if (open.place.at === 'queue') open.waitedMs += now - open.place.since
      out.push(this.#dispatch(open, replica, 'queued', now))
    }
  }

  /** Does what was due by now: bounds that passed, waiting that is over, replicas that get a trial. */
  #settle(now: Ms, out: Decision[]): void {
    let trial = false
    for (let due = this.#alarms.peek(); due !== undefined && due.at <= now; due = this.#alarms.peek()) {
      this.#alarms.pop()
      const { ticket } = due
      if (ticket === undefined) {
        trial = true
        continue
      }
      ticket.alarm = undefined
      for (const result of ticket.decided(now, false)) out.push({ kind: 'clause', result })
      if (ticket.place.at === 'queue' && now >= ticket.place.giveUpAt) {
        ticket.lane.queue?.remove(ticket.place.waiting)
        const late = ticket.deadline.by === 'client' && now >= ticket.deadlineAt
        out.push(this.#shed(ticket, late ? 'infeasible' : 'queue_timeout', now))
      } else {
        this.#arm(ticket)
      }
    }
    if (trial) this.#serve(now, out)
  }

  #arm(open: Open): void {
    const at = open.dueAt
    if (open.alarm?.at === at) return
    if (open.alarm !== undefined) this.#alarms.drop(open.alarm)
    open.alarm = at === Infinity ? undefined : { at, ticket: open, gone: false }
    if (open.alarm !== undefined) this.#alarms.push(open.alarm)
  }

  #release(open: Open, replica: Replica, ending: Ending, now: Ms, out: Decision[]): void {
    replica.released(open.unfilledTokens)
    const hadOutput = open.firstTokenAt !== undefined || ending.progress?.firstOutput !== undefined
    const served = ending.kind === 'clientLeft' && hadOutput
    if (ending.failure !== undefined) this.#failedOn(replica, open, ending.failure, now, out)
    else if (ending.kind === 'complete' || ending.kind === 'clientError' || served) {
      this.#turn(replica, afterAnswer(replica.health, open.id), '', now, out)
    } else this.#turn(replica, afterNothing(replica.health, open.id, now), '', now, out)
  }

  #failedOn(replica: Replica, open: Open, failure: Failure, now: Ms, out: Decision[]): void {
    const neutral = NEUTRAL.has(failure.kind)
    if (failure.retryAfterMs !== undefined) {
      replica.leaveAlone(now + Math.min(failure.retryAfterMs, MOST_LEFT_ALONE_MS))
      this.#alarms.push({ at: replica.aloneUntil, ticket: undefined, gone: false })
    }
    const health = neutral
      ? afterNothing(replica.health, open.id, now)
      : afterFailure(replica.health, open.id, now, this.#pools[replica.spec.pool]?.mayEject === true)
    this.#turn(replica, health, `${failure.kind}: ${failure.detail}`, now, out)
  }

  #turn(replica: Replica, health: Health, why: string, now: Ms, out: Decision[]): void {
    const before = replica.health
    replica.health = health
    if (before.is === 'trial' && health.is === 'up') out.push({ kind: 'restored', replica: replica.spec.id })
    if (before === health || health.is !== 'down' || health.retryAt <= now) return
    this.#alarms.push({ at: health.retryAt, ticket: undefined, gone: false })
    out.push({ kind: 'ejected', replica: replica.spec.id, retryAt: health.retryAt, why })
  }

  /** Only whole answers teach: a failed one must not look like a fast one. */
  #learn(replica: Replica, { progress }: Ending, tookMs: Ms): void {
    this.#pools[replica.spec.pool]?.answered(tookMs)
    const tokens = progress?.usage?.completionTokens ?? 0
    if (progress?.streamed && progress.marks > 0 && tokens > 0) replica.answered(tokens, progress.marks)
  }

  #shed(open: Open, reason: ShedReason, now: Ms): Decision {
    const { lane } = open
    const room = lane.reservations.next(now, lane.queue?.size ?? 0, lane.slotsPerMs, this.#rng)
    const retryAfterMs = Math.max(room, lane.aloneForMs(now))
    const judgement = judge(open, 'shed', undefined, 1, now)
    this.#close(open, judgement)
    return { kind: 'shed', ticket: open, reason, retryAfterMs, judgement }
  }

  #refuse(ticket: Ticket, reason: RefuseReason, news: Decision[]): { ticket: Ticket; decisions: Decision[] } {
    const judgement = refusal(ticket.cls)
    this.#ledger.arrived(ticket.cls)
    this.#ledger.judged(judgement)
    return { ticket, decisions: [{ kind: 'refuse', ticket, reason, judgement }, ...news] }
  }

  #close(open: Open, judgement: Judgement): void {
    if (open.alarm !== undefined) this.#alarms.drop(open.alarm)
    open.alarm = undefined
    open.place = { at: 'closed' }
    this.#open--
    this.#ledger.judged(judgement)
  }

  #depth(cls: ClassId): number {
    return this.#lanes[cls]?.all.reduce((sum, lane) => sum + (lane.queue?.size ?? 0), 0) ?? 0
  }
}

interface ClassLanes {
  readonly byModel: ReadonlyMap<string, Lane>
  /** For models that no pool of the class names. */
  readonly rest: Lane | undefined
  readonly all: readonly Lane[]
}

function lanesOf(traffic: Lane['traffic'], pools: readonly Pool[]): ClassLanes {
  if (traffic.retired) return { byModel: new Map(), rest: undefined, all: [] }
  const own = traffic.pools.flatMap(id => pools[id] ?? [])
  const named = new Set(own.flatMap(({ spec }) => spec.model ?? []))
  const byModel = new Map<string, Lane>()
  for (const model of named)
    byModel.set(
      model,
      new Lane(
        traffic,
        own.filter(pool => pool.serves(model)),
      ),
    )
  const any = own.filter(({ spec }) => spec.model === undefined)
  const rest = any.length === 0 ? undefined : new Lane(traffic, any)
  return { byModel, rest, all: rest === undefined ? [...byModel.values()] : [...byModel.values(), rest] }
}

function openTicket(ticket: Ticket): Open {
  if (!(ticket instanceof Open) || ticket.place.at === 'closed')
    throw new Error(`ticket ${ticket.id} is closed`)
  return ticket
}
