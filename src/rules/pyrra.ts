/** The SLOs as Pyrra's ServiceLevelObjective objects. */
import { showDuration } from '../config/units.js'
import { MOST_MISSES } from '../slo/alerts.js'
import { countersOf } from './counters.js'
import type { Promised } from './promised.js'

/** Pyrra's own burn rates, the same for every SLO. Source: pyrra-dev/pyrra, slo/rules.go, Windows. */
const QUICKEST = 14

/** Whether each of Pyrra's alerts can fire. Their burn rates cannot be changed, only switched off. */
export const pyrraCanAlert = ({ allowed }: Promised): boolean => QUICKEST * allowed <= MOST_MISSES

export function pyrraObjects(promises: readonly Promised[], runbook: string): readonly object[] {
  return promises.flatMap(promised =>
    countersOf(promised).map(({ name, clause, bad, total }) => ({
      apiVersion: 'pyrra.dev/v1alpha1',
      kind: 'ServiceLevelObjective',
      metadata: {
        name: `weir-${name}`,
        // Pyrra takes the prefix off and puts the rest on its rules.
        labels: { 'pyrra.dev/class': promised.cls, 'pyrra.dev/clause': clause },
        annotations: { 'pyrra.dev/runbook_url': `${runbook}#clause-${clause}` },
      },
      spec: {
        description: `Class ${promised.cls}, ${promised.slo}: ${promised.words}`,
        target: String(promised.percentile),
        window: showDuration(promised.periodMs),
        alerting: {
          name: `Weir${promised.slo === 'guard' ? 'Guard' : 'Target'}Burn`,
          ...(pyrraCanAlert(promised) ? {} : { burnrates: false }),
        },
        indicator: { ratio: { errors: { metric: bad }, total: { metric: total } } },
      },
    })),
  )
}
