/** The book as it is kept over a restart: rows of plain data by the names of the config, without prompts. */
import type { Ms } from '../time.js'
import type { Clauses, SloName } from './slo.js'

/** By series in the order of the book, then by level of its windows. */
type Counts = readonly (readonly (readonly number[])[])[]

interface SavedRow {
  /** When it was read, on the book's own clock, as are all times here. */
  readonly at: Ms
  readonly class: string
}

export interface SavedPromise extends SavedRow {
  readonly kind: 'promise'
  readonly slo: SloName
  /** What was judged by: under other bounds the counts mean nothing. */
  readonly clauses: Clauses
  readonly since: Ms
  readonly counts: Counts
}

export interface SavedFlow extends SavedRow {
  readonly kind: 'flow'
  /** null: of requests that were sent nowhere. */
  readonly pool: string | null
  readonly since: Ms
  readonly counts: Counts
}

export interface SavedShape extends SavedRow {
  readonly kind: 'shape'
  readonly since: Ms
  readonly counts: Counts
  /** By sketch in the order of the book, then by window, then by slice. */
  readonly sketches: readonly (readonly (readonly (readonly number[])[])[])[]
}

/** In any order; no two rows need be of one moment. */
export type SavedBook = readonly (SavedPromise | SavedFlow | SavedShape)[]

/**
 * Looks at what may be anything, since files get cut, edited and mixed up.
 * @returns the book, or in a few words why it is none
 */
export function readSavedBook(value: unknown): SavedBook | string {
  if (!Array.isArray(value)) return 'no list of rows'
  const wrong = value.findIndex(row => !(isObject(row) && isRow(row)))
  return wrong < 0 ? (value as SavedBook) : `row ${wrong} lacks a part, or has one of another kind`
}

function isRow(row: Fields): boolean {
  if (!(isTime(row['at']) && isText(row['class']) && isTime(row['since']) && isNested(row['counts'], 3)))
    return false
  switch (row['kind']) {
    case 'promise':
      return (row['slo'] === 'target' || row['slo'] === 'guard') && isObject(row['clauses'])
    case 'flow':
      return row['pool'] === null || isText(row['pool'])
    case 'shape':
      return isNested(row['sketches'], 4)
    default:
      return false
  }
}

type Fields = Readonly<Record<string, unknown>>

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
