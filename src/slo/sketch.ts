/** Percentiles for display: counts in bins of equal ratio, within 1 % of the truth, that merge and subtract. */
import type { Ms } from '../time.js'

/** A bin's value is off by 1 % at most from every value in it. Source: DDSketch, VLDB 2019. */
const GAMMA = 1.01 / 0.99
const LOG_GAMMA = Math.log(GAMMA)
/** Half a millisecond to an hour, in ms; the same range does for counts of tokens. */
const LEAST = 0.5
const MOST = 3_600_000
const FIRST_BIN = rawBin(LEAST)
const LAST_BIN = rawBin(MOST)

function rawBin(value: number): number {
  return Math.ceil(Math.log(value) / LOG_GAMMA)
}

/** The bin of a value; what is outside 0.5 to 3,600,000 is in the first or last one. Not for NaN. */
export function binOf(value: number): number {
  return value <= LEAST ? FIRST_BIN : value >= MOST ? LAST_BIN : rawBin(value)
}

/** Bins are added where values fall. */
export class Sketch {
  #first = 0
  #counts = new Uint32Array(0)
  #count = 0

  get count(): number {
    return this.#count
  }

  /** @param bin  of `binOf` */
  add(bin: number): void {
    this.#reach(bin, bin)
    this.#counts[bin - this.#first]!++
    this.#count++
  }

  merge(other: Sketch): void {
    if (other.#count === 0) return
    this.#reach(other.#first, other.#first + other.#counts.length - 1)
    const shift = other.#first - this.#first
    for (let i = 0; i < other.#counts.length; i++) this.#counts[i + shift]! += other.#counts[i]!
    this.#count += other.#count
  }

  /** Takes out what was merged before; of anything else the counts make no sense afterwards. */
  subtract(other: Sketch): void {
    if (other.#count === 0) return
    const shift = other.#first - this.#first
    for (let i = 0; i < other.#counts.length; i++) {
      if (other.#counts[i]! > 0) this.#counts[i + shift]! -= other.#counts[i]!
    }
    this.#count -= other.#count
  }

  /** Keeps its room, for what comes next is much like what was. */
  clear(): void {
    this.#counts.fill(0)
    this.#count = 0
  }

  /**
   * The smallest value that a share of at least `share` is not above (nearest rank).
   * @param share  above 0, to 1
   * @returns within 1 %; undefined when there is nothing
   */
  quantile(share: number): number | undefined {
    if (this.#count === 0) return undefined
    const rank = Math.max(1, Math.ceil(share * this.#count))
    let seen = 0
    let at = -1
    while (seen < rank) seen += this.#counts[++at]!
    return (2 * GAMMA ** (this.#first + at)) / (GAMMA + 1)
  }

  /** The first bin with a count, then the counts up to the last one; nothing when there is none. */
  dump(): number[] {
    if (this.#count === 0) return []
    const from = this.#counts.findIndex(count => count > 0)
    const to = this.#counts.findLastIndex(count => count > 0)
    return [this.#first + from, ...this.#counts.subarray(from, to + 1)]
  }

  /** Adds what `dump` gave. @returns false, with nothing changed, for bins that there are not */
  load([first, ...counts]: readonly number[]): boolean {
    if (first === undefined) return true
    const last = first + counts.length - 1
    if (!Number.isInteger(first) || first < FIRST_BIN || last > LAST_BIN || counts.length === 0) return false
    if (!counts.every(count => Number.isInteger(count) && count >= 0 && count < 2 ** 32)) return false
    this.#reach(first, last)
    counts.forEach((count, i) => {
      this.#counts[first - this.#first + i]! += count
      this.#count += count
    })
    return true
  }

  #reach(from: number, to: number): void {
    const counts = this.#counts
    if (counts.length > 0 && from >= this.#first && to < this.#first + counts.length) return
    // A little more than needed, since neighbours follow.
    const first = Math.max(FIRST_BIN, (counts.length === 0 ? from : Math.min(from, this.#first)) - 8)
    const last = Math.min(LAST_BIN, Math.max(to, this.#first + counts.length - 1) + 8)
    const wide = new Uint32Array(last - first + 1)
    if (counts.length > 0) wide.set(counts, this.#first - first)
    this.#counts = wide
    this.#first = first
  }
}

const SLICES = 12

/** What came in the last `windowMs`: one sketch a slice, and their sum. Longer than its name by a twelfth at most. */
export class SketchWindow {
  readonly windowMs: Ms
  readonly #sliceMs: Ms
  /** Slice k is at `k mod (SLICES + 1)`; one of them is open. */
  readonly #slices = Array.from({ length: SLICES + 1 }, () => new Sketch())
  readonly #sum = new Sketch()
  #slice: number

  constructor(windowMs: Ms, at: Ms) {
    this.windowMs = windowMs
    this.#sliceMs = windowMs / SLICES
    this.#slice = Math.floor(at / this.#sliceMs)
  }

  add(bin: number, at: Ms): void {
    this.#advance(at)
    this.#at(this.#slice).add(bin)
    this.#sum.add(bin)
  }

  /** All of it; valid until the next call. */
  sum(at: Ms): Sketch {
    this.#advance(at)
    return this.#sum
  }

  /** Slices that hold something, with how many slices ago they were opened. */
  dump(at: Ms): (readonly [ago: number, ...bins: number[]])[] {
    this.#advance(at)
    return Array.from(
      { length: SLICES + 1 },
      (_, ago) => [ago, ...this.#at(this.#slice - ago).dump()] as const,
    ).filter(slice => slice.length > 1)
  }

  /** Takes over what `dump` gave at `at`, not later than now. @returns false for what it cannot have given */
  load(slices: readonly (readonly number[])[], at: Ms): boolean {
    const since = this.#slice - Math.floor(at / this.#sliceMs)
    return slices.every(([ago, ...bins]) => {
      if (ago === undefined || !Number.isInteger(ago) || ago < 0 || ago > SLICES) return false
      if (ago + since > SLICES) return true
      return this.#at(this.#slice - since - ago).load(bins) && this.#sum.load(bins)
    })
  }

  #advance(at: Ms): void {
    const open = Math.floor(at / this.#sliceMs)
    for (let slice = Math.max(this.#slice, open - SLICES - 1) + 1; slice <= open; slice++) {
      const old = this.#at(slice)
      this.#sum.subtract(old)
      old.clear()
    }
    this.#slice = Math.max(this.#slice, open)
  }

  #at(slice: number): Sketch {
    const length = SLICES + 1
    return this.#slices[((slice % length) + length) % length]!
  }
}
