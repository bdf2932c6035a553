/** Gauges of the promises, read from the book at each scrape. What is not known is no sample. */
import { Gauge, type Registry } from 'prom-client'
import type { PolicyState } from '../policy/policy.js'
import type { Reading } from '../slo/reading.js'
import { windowName } from '../slo/windows.js'
import type { Labels } from './labels.js'
import { METRICS, type PlainSpec } from './names.js'
import { base } from './prometheus.js'

/**
 * Adds them to the registry.
 * @param labels    those of the config that runs
 * @param figures   the reading of this scrape; undefined: there is no book, and no samples
 * @param replicas  those there are now
 */
export function sloGauges(
  registry: Registry,
  labels: () => Labels,
  figures: () => Reading | undefined,
  replicas: () => PolicyState['replicas'],
): void {
  const gauge = (
    metric: PlainSpec,
    collect: (
      reading: Reading,
      set: (labels: Record<string, string>, value: number | undefined) => void,
    ) => void,
  ) => {
    new Gauge({
      ...base(metric, registry),
      collect() {
        this.reset()
        const reading = figures()
        if (reading === undefined) return
        collect(reading, (of, value) => {
          if (value !== undefined) this.set(of, value)
        })
      },
    })
  }

  gauge(METRICS.goodputRequests, (reading, set) => {
    for (const row of reading.goodput(replicas())) set(labels().of(row.cls, row.pool), row.requestsPerSecond)
  })
  gauge(METRICS.goodputTokens, (reading, set) => {
    for (const row of reading.goodput(replicas()))
      set(labels().of(row.cls, row.pool), row.tokensPerSecondPerGpu)
  })
  gauge(METRICS.attainment, (reading, set) => {
    for (const { cls, slo, clause, windowMs, share } of reading.attainment()) {
      set({ class: labels().class(cls), slo, clause, window: windowName(windowMs) }, share)
    }
  })
  gauge(METRICS.burnRate, (reading, set) => {
    for (const { cls, slo, windowMs, rate } of reading.burn()) {
      set({ class: labels().class(cls), slo, window: windowName(windowMs) }, rate)
    }
  })
  gauge(METRICS.budget, (reading, set) => {
    for (const { cls, slo, left } of reading.budgets()) set({ class: labels().class(cls), slo }, left)
  })
  gauge(METRICS.drift, (reading, set) => {
    for (const { cls, ratios } of reading.drift()) {
      for (const [dimension, ratio] of Object.entries(ratios)) {
        set({ class: labels().class(cls), dimension }, ratio)
      }
    }
  })
}
