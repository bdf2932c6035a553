/** What a class of traffic was promised: clauses at a percentile, beside the workload they hold for. */
import type { ClassId, PoolId } from '../request.js'
import type { Ms } from '../time.js'

/** Two bounds for people who read a stream, or one deadline for programs that want the whole answer. */
export type Clauses =
  | { readonly kind: 'stream'; readonly ttftMs: Ms; readonly tpotMs: Ms }
  | { readonly kind: 'deadline'; readonly deadlineMs: Ms; readonly minTokensPerSecond: number }

export interface Slo {
  /** Percentile of requests that must meet it, 50 to 99.9. */
  readonly percentile: number
  /** `joint`: the share that meets all clauses at once; `clause`: each clause for itself. */
  readonly mode: 'joint' | 'clause'
  /** Period of the error budget. */
  readonly windowMs: Ms
  readonly clauses: Clauses
}

/** `target` is what is promised; `guard` is looser, at a higher percentile, and pages. Both are of one kind. */
export type SloName = 'target' | 'guard'

export interface Percentiles {
  readonly p50: number
  readonly p90: number
}

/** The traffic an SLO was stated for. Lengths in tokens, `cacheHit` a share from 0 to 1. */
export interface Workload {
  readonly model: string
  readonly precision: string | undefined
  readonly inputTokens: Percentiles
  readonly outputTokens: Percentiles
  readonly cacheHit: number
}

/** Below this many output tokens TPOT is judged with `TPOT_JITTER_MS` of allowance (algorithms: 1.2). */
export const TPOT_MIN_TOKENS = 8
export const TPOT_JITTER_MS: Ms = 50

/** Traffic under one SLO and one priority. */
export interface TrafficClass {
  readonly id: ClassId
  readonly name: string
  readonly target: Slo
  readonly guard: Slo
  readonly workload: Workload
  readonly priority: number
  /** Home first, then where it may spill. */
  readonly pools: readonly PoolId[]
  /** Only deadline classes wait in Weir, for at most `waitMs`, at most `max` of them. */
  readonly queue: { readonly max: number; readonly waitMs: Ms } | undefined
  /** How evenly its prompt sizes are served, or it beside other classes, 0 to 1; undefined: as the config says for all. */
  readonly fairness?: number | undefined
  /** Clamps for a request's own deadline. */
  readonly ownBounds: { readonly minMs: Ms; readonly maxMs: Ms } | undefined
  /** No longer in the config: only requests from before are still in it. */
  readonly retired?: true
}
