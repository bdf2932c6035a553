/** How many requests may be sent a second time: a share of all, so that retries cannot feed an outage. */
import type { Ms } from '../time.js'

const WINDOW_MS: Ms = 10_000
const SLICES = 20
const SLICE_MS = WINDOW_MS / SLICES

/** A count over the last 10 s, in slices of half a second: the oldest leaves whole. */
class RecentCount {
  readonly #slices = new Uint32Array(SLICES)
  #at = 0
  #sum = 0

  add(now: Ms): void {
    this.sum(now)
    this.#slices[this.#at % SLICES]! += 1
    this.#sum++
  }

  sum(now: Ms): number {
    const at = Math.floor(now / SLICE_MS)
    for (let steps = Math.min(at - this.#at, SLICES); steps > 0; steps--) {
      const slot = (at - steps + 1) % SLICES
      this.#sum -= this.#slices[slot]!
      this.#slices[slot] = 0
    }
    this.#at = Math.max(at, this.#at)
    return this.#sum
  }
}

export class RetryBudget {
  /** Reroutes over 10 s: `share` of the requests, never fewer than `floor`. */
  bounds: { readonly share: number; readonly floor: number }
  readonly #requests = new RecentCount()
  readonly #reroutes = new RecentCount()

  constructor(bounds: { readonly share: number; readonly floor: number }) {
    this.bounds = bounds
  }

  /** A request is sent for the first time. */
  request(now: Ms): void {
    this.#requests.add(now)
  }

  allows(now: Ms): boolean {
    const { floor, share } = this.bounds
    return this.#reroutes.sum(now) + 1 <= Math.max(floor, share * this.#requests.sum(now))
  }

  /** A request is sent again. */
  reroute(now: Ms): void {
    this.#reroutes.add(now)
  }
}
