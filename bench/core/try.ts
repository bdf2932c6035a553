/**
 * One line a cell: the decision core beside its rivals.
 *
 *   node --import @tapjs/typescript/import bench/core/try.ts chat8,code8 1,1.5 1,2 weir+two-caps:cap=256,tokens=2000
 *
 * Scenarios are those of scenarios.ts; a policy is a name, after `:` its knobs, as in src/baselines/named.ts.
 */
import { policyNamed } from '../../src/baselines/named.js'
import { runCell, Stage } from '../../src/sim/cell.js'
import { readTraces, SCENARIOS } from './scenarios.js'

const [names = 'chat8', loads = '1', seeds = '1', policies = 'weir'] = process.argv.slice(2)
const show = (share: number | undefined): string => share?.toFixed(3) ?? '-'

function knobsOf(text: string): Record<string, number> {
  return Object.fromEntries(
    text.split(',').flatMap(part => {
      const [name = '', value] = part.split('=')
      return name === '' ? [] : [[name, Number(value)]]
    }),
  )
}

const traces = await readTraces()
for (const name of names.split(',')) {
  const scenario = SCENARIOS.find(one => one.name === name)
  if (scenario === undefined)
    throw new Error(`no scenario ${name}; there are ${SCENARIOS.map(one => one.name).join(', ')}`)
  const stage = new Stage(scenario, traces)
  for (const load of loads.split(',').map(Number)) {
    for (const asked of policies.split('+')) {
      const [kind = '', knobs = ''] = asked.split(':')
      const policy = policyNamed(kind)
      if (policy === undefined) throw new Error(`no policy ${kind}`)
      for (const seed of seeds.split(',').map(Number)) {
        const cell = runCell({
          stage,
          create: (spec, rng) => policy.create(spec, rng, knobsOf(knobs)),
          load,
          seed,
          clock: performance,
        })
        const classes = Object.entries(cell.classes).map(([cls, part]) => {
          return `${cls} ${show(part.good_share)} kept ${show(part.servable_attainment)}`
        })
        console.log(
          `${name} ${load} ${asked} seed ${seed}: good ${show(cell.good_share)}, by work ${show(cell.good_share_by_work)},`,
          `kept ${show(cell.servable_attainment)}, shed ${show(cell.shed_share)}, wasted ${show(cell.wasted_work_share)},`,
          `quartiles ${cell.good_by_prompt_quartile.map(show).join(' ')}; ${classes.join(', ')};`,
          `decision ${cell.decision_us_p50?.toFixed(0)}/${cell.decision_us_p99?.toFixed(0)} us; ${cell.offered} offered`,
        )
      }
    }
  }
}
