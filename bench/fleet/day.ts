/**
 * GPU-hours of a day with the autoscaler, beside those of somebody who knew the rate of every ten minutes before.
 *
 *   node --import @tapjs/typescript/import bench/fleet/day.ts [--policy weir] [--knob cap=24]...
 *     [--scenario bench/scenarios/day-chat-70b.yaml] [--at 0.7/0.55,0.85/0.75] [--seed 1] [--plan] [--holds 0.53,1.17] [--write]
 *
 * `--at` gives values of autoscale.target and autoscale.down to try. Somebody who knows runs, in each ten minutes, the
 * fewest replicas that keep the promise at that rate when it is steady: for each number of replicas the highest such rate
 * is searched with the same policy; `--holds` gives what such a search found, in replicas of the fluid. `--plan` plays no
 * engines: GPU-hours and flaps alone, which depend on the arrivals only, in a minute instead of an hour.
 */
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { policyOf } from '../../src/cli/simulate.js'
import { readScenario, readTraces } from '../../src/cli/simulate-scenario.js'
import type { ReplicaId } from '../../src/request.js'
import { runCell, Stage } from '../../src/sim/cell.js'
import type { Fleet } from '../../src/sim/fleet.js'
import { Mix } from '../../src/sim/mix.js'
import { RateClock } from '../../src/sim/rate.js'
import { type Scaled, type ScaleLimits, Scaling } from '../../src/sim/scaling.js'
import type { Scenario } from '../../src/sim/scenario.js'
import { type Ms, seededRng } from '../../src/time.js'

const { values } = parseArgs({
  options: {
    scenario: { type: 'string', default: 'bench/scenarios/day-chat-70b.yaml' },
    policy: { type: 'string', default: 'weir' },
    knob: { type: 'string', multiple: true, default: [] },
    at: { type: 'string', default: '0.7/0.55,0.85/0.75' },
    seed: { type: 'string', default: '1' },
    holds: { type: 'string' },
    plan: { type: 'boolean', default: false },
    write: { type: 'boolean', default: false },
  },
})

const STEP_MS: Ms = 600_000
const HOUR_MS: Ms = 3_600_000
/** Default of autoscale.cold_start. */
const COLD_START_MS: Ms = 180_000
/** Of each try of a steady rate, and how often the range of rates is halved. */
const TRY = { warmupMs: 60_000, lengthMs: 240_000 }
const HALVINGS = 5
/** Clairvoyant GPU-hours times this is the goal. Source: algorithms 7.7, M10. */
const GOAL = 1.15

const say = (text: string): void => void process.stderr.write(`${text}\n`)
const seed = Number(values.seed)
const create = policyOf(values.policy, values.knob)
const scenario = await readScenario(values.scenario)
const traces = await readTraces(scenario, values.scenario)
const day = new Stage(scenario, traces)
const most = day.profiles.length
const gpus = day.profiles[0]?.gpus ?? 1
if (scenario.replicas.length !== 1) throw new Error('the replicas of a day are all alike')

/** As `Stage.ratesAt`: 1 fills a fluid of all replicas. */
function holds(replicas: number, load: number): boolean {
  const fleet = scenario.replicas.map(one => ({ ...one, count: replicas }))
  const steady: Scenario = { ...scenario, ...TRY, replicas: fleet, rate: { kind: 'steady' } }
  const stage = new Stage(steady, traces)
  const { classes } = runCell({ stage, create, load: (load * most) / replicas, seed })
  return stage.classes.every(({ name, target }) => {
    const { good_share: good, offered } = classes[name] ?? { good_share: undefined, offered: 0 }
    return offered === 0 || (good ?? 0) * 100 >= target.percentile
  })
}

/** By number of replicas less one: the highest load that they hold. */
function highestLoads(): number[] {
  const highest: number[] = []
  for (let replicas = 1; replicas <= most; replicas++) {
    let low = highest.at(-1) ?? 0
    let high = replicas / most
    for (let halving = 0; halving < HALVINGS; halving++) {
      const middle = (low + high) / 2
      if (holds(replicas, middle)) low = middle
      else high = middle
    }
    highest.push(low)
    say(`${replicas} replicas hold ${(low * most).toFixed(2)} replicas of work`)
  }
  return highest
}

/** Mean load in each ten minutes of the run. */
function loads(): number[] {
  const clock = new RateClock(scenario.rate, seededRng(1))
  const until = scenario.warmupMs + scenario.lengthMs
  const steps = new Array<number>(Math.ceil(until / STEP_MS)).fill(0)
  for (let at = clock.after(1000); at < until; at = clock.after(1000)) {
    const step = Math.floor(at / STEP_MS)
    steps[step] = (steps[step] ?? 0) + 1000 / STEP_MS
  }
  return steps
}

/** What the autoscaler does about the day's arrivals, whoever serves them. */
function planned(scale: ScaleLimits): Scaled {
  const untilMs = scenario.warmupMs + scenario.lengthMs
  const options = { scenario, traces, rates: day.ratesAt(1), untilMs, seed }
  const absent = new Set<ReplicaId>()
  const scaling = new Scaling(day, scale, absent, day.demandAtStart(1))
  const traffic = scaling.counted(new Mix(options, Number.POSITIVE_INFINITY))
  const fleet = { reconfigure() {} } as unknown as Fleet
  let next = traffic.next()
  for (const { at, run } of scaling.happenings(untilMs)) {
    while (next !== undefined && next.at <= at) next = traffic.next()
    run(fleet, at)
  }
  return scaling.result
}

const highest = values.holds?.split(',').map(text => Number(text) / most) ?? highestLoads()
const steps = loads()
const fewest = steps.map(load => {
  const at = highest.findIndex(most => most >= load)
  return at < 0 ? most : at + 1
})
const knew = (fewest.reduce((a, b) => a + b, 0) * gpus * STEP_MS) / HOUR_MS

/** As the autoscaler would learn it: of the whole fleet, the share that each replica holds. */
const perReplica = highest.at(-1) ?? 1

const rows = values.at.split(',').map(pair => {
  const [target = Number.NaN, down = Number.NaN] = pair.split('/').map(Number)
  const scale = {
    target,
    down,
    coldStartMs: COLD_START_MS,
    replicas: day.profiles.map((_, id) => id),
    least: 1,
    perReplica,
  }
  const result = values.plan ? undefined : runCell({ stage: day, create, load: 1, seed, scale })
  const scaled = result?.scaled ?? planned(scale)
  const times = scaled.gpu_hours / knew
  const kept = day.classes.every(({ name, target: { percentile } }) => {
    return (result?.classes[name]?.good_share ?? 1) * 100 >= percentile
  })
  const share = (of: number | undefined): string => of?.toFixed(3) ?? 'not played'
  const ok = times <= GOAL && kept && scaled.flaps === 0
  say(`${pair}: ${scaled.gpu_hours.toFixed(0)} GPU-hours, ${times.toFixed(2)} times`)
  return {
    ok,
    text: `| ${target} | ${down} | ${scaled.gpu_hours.toFixed(1)} | ${times.toFixed(2)} | ${scaled.least_replicas} to ${scaled.most_replicas} | ${scaled.flaps} | ${share(result?.good_share)} | ${share(result?.shed_share)} | ${ok ? 'yes' : 'no'} |`,
  }
})

const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
const work = highest.map((load, at) => `${at + 1}: ${(load * most).toFixed(2)}`).join(', ')
const text = `# Fleet: a day with the autoscaler

${scenario.name}; ${(scenario.lengthMs / HOUR_MS).toFixed(0)} h after ${scenario.warmupMs / 60_000} minutes, cold start ${COLD_START_MS / 1000} s, policy \`${values.policy}\`${values.knob.map(knob => ` ${knob}`).join('')}, seed ${seed}.
Command: \`node --import @tapjs/typescript/import bench/fleet/day.ts ${process.argv.slice(2).join(' ')}\`, at ${commit}.

Who knows the rate of each ten minutes needs ${knew.toFixed(1)} GPU-hours: ${Math.min(...fewest)} to ${Math.max(...fewest)} replicas of ${gpus} GPUs. The most work that a
number of replicas holds steadily, in replicas of the fluid: ${work}.

The goal: at most ${GOAL} times that, every class's promise kept over the day, and no step down within ten minutes of a step
up, or the other way round.

| target | down | GPU-hours | times who knows | replicas | flaps | good / offered | shed | goal met |
|---|---|---|---|---|---|---|---|---|
${rows.map(row => row.text).join('\n')}
`
process.stdout.write(text)
if (values.write) writeFileSync('bench/results/fleet-day.md', text)
if (!rows.some(({ ok }) => ok)) process.exitCode = 1
