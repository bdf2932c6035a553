/** NVIDIA Dynamo's KV router: the least of blocks to prefill and blocks to decode, and 503 when all are busy. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import { BLOCK_TOKENS } from '../routing/affinity.js'
import { baseline } from './baseline.js'
import { Counted } from './counted.js'

interface Settings {
  readonly overlap: number
  readonly busyKv: number
  readonly busyPrefillTokens: number
}

/**
 * cost = `overlap` * blocks to prefill + blocks to decode, both with the newcomer: the first counts what no cache has of
 * its prompt and of those before it, the second all contexts there. The lowest wins (temperature 0). A replica is busy
 * when its contexts fill more than `busyKv` of the KV cache or it has more than `busyPrefillTokens` tokens to prefill; busy
 * ones are not asked, and without another one the request is refused. The thresholds are off in Dynamo unless set: 0.85
 * and 10,000 are the figures of its guide.
 *
 * Counts are the router's own, as theirs are; blocks shared by running requests are counted for each. The size of the
 * cache, which a worker would register, is the pool's; where it is not known no replica is busy by it.
 * Goes wrong where the thresholds do not fit the promise: 10,000 tokens are 0.4 s of prefill on one engine and 3 s on
 * another, and nothing looks at what streams suffer.
 * Source: ai-dynamo/dynamo `lib/llm/src/kv_router/scheduler.rs` and its guide to request rejection.
 */
class Dynamo extends Counted {
  readonly #set: Settings

  constructor(desk: Desk, settings: Settings) {
    super(desk)
    this.#set = settings
  }

  protected choose(open: Open, among: readonly Replica[]): Replica | undefined {
    const { overlap, busyKv, busyPrefillTokens } = this.#set
    const hit = this.hits(open)
    return this.cheapest(among, replica => {
      const { prefillTokens, contextTokens } = this.loads.of(replica.spec.id)
      if (contextTokens > busyKv * this.kvTokens(replica) || prefillTokens > busyPrefillTokens)
        return Infinity
      const prefill = prefillTokens + open.promptTokens - hit(replica)
      return (overlap * prefill + contextTokens + open.promptTokens) / BLOCK_TOKENS
    })
  }
}

export const dynamo = baseline(
  'dynamo',
  'NVIDIA Dynamo KV router with busy thresholds 0.85 and 10,000 tokens',
  {
    overlap: [1, 0.5, 2],
    busyKv: [0.85, 0.5, 0.7],
    busyPrefillTokens: [10_000, 1_250, 2_500, 5_000, 20_000, 40_000],
  },
  (desk, set) => new Dynamo(desk, set),
)
