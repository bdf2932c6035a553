/** The figures of a report, asked of the Prometheus that scrapes Weir: what was promised comes from the config. */
import type { Resolved } from '../config/resolved.js'
import type { ClassFigures, Figures, HeadroomFigures, Quantiles } from '../http/figures.js'

interface Sample {
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

type Ask = (query: string) => Promise<readonly Sample[]>

const QUANTILES = { p50: 0.5, p90: 0.9, p99: 0.99 } as const
const MEASURES = {
  ttft: { metric: 'weir_ttft_seconds', unit: 1000 },
  tpot: { metric: 'weir_tpot_seconds', unit: 1000 },
  e2e: { metric: 'weir_e2e_seconds', unit: 1000 },
} as const
const EXCLUDED = ['client_error', 'client_left', 'unmeasured']

/** @throws Error when it is no Prometheus, or does not answer */
export async function fromPrometheus(from: string, config: Resolved): Promise<Figures> {
  const ask: Ask = query => instant(from, query)
  const [attainment, budgets, drift, rates, perGpu, verdicts, build, ...ahead] = await Promise.all([
    ask('weir_attainment_ratio'),
    ask('weir_error_budget_remaining_ratio'),
    ask('weir_workload_drift_ratio'),
    ask('weir_goodput_requests_per_second'),
    ask('weir_goodput_tokens_per_second_per_gpu'),
    ask('sum by (class, verdict) (increase(weir_requests_total[1m]))'),
    ask('weir_build_info'),
    ask('weir_demand_ratio'),
    ask('weir_headroom_ratio'),
    ask('weir_desired_replicas'),
    ask('weir_headroom_requests_per_second'),
    ask('weir_capacity_work_per_second'),
  ])
  const spreads = await spreadsOf(ask)
  const classes = config.policy.classes.map((cls): ClassFigures => {
    const own = (rows: readonly Sample[]) => rows.filter(({ labels }) => labels['class'] === cls.name)
    const count = (...names: string[]): number =>
      own(verdicts).reduce(
        (sum, { labels, value }) => sum + (names.includes(labels['verdict'] ?? '') ? value : 0),
        0,
      )
    const all = own(verdicts).reduce((sum, { value }) => sum + value, 0)
    const [offered, good, shed] = [all - count(...EXCLUDED), count('good'), count('shed')]
    const ratios: Record<string, number> = Object.fromEntries(
      own(drift).map(({ labels, value }) => [labels['dimension'], value]),
    )
    return {
      name: cls.name,
      promise: { target: cls.target, guard: cls.guard },
      workload: cls.workload,
      offered_rps: offered / 60,
      goodput_rps: good / 60,
      good_share: ratio(good, offered),
      admitted_good_share: ratio(good, offered - shed),
      shed_share: ratio(shed, offered),
      attainment: own(attainment).map(({ labels, value }) => ({
        slo: labels['slo'] === 'guard' ? 'guard' : 'target',
        clause: labels['clause'] ?? '',
        window: labels['window'] ?? '',
        share: value,
        low: null,
        high: null,
        requests: null,
      })),
      burn: [],
      budget: own(budgets).map(({ labels, value }) => ({
        slo: labels['slo'] === 'guard' ? 'guard' : 'target',
        period: 'its period',
        seen_share: 1,
        left: value,
        exhausted_in_s: null,
      })),
      spread: spreads.get(cls.name) ?? {},
      drift: { off_workload: Object.values(ratios).some(value => value > 1), ratios },
    }
  })
  return {
    version: build[0]?.labels['version'] ?? '',
    classes,
    goodput: rates.map(({ labels, value }) => ({
      class: labels['class'] ?? '',
      pool: labels['pool'] ?? '',
      requests_per_second: value,
      output_tokens_per_second_per_gpu:
        perGpu.find(row => row.labels['class'] === labels['class'] && row.labels['pool'] === labels['pool'])
          ?.value ?? null,
    })),
    headroom: config.policy.pools.map(({ name }) => headroomOf(name, ahead)),
  }
}

/** @param ahead  in the order they are asked for */
function headroomOf(pool: string, ahead: readonly (readonly Sample[])[]): HeadroomFigures {
  const [demand, left, desired, requests, capacity] = ahead.map(rows =>
    rows.filter(({ labels }) => labels['pool'] === pool),
  )
  return {
    name: pool,
    demand_ratio: demand?.[0]?.value ?? null,
    headroom_ratio: left?.[0]?.value ?? null,
    replicas: { desired: desired?.[0]?.value ?? null },
    source: capacity?.[0]?.labels['source'] ?? null,
    classes: (requests ?? []).map(({ labels, value }) => ({
      name: labels['class'] ?? '',
      headroom_rps: value,
    })),
  }
}

/** By class: from the histograms, over the last hour. */
async function spreadsOf(ask: Ask): Promise<Map<string, Record<string, Record<string, Quantiles>>>> {
  const spreads = new Map<string, Record<string, Record<string, Quantiles>>>()
  for (const [measure, { metric, unit }] of Object.entries(MEASURES)) {
    const byClass = new Map<string, Partial<Record<keyof Quantiles, number>>>()
    for (const [name, quantile] of Object.entries(QUANTILES)) {
      const rows = await ask(
        `histogram_quantile(${quantile}, sum by (class, le) (rate(${metric}_bucket[1h])))`,
      )
      for (const { labels, value } of rows) {
        const cls = labels['class'] ?? ''
        if (Number.isFinite(value)) byClass.set(cls, { ...byClass.get(cls), [name]: value * unit })
      }
    }
    for (const [cls, { p50, p90, p99 }] of byClass) {
      if (p50 === undefined || p90 === undefined || p99 === undefined) continue
      spreads.set(cls, { ...spreads.get(cls), [measure]: { '1h': { p50, p90, p99 } } })
    }
  }
  return spreads
}

async function instant(from: string, query: string): Promise<readonly Sample[]> {
  const response = await fetch(`${from}/api/v1/query?query=${encodeURIComponent(query)}`, {
    signal: AbortSignal.timeout(10_000),
  })
  const answer: unknown = response.headers.get('content-type')?.includes('json')
    ? await response.json()
    : undefined
  if (typeof answer !== 'object' || answer === null || !('status' in answer) || answer.status !== 'success') {
    throw new Error('it is neither the admin port of a Weir nor a Prometheus')
  }
  const { data } = answer as unknown as {
    readonly data: { readonly result: readonly { metric: Record<string, string>; value: [number, string] }[] }
  }
  return data.result.map(({ metric, value }) => ({ labels: metric, value: Number(value[1]) }))
}

function ratio(part: number, whole: number): number | null {
  return whole > 0 ? part / whole : null
}
