/** An SLO in one line, for people. */
import { showDuration } from '../config/units.js'
import type { Slo } from '../slo/slo.js'

/** `p90 ttft 500ms tpot 40ms`, `p95 deadline 1m`. */
export function showSlo({ percentile, clauses }: Slo): string {
  return clauses.kind === 'stream'
    ? `p${percentile} ttft ${showDuration(clauses.ttftMs)} tpot ${showDuration(clauses.tpotMs)}`
    : `p${percentile} deadline ${showDuration(clauses.deadlineMs)}`
}
