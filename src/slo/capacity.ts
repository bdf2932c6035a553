/** What one replica can serve within its promise, as work a second, and where that figure comes from. */
import type { Ms } from '../time.js'

export type CapacitySource = 'sweep' | 'learned' | 'model'

export interface Capacity {
  /** GPU seconds of work a second, on one replica (g*). */
  readonly workPerSec: number
  readonly source: CapacitySource
  /** Half width of what it may be off by, as a share of it. */
  readonly uncertainty: number
}

/** Ratio of the edges of a bin of load. Source: algorithms 6.9, bins of 5 %. */
const BASE = Math.log(1.05)
/** Half-life of what was seen, and weight of the prior in each bin, in requests. Source: algorithms 6.9. */
const HALF_LIFE_MS: Ms = 30 * 60_000
const PRIOR_WEIGHT = 50
/** Below this many requests a bin's attainment says too little to stand against the prior. */
const ENOUGH = 200
/** A sweep is a sample, too: 20,000 requests place a knee of 12 to within 1. Source: issue 4, item 7. */
const SWEEP_UNCERTAINTY = 0.08

/** What was learned, in figures. */
export interface KnownCapacity {
  /** Of each bin of load: its index, the weight and the good of it, and its age in ms. */
  readonly bins: readonly (readonly number[])[]
  /** The last knees by the model, the oldest first. */
  readonly knees: readonly number[]
}

interface Bin {
  readonly index: number
  weight: number
  good: number
  at: Ms
}

/** Attainment by load, as traffic shows it: where it really broke. */
export class LearnedCapacity {
  readonly #bins = new Map<number, Bin>()

  /**
   * What came of one stretch of some 10 s.
   * @param workPerSec  offered on one ready replica; not to be told while a replica is cold
   * @param requests    judged
   * @param good        of them
   */
  add(workPerSec: number, requests: number, good: number, now: Ms): void {
    if (!(workPerSec > 0) || requests === 0) return
    const index = Math.round(Math.log(workPerSec) / BASE)
    const bin = this.#bins.get(index) ?? { index, weight: 0, good: 0, at: now }
    const share = 0.5 ** (Math.max(0, now - bin.at) / HALF_LIFE_MS)
    bin.weight = bin.weight * share + requests
    bin.good = bin.good * share + good
    bin.at = now
    this.#bins.set(index, bin)
  }

  known(now: Ms): KnownCapacity['bins'] {
    return [...this.#bins.values()].map(({ index, weight, good, at }) => [
      index,
      Number(weight.toPrecision(6)),
      Number(good.toPrecision(6)),
      Math.round(now - at),
    ])
  }

  /** Goes on from what was known once. @param gapMs  since then */
  restore(bins: KnownCapacity['bins'], gapMs: Ms, now: Ms): void {
    for (const [index = 0, weight = 0, good = 0, ageMs = 0] of bins)
      this.#bins.set(index, { index, weight, good, at: now - ageMs - gapMs })
  }

  /**
   * Highest load at which attainment, falling with load, still keeps the promise.
   * @param promised  share, 0 to 1
   * @param prior     what is believed without this traffic: it holds up to there, and not beyond
   * @returns the prior where traffic never came near its edge
   */
  capacity(promised: number, prior: Capacity, now: Ms): Capacity {
    const edge = Math.round(Math.log(prior.workPerSec) / BASE)
    const bins = [...this.#bins.values()]
      .map(bin => ({ ...bin, share: 0.5 ** (Math.max(0, now - bin.at) / HALF_LIFE_MS) }))
      .map(bin => ({ index: bin.index, weight: bin.weight * bin.share, good: bin.good * bin.share }))
      .sort((a, b) => a.index - b.index)
    const blended = bins.map(bin => {
      // What the prior says is stated as plainly as it can be: a whole margin to either side of the promise.
      const expected = bin.index <= edge ? 1 : 2 * promised - 1
      return { ...bin, weight: bin.weight + PRIOR_WEIGHT, good: bin.good + PRIOR_WEIGHT * expected }
    })
    const falling = nonIncreasing(blended)
    let keeps: number | undefined
    let breaks: number | undefined
    falling.forEach((attained, i) => {
      const bin = bins[i]
      if (bin === undefined || bin.weight < ENOUGH) return
      if (attained >= promised) keeps = bin.index
      else breaks ??= bin.index
    })
    if (breaks !== undefined && breaks <= edge) return learned(keeps ?? breaks - 1, breaks)
    if (keeps !== undefined && keeps > edge) return learned(keeps, breaks ?? keeps + 2)
    return prior
  }
}

/** Between the last bin that keeps the promise and the first that breaks it. */
function learned(keeps: number, breaks: number): Capacity {
  const middle = (keeps + Math.max(breaks, keeps + 1)) / 2
  const half = (Math.max(breaks, keeps + 1) - keeps) / 2
  return {
    workPerSec: Math.exp(middle * BASE),
    source: 'learned',
    uncertainty: Math.exp(half * BASE) - 1 + BASE / 2,
  }
}

/** Least-squares fit that never rises (pool adjacent violators): attainment at each bin. */
function nonIncreasing(bins: readonly { weight: number; good: number }[]): number[] {
  const blocks: { weight: number; good: number; bins: number }[] = []
  for (const { weight, good } of bins) {
    let block = { weight, good, bins: 1 }
    for (let last = blocks.at(-1); last !== undefined; last = blocks.at(-1)) {
      if (last.good / last.weight >= block.good / block.weight) break
      blocks.pop()
      block = {
        weight: last.weight + block.weight,
        good: last.good + block.good,
        bins: last.bins + block.bins,
      }
    }
    blocks.push(block)
  }
  return blocks.flatMap(block => Array<number>(block.bins).fill(block.good / block.weight))
}

/** A sweep's knee: its rate there, times the work of its requests at the cost that holds now. */
export function sweptCapacity(requestsPerSec: number, workPerRequest: number): Capacity {
  return { workPerSec: requestsPerSec * workPerRequest, source: 'sweep', uncertainty: SWEEP_UNCERTAINTY }
}

/** Knees kept: with one every 30 s, five minutes of them. */
const KNEES = 10

/** Capacity by the model: the middle of its last knees, for each is a sample of the traffic's mix. */
export class ModelCapacity {
  readonly #knees: number[] = []

  get known(): KnownCapacity['knees'] {
    return this.#knees
  }

  add(workPerSec: number): void {
    if (!(workPerSec > 0)) return
    this.#knees.push(workPerSec)
    if (this.#knees.length > KNEES) this.#knees.shift()
  }

  /**
   * @param stepError  mean relative error of the model's step times: an error in common moves the knee as much
   * @param requests   in the mix; an attainment near 0.9 of n requests is known to 0.3 / sqrt(n), and near a knee load
   *                   moves it by about a tenth of a point for each percent (worked example: 0.25 points from 12 to 14)
   */
  capacity(stepError: number, requests: number): Capacity | undefined {
    const sorted = [...this.#knees].sort((a, b) => a - b)
    const middle = sorted[Math.floor(sorted.length / 2)]
    if (middle === undefined) return undefined
    const sampling = 0.3 / Math.sqrt(Math.max(1, requests)) / 0.1
    const spread = ((sorted.at(-1) ?? middle) - (sorted[0] ?? middle)) / 2 / middle
    return { workPerSec: middle, source: 'model', uncertainty: Math.hypot(stepError, sampling, spread) }
  }
}
