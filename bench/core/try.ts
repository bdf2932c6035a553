/** A quick look: SCENARIOS LOADS SEEDS POLICIES [span=120] [knob=value ...]; a policy is a name, with `:a,b` its knobs. */
import { POLICIES } from '../../src/baselines/named.js'
import type { Policy, PolicySpec } from '../../src/policy/policy.js'
import { createWeir } from '../../src/policy/weir.js'
import { runCell, Stage } from '../../src/sim/cell.js'
import type { Rng } from '../../src/time.js'
import { readTraces, SCENARIOS } from './scenarios.js'

const [names = 'chat8', loads = '1', seeds = '1', policies = 'core', ...rest] = process.argv.slice(2)
const knobs = Object.fromEntries(
  rest.map(kv => {
    const [k, v] = kv.split('=')
    return [k as string, v === 'true' ? true : v === 'false' ? false : Number(v)]
  }),
)

const traces = await readTraces()
const f = (x: number | undefined, n = 3): string => (x === undefined ? '-' : x.toFixed(n))
for (const name of names.split(',')) {
  let scenario = SCENARIOS.find(x => x.name === name)
  if (!scenario) throw new Error(name)
  if (knobs['span']) scenario = { ...scenario, lengthMs: (knobs['span'] as number) * 1000 }
  if (knobs['warm']) scenario = { ...scenario, warmupMs: (knobs['warm'] as number) * 1000 }
  if (knobs['n'])
    scenario = { ...scenario, replicas: scenario.replicas.map(r => ({ ...r, count: knobs['n'] as number })) }
  const stage = new Stage(scenario, traces)
  for (const load of loads.split(',').map(Number))
    for (const policy of policies.split('+')) {
      const all: number[] = []
      for (const seed of seeds.split(',').map(Number)) {
        let made: any
        const [kind, set = ''] = policy.split(':')
        const create = (spec: PolicySpec, rng: Rng): Policy => {
          if (kind === 'core')
            return (made = createWeir(spec, rng, {
              ...knobs,
              ...Object.fromEntries(
                set
                  .split(',')
                  .filter(Boolean)
                  .map(x => [x.split('=')[0], Number(x.split('=')[1])]),
              ),
            } as object))
          const named = POLICIES.find(p => p.name === kind)
          if (!named) throw new Error(`${kind}: ${POLICIES.map(p => p.name).join(' ')}`)
          return named.create(
            spec,
            rng,
            Object.fromEntries(
              set
                .split(',')
                .filter(Boolean)
                .map(x => [x.split('=')[0] as string, Number(x.split('=')[1])]),
            ),
          )
        }
        const from = performance.now()
        const o = runCell({ stage, create, load, seed, clock: performance })
        all.push(o.good_share ?? 0)
        const r = made?.state(1e9).rule
        console.log(
          name,
          load,
          policy,
          seed,
          `good ${f(o.good_share)} work ${f(o.good_share_by_work)} att ${f(o.servable_attainment)} shed ${f(o.shed_share)} waste ${f(o.wasted_work_share)} q ${o.good_by_prompt_quartile.map(x => f(x, 2)).join(' ')} ttft50 ${f(o.ttft_p50_ms, 0)} n ${o.offered} pre ${o.preemptions} hit ${f(o.prefix_hit_share, 2)}`,
          Object.keys(o.classes).length > 1
            ? Object.entries(o.classes)
                .map(
                  ([c, x]) =>
                    `| ${c} ${f(x.good_share)} shed ${f(x.shed_share)} att ${f(x.servable_attainment)} n ${x.offered}`,
                )
                .join(' ')
            : '',
          `dec ${f(o.decision_us_p50, 0)}/${f(o.decision_us_p99, 0)}us ${((performance.now() - from) / 1000).toFixed(1)}s`,
          r
            ? `${Object.entries(r)
                .filter(([k]) => !k.startsWith('service'))
                .map(([k, v]) => `${k} ${(v as number).toFixed(2)}`)
                .join(
                  ' ',
                )} e ${f(made.forecast.pool(0).ttftErrors.medianAbsolute)} ${f(made.forecast.pool(0).tpotErrors.medianAbsolute)} B ${made.forecast.pool(0).fit.budget.toFixed(0)}`
            : '',
        )
      }
      if (all.length > 1) console.log(name, load, policy, 'MEAN', f(all.reduce((a, b) => a + b) / all.length))
    }
}
