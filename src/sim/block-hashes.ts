/** Hashes of the engine's blocks, made from the block ids of traces. */
import { BLOCK_TOKENS } from './kv-cache.js'

export interface Blocks {
  readonly blockTokens: number
  readonly ids: readonly number[]
}

/** Hashes of the engine's blocks from a trace's larger ones, others each lap. */
export function blockExpander(ranges: HashRanges) {
  const known = new Map<string, number>()
  return ({ blockTokens, ids }: Blocks, inputTokens: number, lap: number): Int32Array => {
    const parts = blockTokens / BLOCK_TOKENS
    const hashes = new Int32Array(Math.min(ids.length * parts, Math.floor(inputTokens / BLOCK_TOKENS)))
    for (let at = 0; at * parts < hashes.length; at++) {
      const key = `${lap} ${ids[at]}`
      let base = known.get(key)
      if (base === undefined) {
        base = ranges.take(parts)
        known.set(key, base)
      }
      for (let part = 0; part < parts && at * parts + part < hashes.length; part++) {
        hashes[at * parts + part] = base + part
      }
    }
    return hashes
  }
}

/** Hands out hashes: small whole numbers. */
export class HashRanges {
  #next = 1

  take(count: number): number {
    const from = this.#next
    this.#next += count
    return from
  }
}
