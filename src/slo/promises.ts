/** What became of each clause of each SLO, over windows of seconds to months. */
import type { ClassId } from '../request.js'
import type { Ms } from '../time.js'
import type { SavedPromise } from './saved-book.js'
import type { Clauses, SloName, TrafficClass } from './slo.js'
import { type ClauseName, type ClauseResult, clauseBit, type Judgement, type Verdict } from './verdict.js'
import { LEVELS, Windows } from './windows.js'

/** How requests fared in one clause. Sums to the requests that the clause is promised to. */
export interface Tally {
  readonly met: number
  readonly missed: number
  /** Failed before the clause was decided: in no attainment of it, and a miss where it is promised by itself. */
  readonly lost: number
}

export const SLOS = ['target', 'guard'] as const

const CLAUSES: Readonly<Record<ClauseName, number>> = { ttft: 0, tpot: 1, joint: 2, deadline: 3 }
const MET = 0
const MISSED = 1
const LOST = 2
const PER_CLAUSE = 3
const PER_PROMISE = 4 * PER_CLAUSE

/** They miss `joint`, and may have no result in `ttft` and `tpot`. */
const FAILED: ReadonlySet<Verdict> = new Set(['shed', 'upstream_error', 'truncated', 'timeout'])

export class Promises {
  #classes: readonly TrafficClass[] = []
  readonly #windows: Windows
  /** By promise. */
  readonly #since: Ms[] = []

  constructor(at: Ms) {
    this.#windows = new Windows(0, LEVELS, at)
  }

  advance(at: Ms): void {
    this.#windows.advance(at)
  }

  /** Counts for these classes from here on. A promise whose bounds changed is another one, and begins now. */
  follow(classes: readonly TrafficClass[]): void {
    const before = this.#classes
    this.#classes = classes
    this.#windows.grow(classes.length * SLOS.length * PER_PROMISE)
    for (const cls of classes) {
      for (const slo of SLOS) {
        const known = before[cls.id]?.[slo].clauses
        if (known !== undefined && sameClauses(known, cls[slo].clauses)) continue
        const promise = promiseOf(cls.id, slo)
        this.#since[promise] = this.#windows.at
        for (let i = 0; i < PER_PROMISE; i++) this.#windows.clear(promise * PER_PROMISE + i)
      }
    }
  }

  decided({ cls, slo, clause, met }: ClauseResult): void {
    this.#windows.add(seriesOf(cls, slo, clause) + (met ? MET : MISSED))
  }

  /** The clauses that a request decided at its end, and those it can no longer decide. */
  judged({ clauses, verdict, reported = 0 }: Judgement): void {
    for (const result of clauses) this.decided(result)
    if (!FAILED.has(verdict)) return
    for (const { cls, slo, clause } of clauses) {
      if (clause !== 'joint') continue
      this.#windows.add(seriesOf(cls, slo, 'tpot') + LOST)
      const timed = clauses.some(result => result.slo === slo && result.clause === 'ttft')
      if (!timed && (reported & clauseBit(slo, 'ttft')) === 0) {
        this.#windows.add(seriesOf(cls, slo, 'ttft') + LOST)
      }
    }
  }

  tally(cls: ClassId, slo: SloName, clause: ClauseName, windowMs: Ms): Tally {
    const first = seriesOf(cls, slo, clause)
    return {
      met: this.#windows.sum(first + MET, windowMs),
      missed: this.#windows.sum(first + MISSED, windowMs),
      lost: this.#windows.sum(first + LOST, windowMs),
    }
  }

  /** For how long the promise has been counted. */
  seenMs(cls: ClassId, slo: SloName): Ms {
    return this.#windows.at - this.#since[promiseOf(cls, slo)]!
  }

  /** A row at a time, each as it is when it is asked for. */
  *save(): Generator<SavedPromise> {
    for (const cls of this.#classes) {
      if (cls.retired) continue
      for (const slo of SLOS) {
        const promise = promiseOf(cls.id, slo)
        const counts = this.#windows.slicesFrom(promise * PER_PROMISE, PER_PROMISE)
        const [{ clauses }, since, { at }] = [cls[slo], this.#since[promise]!, this.#windows]
        yield { kind: 'promise', at, class: cls.name, slo, clauses, since, counts }
      }
    }
  }

  /**
   * Takes over what was saved, no row later than now, of promises that are the same. The others begin at `begin`.
   * @returns false where the counts cannot be right; then nothing here is
   */
  load(rows: readonly SavedPromise[], begin: Ms): boolean {
    this.#since.fill(begin)
    return rows.every(row => {
      const cls = this.#classes.find(({ name }) => name === row.class)
      if (cls === undefined || !sameClauses(cls[row.slo].clauses, row.clauses)) return true
      const promise = promiseOf(cls.id, row.slo)
      this.#since[promise] = Math.min(row.since, begin)
      return this.#windows.fillFrom(promise * PER_PROMISE, PER_PROMISE, row.counts, row.at)
    })
  }
}

function promiseOf(cls: ClassId, slo: SloName): number {
  return cls * SLOS.length + SLOS.indexOf(slo)
}

function seriesOf(cls: ClassId, slo: SloName, clause: ClauseName): number {
  return promiseOf(cls, slo) * PER_PROMISE + CLAUSES[clause] * PER_CLAUSE
}

function sameClauses(a: Clauses, b: Clauses): boolean {
  if (a.kind === 'stream') return b.kind === 'stream' && a.ttftMs === b.ttftMs && a.tpotMs === b.tpotMs
  if (b.kind !== 'deadline') return false
  return a.deadlineMs === b.deadlineMs && a.minTokensPerSecond === b.minTokensPerSecond
}
