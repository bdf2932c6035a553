/** Baselines as they are kept over a restart: counts in the order of `COUNTS`, replicas by name. */
import type { ReplicaId } from '../request.js'
import type { KnownBaselines } from './baseline.js'
import { COUNTS, type Counts, countsBy, type PoolWindow } from './pool-window.js'

interface SavedWindow {
  /** In the order of `PLAIN`; null is unknown. */
  readonly plain: readonly (number | null)[]
  readonly counts: readonly number[]
  readonly replicas: readonly {
    readonly name: string
    readonly ageMs: number
    readonly counts: readonly number[]
  }[]
}

/** One window of them. */
export interface SavedWindowRow {
  /** Of the day; null: all hours. */
  readonly hour: number | null
  /** Windows in it. */
  readonly count: number
  readonly window: SavedWindow
}

const PLAIN = [
  'spanMs',
  'arrivals',
  'shed',
  'replicasInUse',
  'promptP50',
  'promptP90',
  'lateInQueue',
] as const

/** @param nameOf  of a replica; one without a name (an empty one) is left out */
export function* saveBaselines(
  { all, hours }: KnownBaselines,
  nameOf: (id: ReplicaId) => string,
): Generator<SavedWindowRow> {
  const save = (window: PoolWindow): SavedWindow => ({
    plain: PLAIN.map(name => window[name] ?? null),
    counts: saveCounts(window.counts),
    replicas: window.replicas
      .map(({ replica, ageMs, counts }) => ({ name: nameOf(replica), ageMs, counts: saveCounts(counts) }))
      .filter(({ name }) => name !== ''),
  })
  if (all !== undefined) yield { hour: null, count: 0, window: save(all) }
  for (const [hour, one] of hours.entries())
    if (one !== undefined) yield { hour, count: one.count, window: save(one.window) }
}

/** Six digits are more than any of them is known to. */
function saveCounts(counts: Counts): number[] {
  return COUNTS.map(name => Number(counts[name].toPrecision(6)))
}

/**
 * @param saved  may be anything, since files get cut, edited and mixed up
 * @param idOf   undefined for a replica that is not there any more
 * @returns undefined where it is not what `saveBaselines` of this version gives
 */
export function readBaselines(
  saved: readonly unknown[],
  idOf: (name: string) => ReplicaId | undefined,
): KnownBaselines | undefined {
  try {
    let all: PoolWindow | undefined
    const hours: KnownBaselines['hours'][number][] = Array.from({ length: 24 })
    for (const { hour, count, window } of saved as SavedWindowRow[]) {
      if (hour === null) all = readWindow(window, idOf)
      else if (hour in hours) hours[hour] = { window: readWindow(window, idOf), count: finite(count) }
      else return undefined
    }
    return { all, hours }
  } catch {
    return undefined
  }
}

/** @throws TypeError where a part is missing or is no number */
function readWindow(saved: SavedWindow, idOf: (name: string) => ReplicaId | undefined): PoolWindow {
  const [spanMs, arrivals, shed, replicasInUse, promptP50, promptP90, lateInQueue] = saved.plain
  return {
    spanMs: finite(spanMs),
    arrivals: finite(arrivals),
    shed: finite(shed),
    replicasInUse: finite(replicasInUse),
    promptP50: promptP50 === null ? undefined : finite(promptP50),
    promptP90: promptP90 === null ? undefined : finite(promptP90),
    lateInQueue: finite(lateInQueue),
    counts: readCounts(saved.counts),
    replicas: saved.replicas.flatMap(({ name, ageMs, counts }) => {
      const replica = idOf(name)
      return replica === undefined ? [] : [{ replica, ageMs: finite(ageMs), counts: readCounts(counts) }]
    }),
  }
}

function readCounts(saved: readonly number[]): Counts {
  if (saved.length !== COUNTS.length) throw new TypeError('other counts than these')
  return countsBy((_, index) => finite(saved[index]))
}

function finite(value: unknown): number {
  if (typeof value !== 'number' || !Number.isFinite(value)) throw new TypeError('no number')
  return value
}
