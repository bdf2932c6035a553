/** What lies before one pool: what is asked of it, what it can serve, how many replicas it should have, and what is wrong. */
import type { PoolSpec } from '../fleet/pool.js'
import type { Forecast, PoolForecast } from '../predict/forecast.js'
import { type Knee, KneeSearch } from '../predict/knee.js'
import { expectedTpot, expectedTtft } from '../predict/latency.js'
import type { Asked } from '../predict/recent.js'
import type { PoolId, ReplicaId } from '../request.js'
import { type AutoscaleOptions, Autoscaler, type Scale } from '../slo/autoscale.js'
import { Baselines } from '../slo/baseline.js'
import { type Capacity, LearnedCapacity, ModelCapacity, sweptCapacity } from '../slo/capacity.js'
import { Demand, declaredWork, priced, type Work, workOf } from '../slo/demand.js'
import { Diagnoser, type Finding } from '../slo/diagnoser.js'
import type { EngineGauges } from '../slo/engine-gauges.js'
import {
  bindingNow,
  type ClassDemand,
  type Headroom,
  headroom,
  type Resource,
  rampWeight,
} from '../slo/headroom.js'
import { PoolCollector } from '../slo/pool-collector.js'
import type { TrafficClass } from '../slo/slo.js'
import type { SweptBudget } from '../slo/sweep.js'
import type { Ms } from '../time.js'
import type { ReplicaState } from './policy.js'

/** What the config says about it. */
export interface PoolDials {
  readonly spec: PoolSpec
  /** By class id. */
  readonly classes: readonly TrafficClass[]
  readonly swept: SweptBudget | undefined
  readonly autoscale: AutoscaleOptions
}

export interface PoolReading {
  readonly pool: PoolId
  /** Replicas that take requests; and the same, those that are still cold by the share of a warm one they have. */
  readonly ready: number
  readonly weight: number
  /** Of each class that may use the pool and has asked for something. */
  readonly demands: readonly (ClassDemand & { readonly requestsPerSec: number })[]
  /** Of one replica; undefined: not known yet. */
  readonly capacity: Capacity | undefined
  readonly headroom: Headroom | undefined
  readonly scale: Scale | undefined
  /** The last knee by the model; undefined: none was looked for yet. */
  readonly knee: Knee | undefined
  /** What is used furthest now. */
  readonly binding: Resource | undefined
  /** What is wrong, as long as it stands. */
  readonly finding: Finding | undefined
  readonly model: PoolForecast
}

/** Between two searches for the knee. Source: algorithms 6.9. */
const SEARCH_EVERY_MS: Ms = 30_000
/** Where a first search begins, in flight on one replica. */
const NEAR = 8
/** Between two minutes that the baselines may learn from. */
const MINUTE_MS: Ms = 60_000
/** A replica younger than this says nothing about capacity. Source: algorithms 6.9. */
const SETTLED_MS: Ms = 60_000
/** An engine's own figures that are older are not what it is like now. */
const STALE_MS: Ms = 3000
/** KV usage from which engines begin to preempt. Source: algorithms 6.4. */
const KV_FULL = 0.92

interface Standing {
  up: boolean
  /** Took its first request, or did again, as far as it was seen. */
  since: Ms
  /** Requests ended since then. */
  ended: number
  kvUsage: number | undefined
  /** Of its KV memory, as it told once. */
  kvTokens: number | undefined
  gaugesAt: Ms
}

export class PoolOutlook {
  readonly model: PoolForecast
  readonly demand = new Demand()
  readonly collector: PoolCollector
  readonly baselines = new Baselines()
  readonly learned = new LearnedCapacity()
  readonly knees = new ModelCapacity()
  readonly #forecast: Forecast
  #dials: PoolDials
  readonly #diagnoser: Diagnoser
  readonly #scaler = new Autoscaler()
  readonly #standing = new Map<ReplicaId, Standing>()
  /** Judged since the last look. */
  #requests = 0
  #good = 0
  #search: KneeSearch | undefined
  #searchedAt: Ms = Number.NEGATIVE_INFINITY
  #knee: Knee | undefined
  #typical: Asked | undefined
  #scale: Scale | undefined
  #finding: Finding | undefined
  #minuteAt: Ms

  constructor(dials: PoolDials, forecast: Forecast, now: Ms) {
    this.#dials = dials
    this.#forecast = forecast
    this.model = forecast.pool(dials.spec.id)
    this.collector = new PoolCollector(now)
    this.#diagnoser = new Diagnoser(
      dials.spec.name,
      id => this.spec.replicas.find(one => one.id === id)?.name ?? String(id),
    )
    this.#minuteAt = now
  }

  get spec(): PoolSpec {
    return this.#dials.spec
  }

  get finding(): Finding | undefined {
    return this.#finding
  }

  reconfigure(dials: PoolDials): void {
    this.#dials = dials
  }

  /** Who takes requests now. @param since  of those that were up before anybody looked */
  stand(replicas: readonly ReplicaState[], now: Ms, since: Ms = now): void {
    const own = this.spec.replicas
    for (const { id, up } of replicas) {
      if (!own.some(spec => spec.id === id)) continue
      const known = this.#standing.get(id)
      if (known?.up === up) continue
      const warm = since < now
      const ended = warm ? Infinity : 0
      this.#standing.set(id, { up, since, ended, kvUsage: undefined, kvTokens: undefined, gaugesAt: since })
      if (up) this.collector.replicaUp(id, now, since)
    }
    for (const [id, one] of this.#standing) if (!own.some(spec => spec.id === id)) one.up = false
  }

  gauges(replica: ReplicaId, gauges: EngineGauges, now: Ms): void {
    this.collector.gauges(replica, gauges, now)
    const standing = this.#standing.get(replica)
    if (standing === undefined) return
    standing.kvUsage = gauges.kvUsage
    standing.kvTokens = gauges.kvTokens ?? standing.kvTokens
    standing.gaugesAt = now
  }

  /** A request that it counts for has its verdict. @param replica  that served it; undefined: none did */
  judged(offered: boolean, good: boolean, replica: ReplicaId | undefined): void {
    const standing = replica === undefined ? undefined : this.#standing.get(replica)
    if (standing !== undefined) standing.ended++
    if (!offered) return
    this.#requests++
    if (good) this.#good++
  }

  /** To be called every 10 s or so. @param hour  of the day @param burn  of the day's budget, where it is known */
  look(now: Ms, hour: number, burn: number | undefined): void {
    const { ready, weight, demands, capacity, headroom } = this.reading(now)
    const asked = demands.reduce((sum, { workPerSec }) => sum + workPerSec, 0)
    const up = [...this.#standing.values()].filter(one => one.up)
    const settled = up.every(({ since }) => now - since >= SETTLED_MS)
    if (this.model.fit.calibrated && settled && weight > 0)
      this.learned.add(asked / weight, this.#requests, this.#good, now)
    this.#requests = 0
    this.#good = 0
    // A replica in the config is up until it fails: none is known to be on its way.
    this.#scale = this.#scaler.update(
      { ...this.#dials.autoscale, demand: asked, perReplica: capacity?.workPerSec, ready, pending: 0, burn },
      now,
    )
    const objective = this.#promised(now, 'stream')
    if (objective === undefined) {
      this.#finding = undefined
      return
    }
    const look = this.collector.look(now)
    this.#finding = this.#diagnoser.look(now, look, this.baselines.at(hour), {
      objective,
      coldStartMs: this.#dials.autoscale.coldStartMs,
      demandRatio: headroom?.demandRatio,
      declaredPromptP90: this.#ofClasses(now, 'stream', ({ workload }) => workload.inputTokens.p90),
    })
    if (now - this.#minuteAt < MINUTE_MS) return
    this.#minuteAt = now
    if (this.#diagnoser.well && look.minute.counts.firsts > 0) this.baselines.learn(look.minute, hour)
  }

  /** Begins to look for the knee where it is time to, and there is a model and a mix to look with. */
  begin(now: Ms): boolean {
    const { fit, recent } = this.model
    if (this.#search !== undefined) return true
    if (now - this.#searchedAt < SEARCH_EVERY_MS || !fit.calibrated || recent.count === 0) return false
    this.#searchedAt = now
    this.#search = new KneeSearch({
      cost: fit.cost,
      budget: fit.budget,
      kvTokens: this.#kvTokens(),
      recent,
      classes: this.#dials.classes,
      near: this.#knee?.concurrency || NEAR,
      seed: 1,
    })
    return true
  }

  /** Goes on for about so many virtual requests. @returns true once it is done */
  advance(requests: number): boolean {
    if (this.#search === undefined) return true
    if (!this.#search.advance(requests)) return false
    const { knee } = this.#search
    this.#search = undefined
    if (knee === undefined) return true
    this.#knee = knee
    const { work, typical } = this.#mix()
    this.#typical = typical
    this.knees.add((knee.edgeRequestsPerSec * priced(work, this.model.fit.cost)) / 1000)
    return true
  }

  /** Of one replica's KV memory: as the config has it, else the smallest that is up tells; undefined: not known. */
  #kvTokens(): number | undefined {
    let least = this.spec.kvTokens
    if (least !== undefined) return least
    for (const { up, kvTokens } of this.#standing.values())
      if (up && kvTokens !== undefined) least = Math.min(least ?? kvTokens, kvTokens)
    return least
  }

  reading(now: Ms): PoolReading {
    const { spec, classes } = this.#dials
    const { cost } = this.model.fit
    const up = [...this.#standing].filter(([, one]) => one.up)
    const weight = up.reduce((sum, [, one]) => sum + rampWeight(now - one.since, one.ended), 0)
    const demands = classes
      .filter(cls => cls.retired !== true && cls.pools.includes(spec.id))
      .map(({ id }) => ({
        cls: id,
        workPerSec: this.demand.workPerSec(id, cost, now),
        workPerRequest: this.demand.workPerRequest(id, cost),
        requestsPerSec: this.demand.requestsPerSec(id, now),
      }))
      .filter(({ workPerRequest }) => workPerRequest !== undefined)
    const capacity = this.#capacity(now)
    return {
      pool: spec.id,
      ready: up.length,
      weight,
      demands,
      capacity,
      headroom: capacity && headroom(demands, capacity, weight),
      scale: this.#scale,
      knee: this.#knee,
      binding: this.#binding(
        up.map(([id]) => id),
        now,
      ),
      finding: this.#finding,
      model: this.model,
    }
  }

  /** Of one replica: what traffic has shown, else the sweep, else the model. */
  #capacity(now: Ms): Capacity | undefined {
    const { swept, spec } = this.#dials
    const { fit, recent } = this.model
    const promised = this.#promised(now)
    const prior =
      swept === undefined
        ? this.knees.capacity(fit.relativeError, recent.count)
        : sweptCapacity(
            (swept.knee.requests_per_s * spec.gpusPerReplica) / swept.gpus,
            priced(declaredWork(swept.workload), fit.cost) / 1000,
          )
    return prior && promised !== undefined ? this.learned.capacity(promised, prior, now) : prior
  }

  /** Share of the requests that has to be good, 0 to 1. */
  #promised(now: Ms, kind?: 'stream'): number | undefined {
    return this.#ofClasses(now, kind, ({ target }) => target.percentile / 100)
  }

  /** A mean over the classes here, by how much each asks for; undefined where there is none. */
  #ofClasses(now: Ms, kind: 'stream' | undefined, of: (cls: TrafficClass) => number): number | undefined {
    const { spec, classes } = this.#dials
    let weight = 0
    let sum = 0
    for (const cls of classes) {
      const { id, pools, target, retired } = cls
      if (retired || !pools.includes(spec.id) || (kind !== undefined && target.clauses.kind !== kind))
        continue
      // So that a class that has not asked yet has a promise all the same.
      const share = this.demand.requestsPerSec(id, now) + 1e-6
      weight += share
      sum += share * of(cls)
    }
    return weight > 0 ? sum / weight : undefined
  }

  /** By what a typical request would meet on the replicas now. */
  #binding(up: readonly ReplicaId[], now: Ms): Resource | undefined {
    const typical = this.#typical
    const target = typical && this.#dials.classes[typical.cls]?.target.clauses
    if (typical === undefined || target?.kind !== 'stream' || up.length === 0) return undefined
    const { promptTokens, cachedTokens, outputTokens } = typical
    let [ttft, tpot] = [0, 0]
    let kv: number | undefined
    for (const id of up) {
      const { observer } = this.#forecast.replica(id)
      ttft += expectedTtft(observer, promptTokens, cachedTokens, now) / up.length
      tpot += expectedTpot(observer, promptTokens, outputTokens, now) / up.length
      const { kvUsage, gaugesAt } = this.#standing.get(id) as Standing
      if (kvUsage !== undefined && now - gaugesAt <= STALE_MS) kv = Math.max(kv ?? 0, kvUsage / KV_FULL)
    }
    return bindingNow({ prefill: ttft / target.ttftMs, decode: tpot / target.tpotMs, kv })
  }

  /** Mean work of the requests that came lately; and their middle one, of the class that asks most. */
  #mix(): { readonly work: Work; readonly typical: Asked } {
    const { recent } = this.model
    const sum = { newTokens: 0, pairs: 0, outputTokens: 0, contextTokens: 0 }
    const seen: number[] = []
    const total = { promptTokens: 0, cachedTokens: 0, outputTokens: 0 }
    for (let i = 0; i < recent.count; i++) {
      const one = recent.at(i)
      const work = workOf(one.promptTokens, one.cachedTokens, one.outputTokens)
      for (const kind of Object.keys(sum) as (keyof Work)[]) sum[kind] += work[kind] / recent.count
      for (const kind of Object.keys(total) as (keyof typeof total)[]) total[kind] += one[kind] / recent.count
      seen[one.cls] = (seen[one.cls] ?? 0) + 1
    }
    const cls = seen.reduce((most, count, id) => (count > (seen[most] ?? 0) ? id : most), 0)
    return { work: sum, typical: { cls, ...total } }
  }
}
