/** What an engine says of itself, as far as a diagnosis reads it. */
import type { Ms } from '../time.js'

/** One look at an engine's own metrics. undefined: it does not tell, or what it tells makes no sense; never 0 for that. */
export interface EngineGauges {
  /** Requests in the batch, and those that wait for it, over all ranks. */
  readonly running: number | undefined
  readonly waiting: number | undefined
  /** KV memory in use, 0 to 1, of the fullest rank. */
  readonly kvUsage: number | undefined
  /** Tokens that the KV memory of a rank holds, of the smallest one; it is set when the engine begins. */
  readonly kvTokens?: number | undefined
  /** Since the engine began. */
  readonly preemptionsTotal: number | undefined
  /** Prompt tokens found in the prefix cache, and looked up there, since the engine began. */
  readonly prefixHitsTotal: number | undefined
  readonly prefixQueriesTotal: number | undefined
  /** Share of hits as the engine itself works it out, over a time it does not tell; 0 to 1. */
  readonly prefixHitShare: number | undefined
}

/** What counters did between two looks. */
export interface EngineRates {
  readonly spanMs: Ms
  readonly preemptionsPerMinute: number | undefined
  /** Share of the prompt tokens looked up, else as the engine works it out. */
  readonly prefixHitShare: number | undefined
}

/**
 * @param spanMs  between the two looks, above 0
 * @returns a rate is undefined where a counter is missing on either side, or fell: the engine began anew
 */
export function engineRates(before: EngineGauges, after: EngineGauges, spanMs: Ms): EngineRates {
  const preemptions = risen(before.preemptionsTotal, after.preemptionsTotal)
  const hits = risen(before.prefixHitsTotal, after.prefixHitsTotal)
  const queries = risen(before.prefixQueriesTotal, after.prefixQueriesTotal)
  const counted = hits === undefined || !queries ? undefined : Math.min(1, hits / queries)
  return {
    spanMs,
    preemptionsPerMinute: preemptions === undefined ? undefined : (preemptions * 60_000) / spanMs,
    prefixHitShare: counted ?? after.prefixHitShare,
  }
}

function risen(before: number | undefined, after: number | undefined): number | undefined {
  return before === undefined || after === undefined || after < before ? undefined : after - before
}
