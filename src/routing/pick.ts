/** Which replica takes a request: the one with the fewest prompt tokens still to be prefilled. */
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { ReplicaId } from '../request.js'
import type { Ms, Rng } from '../time.js'

/**
 * Least outstanding prefill tokens in the first pool that has room; among equals the fewest in flight, and among
 * those one drawn by lot, so that routers with the same view do not all go to the same one.
 *
 * Goes wrong where prompts are alike and answers are not: streams that decode for long count only as one in flight
 * each, and a replica full of them looks as good as its prefill queue.
 * @param pools  in the order they are asked
 * @param tried  replicas that this request may not go to again
 * @param heldBy  the one replica that it can go to; undefined: any
 * @param waits  its class waits in a queue, so it leaves `Pool.keptFree` to those that do not
 * @returns undefined when none has room
 */
export function pick(
  pools: readonly Pool[],
  tried: readonly ReplicaId[],
  now: Ms,
  rng: Rng,
  waits = false,
  heldBy?: ReplicaId,
): Replica | undefined {
  for (const pool of pools) {
    const replica = leastLoaded(pool, tried, now, rng, waits ? pool.keptFree : 0, heldBy)
    if (replica !== undefined) return replica
  }
  return undefined
}

function leastLoaded(
  pool: Pool,
  tried: readonly ReplicaId[],
  now: Ms,
  rng: Rng,
  keepFree: number,
  heldBy: ReplicaId | undefined,
): Replica | undefined {
  let best: Replica | undefined
  let equals = 1
  for (const replica of pool.replicas) {
    const { id } = replica.spec
    if (heldBy !== undefined && heldBy !== id) continue
    if (!replica.hasRoom(now, keepFree) || tried.includes(id)) continue
    const more = best === undefined ? -1 : compare(replica, best)
    if (more < 0) equals = 1
    if (more < 0 || (more === 0 && rng.next() * ++equals < 1)) best = replica
  }
  return best
}

function compare(a: Replica, b: Replica): number {
  return a.outstandingPrefillTokens - b.outstandingPrefillTokens || a.inFlight - b.inFlight
}
