/** The book's figures at one moment: attainment, burn, budgets, goodput, percentiles and drift. */
import type { ClassId, PoolId } from '../request.js'
import type { Ms } from '../time.js'
import { type BurnAlert, burnAlert, MIN_EVENTS, WINDOW_PAIRS } from './alerts.js'
import { budgetLeft, burnRate, exhaustedInMs } from './burn.js'
import { type Dimension, driftOf, OFF_WORKLOAD } from './drift.js'
import type { Flow, Flows } from './flows.js'
import { type Promises, SLOS, type Tally } from './promises.js'
import { MEASURES, type Measure, type Mix, SHAPE_WINDOWS, type Shapes } from './shapes.js'
import type { Slo, SloName, TrafficClass } from './slo.js'
import type { ClauseName } from './verdict.js'
import { type Interval, wilson } from './wilson.js'
import { windowsOf } from './windows.js'

export interface BookPool {
  readonly id: PoolId
  readonly name: string
  /** undefined takes any. */
  readonly model: string | undefined
  readonly gpusPerReplica: number
}

/** By class id: streams that run and have lost the clause. */
export type Lost = Readonly<
  Record<'tpot' | 'joint', Readonly<Record<SloName, readonly (number | undefined)[]>>>
>

/** Below this a share says nothing. */
const MIN_SAMPLES = 100
/** What figures without a window of their own look back over. */
const NOW_MS: Ms = 60_000
const HOUR_MS: Ms = 3_600_000

export interface Attainment {
  readonly cls: ClassId
  readonly slo: SloName
  readonly clause: ClauseName
  readonly windowMs: Ms
  readonly met: number
  readonly missed: number
  /** undefined: fewer than 100 requests, or the window is longer than what has been seen. So for the next two. */
  readonly share: number | undefined
  /** 95 %. */
  readonly interval: Interval | undefined
  /** undefined, too, while the interval holds the percentile: either may be true. */
  readonly holds: boolean | undefined
}

export interface Burn {
  readonly cls: ClassId
  readonly slo: SloName
  readonly windowMs: Ms
  /** undefined: fewer than 50 requests, or the window is longer than what has been seen. */
  readonly rate: number | undefined
}

export interface AlertState {
  readonly cls: ClassId
  readonly slo: SloName
  readonly alert: BurnAlert
  readonly long: number | undefined
  readonly short: number | undefined
  readonly firing: boolean
}

export interface Budget {
  readonly cls: ClassId
  readonly slo: SloName
  readonly periodMs: Ms
  /** For how long the promise has been counted: no budget is known before this is a whole period. */
  readonly seenMs: Ms
  /** Share; below 0 when more was spent. */
  readonly left: number | undefined
  /** At the burn rate of the last hour; Infinity: nothing is spent. */
  readonly exhaustedInMs: Ms | undefined
}

/** Of one class in one of its pools, over the last minute, by the time requests ended. */
export interface Goodput {
  readonly cls: ClassId
  readonly pool: PoolId
  /** undefined: seen for less than a minute. */
  readonly requestsPerSecond: number | undefined
  /** Output tokens of good requests; undefined, too, where no replica is up. */
  readonly tokensPerSecondPerGpu: number | undefined
}

/** Good over offered of a class, over the last minute, sheds beside it. */
export interface Offered {
  readonly cls: ClassId
  /** undefined: seen for less than a minute. */
  readonly offeredPerSecond: number | undefined
  readonly goodPerSecond: number | undefined
  /** Shares are undefined, too, below 100 requests. */
  readonly goodShare: number | undefined
  /** Of those that were not shed: only to be shown beside `shedShare`, which it rises with. */
  readonly admittedGoodShare: number | undefined
  readonly shedShare: number | undefined
}

export interface Spread {
  readonly cls: ClassId
  /** Times in ms, lengths in tokens, each within 1 %. */
  readonly measure: Measure
  readonly windowMs: Ms
  readonly count: number
  readonly p50: number
  readonly p90: number
  readonly p99: number
}

export interface Drift {
  readonly cls: ClassId
  /** Those that are known. */
  readonly ratios: Readonly<Partial<Record<Dimension, number>>>
  /** One of them is above 1: what is measured now is not what was promised for. */
  readonly offWorkload: boolean
}

/** Each figure is worked out when it is asked for. */
export class Reading {
  readonly #classes: readonly TrafficClass[]
  readonly #pools: readonly BookPool[]
  readonly #promises: Promises
  readonly #flows: Flows
  readonly #shapes: Shapes
  readonly #running: () => Lost
  #lost: Lost | undefined

  /** @param running  the streams that have lost a clause already */
  constructor(
    spec: { readonly classes: readonly TrafficClass[]; readonly pools: readonly BookPool[] },
    promises: Promises,
    flows: Flows,
    shapes: Shapes,
    running: () => Lost,
  ) {
    this.#classes = spec.classes.filter(({ retired }) => !retired)
    this.#pools = spec.pools
    this.#promises = promises
    this.#flows = flows
    this.#shapes = shapes
    this.#running = running
  }

  /** By class, SLO, clause and window. */
  attainment(): Attainment[] {
    return this.#each((cls, slo) =>
      clausesOf(cls[slo]).flatMap(clause =>
        windowsOf(cls[slo].windowMs).map(windowMs => {
          const { met, missed } = this.#tally(cls.id, slo, clause, windowMs)
          const known = met + missed >= MIN_SAMPLES && this.#seen(cls.id, slo, windowMs)
          const interval = known ? wilson(met, met + missed) : undefined
          return {
            cls: cls.id,
            slo,
            clause,
            windowMs,
            met,
            missed,
            share: known ? met / (met + missed) : undefined,
            interval,
            holds: interval && clear(interval, cls[slo].percentile / 100),
          }
        }),
      ),
    )
  }

  /** By class, SLO and window. Where each clause is promised by itself, of the one that burns most. */
  burn(): Burn[] {
    return this.#each((cls, slo) =>
      windowsOf(cls[slo].windowMs).map(windowMs => {
        return { cls: cls.id, slo, windowMs, rate: this.#burn(cls, slo, windowMs) }
      }),
    )
  }

  /** The alerts that can fire and mean something, by class and SLO. */
  alerts(): AlertState[] {
    return this.#each((cls, slo) =>
      WINDOW_PAIRS.flatMap(pair => {
        const alert = burnAlert(pair, cls[slo].percentile, cls[slo].windowMs)
        if (alert.fires !== 'yes') return []
        const long = this.#burn(cls, slo, alert.longMs)
        const short = this.#burn(cls, slo, alert.shortMs)
        const firing = (long ?? 0) > alert.factor && (short ?? 0) > alert.factor
        return [{ cls: cls.id, slo, alert, long, short, firing }]
      }),
    )
  }

  budgets(): Budget[] {
    return this.#each((cls, slo) => {
      const periodMs = cls[slo].windowMs
      const spent = this.#burn(cls, slo, periodMs)
      const left = spent === undefined ? undefined : budgetLeft(spent)
      const hour = this.#burn(cls, slo, HOUR_MS)
      const exhausted =
        left === undefined || hour === undefined ? undefined : exhaustedInMs(left, periodMs, hour)
      const seenMs = this.#promises.seenMs(cls.id, slo)
      return [{ cls: cls.id, slo, periodMs, seenMs, left, exhaustedInMs: exhausted }]
    })
  }

  /** By class and pool. @param replicas  those there are; a pool's GPUs are those of its replicas that are up */
  goodput(replicas: Iterable<{ readonly pool: PoolId; readonly up: boolean }>): Goodput[] {
    const up: number[] = []
    for (const replica of replicas) if (replica.up) up[replica.pool] = (up[replica.pool] ?? 0) + 1
    return this.#classes.flatMap(cls =>
      cls.pools.map(pool => {
        const flow = this.#flows.in(cls.id, pool, NOW_MS)
        const gpus = (up[pool] ?? 0) * (this.#pools[pool]?.gpusPerReplica ?? 0)
        const known = flow.seenMs >= NOW_MS
        return {
          cls: cls.id,
          pool,
          requestsPerSecond: known ? perSecond(flow.good, flow) : undefined,
          tokensPerSecondPerGpu: known && gpus > 0 ? perSecond(flow.goodTokens, flow) / gpus : undefined,
        }
      }),
    )
  }

  /** By class, over all pools and those that were sent nowhere. */
  offered(): Offered[] {
    return this.#classes.map(({ id, pools }) => {
      const flows = [undefined, ...pools].map(pool => this.#flows.in(id, pool, NOW_MS))
      const sum = (what: 'offered' | 'shed' | 'good') => flows.reduce((total, flow) => total + flow[what], 0)
      const [offered, shed, good] = [sum('offered'), sum('shed'), sum('good')]
      const first = flows[0]!
      const known = first.seenMs >= NOW_MS
      const share = (part: number, whole: number) =>
        known && whole >= MIN_SAMPLES ? part / whole : undefined
      return {
        cls: id,
        offeredPerSecond: known ? perSecond(offered, first) : undefined,
        goodPerSecond: known ? perSecond(good, first) : undefined,
        goodShare: share(good, offered),
        admittedGoodShare: share(good, offered - shed),
        shedShare: share(shed, offered),
      }
    })
  }

  /** By class, measure and window, where there are 100 answers. */
  spreads(): Spread[] {
    return this.#classes.flatMap(({ id }) =>
      MEASURES.flatMap(measure =>
        SHAPE_WINDOWS.flatMap(windowMs => {
          const sketch = this.#shapes.sketch(id, measure, windowMs)
          if (sketch.count < MIN_SAMPLES || this.#shapes.seenMs(id) < windowMs) return []
          const [p50, p90, p99] = [sketch.quantile(0.5)!, sketch.quantile(0.9)!, sketch.quantile(0.99)!]
          return [{ cls: id, measure, windowMs, count: sketch.count, p50, p90, p99 }]
        }),
      ),
    )
  }

  /**
   * By class: the last minute, or where that has fewer than 100 answers, the shortest of 5 minutes, an hour and a day
   * that has them. The model counts only where a pool of the class is for the declared one by its very name.
   */
  drift(): Drift[] {
    return this.#classes.map(cls => {
      const named = cls.pools.some(pool => this.#pools[pool]?.model === cls.workload.model)
      const ratios = driftOf(
        {
          inputTokens: this.#p90(cls.id, 'input'),
          outputTokens: this.#p90(cls.id, 'output'),
          cacheHit: this.#share(cls.id, mix => [mix.cacheTold, mix.cached, mix.cacheable]),
          model: named
            ? this.#share(cls.id, ({ declaredModel, otherModel }) => {
                const all = declaredModel + otherModel
                return [all, declaredModel, all]
              })
            : undefined,
        },
        cls.workload,
      )
      const known = Object.entries(ratios).flatMap(([dimension, ratio]) =>
        ratio === undefined ? [] : [[dimension, ratio] as const],
      )
      return {
        cls: cls.id,
        ratios: Object.fromEntries(known),
        offWorkload: known.some(([, ratio]) => ratio > OFF_WORKLOAD),
      }
    })
  }

  #each<Row>(rows: (cls: TrafficClass, slo: SloName) => readonly Row[]): Row[] {
    return this.#classes.flatMap(cls => SLOS.flatMap(slo => rows(cls, slo)))
  }

  #seen(cls: ClassId, slo: SloName, windowMs: Ms): boolean {
    return this.#promises.seenMs(cls, slo) >= windowMs
  }

  /** With the streams that run: they count as missed before their end. */
  #tally(cls: ClassId, slo: SloName, clause: ClauseName, windowMs: Ms): Tally {
    const tally = this.#promises.tally(cls, slo, clause, windowMs)
    if (clause !== 'tpot' && clause !== 'joint') return tally
    this.#lost ??= this.#running()
    return { ...tally, missed: tally.missed + (this.#lost[clause][slo][cls] ?? 0) }
  }

  #burn(cls: TrafficClass, slo: SloName, windowMs: Ms): number | undefined {
    if (!this.#seen(cls.id, slo, windowMs)) return undefined
    let worst: number | undefined
    for (const clause of promisedClauses(cls[slo])) {
      const { met, missed, lost } = this.#tally(cls.id, slo, clause, windowMs)
      const total = met + missed + lost
      if (total < MIN_EVENTS) continue
      worst = Math.max(worst ?? 0, burnRate(missed + lost, total, cls[slo].percentile))
    }
    return worst
  }

  #p90(cls: ClassId, measure: Measure): number | undefined {
    const windowMs = this.#shapeWindow(cls, each => this.#shapes.sketch(cls, measure, each).count)
    return windowMs === undefined ? undefined : this.#shapes.sketch(cls, measure, windowMs).quantile(0.9)
  }

  /** @param of  how many answers it is from, the part and the whole */
  #share(
    cls: ClassId,
    of: (mix: Mix) => readonly [answers: number, part: number, whole: number],
  ): number | undefined {
    const windowMs = this.#shapeWindow(cls, each => of(this.#shapes.mix(cls, each))[0])
    if (windowMs === undefined) return undefined
    const [, part, whole] = of(this.#shapes.mix(cls, windowMs))
    return whole === 0 ? undefined : part / whole
  }

  /** The shortest window that has been seen and has enough answers. */
  #shapeWindow(cls: ClassId, answers: (windowMs: Ms) => number): Ms | undefined {
    const seenMs = this.#shapes.seenMs(cls)
    return SHAPE_WINDOWS.find(windowMs => windowMs <= seenMs && answers(windowMs) >= MIN_SAMPLES)
  }
}

function clausesOf({ clauses }: Slo): readonly ClauseName[] {
  return clauses.kind === 'deadline' ? ['deadline'] : ['ttft', 'tpot', 'joint']
}

/** The clauses that must each be kept at the percentile. */
function promisedClauses({ clauses, mode }: Slo): readonly ClauseName[] {
  if (clauses.kind === 'deadline') return ['deadline']
  return mode === 'joint' ? ['joint'] : ['ttft', 'tpot']
}

/** Whether an interval lies above an objective; undefined where it holds it. */
function clear({ low, high }: Interval, objective: number): boolean | undefined {
  if (low >= objective) return true
  return high < objective ? false : undefined
}

function perSecond(count: number, { spanMs }: Flow): number {
  return (count * 1000) / spanMs
}
