/** Exact counts of arrivals and verdicts, by class, since the start. */
import type { ClassId } from '../request.js'
import { type Judgement, VERDICTS, type Verdict } from './verdict.js'

/** At any moment the verdicts of a class sum to its arrivals less its open tickets. */
export interface ClassTotals {
  /** undefined: requests refused before they had a class. */
  readonly cls: ClassId | undefined
  readonly arrivals: number
  /** Judged and in the denominator of goodput: good / offered is the headline. */
  readonly offered: number
  /** Sheds that are in `offered`: good / (offered - shed) is the attainment of the admitted. */
  readonly shed: number
  readonly verdicts: Readonly<Record<Verdict, number>>
}

interface Row {
  readonly cls: ClassId | undefined
  arrivals: number
  offered: number
  shed: number
  readonly verdicts: Record<Verdict, number>
}

export class Ledger {
  readonly #rows: Row[] = []
  readonly #classless = emptyRow(undefined)

  /** @param classes  how many there are; ids run from 0 */
  constructor(classes: number) {
    this.grow(classes)
  }

  /** There are so many classes from now on: never fewer than before. */
  grow(classes: number): void {
    while (this.#rows.length < classes) this.#rows.push(emptyRow(this.#rows.length))
  }

  arrived(cls: ClassId | undefined): void {
    this.#row(cls).arrivals++
  }

  judged(judgement: Judgement): void {
    const row = this.#row(judgement.cls)
    row.verdicts[judgement.verdict]++
    if (!judgement.offered) return
    row.offered++
    if (judgement.verdict === 'shed') row.shed++
  }

  /** A snapshot: one row a class, then the row of those without one. */
  totals(): ClassTotals[] {
    return [...this.#rows, this.#classless].map(row => ({ ...row, verdicts: { ...row.verdicts } }))
  }

  #row(cls: ClassId | undefined): Row {
    const row = cls === undefined ? this.#classless : this.#rows[cls]
    if (row === undefined) throw new RangeError(`no class has the id ${cls}`)
    return row
  }
}

function emptyRow(cls: ClassId | undefined): Row {
  const verdicts = Object.fromEntries(VERDICTS.map(verdict => [verdict, 0])) as Record<Verdict, number>
  return { cls, arrivals: 0, offered: 0, shed: 0, verdicts }
}
