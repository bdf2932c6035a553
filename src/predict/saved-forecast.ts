/** A forecast as it is kept over a restart: what engines cost, by the names of their pools. */
import { COLD, type StepCost } from './step.js'

export interface SavedForecast {
  /** Changes when older figures would be read wrongly. */
  readonly version: 1
  readonly pools: readonly { readonly name: string; readonly cost: StepCost; readonly budget: number }[]
}

/**
 * Looks at what may be anything, since files get cut, edited and mixed up.
 * @returns the forecast, or in a few words why it is none
 */
export function readSavedForecast(value: unknown): SavedForecast | string {
  if (!isObject(value)) return 'no object'
  if (value['version'] !== 1) return `its version is ${JSON.stringify(value['version'])}, not 1`
  const { pools } = value
  if (!Array.isArray(pools)) return 'its pools are no list'
  for (const pool of pools) {
    if (!isObject(pool) || typeof pool['name'] !== 'string') return 'a pool of it has no name'
    if (!isAmount(pool['budget']) || pool['budget'] < 1)
      return `the budget of pool ${pool['name']} is no number of tokens`
    const cost = pool['cost']
    if (!isObject(cost) || !Object.keys(COLD).every(key => isAmount(cost[key])))
      return `the cost of pool ${pool['name']} has parts missing`
  }
  return value as unknown as SavedForecast
}

function isAmount(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
