/** A balancer that counts prompt tokens to compute and context tokens on each replica. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Ms } from '../time.js'
import { Loads } from './loads.js'
import { Prefixed } from './prefixed.js'

export abstract class Counted extends Prefixed {
  protected readonly loads = new Loads()

  /** Tokens of context that the replica's memory holds; Infinity: not known. */
  protected kvTokens({ spec: { pool } }: Replica): number {
    return this.desk.pools[pool]?.spec.kvTokens ?? Number.POSITIVE_INFINITY
  }

  /** A count is about to change. */
  protected changes(_now: Ms): void {}

  protected override send(open: Open, replica: Replica, now: Ms): void {
    this.changes(now)
    this.loads.sent(open, replica, this.hits(open)(replica))
    super.send(open, replica, now)
  }

  firstToken(open: Open, replica: Replica, now: Ms): void {
    this.changes(now)
    this.loads.firstToken(open, replica)
  }

  mark(open: Open, replica: Replica, now: Ms, events: number): void {
    this.changes(now)
    this.loads.mark(open, replica, events)
  }

  failed(open: Open, replica: Replica, _failure: unknown, now: Ms): void {
    this.changes(now)
    this.loads.gone(open, replica)
  }

  ended(open: Open, replica: Replica | undefined, _ending: unknown, _judgement: unknown, now: Ms): void {
    this.changes(now)
    if (replica !== undefined) this.loads.gone(open, replica)
  }
}
