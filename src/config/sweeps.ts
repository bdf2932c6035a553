/** The sweeps that pools name: read, held against Little's law, the class and the promise, and made budgets of. */
import { dirname, isAbsolute, join } from 'node:path'
import type { SweptBudget } from '../slo/sweep.js'
import { type Path, type Problem, showValue } from './error.js'
import type { ClassFields, ConfigFields } from './fields.js'
import type { Complaint, Source } from './source.js'
import { readSweep, type SweepFile } from './sweep-file.js'
import { durationMs, showDuration } from './units.js'
import type { Partly } from './validate.js'

export interface PoolSweep {
  /** As seen from the working directory. */
  readonly file: string
  readonly sweep: SweepFile
}

/** Sweeps by pool name, of the pools that name one that can be read; the others are problems of `source`. */
export function readSweeps(source: Source, config: Partly<ConfigFields>): ReadonlyMap<string, PoolSweep> {
  const sweeps = new Map<string, PoolSweep>()
  for (const [pool, fields] of Object.entries(config.pools ?? {})) {
    const name = fields?.sweep
    if (name === undefined) continue
    const file = isAbsolute(name) ? name : join(dirname(source.file), name)
    const read = readSweep(file)
    if (read.ok === undefined) {
      source.complain(['pools', pool, 'sweep'], {
        got: `${showValue(name)}: ${read.why}`,
        allowed: 'a file that weir sweep wrote, relative to this one',
        fix: `write it with weir sweep --out ${file}, or correct the name`,
      })
      continue
    }
    const broken = littleBreach(read.ok)
    if (broken !== undefined) source.complain(['pools', pool, 'sweep'], broken)
    else sweeps.set(pool, { file, sweep: read.ok })
  }
  return sweeps
}

/** As in `weir sweep`, which leaves such rows out: a file that has one was changed, or is of another making. */
const LITTLE_LIMIT = 0.15

function littleBreach({ points }: SweepFile): Complaint | undefined {
  for (const { concurrency, requests_per_s: rate, e2e_ms: e2e } of points) {
    const inFlight = (rate * e2e.mean) / 1000
    if (Math.abs(concurrency - inFlight) / concurrency <= LITTLE_LIMIT) continue
    return {
      got: `a row of concurrency ${concurrency} with ${round(rate)} requests/s of ${round(e2e.mean / 1000)} s: ${round(inFlight)} in flight`,
      allowed: 'rows in which rate x time is the concurrency, within 15 % (Little’s law)',
      fix: 'sweep again: the row was not measured in a closed loop of that concurrency',
    }
  }
  return undefined
}

/** Lengths and cache hits that differ by more are another workload. */
const LENGTH_FACTOR = 1.25
const CACHE_HIT_GAP = 0.1

/** What is legal, but makes a budget of something else. */
export function sweepWarnings(
  source: Source,
  config: ConfigFields,
  sweeps: ReadonlyMap<string, PoolSweep>,
): readonly Problem[] {
  return [...sweeps].flatMap(([pool, { sweep }]) => {
    const path: Path = ['pools', pool, 'sweep']
    const found = [...unfinished(sweep), ...mismatches(config, pool, sweep)]
    return found.map(complaint => source.problem(path, complaint))
  })
}

function unfinished(sweep: SweepFile): Complaint[] {
  if (!sweep.complete)
    return [
      {
        got: `${showValue(sweep.name)}, which was interrupted`,
        allowed: 'anything; but its knee may be lower than the pool’s',
        fix: 'run the same weir sweep again: it goes on where it stopped',
      },
    ]
  if (sweep.knee !== null) return []
  return [
    {
      got: `${showValue(sweep.name)}, which found no knee: ${sweep.conclusion}`,
      allowed: 'anything; but the pool has no budget',
      fix: 'promise less, or sweep a faster pool',
    },
  ]
}

/** Against the class it was made for, where it names one that uses the pool; else against any at home there. */
function mismatches(config: ConfigFields, pool: string, sweep: SweepFile): Complaint[] {
  const using = Object.entries(config.classes).filter(([, cls]) => cls.pools.includes(pool))
  const named = using.filter(([name]) => name === sweep.class)
  const home = using.filter(([, cls]) => cls.pools[0] === pool)
  const candidates = named.length > 0 ? named : home.length > 0 ? home : using
  const differing = candidates.map(([name, cls]) => ({ name, differs: differences(cls, sweep) }))
  const [first] = differing
  if (first === undefined || differing.some(({ differs }) => differs.length === 0)) return []
  return [
    {
      got: `a sweep with ${first.differs.map(([swept]) => swept).join(', ')}`,
      allowed: `anything; but class ${first.name} has ${first.differs.map(([, own]) => own).join(', ')}`,
      fix: `sweep again with --class ${first.name} -c this file: the budget holds for what was swept alone`,
    },
  ]
}

/** What the sweep has, and what the class has instead. */
function differences(cls: ClassFields, sweep: SweepFile): (readonly [swept: string, own: string])[] {
  const { workload } = sweep
  const found: (readonly [string, string])[] = []
  if (workload.model !== cls.workload.model)
    found.push([`model ${workload.model}`, `model ${cls.workload.model}`])
  const { precision } = cls.workload
  if (workload.precision !== null && precision !== undefined && workload.precision !== precision)
    found.push([`precision ${workload.precision}`, `precision ${precision}`])
  for (const lengths of ['input_tokens', 'output_tokens'] as const) {
    const [swept, own] = [workload[lengths], cls.workload[lengths]]
    const far = (a: number, b: number): boolean => Math.max(a / b, b / a) > LENGTH_FACTOR
    if (far(swept.p50, own.p50) || far(swept.p90, own.p90))
      found.push([`${lengths} ${swept.p50}/${swept.p90}`, `${own.p50}/${own.p90}`])
  }
  if (Math.abs(workload.cache_hit - cls.workload.cache_hit) > CACHE_HIT_GAP)
    found.push([`cache_hit ${workload.cache_hit}`, `cache_hit ${cls.workload.cache_hit}`])
  const [swept, own] = [sweptPromise(sweep), ownPromise(cls)]
  if (swept !== own) found.push([swept, own])
  return found
}

function sweptPromise({ slo }: SweepFile): string {
  return promise(slo.percentile, slo.mode, slo.ttft_ms, slo.tpot_ms, slo.deadline_ms)
}

function ownPromise({ slo }: ClassFields): string {
  const ms = (text: string | undefined): number | undefined =>
    text === undefined ? undefined : durationMs(text)
  const { percentile, mode, ttft, tpot, deadline } = slo.target
  return promise(percentile, mode, ms(ttft), ms(tpot), ms(deadline))
}

function promise(percentile: number, mode: string, ttft?: number, tpot?: number, deadline?: number): string {
  const show = (name: string, ms: number | undefined): string =>
    ms === undefined ? '' : ` ${name} ${showDuration(ms)}`
  // Of one clause alone the mode says nothing.
  const how = deadline === undefined ? ` ${mode}` : ''
  return `p${percentile}${show('ttft', ttft)}${show('tpot', tpot)}${show('deadline', deadline)}${how}`
}

/** The budgets of the pools whose sweep has a knee, by pool name. */
export function budgetsOf(sweeps: ReadonlyMap<string, PoolSweep>): ReadonlyMap<string, SweptBudget> {
  const budgets = new Map<string, SweptBudget>()
  for (const [pool, { sweep }] of sweeps) {
    const { workload, steady } = sweep
    const knee = sweep.points.find(point => point.concurrency === sweep.knee)
    const [budget, scaleOut] = [sweep.budget_tok_s_per_gpu, sweep.scale_out_at]
    if (knee === undefined || budget === null || steady === null || scaleOut === null) continue
    budgets.set(pool, {
      gpus: sweep.gpus,
      workload: {
        model: workload.model,
        precision: workload.precision ?? undefined,
        inputTokens: workload.input_tokens,
        outputTokens: workload.output_tokens,
        cacheHit: workload.cache_hit,
      },
      knee,
      budgetTokPerSecPerGpu: budget,
      steady,
      scaleOutAt: scaleOut,
    })
  }
  return budgets
}

const round = (value: number): number => Math.round(value * 100) / 100
