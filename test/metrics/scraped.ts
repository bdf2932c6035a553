/** Reads Prometheus' text the way a scraper does. */

export interface Sample {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

/** Every sample of a scrape. @throws Error at a line that is none */
export function samples(text: string): Sample[] {
  return text
    .split('\n')
    .filter(line => line !== '' && !line.startsWith('#'))
    .map(line => {
      const found = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line)
      if (found === null) throw new Error(`not a sample: ${line}`)
      const labels = [...(found[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(
        ([, key, value]) => [key, value] as const,
      )
      const value = found[3] === '+Inf' ? Number.POSITIVE_INFINITY : Number(found[3])
      return { name: found[1] ?? '', labels: Object.fromEntries(labels), value }
    })
}

/** The sum over the samples of that name with these labels; undefined when there is none. */
export function sum(
  text: string,
  name: string,
  labels: Readonly<Record<string, string>> = {},
): number | undefined {
  const found = samples(text).filter(
    sample =>
      sample.name === name && Object.entries(labels).every(([key, value]) => sample.labels[key] === value),
  )
  return found.length === 0 ? undefined : found.reduce((total, { value }) => total + value, 0)
}

/** Upper edges of a histogram, in the order written, less +Inf. */
export function edgesOf(text: string, name: string): string[] {
  const edges = samples(text)
    .filter(sample => sample.name === `${name}_bucket`)
    .map(sample => sample.labels['le'] ?? '')
  return [...new Set(edges)].filter(edge => edge !== '+Inf')
}

/**
 * What PromQL's histogram_quantile answers: linear inside the bucket that the rank falls into.
 * @param share  0 to 1
 */
export function quantile(text: string, name: string, share: number): number {
  const buckets = samples(text).filter(sample => sample.name === `${name}_bucket`)
  const rank = share * (buckets.at(-1)?.value ?? 0)
  let below = { edge: 0, count: 0 }
  for (const { labels, value } of buckets) {
    if (labels['le'] === '+Inf') return below.edge
    const edge = Number(labels['le'])
    if (value >= rank) {
      return below.edge + ((edge - below.edge) * (rank - below.count)) / (value - below.count)
    }
    below = { edge, count: value }
  }
  throw new Error(`no histogram ${name}`)
}
