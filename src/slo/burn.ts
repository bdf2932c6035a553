/** Burn rate and error budget of an SLO, from what was counted. */
import type { Ms } from '../time.js'
import { allowedMisses } from './alerts.js'

/**
 * How fast the error budget is spent: 1 spends all of it in exactly the SLO's period.
 * @param missed      of `total` requests
 * @param total       above 0
 * @param percentile  50 to 99.9
 * @returns 0 to 1 / (1 - percentile): at p90 no more than 10, whatever happens
 */
export function burnRate(missed: number, total: number, percentile: number): number {
  return missed / total / allowedMisses(percentile)
}

/** Share of the budget that is left, from the burn rate over the whole period; below 0 when more was spent. */
export function budgetLeft(periodBurn: number): number {
  return 1 - periodBurn
}

/**
 * When the budget is gone if it is spent on as now.
 * @param left  of `budgetLeft`
 * @param burn  the burn rate now
 * @returns ms; 0 when it is gone, Infinity when nothing is spent
 */
export function exhaustedInMs(left: number, periodMs: Ms, burn: number): Ms {
  if (left <= 0) return 0
  return burn === 0 ? Infinity : (left * periodMs) / burn
}
