/** What `weir simulate -c` was asked for: the user's classes and pools, on engines that are simulated. */
import { showProblems } from '../config/error.js'
import { load as loadConfig } from '../config/load.js'
import type { Resolved } from '../config/resolved.js'
import { readTrace } from '../load/trace.js'
import type { PolicySpec } from '../policy/policy.js'
import type { PoolId } from '../request.js'
import { Stage } from '../sim/cell.js'
import type { TraceData } from '../sim/mix.js'
import { type EngineProfile, profileNamed } from '../sim/profiles.js'
import type { RequestSource, Scenario, ScenarioClass } from '../sim/scenario.js'
import { lognormalThrough } from '../sim/sweep.js'
import type { TrafficClass } from '../slo/slo.js'
import { type Ms, seededRng } from '../time.js'
import type { Io } from './command.js'
import { bad, number, reason, UsageError } from './flags.js'

export interface SimulateFlags {
  readonly config: string
  readonly trace?: string | undefined
  readonly class?: string | undefined
  readonly engine: string
  readonly replicas?: string | undefined
  readonly rate?: string | undefined
}

interface Times {
  readonly warmupMs: Ms
  readonly lengthMs: Ms
}

export interface SimulatePlan {
  readonly config: Resolved
  readonly file: string
  readonly engine: EngineProfile
  /** Of the pool that is scaled, the home of the class that is played. */
  readonly pool: string
  /** From the fewest to the most that were asked for. */
  readonly replicas: { readonly from: number; readonly to: number }
  /** What load 1 is, for people. */
  readonly loadIs: string
  /** Longest run that says something new: the trace's own length. */
  readonly traceMs: Ms | undefined
  /** @param replicas  of the scaled pool; the others stay as configured */
  stage(replicas: number, times: Times): Stage
}

/** Replicas above this say more about the flag than about the fleet. */
const MOST_REPLICAS = 1000
const NOISE = 0.02
/** Beside the shortest prompts and answers that a distribution may draw. */
const SHORTEST = { input: 16, output: 2 }

/** @throws UsageError for what cannot be simulated; TraceError for a trace that cannot be read */
export async function readPlan(flags: SimulateFlags, env: Io['env']): Promise<SimulatePlan> {
  const loaded = loadConfig(flags.config, env)
  if (loaded.ok === undefined) throw new UsageError(showProblems(loaded.problems).trimEnd())
  const config = loaded.ok
  const engine = engineOf(flags.engine)
  const data = flags.trace === undefined ? undefined : await readTrace(flags.trace, { rng: seededRng(1) })
  const classes = config.policy.classes
  const played = data === undefined ? classes : [chosen(classes, flags.class, data)]
  const home = (played[0] as TrafficClass).pools[0] as PoolId
  const pool = config.policy.pools[home]
  if (pool === undefined) throw new UsageError(`${flags.config}: the class has no pool`)
  const replicas = range(flags.replicas, pool.replicas.length)
  const own = recorded(data)
  const rate = flags.rate === undefined ? own?.rps : number('rate', flags.rate)
  const scenario = (count: number, times: Times): Scenario => ({
    name: flags.config,
    replicas: [{ engine: flags.engine, count, speed: 1 }],
    noise: NOISE,
    prefixCache: true,
    maxInFlight: pool.maxInFlight,
    classes: classes.map(traffic => ({
      ...shareOf(traffic, played),
      requests: data === undefined ? lengthsOf(traffic, engine) : rowsOf(data, flags.trace ?? '', engine),
    })),
    rate: { kind: 'steady' },
    faults: [],
    ...times,
  })
  const traces = new Map<string, TraceData>(data === undefined ? [] : [[flags.trace ?? '', data]])
  // Load 1 is of the configured fleet, whatever number of replicas is tried.
  const spec = resized(config.policy, home, pool.replicas.length)
  const configured = new Stage(scenario(spec.replicas.length, { warmupMs: 1, lengthMs: 1 }), traces, { spec })
  const rps =
    rate === undefined
      ? configured.ratesAt(1).map(perMs => perMs * 1000)
      : classes.map(traffic => (played.includes(traffic) ? rate / played.length : 0))
  return {
    config,
    file: flags.config,
    engine,
    pool: pool.name,
    replicas,
    loadIs:
      rate === undefined
        ? 'what a fluid fills the configured fleet with at the promised pace'
        : `${rate.toFixed(2)} requests/s${flags.rate === undefined ? ', the trace’s own rate' : ''}`,
    traceMs: own?.spanMs,
    stage(count, times) {
      const spec = resized(config.policy, home, count)
      return new Stage(scenario(spec.replicas.length, times), traces, { spec, rps })
    },
  }
}

function engineOf(name: string): EngineProfile {
  try {
    return profileNamed(name)
  } catch (error) {
    throw bad('engine', name, 'the name of an engine profile', reason(error))
  }
}

/** The class whose requests the trace holds: rows are for people who read, sessions for programs. */
function chosen(classes: readonly TrafficClass[], name: string | undefined, data: TraceData): TrafficClass {
  const kind = data.kind === 'sessions' ? 'deadline' : 'stream'
  const found =
    name === undefined
      ? (classes.find(({ target }) => target.clauses.kind === kind) ?? classes[0])
      : classes.find(one => one.name === name)
  if (found !== undefined) return found
  const names = classes.map(one => one.name).join(', ')
  throw bad('class', name, `a class of the config: ${names}`, `write --class ${classes[0]?.name}`)
}

function range(text: string | undefined, configured: number): { from: number; to: number } {
  if (text === undefined) return { from: configured, to: configured }
  const [, from, to] = /^(\d+)(?:\.\.(\d+))?$/.exec(text) ?? []
  const [low, high] = [Number(from), Number(to ?? from)]
  if (low >= 1 && high >= low && high <= MOST_REPLICAS) return { from: low, to: high }
  throw bad(
    'replicas',
    text,
    `a number or a range A..B, from 1 to ${MOST_REPLICAS}`,
    'write --replicas 4, or --replicas 2..12',
  )
}

/** Times of the rows; undefined for what has none. */
function recorded(data: TraceData | undefined): { readonly rps: number; readonly spanMs: Ms } | undefined {
  if (data?.kind !== 'requests') return undefined
  const spanMs = (data.rows.at(-1)?.atMs ?? 0) - (data.rows[0]?.atMs ?? 0)
  return spanMs > 0 ? { rps: ((data.rows.length - 1) / spanMs) * 1000, spanMs } : undefined
}

/** The same pools, one of them with so many replicas. */
function resized(spec: PolicySpec, scaled: PoolId, count: number): PolicySpec {
  let id = 0
  const pools = spec.pools.map(pool => {
    const size = pool.id === scaled ? count : pool.replicas.length
    const replicas = Array.from({ length: size }, (_, at) => ({
      id: id++,
      pool: pool.id,
      name: pool.replicas[at]?.name ?? `${pool.name}-${at}`,
    }))
    return { ...pool, replicas }
  })
  return { ...spec, pools, replicas: pools.flatMap(pool => pool.replicas) }
}

function shareOf(traffic: TrafficClass, played: readonly TrafficClass[]): Omit<ScenarioClass, 'requests'> {
  return {
    name: traffic.name,
    share: played.includes(traffic) ? 1 : 0,
    percentile: traffic.target.percentile,
    promise: traffic.target.clauses,
    queue: traffic.queue,
  }
}

/** Lengths that follow the workload the class's promise was stated for. */
function lengthsOf({ workload }: TrafficClass, engine: EngineProfile): RequestSource {
  const half = Math.floor(Math.min(engine.maxModelLen, engine.kvTokens) / 2)
  const cut = (spec: ReturnType<typeof lognormalThrough>) => ({ ...spec, max: Math.min(spec.max, half) })
  return {
    kind: 'lengths',
    input: cut(lognormalThrough(workload.inputTokens, SHORTEST.input)),
    output: cut(lognormalThrough(workload.outputTokens, SHORTEST.output)),
  }
}

function rowsOf(data: TraceData, trace: string, engine: EngineProfile): RequestSource {
  const maxInputTokens = Math.floor(Math.min(engine.maxModelLen, engine.kvTokens) * 0.9)
  return data.kind === 'requests'
    ? { kind: 'trace', trace, arrivals: 'recorded', maxInputTokens }
    : { kind: 'sessions', trace, maxInputTokens, maxThinkMs: 60_000, maxCalls: 40 }
}
