/**
 * What could be reached on one list of requests: two upper bounds, a clairvoyant's plan, and policies beside them.
 *
 *   node --import @tapjs/typescript/import bench/fleet/bounds.ts --scenario bench/scenarios/chat-agents20-8b.yaml
 *     [--load 1] [--seed 1] [--requests 2000] [--replicas N] [--policy NAME]... [--no-long] [--json]
 */
import { parseArgs } from 'node:util'
import { policyNamed } from '../../src/baselines/named.js'
import { readScenario, readTraces } from '../../src/cli/simulate-scenario.js'
import { Stage } from '../../src/sim/cell.js'
import { goodUnder, listOf } from './bounds-list.js'
import { type Bound, fluidBound, tightBound } from './bounds-lp.js'
import { needsOf, type Problem } from './bounds-problem.js'
import { clairvoyant } from './u3.js'

/** Shares of the offered requests, 0 to 1; those of classes, of theirs. */
interface Share {
  readonly good_share: number
  readonly classes: Readonly<Record<string, number>>
}

interface Solved extends Share {
  readonly status: string
  readonly seconds: number
}

/** What the command prints. */
export interface Bounds {
  readonly scenario: string
  readonly load: number
  readonly seed: number
  readonly requests: number
  readonly replicas: number
  readonly span_s: number
  /** By class. */
  readonly offered: Readonly<Record<string, number>>
  /** Good on an idle replica with a warm cache: what no load refuses. */
  readonly possible_share: number
  readonly u1: Solved
  readonly u2: Solved
  /** The same list over and over: no empty fleet at its start, and no time to catch up after its end. */
  readonly u1_long: Solved | undefined
  readonly u2_long: Solved | undefined
  readonly u3: Solved & { readonly planned_share: number; readonly passes: readonly number[] }
  readonly policies: Readonly<Record<string, Share>>
}

interface Asked {
  readonly scenario: string
  readonly load: number
  readonly seed: number
  readonly requests: number
  /** Instead of as many as the scenario has. */
  readonly replicas: number | undefined
  readonly policies: readonly { readonly name: string; readonly knobs: Readonly<Record<string, number>> }[]
  readonly long: boolean
}

async function boundsOf(asked: Asked): Promise<Bounds> {
  const read = await readScenario(asked.scenario)
  const replicas = read.replicas.map(one => ({ ...one, count: asked.replicas ?? one.count }))
  const scenario = { ...read, replicas }
  const stage = new Stage(scenario, await readTraces(scenario, asked.scenario))
  const problem = listOf(stage, asked.load, asked.seed, asked.requests)
  const { jobs, classes } = problem
  const offered = classes.map((_, cls) => jobs.filter(job => job.cls === cls).length)
  const named = (values: readonly number[]): Record<string, number> =>
    Object.fromEntries(classes.map(({ name }, cls) => [name, values[cls] ?? 0]))
  const share = (good: readonly number[], total = good.reduce((a, b) => a + b, 0)): Share => ({
    good_share: total / jobs.length,
    classes: named(good.map((each, cls) => each / (offered[cls] ?? 0))),
  })
  const solved = ({ good, total, status, seconds }: Bound): Solved => ({
    ...share(good, total),
    status,
    seconds,
  })
  const spanMs = spanOf(problem)
  const u3 = clairvoyant(problem, asked.seed)
  const policies = asked.policies.map(({ name, knobs }) => {
    const policy = policyNamed(name)
    if (policy === undefined) throw new RangeError(`no policy ${name}`)
    return [
      name,
      share(goodUnder(stage, problem, (spec, rng) => policy.create(spec, rng, knobs), asked.seed)),
    ] as const
  })
  return {
    scenario: scenario.name,
    load: asked.load,
    seed: asked.seed,
    requests: jobs.length,
    replicas: problem.replicas,
    span_s: spanMs / 1000,
    offered: named(offered),
    possible_share: needsOf(problem).filter(need => need.possible).length / jobs.length,
    u1: solved(await fluidBound(problem)),
    u2: solved(await tightBound(problem)),
    u1_long: asked.long ? solved(await fluidBound(problem, spanMs)) : undefined,
    u2_long: asked.long ? solved(await tightBound(problem, spanMs)) : undefined,
    u3: {
      ...share(u3.good),
      planned_share: share(u3.planned).good_share,
      status: `plan of ${u3.runs} runs`,
      seconds: u3.seconds,
      passes: u3.passes,
    },
    policies: Object.fromEntries(policies),
  }
}

/** From the start to where the next request would come. */
function spanOf({ jobs }: Problem): number {
  const last = jobs.at(-1)?.arrivalMs ?? 0
  return last + last / Math.max(1, jobs.length - 1)
}

/** `static-cap` or `static-cap:cap=64` */
function policyAsked(text: string): Asked['policies'][number] {
  const [name = '', ...settings] = text.split(/[:,]/)
  const knobs = settings.map(setting => setting.split('=') as [string, string])
  return { name, knobs: Object.fromEntries(knobs.map(([knob, value]) => [knob, Number(value)])) }
}

function print(bounds: Bounds): void {
  const { u1, u2, u1_long, u2_long, u3, policies } = bounds
  console.log(
    `${bounds.scenario}, load ${bounds.load}, seed ${bounds.seed}: ${bounds.requests} requests in ${bounds.span_s.toFixed(1)} s`,
  )
  const rows = Object.entries({ u1, u2, u1_long, u2_long, u3, ...policies })
  for (const [name, row] of rows) {
    if (row === undefined) continue
    const classes = Object.entries(row.classes).map(([cls, value]) => `${cls} ${value.toFixed(4)}`)
    const how = 'status' in row ? `  ${row.status}, ${row.seconds.toFixed(1)} s` : ''
    console.log(`${name.padEnd(18)} ${row.good_share.toFixed(4)}  ${classes.join('  ')}${how}`)
  }
}

const { values } = parseArgs({
  options: {
    scenario: { type: 'string', default: 'bench/scenarios/chat-agents20-8b.yaml' },
    load: { type: 'string', default: '1' },
    seed: { type: 'string', default: '1' },
    requests: { type: 'string', default: '2000' },
    replicas: { type: 'string' },
    policy: { type: 'string', multiple: true, default: [] },
    long: { type: 'boolean', default: true },
    json: { type: 'boolean', default: false },
  },
  allowNegative: true,
})
const bounds = await boundsOf({
  scenario: values.scenario,
  load: Number(values.load),
  seed: Number(values.seed),
  requests: Number(values.requests),
  replicas: values.replicas === undefined ? undefined : Number(values.replicas),
  policies: values.policy.map(policyAsked),
  long: values.long,
})
if (values.json) console.log(JSON.stringify(bounds))
else print(bounds)
