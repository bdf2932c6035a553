/** Draws from the distributions that lengths and jitter follow. */
import type { Rng } from '../time.js'

/** A lognormal length in tokens, clipped. */
export interface LengthSpec {
  readonly median: number
  /** Standard deviation of the logarithm. */
  readonly sigma: number
  readonly min: number
  readonly max: number
}

/** A standard normal number. Source: Box and Muller, 1958; the second of the pair is not kept. */
export function normal(rng: Rng): number {
  // 1 - u is never 0, so that its logarithm is finite.
  return Math.sqrt(-2 * Math.log(1 - rng.next())) * Math.cos(2 * Math.PI * rng.next())
}

/** Whole tokens from `min` to `max`. */
export function drawLength(spec: LengthSpec, rng: Rng): number {
  const drawn = Math.round(spec.median * Math.exp(spec.sigma * normal(rng)))
  return Math.min(Math.max(drawn, spec.min), spec.max)
}
