/** How far predictions were off, as shares of what came. */

/** Errors kept. */
const KEPT = 512

/**
 * The last 512 relative errors of one predicted figure. For display and for spread; never to correct the
 * prediction by: only requests that were predicted good are seen here (algorithms, finding 6).
 */
export class RelativeErrors {
  /** (predicted - actual) / actual. */
  readonly #errors = new Float32Array(KEPT)
  #next = 0
  #count = 0

  /** @param actual  above 0, else it is passed over */
  add(predicted: number, actual: number): void {
    if (!(actual > 0)) return
    this.#errors[this.#next] = (predicted - actual) / actual
    this.#next = (this.#next + 1) % KEPT
    this.#count = Math.min(KEPT, this.#count + 1)
  }

  get count(): number {
    return this.#count
  }

  /** Median size of the error; undefined before the first. */
  get medianAbsolute(): number | undefined {
    return quantile(this.#errors.slice(0, this.#count).map(Math.abs), 0.5)
  }

  /** Size that nine of ten errors stay within. */
  get p90Absolute(): number | undefined {
    return quantile(this.#errors.slice(0, this.#count).map(Math.abs), 0.9)
  }

  /** Median with its sign: above 0 the prediction is too long. */
  get bias(): number | undefined {
    return quantile(this.#errors.slice(0, this.#count), 0.5)
  }
}

/** Nearest rank. */
function quantile(values: Float32Array, share: number): number | undefined {
  values.sort()
  return values[Math.max(0, Math.ceil(share * values.length) - 1)]
}
