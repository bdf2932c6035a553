/** How sure a share of so many requests is: Wilson's interval, and how many more would settle a question. */

/** Two-sided 95 % of a normal distribution. */
const Z95 = 1.959964

export interface Interval {
  readonly low: number
  readonly high: number
}

/**
 * Wilson's score interval of a share.
 * @param met    requests that met the clause, 0 to `total`
 * @param total  above 0
 * @param z      quantile of the normal distribution; default 95 % on both sides
 * Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
 */
export function wilson(met: number, total: number, z = Z95): Interval {
  const share = met / total
  const square = (z * z) / total
  const centre = share + square / 2
  const half = z * Math.sqrt((share * (1 - share)) / total + square / (4 * total))
  return {
    low: Math.max(0, (centre - half) / (1 + square)),
    high: Math.min(1, (centre + half) / (1 + square)),
  }
}

/**
 * Requests after which the interval would be clear of `objective` if the share stayed as it is.
 * @returns undefined where the share is the objective: no number would do
 */
export function settledAfter(share: number, objective: number, z = Z95): number | undefined {
  const gap = share - objective
  if (gap === 0) return undefined
  // Wilson's interval ends at the objective when z² objective (1 - objective) / n = gap².
  return Math.ceil((z * z * objective * (1 - objective)) / (gap * gap))
}
