/** One run of a scenario: one policy, one load, one seed, and the figures that came of it. */
import type { Policy, PolicySpec } from '../policy/policy.js'
import type { ReplicaId } from '../request.js'
import type { TrafficClass } from '../slo/slo.js'
import { type Clock, type Ms, type Rng, seededRng } from '../time.js'
import { Fleet, type Happening } from './fleet.js'
import { Fluid, idleServes, type Parcel, slotOf } from './fluid.js'
import type { Arrival, Job } from './job.js'
import { Mix, sampleOf, type TraceData } from './mix.js'
import type { EngineProfile } from './profiles.js'
import { RateClock } from './rate.js'
import { Recovery } from './recovery.js'
import { type Scaled, type ScaleLimits, Scaling } from './scaling.js'
import { classesOf, type Fault, MODEL, policySpecOf, profilesOf, type Scenario } from './scenario.js'
import { type Figures, nearestRank, Tally } from './tally.js'

/** Traffic goes on so long after what is measured, so that the last ones are served among others. */
const TAIL_MS: Ms = 10_000
/** Whoever has no whole answer so long after the last arrival has timed out. */
const PATIENCE_MS: Ms = 120_000

/** A scenario with its traces, made ready for many runs. */
export class Stage {
  readonly scenario: Scenario
  readonly traces: ReadonlyMap<string, TraceData>
  readonly classes: readonly TrafficClass[]
  /** By class id: what its requests ask for. */
  readonly models: readonly string[]
  readonly #spec: PolicySpec | undefined
  readonly #rps: readonly number[] | undefined
  readonly profiles: readonly EngineProfile[]
  /** By class id: requests a second that would fill the fleet with that class alone. */
  readonly capacityRps: readonly number[]
  /** By class id: the share of its requests that an idle replica serves as promised. */
  readonly idleShare: readonly number[]
  /** By class id, on the fastest replica. */
  readonly fluids: readonly Fluid[]
  readonly fastest: EngineProfile

  /**
   * @param given  of somebody's own config: classes and pools in place of the scenario's, with as many replicas; and
   *               requests a second of each class at load 1, in place of the capacity
   * @throws RangeError where the scenario names an engine or a trace that is not there, or of the wrong kind
   */
  constructor(
    scenario: Scenario,
    traces: ReadonlyMap<string, TraceData>,
    given: { readonly spec?: PolicySpec; readonly rps?: readonly number[] } = {},
  ) {
    this.scenario = scenario
    this.traces = traces
    this.profiles = profilesOf(scenario)
    this.#spec = given.spec
    this.#rps = given.rps
    const classes = given.spec?.classes ?? classesOf(scenario)
    this.classes = classes
    this.models = classes.map(({ pools }) => given.spec?.pools[pools[0] ?? 0]?.model ?? MODEL)
    const slotMs = slotOf(classes)
    const samples = scenario.classes.map(({ requests }) =>
      sampleOf(
        requests,
        requests.kind === 'lengths' ? undefined : traces.get(requests.trace),
        scenario.prefixCache,
      ),
    )
    const kinds = new Map<string, { profile: EngineProfile; count: number; fluids: Fluid[] }>()
    for (const profile of this.profiles) {
      const key = `${profile.name} ${profile.cost.wMs}`
      const known = kinds.get(key)
      if (known !== undefined) known.count++
      else
        kinds.set(key, {
          profile,
          count: 1,
          fluids: samples.map(sample => new Fluid(profile, sample, slotMs)),
        })
    }
    const all = [...kinds.values()].sort((a, b) => (b.fluids[0]?.rps ?? 0) - (a.fluids[0]?.rps ?? 0))
    const fastest = all[0]
    if (fastest === undefined) throw new RangeError('a fleet has at least one replica')
    this.fastest = fastest.profile
    this.fluids = fastest.fluids
    this.capacityRps = samples.map((_, cls) =>
      all.reduce((sum, { count, fluids }) => sum + count * (fluids[cls]?.rps ?? 0), 0),
    )
    this.idleShare = samples.map((sample, cls) => {
      const traffic = classes[cls]
      const served = (parcel: Parcel): boolean =>
        traffic !== undefined && idleServes(fastest.profile, parcel, traffic)
      return sample.filter(served).length / sample.length
    })
  }

  /** What the policy is built from. @param absent  replicas that are not in their pools */
  spec(absent: ReadonlySet<ReplicaId>): PolicySpec {
    if (this.#spec === undefined) return policySpecOf(this.scenario, absent)
    if (absent.size === 0) return this.#spec
    return {
      ...this.#spec,
      pools: this.#spec.pools.map(pool => ({
        ...pool,
        replicas: pool.replicas.filter(({ id }) => !absent.has(id)),
      })),
      replicas: this.#spec.replicas.map(one =>
        absent.has(one.id) ? { ...one, retired: true as const } : one,
      ),
    }
  }

  /** Requests a millisecond, by class id: `load` times the capacity, in the shares of the scenario. */
  ratesAt(load: number): number[] {
    if (this.#rps !== undefined) return this.#rps.map(rps => (load * rps) / 1000)
    const shares = this.scenario.classes.map(({ share }) => share)
    const whole = shares.reduce((a, b) => a + b, 0)
    return this.capacityRps.map((rps, cls) => (load * rps * (shares[cls] ?? 0)) / whole / 1000)
  }

  /** Of the fastest replicas, how many the first arrivals fill: a mean. */
  demandAtStart(load: number): number {
    const rates = this.ratesAt(load)
    const filled = rates.reduce((sum, perMs, cls) => sum + (perMs * 1000) / (this.fluids[cls]?.rps ?? 1), 0)
    return filled / new RateClock(this.scenario.rate, seededRng(1)).after(1)
  }
}

export interface CellOptions {
  readonly stage: Stage
  readonly create: (spec: PolicySpec, rng: Rng) => Policy
  readonly load: number
  readonly seed: number
  /** Times the decisions. */
  readonly clock?: Clock
  /** Replicas come and go by the autoscaler. */
  readonly scale?: ScaleLimits
}

export interface CellResult extends Figures {
  readonly decision_us_p50: number | undefined
  readonly decision_us_p99: number | undefined
  readonly preemptions: number
  /** Prompt tokens found in prefix caches, of those looked up. */
  readonly prefix_hit_share: number | undefined
  readonly classes: Readonly<Record<string, Figures>>
  /** Of a scenario with a burst: see `Recovery`. */
  readonly recovery_ms?: Ms | undefined
  readonly scaled?: Scaled
}

/** Runs it: the same options give the same result, but for the times of decisions. */
export function runCell({ stage, create, load, seed, clock, scale }: CellOptions): CellResult {
  const { scenario, profiles } = stage
  const { warmupMs, lengthMs, faults } = scenario
  const until = warmupMs + lengthMs
  const dice = seededRng(seed)
  const [policySeed, mixSeed, noiseSeed, faultSeed] = [0, 1, 2, 3].map(() =>
    Math.floor(dice.next() * 2 ** 32),
  )
  const mostTokens = Math.min(...profiles.map(({ maxModelLen, kvTokens }) => Math.min(maxModelLen, kvTokens)))
  const mix = new Mix(
    {
      scenario,
      traces: stage.traces,
      rates: stage.ratesAt(load),
      untilMs: until + TAIL_MS,
      seed: mixSeed ?? 0,
    },
    mostTokens,
  )
  const absent = new Set<ReplicaId>(
    faults.flatMap(fault => (fault.kind === 'cold-start' ? [fault.replica] : [])),
  )
  const scaling =
    scale === undefined ? undefined : new Scaling(stage, scale, absent, stage.demandAtStart(load))
  const policy = create(stage.spec(absent), seededRng(policySeed ?? 0))
  const { classes } = stage
  const tally = new Tally(classes, stage.fluids, stage.fastest)
  const { rate } = scenario
  const recovery = rate.kind === 'burst' ? new Recovery(rate.atMs, rate.atMs + rate.forMs, until) : undefined
  const decisions: number[] = []
  const fleet = new Fleet({
    replicas: profiles,
    policy,
    classes,
    models: stage.models,
    traffic: scaling === undefined ? mix : scaling.counted(mix),
    ...(scenario.noise === 0 ? {} : { noise: { sigma: scenario.noise, rng: seededRng(noiseSeed ?? 0) } }),
    ...(scenario.staleMs === undefined ? {} : { staleMs: scenario.staleMs }),
    untilMs: until + TAIL_MS + PATIENCE_MS,
    happenings: [
      ...faults.flatMap(fault => happeningsOf(fault, stage, absent, seededRng(faultSeed ?? 0))),
      ...(scaling?.happenings(until) ?? []),
    ],
    ended: (job, { verdict }, next) => {
      const again = (next?.retry ?? 0) > (job.arrival.retry ?? 0)
      if (!measured(job, warmupMs, until)) return
      tally.ended(job, verdict, again)
      if (!again) recovery?.ended(job)
    },
    ...(clock === undefined
      ? {}
      : { stopwatch: { clock, decided: (tookMs: Ms) => void decisions.push(tookMs * 1000) } }),
  })
  fleet.run()
  const totals = fleet.engines.map(engine => engine.totals)
  const sum = (key: 'preemptions' | 'prefixHits' | 'prefixQueries'): number =>
    totals.reduce((all, one) => all + one[key], 0)
  const queries = sum('prefixQueries')
  return {
    ...tally.total,
    decision_us_p50: nearestRank(decisions, 0.5),
    decision_us_p99: nearestRank(decisions, 0.99),
    preemptions: sum('preemptions'),
    prefix_hit_share: queries === 0 ? undefined : sum('prefixHits') / queries,
    classes: tally.byClass,
    ...(recovery === undefined ? {} : { recovery_ms: recovery.ms }),
    ...(scaling === undefined ? {} : { scaled: scaling.result }),
  }
}

const measured = ({ arrival }: Job, from: Ms, until: Ms): boolean => arrival.at >= from && arrival.at < until

function happeningsOf(fault: Fault, stage: Stage, absent: Set<ReplicaId>, rng: Rng): Happening[] {
  switch (fault.kind) {
    case 'crash':
      return [
        { at: fault.atMs, run: fleet => fleet.crash(fault.replica) },
        { at: fault.atMs + fault.forMs, run: fleet => fleet.restore(fault.replica) },
      ]
    case 'slow':
      return [
        { at: fault.atMs, run: fleet => fleet.slow(fault.replica, fault.factor) },
        { at: fault.atMs + fault.forMs, run: fleet => fleet.slow(fault.replica, 1) },
      ]
    case 'cache-flush':
      return [{ at: fault.atMs, run: fleet => fleet.flushCaches() }]
    case 'cold-start':
      return [
        {
          at: fault.atMs,
          run: fleet => {
            absent.delete(fault.replica)
            fleet.reconfigure(stage.spec(absent))
          },
        },
      ]
    case 'foreign':
      return foreign(fault, stage, rng)
    case 'aborts':
    case 'retries':
    case 'prompt-shift':
      return []
  }
}

/** Poisson, with the lengths of the first class. */
function foreign(fault: Fault & { kind: 'foreign' }, stage: Stage, rng: Rng): Happening[] {
  const requests = stage.scenario.classes[0]?.requests
  if (requests === undefined) return []
  const data = requests.kind === 'lengths' ? undefined : stage.traces.get(requests.trace)
  const sample = sampleOf(requests, data, false)
  const perMs = ((stage.fluids[0]?.rps ?? 0) * fault.share) / 1000
  const happenings: Happening[] = []
  for (let at = fault.atMs; ; ) {
    at -= Math.log(1 - rng.next()) / perMs
    if (at >= fault.atMs + fault.forMs) return happenings
    const { promptTokens, outputTokens } = sample[Math.floor(rng.next() * sample.length)] as Parcel
    const arrival: Arrival = { at, cls: 0, promptTokens, outputTokens }
    happenings.push({ at, run: fleet => fleet.sendForeign(fault.replica, arrival) })
  }
}
