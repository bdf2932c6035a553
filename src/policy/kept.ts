/** What the core keeps of one request, from its arrival to its end. */
import type { Asking, Sent } from '../predict/forecast.js'
import type { Promised } from '../routing/running.js'
import type { Ms } from '../time.js'

export class Kept implements Promised {
  readonly asking: Asking
  readonly group: number
  readonly bound: Ms
  readonly dueAt: Ms
  slot = -1
  /** Its chance to be good on an idle replica; below theta it is beyond what load can be blamed for. */
  idle = 1
  beyond = false
  /** While it is on a replica: what was foreseen of it, its chance to be good, and the tokens held to be cached. */
  sent: Sent | undefined
  expected = 1
  hits = 0
  /** It has a deadline: tokens that nine in ten of its like stay within. */
  tail = 0
  /** At so many output tokens its likely lengths are looked up anew. */
  lookAgainAt = 0

  /**
   * @param bound  ms a token; 0: a deadline
   * @param dueAt  of its first token, or the deadline
   */
  constructor(asking: Asking, group: number, bound: Ms, dueAt: Ms) {
    this.asking = asking
    this.group = group
    this.bound = bound
    this.dueAt = dueAt
  }
}
