/** What is asked of a pool: requests and their work, shed and queued ones included, a retry counted once. */
import type { ClassId } from '../request.js'
import type { Ms } from '../time.js'
import type { TrafficClass } from './slo.js'

/** What a unit of each kind costs a replica. The step model's coefficients, or a sweep's. */
export interface WorkCost {
  readonly perPrefillMs: number
  readonly perPairMs: number
  readonly perStreamMs: number
  readonly perContextMs: number
}

/** What one request asks for, by kind, before it has a price. */
export interface Work {
  /** Prompt tokens to be computed. */
  readonly newTokens: number
  /** Token pairs its prompt's attention compares. */
  readonly pairs: number
  readonly outputTokens: number
  /** Sum over its steps of its length then: what they read. */
  readonly contextTokens: number
}

/** @param cachedTokens  of the prompt, expected in a prefix cache */
export function workOf(promptTokens: number, cachedTokens: number, outputTokens: number): Work {
  const newTokens = Math.max(1, promptTokens - cachedTokens)
  return {
    newTokens,
    pairs: newTokens * (promptTokens - newTokens / 2),
    outputTokens,
    contextTokens: outputTokens * (promptTokens + outputTokens / 2),
  }
}

/** p90 of a normal distribution, in standard deviations. */
const P90 = 1.2816

/** Mean and mean square of lengths that are lognormal with these percentiles. */
function moments({ p50, p90 }: { readonly p50: number; readonly p90: number }): readonly [number, number] {
  const variance = (Math.log(p90 / p50) / P90) ** 2
  return [p50 * Math.exp(variance / 2), p50 ** 2 * Math.exp(2 * variance)]
}

/** Of a mean request of a declared workload, its lengths taken as lognormal and independent of each other. */
export function declaredWork({ inputTokens, outputTokens, cacheHit }: TrafficClass['workload']): Work {
  const [prompt, promptSquare] = moments(inputTokens)
  const [output, outputSquare] = moments(outputTokens)
  const fresh = 1 - cacheHit
  return {
    newTokens: fresh * prompt,
    pairs: fresh * (1 - fresh / 2) * promptSquare,
    outputTokens: output,
    contextTokens: output * prompt + outputSquare / 2,
  }
}

/**
 * GPU time that this work takes from a step's fixed part, ms (algorithms 6.1). The fixed part itself is in no request:
 * it is in the capacity, for it is paid once for all streams of a step.
 */
export function priced(work: Work, cost: WorkCost): Ms {
  return (
    cost.perPrefillMs * work.newTokens +
    cost.perPairMs * work.pairs +
    cost.perStreamMs * work.outputTokens +
    cost.perContextMs * work.contextTokens
  )
}

/** Memory of the rates. Source: algorithms 5, EWMA of 60 s. */
const MEMORY_MS: Ms = 60_000
/** A request that comes again within this time of being shed or failing is the same one. Source: algorithms 5. */
const RETRY_MS: Ms = 60_000
/** Keys of refused requests that are kept; the oldest go first. */
const KEYS_MAX = 10_000
/** Kinds: requests, then the members of `Work`. */
const KINDS = 5

/**
 * Rates by class. They are kept by kind and priced when asked for, so that a cost that is learned later holds for all
 * that came before.
 */
export class Demand {
  readonly #sums: (Float64Array | undefined)[] = []
  readonly #refused = new Map<string, Ms>()
  #at: Ms | undefined
  #from: Ms = 0

  /**
   * A request came, whatever becomes of it.
   * @param retryKey  same caller, same body; undefined: nothing is known of retries
   * @returns false where it was counted before
   */
  offered(cls: ClassId, work: Work, retryKey: string | undefined, now: Ms): boolean {
    this.#fade(now)
    if (retryKey !== undefined && this.#isRetry(retryKey, now)) return false
    let sums = this.#sums[cls]
    if (sums === undefined) {
      sums = new Float64Array(KINDS)
      this.#sums[cls] = sums
    }
    const [requests = 0, newTokens = 0, pairs = 0, output = 0, context = 0] = sums
    sums[0] = requests + 1
    sums[1] = newTokens + work.newTokens
    sums[2] = pairs + work.pairs
    sums[3] = output + work.outputTokens
    sums[4] = context + work.contextTokens
    return true
  }

  /** It was shed, or failed so that the client may come again. */
  refused(retryKey: string, now: Ms): void {
    this.#refused.delete(retryKey)
    this.#refused.set(retryKey, now)
    if (this.#refused.size <= KEYS_MAX) return
    for (const oldest of this.#refused.keys()) {
      this.#refused.delete(oldest)
      return
    }
  }

  /** Requests a second of a class. */
  requestsPerSec(cls: ClassId, now: Ms): number {
    return this.#perSec(this.#sums[cls]?.[0] ?? 0, now)
  }

  /** Work a second of a class, in GPU seconds. */
  workPerSec(cls: ClassId, cost: WorkCost, now: Ms): number {
    const sums = this.#sums[cls]
    return sums === undefined ? 0 : this.#perSec(priced(summed(sums), cost) / 1000, now)
  }

  /** Work of a mean request of a class, in GPU seconds; undefined where none came. */
  workPerRequest(cls: ClassId, cost: WorkCost): number | undefined {
    const sums = this.#sums[cls]
    if (sums === undefined || !((sums[0] ?? 0) > 1e-9)) return undefined
    return priced(summed(sums), cost) / 1000 / (sums[0] as number)
  }

  #isRetry(key: string, now: Ms): boolean {
    const at = this.#refused.get(key)
    return at !== undefined && now - at <= RETRY_MS
  }

  #fade(now: Ms): void {
    if (this.#at === undefined) this.#from = now
    const share = this.#at === undefined ? 1 : Math.exp(-Math.max(0, now - this.#at) / MEMORY_MS)
    this.#at = Math.max(now, this.#at ?? now)
    if (share === 1) return
    for (const sums of this.#sums)
      for (let i = 0; sums !== undefined && i < KINDS; i++) sums[i] = (sums[i] ?? 0) * share
  }

  /** In the first seconds the rate is over the time seen, at least 1 s. */
  #perSec(sum: number, now: Ms): number {
    if (this.#at === undefined) return 0
    const faded = sum * Math.exp(-Math.max(0, now - this.#at) / MEMORY_MS)
    const seen = 1 - Math.exp(-Math.max(1000, now - this.#from) / MEMORY_MS)
    return (faded / (MEMORY_MS * seen)) * 1000
  }
}

function summed(sums: Float64Array): Work {
  const [, newTokens = 0, pairs = 0, outputTokens = 0, contextTokens = 0] = sums
  return { newTokens, pairs, outputTokens, contextTokens }
}
