/** The decision core: each request goes where its chance to be good outweighs what its coming costs those who are there. */
import { GroupPrices } from '../admission/groups.js'
import { LossPrice } from '../admission/price.js'
import { mayTry } from '../fleet/health.js'
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import { type Asking, Forecast, type PoolForecast, type Sent } from '../predict/forecast.js'
import { PrefixIndex } from '../routing/affinity.js'
import { Gain, type Newcomer, type Spread, weigh } from '../routing/gain.js'
import { pick } from '../routing/pick.js'
import { type Promised, THIRDS } from '../routing/running.js'
import { Idle, View } from '../routing/view.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms, Rng } from '../time.js'
import type { Ending, Failure } from './decision.js'
import { Door } from './door.js'
import { Lines } from './lines.js'
import type { Open } from './open.js'
import type { Policy, PolicySpec } from './policy.js'
import type { Desk, Rule } from './rule.js'
import { askingOf } from './watched.js'

export interface Knobs {
  /** Least gain, in units of the newcomer's own weight. */
  theta: number
  agentTheta: number
  fairness: number
  kappa: boolean
  scale: boolean
  loss: boolean
  ttftMs: number
  ttftShare: number
  paceShare: number
  guard: number
  beyond: number
  kv: boolean
  gather: number
}

export const KNOBS: Knobs = {
  theta: 0.15,
  agentTheta: 0.3,
  fairness: 0.8,
  kappa: true,
  scale: true,
  loss: true,
  ttftMs: 20,
  ttftShare: 0.05,
  paceShare: 0.1,
  guard: 0.3,
  beyond: 0.05,
  kv: true,
  gather: 0.0004,
}

export function createWeir(
  spec: PolicySpec,
  rng: Rng,
  knobs: Partial<Knobs> = {},
): Policy & { readonly forecast: Forecast } {
  const forecast = new Forecast(spec)
  let rule: WeirRule | undefined
  const door = new Door(spec, rng, desk => {
    rule = new WeirRule(desk, forecast, { ...KNOBS, ...knobs })
    return rule
  })
  return Object.assign(door, { forecast, rule })
}

/** What the rule keeps of one request. */
class Kept implements Promised {
  readonly asking: Asking
  readonly group: number
  readonly bound: Ms
  readonly dueAt: Ms
  /** Not even an idle replica would serve it within its SLO. */
  beyond = false
  /** Its chance to be good on an idle replica. */
  idle = 1
  slot = -1
  sent: Sent | undefined
  expected = 1
  lookAgainAt = 0
  /** Prompt tokens that the index held to be cached where it was sent. */
  hits = 0

  constructor(asking: Asking, group: number, bound: Ms, dueAt: Ms) {
    this.asking = asking
    this.group = group
    this.bound = bound
    this.dueAt = dueAt
  }
}

const NEAR_TIE = 0.02
/** Time to look again at those who wait, and how many of them are asked about. Source: algorithms 6.7. */
const SCAN_MS: Ms = 25
const HEADS = 20
/** Share of the deadline before whose end urgency begins. */
const URGENT_SHARE = 0.2
const KV_SOFT = 0.8
const KV_HARD = 0.92
/** Replicas that are all looked at; of more a sample is. */
const CANDIDATES = 64

class WeirRule implements Rule {
  readonly #desk: Desk
  readonly #forecast: Forecast
  readonly knobs: Knobs
  readonly prices = new GroupPrices()
  readonly outer = new LossPrice()
  readonly #prefixes = new PrefixIndex()
  readonly #lines: Lines
  /** By replica id, and by pool id. */
  readonly #views: View[] = []
  readonly #idles: Idle[] = []
  readonly #spread: Spread
  readonly #newcomer: Newcomer = { promptTokens: 1, dueAt: 0, bound: 0, lengths: new Float64Array(THIRDS) }
  readonly #gain = new Gain()
  readonly #lengths = new Float64Array(THIRDS)
  #weights = new Float64Array(0)
  #waiting = 0
  #asks = 0
  #wakeAt: Ms | undefined
  /** Of the last look: the place that was found, the chance there, and the prompt tokens cached there. */
  #best: View | undefined
  #bestGood = 0
  readonly #views_: View[] = []
  readonly #totals = new Float64Array(CANDIDATES)
  readonly #goods = new Float64Array(CANDIDATES)
  readonly #ttfts = new Float64Array(CANDIDATES)
  /** Share of the prompt tokens that were expected in a cache and were there. */
  #hitsExpected = 0
  #hitsFound = 0
  /** Nothing was shed or waited since the last look, and nothing was slowed by load. */
  #quiet = true

  constructor(desk: Desk, forecast: Forecast, knobs: Knobs) {
    this.#desk = desk
    this.#forecast = forecast
    this.knobs = knobs
    this.#spread = { ttftMs: knobs.ttftMs, ttftShare: knobs.ttftShare, paceShare: knobs.paceShare }
    this.#lines = new Lines(
      { dispatch: (open, replica, now) => this.#send(open, replica, now) },
      () => true,
      (open, now) => (this.#asks-- > 0 ? this.#choose(open, open.lane.pools, now) : undefined),
    )
    this.#follow()
  }

  #follow(): void {
    const { classes } = this.#desk
    this.prices.reconfigure(
      classes,
      classes.map(() => this.knobs.fairness),
    )
    this.#weights = new Float64Array(this.prices.values.length)
    for (const replica of this.#desk.replicas) {
      const { id } = replica.spec
      if (this.#views[id]?.replica === replica) continue
      this.#views[id] = new View(replica, this.#forecast.replica(id))
    }
    for (const { spec } of this.#desk.pools)
      this.#idles[spec.id] ??= new Idle(this.#forecast.pool(spec.id).fit)
  }

  arrive(open: Open, now: Ms): void {
    const kept = this.#keep(open, now)
    open.data = kept
    if (kept.beyond && kept.bound === 0 && open.deadline.by === 'client') {
      this.#shed(open, kept, 'infeasible', now)
      return
    }
    const replica = this.#choose(open, open.lane.pools, now)
    if (replica !== undefined) this.#send(open, replica, now)
    else if (this.#desk.queue(open, now)) this.#quiet = false
    else this.#shed(open, kept, open.lane.up ? 'no_headroom' : 'no_replica', now)
  }

  #shed(open: Open, kept: Kept, reason: 'infeasible' | 'no_headroom' | 'no_replica', now: Ms): void {
    this.#quiet = false
    this.#forecast.shed(kept.asking)
    this.#desk.shed(open, reason, now)
  }

  #keep(open: Open, now: Ms): Kept {
    const asking = askingOf(open)
    const { clauses } = open.traffic.target
    const group = this.prices.groupOf(open.cls, open.promptTokens)
    const kept =
      clauses.kind === 'stream'
        ? new Kept(asking, group, clauses.tpotMs, open.bodyAt + clauses.ttftMs)
        : new Kept(asking, group, 0, open.deadlineAt)
    const home = open.lane.pools[0] as Pool
    const { fit, lengths } = this.#forecast.pool(home.spec.id)
    if (fit.calibrated) {
      const idle = this.#idles[home.spec.id] as Idle
      this.#ask(open, kept, lengths)
      const cached = open.facts.prefix === undefined ? 0 : Math.max(0, ...(this.#hits(open) as number[]))
      weigh(idle, idle.running, this.#newcomer, cached, this.#weights, this.#spread, 1, now, this.#gain)
      kept.idle = this.#gain.good
      kept.beyond = kept.idle < this.knobs.theta
    }
    if (!kept.beyond) this.prices.offered(group, now)
    return kept
  }

  #hits(open: Open): ArrayLike<number | undefined> {
    return this.#prefixes.hits(open.facts.prefix)
  }

  get trust(): number {
    return this.#trust
  }

  get #trust(): number {
    return this.#hitsExpected > 0 ? this.#hitsFound / this.#hitsExpected : 1
  }

  #ask(open: Open, kept: Kept, lengths: PoolForecast['lengths']): void {
    const one = this.#newcomer
    one.promptTokens = open.promptTokens
    one.bound = kept.bound
    one.dueAt = kept.dueAt
    lengths.thirds(kept.asking, 0, one.lengths)
  }

  #send(open: Open, replica: Replica, now: Ms): void {
    const kept = open.data as Kept
    const { id } = replica.spec
    const view = this.#views[id] as View
    if (open.place.at === 'queue') this.#waiting--
    const { prefix } = open.facts
    kept.hits = prefix === undefined ? 0 : Math.min(open.promptTokens - 1, this.#hits(open)[id] ?? 0)
    const cached = prefix === undefined ? undefined : this.#trust * kept.hits
    kept.sent = this.#forecast.dispatched(id, kept.asking, now, cached)
    kept.expected = this.#bestGood
    view.forecast.pool.lengths.thirds(kept.asking, 0, this.#lengths)
    view.running.add(kept, now, now + kept.sent.ttftMs, this.#lengths)
    if (kept.sent.flight === undefined) {
      view.unseen++
      view.unseenTokens += open.promptTokens
    }
    kept.lookAgainAt = this.#lengths[0] as number
    if (!kept.beyond) this.prices.admitted(kept.group)
    this.#prefixes.insert(id, open.facts.prefix)
    this.#desk.dispatch(open, replica, now)
  }

  again(open: Open, pools: readonly Pool[], now: Ms): void {
    const replica = this.#choose(open, pools, now)
    if (replica !== undefined) this.#send(open, replica, now)
    else this.#desk.queue(open, now)
  }

  /** Where it is to go; undefined: nowhere now. */
  #choose(open: Open, pools: readonly Pool[], now: Ms): Replica | undefined {
    const kept = open.data as Kept
    for (const pool of pools) {
      const of = this.#forecast.pool(pool.spec.id)
      if (of.fit.calibrated) {
        this.#look(open, kept, pool, of, now)
        if (this.#best !== undefined) return this.#best.replica
        continue
      }
      this.#bestGood = 1
      const waits = open.traffic.queue !== undefined
      const replica = pick([pool], open.tried, now, this.#desk.rng, waits, open.heldBy)
      if (replica !== undefined) return replica
    }
    return undefined
  }

  #look(open: Open, kept: Kept, pool: Pool, { lengths, recent }: PoolForecast, now: Ms): void {
    const { knobs } = this
    const one = this.#newcomer
    this.#ask(open, kept, lengths)
    const weights = this.#weights
    const { values } = this.prices
    for (let g = 0; g < weights.length; g++)
      weights[g] = (values[g] as number) * (knobs.kappa ? this.outer.kappa(this.prices.classOf(g)) : 1)
    const scale = knobs.scale ? this.outer.scale : 1
    const waits = kept.bound === 0
    let value = values[kept.group] as number
    const whole = value
    let needed = whole * (waits ? knobs.agentTheta : knobs.theta)
    if (kept.beyond) needed = -knobs.beyond * whole
    else if (waits) value *= this.#urgency(open, kept, now)
    const known = open.facts.prefix !== undefined
    const hits = known ? this.#hits(open) : undefined
    const trust = this.#trust
    const usual = known ? 0 : recent.cachedShare(open.cls) * open.promptTokens
    const guardMs = waits ? this.#guardMs(pool) : Number.POSITIVE_INFINITY
    const { kvTokens } = pool.spec
    const gain = this.#gain
    let best = Number.NEGATIVE_INFINITY
    let count = 0
    let busiest = 0
    const all = pool.replicas
    const sampled = all.length > CANDIDATES
    for (let i = 0; i < Math.min(all.length, CANDIDATES); i++) {
      const replica = (sampled ? all[Math.floor(this.#desk.rng.next() * all.length)] : all[i]) as Replica
      const { id } = replica.spec
      if (open.heldBy !== undefined && open.heldBy !== id) continue
      if (!mayTry(replica.health, now) || now < replica.aloneUntil || open.tried.includes(id)) continue
      const view = this.#views[id] as View
      const cached = hits === undefined ? usual : Math.min(open.promptTokens - 1, trust * (hits[id] ?? 0))
      weigh(view, view.running, one, cached, weights, this.#spread, scale, now, gain)
      busiest = Math.max(busiest, view.prefillShare(now), view.waiting > 0 ? 1 : 0)
      let total = (kept.beyond ? 0 : value * gain.good) - (knobs.loss ? gain.loss : 0)
      if (knobs.kv && kvTokens !== undefined) {
        const held =
          view.contextTokens +
          view.waitingTokens +
          gain.growth +
          open.promptTokens +
          (one.lengths[2] as number)
        const full = held / kvTokens
        if (full > KV_HARD && view.streams + view.waiting > 0) continue
        if (full > KV_SOFT) total -= (whole * (full - KV_SOFT)) / (KV_HARD - KV_SOFT)
      }
      if (waits) {
        if (view.waiting > 0 && gain.ttftMs > guardMs) continue
        total -= knobs.gather * (view.streams - view.running.deadlines)
      }
      if (total > best) best = total
      this.#views_[count] = view
      this.#totals[count] = total
      this.#goods[count] = gain.good
      this.#ttfts[count] = gain.ttftMs
      count++
    }
    if (busiest >= 0.3) this.#quiet = false
    this.#best = undefined
    if (best < needed) return
    let first = Number.POSITIVE_INFINITY
    for (let i = 0; i < count; i++) {
      if ((this.#totals[i] as number) < best - NEAR_TIE * whole) continue
      const ttft = this.#ttfts[i] as number
      if (ttft >= first) continue
      first = ttft
      this.#best = this.#views_[i]
      this.#bestGood = this.#goods[i] as number
    }
  }

  /** As laxity runs out its value rises, to twice. */
  #urgency(open: Open, kept: Kept, now: Ms): number {
    const whole = kept.dueAt - open.arrivedAt
    const laxity = kept.dueAt - now
    return 1 + Math.min(1, Math.max(0, 1 - laxity / (URGENT_SHARE * whole)))
  }

  /** Prefill that may be outstanding where chat has its first tokens to come. */
  #guardMs(pool: Pool): Ms {
    let tightest = Number.POSITIVE_INFINITY
    for (const { target, pools } of this.#desk.classes) {
      const { clauses } = target
      if (clauses.kind === 'stream' && pools.includes(pool.spec.id))
        tightest = Math.min(tightest, clauses.ttftMs)
    }
    return this.knobs.guard * tightest
  }

  freed(now: Ms): void {
    if (this.#waiting === 0 || (this.#wakeAt !== undefined && now < this.#wakeAt)) return
    this.#scan(now)
  }

  #scan(now: Ms): void {
    this.#asks = HEADS
    this.#lines.serve(now)
    this.#wakeAt = this.#waiting === 0 ? undefined : now + SCAN_MS
  }

  get wakeAt(): Ms | undefined {
    return this.#wakeAt
  }

  wake(now: Ms): void {
    this.#wakeAt = undefined
    if (this.#waiting > 0) this.#scan(now)
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

  reconfigure(): void {
    this.#lines.clear()
    this.#waiting = 0
    this.#follow()
  }

  firstToken(open: Open, replica: Replica, now: Ms): void {
    const { sent } = open.data as Kept
    if (sent !== undefined) this.#forecast.firstToken(sent, now)
    ;(this.#views[replica.spec.id] as View).running.firstToken(open.data as Kept, now)
  }

  mark(open: Open, replica: Replica, now: Ms, events: number): void {
    const kept = open.data as Kept
    const { sent } = kept
    if (sent === undefined) return
    this.#forecast.mark(sent, now, events)
    const { running, forecast } = this.#views[replica.spec.id] as View
    const sofar = (running.tokens[kept.slot] as number) + events * forecast.tokensPerMark
    running.tokens[kept.slot] = sofar
    if (sofar < kept.lookAgainAt) return
    forecast.pool.lengths.thirds(kept.asking, sofar, this.#lengths)
    for (let k = 0; k < THIRDS; k++) running.lengths[kept.slot * THIRDS + k] = this.#lengths[k] as number
    kept.lookAgainAt = Math.max(sofar + 8, sofar * 1.2, this.#lengths[0] as number)
  }

  failed(open: Open, replica: Replica, _failure: Failure, now: Ms): void {
    this.#gone(open.data as Kept, replica, false, undefined, undefined, now)
    this.#prefixes.forget(replica.spec.id)
  }

  ended(open: Open, replica: Replica | undefined, ending: Ending, judgement: Judgement, now: Ms): void {
    const kept = open.data as Kept
    if (replica === undefined) return
    const { progress } = ending
    this.#gone(kept, replica, ending.kind === 'complete', progress, judgement.tpotMs, now)
    const found = progress?.usage?.cachedTokens
    if (found !== undefined && kept.hits > 0) {
      this.#hitsExpected = 0.99 * this.#hitsExpected + kept.hits
      this.#hitsFound = 0.99 * this.#hitsFound + Math.min(found, kept.hits)
    }
    if (!judgement.offered || kept.beyond) return
    const good = judgement.verdict === 'good'
    this.prices.judged(kept.group, good)
    this.outer.passed(now, this.#quiet)
    this.#quiet = true
    if (kept.idle >= 0.5) this.outer.judged(open.cls, open.traffic.target, good)
    if (kept.bound > 0) this.outer.compared(kept.expected, good)
  }

  #gone(
    kept: Kept,
    replica: Replica,
    complete: boolean,
    progress: Ending['progress'],
    tpotMs: Ms | undefined,
    now: Ms,
  ): void {
    const { sent } = kept
    if (sent === undefined) return
    kept.sent = undefined
    this.#forecast.ended(sent, { complete, progress, tpotMs }, now)
    const view = this.#views[replica.spec.id] as View
    view.running.remove(kept)
    if (sent.flight !== undefined) return
    view.unseen--
    view.unseenTokens -= sent.asking.promptTokens
  }
}
