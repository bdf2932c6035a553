/** A balancer behind which classes that may wait do so, by deadline; the others are refused. */
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { Lane } from '../policy/lane.js'
import { Lines } from '../policy/lines.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import type { Ms } from '../time.js'
import { Prefixed } from './prefixed.js'

export abstract class Queueing extends Prefixed {
  readonly #lines: Lines

  constructor(desk: Desk) {
    super(desk)
    this.#lines = new Lines(
      { dispatch: (open, replica, now) => this.send(open, replica, now) },
      ({ traffic, pools }, now) => {
        return pools.some(({ replicas }) =>
          replicas.some(one => one.isTaking(now) && this.hasRoom(traffic, one)),
        )
      },
      (open, now) => this.pickWaiting(open, now),
    )
  }

  /** For one of those of the class who wait; false spares asking for each of them. */
  protected abstract hasRoom(traffic: Lane['traffic'], replica: Replica): boolean

  protected pickWaiting(open: Open, now: Ms): Replica | undefined {
    return this.pick(open, now)
  }

  override arrive(open: Open, now: Ms): void {
    const replica = this.pick(open, now)
    if (replica !== undefined) this.send(open, replica, now)
    else if (!this.desk.queue(open, now)) this.refuse(open, now)
  }

  override again(open: Open, _pools: readonly Pool[], now: Ms): void {
    const replica = this.pick(open, now)
    if (replica !== undefined) this.send(open, replica, now)
    else this.desk.queue(open, now)
  }

  override freed(now: Ms): void {
    this.#lines.serve(now)
  }

  waits(open: Open, now: Ms): void {
    this.#lines.waits(open, now)
  }

  left(open: Open, _now: Ms): void {
    this.#lines.left(open)
  }

  reconfigure(_spec: unknown, _now: Ms): void {
    this.#lines.clear()
  }
}
