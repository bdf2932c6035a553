/** Upper bounds on the good requests of any schedule: fluid linear programs, solved by HiGHS. */
import loadHighs, { type Highs } from 'highs'
import { type StepCoefficients, stepMs } from '../../src/sim/step-cost.js'
import type { Ms } from '../../src/time.js'
import { type Need, needsOf, type Problem } from './bounds-problem.js'

export interface Bound {
  /** Good requests at most, by class; their sum is the bound, each alone is only what that optimum has. */
  readonly good: readonly number[]
  readonly total: number
  /** What HiGHS says of the solution. A bound stands only where it is `Optimal`. */
  readonly status: string
  readonly seconds: number
  readonly variables: number
}

/** Lengths of the slots: finer ones bound more tightly and cost more. */
export const SLOT_MS: Ms = 500
const FINE_SLOT_MS: Ms = 125

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
  column(cost: number, upper: number, ...entries: readonly (readonly [row: number, value: number])[]): number {
    for (const [row, value] of entries) {
      this.indices.push(row)
      this.values.push(value)
    }
    this.starts.push(this.indices.length)
    this.upper.push(upper)
    return this.cost.push(cost) - 1
  }
}

let loaded: Promise<Highs> | undefined

async function solve(columns: Columns): Promise<{ status: string; values: ArrayLike<number> }> {
  loaded ??= loadHighs()
  const highs = await loaded
  const rows = columns.rows.length
  const infinity = highs.infinity
  return highs.withModel(
    {
      numCol: columns.cost.length,
      numRow: rows,
      sense: highs.constants.objectiveSense.maximize,
      colCost: Float64Array.from(columns.cost),
      colLower: new Float64Array(columns.cost.length),
      colUpper: Float64Array.from(columns.upper, upper => Math.min(upper, infinity)),
      rowLower: new Float64Array(rows).fill(-infinity),
      rowUpper: Float64Array.from(columns.rows),
      matrix: {
        format: 'csc',
        starts: Int32Array.from(columns.starts),
        indices: Int32Array.from(columns.indices),
        values: Float64Array.from(columns.values),
      },
    },
    model => {
      model.options.set({ output_flag: false, solver: 'ipm', run_crossover: 'off' })
      model.run()
      return { status: String(model.getModelStatus()), values: model.getSolution().colValue }
    },
  )
}
