/** A simulated run as text for people. */
import type { Figures } from '../sim/tally.js'
import type { Cell } from './simulate.js'
import type { Curve, CurvePoint } from './simulate-curve.js'

const percent = (share: number | undefined): string =>
  share === undefined ? '-' : `${(share * 100).toFixed(1)} %`
const ms = (time: number | undefined): string => (time === undefined ? '-' : `${time.toFixed(0)} ms`)

/** One run: a line a class and one for all, and what explains them. */
export function cellText(cell: Cell): string {
  const classes = Object.entries(cell.classes)
  const rows = [...classes, ...(classes.length > 1 ? [['all', cell] as const] : [])]
  const lines = rows.map(([name, figures]) => row(name, figures, cell.idle_share[name]))
  const quartiles = cell.good_by_prompt_quartile.map(percent).join(', ')
  return `${cell.scenario}: ${cell.policy} at load ${cell.load}, seed ${cell.seed}

${HEAD}
${lines.join('\n')}

good by prompt length, shortest quarter first: ${quartiles}
good by work ${percent(cell.good_share_by_work)}, by prompt tokens ${percent(cell.good_share_by_prompt_tokens)}, by output tokens ${percent(cell.good_share_by_output_tokens)}
wasted work ${percent(cell.wasted_work_share)}; prefix hits ${percent(cell.prefix_hit_share)}; preemptions ${cell.preemptions}
${'recovery_ms' in cell ? recoveryText(cell.recovery_ms) : ''}a decision: p50 ${micros(cell.decision_us_p50)}, p99 ${micros(cell.decision_us_p99)}
`
}

const recoveryText = (time: number | undefined): string =>
  time === undefined
    ? 'newcomers are not served again as before the burst\n'
    : `newcomers are served again as before the burst after ${ms(time)}\n`

const micros = (time: number | undefined): string => (time === undefined ? '-' : `${time.toFixed(0)} us`)

const COLUMNS = ['class', 'offered', 'good', 'admitted kept', 'shed', 'TTFT p50', 'TPOT p50', 'idle serves']
const WIDTHS = [10, 9, 9, 14, 9, 10, 10, 12]
const line = (cells: readonly string[]): string =>
  cells.map((cell, at) => (at === 0 ? cell.padEnd(WIDTHS[0] ?? 0) : cell.padStart(WIDTHS[at] ?? 0))).join('')
const HEAD = line(COLUMNS)

function row(name: string, figures: Figures, idle: number | undefined): string {
  return line([
    name,
    String(figures.offered),
    percent(figures.good_share),
    percent(figures.admitted_attainment),
    percent(figures.shed_share),
    ms(figures.ttft_p50_ms),
    ms(figures.tpot_p50_ms),
    percent(idle),
  ])
}

/** The curve of a config, and what follows from it. */
export function curveText(curve: Curve): string {
  const tried = curve.needed === null ? [] : curve.points.filter(point => !curve.loads.includes(point))
  const rows = curve.points.filter(point => !tried.includes(point)).map(pointText)
  return `${curve.config}: ${curve.policy} before simulated ${curve.engine} engines; load 1 is ${curve.load_is}

${pointHead}
${rows.join('\n')}

${breakText(curve)}
${neededText(curve, tried)}${scaledText(curve)}`
}

const POINT = [8, 10, 12, 14, 9, 9, 22]
const pointLine = (cells: readonly string[]): string =>
  cells.map((cell, at) => cell.padStart(POINT[at] ?? 0)).join('')
const pointHead = pointLine(['load', 'replicas', 'offered/s', 'goodput/s', 'good', 'shed', 'what breaks'])

function pointText(point: CurvePoint): string {
  return pointLine([
    String(point.load),
    String(point.replicas),
    point.offered_rps.toFixed(1),
    point.goodput_rps.toFixed(1),
    percent(point.good_share),
    percent(point.shed_share),
    point.broke ?? 'nothing',
  ])
}

function breakText({ loads }: Curve): string {
  const first = loads.find(point => !point.holds)
  const last = loads.filter(point => point.holds).at(-1)
  if (first === undefined) return `The promise holds at every load up to ${last?.load}.`
  const held = last === undefined ? 'at no load' : `up to load ${last.load}`
  return `The promise holds ${held}; at ${first.load} it breaks first by ${first.broke}.`
}

function neededText({ needed, pool }: Curve, tried: readonly CurvePoint[]): string {
  if (needed === null) return ''
  const [from, to] = needed.tried
  const runs = tried
    .toSorted((a, b) => a.replicas - b.replicas)
    .map(point => `${point.replicas}: ${percent(point.good_share)}${point.holds ? '' : ` (${point.broke})`}`)
  const answer =
    needed.replicas === null
      ? `Not even ${to} replicas of ${pool} hold the promise at load ${needed.load}.`
      : `${needed.replicas} ${needed.replicas === 1 ? 'replica of' : 'replicas of'} ${pool} ${needed.replicas === 1 ? 'holds' : 'hold'} the promise at load ${needed.load} (${from} to ${to} were looked at).`
  return `${answer}\n  good by replicas: ${runs.join(', ')}\n`
}

function scaledText({ autoscaled: scaled }: Curve): string {
  if (scaled === null) return ''
  const { gpu_hours: hours, least_replicas: least, most_replicas: most, flaps } = scaled
  return `With the autoscaler over ${scaled.hours.toFixed(2)} h of the trace: ${hours.toFixed(2)} GPU-hours, ${least} to ${most} replicas, ${percent(scaled.good_share)} good, ${flaps} flaps.
`
}
