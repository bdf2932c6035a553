/** Judges what the player saw, by its own times alone, and sums it up as goodput and attainment by class. */
import type { Ms } from '../time.js'
import type { PlayRecord } from './call.js'

export type Bounds =
  | { readonly ttftMs: Ms; readonly tpotMs: Ms }
  /** To the last token. */
  | { readonly deadlineMs: Ms }

export type PlayVerdict =
  | 'good'
  | 'ttft_miss'
  | 'tpot_miss'
  | 'both_miss'
  | 'deadline_miss'
  | 'shed'
  | 'upstream_error'
  | 'truncated'
  | 'timeout'
  | 'client_error'
  | 'client_left'
  | 'unmeasured'

/** Nearest rank: the smallest value that at least p % of the values do not exceed. null: no value. */
export interface Quantiles {
  readonly p50: number | null
  readonly p90: number | null
  readonly p99: number | null
}

export interface ClassSummary {
  readonly arrivals: number
  /** Arrivals less client_error, client_left, unmeasured, and sheds for quota. */
  readonly offered: number
  readonly good: number
  readonly goodput_rps: number
  /** good / offered; null: nothing was offered. */
  readonly attainment: number | null
  /** good / (offered - shed): never to be shown without the shed share. */
  readonly admitted_attainment: number | null
  readonly shed_share: number | null
  /** Of every answer that began. */
  readonly ttft_ms: Quantiles
  /** Of complete answers of at least 2 tokens. */
  readonly tpot_ms: Quantiles
  /** Complete answers whose tokens were counted by events, since they brought no usage. */
  readonly without_usage: number
}

/** The object that `--json` prints. Snake case and seconds, as in the metrics. */
export interface Summary {
  /** The arrival window; rates divide by it. */
  readonly duration_s: number
  readonly arrivals: number
  readonly offered: number
  /** They sum to arrivals. */
  readonly verdicts: Readonly<Record<string, number>>
  readonly goodput_rps: number
  /** How late the player itself sent, against its plan: above some ms its arrivals are not what was asked for. */
  readonly late_ms: Quantiles
  readonly classes: Readonly<Record<string, ClassSummary>>
}

const TIMEOUT_CODES: readonly (string | undefined)[] = ['weir_first_token_timeout', 'weir_stream_stalled']
const EXCLUDED: readonly PlayVerdict[] = ['client_error', 'client_left', 'unmeasured']
/** From this many tokens on a partial answer is judged, and TPOT without allowance. */
const ENOUGH_TOKENS = 8
/** What one late chunk may add to a shorter answer. */
const SHORT_ANSWER_ALLOWANCE_MS: Ms = 50

/**
 * (last token - first token) / (tokens - 1), ms; undefined below 2 tokens, where there is no gap to measure.
 * Source: NVIDIA, "LLM Inference Benchmarking: Fundamental Concepts" (there called ITL).
 */
export function recordTpotMs(record: PlayRecord): Ms | undefined {
  const { ttftMs, lastMs, tokens } = record
  return ttftMs === undefined || lastMs === undefined || tokens < 2
    ? undefined
    : (lastMs - ttftMs) / (tokens - 1)
}

/**
 * The verdict on one call. Written apart from Weir's own, from the same definitions, so that the two can be compared.
 * A call that the player hung up on counts against its bounds if it was late already, or had 8 tokens to judge; else
 * it is client_left.
 */
export function judge(record: PlayRecord, bounds: Bounds): PlayVerdict {
  switch (record.outcome) {
    case 'shed':
      return 'shed'
    case 'truncated':
      return 'truncated'
    case 'error':
      if (TIMEOUT_CODES.includes(record.code)) return 'timeout'
      return isClientError(record.status) ? 'client_error' : 'upstream_error'
    case 'left':
      return judgeLeft(record, bounds)
    case 'complete':
      return 'deadlineMs' in bounds
        ? within(record.lastMs ?? record.e2eMs, bounds.deadlineMs)
        : judgeStream(record, bounds)
  }
}

function judgeStream(record: PlayRecord, bounds: { ttftMs: Ms; tpotMs: Ms }): PlayVerdict {
  const { ttftMs, lastMs, tokens } = record
  if (ttftMs === undefined || lastMs === undefined) return 'unmeasured'
  const allowance = tokens < ENOUGH_TOKENS ? SHORT_ANSWER_ALLOWANCE_MS : 0
  const slowStart = ttftMs > bounds.ttftMs
  const slowTokens = tokens >= 2 && lastMs - ttftMs > (tokens - 1) * bounds.tpotMs + allowance
  if (slowStart) return slowTokens ? 'both_miss' : 'ttft_miss'
  return slowTokens ? 'tpot_miss' : 'good'
}

function judgeLeft(record: PlayRecord, bounds: Bounds): PlayVerdict {
  if ('deadlineMs' in bounds) return record.e2eMs > bounds.deadlineMs ? 'deadline_miss' : 'client_left'
  if (record.ttftMs === undefined) return record.e2eMs > bounds.ttftMs ? 'ttft_miss' : 'client_left'
  return record.tokens >= ENOUGH_TOKENS ? judgeStream(record, bounds) : 'client_left'
}

function within(tookMs: Ms, deadlineMs: Ms): PlayVerdict {
  return tookMs <= deadlineMs ? 'good' : 'deadline_miss'
}

/** 429 is a refusal for load by whoever is no Weir; any other 4xx is the request's own fault. */
function isClientError(status: number | undefined): boolean {
  return status !== undefined && status >= 400 && status < 500 && status !== 429
}

/**
 * Sums up a play.
 * @param records  every record of it
 * @param bounds   by label
 * @param windowMs the arrival window, as `Player.play` gave it
 * @throws RangeError for a label without bounds
 */
export function summarise(
  records: readonly PlayRecord[],
  bounds: ReadonlyMap<string, Bounds>,
  windowMs: Ms,
): Summary {
  const verdicts: Record<string, number> = {}
  const judged = new Map<string, Judged[]>([...bounds.keys()].map(label => [label, []]))
  for (const record of records) {
    const own = bounds.get(record.label)
    const list = judged.get(record.label)
    if (own === undefined || list === undefined)
      throw new RangeError(`no bounds for the label ${JSON.stringify(record.label)}`)
    const verdict = judge(record, own)
    verdicts[verdict] = (verdicts[verdict] ?? 0) + 1
    list.push({ record, verdict })
  }
  const seconds = windowMs / 1000
  const classes = Object.fromEntries(
    [...judged].map(([label, list]) => [label, summariseClass(list, seconds)]),
  )
  const all = Object.values(classes)
  return {
    duration_s: seconds,
    arrivals: records.length,
    offered: sum(all.map(one => one.offered)),
    verdicts,
    goodput_rps: seconds > 0 ? sum(all.map(one => one.good)) / seconds : 0,
    late_ms: quantiles(records.map(record => record.lateMs)),
    classes,
  }
}

interface Judged {
  readonly record: PlayRecord
  readonly verdict: PlayVerdict
}

function summariseClass(list: readonly Judged[], seconds: number): ClassSummary {
  const offered = list.filter(
    ({ record, verdict }) =>
      !EXCLUDED.includes(verdict) && !(verdict === 'shed' && record.code === 'weir_quota'),
  )
  const good = offered.filter(one => one.verdict === 'good').length
  const shed = offered.filter(one => one.verdict === 'shed').length
  const complete = list.filter(one => one.record.outcome === 'complete').map(one => one.record)
  return {
    arrivals: list.length,
    offered: offered.length,
    good,
    goodput_rps: seconds > 0 ? good / seconds : 0,
    attainment: ratio(good, offered.length),
    admitted_attainment: ratio(good, offered.length - shed),
    shed_share: ratio(shed, offered.length),
    ttft_ms: quantiles(list.map(one => one.record.ttftMs)),
    tpot_ms: quantiles(complete.map(recordTpotMs)),
    without_usage: complete.filter(record => record.tokensFrom === 'events').length,
  }
}

/** Percentiles by nearest rank, exact, of the values that are there. */
export function quantiles(values: readonly (number | undefined)[]): Quantiles {
  const sorted = values.filter(value => value !== undefined).sort((a, b) => a - b)
  const rank = (percent: number): number | null =>
    sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)] ?? null
  return { p50: rank(50), p90: rank(90), p99: rank(99) }
}

function ratio(part: number, whole: number): number | null {
  return whole > 0 ? part / whole : null
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}

const COLUMNS = [
  'class',
  'offered',
  'good',
  'good/s',
  'attainment',
  'of admitted',
  'shed',
  'TTFT p50/p90/p99',
  'TPOT p50/p90/p99',
]

/** The summary as a table for people: one line a class, then the verdicts. */
export function summaryTable(summary: Summary): string {
  const rows = Object.entries(summary.classes).map(([name, one]) => [
    name,
    String(one.offered),
    String(one.good),
    one.goodput_rps.toFixed(2),
    percent(one.attainment),
    percent(one.admitted_attainment),
    percent(one.shed_share),
    triple(one.ttft_ms, 0),
    triple(one.tpot_ms, 1),
  ])
  const table = [COLUMNS, ...rows]
  const widths = COLUMNS.map((_, i) => Math.max(...table.map(row => row[i]?.length ?? 0)))
  const lines = table.map(row =>
    row.map((text, i) => (i === 0 ? text.padEnd(widths[i] ?? 0) : text.padStart(widths[i] ?? 0))).join('  '),
  )
  const verdicts = Object.entries(summary.verdicts).map(([name, count]) => `${name} ${count}`)
  const withoutUsage = sum(Object.values(summary.classes).map(one => one.without_usage))
  return [
    ...lines,
    '',
    `${summary.arrivals} arrivals in ${summary.duration_s.toFixed(1)} s: ${verdicts.join(', ') || 'none'}`,
    `goodput ${summary.goodput_rps.toFixed(2)} requests/s; the player sent ${triple(summary.late_ms, 1)} late (p50/p90/p99)`,
    ...(withoutUsage > 0
      ? [`${withoutUsage} answers brought no usage: their tokens are counted by events`]
      : []),
    '',
  ].join('\n')
}

function percent(value: number | null): string {
  return value === null ? '-' : `${(value * 100).toFixed(1)} %`
}

function triple(value: Quantiles, digits: number): string {
  if (value.p50 === null) return '-'
  return `${[value.p50, value.p90, value.p99].map(one => one?.toFixed(digits)).join('/')} ms`
}
