/** The book as it is kept over a restart: plain data by the names of the config, without prompts. */
import type { Ms } from '../time.js'
import type { Clauses, SloName } from './slo.js'

/** By series in the order of the book, then by level of its windows. */
type Counts = readonly (readonly (readonly number[])[])[]

export interface SavedPromise {
  readonly class: string
  readonly slo: SloName
  /** What was judged by: under other bounds the counts mean nothing. */
  readonly clauses: Clauses
  readonly since: Ms
  readonly counts: Counts
}

export interface SavedFlow {
  readonly class: string
  /** null: of requests that were sent nowhere. */
  readonly pool: string | null
  readonly since: Ms
  readonly counts: Counts
}

export interface SavedShape {
  readonly class: string
  readonly since: Ms
  readonly counts: Counts
  /** By sketch in the order of the book, then by window, then by slice. */
  readonly sketches: readonly (readonly (readonly (readonly number[])[])[])[]
}

export interface SavedBook {
  /** Changes when older figures would be read wrongly. */
  readonly version: 1
  /** When it was saved, on the book's own clock, as are all times here. */
  readonly at: Ms
  readonly promises: readonly SavedPromise[]
  readonly flows: readonly SavedFlow[]
  readonly shapes: readonly SavedShape[]
}

/**
 * Looks at what may be anything, since files get cut, edited and mixed up.
 * @returns the book, or in a few words why it is none
 */
export function readSavedBook(value: unknown): SavedBook | string {
  if (!isObject(value)) return 'no object'
  if (value['version'] !== 1) return `its version is ${JSON.stringify(value['version'])}, not 1`
  if (!isTime(value['at'])) return 'it does not say when it was saved'
  const whole =
    rows(value['promises'], row => {
      const named = isText(row['class']) && (row['slo'] === 'target' || row['slo'] === 'guard')
      return named && isObject(row['clauses']) && isTime(row['since']) && isNested(row['counts'], 3)
    }) &&
    rows(value['flows'], row => {
      const named = isText(row['class']) && (row['pool'] === null || isText(row['pool']))
      return named && isTime(row['since']) && isNested(row['counts'], 3)
    }) &&
    rows(value['shapes'], row => {
      const counted = isNested(row['counts'], 3) && isNested(row['sketches'], 4)
      return isText(row['class']) && isTime(row['since']) && counted
    })
  return whole ? (value as unknown as SavedBook) : 'a part of it is missing or of another kind'
}

type Fields = Readonly<Record<string, unknown>>

function rows(value: unknown, fits: (row: Fields) => boolean): boolean {
  return Array.isArray(value) && value.every(row => isObject(row) && fits(row))
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isText(value: unknown): value is string {
  return typeof value === 'string'
}

function isTime(value: unknown): value is Ms {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0
}

/** Lists of numbers, so many lists deep. */
function isNested(value: unknown, depth: number): boolean {
  if (depth === 0) return typeof value === 'number'
  return Array.isArray(value) && value.every(part => isNested(part, depth - 1))
}
