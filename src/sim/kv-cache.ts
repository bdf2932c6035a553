/** The KV cache of one engine, counted in blocks: who holds them, and which freed ones can still be hit. */

/** Tokens in one block (vLLM's default). */
export const BLOCK_TOKENS = 16

/** What one sequence holds. */
export interface KvHold {
  /** Blocks in all. */
  blocks: number
  /** Those of them that others can find by their hash, in prompt order. */
  readonly shared: number[]
}

/** End of the list of free blocks, and the anchor of that ring. */
const RING = 0

/**
 * Blocks with a hash are nodes of their own; blocks without one are only counted. Free blocks stand in one list, the
 * next to be reused first (LRU): a node there is a hashed block that nobody holds, or a run of blocks without hash.
 * A hashed block stays findable until it is reused.
 */
export class KvCache {
  /** Blocks in all. */
  readonly blocks: number
  /** Blocks that no sequence holds, hashed ones included. */
  free: number
  /** How often a block became findable; while it stands still, no prompt finds more than before. */
  published = 0
  readonly #byHash = new Map<number, number>()
  readonly #hash: Float64Array
  /** Sequences that hold the node's block. */
  readonly #refs: Int32Array
  /** Blocks in a free run; 0 where the node is a hashed block. */
  readonly #run: Int32Array
  readonly #prev: Int32Array
  readonly #next: Int32Array
  readonly #spare: number[] = []
  #nodes = 1

  /** @param tokens  capacity; a last part block is not used */
  constructor(tokens: number) {
    this.blocks = Math.floor(tokens / BLOCK_TOKENS)
    this.free = this.blocks
    // A node stands for at least one block, and a run may be cut off from one that is being taken.
    const most = this.blocks + 2
    this.#hash = new Float64Array(most)
    this.#refs = new Int32Array(most)
    this.#run = new Int32Array(most)
    this.#prev = new Int32Array(most)
    this.#next = new Int32Array(most)
    this.#addRun(this.blocks)
  }

  /** Share of the blocks that sequences hold, 0 to 1. */
  get usage(): number {
    return 1 - this.free / this.blocks
  }

  /** How many of the first `most` hashes are there, without a gap from the first on. */
  match(hashes: ArrayLike<number>, most: number): number {
    let hits = 0
    while (hits < most && this.#byHash.has(hashes[hits] as number)) hits++
    return hits
  }

  /** Of the first `hits` blocks, all of them there: how many nobody holds, so that holding them costs free blocks. */
  idle(hashes: ArrayLike<number>, hits: number): number {
    let idle = 0
    for (let at = 0; at < hits; at++) {
      if (this.#refs[this.#byHash.get(hashes[at] as number) as number] === 0) idle++
    }
    return idle
  }

  /** Holds the first `hits` blocks, all of them there. */
  share(hold: KvHold, hashes: ArrayLike<number>, hits: number): void {
    for (let at = 0; at < hits; at++) {
      const node = this.#byHash.get(hashes[at] as number) as number
      const refs = this.#refs[node] as number
      if (refs === 0) {
        this.#unlink(node)
        this.free--
      }
      this.#refs[node] = refs + 1
      hold.shared.push(node)
    }
    hold.blocks += hits
  }

  /**
   * Takes `count` more blocks; the oldest free ones lose their content.
   * @throws RangeError where fewer are free: callers look at `free` first
   */
  grow(hold: KvHold, count: number): void {
    if (count > this.free) throw new RangeError(`${count} blocks asked for, ${this.free} are free`)
    hold.blocks += count
    this.free -= count
    let left = count
    while (left > 0) {
      const oldest = this.#next[RING] as number
      const run = this.#run[oldest] as number
      if (run > left) {
        this.#run[oldest] = run - left
        return
      }
      if (run === 0) this.#forget(oldest)
      left -= Math.max(run, 1)
      this.#unlink(oldest)
      this.#spare.push(oldest)
    }
  }

  /** Makes one held block without hash findable, unless another block has that hash already. */
  publish(hold: KvHold, hash: number): void {
    if (this.#byHash.has(hash)) return
    const node = this.#node()
    this.#hash[node] = hash
    this.#refs[node] = 1
    this.#run[node] = 0
    this.#byHash.set(hash, node)
    hold.shared.push(node)
    this.published++
  }

  /** No block is findable any more. */
  flush(): void {
    this.#byHash.clear()
  }

  /** Gives back all blocks, the last first, so that the head of a prompt stays findable longest. */
  release(hold: KvHold): void {
    const own = hold.blocks - hold.shared.length
    if (own > 0) {
      this.#addRun(own)
      this.free += own
    }
    for (let node = hold.shared.pop(); node !== undefined; node = hold.shared.pop()) {
      const refs = (this.#refs[node] as number) - 1
      this.#refs[node] = refs
      if (refs === 0) {
        this.#append(node)
        this.free++
      }
    }
    hold.blocks = 0
  }

  /** After a flush another block may have its hash. */
  #forget(node: number): void {
    const hash = this.#hash[node] as number
    if (this.#byHash.get(hash) === node) this.#byHash.delete(hash)
  }

  #addRun(count: number): void {
    const newest = this.#prev[RING] as number
    if (newest !== RING && (this.#run[newest] as number) > 0) {
      this.#run[newest] = (this.#run[newest] as number) + count
      return
    }
    const node = this.#node()
    this.#run[node] = count
    this.#append(node)
  }

  #node(): number {
    return this.#spare.pop() ?? this.#nodes++
  }

  #append(node: number): void {
    const newest = this.#prev[RING] as number
    this.#next[newest] = node
    this.#prev[node] = newest
    this.#next[node] = RING
    this.#prev[RING] = node
  }

  #unlink(node: number): void {
    const before = this.#prev[node] as number
    const after = this.#next[node] as number
    this.#next[before] = after
    this.#prev[after] = before
  }
}
