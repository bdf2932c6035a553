/** From a metric's row to what prom-client wants of it. */
import type { Registry } from 'prom-client'
import type { HistogramSpec, PlainSpec } from './names.js'

export function base(metric: PlainSpec | HistogramSpec, registry: Registry) {
  return { name: metric.name, help: metric.help, labelNames: [...metric.labels], registers: [registry] }
}
