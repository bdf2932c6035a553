/** A concurrency sweep of a simulated engine in virtual time: presets by name, and one point after the other. */
import type { Percentiles, Slo } from '../slo/slo.js'
import { type Answered, type SweepPoint, sweepPoint } from '../slo/sweep.js'
import type { LengthSpec } from './draw.js'
import type { EngineProfile } from './profiles.js'
import { type LengthMix, runClosedLoop, type Users, workedExampleMix } from './workload.js'

/** A workload and a promise that an engine brings along. */
export interface SweepPreset {
  readonly model: string
  readonly precision: string
  readonly mix: LengthMix
  readonly slo: Slo
}

const DAY_MS = 86_400_000

/** The worked example of inference-slos: p90 of each clause, as its scorecard has it. */
const workedExample: SweepPreset = {
  model: 'llama-3-8b',
  precision: 'bf16',
  mix: workedExampleMix,
  slo: {
    percentile: 90,
    mode: 'clause',
    windowMs: 7 * DAY_MS,
    clauses: { kind: 'stream', ttftMs: 500, tpotMs: 40 },
  },
}

const presets: ReadonlyMap<string, SweepPreset> = new Map([
  ['worked-example', workedExample],
  ['worked-example-h100-8b', workedExample],
])

/** undefined: an engine without a workload of its own. */
export function presetOf(engine: string): SweepPreset | undefined {
  return presets.get(engine)
}

/** Of a standard normal distribution: its 90th percentile, and the 99.9th, where fitted lengths are clipped. */
const Z90 = 1.2815516
const Z999 = 3.0902323

/**
 * The lognormal through two percentiles, clipped at `least` and at its own 99.9th percentile: the tail beyond is the
 * fit's and not the traffic's.
 */
export function lognormalThrough({ p50, p90 }: Percentiles, least: number): LengthSpec {
  const sigma = Math.log(p90 / p50) / Z90
  return { median: p50, sigma, min: least, max: Math.max(least, Math.round(p50 * Math.exp(sigma * Z999))) }
}

/** Percentiles of what a spec draws. */
export function percentilesOf({ median, sigma, min, max }: LengthSpec): Percentiles {
  const at = (z: number): number => Math.min(Math.max(Math.round(median * Math.exp(sigma * z)), min), max)
  return { p50: at(0), p90: at(Z90) }
}

/** Requests of one seed, and those before them that are not measured. */
const RUN = { requests: 4000, warmup: 300 } as const
/** Where the interval still straddles the percentile, a point goes on to this many times what was asked for. */
const MOST_TIMES = 5

export interface VirtualPoint {
  readonly point: SweepPoint
  readonly seeds: number
}

/**
 * Measures one point: seed after seed, each an engine of its own that is warmed up first, until there are `requests`
 * and the verdict is decided, or five times as many.
 * @param users     of a seed
 * @param seed      the first; the next is one more
 * @param requests  to measure, at least
 */
export function virtualPoint(
  profile: EngineProfile,
  users: (seed: number) => Users,
  concurrency: number,
  slo: Slo,
  { seed, requests }: { readonly seed: number; readonly requests: number },
): VirtualPoint {
  const answers: Answered[] = []
  let spanMs = 0
  for (let seeds = 1; ; seeds++) {
    const run = runClosedLoop({
      profile,
      users: users(seed + seeds - 1),
      concurrency,
      requests: Math.min(RUN.requests, requests),
      // Before that many ends the users still go in step.
      warmup: Math.max(RUN.warmup, 2 * concurrency),
    })
    for (const outcome of run.outcomes) answers.push({ complete: true, ...outcome })
    spanMs += run.spanMs
    if (answers.length < requests) continue
    const point = sweepPoint(concurrency, answers, spanMs, slo)
    if (point.decided || answers.length >= MOST_TIMES * requests) return { point, seeds }
  }
}
