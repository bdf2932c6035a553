/** A forecast as it is kept over a restart: what engines cost, how long answers get, and the mix that came last. */
import type { SavedLengths } from './lengths.js'
import { COLD, type StepCost } from './step.js'

/** Changes when older figures would be read wrongly. */
export const VERSION = 2

/** By the names of pools and classes, for ids belong to one config. */
export type SavedRow = { readonly version: typeof VERSION; readonly pool: string } & (
  | { readonly kind: 'cost'; readonly cost: StepCost; readonly budget: number }
  | ({ readonly kind: 'lengths' } & SavedLengths)
  /** Class as an index into `classes`, prompt, cached and output tokens of each, one after another. */
  | { readonly kind: 'recent'; readonly classes: readonly string[]; readonly asked: readonly number[] }
)

/**
 * Looks at what may be anything, since files get cut, edited and mixed up.
 * @returns the forecast, or in a few words why it is none
 */
export function readSavedForecast(value: unknown): readonly SavedRow[] | string {
  if (!Array.isArray(value)) return 'no list of rows'
  for (const row of value as unknown[]) {
    if (!isObject(row)) return 'a row of it is no object'
    if (row['version'] !== VERSION) return `its version is ${JSON.stringify(row['version'])}, not ${VERSION}`
    if (typeof row['pool'] !== 'string') return 'a row of it is of no pool'
    const why = wrongIn(row)
    if (why !== undefined) return `pool ${row['pool']}: ${why}`
  }
  return value as SavedRow[]
}

function wrongIn(row: Record<string, unknown>): string | undefined {
  switch (row['kind']) {
    case 'cost': {
      const { cost, budget } = row
      if (!isAmount(budget) || budget < 1) return 'a budget that is no number of tokens'
      return isObject(cost) && Object.keys(COLD).every(key => isAmount(cost[key]))
        ? undefined
        : 'a cost with parts missing'
    }
    case 'lengths': {
      const { class: cls, model, sketches } = row
      const named = (cls === null || typeof cls === 'string') && (model === null || typeof model === 'string')
      const isSketch = (one: unknown): boolean => one === null || areCounts(one)
      return named && Array.isArray(sketches) && sketches.every(isSketch)
        ? undefined
        : 'lengths that are no counts'
    }
    case 'recent': {
      const { classes, asked } = row
      const named = Array.isArray(classes) && classes.every(name => typeof name === 'string')
      return named && areCounts(asked) && asked.length % 4 === 0 ? undefined : 'requests that are no counts'
    }
    default:
      return 'a row of a kind that is not known'
  }
}

function areCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every(one => Number.isInteger(one) && one >= 0)
}

function isAmount(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
