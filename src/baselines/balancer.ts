/** What rivals' rules have in common: a request goes somewhere at once, or is refused; nothing waits in the router. */
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk, Rule } from '../policy/rule.js'
import type { Ms } from '../time.js'

/**
 * A rule that picks one of the replicas which may take the request: healthy, not asked to be left alone, not tried
 * before. There is no limit on requests in flight unless the rule has one; `PoolSpec.maxInFlight` is Weir's own and not
 * looked at. All pools of the class are one to it: spilling is Weir's own, too.
 */
export abstract class Balancer implements Rule {
  protected readonly desk: Desk
  /** Reused. */
  readonly #among: Replica[] = []

  constructor(desk: Desk) {
    this.desk = desk
  }

  /**
   * @param among  at least one, in the order of the config; reused by the next call
   * @returns undefined where the rule has room on none of them
   */
  protected abstract choose(open: Open, among: readonly Replica[], now: Ms): Replica | undefined

  arrive(open: Open, now: Ms): void {
    const replica = this.pick(open, now)
    if (replica !== undefined) this.send(open, replica, now)
    else this.refuse(open, now)
  }

  again(open: Open, _pools: readonly Pool[], now: Ms): void {
    const replica = this.pick(open, now)
    if (replica !== undefined) this.send(open, replica, now)
  }

  freed(_now: Ms): void {}

  protected send(open: Open, replica: Replica, now: Ms): void {
    this.desk.dispatch(open, replica, now)
  }

  protected refuse(open: Open, now: Ms): void {
    this.desk.shed(open, open.lane.up ? 'no_headroom' : 'no_replica', now)
  }

  protected pick(open: Open, now: Ms): Replica | undefined {
    const among = this.#among
    const { heldBy } = open
    among.length = 0
    for (const pool of open.lane.pools) {
      for (const replica of pool.replicas) {
        const { id } = replica.spec
        if (!replica.isTaking(now) || open.tried.includes(id)) continue
        if (heldBy === undefined || heldBy === id) among.push(replica)
      }
    }
    return among.length === 0 ? undefined : this.choose(open, among, now)
  }

  /** The one with the lowest cost; among equals one drawn by lot. @param cost  Infinity: not this one */
  protected cheapest(among: readonly Replica[], cost: (replica: Replica) => number): Replica | undefined {
    let best: Replica | undefined
    let lowest = Infinity
    let equals = 1
    for (const replica of among) {
      const its = cost(replica)
      if (its < lowest) {
        best = replica
        lowest = its
        equals = 1
      } else if (its === lowest && its < Infinity && this.desk.rng.next() * ++equals < 1) best = replica
    }
    return best
  }
}

export const inFlight = (replica: Replica): number => replica.inFlight
