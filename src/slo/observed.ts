/** One request, as whoever stands before the engines sees it. */
import type { Ms } from '../time.js'
import type { Side } from './side.js'

export interface Bounds {
  readonly ttftMs: Ms
  readonly tpotMs: Ms
}

/** One request; made by `arrived`, to be handed back with each event. */
export interface Observed {
  readonly promptTokens: number
  readonly bounds: Bounds | undefined
  readonly bodyAt: Ms
  /** Set it when the relay pauses its upstream for a slow client: its gaps are not the engine's from there on. */
  throttled: boolean
}

/** How a request ended, as far as it is known. */
export interface ObservedEnd {
  /** Whole: it counts among the answers. */
  readonly complete: boolean
  readonly outputTokens?: number | undefined
  readonly inputTokens?: number | undefined
  readonly cachedTokens?: number | undefined
  /** The target's TPOT clause, as judged. */
  readonly paceMet?: boolean | undefined
}

/** The same, as the collector follows it. */
export class Flight implements Observed {
  throttled = false
  side: Side | undefined
  dispatchedAt: Ms = 0
  firstAt: Ms | undefined
  lastAt: Ms = 0
  tokens = 0
  /** Its replica's steps at its last mark. */
  step = 0
  /** The last gap counted as a stall: so long. */
  stallMs: Ms | undefined
  stallTokens = 0
  /** Prompt tokens in line at its dispatch, its own included. */
  lineTokens = 0
  behindLong = false

  constructor(
    readonly promptTokens: number,
    readonly bounds: Bounds | undefined,
    readonly bodyAt: Ms,
  ) {}
}
