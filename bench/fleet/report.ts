/** The tables of the fleet benchmark as Markdown, with their spread over seeds. */
import type { Line, Result } from './crew.js'
import type { Table } from './tables.js'

export interface Ran {
  readonly table: Table
  readonly lines: readonly Line[]
  /** Knobs that were chosen, with the figure at the tuning seed: by scenario and policy. */
  readonly tuned: readonly { readonly scenario: string; readonly policy: string; readonly text: string }[]
  readonly command: string
  readonly commit: string
  readonly machine: string
}

const mean = (list: readonly number[]): number => list.reduce((a, b) => a + b, 0) / list.length
/** `.73 (.71–.75)`: the mean, and the least and most of the seeds. */
function spread(values: readonly (number | null | undefined)[]): string {
  const known = values.filter(value => value !== undefined && value !== null)
  if (known.length === 0) return '–'
  const text = (value: number): string => value.toFixed(3).replace(/^0/, '')
  const [low, high] = [Math.min(...known), Math.max(...known)]
  return known.length === 1 || low === high
    ? text(mean(known))
    : `${text(mean(known))} (${text(low)}–${text(high)})`
}

const COLUMNS: readonly (readonly [title: string, of: (result: Result) => number | null | undefined])[] = [
  ['by prompt tokens', result => result.good_share_by_prompt_tokens],
  ['by output tokens', result => result.good_share_by_output_tokens],
  ['by work', result => result.good_share_by_work],
  ['shed', result => result.shed_share],
  ['admitted kept', result => result.admitted_attainment],
  ['servable kept', result => result.servable_attainment],
  ['wasted work', result => result.wasted_work_share],
]

export function reportText({ table, lines, tuned, command, commit, machine }: Ran): string {
  const parts = table.scenarios.map(scenario => {
    const here = lines.filter(line => line.job.scenario === scenario)
    return here.length === 0 ? '' : scenarioText(scenario, table, here)
  })
  const choices = tuned.map(({ scenario, policy, text }) => `| ${scenario} | ${policy} | ${text} |`)
  return `# Fleet: ${table.name}

${table.about}. Seeds ${table.seeds.join(', ')}; figures are means, with the least and the most of the seeds.
good = requests that met their promise / offered, sheds among the offered. Load 1 is what a fluid would fill the fleet
with at the promised pace (src/sim/fluid.ts). Policies without admission go to about 0 above load 1: no ratio is claimed
against them.

Command: \`${command}\`, at ${commit}, on ${machine}.
${parts.join('\n')}
${choices.length === 0 ? '' : `## Knobs\n\nChosen at a seed of their own, for each scenario; good there is a mean of loads 1 and 1.5.\n\n| scenario | policy | knobs, good at the tuning seed |\n|---|---|---|\n${choices.join('\n')}\n`}`
}

function scenarioText(scenario: string, table: Table, lines: readonly Line[]): string {
  const idle = Object.entries(lines[0]?.result.idle_share ?? {})
  const weak = idle.filter(([, share]) => share < 0.98)
  const classes = idle.map(([name]) => name)
  const of = (policy: string, load: number): Result[] =>
    lines.filter(({ job }) => job.policy === policy && job.load === load).map(({ result }) => result)
  const row = (title: string, cells: readonly string[]): string => `| ${title} | ${cells.join(' | ')} |`
  const head = (cells: readonly string[]): string =>
    `${row('policy', cells)}\n|---${'|---'.repeat(cells.length)}|`
  const good = table.policies.map(policy =>
    row(
      policy,
      table.loads.map(load => spread(of(policy, load).map(result => result.good_share))),
    ),
  )
  const details = table.loads.map(load => {
    const titles = [
      ...(classes.length > 1 ? classes : []),
      ...COLUMNS.map(([title]) => title),
      'good by prompt quartile',
      'decision p50/p99, us',
    ]
    const rows = table.policies.map(policy => {
      const results = of(policy, load)
      return row(policy, [
        ...(classes.length > 1
          ? classes.map(name => spread(results.map(result => result.classes[name]?.good_share)))
          : []),
        ...COLUMNS.map(([, figure]) => spread(results.map(figure))),
        [0, 1, 2, 3]
          .map(at => spread(results.map(r => r.good_by_prompt_quartile[at])).replace(/ .*/, ''))
          .join(' '),
        `${time(results, 'decision_us_p50')}/${time(results, 'decision_us_p99')}`,
      ])
    })
    return `### Load ${load}\n\n${head(titles)}\n${rows.join('\n')}\n`
  })
  const served = idle.map(([name, share]) => `${name} ${(share * 100).toFixed(1)} %`).join(', ')
  const mark = weak.length === 0 ? '' : ' **Below 98 %: not a fair scenario.**'
  return `
## ${scenario}

An idle replica serves as promised: ${served}.${mark}

${head(table.loads.map(load => `load ${load}`))}
${good.join('\n')}

${details.join('\n')}`
}

function time(results: readonly Result[], key: 'decision_us_p50' | 'decision_us_p99'): string {
  const known = results.flatMap(result => result[key] ?? [])
  return known.length === 0 ? '–' : mean(known).toFixed(0)
}
