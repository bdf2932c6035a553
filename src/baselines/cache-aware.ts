/** SGLang's and vLLM-router's rule: follow the prefix while loads are even, else the shortest queue. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import { inFlight } from './balancer.js'
import { baseline } from './baseline.js'
import { Prefixed } from './prefixed.js'

interface Thresholds {
  /** Share of the prompt that has to match, more than. */
  readonly match: number
  readonly abs: number
  readonly rel: number
}

/**
 * Loads are uneven when max - min > `abs` and max > `rel` * min, in requests in flight: then the fewest in flight. Else
 * the replica that has the longest part of the prompt, if that is more than `match` of it; else the fewest in flight.
 * 0.5, 32 and 1.1 are vllm-router's defaults. Theirs matches characters in a tree, ours blocks of 16 tokens.
 *
 * Goes wrong where a prefix is popular: one replica takes 32 more than the idlest before anyone else does, and with
 * requests of unlike size the count says little. It refuses nobody.
 * Source: sgl-project/sglang `sgl-model-gateway/src/policies/cache_aware.rs`, vllm-project/router, the same file.
 */
class CacheAware extends Prefixed {
  readonly #thresholds: Thresholds

  constructor(desk: Desk, thresholds: Thresholds) {
    super(desk)
    this.#thresholds = thresholds
  }

  protected choose(open: Open, among: readonly Replica[]): Replica | undefined {
    const { match, abs, rel } = this.#thresholds
    let [least, most, longest] = [Infinity, 0, 0]
    const hit = this.hits(open)
    for (const replica of among) {
      least = Math.min(least, replica.inFlight)
      most = Math.max(most, replica.inFlight)
      longest = Math.max(longest, hit(replica))
    }
    const uneven = most - least > abs && most > rel * least
    if (uneven || longest <= match * open.promptTokens) return this.cheapest(among, inFlight)
    return this.cheapest(among, replica => (hit(replica) === longest ? replica.inFlight : Infinity))
  }
}

export const cacheAware = baseline(
  'cache-aware',
  'SGLang gateway and vLLM router, cache_aware at 0.5 / 32 / 1.1',
  { match: [0.5, 0.3], abs: [32, 8, 64], rel: [1.1, 1.5] },
  (desk, set) => new CacheAware(desk, set),
)
