/** The outlook as it is kept over a restart: what is usual, and what was learned of capacity, by the names of pools. */
import type { ReplicaId } from '../request.js'
import type { KnownBaselines } from '../slo/baseline.js'
import type { KnownCapacity } from '../slo/capacity.js'
import { readBaselines, type SavedWindowRow, saveBaselines } from '../slo/saved-baselines.js'
import type { Ms } from '../time.js'
import type { PoolOutlook } from './pool-outlook.js'

/** A pool has one row with its capacity, then one for each window of what is usual. */
type SavedRow = { readonly version: 2; readonly name: string } & (
  | { readonly capacity: KnownCapacity }
  | { readonly usual: SavedWindowRow }
)

/** In pieces of some tenths of a millisecond. */
export function* saveOutlook(pools: Iterable<PoolOutlook>, now: Ms): Generator<SavedRow> {
  for (const { spec, baselines, learned, knees } of pools) {
    const { name } = spec
    const nameOf = (id: ReplicaId): string => spec.replicas.find(one => one.id === id)?.name ?? ''
    yield { version: 2, name, capacity: { bins: learned.known(now), knees: knees.known } }
    for (const usual of saveBaselines(baselines.known, nameOf)) yield { version: 2, name, usual }
  }
}

/**
 * @param saved  what `saveOutlook` gave, or anything
 * @param gapMs  since then
 * @returns undefined; or why it cannot, and then nothing has changed
 */
export function restoreOutlook(
  pools: readonly PoolOutlook[],
  saved: unknown,
  gapMs: Ms,
  now: Ms,
): string | undefined {
  if (!Array.isArray(saved)) return 'no list of rows'
  const usual = new Map<PoolOutlook, SavedWindowRow[]>()
  const capacities = new Map<PoolOutlook, KnownCapacity>()
  for (const row of saved as unknown[]) {
    const { version, name, ...part } = (row ?? {}) as Partial<SavedRow>
    if (version !== 2) return `its version is ${JSON.stringify(version)}, not 2`
    const pool = pools.find(({ spec }) => spec.name === name)
    if (pool === undefined) continue
    if ('usual' in part) usual.set(pool, [...(usual.get(pool) ?? []), part.usual as SavedWindowRow])
    else if ('capacity' in part && isCapacity(part.capacity)) capacities.set(pool, part.capacity)
    else return `the capacity of pool ${name} is not in figures`
  }
  const read = new Map<PoolOutlook, KnownBaselines>()
  for (const [pool, rows] of usual) {
    const { name, replicas } = pool.spec
    const known = readBaselines(rows, replica => replicas.find(one => one.name === replica)?.id)
    if (known === undefined) return `what is usual for pool ${name} is not in the counts of this version`
    read.set(pool, known)
  }
  for (const [pool, known] of read) pool.baselines.restore(known)
  for (const [pool, { bins, knees }] of capacities) {
    pool.learned.restore(bins, gapMs, now)
    for (const knee of knees) pool.knees.add(knee)
  }
  return undefined
}

function isCapacity(value: unknown): value is KnownCapacity {
  if (typeof value !== 'object' || value === null) return false
  const { bins, knees } = value as Partial<Record<keyof KnownCapacity, unknown>>
  const figures = (list: unknown): list is number[] =>
    Array.isArray(list) && list.every(one => typeof one === 'number' && Number.isFinite(one))
  const isBin = (bin: unknown): boolean => {
    if (!figures(bin) || bin.length !== 4) return false
    const [, weight = -1, good = -1, ageMs = -1] = bin
    return good >= 0 && good <= weight && ageMs >= 0
  }
  return figures(knees) && Array.isArray(bins) && bins.every(isBin)
}
