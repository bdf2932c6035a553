/** The rule without a model of the engine: counts and limits, least outstanding prefill, a queue by deadline. */
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import { pick } from '../routing/pick.js'
import type { Ms, Rng } from '../time.js'
import { Door } from './door.js'
import type { Lane } from './lane.js'
import { Lines } from './lines.js'
import type { Open } from './open.js'
import type { Policy, PolicySpec } from './policy.js'
import type { Desk, Rule } from './rule.js'

/**
 * Builds the policy. It looks at counts only: a request goes to the home pool's replica with the fewest prompt
 * tokens to prefill that is below its limit, else to the next pool of its class, else it waits where its class
 * waits, else it is shed. Where both kinds of class share a pool, those that wait leave a quarter of each replica's
 * slots to those that do not.
 *
 * Goes wrong where the limit does not fit: set too high, every stream of a replica gets slow at once and nothing is
 * shed; set too low, room is wasted. It charges nobody for what a long prompt does to running streams.
 * @param rng  breaks ties and spreads retries; the same numbers give the same decisions
 */
export function createPolicy(spec: PolicySpec, rng: Rng): Policy {
  return new Door(spec, rng, desk => new SimpleRule(desk))
}

class SimpleRule implements Rule {
  readonly #desk: Desk
  readonly #lines: Lines

  constructor(desk: Desk) {
    this.#desk = desk
    this.#lines = new Lines(desk, hasRoom, (open, now) => this.#pick(open, open.lane.pools, now))
  }

  arrive(open: Open, now: Ms): void {
    const { lane } = open
    const replica = this.#pick(open, lane.pools, now)
    if (replica !== undefined) this.#desk.dispatch(open, replica, now)
    else if (!this.#desk.queue(open, now)) {
      this.#desk.shed(open, lane.traffic.queue === undefined && !lane.up ? 'no_replica' : 'no_headroom', now)
    }
  }

  again(open: Open, pools: readonly Pool[], now: Ms): void {
    const replica = this.#pick(open, pools, now)
    if (replica !== undefined) this.#desk.dispatch(open, replica, now)
    else this.#desk.queue(open, now)
  }

  freed(now: Ms): void {
    this.#lines.serve(now)
  }

  waits(open: Open, now: Ms): void {
    this.#lines.waits(open, now)
  }

  left(open: Open): void {
    this.#lines.left(open)
  }

  reconfigure(): void {
    this.#lines.clear()
  }

  #pick(open: Open, pools: readonly Pool[], now: Ms): Replica | undefined {
    return pick(pools, open.tried, now, this.#desk.rng, open.traffic.queue !== undefined, open.heldBy)
  }
}

/** For one of those who wait. */
function hasRoom({ pools }: Lane, now: Ms): boolean {
  return pools.some(({ replicas, keptFree }) => replicas.some(replica => replica.hasRoom(now, keptFree)))
}
