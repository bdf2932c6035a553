/** The bad and total counters of an SLO, for formats that divide one by the other. */
import { nameOf, type Promised } from './promised.js'

export interface Counted {
  readonly name: string
  readonly clause: 'joint' | 'deadline' | 'ttft' | 'tpot'
  /** Selectors of counters. */
  readonly bad: string
  readonly total: string
}

/**
 * One pair for an SLO, or one for each clause where each is promised for itself. Those of `ttft` and `tpot` do not
 * see requests that failed.
 */
export function countersOf(promised: Promised): readonly Counted[] {
  const { cls, slo, kind, mode } = promised
  const counted = (clause: Counted['clause'], name: string): Counted => {
    const own = `class="${cls}",slo="${slo}",clause="${clause}"`
    return {
      name,
      clause,
      bad: `weir_clause_total{${own},result="missed"}`,
      total: `weir_clause_total{${own}}`,
    }
  }
  if (kind === 'deadline') return [counted('deadline', nameOf(promised))]
  if (mode === 'joint') return [counted('joint', nameOf(promised))]
  return (['ttft', 'tpot'] as const).map(clause => counted(clause, `${nameOf(promised)}-${clause}`))
}
