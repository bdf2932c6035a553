/** Upper bounds on the good requests of any schedule: fluid linear programs, solved by HiGHS. */
import highsModule from 'highs'
import { type StepCoefficients, stepMs } from '../../src/sim/step-cost.js'
import type { Ms } from '../../src/time.js'
import { type Need, needsOf, type Problem } from './bounds-problem.js'

export interface Bound {
  /** Good requests at most. */
  readonly total: number
  /** By class, in the optimum found: bounds of the total's, not of each class. */
  readonly good: readonly number[]
  /** `optimal`, or how far the solution lies below the bound; `total` is a bound in any case. */
  readonly status: string
  readonly seconds: number
  readonly variables: number
}

/** Length of the slots: finer ones bound more tightly and cost more. */
const SLOT_MS: Ms = 500
/** Prefill is held to parts of a slot. */
const FINE_PARTS = 4

/** Sparse columns in the making. */
class Columns {
  readonly cost: number[] = []
  readonly upper: number[] = []
  readonly starts: number[] = [0]
  readonly indices: number[] = []
  readonly values: number[] = []
  readonly rows: number[] = []

  /** A row `sum <= upper`. */
  row(upper: number): number {
    return this.rows.push(upper) - 1
  }

  /** A column from 0 to `upper` with pairs of row and coefficient. */
  column(
    cost: number,
    upper: number,
    ...entries: readonly (readonly [row: number, value: number])[]
  ): number {
    for (const [row, value] of entries) {
      this.indices.push(row)
      this.values.push(value)
    }
    this.starts.push(this.indices.length)
    this.upper.push(upper)
    return this.cost.push(cost) - 1
  }
}

// The package's types say CommonJS, what Node imports is its ES module: the default export is the loader itself.
const loadHighs = highsModule as unknown as typeof highsModule.default
let loaded: ReturnType<typeof loadHighs> | undefined

interface Solved {
  readonly status: string
  readonly values: ArrayLike<number>
  /** What no feasible point exceeds. */
  readonly most: number
}

async function solve(columns: Columns): Promise<Solved> {
  loaded ??= loadHighs()
  const highs = await loaded
  const rows = columns.rows.length
  const infinity = highs.infinity
  return highs.withModel(
    {
      numCols: columns.cost.length,
      numRows: rows,
      sense: highs.constants.objectiveSense.maximize,
      colCost: Float64Array.from(columns.cost),
      colLower: new Float64Array(columns.cost.length),
      colUpper: Float64Array.from(columns.upper, upper => Math.min(upper, infinity)),
      rowLower: new Float64Array(rows).fill(-infinity),
      rowUpper: Float64Array.from(columns.rows),
      matrix: {
        format: 'csc',
        numCols: columns.cost.length,
        numRows: rows,
        starts: Int32Array.from(columns.starts),
        indices: Int32Array.from(columns.indices),
        values: Float64Array.from(columns.values),
      },
    },
    model => {
      model.options.set({ output_flag: false, solver: 'ipm', run_crossover: 'off' })
      model.run()
      const { colValue, rowDual } = model.getSolution()
      const most = dualBound(columns, rowDual)
      const reached = columns.cost.reduce((sum, cost, at) => sum + cost * (colValue[at] as number), 0)
      const gap = (most - reached) / Math.max(1, most)
      return { status: gap < 1e-4 ? 'optimal' : `gap ${gap}`, values: colValue, most }
    },
  )
}

/**
 * By weak duality, with any prices of the rows that are not negative, the value of all rows at these prices and of all
 * columns at what they bring beyond them is at least every feasible point's: this holds however far HiGHS came, which
 * without crossover leaves its own status open.
 */
function dualBound(
  { cost, upper, starts, indices, values, rows }: Columns,
  rowDual: ArrayLike<number>,
): number {
  // HiGHS gives the duals of a maximum with the sign of the minimum of its negative.
  const price = (row: number): number => Math.abs(rowDual[row] as number)
  let most = rows.reduce((sum, limit, row) => sum + limit * price(row), 0)
  for (let column = 0; column < cost.length; column++) {
    let left = cost[column] as number
    for (let at = starts[column] as number; at < (starts[column + 1] as number); at++) {
      left -= (values[at] as number) * price(indices[at] as number)
    }
    if (left > 0) most += left * (upper[column] as number)
  }
  return most
}

/** Time in slots; with a period, what comes after its end is at its beginning again. */
class Grid {
  readonly slotMs: Ms
  readonly #slots: number

  constructor(periodMs: Ms | undefined) {
    this.#slots = periodMs === undefined ? Number.POSITIVE_INFINITY : Math.ceil(periodMs / SLOT_MS)
    this.slotMs = periodMs === undefined ? SLOT_MS : periodMs / this.#slots
  }

  /** The slots that a time span touches, how much of each lies in it, and the part of the slot, for spans in parts. */
  *slots(from: Ms, to: Ms, parts = 1): Generator<readonly [slot: number, overlap: Ms, part: number]> {
    const length = this.slotMs / parts
    for (let at = Math.floor(from / length); at * length < to; at++) {
      const part = this.#slots === Number.POSITIVE_INFINITY ? at : at % (this.#slots * parts)
      yield [Math.floor(part / parts), Math.min(to, (at + 1) * length) - Math.max(from, at * length), part]
    }
  }
}

/** Rows made when first asked for. */
function rowsOf(columns: Columns, upper: number): (slot: number) => number {
  const rows: (number | undefined)[] = []
  return slot => {
    rows[slot] ??= columns.row(upper)
    return rows[slot]
  }
}

/** Columns whose sum, each by its objective coefficient, is how much of a job is served. */
interface Served {
  readonly cls: number
  readonly column: number
}

async function bound(
  problem: Problem,
  columns: Columns,
  served: readonly Served[],
  begun: Ms,
): Promise<Bound> {
  const { status, values, most } = await solve(columns)
  const good = problem.classes.map(() => 0)
  for (const { cls, column } of served) {
    good[cls] = (good[cls] as number) + (values[column] as number) * (columns.cost[column] as number)
  }
  return {
    good,
    total: most,
    status,
    seconds: (performance.now() - begun) / 1000,
    variables: columns.cost.length,
  }
}

/**
 * U1, valid for every schedule, by a router or inside the engine, of engines without noise.
 *
 * y_ik is the time in iterations, as `needsOf` counts it, that job i causes in slot k: a job is good only if all of
 * it lies between its arrival and its latest good end, and all jobs together cause no more of it than N replicas have
 * time. The weight read is left out: under a soft roofline a full step hides it, and the capacity factor
 * 1 - tau0 / s_max of an engine that pays it in every step is 1. Chunks of a prefill are one sequence of overhead, a
 * prefix hit is free, KV memory endless, a slot one pot of time that replicas share.
 * @param periodMs  bounds the mean of a list that comes again each time this has passed, for ever, instead: any
 *                  schedule of that, folded into one period and averaged over all of them, satisfies the rows
 */
export async function fluidBound(problem: Problem, periodMs?: Ms): Promise<Bound> {
  const begun = performance.now()
  const columns = new Columns()
  const served: Served[] = []
  const grid = new Grid(periodMs)
  const time = rowsOf(columns, problem.replicas * grid.slotMs)
  for (const [at, need] of needsOf(problem).entries()) {
    if (!need.possible) continue
    const cls = problem.jobs[at]?.cls as number
    const work = need.prefillMs + need.decodeMs
    const whole = columns.row(work)
    for (const [slot, overlap] of grid.slots(need.from, need.lastBy)) {
      served.push({ cls, column: columns.column(1 / work, overlap, [time(slot), 1], [whole, 1]) })
    }
  }
  return bound(problem, columns, served, begun)
}

/** A line below the roofline that touches it where a step takes `stepMs`: fixed ms a step, and share of the matrix work. */
interface Tangent {
  readonly fixedMs: Ms
  readonly slope: number
  readonly stepMs: Ms
}

/** By Hoelder's inequality (w^p + m^p)^(1/p) >= alpha w + beta m wherever alpha^q + beta^q = 1, 1/p + 1/q = 1. */
function tangentAt({ wMs, p }: StepCoefficients, at: Ms): Tangent | undefined {
  if (at <= wMs) return undefined
  const matrix = (at ** p - wMs ** p) ** (1 / p)
  return { fixedMs: (wMs / at) ** (p - 1) * wMs, slope: (matrix / at) ** (p - 1), stepMs: at }
}

/** What one job costs of each kind of time. */
interface Rates {
  /** Of the work in `Need`, what at least counts under the tangent, for prefill and decoding. */
  readonly prefill: number
  readonly decode: number
  /** Real time that decoding takes at least, for each ms of its work. */
  readonly slow: number
}

function ratesOf({ profile }: Problem, need: Need, prompt: number, output: number, slope: number): Rates {
  const { cost } = profile
  const matrix = cost.gMsPerKtok / 1000
  const lighter = (rest: Ms): number => (slope * matrix + rest) / (matrix + rest)
  const perToken = (length: number): Ms => cost.cMsPerSeq + (cost.dMsPerKkv * length) / 1000
  return {
    // Where the rest is least, at the first token, the matrix work weighs most: the factor holds for all others.
    prefill: lighter((cost.aMsPerMtok2 * (prompt - need.uncached)) / 1e6),
    decode: lighter(perToken(prompt)),
    slow: stepMs(cost, 1, 1, 0, prompt + 1) / (matrix + perToken(prompt + output)),
  }
}

/**
 * U2, tighter. Beyond U1: a stream's prefill is done by its TTFT bound; its decoding goes no faster than one token in
 * the shortest step there is, and holds its KV and one of the engine's sequences meanwhile; the weight read is paid.
 *
 * The last: a stream that keeps its TPOT takes part in an iteration every `tpotMs` at least, on average over its span.
 * Where a replica serves a stream, iterations are taken to come that often, so that of its time at most
 * 1 - alpha w / tpot is left for work under the tangent that touches the roofline there. Replica time without any
 * stream (F, free for deadline work) is held to the longest step there can be instead. That average is taken over
 * spans and not over slots, so a schedule whose steps are longest just where spans overlap least could pass this row,
 * by half of alpha w / tpot at most (of intervals that cover a time, some cover it at most twice): 0.8 % of the capacity
 * for llama3-8b at 40 ms. All else in it holds for every schedule.
 * @param periodMs  as for U1
 */
export async function tightBound(problem: Problem, periodMs?: Ms): Promise<Bound> {
  const begun = performance.now()
  const { profile, replicas, classes, jobs } = problem
  const columns = new Columns()
  const served: Served[] = []
  const paces = classes.flatMap(({ clauses }) => (clauses.kind === 'stream' ? clauses.tpotMs : []))
  const tangent = paces.length === 0 ? undefined : tangentAt(profile.cost, Math.max(...paces))
  const left = tangent === undefined ? 1 : 1 - tangent.fixedMs / tangent.stepMs
  const grid = new Grid(periodMs)
  const { slotMs } = grid
  const time = rowsOf(columns, replicas * slotMs)
  const fineTime = rowsOf(columns, (replicas * slotMs) / FINE_PARTS)
  const kv = rowsOf(columns, replicas * profile.kvTokens * slotMs)
  const sequences = rowsOf(columns, replicas * profile.maxSeqs * slotMs)
  const paid = rowsOf(columns, replicas * slotMs * left)
  const finePaid = rowsOf(columns, ((replicas * slotMs) / FINE_PARTS) * left)
  const streamsPaid = rowsOf(columns, replicas * slotMs * left)
  const mixed = tangent !== undefined && classes.some(({ clauses }) => clauses.kind === 'deadline')
  const touched = new Set<number>()

  for (const [at, need] of needsOf(problem).entries()) {
    if (!need.possible) continue
    const { cls, promptTokens, outputTokens } = jobs[at] as (typeof jobs)[number]
    const rates = ratesOf(problem, need, promptTokens, outputTokens, tangent?.slope ?? 1)
    if (classes[cls]?.clauses.kind === 'deadline') {
      const work = need.prefillMs + need.decodeMs
      const least = Math.min(rates.prefill, rates.decode)
      const whole = columns.row(work)
      for (const [slot, overlap] of grid.slots(need.from, need.lastBy)) {
        touched.add(slot)
        const entries: [number, number][] = [
          [time(slot), 1],
          [whole, 1],
        ]
        if (tangent !== undefined) entries.push([paid(slot), least])
        served.push({ cls, column: columns.column(1 / work, overlap, ...entries) })
      }
      continue
    }
    const decodes = outputTokens > 1
    const whole = columns.row(1)
    // No more may be prefilled than is decoded.
    const both = decodes ? columns.row(0) : whole
    const share = 1 / need.prefillMs
    for (const [slot, overlap, fine] of grid.slots(need.from, need.firstBy, FINE_PARTS)) {
      touched.add(slot)
      const entries: [number, number][] = [
        [time(slot), 1],
        [fineTime(fine), 1],
        [whole, share],
      ]
      if (decodes) entries.push([both, share])
      if (tangent !== undefined) {
        entries.push([paid(slot), rates.prefill], [finePaid(fine), rates.prefill])
        if (mixed) entries.push([streamsPaid(slot), rates.prefill])
      }
      served.push({ cls, column: columns.column(share, overlap, ...entries) })
    }
    if (!decodes) continue
    for (const [slot, overlap] of grid.slots(need.from, need.lastBy)) {
      touched.add(slot)
      const entries: [number, number][] = [
        [time(slot), 1],
        [both, -1 / need.decodeMs],
        [kv(slot), rates.slow * need.uncached],
        [sequences(slot), rates.slow],
      ]
      if (tangent !== undefined) {
        entries.push([paid(slot), rates.decode])
        if (mixed) entries.push([streamsPaid(slot), rates.decode])
      }
      columns.column(0, overlap / rates.slow, ...entries)
    }
  }

  if (mixed) {
    const longest = longestStepMs(problem)
    const regained = tangent.fixedMs * (1 / tangent.stepMs - 1 / longest)
    for (const slot of touched) {
      columns.column(0, replicas * slotMs, [paid(slot), -Math.max(0, regained)], [streamsPaid(slot), left])
    }
  }
  return bound(problem, columns, served, begun)
}

/** No iteration takes longer: a full batch, all memory read, the longest prompt's last chunk. */
function longestStepMs({ profile, jobs }: Problem): Ms {
  const longest = jobs.reduce((most, job) => Math.max(most, job.promptTokens), 1)
  const tokens = profile.maxBatchedTokens
  return stepMs(profile.cost, tokens, profile.maxSeqs, tokens * longest, profile.kvTokens)
}
