/** The rate at which refused clients may come again: what a pool took at its best lately, less what it takes now. */
import { Rate } from '../predict/rate.js'
import type { Ms } from '../time.js'

const MEMORY_MS: Ms = 10_000
/** The best fades by half in this time. */
const HALF_MS: Ms = 60_000
/** Source: algorithms 6.10. */
const LEAST_PER_MS = 0.1 / 1000

export class SpareRate {
  readonly #admitted = new Rate(MEMORY_MS)
  #best = 0
  #at: Ms = 0

  admitted(now: Ms): void {
    this.#admitted.add(1, now)
    const best = this.#best * 0.5 ** (Math.max(0, now - this.#at) / HALF_MS)
    this.#at = now
    this.#best = Math.max(best, this.#admitted.perMs(now))
  }

  /** Requests a millisecond, at least one in 10 s. */
  perMs(now: Ms): number {
    return Math.max(LEAST_PER_MS, this.#best - this.#admitted.perMs(now))
  }
}
