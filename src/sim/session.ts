/** One agent at work: its calls, one after the other, each going on from the text of the one before. */
import type { ClassId } from '../request.js'
import type { Ms } from '../time.js'
import type { HashRanges } from './block-hashes.js'
import type { Arrival } from './job.js'
import { BLOCK_TOKENS } from './kv-cache.js'

export interface Call {
  readonly inputTokens: number
  readonly outputTokens: number
  readonly thinkMs: Ms
  readonly ids: readonly number[]
}

export const SESSION_BLOCK_TOKENS = 64

export class Session {
  readonly #cls: ClassId
  readonly #calls: readonly Call[]
  readonly #maxThinkMs: Ms
  /** Of its hashes; undefined: nothing is cached. */
  readonly #base: number | undefined
  #at: number

  constructor(
    cls: ClassId,
    calls: readonly Call[],
    from: number,
    maxThinkMs: Ms,
    ranges: HashRanges | undefined,
  ) {
    this.#cls = cls
    this.#calls = calls
    this.#at = from
    this.#maxThinkMs = maxThinkMs
    const most = calls.reduce((max, { ids }) => ids.reduce((a, b) => Math.max(a, b), max), 0)
    this.#base = ranges?.take((most + 1) * (SESSION_BLOCK_TOKENS / BLOCK_TOKENS))
  }

  /** Its next call, after the one before it ended at `now`; undefined: it has ended. */
  call(now: Ms): Arrival | undefined {
    const call = this.#calls[this.#at]
    if (call === undefined) return undefined
    return this.first(now + Math.min(call.thinkMs, this.#maxThinkMs))
  }

  /** Its next call, at that time. */
  first(at: Ms): Arrival {
    const { inputTokens, outputTokens, ids } = this.#calls[this.#at++] as Call
    return {
      at,
      cls: this.#cls,
      promptTokens: inputTokens,
      outputTokens,
      sender: this,
      ...(this.#base === undefined ? {} : { blockHashes: this.#hashes(ids, inputTokens, this.#base) }),
    }
  }

  #hashes(ids: readonly number[], inputTokens: number, base: number): Int32Array {
    const parts = SESSION_BLOCK_TOKENS / BLOCK_TOKENS
    const hashes = new Int32Array(Math.min(ids.length * parts, Math.floor(inputTokens / BLOCK_TOKENS)))
    for (let at = 0; at < hashes.length; at++) {
      hashes[at] = base + (ids[Math.floor(at / parts)] as number) * parts + (at % parts)
    }
    return hashes
  }
}
