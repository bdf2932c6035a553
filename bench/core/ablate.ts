/**
 * The core without one part at a time (algorithms 7.8), beside two static limits: good / offered, the worst prompt
 * quartile, and attainment of the admitted that an idle replica could serve. Four replicas.
 *
 *   node --import @tapjs/typescript/import bench/core/ablate.ts [seeds] [loads] [scenarios]
 */
import { POLICIES } from '../../src/baselines/named.js'
import { type CellResult, runCell, Stage } from '../../src/sim/cell.js'
import { readTraces, SCENARIOS } from './scenarios.js'

const [seeds = '1,2', loads = '1.5', names = 'chat8,code8,jobs8,agents8h'] = process.argv.slice(2)
const VARIANTS: readonly (readonly [string, string, Readonly<Record<string, number>>])[] = [
  ['as it is', 'weir', {}],
  ['loss of others off', 'weir', { loss: 0 }],
  ['price of losses fixed', 'weir', { kappa: 0 }],
  ['scale of predictions fixed', 'weir', { scale: 0 }],
  ['times foretold at 0.6', 'weir', { bias: 0.6 }],
  ['times foretold at 1.5', 'weir', { bias: 1.5 }],
  ['… with the scale fixed', 'weir', { bias: 1.5, scale: 0 }],
  ['fairness 0', 'weir', { fairness: 0 }],
  ['fairness 0.8', 'weir', { fairness: 0.8 }],
  ['fairness 1', 'weir', { fairness: 1 }],
  ['theta 0', 'weir', { theta: 0 }],
  ['theta 0.3', 'weir', { theta: 0.3 }],
  ['waiting theta 0.3', 'weir', { waitingTheta: 0.3 }],
  ['prefill guard off', 'weir', { guard: 1e6 }],
  ['gathering off', 'weir', { gather: 0 }],
  ['memory guard off', 'weir', { memory: 0 }],
  ['prefixes off', 'weir', { prefix: 0 }],
  ['static cap 96', 'static-cap', { cap: 96 }],
  ['caps 128, 4,000 tokens', 'two-caps', { cap: 128, tokens: 4000 }],
]

const traces = await readTraces()
const figure = (share: number | undefined): string => (share === undefined ? '-' : share.toFixed(3))
const mean = (list: readonly number[]): number => list.reduce((a, b) => a + b, 0) / list.length

for (const name of names.split(',')) {
  const scenario = SCENARIOS.find(one => one.name === name)
  if (scenario === undefined) throw new Error(`no scenario ${name}`)
  const four = scenario.replicas.map(kind => ({ ...kind, count: 4 }))
  const stage = new Stage({ ...scenario, replicas: four, warmupMs: 40_000, lengthMs: 60_000 }, traces)
  for (const load of loads.split(',').map(Number)) {
    console.log(
      `\n${name} at ${load}, seeds ${seeds}\n| | good | worst quartile | attained | ${scenario.classes.map(c => c.name).join(' | ')} |\n|---|---|---|---|${'---|'.repeat(scenario.classes.length)}`,
    )
    for (const [label, policy, knobs] of VARIANTS) {
      const named = POLICIES.find(one => one.name === policy)
      if (named === undefined) throw new Error(`no policy ${policy}`)
      const cells: CellResult[] = seeds
        .split(',')
        .map(seed =>
          runCell({ stage, create: (spec, rng) => named.create(spec, rng, knobs), load, seed: Number(seed) }),
        )
      const of = (pick: (cell: CellResult) => number | undefined): string => {
        const values = cells.flatMap(cell => pick(cell) ?? [])
        return values.length === 0 ? '-' : figure(mean(values))
      }
      const classes = scenario.classes.map(one => of(cell => cell.classes[one.name]?.good_share))
      const worst = of(({ classes: { chat } }) =>
        Math.min(...(chat?.good_by_prompt_quartile ?? []).map(share => share ?? 1)),
      )
      console.log(
        `| ${label} | ${of(cell => cell.good_share)} | ${worst} | ${of(cell => cell.servable_attainment)} | ${classes.join(' | ')} |`,
      )
    }
  }
}
