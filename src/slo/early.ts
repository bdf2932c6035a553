/** What is known of a stream before its end: overload must show while nothing completes. */
import type { Ms } from '../time.js'
import type { Progress } from './latency.js'
import { TPOT_JITTER_MS, TPOT_MIN_TOKENS } from './slo.js'

/** From so many tokens on the pace so far foretells the pace at the end. */
const FORETELLING_TOKENS = 32
const FORETELLING_RATIO = 1.5

/** A stream that is under way is late for its TTFT, or was. @param bodyAt  where TTFT starts */
export function lateStart(progress: Progress | undefined, bodyAt: Ms, ttftMs: Ms, now: Ms): boolean {
  return (progress?.firstOutput ?? now) > bodyAt + ttftMs
}

/**
 * A stream that is under way is too slow for its TPOT: for certain, since not even all the tokens it may have would
 * bring the mean down; or by how it goes, counting the gap that is open now. The second can still turn out well.
 * @param tokensPerMark  of the pool that answers, for streams that tell usage only at their end
 * @param maxTokens      that the request allows
 * Source: algorithms 1.2, early badness.
 */
export function slowPace(
  progress: Progress,
  tokensPerMark: number,
  maxTokens: number | undefined,
  tpotMs: Ms,
  now: Ms,
): boolean {
  const { firstOutput, marks, longestChoiceMarks, throttled, usage } = progress
  if (firstOutput === undefined || throttled) return false
  const span = now - firstOutput
  if (maxTokens !== undefined && maxTokens > 1) {
    const jitter = maxTokens < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0
    if (span > (maxTokens - 1) * tpotMs + jitter) return true
  }
  const told = usage === undefined ? 0 : (usage.completionTokens * longestChoiceMarks) / Math.max(1, marks)
  const tokens = Math.max(told, longestChoiceMarks * tokensPerMark)
  return tokens >= FORETELLING_TOKENS && span > tokens * tpotMs * FORETELLING_RATIO
}
