/** Recording and alert rules for Prometheus: miss shares of each SLO over its windows, its budget, and who to wake. */
import { showDuration } from '../config/units.js'
import { type BurnAlert, MIN_EVENTS } from '../slo/alerts.js'
import type { Ms } from '../time.js'
import { nameOf, type Promised } from './promised.js'

export interface Rule {
  readonly record?: string
  readonly alert?: string
  readonly expr: string
  readonly for?: string
  readonly labels?: Readonly<Record<string, string>>
  readonly annotations?: Readonly<Record<string, string>>
}

export interface Group {
  readonly name: string
  readonly rules: readonly Rule[]
}

export interface RuleOptions {
  /** Where the runbook stands; alerts add an anchor of it. */
  readonly runbook: string
  /** Every window times this. Tests live through an hour in a minute; names keep the true window. */
  readonly scale?: number
}

const LONG_MS: Ms = 86_400_000

/** The budget is read from the rates of hours: a range of 30 days of raw samples would be slow. */
const BUDGET_STEP_MS: Ms = 3_600_000

/**
 * One group for each SLO, so that its rules are evaluated in their order, and one for the fleet.
 */
export function prometheusRules(promises: readonly Promised[], options: RuleOptions): readonly Group[] {
  return [
    ...promises.map(promised => ({ name: `weir-${nameOf(promised)}`, rules: rulesOf(promised, options) })),
    { name: 'weir-fleet', rules: fleetRules(options) },
  ]
}

function rulesOf(promised: Promised, options: RuleOptions): readonly Rule[] {
  const alerts = promised.alerts.filter(({ fires }) => fires === 'yes')
  const shorts = new Set(alerts.map(({ shortMs }) => shortMs))
  const windows = new Set([BUDGET_STEP_MS, ...shorts, ...alerts.map(({ longMs }) => longMs)])
  const series = new Series(promised, options.scale ?? 1)
  const rules: readonly Rule[] = [
    ...[...windows].sort((a, b) => a - b).flatMap(ms => series.over(ms)),
    ...[...shorts].flatMap(ms => series.moved(ms)),
    ...series.budget(),
    ...alerts.map(alert => burnRule(promised, alert, series, options)),
  ]
  // Written out, since promtool takes rules of one name for doubles unless their labels differ.
  return rules.map(rule => ({ ...rule, labels: { class: promised.cls, slo: promised.slo, ...rule.labels } }))
}

/** Names and expressions of what is recorded for one SLO. */
class Series {
  readonly #promised: Promised
  readonly #scale: number
  /** Selects the SLO. */
  readonly #own: string

  constructor(promised: Promised, scale: number) {
    this.#promised = promised
    this.#scale = scale
    this.#own = `class="${promised.cls}",slo="${promised.slo}"`
  }

  /** A window as a range. */
  range(ms: Ms): string {
    return showDuration(Math.round(ms * this.#scale))
  }

  seconds(ms: Ms): number {
    return (ms * this.#scale) / 1000
  }

  name(what: string, ms: Ms): string {
    return `${what}${showDuration(ms)}`
  }

  /** A recorded series of this SLO. */
  of(what: string, ms: Ms, more = ''): string {
    return `${this.name(what, ms)}{${this.#own}${more}}`
  }

  /** Rates of misses and of all decided clauses, and the share of requests that miss the SLO. */
  over(ms: Ms): readonly Rule[] {
    const rate = (more: string): string =>
      `sum by (clause) (rate(weir_clause_total{${this.#own}${more}}[${this.range(ms)}]))`
    return this.#shares(ms, rate(',result="missed"'), rate(''), this.#failed(this.range(ms)))
  }

  /** What is left of the budget: 1 at first, 0 when the allowed misses are used up, below 0 after that. */
  budget(): readonly Rule[] {
    const { periodMs, allowed } = this.#promised
    const mean = (what: string): string =>
      `avg_over_time(${this.of(what, BUDGET_STEP_MS)}[${this.range(periodMs)}:${this.range(BUDGET_STEP_MS)}])`
    return [
      ...this.#shares(periodMs, mean(MISSED), mean(DECIDED), mean(FAILED)),
      { record: 'weir_slo:budget_remaining:ratio', expr: `1 - ${this.of(BAD, periodMs)} / ${allowed}` },
    ]
  }

  /**
   * The same share of misses, under the clause that moved. A clause moved when it stands for a quarter of the misses
   * or more; where neither does, requests failed: shed, cut, timed out.
   */
  moved(ms: Ms): readonly Rule[] {
    const bad = this.of(BAD, ms)
    const record = this.name(MOVED, ms)
    if (this.#promised.kind === 'deadline') return [{ record, expr: bad, labels: { clause: 'deadline' } }]
    const share = (clause: string): string =>
      `${bad} <= on (class, slo) 4 * sum by (class, slo) (${this.of(SHARE, ms, `,clause="${clause}"`)})`
    const [ttft, tpot] = [`(${share('ttft')})`, `(${share('tpot')})`]
    return [
      { record, expr: `${ttft}\nunless\n${tpot}`, labels: { clause: 'ttft' } },
      { record, expr: `${tpot}\nunless\n${ttft}`, labels: { clause: 'tpot' } },
      { record, expr: `${ttft}\nand\n${tpot}`, labels: { clause: 'both' } },
      { record, expr: `${bad}\nunless\n${ttft}\nunless\n${tpot}`, labels: { clause: 'failed' } },
    ]
  }

  /** Sheds for quota are in no clause. A counter without a sample has not counted. */
  #failed(range: string): string {
    const rate = (selector: string): string => `(sum(rate(${selector}[${range}])) or vector(0))`
    const { cls } = this.#promised
    return (
      rate(`weir_requests_total{class="${cls}",verdict=~"shed|upstream_error|truncated|timeout"}`) +
      ` - ${rate(`weir_shed_total{class="${cls}",reason="quota"}`)}`
    )
  }

  #shares(ms: Ms, missed: string, decided: string, failed: string): readonly Rule[] {
    const { kind, mode } = this.#promised
    return [
      ...(kind === 'stream' && mode === 'clause' ? [{ record: this.name(FAILED, ms), expr: failed }] : []),
      { record: this.name(MISSED, ms), expr: missed },
      { record: this.name(DECIDED, ms), expr: decided },
      { record: this.name(SHARE, ms), expr: `${this.of(MISSED, ms)} / ${this.of(DECIDED, ms)}` },
      { record: this.name(BAD, ms), expr: this.#bad(ms) },
    ]
  }

  /**
   * Share of requests that miss the SLO. `ttft` stands beside `joint` since it counts when its bound passes: while
   * nothing ends, only it shows. Where each clause is promised for itself the worst one counts, with the requests that
   * failed, which are in neither. One that failed after its TTFT bound is in both counts, so `joint` limits their sum.
   */
  #bad(ms: Ms): string {
    const { kind, mode } = this.#promised
    if (kind === 'deadline') return `max(${this.of(SHARE, ms)})`
    if (mode === 'joint') return `max(${this.of(SHARE, ms, ',clause=~"joint|ttft"')})`
    const each = ',clause=~"ttft|tpot"'
    const worst = `max(${this.of(MISSED, ms, each)}) + sum(${this.of(FAILED, ms)})`
    const [missed, decided] = [MISSED, DECIDED].map(what => `sum(${this.of(what, ms, ',clause="joint"')})`)
    return `max(${this.of(SHARE, ms, each)} or (${worst} <= ${missed} or ${missed}) / ${decided})`
  }
}

const MISSED = 'weir_clause:missed:rate'
const DECIDED = 'weir_clause:decided:rate'
/** Requests that failed, where each clause is promised for itself. */
const FAILED = 'weir_slo:failed:rate'
const SHARE = 'weir_clause:missed:ratio'
const BAD = 'weir_slo:bad:ratio'
const MOVED = 'weir_slo:moved:ratio'

function burnRule(
  promised: Promised,
  { longMs, shortMs, missShare, factor, severity }: BurnAlert,
  series: Series,
  { runbook }: RuleOptions,
): Rule {
  const { cls, slo, words, periodMs, allowed, pools } = promised
  const [long, short, period] = [longMs, shortMs, periodMs].map(showDuration)
  const bad = series.of(BAD, shortMs)
  const longBad = series.of(BAD, longMs)
  const decided = `max by (class, slo) (${series.of(DECIDED, shortMs)})`
  const recent = `[${series.range(longMs)}:${series.range(longMs / 60)}]`
  // The last moment below the line; where there was none, the first above it.
  const since =
    `max_over_time(timestamp(${bad} <= ${missShare})${recent}) ` +
    `or min_over_time(timestamp(${bad} > ${missShare})${recent})`
  return {
    alert: `Weir${slo === 'guard' ? 'Guard' : 'Target'}Burn`,
    expr: [
      `${series.of(MOVED, shortMs)} > ${missShare}`,
      `and on (class, slo) ${longBad} > ${missShare}`,
      `and on (class, slo) ${decided} * ${series.seconds(shortMs)} >= ${MIN_EVENTS}`,
      // A few misses on the first day are no trend of three: such a window has to have been seen from its start.
      ...(longMs < LONG_MS
        ? []
        : [
            `and on (class, slo) present_over_time(${bad}[${series.range(shortMs)}] offset ${series.range(longMs - shortMs)})`,
          ]),
    ].join('\n'),
    labels: { severity, window: showDuration(longMs) },
    annotations: {
      summary:
        `${cls}: {{ $value | humanizePercentage }} of the requests of ${short} and ` +
        `${first(longBad, 'humanizePercentage')} of those of ${long} missed the ${slo} (${words}): ` +
        `${movedWords(promised)}. That burns the budget of ${period} at more than ${Number(factor.toPrecision(3))} ` +
        `times its pace; a whole one would last ${first(`round(${allowed * (periodMs / 1000)} / ${longBad}, 60)`, 'humanizeDuration')}.`,
      since: first(since, 'humanizeTimestamp'),
      shares:
        `missed in ${short}:${each(series.of(SHARE, shortMs), '{{ .Labels.clause }} {{ .Value | humanizePercentage }}')}; ` +
        `shed ${first(`sum(rate(weir_shed_total{class="${cls}",reason!="quota"}[${series.range(shortMs)}]))`, 'humanize')} requests/s`,
      cause:
        `{{ with query \`sort_desc(weir_diagnosis{pool=~"${pools.join('|')}"} > 0)\` }}{{ range . }}` +
        '{{ .Labels.cause }} in pool {{ .Labels.pool }} ({{ .Labels.clause }}). {{ end }}' +
        '{{ else }}not diagnosed: the runbook has a query for each cause{{ end }}',
      runbook_url: `${runbook}#clause-{{ $labels.clause }}`,
    },
  }
}

/** A template that shows the first sample of a query. */
function first(query: string, show: string): string {
  return `{{ with query \`${query}\` }}{{ . | first | value | ${show} }}{{ else }}unknown{{ end }}`
}

/** A template that shows every sample of a query. */
function each(query: string, show: string): string {
  return `{{ range query \`${query}\` | sortByLabel "clause" }} ${show}{{ end }}`
}

function movedWords({ kind }: Promised): string {
  if (kind === 'deadline') return 'the deadline passed, or they failed'
  return (
    '{{ if eq $labels.clause "ttft" }}first tokens are late' +
    '{{ else if eq $labels.clause "tpot" }}tokens come too slowly' +
    '{{ else if eq $labels.clause "both" }}first tokens are late and tokens come too slowly' +
    '{{ else }}neither clause moved, requests fail{{ end }}'
  )
}

function fleetRules({ runbook, scale = 1 }: RuleOptions): readonly Rule[] {
  const spell = (ms: Ms): string => showDuration(Math.round(ms * scale))
  const alert = (
    name: string,
    severity: 'page' | 'ticket',
    expr: string,
    forMs: Ms,
    summary: string,
    anchor: string,
  ): Rule => ({
    alert: name,
    expr,
    for: spell(forMs),
    labels: { class: 'none', slo: 'none', clause: 'none', severity },
    annotations: { summary, runbook_url: `${runbook}#${anchor}` },
  })
  const headroom = alert(
    'WeirHeadroomGone',
    'page',
    'min by (pool) (weir_headroom_ratio) < 0.1',
    300_000,
    'pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of what it can serve within its SLOs is left.',
    'headroom-gone',
  )
  return [
    alert(
      'WeirDown',
      'page',
      'absent(weir_build_info)',
      120_000,
      'No Weir answers to its scrape: its clients get no answers, or nobody sees how good they are.',
      'weir-down',
    ),
    alert(
      'WeirInstanceDown',
      'ticket',
      `up == 0\nand on (job, instance) present_over_time(weir_build_info[${spell(3_600_000)}])`,
      120_000,
      'Weir at {{ $labels.instance }} does not answer to its scrape.',
      'weir-down',
    ),
    alert(
      'WeirPoolDown',
      'page',
      'max by (pool) (weir_replica_up) == 0',
      60_000,
      'pool {{ $labels.pool }}: every replica is ejected; its requests spill or are shed.',
      'replica-ejected',
    ),
    alert(
      'WeirReplicaEjected',
      'ticket',
      'max by (pool, replica) (weir_replica_up) == 0',
      300_000,
      'pool {{ $labels.pool }}: replica {{ $labels.replica }} is ejected; ' +
        '{{ with query (printf `sum(max by (replica) (weir_replica_up{pool="%s"}))` $labels.pool) }}{{ . | first | value | humanize }}{{ end }} are left.',
      'replica-ejected',
    ),
    headroom,
  ]
}
