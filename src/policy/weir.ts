/** The decision core: each request goes where its chance to be good outweighs what its coming costs those who are there. */
import { GroupPrices } from '../admission/groups.js'
import { LossPrice } from '../admission/price.js'
import { mayTry } from '../fleet/health.js'
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import { type Asking, Forecast, type ReplicaForecast, type Sent } from '../predict/forecast.js'
import { Gain, type Newcomer, type Spread, weigh } from '../routing/gain.js'
import { pick } from '../routing/pick.js'
import { type Promised, Running, THIRDS } from '../routing/running.js'
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
  slot = -1
  sent: Sent | undefined
  expected = 1
  lookAgainAt = 0

  constructor(asking: Asking, group: number, bound: Ms, dueAt: Ms) {
    this.asking = asking
    this.group = group
    this.bound = bound
    this.dueAt = dueAt
  }
}

/** A replica with all that is known of it. */
interface View {
  readonly replica: Replica
  readonly forecast: ReplicaForecast
  readonly running: Running
}

const NEAR_TIE = 0.02
const BEYOND_VALUE = 0.2

class WeirRule implements Rule {
  readonly #desk: Desk
  readonly #forecast: Forecast
  readonly knobs: Knobs
  readonly prices = new GroupPrices()
  readonly outer = new LossPrice()
  readonly #lines: Lines
  /** By replica id. */
  readonly #views: View[] = []
  readonly #spread: Spread
  readonly #newcomer: Newcomer = { promptTokens: 1, dueAt: 0, bound: 0, lengths: new Float64Array(THIRDS) }
  readonly #gain = new Gain()
  readonly #lengths = new Float64Array(THIRDS)
  #weights = new Float64Array(0)
  // Best two of the last look.
  #best: View | undefined
  #bestGood = 0
  readonly #candidates = {
    view: [] as View[],
    total: new Float64Array(64),
    good: new Float64Array(64),
    ttft: new Float64Array(64),
  }

  constructor(desk: Desk, forecast: Forecast, knobs: Knobs) {
    this.#desk = desk
    this.#forecast = forecast
    this.knobs = knobs
    this.#spread = { ttftMs: knobs.ttftMs, ttftShare: knobs.ttftShare, paceShare: knobs.paceShare }
    this.#lines = new Lines(
      desk,
      () => true,
      (open, now) => this.#choose(open, open.lane.pools, now),
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
      this.#views[id] = { replica, forecast: this.#forecast.replica(id), running: new Running() }
    }
  }

  arrive(open: Open, now: Ms): void {
    const kept = this.#keep(open, now)
    open.data = kept
    const replica = this.#choose(open, open.lane.pools, now)
    if (replica !== undefined) this.#send(open, replica, now)
    else if (!this.#desk.queue(open, now)) {
      this.#desk.shed(open, open.lane.up ? 'no_headroom' : 'no_replica', now)
    }
  }

  #keep(open: Open, now: Ms): Kept {
    const asking = askingOf(open)
    const { clauses } = open.traffic.target
    const group = this.prices.arrived(open.cls, open.promptTokens, now)
    return clauses.kind === 'stream'
      ? new Kept(asking, group, clauses.tpotMs, open.bodyAt + clauses.ttftMs)
      : new Kept(asking, group, 0, open.deadlineAt)
  }

  #send(open: Open, replica: Replica, now: Ms): void {
    const kept = open.data as Kept
    const view = this.#views[replica.spec.id] as View
    kept.sent = this.#forecast.dispatched(replica.spec.id, kept.asking, now, 0)
    kept.expected = this.#bestGood
    ;(kept as any).ttft = kept.sent.ttftMs
    ;(kept as any).pace = kept.sent.tpotMs
    view.forecast.pool.lengths.thirds(kept.asking, 0, this.#lengths)
    view.running.add(kept, now, now + kept.sent.ttftMs, this.#lengths)
    kept.lookAgainAt = this.#lengths[0] as number
    this.prices.admitted(kept.group)
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
      const { fit, lengths } = this.#forecast.pool(pool.spec.id)
      if (!fit.calibrated) {
        this.#bestGood = 1
        const replica = pick(
          [pool],
          open.tried,
          now,
          this.#desk.rng,
          open.traffic.queue !== undefined,
          open.heldBy,
        )
        if (replica !== undefined) return replica
        continue
      }
      this.#weigh(open, kept, pool, lengths, now)
      if (this.#best !== undefined) return this.#best.replica
    }
    return undefined
  }

  #weigh(
    open: Open,
    kept: Kept,
    pool: Pool,
    lengths: { thirds(q: Asking, sofar: number, into: Float64Array): void },
    now: Ms,
  ): void {
    const one = this.#newcomer
    one.promptTokens = open.promptTokens
    one.bound = kept.bound
    one.dueAt = kept.dueAt
    lengths.thirds(kept.asking, 0, one.lengths)
    const { values } = this.prices
    const weights = this.#weights
    for (let g = 0; g < weights.length; g++)
      weights[g] = (values[g] as number) * (this.knobs.kappa ? this.outer.kappa(this.prices.classOf(g)) : 1)
    const scale = this.knobs.scale ? this.outer.scale : 1
    const value = values[kept.group] as number
    const { theta, agentTheta } = this.knobs
    const waits = kept.bound === 0
    const tie = NEAR_TIE * value
    let best = Number.NEGATIVE_INFINITY
    let count = 0
    const gain = this.#gain
    const candidates = this.#candidates
    for (const replica of pool.replicas) {
      const { id } = replica.spec
      if (open.heldBy !== undefined && open.heldBy !== id) continue
      if (!mayTry(replica.health, now) || now < replica.aloneUntil || open.tried.includes(id)) continue
      const view = this.#views[id] as View
      weigh(view.forecast.observer, view.running, one, 0, weights, this.#spread, scale, now, gain)
      const total = value * gain.good - (this.knobs.loss ? gain.loss : 0)
      if (total > best) best = total
      candidates.view[count] = view
      candidates.total[count] = total
      candidates.good[count] = gain.good
      candidates.ttft[count] = gain.ttftMs
      count++
    }
    this.#best = undefined
    if (best < value * (waits ? agentTheta : theta)) return
    let first = Number.POSITIVE_INFINITY
    for (let i = 0; i < count; i++) {
      if ((candidates.total[i] as number) < best - tie) continue
      const ttft = candidates.ttft[i] as number
      if (ttft >= first) continue
      first = ttft
      this.#best = candidates.view[i]
      this.#bestGood = candidates.good[i] as number
    }
  }

  freed(now: Ms): void {
    this.#lines.serve(now)
  }

  waits(open: Open, now: Ms): void {
    this.#lines.waits(open, now)
  }

  left(open: Open): void {
    this.#lines.left(open)
  }

  reconfigure(): void {
    this.#lines.clear()
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
    if (sofar >= kept.lookAgainAt) {
      forecast.pool.lengths.thirds(kept.asking, sofar, this.#lengths)
      for (let k = 0; k < THIRDS; k++) running.lengths[kept.slot * THIRDS + k] = this.#lengths[k] as number
      kept.lookAgainAt = Math.max(sofar + 8, sofar * 1.2, this.#lengths[0] as number)
    }
  }

  failed(open: Open, replica: Replica, _failure: Failure, now: Ms): void {
    this.#gone(open.data as Kept, replica, false, undefined, undefined, now)
  }

  ended(open: Open, replica: Replica | undefined, ending: Ending, judgement: Judgement, now: Ms): void {
    const kept = open.data as Kept
    if (replica === undefined) return
    this.#gone(kept, replica, ending.kind === 'complete', ending.progress, judgement.tpotMs, now)
    if (!judgement.offered) return
    const good = judgement.verdict === 'good'
    if (kept.beyond) return
    this.prices.judged(kept.group, good)
    this.outer.judged(open.cls, open.traffic.target, good)
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
    ;(this.#views[replica.spec.id] as View).running.remove(kept)
  }
}
