/** The burn-rate alerts of an SLO: over which windows, at how many misses, and whether each can fire at all. */
import type { Ms } from '../time.js'

const MINUTE_MS: Ms = 60_000
const HOUR_MS: Ms = 60 * MINUTE_MS

/** Two windows that must both burn: the long one says that it matters, the short one that it still goes on. */
export interface WindowPair {
  readonly longMs: Ms
  readonly shortMs: Ms
  /** Share of the whole budget that burns away within the long window when the alert fires. */
  readonly budgetShare: number
  readonly severity: 'page' | 'ticket'
}

/** The quickest first. Source: Google, "The Site Reliability Workbook", chapter Alerting on SLOs. */
export const WINDOW_PAIRS = [
  { longMs: HOUR_MS, shortMs: 5 * MINUTE_MS, budgetShare: 0.02, severity: 'page' },
  { longMs: 6 * HOUR_MS, shortMs: 30 * MINUTE_MS, budgetShare: 0.05, severity: 'page' },
  { longMs: 24 * HOUR_MS, shortMs: 2 * HOUR_MS, budgetShare: 0.1, severity: 'ticket' },
  { longMs: 72 * HOUR_MS, shortMs: 6 * HOUR_MS, budgetShare: 0.1, severity: 'ticket' },
] as const satisfies readonly WindowPair[]

/** Fewer decided requests than this in the short window are no evidence. */
export const MIN_EVENTS = 50

/**
 * An alert that needs a larger share of misses than this stays silent: 1 is all there is, and some requests are met
 * in the worst of hours (algorithms: section 4).
 */
export const MOST_MISSES = 0.8

export interface BurnAlert extends WindowPair {
  /** Burn rate to exceed: 1 spends the budget in exactly the SLO's period. */
  readonly factor: number
  /** The same as a share of requests that miss, 0 to 1 where it can happen. */
  readonly missShare: number
  /**
   * `never`: more misses than `MOST_MISSES` would be needed. `kept`: it would fire on an SLO that is kept, at a burn
   * below 1.
   */
  readonly fires: 'yes' | 'never' | 'kept'
}

/** Share of requests that an SLO at this percentile allows to miss. */
export function allowedMisses(percentile: number): number {
  return exact((100 - percentile) / 100)
}

/**
 * The alert over one pair of windows, for an SLO with this period.
 * @param percentile  50 to 99.9
 * @param periodMs    period of the error budget
 */
export function burnAlert(pair: WindowPair, percentile: number, periodMs: Ms): BurnAlert {
  const factor = exact((pair.budgetShare * periodMs) / pair.longMs)
  const missShare = exact(factor * allowedMisses(percentile))
  const fires = missShare > MOST_MISSES ? 'never' : factor < 1 ? 'kept' : 'yes'
  return { ...pair, factor, missShare, fires }
}

/** Without what binary adds to 0.1 and its like. */
function exact(value: number): number {
  return Number(value.toPrecision(12))
}
