/** When a refused client may come again: as refusals pile up the times spread, at the rate at which room appears. */
import type { Ms, Rng } from '../time.js'

const MIN_MS: Ms = 1_000
const MAX_MS: Ms = 59_000
/** Largest random addition, as a share. */
const JITTER = 0.2
/** Reservations end here, so that the last of them are still spread by the jitter. */
const HORIZON_MS: Ms = MAX_MS / (1 + JITTER)

/**
 * A clock of reservations: each refusal takes the next slot that will come free, so a refused burst returns spread
 * and not as its own echo. It does not know who will never return, hence the horizon.
 * Source: algorithms 6.10.
 */
export class Reservations {
  #until: Ms = -Infinity

  /**
   * @param ahead       requests that wait in front of it
   * @param slotsPerMs  rate at which slots come free, above 0
   * @returns ms, 1 to 59 s
   */
  next(now: Ms, ahead: number, slotsPerMs: number, rng: Rng): Ms {
    const slotMs = 1 / slotsPerMs
    this.#until = Math.min(Math.max(this.#until, now + ahead * slotMs) + slotMs, now + HORIZON_MS)
    const spread = (this.#until - now) * (1 + JITTER * rng.next())
    return Math.min(Math.max(spread, MIN_MS), MAX_MS)
  }
}
