/** How long after a burst newcomers are served as well as before it. */
import type { Ms } from '../time.js'
import type { Job } from './job.js'

const WINDOW_MS: Ms = 2_000
/** Of the share of good requests before the burst: what counts as well served. Source: algorithms 7.7, M7. */
const AS_GOOD = 0.9
/** One such window may be luck. */
const IN_A_ROW = 3

interface Count {
  offered: number
  good: number
}

export class Recovery {
  readonly #from: Ms
  readonly #end: Ms
  readonly #before: Count = { offered: 0, good: 0 }
  /** By time of arrival. */
  readonly #windows: Count[]

  /** @param from,end  of the burst; what arrives between the two says nothing. @param until  end of what is measured */
  constructor(from: Ms, end: Ms, until: Ms) {
    this.#from = from
    this.#end = end
    const windows = Math.max(0, Math.floor((until - end) / WINDOW_MS))
    this.#windows = Array.from({ length: windows }, () => ({ offered: 0, good: 0 }))
  }

  ended({ arrival: { at }, offered, good }: Job): void {
    const count = at < this.#from ? this.#before : this.#windows[Math.floor((at - this.#end) / WINDOW_MS)]
    if (count === undefined || !offered) return
    count.offered++
    if (good) count.good++
  }

  /**
   * From the end of the burst to the first of three windows of 2 s in a row whose newcomers are good in at least 0.9 of
   * the share that they were before the burst; undefined: never.
   */
  get ms(): Ms | undefined {
    const least = (AS_GOOD * this.#before.good) / Math.max(1, this.#before.offered)
    let row = 0
    for (const [at, { offered, good }] of this.#windows.entries()) {
      row = good >= least * offered ? row + 1 : 0
      if (row === IN_A_ROW) return (at + 1 - IN_A_ROW) * WINDOW_MS
    }
    return undefined
  }
}
