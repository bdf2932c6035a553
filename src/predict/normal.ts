/** The normal distribution, by table: an admission asks for it hundreds of times. */

/** Beyond so many standard deviations the answer is 0 or 1 to five digits. */
const REACH = 4.5
const PER_UNIT = 128
const POINTS = 2 * REACH * PER_UNIT + 1

const table = tableOf()

/** Integrates the density by Simpson's rule, from the middle outwards. */
function tableOf(): Float64Array {
  const cdf = new Float64Array(POINTS)
  const density = (z: number): number => Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI)
  const middle = (POINTS - 1) / 2
  const step = 1 / PER_UNIT
  cdf[middle] = 0.5
  for (let i = 0; i < middle; i++) {
    const z = i * step
    const area = (step / 6) * (density(z) + 4 * density(z + step / 2) + density(z + step))
    cdf[middle + i + 1] = (cdf[middle + i] as number) + area
    cdf[middle - i - 1] = 1 - (cdf[middle + i + 1] as number)
  }
  return cdf
}

/** Share of a standard normal variable that lies below `z`; off by less than 1e-5. */
export function normalCdf(z: number): number {
  if (z <= -REACH) return 0
  if (z >= REACH) return 1
  const at = (z + REACH) * PER_UNIT
  const low = at | 0
  const here = table[low] as number
  return here + (at - low) * ((table[low + 1] as number) - here)
}
