/** Where a request is to go: the replica with the largest gain, if that is large enough. */
import { mayTry } from '../fleet/health.js'
import type { Replica } from '../fleet/replica.js'
import type { ReplicaId } from '../request.js'
import type { Ms, Rng } from '../time.js'
import { Gain, type Newcomer, type Spread, weigh } from './gain.js'
import type { View } from './view.js'

/** Gains that differ by less are alike: the first output decides, since loads are not known that well. Source: algorithms 6.5. */
const ALIKE = 0.02
/** Memory from which a newcomer is charged for it, and from which it is not taken. Source: algorithms 6.4. */
const KV_SOFT = 0.8
const KV_HARD = 0.92
/** Replicas that are all looked at; of more than these, so many at random. */
const CANDIDATES = 64
/** A replica that joined, or came back, gets one more at a time until it has answered so many. */
const WARM_AFTER = 30
const COLD_IN_FLIGHT = 2

/** One look for one request. Reused from one to the next. */
export class Asked {
  readonly one: Newcomer
  /** Worth of its being good; 0 where its own promise does not count (it is beyond what any replica can do). */
  value = 1
  /** What gains of its group are counted in. */
  unit = 1
  /** Least gain. */
  needed = 0
  /** Behind another prompt it may not make the first output wait longer than this. */
  guardMs: Ms = Number.POSITIVE_INFINITY
  /** Charge for each stream of the other kind there, so that those who can wait gather. */
  gather = 0
  /** Replicas that it may not go to again, and the only one that it may. */
  tried: readonly ReplicaId[] = []
  heldBy: ReplicaId | undefined
  /** Tokens of context that a replica's memory holds. */
  kvTokens: number | undefined

  constructor(one: Newcomer) {
    this.one = one
  }
}

/** What was found: reused, valid until the next look. */
export interface Choice {
  view: View | undefined
  /** Its chance to be good there. */
  good: number
  /** Something slows requests somewhere: prompts wait, or take a share of the time. */
  busy: boolean
}

/** Prefill that takes less of the time than this slows nobody. Source: algorithms 6.8. */
const QUIET_SHARE = 0.3

export class Chooser {
  readonly #rng: Rng
  readonly #views: readonly (View | undefined)[]
  readonly #spread: Spread
  readonly #gain = new Gain()
  readonly #choice: Choice = { view: undefined, good: 0, busy: false }
  readonly #found: View[] = []
  readonly #totals = new Float64Array(CANDIDATES)
  readonly #goods = new Float64Array(CANDIDATES)
  readonly #ttfts = new Float64Array(CANDIDATES)

  /** @param views  by replica id */
  constructor(rng: Rng, views: readonly (View | undefined)[], spread: Spread) {
    this.#rng = rng
    this.#views = views
    this.#spread = spread
  }

  /**
   * O(replicas up to 64, times the requests on each). Of more replicas 64 are drawn, so that the cost does not grow.
   * @param cachedOn  prompt tokens expected in the prefix cache of a replica
   * @param weights   by group: what a lost answer counts
   * @param scale     of predicted times
   */
  choose(
    asked: Asked,
    replicas: readonly Replica[],
    cachedOn: (id: ReplicaId) => number,
    weights: Float64Array,
    scale: number,
    now: Ms,
  ): Choice {
    const choice = this.#choice
    choice.view = undefined
    choice.busy = false
    const { one } = asked
    const gain = this.#gain
    const sampled = replicas.length > CANDIDATES
    const looks = Math.min(replicas.length, CANDIDATES)
    let best = Number.NEGATIVE_INFINITY
    let count = 0
    for (let i = 0; i < looks; i++) {
      const replica = replicas[sampled ? Math.floor(this.#rng.next() * replicas.length) : i] as Replica
      const view = this.#views[replica.spec.id]
      if (view === undefined || !mayGo(asked, view, now)) continue
      weigh(view, view.running, one, cachedOn(replica.spec.id), weights, this.#spread, scale, now, gain)
      if (view.waiting > 0 || view.prefillShare(now) >= QUIET_SHARE) choice.busy = true
      if (view.waiting > 0 && gain.ttftMs > asked.guardMs) continue
      const memory = this.#memory(asked, view)
      if (memory === Number.POSITIVE_INFINITY) continue
      const others = view.streams - view.running.deadlines
      const total = asked.value * gain.good - gain.loss - memory * asked.unit - asked.gather * others
      if (total > best) best = total
      this.#found[count] = view
      this.#totals[count] = total
      this.#goods[count] = gain.good
      this.#ttfts[count] = gain.ttftMs
      count++
    }
    if (best < asked.needed) return choice
    let soonest = Number.POSITIVE_INFINITY
    for (let i = 0; i < count; i++) {
      const ttft = this.#ttfts[i] as number
      if ((this.#totals[i] as number) < best - ALIKE * asked.unit || ttft >= soonest) continue
      soonest = ttft
      choice.view = this.#found[i]
      choice.good = this.#goods[i] as number
    }
    return choice
  }

  /** What it costs to fill the memory so far: a share of the newcomer's worth; Infinity: it does not fit. */
  #memory({ kvTokens, one }: Asked, view: View): number {
    if (kvTokens === undefined || view.streams + view.waiting === 0) return 0
    const own = one.promptTokens + (one.lengths[2] as number)
    const full = (view.contextTokens + view.waitingTokens + this.#gain.growth + own) / kvTokens
    if (full > KV_HARD) return Number.POSITIVE_INFINITY
    return Math.max(0, full - KV_SOFT) / (KV_HARD - KV_SOFT)
  }
}

function mayGo(asked: Asked, { replica, answered }: View, now: Ms): boolean {
  const { id } = replica.spec
  if (asked.heldBy !== undefined && asked.heldBy !== id) return false
  if (answered < WARM_AFTER && replica.inFlight >= COLD_IN_FLIGHT + answered) return false
  return mayTry(replica.health, now) && now >= replica.aloneUntil && !asked.tried.includes(id)
}
