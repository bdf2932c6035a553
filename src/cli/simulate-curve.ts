/** Goodput over load and over replicas, in the user's own config: what holds, and what breaks first. */
import { type CellResult, runCell, type Stage } from '../sim/cell.js'
import type { Scaled } from '../sim/scaling.js'
import type { Figures } from '../sim/tally.js'
import type { Ms } from '../time.js'
import type { SimulatePlan } from './simulate-plan.js'

type Create = Parameters<typeof runCell>[0]['create']

/** One run of the curve. */
export interface CurvePoint {
  readonly load: number
  readonly replicas: number
  readonly offered_rps: number
  readonly goodput_rps: number
  /** Every class that was played kept its percentile, sheds counted as misses. */
  readonly holds: boolean
  /** Of the classes that did not, the miss that was most frequent; null where all did. */
  readonly broke: string | null
  readonly good_share: number
  readonly shed_share: number
  readonly classes: Readonly<Record<string, Figures & { readonly percentile: number }>>
}

export interface Curve {
  readonly config: string
  readonly policy: string
  readonly engine: string
  readonly pool: string
  readonly load_is: string
  readonly seed: number
  /** Every run: those over load, and those that looked for the number of replicas. */
  readonly points: readonly CurvePoint[]
  /** Those of them over load, in its order. */
  readonly loads: readonly CurvePoint[]
  /** At the highest load that was asked for, or at 1 where that is among them: the fewest replicas that hold. */
  readonly needed: {
    readonly load: number
    readonly replicas: number | null
    readonly tried: readonly [number, number]
  } | null
  readonly autoscaled:
    | (Scaled & { readonly load: number; readonly good_share: number; readonly hours: number })
    | null
}

/** Of a point of the curve. */
const LENGTH_MS: Ms = 180_000
const WARMUP_MS: Ms = 60_000
/** The autoscaler sees no more than this of a trace. */
const MOST_SCALED_MS: Ms = 86_400_000

const WORDS: Readonly<Record<string, string>> = {
  ttft_miss: 'TTFT',
  tpot_miss: 'TPOT',
  both_miss: 'TTFT and TPOT',
  deadline_miss: 'the deadline',
  shed: 'shed for want of room',
}

/** @param seed  of arrivals and ties */
export function curveOf(
  plan: SimulatePlan,
  ask: {
    readonly create: Create
    readonly policy: string
    readonly loads: readonly number[]
    readonly seed: number
  },
  show: (text: string) => void,
): Curve {
  const { create, loads, seed } = ask
  const { from, to } = plan.replicas
  const times = { warmupMs: WARMUP_MS, lengthMs: LENGTH_MS }
  const full = plan.stage(to, times)
  const points = loads.map(load => {
    show(`load ${load}`)
    return pointOf(full, to, load, runCell({ stage: full, create, load, seed }))
  })
  const load = loads.includes(1) ? 1 : Math.max(...loads)
  const search = from === to ? undefined : fewest(plan, create, load, seed, show)
  const scaled = from === to || plan.traceMs === undefined ? undefined : autoscaled(plan, create, seed, show)
  return {
    config: plan.file,
    policy: ask.policy,
    engine: plan.engine.name,
    pool: plan.pool,
    load_is: plan.loadIs,
    seed,
    points: [...points, ...(search?.points ?? [])],
    loads: points,
    needed: search === undefined ? null : { load, replicas: search.replicas, tried: [from, to] },
    autoscaled: scaled ?? null,
  }
}

function pointOf(stage: Stage, replicas: number, load: number, result: CellResult): CurvePoint {
  const seconds = stage.scenario.lengthMs / 1000
  const classes = Object.fromEntries(
    stage.classes.flatMap(({ name, target }) => {
      const figures = result.classes[name]
      return figures === undefined || figures.offered === 0
        ? []
        : [[name, { ...figures, percentile: target.percentile }] as const]
    }),
  )
  const failing = Object.values(classes).filter(one => (one.good_share ?? 1) * 100 < one.percentile)
  return {
    load,
    replicas,
    offered_rps: result.offered / seconds,
    goodput_rps: result.good / seconds,
    holds: failing.length === 0,
    broke: failing.length === 0 ? null : worstOf(failing),
    good_share: result.good_share ?? 1,
    shed_share: result.shed_share ?? 0,
    classes,
  }
}

function worstOf(failing: readonly Figures[]): string {
  const counts = new Map<string, number>()
  for (const { verdicts } of failing) {
    for (const [verdict, count] of Object.entries(verdicts)) {
      if (verdict !== 'good') counts.set(verdict, (counts.get(verdict) ?? 0) + count)
    }
  }
  const [worst] = [...counts].sort((a, b) => b[1] - a[1])
  return worst === undefined ? 'nothing came' : (WORDS[worst[0]] ?? worst[0])
}

/** Halves the range: more replicas never serve worse, but for chance. */
function fewest(
  plan: SimulatePlan,
  create: Create,
  load: number,
  seed: number,
  show: (text: string) => void,
) {
  const times = { warmupMs: WARMUP_MS, lengthMs: LENGTH_MS }
  const points: CurvePoint[] = []
  const holds = (replicas: number): boolean => {
    show(`${replicas} replicas`)
    const stage = plan.stage(replicas, times)
    const point = pointOf(stage, replicas, load, runCell({ stage, create, load, seed }))
    points.push(point)
    return point.holds
  }
  let { from, to } = plan.replicas
  if (!holds(to)) return { points, replicas: null }
  while (from < to) {
    const middle = Math.floor((from + to) / 2)
    if (holds(middle)) to = middle
    else from = middle + 1
  }
  return { points, replicas: to }
}

/** Plays the trace once, at its own rate, with replicas that come and go. */
function autoscaled(plan: SimulatePlan, create: Create, seed: number, show: (text: string) => void) {
  show('the autoscaler')
  const lengthMs = Math.min(plan.traceMs ?? 0, MOST_SCALED_MS)
  const stage = plan.stage(plan.replicas.to, { warmupMs: WARMUP_MS, lengthMs })
  const home = stage.spec(new Set()).pools.find(({ name }) => name === plan.pool)
  const replicas = home?.replicas.map(({ id }) => id) ?? []
  const scale = { ...plan.config.autoscale, replicas, least: plan.replicas.from }
  const result = runCell({ stage, create, load: 1, seed, scale })
  if (result.scaled === undefined) return undefined
  return {
    load: 1,
    hours: (lengthMs + WARMUP_MS) / 3_600_000,
    good_share: result.good_share ?? 1,
    ...result.scaled,
  }
}
