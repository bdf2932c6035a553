/** What one engine iteration costs, and the fit that learns it from traffic while that runs. */
import type { Ms } from '../time.js'

/** Time of one iteration, in parts that add up. All at least 0. Plain data: it can be stored and read back. */
export interface StepCost {
  /** An iteration that only decodes, whatever is in it. */
  readonly floorMs: Ms
  /** The same for an iteration that prefills enough to hide the reading of the weights. */
  readonly mixedFloorMs: Ms
  readonly perStreamMs: Ms
  /** By token of the decoding streams' contexts. */
  readonly perContextMs: Ms
  /** By prompt token computed. */
  readonly perPrefillMs: Ms
  /** By pair of prompt tokens that attention compares: a prompt of u after c cached ones has u * (c + u / 2). */
  readonly perPairMs: Ms
  /** Network, HTTP and tokenizer: from dispatch to the engine's sight of it and back. In no iteration. */
  readonly netMs: Ms
}

/**
 * Before anything is known. Source: algorithms 6.3, cold prior; `perPairMs` is that of the slowest but one of the
 * three engines that were measured (1.3 ms per 10^6).
 */
export const COLD: StepCost = {
  floorMs: 10,
  mixedFloorMs: 10,
  perStreamMs: 0.04,
  perContextMs: 0.00006,
  perPrefillMs: 0.06,
  perPairMs: 1.3e-6,
  netMs: 1,
}

/**
 * Prompt tokens at which computing takes as long as reading the weights: from here on the reading is hidden. It is a
 * property of the GPU: an H100 does 989e12 bf16 operations and reads 3.35e12 bytes a second, so 295 tokens at 2
 * operations and 2 bytes a weight; an A100 has 156, a B200 about 280.
 */
const RIDGE_TOKENS = 295

/** Share of the weight reading that a chunk of so many prompt tokens hides, 0 to 1. */
export function hidden(prefillTokens: number): number {
  return Math.min(1, prefillTokens / RIDGE_TOKENS)
}

/** Time of one iteration. `streams` and `contextTokens` are those that decode, `prefillTokens` one chunk's. */
export function stepMs(cost: StepCost, streams: number, contextTokens: number, prefillTokens: number): Ms {
  const share = hidden(prefillTokens)
  return (
    cost.floorMs * (1 - share) +
    cost.mixedFloorMs * share +
    cost.perStreamMs * streams +
    cost.perContextMs * contextTokens +
    cost.perPrefillMs * prefillTokens
  )
}

/**
 * Time of the iterations that compute so many prompt tokens, chunk by chunk, while streams decode beside them.
 * @param pairs   what attention compares in all of them, token pairs
 * @param budget  prompt tokens in one iteration, at most
 */
export function prefillMs(
  cost: StepCost,
  streams: number,
  contextTokens: number,
  prefillTokens: number,
  pairs: number,
  budget: number,
): Ms {
  const chunk = Math.max(1, budget - streams)
  const full = Math.floor(prefillTokens / chunk)
  const rest = prefillTokens - full * chunk
  const whole = full > 0 ? full * stepMs(cost, streams, contextTokens, chunk) : 0
  const last = rest > 0 ? stepMs(cost, streams, contextTokens, rest) : 0
  return whole + last + cost.perPairMs * pairs
}

/** Columns of a row. A row says: the sum of column times coefficient took `tookMs`. */
export const FLOOR = 0
export const MIXED = 1
export const STREAMS = 2
/** In 1,000 tokens, like PREFILL; PAIRS in 10^6. Columns of like size keep the equations well behaved. */
export const CONTEXT = 3
export const PREFILL = 4
export const PAIRS = 5
export const NET = 6
export const COLUMNS = 7

/** vLLM's `max_num_batched_tokens` on GPUs of 70 GiB and more: those who wait together share a step, unless shown otherwise. */
const BUDGET = 8192
const BUDGET_NEWEST = 0.2
/** So many iterations of a size prove it: reads may join two. */
const PROOFS = 3
/** Weight of what was learned, after one more row: memory of about 1,000 rows. Source: algorithms 6.3. */
const FORGETTING = 0.999
/** Weight of the cold prior, in rows whose time is all in one column: what traffic does not show stays near it. */
const PRIOR_ROWS = 0.05
/** Rows between two solutions: one costs about 15 us. */
const SOLVE_EVERY = 16
/** Reservoir: strata of streams, of the share of time that prefill takes, and rows in each. Source: algorithms 6.3. */
const STREAM_BINS = 10
const SHARE_BINS = 4
const KEPT = 50
/** Width of a stratum of streams: 1.8^9 = 198 streams and more are in the last. */
const STREAM_BASE = Math.log(1.8)
/** Rows of time to first token have strata of their own, for they alone show `netMs`. */
const CELLS = STREAM_BINS * SHARE_BINS + STREAM_BINS
/** A row's columns, what they took, and when. */
const WIDTH = COLUMNS + 2
/** Rows of longer ago are of an engine that may have changed since. */
const ROW_LIFE_MS: Ms = 3_600_000
/** A replica's factor follows its gaps with this time constant, within these bounds. Source: algorithms 6.3. */
const FACTOR_MS: Ms = 30_000
const FACTOR_MIN = 0.5
const FACTOR_MAX = 3

/** Counts that a fit must have seen to be called calibrated. Source: algorithms 6.3, M13. */
const CALIBRATED = { firstTokens: 200, gaps: 2000 }

/**
 * The step model of replicas of one kind (model, hardware, engine settings), fitted by recursive least squares on
 * relative errors, coefficients held at 0 or above. Beside each new row one old row is taken in again, from strata
 * of load in turn, so that hours at one load do not make it forget the others. A replica has a factor of its own, by
 * which it is slower or faster than the mean of its kind.
 */
export class StepFit {
  #cost: StepCost = COLD
  #relative = 0.3
  /** First tokens and gaps seen. */
  firstTokens = 0
  gaps = 0
  /** Prompt tokens in one iteration at most, as learned; decoding streams take theirs from it, too. */
  budget = BUDGET
  /** Most prompt tokens that one iteration seems to have computed, rising. */
  readonly #most = new Float64Array(PROOFS)
  readonly #prior = new Float64Array(COLUMNS)
  /** Size of each coefficient, for what is small in it; a stored one may be 0. */
  readonly #scale = new Float64Array(COLUMNS)
  readonly #theta = new Float64Array(COLUMNS)
  /** Normal equations: sum of weighted products of columns, and of columns with times. */
  readonly #products = new Float64Array(COLUMNS * COLUMNS)
  readonly #sums = new Float64Array(COLUMNS)
  readonly #kept = new Float64Array(CELLS * KEPT * WIDTH)
  readonly #keptRows = new Int32Array(CELLS)
  readonly #nextRow = new Int32Array(CELLS)
  readonly #replayed = new Int32Array(CELLS)
  #cell = 0
  #untilSolved = SOLVE_EVERY
  readonly #factors: { log: number; at: Ms | undefined }[] = []
  /** Of all factors, and how many there are: a mean over thousands of replicas is not summed at every row. */
  #sumLog = 0
  #known = 0

  /** @param prior  a sweep's cost, or what was stored; `COLD` where there is none */
  constructor(prior: StepCost = COLD) {
    this.beginFrom(prior)
  }

  /** Begins from another prior; to be called before anything is added. */
  beginFrom(prior: StepCost, budget = BUDGET): void {
    this.budget = budget
    this.#cost = prior
    this.#prior.set(columnsOf(prior))
    this.#theta.set(this.#prior)
    columnsOf(COLD).forEach((cold, i) => {
      this.#scale[i] = Math.max(cold, this.#prior[i] as number)
    })
  }

  /** One iteration computed so many prompt tokens. Believed when it happened often: reads may join two iterations. */
  provedBudget(tokens: number): void {
    const most = this.#most
    if (tokens <= (most[0] as number)) return
    let at = 1
    for (; at < PROOFS && (most[at] as number) < tokens; at++) most[at - 1] = most[at] as number
    most[at - 1] = tokens
    this.budget = Math.max(this.budget, most[0] as number)
  }

  /** A long prompt was computed in chunks of about so many tokens. */
  sawChunk(tokens: number): void {
    this.budget = Math.max(this.#most[0] as number, this.budget + BUDGET_NEWEST * (tokens - this.budget))
  }

  /** The newest solution, of a replica whose factor is 1. */
  get cost(): StepCost {
    return this.#cost
  }

  /** Enough was seen to predict by (algorithms 6.3): until then `max_in_flight` holds. */
  get calibrated(): boolean {
    return this.firstTokens >= CALIBRATED.firstTokens && this.gaps >= CALIBRATED.gaps
  }

  /** Mean size of the relative error of a row against the model before it learned the row; about the last 200 rows. */
  get relativeError(): number {
    return this.#relative
  }

  /** How many times as long as the model says this replica takes, 0.5 to 3; above 1.5 it is sick. */
  factor(replica: number): number {
    const own = this.#factors[replica]
    return own === undefined ? 1 : clampFactor(Math.exp(own.log - this.#sumLog / this.#known))
  }

  /**
   * Takes in one row.
   * @param row     COLUMNS numbers; not kept
   * @param tookMs  what they took, above 0
   */
  add(row: Float64Array, tookMs: Ms, replica: number, now: Ms): void {
    const took = tookMs / this.factor(replica)
    const expected = dot(row, this.#theta)
    this.#relative += 0.005 * (Math.abs(took - expected) / took - this.#relative)
    if (row[NET] === 0) this.#adjust(replica, tookMs / expected, now)
    this.#learn(row, 0, took)
    this.#replay(now)
    this.#keep(row, took, now)
    if (--this.#untilSolved > 0) return
    this.#untilSolved = SOLVE_EVERY
    this.#solve()
  }

  /** The replica's factor follows its gaps; factors are kept at a mean of 1, for the mean belongs to the model. */
  #adjust(replica: number, ratio: number, now: Ms): void {
    let own = this.#factors[replica]
    if (own === undefined) {
      own = { log: 0, at: undefined }
      this.#factors[replica] = own
      this.#known++
    }
    const log = Math.log(clampFactor(ratio))
    const share = own.at === undefined ? 0 : 1 - Math.exp(-Math.max(0, now - own.at) / FACTOR_MS)
    own.at = now
    const step = share * (log - own.log)
    own.log += step
    this.#sumLog += step
  }

  /** Adds a row to the equations, weighted so that its relative error counts. */
  #learn(rows: Float64Array, at: number, took: number): void {
    let expected = 0
    for (let i = 0; i < COLUMNS; i++) expected += (rows[at + i] as number) * (this.#theta[i] as number)
    // The model's own time, not the row's: that would favour rows that came out short, and one of nearly 0 would
    // outweigh all. A row far above the model, as by a stall, counts as a few.
    const scale = Math.max(expected, took / 2)
    const weight = 1 / (scale * scale)
    for (let i = 0; i < COLUMNS; i++) {
      const x = (rows[at + i] as number) * weight
      this.#sums[i] = (this.#sums[i] as number) + x * took
      for (let j = 0; j < COLUMNS; j++) {
        this.#products[i * COLUMNS + j] =
          (this.#products[i * COLUMNS + j] as number) + x * (rows[at + j] as number)
      }
    }
  }

  /** Takes in one old row again, from the next stratum that has any; then all fades a little. */
  #replay(now: Ms): void {
    for (let tried = 0; tried < CELLS; tried++) {
      this.#cell = (this.#cell + 1) % CELLS
      const rows = this.#keptRows[this.#cell] as number
      if (rows === 0) continue
      const row = (this.#replayed[this.#cell] as number) % rows
      this.#replayed[this.#cell] = row + 1
      const at = (this.#cell * KEPT + row) * WIDTH
      if (now - (this.#kept[at + COLUMNS + 1] as number) > ROW_LIFE_MS) continue
      this.#learn(this.#kept, at, this.#kept[at + COLUMNS] as number)
      break
    }
    for (let i = 0; i < COLUMNS; i++) this.#sums[i] = (this.#sums[i] as number) * FORGETTING
    for (let i = 0; i < COLUMNS * COLUMNS; i++) this.#products[i] = (this.#products[i] as number) * FORGETTING
  }

  /** Puts a row into its stratum, in place of the oldest there. */
  #keep(row: Float64Array, took: number, now: Ms): void {
    const streams = Math.min(
      STREAM_BINS - 1,
      Math.floor(Math.log(1 + (row[STREAMS] as number)) / STREAM_BASE),
    )
    const prefill = (row[PREFILL] as number) * (this.#theta[PREFILL] as number)
    const share = prefill === 0 ? 0 : Math.min(SHARE_BINS - 1, 1 + Math.floor((4 * prefill) / took))
    const cell = row[NET] === 0 ? streams * SHARE_BINS + share : STREAM_BINS * SHARE_BINS + streams
    const next = this.#nextRow[cell] as number
    const at = (cell * KEPT + next) * WIDTH
    this.#kept.set(row, at)
    this.#kept[at + COLUMNS] = took
    this.#kept[at + COLUMNS + 1] = now
    this.#nextRow[cell] = (next + 1) % KEPT
    this.#keptRows[cell] = Math.max(this.#keptRows[cell] as number, next + 1)
  }

  /** Least squares with no coefficient below 0, by coordinate descent from the last solution. */
  #solve(): void {
    const theta = this.#theta
    for (let round = 0; round < 60; round++) {
      let moved = 0
      for (let i = 0; i < COLUMNS; i++) {
        const prior = this.#prior[i] as number
        const scale = this.#scale[i] as number
        const ridge = PRIOR_ROWS / (scale * scale)
        let rest = (this.#sums[i] as number) + ridge * prior
        for (let j = 0; j < COLUMNS; j++) {
          if (j !== i) rest -= (this.#products[i * COLUMNS + j] as number) * (theta[j] as number)
        }
        const next = Math.max(0, rest / ((this.#products[i * COLUMNS + i] as number) + ridge))
        moved = Math.max(moved, Math.abs(next - (theta[i] as number)) / scale)
        theta[i] = next
      }
      if (moved < 1e-4) break
    }
    this.#cost = costOf(theta)
  }
}

function clampFactor(factor: number): number {
  return Math.min(FACTOR_MAX, Math.max(FACTOR_MIN, factor))
}

function dot(row: Float64Array, theta: Float64Array): number {
  let sum = 0
  for (let i = 0; i < COLUMNS; i++) sum += (row[i] as number) * (theta[i] as number)
  return sum
}

function columnsOf(cost: StepCost): Float64Array {
  const theta = new Float64Array(COLUMNS)
  theta[FLOOR] = cost.floorMs
  theta[MIXED] = cost.mixedFloorMs
  theta[STREAMS] = cost.perStreamMs
  theta[CONTEXT] = cost.perContextMs * 1e3
  theta[PREFILL] = cost.perPrefillMs * 1e3
  theta[PAIRS] = cost.perPairMs * 1e6
  theta[NET] = cost.netMs
  return theta
}

function costOf(theta: Float64Array): StepCost {
  return {
    floorMs: theta[FLOOR] as number,
    mixedFloorMs: theta[MIXED] as number,
    perStreamMs: theta[STREAMS] as number,
    perContextMs: (theta[CONTEXT] as number) / 1e3,
    perPrefillMs: (theta[PREFILL] as number) / 1e3,
    perPairMs: (theta[PAIRS] as number) / 1e6,
    netMs: theta[NET] as number,
  }
}
