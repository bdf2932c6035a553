/** Follows the diagnoses of one pool, and puts those that stand into words. */
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import type { Baseline } from './baseline.js'
import { CAUSES } from './causes.js'
import type { DiagnosisOptions } from './comparison.js'
import { type Diagnosis, diagnose } from './diagnose.js'
import { diagnoseFirstDay } from './first-day.js'
import type { Look, PoolWindow } from './pool-window.js'

/** A diagnosis that stood, in words. */
export interface Finding extends Diagnosis {
  /** When its clause was first seen to have moved, on the clock of the windows. */
  readonly since: Ms
  readonly sentence: string
  readonly action: string
}

/** Follows one pool: a cause counts when two looks in a row agree on it, and is over when two find nothing. */
export class Diagnoser {
  readonly #name: string
  readonly #replicaName: (id: ReplicaId) => string
  #since: Ms | undefined
  #last: Diagnosis | undefined
  #standing: Diagnosis | undefined

  /** @param name  of the pool */
  constructor(name: string, replicaName: (id: ReplicaId) => string = String) {
    this.#name = name
    this.#replicaName = replicaName
  }

  /** Nothing is wrong, nor may be about to be: the minute may be learned from. */
  get well(): boolean {
    return this.#last === undefined && this.#standing === undefined
  }

  /** @param base  undefined: nothing is usual yet, and only what stands on its own is said */
  look(now: Ms, look: Look, base: Baseline | undefined, options: DiagnosisOptions): Finding | undefined {
    const seen = base === undefined ? diagnoseFirstDay(look, options) : diagnose(look, base, options)
    if (seen !== undefined) this.#since ??= now
    if (seen === undefined && this.#last === undefined) {
      this.#standing = undefined
      this.#since = undefined
    }
    if (seen !== undefined && seen.cause === this.#last?.cause) this.#standing = seen
    this.#last = seen
    if (this.#standing === undefined || this.#since === undefined) return undefined
    const { action } = CAUSES[this.#standing.cause]
    const unheld = base === undefined ? ' (Nothing is usual here yet to hold it against.)' : ''
    const sentence = this.#sentence(this.#standing, look.minute, now - this.#since) + unheld
    return { ...this.#standing, since: this.#since, sentence, action }
  }

  #sentence({ clause, cause, confidence, evidence }: Diagnosis, { counts }: PoolWindow, forMs: Ms): string {
    const percent = (part: number, all: number): string => `${Math.round((100 * part) / Math.max(1, all))} %`
    const late = `first tokens are late for ${percent(counts.late, counts.firsts)}`
    const slow = `tokens come too slowly for ${percent(counts.slow, counts.paced)}`
    const moved = {
      ttft: late,
      tpot: slow,
      both: `${late}, and ${slow}`,
      none: 'answers reach some clients slowly',
    }[clause]
    const { why, action } = CAUSES[cause]
    const replica =
      cause === 'sick_replica' ? ` (replica ${this.#replicaName(evidence['replica'] ?? 0)})` : ''
    const sure = cause === 'unexplained' ? '' : ` That explains ${percent(confidence, 1)} of the excess.`
    return `Pool ${this.#name}: ${moved}, since ${Math.round(forMs / 1000)} s ago, because ${why}${replica}.${sure} Do this: ${action}.`
  }
}
