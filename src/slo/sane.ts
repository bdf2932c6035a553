/** Counts as upstreams tell them: anything, so they are looked at before they are added up. */

/** @returns the count, where it is a number that can be added up exactly for long; else undefined */
export function saneCount(told: number | undefined): number | undefined {
  return told !== undefined && told >= 0 && told <= 1e9 ? Math.round(told) : undefined
}
