/** The registry in Prometheus' text format, a metric at a time. */
import { setImmediate as turn } from 'node:timers/promises'
import type { Registry } from 'prom-client'

/**
 * The event loop turns between two metrics: thousands of series in one piece would hold every stream up. So two metrics
 * of one scrape may be some events apart.
 */
export async function textOf(registry: Registry): Promise<string> {
  const parts: string[] = []
  for (const { name } of registry.getMetricsAsArray()) {
    parts.push(await registry.getSingleMetricAsString(name))
    await turn()
  }
  return `${parts.join('\n\n')}\n`
}
