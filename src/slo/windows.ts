/** Counts over sliding windows, many series at once: counters that only rise, and where they stood when each slice began. */
import type { Ms } from '../time.js'

const MINUTE_MS: Ms = 60_000
const HOUR_MS: Ms = 60 * MINUTE_MS
const DAY_MS: Ms = 24 * HOUR_MS

/** Slices of one length, kept long enough for windows of up to `spanMs`. */
export interface Level {
  readonly sliceMs: Ms
  readonly spanMs: Ms
}

/**
 * The finest first; each slice is a multiple of the one before. A window begins with a whole slice of the first level
 * that spans it, so it is longer than its name by a slice at most: 1 s of 10 s, 1 m of 30 m, 3 h of 7 d. 90 d is the
 * longest period that an SLO may have.
 */
export const LEVELS: readonly Level[] = [
  { sliceMs: 1000, spanMs: MINUTE_MS },
  { sliceMs: 5000, spanMs: 5 * MINUTE_MS },
  { sliceMs: MINUTE_MS, spanMs: 2 * HOUR_MS },
  { sliceMs: 10 * MINUTE_MS, spanMs: DAY_MS },
  { sliceMs: HOUR_MS, spanMs: 3 * DAY_MS },
  { sliceMs: 3 * HOUR_MS, spanMs: 90 * DAY_MS },
]

/** What every SLO is looked at over, besides its own period. */
export const WINDOWS: readonly Ms[] = [
  10_000,
  MINUTE_MS,
  5 * MINUTE_MS,
  30 * MINUTE_MS,
  HOUR_MS,
  2 * HOUR_MS,
  6 * HOUR_MS,
  DAY_MS,
  3 * DAY_MS,
]

/** The windows of an SLO, rising. @param periodMs  of its error budget */
export function windowsOf(periodMs: Ms): readonly Ms[] {
  return [...new Set([...WINDOWS, periodMs])].sort((a, b) => a - b)
}

/** A window as labels and pages write it: `10s`, `60s`, `5m`, `2h`, `7d`. */
export function windowName(windowMs: Ms): string {
  const units = [
    ['d', DAY_MS],
    ['h', HOUR_MS],
    ['m', MINUTE_MS],
  ] as const
  const [unit, ms] = units.find(([, ms]) => windowMs > MINUTE_MS && windowMs % ms === 0) ?? ['s', 1000]
  return `${windowMs / ms}${unit}`
}

/** By series, by level, by slice. */
type SlicesOfSeries = readonly (readonly (readonly number[])[])[]

interface Ring extends Level {
  readonly rows: number
  /** Number of the slice that is open now, counted from time 0. */
  slice: number
  /** Row `k mod rows`: all counters when slice k began. */
  begun: Float64Array
}

/** Adding is one addition, and copying all counters once a second; nothing is allocated. */
export class Windows {
  #series: number
  #counts: Float64Array
  readonly #rings: readonly Ring[]
  #at: Ms
  #nextSliceAt: Ms

  /** @param at  now, 0 or more, on a clock of its own that never goes back */
  constructor(series: number, levels: readonly Level[], at: Ms) {
    this.#series = series
    this.#counts = new Float64Array(series)
    this.#rings = levels.map(({ sliceMs, spanMs }) => {
      // One more for the slice that a window begins inside of, one for the open one.
      const rows = Math.ceil(spanMs / sliceMs) + 2
      const slice = Math.floor(at / sliceMs)
      return { sliceMs, spanMs, rows, slice, begun: new Float64Array(rows * series) }
    })
    this.#at = at
    this.#nextSliceAt = this.#firstEnd()
  }

  get series(): number {
    return this.#series
  }

  /** The time that was last advanced to. */
  get at(): Ms {
    return this.#at
  }

  /** It is `at` now; an earlier time than the last changes nothing. */
  advance(at: Ms): void {
    if (at <= this.#at) return
    this.#at = at
    if (at < this.#nextSliceAt) return
    for (const ring of this.#rings) {
      const open = Math.floor(at / ring.sliceMs)
      for (let slice = Math.max(ring.slice, open - ring.rows) + 1; slice <= open; slice++) {
        ring.begun.set(this.#counts, (slice % ring.rows) * this.#series)
      }
      ring.slice = open
    }
    this.#nextSliceAt = this.#firstEnd()
  }

  /** Counts `by` at the time that was last advanced to. */
  add(series: number, by = 1): void {
    this.#counts[series]! += by
  }

  /** @throws RangeError for a window that no level spans */
  sum(series: number, windowMs: Ms): number {
    const ring = this.#ringOf(windowMs)
    return this.#counts[series]! - this.#begun(ring, this.#firstSlice(ring, windowMs), series)
  }

  /** How long the window really is now: up to a slice more than `windowMs`. */
  spanMs(windowMs: Ms): Ms {
    const ring = this.#ringOf(windowMs)
    return this.#at - this.#firstSlice(ring, windowMs) * ring.sliceMs
  }

  /** There are so many series from now on; those that are new have counted nothing. */
  grow(series: number): void {
    if (series <= this.#series) return
    const before = this.#series
    this.#counts = widened(this.#counts, 1, before, series)
    for (const ring of this.#rings) ring.begun = widened(ring.begun, ring.rows, before, series)
    this.#series = series
  }

  /** Forgets all that was counted. */
  clear(series: number): void {
    this.#counts[series] = 0
    for (const ring of this.#rings) {
      for (let row = 0; row < ring.rows; row++) ring.begun[row * this.#series + series] = 0
    }
  }

  /** What each slice counted, by level: the oldest first, without leading zeros, the open one last. */
  slices(series: number): number[][] {
    return this.#rings.map(ring => {
      const counts: number[] = []
      if (this.#counts[series] === 0) return counts
      let from = this.#begun(ring, ring.slice - ring.rows + 1, series)
      for (let slice = ring.slice - ring.rows + 2; slice <= ring.slice + 1; slice++) {
        const to = slice > ring.slice ? this.#counts[series]! : this.#begun(ring, slice, series)
        if (counts.length > 0 || to > from) counts.push(to - from)
        from = to
      }
      return counts
    })
  }

  /**
   * Takes over what `slices` gave at `at`, which is not after the time that was last advanced to.
   * @returns false, with nothing changed, where it cannot have come from these levels
   */
  fill(series: number, slices: readonly (readonly number[])[], at: Ms): boolean {
    if (slices.length !== this.#rings.length) return false
    if (slices.some((counts, level) => counts.length > this.#rings[level]!.rows)) return false
    if (slices.some(counts => counts.some(count => !(count >= 0 && count <= Number.MAX_SAFE_INTEGER))))
      return false
    const total = Math.max(...slices.map(counts => counts.reduce((sum, count) => sum + count, 0)))
    this.#counts[series] = total
    this.#rings.forEach((ring, level) => {
      const counts = slices[level] ?? []
      const since = ring.slice - Math.floor(at / ring.sliceMs)
      let begun = total
      for (let back = 0; back < ring.rows; back++) {
        begun -= counts[counts.length - 1 - back + since] ?? 0
        ring.begun[this.#row(ring, ring.slice - back) + series] = begun
      }
    })
    return true
  }

  /** `slices` of several series that follow each other. */
  slicesFrom(series: number, length: number): number[][][] {
    return Array.from({ length }, (_, i) => this.slices(series + i))
  }

  /** `fill` of several series. @returns false where one does not fit, or there are not as many */
  fillFrom(series: number, length: number, counts: SlicesOfSeries, at: Ms): boolean {
    return counts.length === length && counts.every((slices, i) => this.fill(series + i, slices, at))
  }

  #firstEnd(): Ms {
    const [finest] = this.#rings
    return finest === undefined ? Infinity : (finest.slice + 1) * finest.sliceMs
  }

  #ringOf(windowMs: Ms): Ring {
    const ring = this.#rings.find(({ spanMs }) => spanMs >= windowMs)
    if (ring === undefined) throw new RangeError(`no window of ${windowMs} ms is kept`)
    return ring
  }

  #firstSlice({ sliceMs }: Ring, windowMs: Ms): number {
    return Math.floor((this.#at - windowMs) / sliceMs)
  }

  #begun(ring: Ring, slice: number, series: number): number {
    return ring.begun[this.#row(ring, slice) + series]!
  }

  /** Slices before time 0 have rows too: there the counters stood at 0. */
  #row({ rows }: Ring, slice: number): number {
    return (((slice % rows) + rows) % rows) * this.#series
  }
}

function widened(table: Float64Array, rows: number, from: number, to: number): Float64Array {
  const wide = new Float64Array(rows * to)
  for (let row = 0; row < rows; row++) wide.set(table.subarray(row * from, (row + 1) * from), row * to)
  return wide
}
