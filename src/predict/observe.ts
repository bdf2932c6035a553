/** What one replica has to do now, seen from outside, and what it teaches the fit of its kind. */
import type { Usage } from '../slo/latency.js'
import type { Ms } from '../time.js'
import { Flight } from './flight.js'
import type { Load } from './latency.js'
import { Rate } from './rate.js'
import { type Burst, StepRows } from './rows.js'
import { prefillMs, type StepFit, stepMs } from './step.js'

/** Marks within it came out of one step: above a rack's jitter, below the steps of all engines measured. */
const BURST_MS: Ms = 2
/** Memory of the rate of prefill. 5 s (algorithms 6.2) holds a few dozen prompts: the pace predicted by it was off by more. */
const RATE_MS: Ms = 30_000
/** Steps of one prompt from which the budget is measured: below, a miscount by one is too large a share of it. */
const BUDGET_STEPS = 4

/**
 * Follows one replica by its dispatches, first tokens, marks and ends, told at rising times. O(1) per event; a mark
 * allocates nothing.
 */
export class ReplicaObserver implements Load {
  readonly fit: StepFit
  readonly replica: number
  readonly #rows: StepRows

  /** Streams that decode; in the step under way they are those that were there at its start. */
  #streams = 0
  #inStep = 0
  #contextTokens = 0
  /** When the last step's tokens began to come, and those of its first tokens. */
  #burstAt: Ms = Number.NEGATIVE_INFINITY
  #burst: Burst | undefined

  /** Line of the requests without first token. */
  #oldest: Flight | undefined
  #newest: Flight | undefined
  #waiting = 0
  #waitingTokens = 0
  #waitingPairs = 0
  /** When the engine began to compute the prompts that waited then; may lie ahead. Then, those that came later. */
  #prefillFrom: Ms = 0
  #lateTokens = 0

  readonly #stolen = new Rate(RATE_MS)
  readonly #stolenSquares = new Rate(RATE_MS)

  /** @param replica  index of the replica among those of its kind, for its factor */
  constructor(fit: StepFit, replica: number) {
    this.fit = fit
    this.replica = replica
    this.#rows = new StepRows(fit, replica)
  }

  get streams(): number {
    return this.#streams
  }

  get contextTokens(): number {
    return this.#contextTokens
  }

  get waiting(): number {
    return this.#waiting
  }

  get waitingTokens(): number {
    return this.#waitingTokens
  }

  get waitingPairs(): number {
    return this.#waitingPairs
  }

  get lateTokens(): number {
    return this.#lateTokens
  }

  get prefillFrom(): Ms {
    return this.#prefillFrom
  }

  get factor(): number {
    return this.fit.factor(this.replica)
  }

  get stepEndsAt(): Ms {
    if (this.#streams === 0) return Number.NEGATIVE_INFINITY
    return this.#burstAt + this.factor * stepMs(this.fit.cost, this.#streams, this.#contextTokens, 0)
  }

  prefillShare(now: Ms): number {
    return this.#stolen.perMs(now)
  }

  jolt(now: Ms): Ms {
    return this.#stolenSquares.perMs(now)
  }

  /**
   * A request is sent to the replica.
   * @param promptTokens  estimated
   * @param cachedTokens  expected to be found in the replica's prefix cache; 0 where nothing is known
   */
  dispatched(promptTokens: number, cachedTokens: number, now: Ms): Flight {
    const alone = this.#waiting === 0
    const { steps } = this.#rows
    const flight = new Flight(
      promptTokens,
      cachedTokens,
      now,
      alone,
      this.#streams,
      this.#contextTokens,
      this.stepEndsAt,
      steps,
    )
    if (alone) this.#prefillFrom = Math.max(now + this.fit.cost.netMs, this.stepEndsAt)
    else if (now > this.#prefillFrom) this.#lateTokens += flight.newTokens
    this.#waiting++
    this.#waitingTokens += flight.newTokens
    this.#waitingPairs += flight.pairs
    flight.before = this.#newest
    if (this.#newest === undefined) this.#oldest = flight
    else this.#newest.after = flight
    this.#newest = flight
    return flight
  }

  /** Its first output event came. @param tokens  in it, as estimated */
  firstToken(flight: Flight, now: Ms, tokens: number): void {
    this.#advance(now)
    this.#leaveLine(flight)
    // The engine goes on with all that waited.
    this.#prefillFrom = now
    this.#lateTokens = 0
    flight.firstTokenAt = now
    flight.lastAt = now
    flight.outputTokens = tokens
    // Steps are counted by the streams' tokens: one has to have been there all the time.
    if (flight.streamsBefore > 0 && this.#streams > 0)
      flight.stepsToFirst = this.#rows.steps - flight.stepsBefore
    this.#burst ??= { prompts: 0, newTokens: 0, wholeTokens: 0 }
    if (this.#inStep > 0) this.#rows.prefilled(flight, this.#burst)
    flight.oldest = this.#burst.prompts === 0
    this.#burst.prompts++
    flight.burst = this.#burst
    this.#streams++
    this.#contextTokens += flight.promptTokens + tokens
    this.fit.firstTokens++
    const stolen = this.#stolenMs(flight)
    this.#stolen.add(stolen, now)
    this.#stolenSquares.add(stolen * stolen, now)
  }

  /** A further output event of it came. @param tokens  in it, as estimated, above 0 */
  mark(flight: Flight, now: Ms, tokens: number): void {
    if (now - this.#burstAt > BURST_MS) this.#advance(now)
    const gap = now - flight.lastAt
    flight.lastAt = now
    flight.outputTokens += tokens
    this.#rows.mark(gap, tokens, Math.max(1, this.#inStep), this.#contextTokens)
    this.#contextTokens += tokens
  }

  /** It left the replica, however it ended. @param usage  as the replica told it; undefined where it did not */
  ended(flight: Flight, now: Ms, usage: Pick<Usage, 'promptTokens' | 'cachedTokens'> | undefined): void {
    this.#advance(now)
    if (flight.firstTokenAt === undefined) {
      this.#leaveLine(flight)
      // The engine may have computed a part of it.
      this.#rows.drop(now)
      return
    }
    this.#streams--
    this.#contextTokens =
      this.#streams === 0 ? 0 : this.#contextTokens - flight.promptTokens - flight.outputTokens
    // The rest of a prompt would be computed with no stream to show its time.
    if (this.#streams === 0 && this.#waiting > 0) this.#rows.drop(now)
    if (usage !== undefined) {
      flight.promptTokens = usage.promptTokens
      flight.cachedTokens = usage.cachedTokens ?? flight.cachedTokens
    }
    const told = usage !== undefined
    this.#rows.settled(flight, told, now)
    if (told && !flight.oldest && flight.burst !== undefined) {
      flight.burst.wholeTokens += flight.newTokens
      this.fit.provedBudget(flight.burst.wholeTokens)
    }
    if (told && flight.alone && flight.burst?.prompts === 1)
      this.#learnAlone(flight, flight.firstTokenAt, now)
  }

  #learnAlone(flight: Flight, firstTokenAt: Ms, now: Ms): void {
    this.#learnBudget(flight)
    const took = firstTokenAt - flight.dispatchedAt - this.#waitMs(flight)
    if (took > 0) this.#rows.ttft(flight, took, now)
  }

  /** How long it waited for the end of the step that was under way when it got there. */
  #waitMs(flight: Flight): Ms {
    if (flight.streamsBefore === 0) return 0
    const { cost } = this.fit
    const step = this.factor * stepMs(cost, flight.streamsBefore, flight.contextBefore, 0)
    const late = flight.dispatchedAt + cost.netMs - flight.stepEndsAt
    return late <= 0 ? -late : Math.ceil(late / step) * step - late
  }

  /** Steps that one prompt took tell the prompt tokens in a step. */
  #learnBudget(flight: Flight): void {
    if (flight.stepsToFirst === undefined) return
    const { fit } = this
    // On its way it saw steps end, and then the one that was under way when it got there: they had none of it.
    const decode = this.factor * stepMs(fit.cost, flight.streamsBefore, flight.contextBefore, 0)
    const steps = Math.round(flight.stepsToFirst - 1 - fit.cost.netMs / decode)
    // The net's share of a step may have been one more: what is a proof counts none for it.
    if (flight.stepsToFirst <= 2) fit.provedBudget(flight.newTokens)
    // The last chunk is half full on average.
    else if (steps >= BUDGET_STEPS) fit.sawChunk(flight.newTokens / (steps - 0.5) + flight.streamsBefore)
  }

  /** What computing its prompt adds to the time of every stream. */
  #stolenMs(flight: Flight): Ms {
    const { cost, budget } = this.fit
    const steps = Math.ceil(flight.newTokens / Math.max(1, budget - this.#streams))
    const prefill = prefillMs(cost, 0, 0, flight.newTokens, flight.pairs, budget)
    return this.factor * Math.max(0, prefill - steps * cost.floorMs)
  }

  #leaveLine(flight: Flight): void {
    const { before, after } = flight
    if (before === undefined) this.#oldest = after
    else before.after = after
    if (after === undefined) this.#newest = before
    else after.before = before
    flight.before = undefined
    flight.after = undefined
    this.#waiting--
    this.#waitingTokens -= flight.newTokens
    this.#waitingPairs -= flight.pairs
    this.#lateTokens = Math.min(this.#lateTokens, this.#waitingTokens)
  }

  /** The tokens of a new step begin to come, unless this is still the last one's. */
  #advance(now: Ms): void {
    if (now - this.#burstAt <= BURST_MS) return
    const oldest = this.#oldest?.dispatchedAt ?? Number.POSITIVE_INFINITY
    const halfDone = oldest + this.fit.cost.netMs <= this.#burstAt - this.#rows.lastStepMs
    this.#rows.stepEnded(this.#burstAt, halfDone)
    this.#burstAt = now
    this.#burst = undefined
    this.#inStep = this.#streams
  }
}
