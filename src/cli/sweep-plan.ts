/** What `weir sweep` was asked for: against what, with which workload, under which promise, at which loads. */
import { existsSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { parseArgs } from 'node:util'
import { assumedConfig } from '../config/assumed.js'
import { showProblems } from '../config/error.js'
import { defaultFile, load } from '../config/load.js'
import type { Resolved } from '../config/resolved.js'
import { readTrace, type TraceRow } from '../load/trace.js'
import type { LengthSpec } from '../sim/draw.js'
import { type EngineProfile, profileNamed } from '../sim/profiles.js'
import { lognormalThrough, percentilesOf, presetOf } from '../sim/sweep.js'
import { drawnUsers, type LengthMix, rowUsers, type Users } from '../sim/workload.js'
import type { Percentiles, Slo, TrafficClass } from '../slo/slo.js'
import { type Ms, seededRng } from '../time.js'
import type { Io } from './command.js'
import { bad, duration, number, optional, UsageError } from './flags.js'

const OPTIONS = {
  target: { type: 'string' },
  engine: { type: 'string' },
  class: { type: 'string' },
  config: { type: 'string', short: 'c' },
  concurrency: { type: 'string', default: '1,2,4,8,12,16,24,32,48,64' },
  'point-time': { type: 'string', default: '3m' },
  trace: { type: 'string' },
  'max-input': { type: 'string' },
  'input-p50': { type: 'string' },
  'input-p90': { type: 'string' },
  'output-p50': { type: 'string' },
  'output-p90': { type: 'string' },
  'cache-hit': { type: 'string' },
  ttft: { type: 'string' },
  tpot: { type: 'string' },
  percentile: { type: 'string' },
  mode: { type: 'string' },
  model: { type: 'string' },
  gpus: { type: 'string' },
  hardware: { type: 'string' },
  requests: { type: 'string', default: '20000' },
  seed: { type: 'string', default: '1' },
  'natural-lengths': { type: 'boolean', default: false },
  out: { type: 'string' },
  fresh: { type: 'boolean', default: false },
  json: { type: 'boolean', default: false },
} as const

/** The traffic that is played. */
export interface PlannedWorkload {
  /** Where it comes from, for people. */
  readonly source: string
  /** It is somebody else's: nothing was said of the user's own. */
  readonly assumed: boolean
  readonly model: string | undefined
  readonly precision: string | undefined
  readonly inputTokens: Percentiles
  readonly outputTokens: Percentiles
  readonly cacheHit: number
  /** What lengths are drawn from; undefined: the rows of a trace. */
  readonly lengths: LengthMix | undefined
  /**
   * The users of a seed, none of whose requests is longer than an engine takes.
   * @throws UsageError where nothing fits
   */
  users(maxTokens: number): (seed: number) => Users
}

export type Against =
  | { readonly kind: 'engine'; readonly profile: EngineProfile; readonly requests: number }
  | {
      readonly kind: 'live'
      readonly target: string
      readonly model: string | undefined
      readonly pointMs: Ms
      /** max_tokens and ignore_eos in the body. */
      readonly exactLengths: boolean
    }

export interface Plan {
  readonly against: Against
  readonly name: string
  readonly out: string
  readonly fresh: boolean
  readonly json: boolean
  readonly grid: readonly number[]
  readonly slo: Slo
  readonly cls: string | undefined
  readonly workload: PlannedWorkload
  readonly gpus: number
  readonly hardware: string | undefined
  readonly seed: number
  /** Where the config shall name the sweep: the class's home pool, and the file as seen from the config. */
  readonly config: { readonly file: string; readonly pool: string; readonly sweep: string } | undefined
}

type Values = ReturnType<typeof parse>

const parse = (args: readonly string[]) => parseArgs({ args: [...args], options: OPTIONS }).values

/**
 * @throws UsageError for an option that cannot be; what `parseArgs` throws for one that is not known
 * @throws TraceError for a trace that cannot be read
 */
export async function readPlan(args: readonly string[], env: Io['env']): Promise<Plan> {
  const values = parse(args)
  const { target, engine, json, fresh } = values
  if ((target === undefined) === (engine === undefined))
    throw bad(
      'target',
      target,
      'either --target URL or --engine PRESET',
      'write --engine worked-example to try it without a GPU',
    )
  const profile = engine === undefined ? undefined : profileOf(engine)
  const chosen = chooseClass(values, env)
  const preset = engine === undefined || chosen !== undefined ? undefined : presetOf(engine)
  const traffic = chosen?.traffic ?? assumedChat()
  const cls = chosen?.traffic.name
  const slo = withFlags(preset?.slo ?? traffic.target, values)
  const own = await ownWorkload(values)
  const workload =
    own ??
    (preset === undefined
      ? classWorkload(traffic, chosen?.file)
      : drawn(preset.mix, 0, {
          source: `preset ${engine}`,
          assumed: false,
          model: preset.model,
          precision: preset.precision,
        }))
  const against: Against =
    profile === undefined
      ? {
          kind: 'live',
          target: checkedTarget(target ?? ''),
          model: values.model,
          pointMs: duration('point-time', values['point-time']),
          exactLengths: !values['natural-lengths'],
        }
      : { kind: 'engine', profile, requests: number('requests', values.requests, true) }
  const name = nameOf(values, cls)
  const out = values.out ?? join('sweeps', `${name}.json`)
  const gpus = optional('gpus', values.gpus, number) ?? profile?.gpus ?? chosen?.gpus ?? 1
  return {
    against,
    name,
    out,
    fresh,
    json,
    grid: gridOf(values.concurrency),
    slo,
    cls,
    workload,
    gpus,
    hardware: values.hardware ?? profile?.hardware,
    seed: number('seed', values.seed, true),
    config:
      chosen?.file === undefined
        ? undefined
        : { file: chosen.file, pool: chosen.pool, sweep: relative(dirname(chosen.file), out) },
  }
}

function profileOf(engine: string): EngineProfile {
  try {
    return profileNamed(engine)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    throw bad('engine', engine, error.message.replace(/^.*; there are /, 'one of '), 'write one of them')
  }
}

function checkedTarget(target: string): string {
  if (/^https?:/.test(target) && URL.canParse(target)) {
    const { username, password } = new URL(target)
    if (username === '' && password === '') return target
    throw bad('target', 'a URL with credentials', 'a base URL without', 'put the key into OPENAI_API_KEY')
  }
  throw bad('target', target, 'a base URL', 'write --target http://127.0.0.1:8000, for example')
}

function gridOf(text: string): number[] {
  const grid = text.split(',').map(Number)
  const rising = grid.every((c, i) => Number.isSafeInteger(c) && c > (grid[i - 1] ?? 0))
  if (rising && (grid.at(-1) ?? 0) <= 100_000) return grid
  throw bad(
    'concurrency',
    text,
    'whole numbers above 0, rising, with commas between',
    'write --concurrency 1,2,4,8,16',
  )
}

function nameOf(values: Values, cls: string | undefined): string {
  if (values.out !== undefined) return values.out.replace(/^.*[\\/]/, '').replace(/\.json$/, '')
  const host = values.target === undefined ? undefined : new URL(values.target).host.replaceAll(':', '-')
  const parts = [values.engine ?? host, values.engine === undefined || cls === undefined ? undefined : cls]
  return parts.filter(part => part !== undefined).join('-')
}

interface Chosen {
  readonly traffic: TrafficClass
  readonly pool: string
  readonly gpus: number
  /** undefined: the class is one of the assumed ones. */
  readonly file: string | undefined
}

/** The class to sweep for, where one was asked for or a config given. */
function chooseClass(values: Values, env: Io['env']): Chosen | undefined {
  if (values.config === undefined && values.class === undefined) return undefined
  const file = values.config ?? (existsSync(defaultFile()) ? defaultFile() : undefined)
  const config = file === undefined ? assumed() : loadConfig(file, env)
  const { classes, pools } = config.policy
  const names = classes.map(cls => cls.name)
  const traffic =
    values.class === undefined && classes.length > 1
      ? undefined
      : classes.find(cls => cls.name === (values.class ?? names[0]))
  const where = file ?? 'the assumed classes'
  if (traffic === undefined)
    throw bad('class', values.class, `a class of ${where}: ${names.join(', ')}`, 'write one of them')
  const home = pools[traffic.pools[0] ?? -1]
  return {
    traffic,
    pool: home?.name ?? '',
    gpus: (home?.gpusPerReplica ?? 1) * (file === undefined ? 1 : (home?.replicas.length ?? 1)),
    file,
  }
}

function loadConfig(file: string, env: Io['env']): Resolved {
  // The sweep that it names may be the one that is about to be made.
  const loaded = load(file, env, { sweeps: 'unread' })
  if (loaded.ok === undefined) throw new UsageError(showProblems(loaded.problems).trimEnd())
  return loaded.ok
}

/** Chat and agent, with Azure's conversation trace of 2023 for a workload. */
function assumed(): Resolved {
  const loaded = assumedConfig(['http://127.0.0.1'], [])
  if (loaded.ok === undefined) throw new Error('the assumed config is wrong')
  return loaded.ok
}

function assumedChat(): TrafficClass {
  const [chat] = assumed().policy.classes
  if (chat === undefined) throw new Error('the assumed config has no class')
  return chat
}

function withFlags(slo: Slo, values: Values): Slo {
  const { mode } = values
  if (mode !== undefined && mode !== 'joint' && mode !== 'clause')
    throw bad('mode', mode, 'joint or clause', 'write --mode clause for each bound by itself')
  const percentile = optional('percentile', values.percentile, number) ?? slo.percentile
  if (percentile < 50 || percentile > 99.9)
    throw bad('percentile', values.percentile, 'a number from 50 to 99.9', 'write --percentile 90')
  const ttftMs = optional('ttft', values.ttft, duration)
  const tpotMs = optional('tpot', values.tpot, duration)
  const { clauses } = slo
  if (clauses.kind === 'deadline') {
    if (ttftMs !== undefined || tpotMs !== undefined)
      throw bad(
        ttftMs === undefined ? 'tpot' : 'ttft',
        values.ttft ?? values.tpot,
        'classes with ttft and tpot: this one has a deadline',
        'remove it, or choose another class',
      )
    return { ...slo, percentile, mode: mode ?? slo.mode }
  }
  const bounds = { ttftMs: ttftMs ?? clauses.ttftMs, tpotMs: tpotMs ?? clauses.tpotMs }
  return { ...slo, percentile, mode: mode ?? slo.mode, clauses: { kind: 'stream', ...bounds } }
}

/** The workload that options describe; undefined where none does. */
async function ownWorkload(values: Values): Promise<PlannedWorkload | undefined> {
  const lengths = ['input-p50', 'input-p90', 'output-p50', 'output-p90'] as const
  const given = lengths.filter(flag => values[flag] !== undefined)
  if (values.trace !== undefined) {
    if (given[0] !== undefined)
      throw bad(given[0], values[given[0]], 'either --trace or the four lengths', 'remove one kind')
    return traceWorkload(values.trace, optional('max-input', values['max-input'], whole))
  }
  const missing = lengths.find(flag => values[flag] === undefined)
  const cacheHit = shareOf('cache-hit', values['cache-hit'] ?? '0')
  if (given.length === 0) {
    if (values['cache-hit'] === undefined) return undefined
    throw bad('cache-hit', values['cache-hit'], 'beside the four lengths', 'add --input-p50 and the others')
  }
  if (missing !== undefined)
    throw bad(missing, undefined, 'all four lengths or none', `add --${missing}, in tokens`)
  const percentiles = (of: 'input' | 'output'): Percentiles => {
    const p50 = number(`${of}-p50`, values[`${of}-p50`] ?? '')
    const p90 = number(`${of}-p90`, values[`${of}-p90`] ?? '')
    if (p90 >= p50) return { p50, p90 }
    throw bad(`${of}-p90`, String(p90), `at least --${of}-p50 (${p50})`, 'swap them')
  }
  const from = { source: 'options', assumed: false, model: values.model, precision: undefined }
  return fitted(percentiles('input'), percentiles('output'), cacheHit, from)
}

const whole = (flag: string, text: string): number => number(flag, text, true)

function shareOf(flag: string, text: string): number {
  const value = text.trim() === '' ? Number.NaN : Number(text)
  if (value >= 0 && value <= 1) return value
  throw bad(flag, text, 'a number from 0 to 1', `write --${flag} 0.3 for 30 %`)
}

function classWorkload(traffic: TrafficClass, file: string | undefined): PlannedWorkload {
  const { model, precision, inputTokens, outputTokens, cacheHit } = traffic.workload
  return fitted(inputTokens, outputTokens, cacheHit, {
    source: file === undefined ? 'assumed: Azure conversations of 2023' : `class ${traffic.name} of ${file}`,
    assumed: file === undefined,
    model: file === undefined ? undefined : model,
    precision,
  })
}

type From = Pick<PlannedWorkload, 'source' | 'assumed' | 'model' | 'precision'>

/** An answer of one token has no TPOT; a prompt of less than 16 is hardly one. */
const SHORTEST = { input: 16, output: 2 } as const

function fitted(input: Percentiles, output: Percentiles, cacheHit: number, from: From): PlannedWorkload {
  const mix = {
    input: lognormalThrough(input, Math.min(SHORTEST.input, input.p50)),
    output: lognormalThrough(output, Math.min(SHORTEST.output, output.p50)),
  }
  return { ...drawn(mix, cacheHit, from), inputTokens: input, outputTokens: output }
}

function drawn(mix: LengthMix, cacheHit: number, from: From): PlannedWorkload {
  return {
    ...from,
    inputTokens: percentilesOf(mix.input),
    outputTokens: percentilesOf(mix.output),
    cacheHit,
    lengths: mix,
    users: maxTokens => {
      const output = clipped(mix.output, Math.floor(maxTokens / 2))
      const input = clipped(mix.input, maxTokens - output.max)
      return seed => drawnUsers({ input, output }, cacheHit, seed)
    },
  }
}

function clipped(spec: LengthSpec, max: number): LengthSpec {
  if (spec.min > max) throw new UsageError(`lengths of ${spec.min} tokens and more do not fit into ${max}`)
  return { ...spec, max: Math.min(spec.max, max) }
}

async function traceWorkload(file: string, maxInputTokens: number | undefined): Promise<PlannedWorkload> {
  const trace = await readTrace(file, {
    rng: seededRng(1),
    ...(maxInputTokens === undefined ? {} : { maxInputTokens }),
  })
  if (trace.kind !== 'requests')
    throw bad('trace', file, 'a trace of requests', 'take one: agent sessions are no closed loop of users')
  const { rows } = trace
  return {
    source: `trace ${file}`,
    assumed: false,
    model: undefined,
    precision: undefined,
    inputTokens: percentilesIn(rows.map(row => row.inputTokens)),
    outputTokens: percentilesIn(rows.map(row => row.outputTokens)),
    cacheHit: 0,
    lengths: undefined,
    users: maxTokens => {
      const fit = rows.filter((row: TraceRow) => row.inputTokens + row.outputTokens <= maxTokens)
      if (fit.length === 0) throw new UsageError(`${file}: no row fits into ${maxTokens} tokens`)
      return seed => rowUsers(fit, seed)
    },
  }
}

function percentilesIn(values: readonly number[]): Percentiles {
  const sorted = values.toSorted((a, b) => a - b)
  const rank = (share: number): number => sorted[Math.ceil(share * sorted.length) - 1] ?? 0
  return { p50: rank(0.5), p90: rank(0.9) }
}
