/** Edges of the histograms: a ladder of preferred numbers, with every promised bound on it. */
import type { Ladder } from './names.js'

/**
 * Renard's preferred numbers, rounded: no step is wider than 1.28 (`10`) or 1.6 (`5`).
 * Measured on lognormal samples over the ranges below, read back as Prometheus does (linear inside a bucket):
 * with 10 steps p50, p95 and p99 are within 15 % of the truth once the values spread by a tenth (sigma 0.1);
 * with 5 that takes a sigma of 0.6, with 1-2-5 more than 1.
 * Source: ISO 3, series R5 and R10.
 */
const STEPS: Readonly<Record<Ladder['perDecade'], readonly number[]>> = {
  5: [1, 1.6, 2.5, 4, 6.3],
  10: [1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8],
}

/**
 * The upper edges of a histogram, rising and distinct.
 * @param ladder  its range and steps
 * @param bounds  promised bounds, in seconds; each becomes an edge, also outside the ladder's range
 * @returns seconds, as short decimals
 */
export function edges(ladder: Ladder, bounds: readonly number[]): number[] {
  const found = new Set([ladder.to, ...bounds.map(short)])
  for (let decade = Math.floor(Math.log10(ladder.from)); 10 ** decade < ladder.to; decade++) {
    for (const step of STEPS[ladder.perDecade]) {
      const edge = short(step * 10 ** decade)
      if (edge >= ladder.from && edge < ladder.to) found.add(edge)
    }
  }
  return [...found].sort((a, b) => a - b)
}

/** Without the last digits of binary arithmetic: 0.00315, not 0.0031500000000000005. */
function short(seconds: number): number {
  return Number(seconds.toPrecision(9))
}
