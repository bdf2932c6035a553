/** What a sweep says, for people: its table, its sentences, and what to write into the config. */
import type { SweepFile } from '../config/sweep-file.js'
import { showDuration } from '../config/units.js'
import type { Slo } from '../slo/slo.js'
import { clauseRatios, littleError, promisedClauses, type SweepPoint } from '../slo/sweep.js'

const NAMES = { ttft: 'TTFT', tpot: 'TPOT', deadline: 'end to end' } as const

export const whole = (value: number): string => Math.round(value).toLocaleString('en-US')
const percent = (share: number, digits = 0): string => `${(share * 100).toFixed(digits)} %`
/** TPOT is read in tenths of a ms, everything longer in whole ones. */
const ms = (value: number | null): string =>
  value === null ? '-' : value < 100 ? value.toFixed(1) : whole(value)

/** `p90 of TTFT within 500ms and p90 of TPOT within 40ms`, and so on. */
export function promiseText({ percentile, mode, clauses }: Slo): string {
  if (clauses.kind === 'deadline')
    return `p${percentile} of answers whole within ${showDuration(clauses.deadlineMs)}`
  const [ttft, tpot] = [showDuration(clauses.ttftMs), showDuration(clauses.tpotMs)]
  return mode === 'joint'
    ? `${percentile} % of requests with TTFT within ${ttft} and TPOT within ${tpot} both`
    : `p${percentile} of TTFT within ${ttft}, and p${percentile} of TPOT within ${tpot}`
}

/**
 * The one sentence that a slide leaves out: what capacity is, and which throughput is none.
 * @param past  points past the knee
 */
export function capacityText(
  knee: SweepPoint,
  budget: number,
  past: readonly { readonly concurrency: number; readonly output_tok_s_per_gpu: number }[],
): string {
  const capacity = `capacity is ${whole(budget)} tok/s per GPU at concurrency ${knee.concurrency}`
  const list = past.map(
    (point, i) =>
      `${whole(point.output_tok_s_per_gpu)} at ${i === 0 ? 'concurrency ' : ''}${point.concurrency}`,
  )
  if (list.length === 0) return `${capacity}, or more: the promise still holds at the last point`
  const last = list.pop()
  const named = list.length === 0 ? last : `${list.join(', ')} or ${last}`
  return `${capacity}; a throughput of ${named} does not count`
}

/** Why no point keeps the promise: which clause failed at the lowest load, and by how much. */
export function noKneeText(point: SweepPoint, slo: Slo): string {
  const at = `at concurrency ${point.concurrency}`
  const failed =
    point.failed > 0 ? `; ${whole(point.failed)} of ${whole(point.requests)} requests failed` : ''
  const over = clauseRatios(point, slo).filter(({ ratio }) => ratio > 1)
  const clauses = over.map(({ clause, ms: got, bound, ratio }) => {
    const share = point.met_share[clause] ?? 0
    return `${NAMES[clause]} p${slo.percentile} is ${ms(got)} ms ${at}, ${ms(got - bound)} ms (${percent(ratio - 1)}) over its bound of ${showDuration(bound)}: ${percent(share, 1)} met it`
  })
  if (clauses.length > 0) return `the promise is never kept: ${clauses.join('; ')}${failed}`
  const shares = promisedClauses(slo)
    .map(clause => point.met_share[clause] ?? 0)
    .filter(share => share * 100 < slo.percentile)
  const met = slo.clauses.kind === 'stream' && slo.mode === 'joint' ? 'TTFT and TPOT both' : 'the bound'
  return `the promise is never kept: ${percent(Math.min(...shares), 1)} of requests met ${met} ${at}, ${slo.percentile} % are promised${failed}`
}

/** The table, then what follows from it. */
export function sweepText(file: SweepFile, slo: Slo): string {
  const { engine, gpus, hardware, target, workload, knee } = file
  const { input_tokens: input, output_tokens: output } = workload
  const what = target === null ? `engine ${engine.name}, simulated` : `${target}, model ${workload.model}`
  const head = [
    `${what}; ${gpus} ${gpus === 1 ? 'GPU' : 'GPUs'}, ${hardware ?? 'hardware not stated (--hardware)'}`,
    `workload  ${whole(input.p50)}/${whole(input.p90)} tokens in, ${whole(output.p50)}/${whole(output.p90)} out (p50/p90), ${percent(workload.cache_hit)} cached; ${workload.source}`,
    `promise   ${promiseText(slo)}`,
  ]
  const says = knee === null ? [file.conclusion] : kneeLines(file, slo)
  return [
    ...head,
    '',
    ...table(file, slo),
    '',
    ...says,
    ...file.warnings.map(line => `warning: ${line}`),
    '',
  ].join('\n')
}

function table({ points, rejected, knee }: SweepFile, slo: Slo): string[] {
  const streams = slo.clauses.kind === 'stream'
  const p = `p${slo.percentile}`
  const columns = streams ? ['TTFT p50', p, 'TPOT p50', p] : ['TTFT p50', 'TPOT p50', 'e2e p50', p]
  const head = ['concurrency', ...columns, 'output tok/s', 'goodput tok/s', 'good', 'requests', 'Little', '']
  const rows = points.map(point => [
    String(point.concurrency),
    ...(streams
      ? [point.ttft_ms.p50, point.ttft_ms.promised, point.tpot_ms.p50, point.tpot_ms.promised]
      : [point.ttft_ms.p50, point.tpot_ms.p50, point.e2e_ms.p50, point.e2e_ms.promised]
    ).map(ms),
    whole(point.output_tok_s),
    whole(point.goodput_tok_s),
    percent(point.good_share, 1),
    whole(point.requests),
    percent(littleError(point), 1),
    pointVerdict(point, knee),
  ])
  const all = [head, ...rows]
  const widths = head.map((_, i) => Math.max(...all.map(row => row[i]?.length ?? 0)))
  const lines = all.map(row =>
    row
      .map((cell, i) => (i === row.length - 1 ? cell : cell.padStart(widths[i] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
  return [...lines, ...rejected.map(({ concurrency, reason }) => `${concurrency} is left out: ${reason}`)]
}

function pointVerdict(point: SweepPoint, knee: number | null): string {
  const verdict = point.decided ? '' : ', undecided'
  if (point.concurrency === knee) return `holds${verdict}: the knee`
  if (knee !== null && point.concurrency > knee)
    return `${point.holds ? 'no capacity' : 'broken, no capacity'}${verdict}`
  return `${point.holds ? 'holds' : 'broken'}${verdict}`
}

function kneeLines(file: SweepFile, slo: Slo): string[] {
  const { knee_interpolated: between, steady, scale_out_at: scaleOut, binding } = file
  const point = file.points.find(one => one.concurrency === file.knee)
  if (point === undefined || steady === null || scaleOut === null) return [file.conclusion]
  const ratios = clauseRatios(point, slo).map(
    ({ clause, ms: got, bound, ratio }) =>
      `${NAMES[clause]} p${slo.percentile} is ${ms(got)} of ${showDuration(bound)} (${percent(ratio)})`,
  )
  const beside = between === null ? '' : ` (between the points it would be ${between.toFixed(1)})`
  return [
    `knee      ${point.concurrency}${beside}`,
    `binding   ${NAMES[binding]}: ${ratios.join(', ')}`,
    `budget    ${whole(file.budget_tok_s_per_gpu ?? 0)} goodput tok/s per GPU`,
    `run at    concurrency ${steady.low} to ${steady.high} in steady state, 67 to 83 % of the knee`,
    `scale out above ${whole(scaleOut)} goodput tok/s per GPU of demand, 70 % of the budget: a dial of its own`,
    '',
    file.conclusion,
  ]
}

/** What to paste into the config. Without a config all that `weir serve -c` needs. */
export function snippet(
  file: SweepFile,
  slo: Slo,
  config: { readonly pool: string; readonly sweep: string } | undefined,
  out: string,
): string {
  if (config !== undefined) return `pools:\n  ${config.pool}:\n    sweep: ${config.sweep}\n`
  const { workload, target, gpus } = file
  const { clauses } = slo
  const bounds =
    clauses.kind === 'stream'
      ? `ttft: ${showDuration(clauses.ttftMs)}, tpot: ${showDuration(clauses.tpotMs)}`
      : `deadline: ${showDuration(clauses.deadlineMs)}`
  const lengths = ({ p50, p90 }: { p50: number; p90: number }): string => `{ p50: ${p50}, p90: ${p90} }`
  const model = JSON.stringify(workload.model)
  return `classes:
  chat:
    slo:
      target: { percentile: ${slo.percentile}, ${bounds}, mode: ${slo.mode} }
    workload:
      model: ${model}
      input_tokens: ${lengths(workload.input_tokens)}
      output_tokens: ${lengths(workload.output_tokens)}
      cache_hit: ${workload.cache_hit}
    pools: [main]
pools:
  main:
    model: ${model}
    gpus_per_replica: ${gpus}
    replicas: [${target}]
    sweep: ${JSON.stringify(out)}
`
}
