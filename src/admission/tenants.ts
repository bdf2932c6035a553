/** Keys that share a class which does not wait: who used more than its share lately weighs less, and who used less, more. */
import type { Ms } from '../time.js'

/** Memory of what each key used. Source: algorithms 6.12. */
const MEMORY_MS: Ms = 10_000
const LEAST = 0.5
const MOST = 1.5
/** A key that used less than this share of the mean is not active: it does not make the others' shares smaller. */
const ACTIVE_SHARE = 0.02

export class Tenants {
  /** Work of each key, faded to `#at`. */
  readonly #used = new Map<string, number>()
  #sum = 0
  #at: Ms = 0

  /** A request of the key is sent. @param work  in any unit that is the same for all */
  charge(key: string, work: number, now: Ms): void {
    this.#fade(now)
    this.#used.set(key, (this.#used.get(key) ?? 0) + work)
    this.#sum += work
  }

  /** What its answers count, 0.5 to 1.5: fair share over used share. 1 where one key is alone. */
  weight(key: string, now: Ms): number {
    if (this.#used.size < 2) return 1
    this.#fade(now)
    if (this.#sum <= 0) return 1
    let active = this.#used.has(key) ? 0 : 1
    const least = (ACTIVE_SHARE * this.#sum) / this.#used.size
    for (const [other, used] of this.#used) if (other === key || used >= least) active++
    const share = (this.#used.get(key) ?? 0) / this.#sum
    return Math.min(MOST, Math.max(LEAST, 1 / active / Math.max(share, 1e-6)))
  }

  #fade(now: Ms): void {
    const span = now - this.#at
    if (span < MEMORY_MS / 50) return
    this.#at = now
    const kept = Math.exp(-span / MEMORY_MS)
    this.#sum = 0
    for (const [key, used] of this.#used) {
      const left = used * kept
      if (left < 1e-3) this.#used.delete(key)
      else {
        this.#used.set(key, left)
        this.#sum += left
      }
    }
  }
}
