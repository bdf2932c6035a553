/** The requests of one class for one set of pools: what can stand in one line, since any of them may go first. */
import { DeadlineQueue } from '../admission/queue.js'
import { Reservations } from '../admission/retry-after.js'
import type { Pool } from '../fleet/pool.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'
import type { Open } from './open.js'

/** A lane that waits gains one step of priority each time this passes. */
const AGING_MS: Ms = 5_000

export class Lane {
  readonly traffic: TrafficClass
  /** Pools of the class that serve the model, home first. At least one. */
  readonly pools: readonly Pool[]
  readonly queue: DeadlineQueue<Open> | undefined
  readonly reservations = new Reservations()
  /** Last time one was served from the queue, or the queue began. */
  servedAt: Ms = 0

  constructor(traffic: TrafficClass, pools: readonly Pool[]) {
    this.traffic = traffic
    this.pools = pools
    this.queue = traffic.queue === undefined ? undefined : new DeadlineQueue<Open>()
  }

  /** For one of those who wait. */
  hasRoom(now: Ms): boolean {
    return this.pools.some(({ replicas, keptFree }) =>
      replicas.some(replica => replica.hasRoom(now, keptFree)),
    )
  }

  /** How long from `now` until the first replica that asked to be left alone may be sent to; 0: one may be already. */
  aloneForMs(now: Ms): Ms {
    const until = this.pools.flatMap(({ replicas }) => replicas.map(replica => replica.aloneUntil))
    return until.length === 0 ? 0 : Math.max(0, Math.min(...until) - now)
  }

  /** Some replica of it is healthy. */
  get up(): boolean {
    return this.pools.some(pool => pool.up > 0)
  }

  get slotsPerMs(): number {
    return this.pools.reduce((sum, pool) => sum + pool.slotsPerMs, 0)
  }

  /** Order among lanes with somebody waiting: lower is sooner. */
  rank(now: Ms): number {
    return this.traffic.priority - Math.floor((now - this.servedAt) / AGING_MS)
  }
}

/**
 * Whose turn it is: the lowest priority number, then the earliest deadline at the head.
 *
 * Nothing starves: a lane `d` steps of priority behind the others outranks every lane that was served in the last
 * 5 s once it has gone `(d + 1) * 5 s` unserved, and then has the next slot it can use, after the lanes that have
 * waited as long as it. One request waits for its class's `queue.wait` at most, whatever the others do.
 * @returns undefined when nobody waits where there is room
 */
export function nextLane(lanes: readonly Lane[], stuck: readonly Lane[], now: Ms): Lane | undefined {
  let best: Lane | undefined
  for (const lane of lanes) {
    if (lane.queue === undefined || lane.queue.size === 0 || stuck.includes(lane) || !lane.hasRoom(now))
      continue
    if (best === undefined || before(lane, best, now)) best = lane
  }
  return best
}

function before(a: Lane, b: Lane, now: Ms): boolean {
  const ranks = a.rank(now) - b.rank(now)
  const deadlines = (a.queue?.peek()?.deadlineAt ?? Infinity) - (b.queue?.peek()?.deadlineAt ?? Infinity)
  return ranks < 0 || (ranks === 0 && deadlines < 0)
}
