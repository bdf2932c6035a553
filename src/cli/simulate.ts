/** `weir simulate`: any policy over a simulated fleet in virtual time. */
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { POLICIES, policyNamed } from '../baselines/named.js'
import { nearest } from '../config/error.js'
import { TraceError } from '../load/trace.js'
import { type CellResult, runCell, Stage } from '../sim/cell.js'
import type { Command, Io } from './command.js'
import { bad, number, reason, UsageError } from './flags.js'
import { curveOf } from './simulate-curve.js'
import { curvePicture } from './simulate-picture.js'
import { readPlan } from './simulate-plan.js'
import { readScenario, readTraces } from './simulate-scenario.js'
import { cellText, curveText } from './simulate-text.js'

const OPTIONS = {
  scenario: { type: 'string' },
  config: { type: 'string', short: 'c' },
  trace: { type: 'string' },
  class: { type: 'string' },
  engine: { type: 'string', default: 'llama3-8b' },
  replicas: { type: 'string' },
  rate: { type: 'string' },
  out: { type: 'string' },
  policy: { type: 'string', default: 'weir' },
  load: { type: 'string' },
  seed: { type: 'string', default: '1' },
  knob: { type: 'string', multiple: true, default: [] as string[] },
  json: { type: 'boolean', default: false },
} as const

const HELP = `weir simulate: what would a policy do? Any policy over a simulated fleet, in virtual time, no GPU

usage: weir simulate (-c FILE | --scenario FILE) [options]

  -c FILE           your config: how goodput goes with load, what breaks first, and how many replicas hold the promise
  --trace FILE      requests in place of the classes' workloads, at their own times; load 1 is then the trace's rate
  --class NAME      whose requests the trace holds (default: the first that such requests are for)
  --rate 12         requests/s at load 1, in place of the trace's, or of what the configured fleet could serve
  --engine NAME     what a replica costs (default llama3-8b, an H100): measured engines by name
  --replicas A..B   of the pool that serves the class: finds the fewest that hold the promise, and the GPU-hours of the
                    autoscaler between the two over the trace; one number: so many
  --out FILE        writes the picture of the curve, as SVG

  --scenario FILE   fleet, traces or arrivals, mix, promises, faults and length, as YAML or JSON; see bench/scenarios/
  --load 0.5,1,2    of a scenario: multiples of what the fleet could serve at the promised pace (default 1); of a
                    config: of what load 1 is there (default 0.5,0.7,0.85,1,1.2,1.5)
  --policy NAME     ${POLICIES.map(({ name }) => name).join(', ')}
  --knob NAME=VALUE a number that the policy is tuned by; may be given again
  --seed N          of arrivals, ties and jitter (default 1): the same seed gives the same result
  --json            of a config one object with points, needed and autoscaled;
                    of a scenario one JSON object of one load: offered, good, good_share, admitted_attainment, shed_share, …, and the
                    same by class; of several loads an object with a list of them, cells

A request is good when it met its class's promise; good_share is good / offered, and what was shed is offered too.

Exit codes: 0 done, 2 wrong use.

example:
  weir simulate -c config/weir.yaml --trace bench/data/azure2023-conv.csv.gz --replicas 1..6 --out curve.svg
  weir simulate --scenario bench/scenarios/chat-agents20-8b.yaml --load 1.5 --policy least-outstanding
`

async function run(args: readonly string[], io: Io): Promise<number> {
  const { values } = parseArgs({ args: [...args], options: OPTIONS, allowPositionals: false })
  try {
    if ((values.scenario === undefined) === (values.config === undefined)) {
      throw new UsageError('give either -c, your config, or --scenario, a scenario file')
    }
    return values.config === undefined
      ? await simulateScenario(values, io)
      : await simulateConfig(values, values.config, io)
  } catch (error) {
    if (!(error instanceof UsageError || error instanceof TraceError)) throw error
    io.err(`weir simulate: ${error.message}\nweir simulate --help says what it takes\n`)
    return 2
  }
}

type Values = ReturnType<typeof parseArgs<{ options: typeof OPTIONS }>>['values']

async function simulateScenario(values: Values, io: Io): Promise<number> {
  const { scenario: file } = values
  if (file === undefined) {
    throw bad(
      'scenario',
      undefined,
      'the path of a scenario file',
      'take one of bench/scenarios/, for example',
    )
  }
  const create = policyOf(values.policy, values.knob)
  const loads = loadsOf(values.load ?? '1')
  const seed = number('seed', values.seed, true)
  const scenario = await readScenario(file)
  const stage = stageOf(file, scenario, await readTraces(scenario, file))
  const cells = loads.map(load => {
    const clock = { now: () => performance.now() }
    const result = runCell({ stage, create, load, seed, clock })
    return { scenario: scenario.name, policy: values.policy, load, seed, ...idle(stage), ...result }
  })
  const [only] = cells
  if (!values.json) io.out(cells.map(cell => cellText(cell)).join('\n'))
  else io.out(`${JSON.stringify(cells.length === 1 ? only : { cells }, asJson)}\n`)
  return 0
}

const loadsOf = (text: string): number[] => text.split(',').map(one => number('load', one))

async function simulateConfig(values: Values, config: string, io: Io): Promise<number> {
  const create = policyOf(values.policy, values.knob)
  const loads = loadsOf(values.load ?? '0.5,0.7,0.85,1,1.2,1.5').sort((a, b) => a - b)
  const seed = number('seed', values.seed, true)
  const plan = await readPlan({ ...values, config }, io.env)
  const show = (text: string): void => {
    if (!values.json) io.err(`simulating ${text}\n`)
  }
  const curve = curveOf(plan, { create, policy: values.policy, loads, seed }, show)
  if (values.out !== undefined) {
    try {
      writeFileSync(values.out, curvePicture(curve))
    } catch (error) {
      throw new UsageError(`${values.out} cannot be written: ${reason(error)}`)
    }
  }
  io.out(values.json ? `${JSON.stringify(curve, asJson)}\n` : curveText(curve))
  return 0
}

/** What was not measured is null, not missing. */
const asJson = (_: string, value: unknown): unknown => (value === undefined ? null : value)

/** By class: the share of its requests that an idle replica serves as promised. */
function idle(stage: Stage) {
  const shares = stage.scenario.classes.map(({ name }, cls) => [name, stage.idleShare[cls]])
  return { idle_share: Object.fromEntries(shares) as Readonly<Record<string, number>> }
}

export type Cell = CellResult & {
  readonly scenario: string
  readonly policy: string
  readonly load: number
  readonly seed: number
  readonly idle_share: Readonly<Record<string, number>>
}

function stageOf(file: string, ...[scenario, traces]: ConstructorParameters<typeof Stage>): Stage {
  try {
    return new Stage(scenario, traces)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    throw new UsageError(`${file}: ${error.message}`)
  }
}

/** @throws UsageError for a policy or a knob that there is not */
export function policyOf(name: string, knobs: readonly string[]): Parameters<typeof runCell>[0]['create'] {
  const policy = policyNamed(name)
  if (policy === undefined) {
    const names = POLICIES.map(one => one.name)
    const near = nearest(name, names)
    throw bad(
      'policy',
      name,
      names.join(', '),
      near === undefined ? 'write one of these' : `did you mean ${near}?`,
    )
  }
  const set = Object.fromEntries(knobs.map(knob => knobOf(knob, policy)))
  return (spec, rng) => policy.create(spec, rng, set)
}

function knobOf(text: string, { name, knobs }: (typeof POLICIES)[number]): readonly [string, number] {
  const [knob = '', value = ''] = text.split('=', 2)
  if (knobs.some(one => one.name === knob) && value.trim() !== '' && Number.isFinite(Number(value))) {
    return [knob, Number(value)]
  }
  const known = knobs.map(one => `${one.name}=NUMBER (default ${one.default})`)
  throw bad(
    'knob',
    text,
    known.length === 0 ? `none: ${name} has no knobs` : known.join(', '),
    known.length === 0 ? 'leave it out' : `write --knob ${knobs[0]?.name}=${knobs[0]?.default}, for example`,
  )
}

export const simulate: Command = {
  name: 'simulate',
  summary: 'any policy over a simulated fleet in virtual time: what if, how many replicas',
  help: HELP,
  run,
}
