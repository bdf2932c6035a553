/** The SLOs as OpenSLO v1 objects. */
import { showDuration } from '../config/units.js'
import { countersOf } from './counters.js'
import type { Promised } from './promised.js'

/** An SLO a promise, and an alert policy for each alert that can fire. */
export function openSloObjects(promises: readonly Promised[]): readonly object[] {
  const service = {
    apiVersion: 'openslo/v1',
    kind: 'Service',
    metadata: { name: 'weir' },
    spec: { description: 'Weir, an SLO-aware router for LLM serving' },
  }
  return [service, ...promises.flatMap(objectsOf)]
}

function objectsOf(promised: Promised): readonly object[] {
  const { cls, slo, words, percentile, periodMs } = promised
  const alerts = promised.alerts.filter(({ fires }) => fires === 'yes')
  return countersOf(promised).map(({ name, bad, total }) => ({
    apiVersion: 'openslo/v1',
    kind: 'SLO',
    metadata: { name: `weir-${name}`, displayName: `${cls} ${slo}` },
    spec: {
      description: `Class ${cls}, ${slo}: ${words}`,
      service: 'weir',
      indicator: {
        metadata: { name: `weir-${name}-misses` },
        spec: { ratioMetric: { counter: true, bad: metric(bad), total: metric(total) } },
      },
      timeWindow: [{ duration: showDuration(periodMs), isRolling: true }],
      budgetingMethod: 'Occurrences',
      objectives: [{ displayName: words, targetPercent: percentile }],
      alertPolicies: alerts.map(({ longMs, shortMs, factor, severity }) => {
        const id = `weir-${name}-${showDuration(longMs)}`
        return {
          kind: 'AlertPolicy',
          metadata: { name: id },
          spec: {
            alertWhenBreaching: true,
            alertWhenNoData: false,
            alertWhenResolved: true,
            conditions: [
              {
                kind: 'AlertCondition',
                metadata: { name: id },
                spec: {
                  severity,
                  // OpenSLO has no second window: the short one becomes the time for which the long one must burn.
                  condition: {
                    kind: 'burnrate',
                    op: 'gt',
                    threshold: factor,
                    lookbackWindow: showDuration(longMs),
                    alertAfter: showDuration(shortMs),
                  },
                },
              },
            ],
            notificationTargets: [{ targetRef: `weir-${severity}` }],
          },
        }
      }),
    },
  }))
}

const metric = (selector: string) => ({
  metricSource: { type: 'Prometheus', spec: { query: `sum(${selector})` } },
})
