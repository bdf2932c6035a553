/** `weir report`: the page for product owners, from a Weir that runs or from the Prometheus that scrapes it. */
import { parseArgs } from 'node:util'
import { showProblems } from '../config/error.js'
import { defaultFile, load } from '../config/load.js'
import type { ClassFigures, Figures, HeadroomFigures } from '../http/figures.js'
import type { Command } from './command.js'
import { type Line, markdown, text } from './report-page.js'
import { fromPrometheus } from './report-prometheus.js'
import { showSlo } from './show-slo.js'

const FORMATS = ['text', 'json', 'markdown'] as const

export const report: Command = {
  name: 'report',
  summary: 'the page for product owners: promises, what was kept of them, and for which traffic',
  help: `weir report [--from URL] [--format text|json|markdown] [--token TOKEN] [--json]

Says of each class: end to end at the stated output length beside TTFT and TPOT at their percentiles, goodput per GPU,
the share of requests that kept the promise (and of those admitted, with what was shed), the error budget, and
whether the traffic is still what the promise was made for. What is not known yet is said so.

  --from URL      Weir's admin port, by default http://127.0.0.1:8081, or a Prometheus that scrapes it
  -c, --config F  with a Prometheus: the config, which says what was promised; by default config/weir.yaml
  --format F      ${FORMATS.join(', ')}; --json is --format json
  --token TOKEN   the admin token, by default $WEIR_ADMIN_TOKEN

Example: weir report --from http://127.0.0.1:8081 --format markdown
`,
  async run(args, io) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        from: { type: 'string' },
        config: { type: 'string', short: 'c' },
        format: { type: 'string' },
        token: { type: 'string' },
        json: { type: 'boolean' },
      },
    })
    const format = values.json === true ? 'json' : (values.format ?? 'text')
    if (!FORMATS.some(one => one === format)) {
      io.err(`--format\n  got      ${format}\n  allowed  ${FORMATS.join(', ')}\n`)
      return 1
    }
    const print = (figures: Figures): number => {
      if (format === 'json') io.out(`${JSON.stringify(figures)}\n`)
      else io.out(format === 'markdown' ? markdown(linesOf(figures)) : text(linesOf(figures)))
      return 0
    }
    const from = (values.from ?? 'http://127.0.0.1:8081').replace(/\/+$/, '')
    try {
      const token = values.token ?? io.env['WEIR_ADMIN_TOKEN']
      const figures = await fromWeir(from, token)
      if (figures !== undefined) return print(figures)
      const loaded = load(values.config ?? defaultFile(), io.env)
      if (loaded.ok === undefined) {
        io.err(showProblems(loaded.problems))
        return loaded.unreadable ? 2 : 1
      }
      return print(await fromPrometheus(from, loaded.ok))
    } catch (error) {
      io.err(`--from ${from}: ${error instanceof Error ? error.message : String(error)}\n`)
      return 1
    }
  },
}

/** undefined: there is something, but no Weir. */
async function fromWeir(from: string, token: string | undefined): Promise<Figures | undefined> {
  const headers: Record<string, string> =
    token === undefined || token === '' ? {} : { authorization: `Bearer ${token}` }
  let response: Response
  try {
    response = await fetch(`${from}/api/report`, { headers, signal: AbortSignal.timeout(10_000) })
  } catch (error) {
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error)
    throw new Error(`no answer: ${cause}. Is Weir running, and is this its admin port?`)
  }
  if (response.status === 401) throw new Error('it asks for the admin token: give it with --token')
  if (!response.ok || response.headers.get('content-type')?.includes('json') !== true) return undefined
  const figures = (await response.json()) as Partial<Figures>
  return Array.isArray(figures.classes) ? (figures as Figures) : undefined
}

const percent = (share: number | null | undefined): string =>
  share === null || share === undefined ? 'not known yet' : `${(share * 100).toFixed(1)} %`
const seconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`
const millis = (ms: number): string => `${ms.toFixed(ms < 100 ? 1 : 0)} ms`

/** The longest of the windows that the report looks back over and that are known. */
const WINDOWS = ['1d', '1h', '5m', '60s']

function linesOf(figures: Figures): Line[] {
  const lines: Line[] = [{ kind: 'title', text: 'Weir: what was promised, and what was kept' }]
  for (const cls of figures.classes) {
    lines.push({ kind: 'section', text: `class ${cls.name}` }, ...promiseOf(cls), ...keptOf(cls))
    const goodput = figures.goodput.filter(
      row => row.class === cls.name && (row.requests_per_second ?? 0) > 0,
    )
    for (const row of goodput) {
      const gpu = row.output_tokens_per_second_per_gpu
      lines.push({
        kind: 'row',
        name: `goodput on ${row.pool}`,
        text: `${row.requests_per_second!.toFixed(2)} requests/s${gpu === null ? '' : `, ${gpu.toFixed(0)} output tokens/s per GPU`}, of good requests`,
      })
    }
  }
  for (const pool of figures.headroom) {
    lines.push({ kind: 'section', text: `pool ${pool.name}` }, ...headroomOf(pool))
  }
  return lines
}

/** How the capacity is known. */
const SOURCES: Readonly<Record<string, string>> = {
  sweep: 'by its sweep',
  learned: 'by what its traffic showed',
  model: 'by a model of its engines',
}

function headroomOf({ headroom_ratio, demand_ratio, source, replicas, classes }: HeadroomFigures): Line[] {
  if (headroom_ratio === null)
    return [
      { kind: 'row', name: 'headroom', text: 'not known yet: sweep the pool, or wait for some traffic' },
    ]
  const room = classes
    .filter(cls => cls.headroom_rps !== null)
    .map(cls => `${cls.headroom_rps!.toFixed(1)} requests/s of ${cls.name}`)
  const lines: Line[] = [
    {
      kind: 'row',
      name: 'headroom',
      text: `${percent(headroom_ratio)} of what it can serve within its promises, known ${SOURCES[source ?? ''] ?? ''}; ${percent(demand_ratio)} is asked for`,
    },
  ]
  if (room.length > 0)
    lines.push({ kind: 'row', name: 'room for', text: `${room.join(', or ')} more, if that alone grew` })
  if (replicas.desired !== null)
    lines.push({ kind: 'row', name: 'replicas', text: `${replicas.desired} should be there` })
  return lines
}

function promiseOf({ promise, workload }: ClassFigures): Line[] {
  const { inputTokens, outputTokens, cacheHit, model } = workload
  return [
    { kind: 'row', name: 'promised', text: showSlo(promise.target) },
    {
      kind: 'row',
      name: 'for',
      text: `${model}, input p50/p90 ${inputTokens.p50}/${inputTokens.p90} tokens, output ${outputTokens.p50}/${outputTokens.p90}, cache hit ${percent(cacheHit)}`,
    },
  ]
}

function keptOf(cls: ClassFigures): Line[] {
  const { promise, spread, drift } = cls
  const p = `p${promise.target.percentile}`
  const at = promise.target.percentile >= 99 ? 'p99' : 'p90'
  const clause = promise.target.clauses.kind === 'stream' ? 'joint' : 'deadline'
  const lines: Line[] = []
  const [ttft, tpot, e2e] = [latest(spread['ttft']), latest(spread['tpot']), latest(spread['e2e'])]
  if (ttft !== undefined && tpot !== undefined) {
    const output = cls.workload.outputTokens.p50
    lines.push({
      kind: 'row',
      name: 'end to end',
      text: `${seconds(ttft.of[at] + (output - 1) * tpot.of[at])} for ${output} output tokens, at ${at} of TTFT and of TPOT (${ttft.window})`,
    })
  } else if (e2e !== undefined) {
    lines.push({
      kind: 'row',
      name: 'end to end',
      text: `p50 ${seconds(e2e.of.p50)}, ${at} ${seconds(e2e.of[at])} (${e2e.window})`,
    })
  }
  if (ttft !== undefined)
    lines.push({
      kind: 'row',
      name: 'TTFT',
      text: `p50 ${millis(ttft.of.p50)}, ${at} ${millis(ttft.of[at])} (${ttft.window})`,
    })
  if (tpot !== undefined)
    lines.push({
      kind: 'row',
      name: 'TPOT',
      text: `p50 ${millis(tpot.of.p50)}, ${at} ${millis(tpot.of[at])} (${tpot.window})`,
    })
  const known = WINDOWS.map(window =>
    cls.attainment.find(
      row => row.slo === 'target' && row.clause === clause && row.window === window && row.share !== null,
    ),
  ).find(row => row !== undefined)
  lines.push({
    kind: 'row',
    name: 'kept',
    text:
      known === undefined
        ? `not known yet: fewer than 100 requests, or less than a minute seen (promised ${promise.target.percentile} %)`
        : `${percent(known.share)}${known.requests === null ? '' : ` of ${known.requests} requests`} over ${known.window}, promised ${promise.target.percentile} %${known.low === null ? '' : ` (95 % interval ${percent(known.low)} to ${percent(known.high)})`}`,
  })
  lines.push({
    kind: 'row',
    name: 'last minute',
    text: `good ${percent(cls.good_share)} of what was offered; ${percent(cls.admitted_good_share)} of what was admitted, with ${percent(cls.shed_share)} shed`,
  })
  for (const budget of cls.budget) {
    const left =
      budget.left === null
        ? `not known before ${budget.period} are seen (${percent(budget.seen_share)} so far)`
        : `${percent(budget.left)} left of ${budget.period}`
    lines.push({ kind: 'row', name: `error budget, ${budget.slo}`, text: left })
  }
  const off = Object.entries(drift.ratios).filter(([, ratio]) => ratio !== undefined && ratio > 1)
  lines.push({
    kind: 'row',
    name: 'traffic',
    text: drift.off_workload
      ? `OFF WORKLOAD (${off.map(([name]) => name).join(', ')}): not what ${p} was promised for`
      : 'as declared, as far as it is known',
  })
  return lines
}

function latest(windows: ClassFigures['spread'][string] | undefined) {
  const window = WINDOWS.find(name => windows?.[name] !== undefined)
  return window === undefined ? undefined : { window, of: windows![window]! }
}
