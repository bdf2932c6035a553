/** Cuts what is seen of one replica's steps into rows for the fit: a mean step time beside what was in the steps. */
import type { Ms } from '../time.js'
import type { Flight } from './flight.js'
import { COLUMNS, CONTEXT, FLOOR, hidden, MIXED, NET, PAIRS, PREFILL, STREAMS, type StepFit } from './step.js'

/** Prompts whose first tokens came out of one step. */
export interface Burst {
  prompts: number
  /** Of the prompts that have ended. */
  newTokens: number
  /** Of those of them that were computed in this step alone: all but the oldest, which earlier steps may have begun. */
  wholeTokens: number
}

/** The prompts of a row. It waits until they have ended, for only `usage` tells how much of them was cached. */
export interface RowPrefill {
  readonly bursts: Burst[]
  pairs: number
  /** Prompts that have not ended. */
  open: number
  /** A prompt in it never told its tokens. */
  spoilt: boolean
  /** undefined while the row is not cut. */
  sums: RowSums | undefined
}

interface RowSums {
  readonly steps: number
  readonly streams: number
  readonly contextTokens: number
  /** Mean time of a step. */
  readonly tookMs: Ms
}

/** Shortest time a row spans. Source: algorithms 6.3. */
const WINDOW_MS: Ms = 50
/** Events that hold several tokens have gaps that reach back as many steps: a row spans at least this many of them. */
const COALESCED_GAPS = 4
/** A prompt that takes longer than this is queued in the engine, not computed: such a row is dropped. */
const WINDOW_MAX_MS: Ms = 20_000
/** A row of less than one step has lost marks. */
const STEPS_MIN = 0.8

export class StepRows {
  readonly #fit: StepFit
  readonly #replica: number
  readonly #row = new Float64Array(COLUMNS)
  /** Steps since the start, counted by marks: each is a share of one step, by the streams in it. */
  steps = 0
  /** Time of the last step, from the last mark. */
  lastStepMs: Ms = 0

  #from: Ms = 0
  #steps = 0
  #context = 0
  #gaps = 0
  #tokens = 0
  #marks = 0
  #prefill: RowPrefill | undefined
  #spoilt = false

  constructor(fit: StepFit, replica: number) {
    this.#fit = fit
    this.#replica = replica
  }

  /** @param streams  in the step that this mark came out of, at least 1 */
  mark(gap: Ms, tokens: number, streams: number, contextTokens: number): void {
    const share = tokens / streams
    this.steps += share
    this.lastStepMs = gap / tokens
    this.#steps += share
    this.#context += share * contextTokens
    this.#gaps += gap
    this.#tokens += tokens
    this.#marks++
  }

  /** A first token came out of a step whose time streams beside it show. */
  prefilled(flight: Flight, burst: Burst): void {
    this.#prefill ??= { bursts: [], pairs: 0, open: 0, spoilt: false, sums: undefined }
    if (burst.prompts === 0) this.#prefill.bursts.push(burst)
    this.#prefill.open++
    flight.row = this.#prefill
  }

  /** What is known of a prompt now that its answer has ended. */
  settled(flight: Flight, told: boolean, now: Ms): void {
    if (flight.burst !== undefined) flight.burst.newTokens += flight.newTokens
    const { row } = flight
    if (row === undefined) return
    row.pairs += flight.pairs
    row.open--
    if (!told) row.spoilt = true
    if (row.open === 0 && row.sums !== undefined) this.#give(row.sums, row, now)
  }

  /**
   * A step has ended, at `at`: cuts the row there if it is long enough.
   * @param halfDone  a prompt was in it that is not through
   */
  stepEnded(at: Ms, halfDone: boolean): void {
    const span = at - this.#from
    if (this.#marks === 0) {
      if (this.#prefill === undefined) this.#from = at
      return
    }
    if (span < WINDOW_MS) return
    const perMark = this.#tokens / this.#marks
    if (perMark > 1.5 && this.#steps < COALESCED_GAPS * perMark) return
    if (halfDone) {
      if (span > WINDOW_MAX_MS) this.drop(at)
    } else if (this.#spoilt) this.#restart(at)
    else this.#cut(at)
  }

  /**
   * Forgets the row under way, and the next up to its first clean edge: prompts that are half done now would count
   * there in full.
   */
  drop(at: Ms): void {
    this.#restart(at)
    this.#spoilt = true
  }

  #cut(at: Ms): void {
    const sums: RowSums = {
      steps: this.#steps,
      streams: this.#tokens / this.#steps,
      contextTokens: this.#context / this.#steps,
      tookMs: this.#gaps / this.#tokens,
    }
    const prefill = this.#prefill
    this.#fit.gaps += this.#marks
    this.#restart(at)
    if (prefill !== undefined) prefill.sums = sums
    if (prefill === undefined || prefill.open === 0) this.#give(sums, prefill, at)
  }

  /** A row that is not cut gives nothing, for its prompts wait for its sums. */
  #restart(at: Ms): void {
    this.#from = at
    this.#spoilt = false
    this.#steps = 0
    this.#context = 0
    this.#gaps = 0
    this.#tokens = 0
    this.#marks = 0
    this.#prefill = undefined
  }

  #give(sums: RowSums, prefill: RowPrefill | undefined, now: Ms): void {
    const { steps } = sums
    if (prefill?.spoilt || steps < STEPS_MIN || !(sums.tookMs > 0)) return
    let tokens = 0
    let hid = 0
    for (const burst of prefill?.bursts ?? []) {
      const chunk = Math.max(1, this.#fit.budget - sums.streams)
      const full = Math.floor(burst.newTokens / chunk)
      tokens += burst.newTokens
      hid += full + hidden(burst.newTokens - full * chunk)
    }
    const row = this.#row
    row[MIXED] = Math.min(1, hid / steps)
    row[FLOOR] = 1 - (row[MIXED] as number)
    row[STREAMS] = sums.streams
    row[CONTEXT] = sums.contextTokens / 1e3
    row[PREFILL] = tokens / steps / 1e3
    row[PAIRS] = (prefill?.pairs ?? 0) / steps / 1e6
    row[NET] = 0
    this.#fit.add(row, sums.tookMs, this.#replica, now)
  }

  /**
   * A row from the time to first token of a prompt that had the engine's prefill to itself: it shows what lies
   * outside of steps, and prefill where nothing decodes beside it.
   */
  ttft(flight: Flight, tookMs: Ms, now: Ms): void {
    const streams = flight.streamsBefore
    const chunk = Math.max(1, this.#fit.budget - streams)
    const full = Math.floor(flight.newTokens / chunk)
    const rest = flight.newTokens - full * chunk
    const steps = full + (rest > 0 ? 1 : 0)
    const row = this.#row
    row[MIXED] = full + hidden(rest)
    row[FLOOR] = steps - (row[MIXED] as number)
    row[STREAMS] = streams * steps
    row[CONTEXT] = (flight.contextBefore * steps) / 1e3
    row[PREFILL] = flight.newTokens / 1e3
    row[PAIRS] = flight.pairs / 1e6
    row[NET] = 1
    this.#fit.add(row, tookMs, this.#replica, now)
  }
}
