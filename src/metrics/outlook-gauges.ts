/** Gauges of what lies before each pool, read from the outlook at each scrape. What is not known is no sample. */
import { Gauge, type Registry } from 'prom-client'
import type { PoolReading } from '../policy/pool-outlook.js'
import type { Labels } from './labels.js'
import { METRICS, type PlainSpec } from './names.js'
import { base } from './prometheus.js'

/**
 * Adds them to the registry.
 * @param labels    those of the config that runs
 * @param readings  of this scrape
 */
export function outlookGauges(
  registry: Registry,
  labels: () => Labels,
  readings: () => readonly PoolReading[],
): void {
  const gauge = (
    metric: PlainSpec,
    collect: (
      reading: PoolReading,
      pool: string,
      set: (labels: Record<string, string>, value: number | undefined) => void,
    ) => void,
  ) => {
    new Gauge({
      ...base(metric, registry),
      collect() {
        this.reset()
        for (const reading of readings()) {
          collect(reading, labels().pool(reading.pool), (of, value) => {
            if (value !== undefined) this.set(of, value)
          })
        }
      },
    })
  }

  gauge(METRICS.demandRatio, ({ headroom }, pool, set) => set({ pool }, headroom?.demandRatio))
  gauge(METRICS.headroomRatio, ({ headroom }, pool, set) => set({ pool }, headroom?.ratio))
  gauge(METRICS.headroomRequests, ({ headroom, pool }, _, set) => {
    for (const { cls, value } of headroom?.requestsPerSec ?? []) set(labels().of(cls, pool), value)
  })
  gauge(METRICS.desiredReplicas, ({ scale }, pool, set) =>
    set({ pool }, scale?.why === 'unknown capacity' ? undefined : scale?.desired),
  )
  gauge(METRICS.capacity, ({ capacity, weight }, pool, set) => {
    if (capacity !== undefined) set({ pool, source: capacity.source }, weight * capacity.workPerSec)
  })
  gauge(METRICS.predictionError, ({ model }, pool, set) => {
    set({ pool, kind: 'ttft' }, model.ttftErrors.medianAbsolute)
    set({ pool, kind: 'tpot' }, model.tpotErrors.medianAbsolute)
  })
  gauge(METRICS.diagnosis, ({ finding }, pool, set) => {
    if (finding === undefined) return
    const { clause, cause, confidence } = finding
    // That nothing explains it is a finding, too.
    set({ pool, clause, cause }, Math.max(confidence, 0.01))
  })
}
