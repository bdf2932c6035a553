/** A process that runs cells of the fleet benchmark, one after the other, and keeps scenarios ready. */
import { policyNamed } from '../../src/baselines/named.js'
import { readScenario, readTraces } from '../../src/cli/simulate-scenario.js'
import { type CellResult, runCell, Stage } from '../../src/sim/cell.js'
import type { Cell } from './tables.js'

export interface Job extends Cell {
  readonly knobs: Readonly<Record<string, number>>
  readonly lengthMs: number | undefined
  readonly warmupMs: number | undefined
}

export type Reply =
  | {
      readonly result: CellResult & { readonly idle_share: Readonly<Record<string, number>> }
      readonly seconds: number
    }
  | { readonly error: string }

const stages = new Map<string, Promise<Stage>>()

async function stageOf({ scenario: name, lengthMs, warmupMs }: Job): Promise<Stage> {
  const file = `bench/scenarios/${name}.yaml`
  const read = await readScenario(file)
  const scenario = {
    ...read,
    lengthMs: lengthMs ?? read.lengthMs,
    warmupMs: warmupMs ?? read.warmupMs,
  }
  return new Stage(scenario, await readTraces(scenario, file))
}

async function run(job: Job): Promise<Reply> {
  const key = `${job.scenario} ${job.lengthMs} ${job.warmupMs}`
  // One at a time: a stage with agents holds a trace of 40 MB.
  const stage = stages.get(key) ?? stageOf(job)
  stages.clear()
  stages.set(key, stage)
  const policy = policyNamed(job.policy)
  if (policy === undefined) throw new Error(`no policy ${job.policy}`)
  const from = performance.now()
  const ready = await stage
  const result = runCell({
    stage: ready,
    create: (spec, rng) => policy.create(spec, rng, job.knobs),
    load: job.load,
    seed: job.seed,
    clock: { now: () => performance.now() },
  })
  const shares = ready.scenario.classes.map(({ name }, cls) => [name, ready.idleShare[cls] ?? 0] as const)
  return {
    result: { ...result, idle_share: Object.fromEntries(shares) },
    seconds: (performance.now() - from) / 1000,
  }
}

process.on('message', (job: Job) => {
  run(job)
    .catch(
      (error: unknown): Reply => ({
        error: error instanceof Error ? (error.stack ?? error.message) : String(error),
      }),
    )
    .then(reply => process.send?.(reply))
})
