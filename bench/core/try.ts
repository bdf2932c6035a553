/** A quick look: SCENARIO LOADS SEEDS POLICY [knob=value ...] */
import { createPolicy } from '../../src/policy/simple.js'
import { createWeir } from '../../src/policy/weir.js'
import { type Make, run, SCENARIOS, show } from './run.js'

const [names = 'chat8', loads = '1', seeds = '1', policies = 'weir', ...rest] = process.argv.slice(2)
const knobs = Object.fromEntries(
  rest.map(kv => {
    const [k, v] = kv.split('=')
    return [k as string, v === 'true' ? true : v === 'false' ? false : Number(v)]
  }),
)
for (const name of names.split(','))
  for (const load of loads.split(',').map(Number))
    for (const policy of policies.split(',')) {
      for (const seed of seeds.split(',').map(Number)) {
        const s = SCENARIOS.find(x => x.name === name)
        if (!s) throw new Error(name)
        let made: any
        const [kind, cap] = policy.split(':')
        const make: Make =
          kind === 'weir' ? (spec, rng) => (made = createWeir(spec, rng, knobs as object)) : createPolicy
        const o = await run(s, load, seed, make, cap === undefined ? 64 : Number(cap))
        const r = made?.rule
        console.log(
          name,
          load,
          policy,
          seed,
          show(o),
          r
            ? `kappa ${r.outer.kappa(0).toFixed(2)} ${r.outer.kappa(1).toFixed(2)} m ${r.outer.scale.toFixed(3)} v ${[...r.prices.values].map((x: number) => x.toFixed(1)).join(',')} e_ttft ${made.forecast.pool(0).ttftErrors.medianAbsolute?.toFixed(3)} tpot ${made.forecast.pool(0).tpotErrors.medianAbsolute?.toFixed(3)}`
            : '',
        )
      }
    }
