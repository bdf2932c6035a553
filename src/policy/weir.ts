/** The decision core: each request goes where its chance to be good outweighs what its coming costs those who are there. */
import { GroupPrices } from '../admission/groups.js'
import { LossPrice } from '../admission/price.js'
import { SpareRate } from '../admission/spare.js'
import { Tenants } from '../admission/tenants.js'
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import { Forecast, type PoolForecast } from '../predict/forecast.js'
import { expectedTtft } from '../predict/latency.js'
import type { ReplicaId } from '../request.js'
import { Cached } from '../routing/cached.js'
import { Asked, Chooser } from '../routing/choose.js'
import { Gain, weigh } from '../routing/gain.js'
import { pick } from '../routing/pick.js'
import { THIRDS } from '../routing/running.js'
import { Idle, View } from '../routing/view.js'
import { priced, workOf } from '../slo/demand.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms, Rng } from '../time.js'
import type { Ending, Failure, ShedReason } from './decision.js'
import { Door } from './door.js'
import { Kept } from './kept.js'
import { DEFAULTS, type Knobs } from './knobs.js'
import { Lines } from './lines.js'
import type { Open } from './open.js'
import type { GroupService, Policy, PolicySpec } from './policy.js'
import type { Desk, Rule } from './rule.js'
import { askingOf } from './watched.js'

/** Spread of predictions: see `Spread`. Source: residuals of TTFT 3 to 5 %, of the pace 5 to 13 % at the median. */
const SPREAD = { ttftMs: 20, ttftShare: 0.05, paceShare: 0.1 }
/** Those who wait are asked about so often, so many at a time; algorithms 6.7 has 20, at more than twice the cost and no gain. */
const SCAN_MS: Ms = 25
const HEADS = 8
/** A deadline is to hold for answers up to this quantile of their lengths, too. Source: algorithms 6.7. */
const TAIL = 0.9
/** One that waits is told so when no replica has this share of `waitingLeast` for it: waiting longer makes it worse. */
const HOPELESS = 0.5
/** In the last share of its deadline a request that waits gains weight, up to twice. Source: algorithms 6.7. */
const URGENT_SHARE = 0.2
/** Until a pool's speed is known nobody is sent where he is held to be later than this many times his bound. */
const UNKNOWN_LATE = 2
/** Answers that an idle replica would make good with this chance steer the price of losses. Source: algorithms 6.8. */
const SERVABLE = 0.5
/** A likely length is looked up again after so many tokens more, at least, or this many times as many. */
const LOOK_TOKENS = 8
const LOOK_FACTOR = 1.2

/**
 * Builds the policy. See docs/algorithms.md.
 * @param rng    draws candidates and spreads retries; the same numbers give the same decisions
 * @param knobs  those left out have their default
 */
export function createWeir(spec: PolicySpec, rng: Rng, knobs: Partial<Knobs> = {}): Policy {
  const set = { ...DEFAULTS, ...spec.admission, ...knobs }
  return new Door(spec, rng, desk => new WeirRule(desk, new Forecast(spec), set))
}

/**
 * - What does not wait is decided at once: home pool, then the others of its class, each by its own gain; else refused.
 * - What may wait is tried at once and then again every 25 ms, by deadline.
 * - Until a pool is calibrated its limit on requests in flight holds there, as in the simple rule.
 *
 * Goes wrong where engines serve in another order than that of arrival, where many requests are not streamed (their
 * tokens are not seen coming), and for minutes after an engine has changed its speed several times over.
 */
class WeirRule implements Rule {
  readonly #desk: Desk
  readonly forecast: Forecast
  readonly #knobs: Knobs
  readonly #prices = new GroupPrices()
  readonly #outer = new LossPrice()
  readonly #tenants = new Tenants()
  readonly #cached = new Cached()
  readonly #lines: Lines
  /** By replica id; the other two by pool id. */
  readonly #views: View[] = []
  readonly #idles: Idle[] = []
  readonly #spare: SpareRate[] = []
  readonly #chooser: Chooser
  readonly #asked = new Asked({ promptTokens: 1, dueAt: 0, bound: 0, lengths: new Float64Array(THIRDS) })
  readonly #gain = new Gain()
  readonly #lengths = new Float64Array(THIRDS)
  #weights = new Float64Array(0)
  #waiting = 0
  /** Questions left in this look at those who wait. */
  #asks = 0
  #wakeAt: Ms | undefined
  /** Chance to be good of the last that found a place; and the best anywhere of the last that was asked about. */
  #expected = 1
  #hope = 1
  /** Those who wait for nothing, as far as this look came: one may be asked about again, and find a place after all. */
  readonly #hopeless = new Set<Open>()
  readonly #cachedOn = (id: ReplicaId): number => this.#cached.on(id)
  /** Since the last end, load has neither refused, delayed nor slowed anyone. */
  #quiet = true
  #stale = 0

  constructor(desk: Desk, forecast: Forecast, knobs: Knobs) {
    this.#desk = desk
    this.forecast = forecast
    this.#knobs = knobs
    this.#chooser = new Chooser(desk.rng, this.#views, SPREAD)
    this.#lines = new Lines(
      { dispatch: (open, replica, now) => this.#send(open, replica, now) },
      () => true,
      (open, now) => this.#retry(open, now),
    )
    this.#follow(true)
  }

  /** @param warm  the replicas have been there before this router */
  #follow(warm: boolean): void {
    const { classes, replicas, pools } = this.#desk
    this.#prices.reconfigure(
      classes,
      classes.map(({ fairness }) => fairness ?? this.#knobs.fairness),
    )
    this.#weights = new Float64Array(this.#prices.values.length)
    for (const replica of replicas) {
      const { id } = replica.spec
      if (this.#views[id]?.replica !== replica)
        this.#views[id] = new View(replica, this.forecast.replica(id), warm)
    }
    for (const { spec } of pools) {
      this.#idles[spec.id] ??= new Idle(this.forecast.pool(spec.id).fit)
      this.#spare[spec.id] ??= new SpareRate()
    }
  }

  arrive(open: Open, now: Ms): void {
    const kept = this.#keep(open, now)
    open.data = kept
    if (kept.beyond && open.deadline.by === 'client') {
      this.#shed(open, 'infeasible', now)
      return
    }
    const replica = this.#place(open, open.lane.pools, now)
    if (replica !== undefined) this.#send(open, replica, now)
    else if (this.#desk.queue(open, now)) this.#quiet = false
    else this.#shed(open, open.lane.up ? 'no_headroom' : 'no_replica', now)
  }

  #keep(open: Open, now: Ms): Kept {
    const { clauses } = open.traffic.target
    const paced = clauses.kind === 'stream'
    const kept = new Kept(
      askingOf(open),
      this.#prices.groupOf(open.cls, open.promptTokens),
      paced ? clauses.tpotMs : 0,
      paced ? open.bodyAt + clauses.ttftMs : open.deadlineAt,
    )
    const home = (open.lane.pools[0] as Pool).spec.id
    const { fit, lengths } = this.forecast.pool(home)
    const { one } = this.#ask(open, kept, lengths)
    if (fit.calibrated) {
      const idle = this.#idles[home] as Idle
      weigh(
        idle,
        idle.running,
        one,
        this.#cached.most,
        this.#weights,
        SPREAD,
        this.#knobs.bias,
        now,
        this.#gain,
      )
      kept.idle = this.#gain.good
      kept.beyond = kept.idle < this.#knobs.theta
    }
    // What is not streamed in a class of streams has no verdict: it goes where it harms nobody.
    if (paced && !open.stream) kept.beyond = true
    if (!kept.beyond) {
      const work = workOf(open.promptTokens, this.#cached.most, lengths.mean(kept.asking))
      this.#prices.offered(kept.group, priced(work, fit.cost), now)
    }
    return kept
  }

  /** Fills in what is asked for on any replica. */
  #ask(open: Open, kept: Kept, lengths: PoolForecast['lengths']): Asked {
    const asked = this.#asked
    const { one } = asked
    one.promptTokens = open.promptTokens
    one.bound = kept.bound
    one.dueAt = kept.dueAt
    lengths.thirds(kept.asking, 0, one.lengths)
    if (kept.bound === 0) {
      if (kept.tail === 0) kept.tail = lengths.quantile(kept.asking, TAIL)
      one.lengths[2] = Math.max(kept.tail, one.lengths[2] as number)
    }
    const on = this.#knobs.prefix !== 0
    const { prefix } = open.facts
    const usual = this.forecast.pool((open.lane.pools[0] as Pool).spec.id).cachedTokens(kept.asking)
    this.#cached.ask(
      open.promptTokens,
      on ? prefix : undefined,
      on ? sessionOf(open) : undefined,
      on ? usual : 0,
    )
    return asked
  }

  /** Where it is to go; undefined: nowhere now. */
  #place(open: Open, pools: readonly Pool[], now: Ms): Replica | undefined {
    const kept = open.data as Kept
    for (const pool of pools) {
      const of = this.forecast.pool(pool.spec.id)
      const replica = of.fit.calibrated
        ? this.#best(open, kept, pool, of, now)
        : this.#byCount(open, kept, pool, now)
      if (replica !== undefined) return replica
    }
    return undefined
  }

  #best(open: Open, kept: Kept, pool: Pool, { lengths }: PoolForecast, now: Ms): Replica | undefined {
    const knobs = this.#knobs
    const asked = this.#ask(open, kept, lengths)
    const { values } = this.#prices
    const weights = this.#weights
    for (let group = 0; group < weights.length; group++) {
      const kappa = knobs.kappa === 0 ? 1 : this.#outer.kappa(this.#prices.classOf(group))
      weights[group] = knobs.loss * kappa * (values[group] as number)
    }
    const waits = kept.bound === 0
    asked.unit = values[kept.group] as number
    asked.value = asked.unit * (waits ? urgency(open, now) : this.#tenants.weight(keyOf(open), now))
    asked.needed = asked.unit * (waits ? knobs.waitingTheta * kept.idle : knobs.theta)
    asked.least = waits ? knobs.waitingLeast * kept.idle : 0
    if (kept.beyond) {
      asked.value = 0
      asked.least = 0
      asked.needed = -knobs.beyond * asked.unit
    }
    asked.guardMs = waits ? knobs.guard * this.#tightestTtft(pool) : Number.POSITIVE_INFINITY
    asked.gather = waits ? knobs.gather * asked.unit : 0
    asked.tried = open.tried
    asked.heldBy = open.heldBy
    asked.kvTokens = knobs.memory === 0 ? undefined : pool.spec.kvTokens
    const scale = knobs.bias * (knobs.scale === 0 ? 1 : this.#outer.scale)
    const choice = this.#chooser.choose(asked, pool.replicas, this.#cachedOn, weights, scale, now)
    if (choice.busy) this.#quiet = false
    this.#expected = choice.good
    this.#hope = choice.hope
    return choice.view?.replica
  }

  /** Until a pool's speed is known: by its limit, and by what can be told of its queue so far. */
  #byCount(open: Open, kept: Kept, pool: Pool, now: Ms): Replica | undefined {
    const late = pool.replicas.flatMap(({ spec }) => {
      const view = this.#views[spec.id] as View
      const wait = UNKNOWN_LATE * (kept.dueAt - now)
      return view.waiting > 0 && expectedTtft(view, open.promptTokens, 0, now) > wait ? spec.id : []
    })
    this.#expected = 1
    this.#hope = 1
    const waits = open.traffic.queue !== undefined
    return pick([pool], [...open.tried, ...late], now, this.#desk.rng, waits, open.heldBy)
  }

  /** The tightest time to first token promised to those who share the pool. */
  #tightestTtft(pool: Pool): Ms {
    let tightest = Number.POSITIVE_INFINITY
    for (const { target, pools, retired } of this.#desk.classes) {
      const { clauses } = target
      if (clauses.kind === 'stream' && !retired && pools.includes(pool.spec.id))
        tightest = Math.min(tightest, clauses.ttftMs)
    }
    return tightest
  }

  #send(open: Open, replica: Replica, now: Ms): void {
    const kept = open.data as Kept
    const { id, pool } = replica.spec
    const view = this.#views[id] as View
    if (open.place.at === 'queue') this.#waiting--
    this.#ask(open, kept, view.forecast.pool.lengths)
    if (this.#cached.strays(id)) this.#stale++
    kept.hits = this.#cached.known(id)
    kept.sent = this.forecast.dispatched(id, kept.asking, now, this.#cached.on(id))
    kept.expected = this.#expected
    const { lengths } = this.#asked.one
    view.sent(kept, open.stream, now, now + kept.sent.ttftMs, lengths)
    kept.lookAgainAt = lengths[0] as number
    if (!kept.beyond) this.#prices.admitted(kept.group)
    this.#tenants.charge(keyOf(open), open.promptTokens, now)
    this.#spare[pool]?.admitted(now)
    this.#cached.sent(id, open.facts.prefix)
    this.#desk.dispatch(open, replica, now)
  }

  #shed(open: Open, reason: ShedReason, now: Ms): void {
    this.#quiet = false
    this.forecast.shed((open.data as Kept).asking)
    const { reservations, pools, waiting } = open.lane
    let perMs = 0
    for (const { spec } of pools) perMs += (this.#spare[spec.id] as SpareRate).perMs(now)
    this.#desk.shed(open, reason, now, reservations.next(now, waiting, perMs, this.#desk.rng))
  }

  again(open: Open, pools: readonly Pool[], now: Ms): void {
    const replica = this.#place(open, pools, now)
    if (replica !== undefined) this.#send(open, replica, now)
    else this.#desk.queue(open, now)
  }

  freed(now: Ms): void {
    if (this.#waiting > 0 && (this.#wakeAt === undefined || now >= this.#wakeAt)) this.wake(now)
  }

  /** One that waits: where it may go now. */
  #retry(open: Open, now: Ms): Replica | undefined {
    if (this.#asks-- <= 0) return undefined
    const { idle, beyond } = open.data as Kept
    const replica = this.#place(open, open.lane.pools, now)
    const hopeless =
      replica === undefined && !beyond && this.#hope < HOPELESS * this.#knobs.waitingLeast * idle
    if (hopeless) this.#hopeless.add(open)
    else this.#hopeless.delete(open)
    return replica
  }

  get wakeAt(): Ms | undefined {
    return this.#wakeAt
  }

  wake(now: Ms): void {
    this.#asks = HEADS
    this.#lines.serve(now)
    for (const open of this.#hopeless) {
      this.left(open)
      this.#shed(open, 'queue_timeout', now)
    }
    this.#hopeless.clear()
    this.#wakeAt = this.#waiting === 0 ? undefined : now + SCAN_MS
  }

  waits(open: Open, now: Ms): void {
    this.#waiting++
    this.#wakeAt ??= now + SCAN_MS
    this.#lines.waits(open, now)
  }

  left(open: Open): void {
    this.#waiting--
    this.#lines.left(open)
  }

  reconfigure(spec: PolicySpec): void {
    this.forecast.reconfigure(spec)
    Object.assign(this.#knobs, spec.admission)
    this.#lines.clear()
    this.#waiting = 0
    this.#follow(false)
  }

  firstToken(open: Open, replica: Replica, now: Ms): void {
    const kept = open.data as Kept
    if (kept.sent === undefined) return
    this.forecast.firstToken(kept.sent, now)
    this.#viewOf(replica).firstToken(kept, now)
  }

  mark(open: Open, replica: Replica, now: Ms, events: number): void {
    const kept = open.data as Kept
    const { sent, slot } = kept
    if (sent === undefined) return
    this.forecast.mark(sent, now, events)
    const { running, forecast } = this.#viewOf(replica)
    const sofar = (running.tokens[slot] as number) + events * forecast.tokensPerMark
    running.tokens[slot] = sofar
    if (sofar < kept.lookAgainAt) return
    forecast.pool.lengths.thirds(kept.asking, sofar, this.#lengths)
    running.lengths.set(this.#lengths, slot * THIRDS)
    kept.lookAgainAt = Math.max(sofar + LOOK_TOKENS, sofar * LOOK_FACTOR, this.#lengths[0] as number)
  }

  failed(open: Open, replica: Replica, _failure: Failure, now: Ms): void {
    this.#gone(open.data as Kept, replica, { complete: false, progress: undefined }, now)
    if (replica.health.is !== 'up') this.#cached.forget(replica.spec.id)
  }

  ended(open: Open, replica: Replica | undefined, ending: Ending, judgement: Judgement, now: Ms): void {
    const kept = open.data as Kept
    if (replica === undefined) return
    const { progress } = ending
    const complete = ending.kind === 'complete'
    this.#gone(kept, replica, { complete, progress, tpotMs: judgement.tpotMs }, now)
    const session = sessionOf(open)
    if (complete && session !== undefined && open.facts.prefix === undefined) {
      const tokens = open.promptTokens + (judgement.outputTokens ?? 0)
      this.#cached.answered(session, replica.spec.id, tokens)
    }
    const found = progress?.usage?.cachedTokens
    if (found !== undefined && kept.hits > 0) this.#cached.found(found, kept.hits)
    if (!judgement.offered || kept.beyond) return
    const good = judgement.verdict === 'good'
    this.#prices.judged(kept.group, good)
    this.#outer.passed(now, this.#quiet)
    this.#quiet = true
    if (kept.idle >= SERVABLE) this.#outer.judged(open.cls, open.traffic.target, good)
    if (kept.bound > 0) this.#outer.compared(kept.expected, good)
  }

  #gone(kept: Kept, replica: Replica, ending: Parameters<Forecast['ended']>[1], now: Ms): void {
    const { sent } = kept
    if (sent === undefined) return
    kept.sent = undefined
    this.forecast.ended(sent, ending, now)
    this.#viewOf(replica).ended(kept, sent.asking)
  }

  #viewOf(replica: Replica): View {
    return this.#views[replica.spec.id] as View
  }

  state(): Readonly<Record<string, number>> {
    const numbers: Record<string, number> = { scale: this.#outer.scale, 'affinity stale': this.#stale }
    for (const { id, name, retired } of this.#desk.classes) {
      if (retired) continue
      numbers[`kappa ${name}`] = this.#outer.kappa(id)
      for (const { label, value } of this.#prices.groupsOf(id)) numbers[`price ${name} ${label}`] = value
    }
    return numbers
  }

  groups(): GroupService[] {
    return this.#desk.classes.flatMap(({ id: cls, retired }) => {
      if (retired) return []
      return this.#prices.groupsOf(cls).flatMap(({ label: group, service: share }) => {
        return share === undefined ? [] : [{ cls, group, share }]
      })
    })
  }
}

/** 1, and in the last fifth before its deadline up to 2. */
function urgency(open: Open, now: Ms): number {
  const left = (open.deadlineAt - now) / (URGENT_SHARE * open.deadlineMs)
  return 1 + Math.min(1, Math.max(0, 1 - left))
}

const keyOf = (open: Open): string => open.facts.key?.label ?? ''

/** Sessions of one key are not those of another. */
function sessionOf(open: Open): string | undefined {
  const header = open.facts.headers['x-weir-session']
  return typeof header === 'string' && header !== '' ? `${keyOf(open)} ${header}` : undefined
}
