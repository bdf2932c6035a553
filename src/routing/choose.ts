/** Where a request is to go: the replica with the largest gain, if that is large enough. */
import { mayTry } from '../fleet/health.js'
import type { Replica } from '../fleet/replica.js'
import type { ReplicaId } from '../request.js'
import type { Ms, Rng } from '../time.js'
import { foresee, Gain, growthOf, lost, type Newcomer, type Spread } from './gain.js'
import type { View } from './view.js'

/** Gains that differ by less are alike: the first output decides, since loads are not known that well. Source: algorithms 6.5. */
const ALIKE = 0.02
/** Memory from which a newcomer is charged for it, and from which it is not taken. Source: algorithms 6.4. */
const KV_SOFT = 0.8
const KV_HARD = 0.92
/** Replicas that are all looked at. Of more than these, so many are drawn, and of so many draws the one with least to do. */
const ALL = 64
const DRAWN = 24
const DRAWS = 4
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
  /** Least chance to be good. */
  least = 0
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
  /** The best chance that it has anywhere. */
  hope: number
  /** Something slows requests somewhere: prompts wait, or take a share of the time. */
  busy: boolean
}

/** Prefill that takes less of the time than this slows nobody. Source: algorithms 6.8. */
const QUIET_SHARE = 0.3

/** A replica that is looked at, with what is known of it so far. */
class Candidate {
  readonly gain = new Gain()
  view: View | undefined
  /** What it is worth before any loss. */
  worth = 0
  /** Its gain is at most this. */
  most = 0
  /** undefined: its loss is not counted yet. */
  total: number | undefined
}

export class Chooser {
  readonly #rng: Rng
  readonly #views: readonly (View | undefined)[]
  readonly #spread: Spread
  readonly #choice: Choice = { view: undefined, good: 0, hope: 0, busy: false }
  readonly #candidates = Array.from({ length: ALL }, () => new Candidate())
  #count = 0

  /** @param views  by replica id */
  constructor(rng: Rng, views: readonly (View | undefined)[], spread: Spread) {
    this.#rng = rng
    this.#views = views
    this.#spread = spread
  }

  /**
   * O(replicas up to 64), times the requests on those whose loss matters. of more replicas 24 are looked at, each the
   * least busy of four drawn, so that the cost does not grow.
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
    choice.hope = 0
    this.#count = 0
    const all = replicas.length <= ALL
    const looks = all ? replicas.length : DRAWN
    for (let i = 0; i < looks; i++) {
      const view = all ? this.#views[(replicas[i] as Replica).spec.id] : this.#draw(asked, replicas, now)
      if (view === undefined || !mayGo(asked, view, now)) continue
      this.#look(asked, view, cachedOn(view.replica.spec.id), scale, now)
    }
    const chosen = this.#soonest(asked, weights, now)
    if (chosen !== undefined) {
      choice.view = chosen.view
      choice.good = chosen.gain.good
    }
    return choice
  }

  /** Of some at random the one with least to do; the random part keeps routers with the same view apart. */
  #draw(asked: Asked, replicas: readonly Replica[], now: Ms): View | undefined {
    let least: View | undefined
    for (let i = 0; i < DRAWS; i++) {
      const { spec } = replicas[Math.floor(this.#rng.next() * replicas.length)] as Replica
      const view = this.#views[spec.id]
      if (view === undefined || !mayGo(asked, view, now)) continue
      if (least === undefined || view.replica.inFlight < least.replica.inFlight) least = view
    }
    return least
  }

  /** All that is known of a replica at once: everything but its loss. */
  #look(asked: Asked, view: View, cachedTokens: number, scale: number, now: Ms): void {
    const candidate = this.#candidates[this.#count] as Candidate
    const { gain } = candidate
    foresee(view, asked.one, cachedTokens, this.#spread, scale, now, gain)
    if (view.waiting > 0 || view.prefillShare(now) >= QUIET_SHARE) this.#choice.busy = true
    this.#choice.hope = Math.max(this.#choice.hope, gain.good)
    if (gain.good < asked.least) return
    if (view.waiting > 0 && gain.ttftMs > asked.guardMs) return
    const memory = memoryOf(asked, view)
    if (memory === Number.POSITIVE_INFINITY) return
    const others = view.streams - view.running.deadlines
    candidate.view = view
    candidate.worth = asked.value * gain.good - memory * asked.unit - asked.gather * others
    candidate.most = gain.mayHelp ? Number.POSITIVE_INFINITY : candidate.worth
    candidate.total = undefined
    this.#count++
  }

  /**
   * Of those whose gain is alike the best and enough, the one with the soonest first output. Losses take the time: they
   * are counted in the order of first outputs, each as far as it takes to see that a replica is out, and until none of
   * those that are left can change the answer.
   */
  #soonest(asked: Asked, weights: Float64Array, now: Ms): Candidate | undefined {
    const alike = ALIKE * asked.unit
    let best = Number.NEGATIVE_INFINITY
    for (;;) {
      // Of those that are counted the soonest that is alike the best; of the others the soonest, and what they may reach.
      const floor = Math.max(best, asked.needed) - alike
      let leader: Candidate | undefined
      let next: Candidate | undefined
      let mostLeft = Number.NEGATIVE_INFINITY
      for (let i = 0; i < this.#count; i++) {
        const candidate = this.#candidates[i] as Candidate
        const { total, most, gain } = candidate
        if ((total ?? most) < floor) continue
        if (total !== undefined) {
          if (leader === undefined || gain.ttftMs < leader.gain.ttftMs) leader = candidate
        } else {
          mostLeft = Math.max(mostLeft, most)
          if (next === undefined || gain.ttftMs < next.gain.ttftMs) next = candidate
        }
      }
      const settled = leader?.total !== undefined && leader.total >= mostLeft - alike && sooner(leader, next)
      if (next?.view === undefined || (best >= asked.needed && settled))
        return best >= asked.needed ? leader : undefined
      const { gain, worth, view } = next
      const total = worth - lost(view.running, gain, weights, this.#spread, now, worth - floor)
      next.total = total
      if (total > best) best = total
    }
  }
}

function sooner(a: Candidate, b: Candidate | undefined): boolean {
  return b === undefined || a.gain.ttftMs <= b.gain.ttftMs
}

/** What it costs to fill the memory so far: a share of the newcomer's worth; Infinity: it does not fit. */
function memoryOf({ kvTokens, one }: Asked, view: View): number {
  if (kvTokens === undefined || view.streams + view.waiting === 0) return 0
  const own = one.promptTokens + (one.lengths[2] as number)
  const now = view.contextTokens + view.waitingTokens
  if (now + own > KV_HARD * kvTokens) return Number.POSITIVE_INFINITY
  const full = (now + growthOf(view.running) + own) / kvTokens
  if (full > KV_HARD) return Number.POSITIVE_INFINITY
  return Math.max(0, full - KV_SOFT) / (KV_HARD - KV_SOFT)
}

function mayGo(asked: Asked, { replica, answered }: View, now: Ms): boolean {
  const { id } = replica.spec
  if (asked.heldBy !== undefined && asked.heldBy !== id) return false
  if (answered < WARM_AFTER && replica.inFlight >= COLD_IN_FLIGHT + answered) return false
  return mayTry(replica.health, now) && now >= replica.aloneUntil && !asked.tried.includes(id)
}
