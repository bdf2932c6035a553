/** A rate that forgets: what came per millisecond, the latest weighing most. */
import type { Ms } from '../time.js'

export class Rate {
  readonly #memoryMs: Ms
  #sum = 0
  #at: Ms | undefined
  #from: Ms = 0

  /** @param memoryMs  time constant */
  constructor(memoryMs: Ms) {
    this.#memoryMs = memoryMs
  }

  add(amount: number, now: Ms): void {
    if (this.#at === undefined) {
      this.#at = now
      this.#from = now
    }
    this.#sum = this.#sum * this.#faded(now) + amount
    this.#at = Math.max(now, this.#at)
  }

  /** Per ms. In the first moments it is taken over the tenth part of the memory, not over no time at all. */
  perMs(now: Ms): number {
    if (this.#at === undefined) return 0
    const seen = Math.max(now - this.#from, this.#memoryMs / 10)
    return (this.#sum * this.#faded(now)) / (this.#memoryMs * (1 - Math.exp(-seen / this.#memoryMs)))
  }

  #faded(now: Ms): number {
    return this.#at === undefined ? 1 : Math.exp(-Math.max(0, now - this.#at) / this.#memoryMs)
  }
}
