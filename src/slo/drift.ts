/** How far live traffic is from the workload that its SLO was stated for. */
import type { Workload } from './slo.js'

export type Dimension = 'input_tokens' | 'output_tokens' | 'cache_hit' | 'model'

/** Above this in any dimension the verdict is off-workload: another promise would be needed. */
export const OFF_WORKLOAD = 1

/** A difference of shares that counts as much as lengths that are twice or half of what was declared. */
const SHARE_STEP = 0.25

/** What traffic is like, as far as it is known. */
export interface LiveWorkload {
  /** p90, in tokens. */
  readonly inputTokens: number | undefined
  readonly outputTokens: number | undefined
  /** Share of the input tokens, 0 to 1. */
  readonly cacheHit: number | undefined
  /** Share of the requests that are for the declared model. */
  readonly model: number | undefined
}

/**
 * Distance from the declared workload, by dimension: 0 is as declared, 1 is a p90 of twice or half the length, or a
 * share that is off by a quarter.
 * @returns undefined where the live figure is
 * Source: algorithms 1.3.
 */
export function driftOf(live: LiveWorkload, declared: Workload): Record<Dimension, number | undefined> {
  return {
    input_tokens: lengths(live.inputTokens, declared.inputTokens.p90),
    output_tokens: lengths(live.outputTokens, declared.outputTokens.p90),
    cache_hit: shares(live.cacheHit, declared.cacheHit),
    model: shares(live.model, 1),
  }
}

function lengths(live: number | undefined, declared: number): number | undefined {
  return live === undefined ? undefined : Math.abs(Math.log2(live / declared))
}

function shares(live: number | undefined, declared: number): number | undefined {
  return live === undefined ? undefined : Math.abs(live - declared) / SHARE_STEP
}
