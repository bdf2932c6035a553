/** What a concurrency sweep says of a pool: which points keep the promise, the knee, and the budget there. */
import type { Ms } from '../time.js'
import { type Slo, TPOT_JITTER_MS, TPOT_MIN_TOKENS, type Workload } from './slo.js'
import type { ClauseName } from './verdict.js'
import { settledAfter, wilson } from './wilson.js'

/** One answer of a closed-loop run. What did not come whole misses every clause. */
export interface Answered {
  readonly complete: boolean
  readonly ttftMs: Ms | undefined
  /** undefined below 2 tokens. */
  readonly tpotMs: Ms | undefined
  readonly e2eMs: Ms
  readonly inputTokens: number
  readonly outputTokens: number
}

/** Nearest rank of the complete answers; null: there were none. */
export interface Spread {
  readonly p50: number | null
  readonly p90: number | null
  /** At the SLO's percentile. */
  readonly promised: number | null
}

/** One row, as `--json` prints it and the sweep file holds it. Rates are of the whole pool. */
export interface SweepPoint {
  readonly concurrency: number
  /** Measured, those that failed included. */
  readonly requests: number
  readonly failed: number
  /** Time they were measured in; with several seeds, of all of them together. */
  readonly span_s: number
  readonly ttft_ms: Spread
  readonly tpot_ms: Spread
  readonly e2e_ms: Spread & { readonly mean: number }
  /** By their end. */
  readonly requests_per_s: number
  readonly input_tok_s: number
  readonly output_tok_s: number
  /** Output tokens of the good requests. */
  readonly goodput_tok_s: number
  /** Of all requests, those that met every clause. */
  readonly good_share: number
  /** Of all requests, by clause. */
  readonly met_share: Readonly<Partial<Record<ClauseName, number>>>
  /** The share of each promised clause is at least the percentile. */
  readonly holds: boolean
  /** There are 100 requests, and the 95 % interval is clear of the percentile. */
  readonly decided: boolean
  /** Where it is not decided: seconds of this load that would, if it went on so; null: none would. */
  readonly decided_after_s: number | null
}

export type Binding = 'ttft' | 'tpot' | 'deadline'

export interface SweepFindings {
  /** Last swept concurrency at which the promise holds; null: at none. */
  readonly knee: number | null
  /** Where the line from the knee to the next point crosses the percentile; null: no point after the knee. */
  readonly knee_interpolated: number | null
  /** The clause whose ratio to its bound is nearer to 1 at the knee, or worst at the first point without one. */
  readonly binding: Binding
  readonly budget_tok_s_per_gpu: number | null
  /** Concurrency to run at. */
  readonly steady: { readonly low: number; readonly high: number } | null
  /** Goodput demand, tokens/s per GPU, above which replicas are added. */
  readonly scale_out_at: number | null
}

/** The knee of a pool's sweep, as the config hands it on. */
export interface SweptBudget {
  readonly gpus: number
  readonly workload: Workload
  readonly knee: SweepPoint
  readonly budgetTokPerSecPerGpu: number
  readonly steady: { readonly low: number; readonly high: number }
  readonly scaleOutAt: number
}

/** Below it a verdict is unknown (algorithms: 1.3). */
const MIN_SAMPLES = 100
/** Little's law: where concurrency and rate x time differ by more, the row was not measured in a closed loop. */
export const LITTLE_LIMIT = 0.15
// The essay's dials: 8 to 10 of a knee at 12, and scale out at 70 % of the budget (inference-slos).
const STEADY = { low: 8 / 12, high: 10 / 12 } as const
const SCALE_OUT = 0.7

/**
 * Judges one closed-loop run.
 * @param spanMs  the time in which `answers` ended
 * @throws RangeError without answers: there is nothing to judge
 */
export function sweepPoint(
  concurrency: number,
  answers: readonly Answered[],
  spanMs: Ms,
  slo: Slo,
): SweepPoint {
  if (answers.length === 0) throw new RangeError(`no answers at concurrency ${concurrency}`)
  const complete = answers.filter(answer => answer.complete)
  const spread = (values: readonly (number | undefined)[]): Spread => spreadOf(values, slo.percentile)
  const perSecond = (total: number): number => round((total / spanMs) * 1000)
  const tokens = (of: readonly Answered[]): number => sum(of, answer => answer.outputTokens)
  const good = complete.filter(answer => goodClause(slo, clausesMet(answer, slo)))
  const shares = metShares(answers, slo)
  const requests = answers.length
  return {
    concurrency,
    requests,
    failed: requests - complete.length,
    span_s: round(spanMs / 1000),
    ttft_ms: spread(complete.map(answer => answer.ttftMs)),
    tpot_ms: spread(complete.map(answer => answer.tpotMs)),
    e2e_ms: {
      ...spread(complete.map(answer => answer.e2eMs)),
      mean: round(sum(answers, answer => answer.e2eMs) / requests),
    },
    requests_per_s: perSecond(requests),
    input_tok_s: perSecond(sum(complete, answer => answer.inputTokens)),
    output_tok_s: perSecond(tokens(complete)),
    goodput_tok_s: perSecond(tokens(good)),
    good_share: good.length / requests,
    met_share: shares,
    ...verdictOf(shares, requests, requests / (spanMs / 1000), slo),
  }
}

/**
 * Whether a run so far settles the promise, for those who look again and again while it runs.
 * @param z  wider than for one look: every look is a chance to be wrong
 */
export function settled(answers: readonly Answered[], slo: Slo, z: number): boolean {
  return isSettled(metShares(answers, slo), answers.length, slo, z)
}

/**
 * Reads the knee off swept points. What noise puts out of order is evened out first: the share that met a clause
 * cannot rise with the load (isotonic fit). The knee is the last point of the grid that then holds, as measured too.
 * @param points  by rising concurrency, at least one
 * @param gpus    of the pool
 * Source: algorithms 6.9.
 */
export function findings(points: readonly SweepPoint[], slo: Slo, gpus: number): SweepFindings {
  const first = points[0]
  if (first === undefined) throw new RangeError('no points')
  const objective = slo.percentile / 100
  const weights = points.map(point => point.requests)
  const fitted = promisedClauses(slo).map(clause =>
    falling(
      points.map(point => point.met_share[clause] ?? 0),
      weights,
    ),
  )
  const at = points.findLastIndex(
    (point, i) => point.holds && fitted.every(fit => (fit[i] ?? 0) >= objective),
  )
  const knee = points[at]
  if (knee === undefined) {
    const none = { budget_tok_s_per_gpu: null, steady: null, scale_out_at: null }
    return { knee: null, knee_interpolated: null, binding: bindingAt(first, slo), ...none }
  }
  const budget = round(knee.goodput_tok_s / gpus)
  const c = knee.concurrency
  return {
    knee: c,
    knee_interpolated: crossing(points, at, fitted, objective),
    binding: bindingAt(knee, slo),
    budget_tok_s_per_gpu: budget,
    steady: { low: Math.max(1, Math.round(c * STEADY.low)), high: Math.max(1, Math.round(c * STEADY.high)) },
    scale_out_at: round(budget * SCALE_OUT),
  }
}

/** How far concurrency is from what rate and time make of it, as a share (Little's law). */
export function littleError(point: SweepPoint): number {
  const inFlight = (point.requests_per_s * point.e2e_ms.mean) / 1000
  return Math.abs(point.concurrency - inFlight) / point.concurrency
}

/** Each clause at the promised percentile: its value, its bound, and the one over the other. */
export function clauseRatios(
  point: SweepPoint,
  { clauses }: Slo,
): readonly { readonly clause: Binding; readonly ms: number; readonly bound: Ms; readonly ratio: number }[] {
  const pairs: readonly (readonly [Binding, Spread, Ms])[] =
    clauses.kind === 'stream'
      ? [
          ['ttft', point.ttft_ms, clauses.ttftMs],
          ['tpot', point.tpot_ms, clauses.tpotMs],
        ]
      : [['deadline', point.e2e_ms, clauses.deadlineMs]]
  return pairs.map(([clause, { promised }, bound]) => {
    const ms = promised ?? 0
    return { clause, ms, bound, ratio: ms / bound }
  })
}

/** The clauses that must reach the percentile: both together, each for itself, or the deadline. */
export function promisedClauses({ clauses, mode }: Slo): readonly ClauseName[] {
  if (clauses.kind === 'deadline') return ['deadline']
  return mode === 'joint' ? ['joint'] : ['ttft', 'tpot']
}

type Met = Readonly<Partial<Record<ClauseName, boolean>>>

function clausesMet(answer: Answered, { clauses }: Slo): Met {
  const { complete, ttftMs, tpotMs, e2eMs, outputTokens } = answer
  if (clauses.kind === 'deadline') {
    const floor = (clauses.minTokensPerSecond * e2eMs) / 1000
    return { deadline: complete && e2eMs <= clauses.deadlineMs && outputTokens >= floor }
  }
  const ttft = complete && ttftMs !== undefined && ttftMs <= clauses.ttftMs
  // One token has no pace; a few may come bunched by one late event (algorithms: 1.2).
  const gaps = outputTokens - 1
  const jitter = outputTokens < TPOT_MIN_TOKENS && gaps > 0 ? TPOT_JITTER_MS / gaps : 0
  const tpot = complete && (tpotMs === undefined || tpotMs <= clauses.tpotMs + jitter)
  return { ttft, tpot, joint: ttft && tpot }
}

function goodClause(slo: Slo, met: Met): boolean {
  return (slo.clauses.kind === 'stream' ? met.joint : met.deadline) === true
}

function metShares(answers: readonly Answered[], slo: Slo): Partial<Record<ClauseName, number>> {
  const counts: Partial<Record<ClauseName, number>> = {}
  for (const answer of answers) {
    for (const [clause, met] of Object.entries(clausesMet(answer, slo)) as [ClauseName, boolean][])
      counts[clause] = (counts[clause] ?? 0) + (met ? 1 : 0)
  }
  for (const clause of Object.keys(counts) as ClauseName[])
    counts[clause] = (counts[clause] ?? 0) / answers.length
  return counts
}

type Shares = Readonly<Partial<Record<ClauseName, number>>>

function verdictOf(shares: Shares, requests: number, perSecond: number, slo: Slo) {
  const objective = slo.percentile / 100
  const promised = promisedClauses(slo).map(clause => shares[clause] ?? 0)
  const holds = promised.every(share => share >= objective)
  if (isSettled(shares, requests, slo)) return { holds, decided: true, decided_after_s: null }
  // All must hold, and one that fails is enough.
  const needed = promised
    .filter(share => share >= objective === holds)
    .map(share => Math.max(MIN_SAMPLES, settledAfter(share, objective) ?? Number.POSITIVE_INFINITY))
  const requestsNeeded = holds ? Math.max(...needed) : Math.min(...needed)
  return {
    holds,
    decided: false,
    decided_after_s: Number.isFinite(requestsNeeded) ? Math.ceil(requestsNeeded / perSecond) : null,
  }
}

function isSettled(shares: Shares, requests: number, slo: Slo, z?: number): boolean {
  if (requests < MIN_SAMPLES) return false
  const objective = slo.percentile / 100
  const intervals = promisedClauses(slo).map(clause => wilson((shares[clause] ?? 0) * requests, requests, z))
  return intervals.every(({ low }) => low >= objective) || intervals.some(({ high }) => high < objective)
}

function bindingAt(point: SweepPoint, slo: Slo): Binding {
  const ratios = clauseRatios(point, slo)
  return ratios.reduce((most, one) => (one.ratio > most.ratio ? one : most)).clause
}

function crossing(
  points: readonly SweepPoint[],
  at: number,
  fitted: readonly (readonly number[])[],
  objective: number,
): number | null {
  const [here, next] = [points[at], points[at + 1]]
  if (here === undefined || next === undefined) return null
  const crossings = fitted.flatMap(fit => {
    const [from, to] = [fit[at] ?? 0, fit[at + 1] ?? 0]
    return to < objective
      ? [here.concurrency + ((next.concurrency - here.concurrency) * (from - objective)) / (from - to)]
      : []
  })
  return crossings.length === 0 ? null : round(Math.min(...crossings))
}

/** The nearest list that never rises: neighbours that do are replaced by their mean (pool adjacent violators). */
function falling(values: readonly number[], weights: readonly number[]): number[] {
  const blocks: { mean: number; weight: number; length: number }[] = []
  for (const [i, value] of values.entries()) {
    let block = { mean: value, weight: weights[i] ?? 1, length: 1 }
    for (let last = blocks.at(-1); last !== undefined && last.mean < block.mean; last = blocks.at(-1)) {
      blocks.pop()
      const weight = last.weight + block.weight
      const mean = (last.mean * last.weight + block.mean * block.weight) / weight
      block = { mean, weight, length: last.length + block.length }
    }
    blocks.push(block)
  }
  return blocks.flatMap(block => Array<number>(block.length).fill(block.mean))
}

function spreadOf(values: readonly (number | undefined)[], percentile: number): Spread {
  const sorted = Float64Array.from(values.filter(value => value !== undefined)).sort()
  const rank = (percent: number): number | null => {
    // The margin is for 99.9 / 100 and its like in binary.
    const value = sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length - 1e-9) - 1)]
    return value === undefined ? null : round(value)
  }
  return { p50: rank(50), p90: rank(90), promised: rank(percentile) }
}

const round = (value: number): number => Math.round(value * 1000) / 1000

function sum<T>(items: readonly T[], of: (item: T) => number): number {
  return items.reduce((total, item) => total + of(item), 0)
}
