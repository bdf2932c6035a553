/** Limits that somebody has to set: on streams, on prompt tokens as well, and with a queue behind them. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import type { TrafficClass } from '../slo/slo.js'
import { Balancer } from './balancer.js'
import { baseline } from './baseline.js'
import { Queueing } from './queueing.js'

/** Limits that a sweep tries. */
const CAPS = [32, 4, 6, 8, 12, 16, 24, 48, 64, 96, 128, 192, 256] as const
const TOKENS = [8_000, 1_000, 2_000, 4_000, 16_000, 32_000, 64_000] as const

/**
 * At most `cap` requests in flight on a replica and `tokens` prompt tokens to prefill; a prompt that is longer than
 * that goes to a replica that has none. Among those with room the fewest tokens to prefill. Without room it is refused,
 * whatever its class.
 *
 * Goes wrong where the mix moves: the cap that fits short prompts lets long ones in by the dozen. Tokens beside it see
 * prompts, but not what long contexts and answers do to those who decode.
 * Source: `max_in_flight` of every proxy (Envoy circuit breakers, LiteLLM `max_parallel_requests`); the second limit is
 * algorithms 0b's.
 */
class Caps extends Balancer {
  readonly #cap: number
  readonly #tokens: number

  constructor(desk: Desk, cap: number, tokens = Infinity) {
    super(desk)
    this.#cap = cap
    this.#tokens = tokens
  }

  protected choose(open: Open, among: readonly Replica[]): Replica | undefined {
    return this.cheapest(among, ({ inFlight, outstandingPrefillTokens }) => {
      const fits =
        outstandingPrefillTokens === 0 || outstandingPrefillTokens + open.promptTokens <= this.#tokens
      return fits && inFlight < this.#cap ? outstandingPrefillTokens + inFlight / 1e6 : Infinity
    })
  }
}

/** Requests in flight on a replica, at most, where one of this class comes; 0: it takes none of them. */
type CapOf = (traffic: TrafficClass, replica: Replica) => number

/**
 * Behind a cap, classes that may wait do so, by deadline. Among replicas with room the one where the fewest prompt
 * tokens are left to compute, those that the newcomer brings and its cache lacks included: that follows prefixes until
 * somebody waits there.
 *
 * Goes wrong as the cap does; the queue keeps jobs from being lost in a burst, and in overload it serves those first
 * that are about to be late.
 * Source: the best of what today's parts give: a cap, earliest deadline first, a prefix index.
 */
class CapWithQueue extends Queueing {
  readonly #cap: CapOf

  constructor(desk: Desk, cap: CapOf) {
    super(desk)
    this.#cap = cap
  }

  protected hasRoom(traffic: TrafficClass, replica: Replica): boolean {
    return replica.inFlight < this.#cap(traffic, replica)
  }

  protected choose(open: Open, among: readonly Replica[]): Replica | undefined {
    const hit = this.hits(open)
    return this.cheapest(among, replica => {
      if (!this.hasRoom(open.traffic, replica)) return Infinity
      return replica.outstandingPrefillTokens + open.promptTokens - hit(replica) + replica.inFlight / 1e6
    })
  }
}

/** What classes that wait leave free for those that do not, where both use the pool. */
function reserving(desk: Desk, cap: number, reserve: number): CapOf {
  const kept = Math.floor(cap * reserve)
  return (traffic, { spec }) => {
    if (traffic.queue === undefined) return cap
    const shared = desk.classes.some(({ queue, pools, retired }) => {
      return !retired && queue === undefined && pools.includes(spec.pool)
    })
    return shared ? cap - kept : cap
  }
}

/**
 * Each pool is two: the first of its replicas serve classes that do not wait, the rest those that do, each side behind
 * its own cap and otherwise as one pool would.
 *
 * Goes wrong where the mix moves: one side is idle while the other refuses.
 * Source: the advice to give each promise its own pool ("Inference SLOs").
 */
function split(desk: Desk, share: number, chatCap: number, agentCap: number): CapOf {
  return (traffic, replica) => {
    const { replicas = [] } = desk.pools[replica.spec.pool] ?? {}
    const forChat = Math.min(
      Math.max(1, Math.round(share * replicas.length)),
      Math.max(1, replicas.length - 1),
    )
    const isChat = traffic.queue === undefined
    if (replicas.length === 1) return isChat ? chatCap : agentCap
    return replicas.indexOf(replica) < forChat === isChat ? (isChat ? chatCap : agentCap) : 0
  }
}

export const caps = [
  baseline(
    'static-cap',
    'a limit on requests in flight, set per scenario',
    { cap: CAPS },
    (desk, { cap }) => {
      return new Caps(desk, cap)
    },
  ),
  baseline(
    'two-caps',
    'limits on requests in flight and on prompt tokens to prefill, set per scenario',
    { cap: CAPS, tokens: TOKENS },
    (desk, { cap, tokens }) => new Caps(desk, cap, tokens),
  ),
  baseline(
    'cap-edf-prefix',
    'a limit, a queue by earliest deadline, a prefix index',
    { cap: CAPS, reserve: [0.25, 0, 0.5] },
    (desk, { cap, reserve }) => new CapWithQueue(desk, reserving(desk, cap, reserve)),
  ),
  baseline(
    'split',
    'separate pools, each as cap-edf-prefix; share and caps set per scenario',
    { share: [0.5, 0.25, 0.375, 0.625, 0.75, 0.875], chatCap: CAPS, agentCap: CAPS },
    (desk, { share, chatCap, agentCap }) => new CapWithQueue(desk, split(desk, share, chatCap, agentCap)),
  ),
]
