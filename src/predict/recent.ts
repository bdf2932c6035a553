/** The requests that came lately, by what they cost: the mix that a capacity holds for. */
import type { ClassId } from '../request.js'

/**
 * Requests kept, 14 bytes each. The share of long prompts decides where a 90th percentile breaks: of 16,384 requests
 * it is known to 0.23 points.
 */
const KEPT = 16_384

export interface Asked {
  readonly cls: ClassId
  readonly promptTokens: number
  /** Of them, found in a prefix cache. */
  readonly cachedTokens: number
  /** At least 1. */
  readonly outputTokens: number
}

/**
 * Whole requests, so that what belongs together stays together: long prompts have other answers than short ones. Those
 * that were shed belong in here as well, with the answer expected of them, or the mix is that of what got through.
 */
export class RecentRequests {
  readonly #cls = new Uint16Array(KEPT)
  readonly #prompt = new Uint32Array(KEPT)
  readonly #cached = new Uint32Array(KEPT)
  readonly #output = new Uint32Array(KEPT)
  #next = 0
  #kept = 0
  readonly #sums: { prompt: number; cached: number }[] = []

  add(asked: Asked): void {
    const at = this.#next
    if (this.#kept === KEPT) {
      const old = this.at(at)
      this.#count(old.cls, -old.promptTokens, -old.cachedTokens)
    }
    this.#count(asked.cls, asked.promptTokens, asked.cachedTokens)
    this.#cls[at] = asked.cls
    this.#prompt[at] = asked.promptTokens
    this.#cached[at] = asked.cachedTokens
    this.#output[at] = Math.max(1, asked.outputTokens)
    this.#next = (at + 1) % KEPT
    this.#kept = Math.min(KEPT, this.#kept + 1)
  }

  get count(): number {
    return this.#kept
  }

  /** @param index  from 0 to `count` - 1, in no order of time */
  at(index: number): Asked {
    return {
      cls: this.#cls[index] as number,
      promptTokens: this.#prompt[index] as number,
      cachedTokens: this.#cached[index] as number,
      outputTokens: this.#output[index] as number,
    }
  }

  /** The newest, so many at most, the oldest of them first. */
  *newest(most: number): Generator<Asked> {
    const count = Math.min(most, this.#kept)
    for (let i = count; i > 0; i--) yield this.at((this.#next - i + KEPT) % KEPT)
  }

  /** Share of a class's prompt tokens that were found in a cache; 0 before the first. */
  cachedShare(cls: ClassId): number {
    const sums = this.#sums[cls]
    return sums === undefined || sums.prompt <= 0 ? 0 : sums.cached / sums.prompt
  }

  #count(cls: ClassId, promptTokens: number, cachedTokens: number): void {
    let sums = this.#sums[cls]
    if (sums === undefined) {
      sums = { prompt: 0, cached: 0 }
      this.#sums[cls] = sums
    }
    sums.prompt += promptTokens
    sums.cached += cachedTokens
  }
}
