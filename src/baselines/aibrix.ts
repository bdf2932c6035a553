/** AIBrix's prefix-cache rule: the longest match that is not too busy, else the fewest requests. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import { inFlight } from './balancer.js'
import { baseline } from './baseline.js'
import { Prefixed } from './prefixed.js'

/**
 * Where max - min of the requests in flight is more than `imbalance` (8): one of the fewest. Else, of the replicas that
 * have a part of the prompt, the one with the most of it and among equals the fewest requests, if it has at most mean +
 * `deviations` (1) standard deviations of the counts; then the next. Without one: the fewest requests.
 *
 * Goes wrong as cache-aware does, but for smaller imbalance: beyond 8 requests it forgets prefixes altogether. It
 * refuses nobody.
 * Source: vllm-project/aibrix `pkg/plugins/gateway/algorithms/prefix_cache.go`.
 */
class Aibrix extends Prefixed {
  readonly #imbalance: number
  readonly #deviations: number

  constructor(desk: Desk, { imbalance, deviations }: { imbalance: number; deviations: number }) {
    super(desk)
    this.#imbalance = imbalance
    this.#deviations = deviations
  }

  protected choose(open: Open, among: readonly Replica[]): Replica | undefined {
    let [least, most, sum, squares] = [Infinity, 0, 0, 0]
    for (const { inFlight } of among) {
      least = Math.min(least, inFlight)
      most = Math.max(most, inFlight)
      sum += inFlight
      squares += inFlight * inFlight
    }
    if (most - least > this.#imbalance) return this.cheapest(among, inFlight)
    const mean = sum / among.length
    const spread = Math.sqrt(Math.max(0, squares / among.length - mean * mean))
    const allowed = mean + this.#deviations * spread
    const hit = this.hits(open)
    const matched = this.cheapest(among, replica => {
      const tokens = hit(replica)
      return tokens === 0 || replica.inFlight > allowed ? Infinity : replica.inFlight / 1e6 - tokens
    })
    return matched ?? this.cheapest(among, inFlight)
  }
}

export const aibrix = baseline(
  'aibrix',
  'AIBrix prefix-cache router, imbalance 8, 1 standard deviation',
  { imbalance: [8, 16], deviations: [1, 2] },
  (desk, set) => new Aibrix(desk, set),
)
