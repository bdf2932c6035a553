/** One request inside an engine: what it asks for and how far it is. */
import type { Ms } from '../time.js'
import type { KvHold } from './kv-cache.js'

export interface EngineRequest {
  /** At least 1. */
  readonly promptTokens: number
  /** Tokens the answer will have; at least 1. */
  readonly outputTokens: number
  /**
   * One hash for each whole block (16 tokens) of the prompt, each over the whole prompt up to its block's end: equal
   * hashes mean equal prefixes. Left out: nothing of it is ever found in the cache.
   */
  readonly blockHashes?: ArrayLike<number>
  /** Tokens an iteration yields after the first (speculative decoding, always accepted); default 1. */
  readonly tokensPerStep?: number
}

export type SequenceState = 'waiting' | 'running' | 'ended' | 'aborted'

const NONE: ArrayLike<number> = []

export class Sequence<R extends EngineRequest = EngineRequest> implements KvHold {
  readonly request: R
  readonly promptTokens: number
  readonly outputTokens: number
  readonly blockHashes: ArrayLike<number>
  readonly tokensPerStep: number
  readonly arrivedAt: Ms
  /** When the scheduler first sees it. */
  readonly readyAt: Ms
  state: SequenceState = 'waiting'
  /** First put into a batch. */
  scheduledAt: Ms | undefined
  firstTokenAt: Ms | undefined
  lastTokenAt: Ms | undefined
  /** Output tokens so far. */
  generated = 0
  /** Tokens that the last finished step brought. */
  fresh = 0
  /** Prompt tokens found in the cache at the first scheduling. */
  cachedTokens = 0
  preemptions = 0

  // The engine's own: position in prefill or decode, and memory.
  /** Tokens whose KV is in the cache. */
  computed = 0
  /** Tokens it computes in the iteration under way. */
  planned = 0
  blocks = 0
  readonly shared: number[] = []
  /** Prompt blocks whose hash was offered to the cache, or came from it. */
  offered = 0
  /** Hits when it last waited in vain, and the cache's `published` then. */
  hitsSeen = 0
  publishedSeen = -1

  constructor(request: R, now: Ms, readyAt: Ms) {
    this.request = request
    this.promptTokens = request.promptTokens
    this.outputTokens = request.outputTokens
    this.blockHashes = request.blockHashes ?? NONE
    this.tokensPerStep = request.tokensPerStep ?? 1
    this.arrivedAt = now
    this.readyAt = readyAt
  }
}

/** First in, first out, with a way back to the head for whoever was sent away from the front. */
export class Line<T> {
  #items: (T | undefined)[] = []
  #head = 0

  get length(): number {
    return this.#items.length - this.#head
  }

  first(): T | undefined {
    return this.#items[this.#head]
  }

  push(item: T): void {
    this.#items.push(item)
  }

  shift(): T | undefined {
    if (this.length === 0) return undefined
    const item = this.#items[this.#head]
    this.#items[this.#head++] = undefined
    // Dropping the empty front costs a copy: only when it is the larger part.
    if (this.#head > 32 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head)
      this.#head = 0
    }
    return item
  }

  pushFirst(item: T): void {
    if (this.#head === 0) this.#items.unshift(item)
    else this.#items[--this.#head] = item
  }

  remove(item: T): void {
    const at = this.#items.indexOf(item, this.#head)
    if (at >= 0) this.#items.splice(at, 1)
  }
}
