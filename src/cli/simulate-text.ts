/** A simulated run as text for people. */
import type { Figures } from '../sim/tally.js'
import type { Cell } from './simulate.js'

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
a decision: p50 ${micros(cell.decision_us_p50)}, p99 ${micros(cell.decision_us_p99)}
`
}

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
