/** One request on one replica, as its observer follows it. */
import type { Ms } from '../time.js'
import type { Burst, RowPrefill } from './rows.js'

/** Made by `ReplicaObserver.dispatched`; callers keep it and hand it back with each event. */
export class Flight {
  /** Estimated at dispatch, corrected by `usage`. */
  promptTokens: number
  /** Of them, found in the replica's prefix cache. */
  cachedTokens: number
  readonly dispatchedAt: Ms
  firstTokenAt: Ms | undefined
  /** Last output event. */
  lastAt: Ms = 0
  /** In the events so far, as estimated. */
  outputTokens = 0

  // The observer's own.
  /** Neighbours in the line of those without first token, by dispatch. */
  before: Flight | undefined
  after: Flight | undefined
  /** The step that brought its first token, and the row it counts in. */
  burst: Burst | undefined
  row: RowPrefill | undefined
  /** First of those whose first tokens came out of that step. */
  oldest = false
  /** No prompt was waiting when it was dispatched: its time to first token is its own. */
  readonly alone: boolean
  /** Streams and their contexts at dispatch, and steps counted until then. */
  readonly streamsBefore: number
  readonly contextBefore: number
  /** When the step under way at dispatch would end. */
  readonly stepEndsAt: Ms
  readonly stepsBefore: number
  /** Steps that ended from its dispatch to its first token; undefined where no stream was there to count by. */
  stepsToFirst: number | undefined

  constructor(
    promptTokens: number,
    cachedTokens: number,
    now: Ms,
    alone: boolean,
    streams: number,
    contextTokens: number,
    stepEndsAt: Ms,
    steps: number,
  ) {
    this.promptTokens = promptTokens
    this.cachedTokens = cachedTokens
    this.dispatchedAt = now
    this.alone = alone
    this.streamsBefore = streams
    this.contextBefore = contextTokens
    this.stepEndsAt = stepEndsAt
    this.stepsBefore = steps
  }

  /** Prompt tokens the engine has to compute; it always computes one. */
  get newTokens(): number {
    return Math.max(1, this.promptTokens - this.cachedTokens)
  }

  /** Token pairs that its prompt's attention compares. */
  get pairs(): number {
    return promptPairs(this.promptTokens, this.newTokens)
  }
}

/** Pairs that attention compares for the last `newTokens` of a prompt. Source: engine-data, `attention`. */
export function promptPairs(promptTokens: number, newTokens: number): number {
  return newTokens * (promptTokens - newTokens / 2)
}
