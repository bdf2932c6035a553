/** One replica between two events, as the collector of its pool follows it. */
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import type { EngineGauges } from './engine-gauges.js'

/** Marks within it came out of one step. */
export const BURST_MS: Ms = 2

export class Side {
  waiting = 0
  waitingTokens = 0
  waitingLong = 0
  waitingBig = 0
  streams = 0
  context = 0
  lastFirstAt: Ms = Number.NEGATIVE_INFINITY
  lastBigAt: Ms = Number.NEGATIVE_INFINITY
  /** Steps seen, and when the tokens of the last one began to come. */
  steps = 0
  burstAt: Ms = Number.NEGATIVE_INFINITY
  /** Mean of its quiet steps. */
  usualMs: Ms | undefined
  streamsSince: Ms
  // The row under way.
  rowFrom: Ms
  rowTokens = 0
  rowMs = 0
  rowStreams = 0
  rowContext = 0
  gauges: EngineGauges | undefined
  gaugesAt: Ms = 0

  constructor(
    readonly id: ReplicaId,
    /** Of its first series. */
    readonly series: number,
    public upSince: Ms,
    now: Ms,
  ) {
    this.streamsSince = now
    this.rowFrom = now
  }

  /** Steps of the replica until now, at which tokens of it came. */
  step(now: Ms): number {
    if (now - this.burstAt > BURST_MS) {
      this.steps++
      this.burstAt = now
    }
    return this.steps
  }
}
