/** Which replica has seen the beginning of a prompt, and probably still has its KV: an approximate prefix index. */
import { LRUCache } from 'lru-cache'
import type { ReplicaId } from '../request.js'

/** Prompt tokens that one hash of `RequestFacts.prefix` stands for (vLLM's block). */
export const BLOCK_TOKENS = 16
/** Where nothing is known of the engine's cache. 800,000 tokens: about what an 8B model has on 80 GB. Source: algorithms 6.1. */
const BLOCKS_PER_REPLICA = 50_000
/** Blocks of all replicas together: about 150 MB when full. */
const BLOCKS_MAX = 1 << 20

/** Replicas that have a block, each with its count of new blocks when this one was last sent there: [id, count, …]. */
type Holders = number[]

/**
 * Told of every prompt that is sent (`insert`), it says how much of another one a replica has (`hits`). A block is held
 * to be gone once its replica got `capacity` new ones since it was last used, as an LRU cache would have it. Both calls
 * are O(blocks of the prompt), times the replicas that share them.
 *
 * Goes wrong where an engine evicts sooner (its running streams need the room), has restarted without its end being
 * seen (`forget`), or serves others.
 */
export class PrefixIndex {
  readonly #capacity: number
  /** By key; made with the first prompt, since most traffic brings no hashes. */
  #blocks: LRUCache<number, Holders> | undefined
  /** New blocks sent to each replica so far. */
  readonly #counts: number[] = []
  /** Answer of `hits`, reused. */
  readonly #tokens: number[] = []

  /** @param capacity  blocks that one replica keeps */
  constructor(capacity = BLOCKS_PER_REPLICA) {
    this.#capacity = capacity
  }

  /**
   * Leading prompt tokens that each replica has, by replica id; an id that is not there has none. May exceed the prompt
   * by a part of its last block. Valid until the next call.
   * @param prefix  `RequestFacts.prefix`; undefined: nothing is known, nobody has any
   */
  hits(prefix: ArrayLike<number> | undefined): ArrayLike<number | undefined> {
    const tokens = this.#tokens.fill(0)
    if (prefix === undefined || this.#blocks === undefined) return tokens
    for (let at = 0; at < prefix.length; at++) {
      const holders = this.#blocks.peek(keyOf(prefix[at] as number))
      if (holders === undefined) return tokens
      let some = false
      for (let i = 0; i < holders.length; i += 2) {
        const id = holders[i] as number
        if (tokens[id] !== at * BLOCK_TOKENS || this.#isGone(id, holders[i + 1] as number)) continue
        tokens[id] = (at + 1) * BLOCK_TOKENS
        some = true
      }
      if (!some) return tokens
    }
    return tokens
  }

  /** The prompt is sent to the replica. */
  insert(replica: ReplicaId, prefix: ArrayLike<number> | undefined): void {
    if (prefix === undefined || prefix.length === 0) return
    this.#blocks ??= new LRUCache<number, Holders>({ max: BLOCKS_MAX })
    while (this.#counts.length <= replica) {
      this.#counts.push(0)
      this.#tokens.push(0)
    }
    // From the end, so that of one prompt the head is the latest used.
    for (let at = prefix.length - 1; at >= 0; at--) {
      const key = keyOf(prefix[at] as number)
      const holders = this.#blocks.get(key)
      if (holders === undefined) this.#blocks.set(key, [replica, this.#countNew(replica)])
      else this.#use(holders, replica)
    }
  }

  /** The replica has lost its cache. */
  forget(replica: ReplicaId): void {
    const count = this.#counts[replica]
    if (count !== undefined) this.#counts[replica] = count + this.#capacity
  }

  #use(holders: Holders, replica: ReplicaId): void {
    for (let i = 0; i < holders.length; i += 2) {
      if (holders[i] !== replica) continue
      const gone = this.#isGone(replica, holders[i + 1] as number)
      holders[i + 1] = gone ? this.#countNew(replica) : (this.#counts[replica] as number)
      return
    }
    holders.push(replica, this.#countNew(replica))
  }

  #countNew(replica: ReplicaId): number {
    const count = (this.#counts[replica] as number) + 1
    this.#counts[replica] = count
    return count
  }

  #isGone(replica: ReplicaId, count: number): boolean {
    return (this.#counts[replica] as number) - count >= this.#capacity
  }
}

/** A hash as a small integer, which a map finds much faster. Of a million blocks a few hundred are taken for another. */
function keyOf(hash: number): number {
  return (hash ^ (hash / 0x1_0000_0000)) | 0
}
