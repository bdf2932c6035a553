/** The outer loop: what a lost answer costs, so that those who are admitted are served as promised. */
import type { Slo } from '../slo/slo.js'
import type { Ms } from '../time.js'

/** Source: algorithms 6.8. */
const LOSS_STEP = 0.0225
const LOSS_MAX = 10
const SCALE_STEP = 0.003
const SCALE_MIN = 0.5
const RELAX_MS: Ms = 30_000

/**
 * Two integrators, each with one side. `kappa` multiplies losses, 1 to 10, by class: it rises while the class's admitted
 * miss more than they should. `scale` multiplies predicted times, 0.5 to 1: it falls while answers turn out better than
 * was predicted of them, so that a pessimistic model does not refuse what could be served.
 *
 * Without load both relax to 1: misses that load did not cause must not wind them up.
 */
export class LossPrice {
  readonly #kappa: number[] = []
  scale = 1
  #at: Ms | undefined

  kappa(cls: number): number {
    return this.#kappa[cls] ?? 1
  }

  /** An admitted answer that an idle replica would have served was judged. */
  judged(cls: number, slo: Slo, good: boolean): void {
    const q = slo.percentile / 100
    const aim = q + (1 - q) / 2
    const kappa = this.kappa(cls) * Math.exp(LOSS_STEP * (aim - (good ? 1 : 0)))
    this.#kappa[cls] = Math.min(LOSS_MAX, Math.max(1, kappa))
  }

  /** @param expected  its chance to be good, as told at dispatch */
  compared(expected: number, good: boolean): void {
    const scale = this.scale * Math.exp(SCALE_STEP * (expected - (good ? 1 : 0)))
    this.scale = Math.min(1, Math.max(SCALE_MIN, scale))
  }

  /** Time passed. @param quiet  nothing was shed, queued or slowed by load in it */
  passed(now: Ms, quiet: boolean): void {
    const span = this.#at === undefined ? 0 : now - this.#at
    this.#at = now
    if (!quiet || span <= 0) return
    const kept = 0.5 ** (span / RELAX_MS)
    for (let cls = 0; cls < this.#kappa.length; cls++) this.#kappa[cls] = this.kappa(cls) ** kept
    this.scale **= kept
  }
}
