/** What is simulated: a fleet, the classes of its traffic with their promises, and what goes wrong. As data. */
import type { PolicySpec } from '../policy/policy.js'
import type { ReplicaId } from '../request.js'
import type { RouteSpec } from '../routing/route.js'
import type { Clauses, Slo, TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'
import type { LengthSpec } from './draw.js'
import { type EngineProfile, profileNamed } from './profiles.js'

/** Where the requests of a class come from. Rows and calls with more input are left out. */
export type RequestSource =
  | {
      readonly kind: 'trace'
      readonly trace: string
      /** `recorded`: at the trace's own times, scaled to the rate that is asked for; `poisson`: only lengths are its. */
      readonly arrivals: 'recorded' | 'poisson'
      readonly maxInputTokens: number
    }
  | {
      readonly kind: 'sessions'
      /** Agent sessions: starts are Poisson, the next call comes its think time after the end of the one before. */
      readonly trace: string
      readonly maxInputTokens: number
      /** Think times are cut to this. */
      readonly maxThinkMs: Ms
      /** A session ends after so many calls. */
      readonly maxCalls: number
    }
  | { readonly kind: 'lengths'; readonly input: LengthSpec; readonly output: LengthSpec }

export interface ScenarioClass {
  readonly name: string
  /** Of the offered work, relative to the other classes'. */
  readonly share: number
  readonly requests: RequestSource
  readonly percentile: number
  readonly promise: Clauses
  /** For classes with a deadline. */
  readonly queue?: { readonly max: number; readonly waitMs: Ms } | undefined
}

/** How the rate of arrivals goes up and down around the load: factors, by time since the start. */
export type RateShape =
  | { readonly kind: 'steady' }
  | { readonly kind: 'burst'; readonly atMs: Ms; readonly forMs: Ms; readonly factor: number }
  | { readonly kind: 'square'; readonly periodMs: Ms; readonly low: number; readonly high: number }
  /** A sine, from its lowest on. */
  | { readonly kind: 'daily'; readonly periodMs: Ms; readonly low: number; readonly high: number }
  /** Each state lasts an exponential time. */
  | { readonly kind: 'two-state'; readonly meanMs: Ms; readonly low: number; readonly high: number }
  /** From each time on, its factor. */
  | { readonly kind: 'steps'; readonly steps: readonly { readonly atMs: Ms; readonly factor: number }[] }

export type Fault =
  /** Prompts that begin in this time are so many times as long. */
  | { readonly kind: 'prompt-shift'; readonly atMs: Ms; readonly forMs: Ms; readonly factor: number }
  /** Every replica forgets its prefix cache. */
  | { readonly kind: 'cache-flush'; readonly atMs: Ms }
  | { readonly kind: 'crash'; readonly atMs: Ms; readonly forMs: Ms; readonly replica: ReplicaId }
  /** Its iterations take so many times as long. */
  | {
      readonly kind: 'slow'
      readonly atMs: Ms
      readonly forMs: Ms
      readonly replica: ReplicaId
      readonly factor: number
    }
  /** It is not in the pool before this, and has an empty cache then. */
  | { readonly kind: 'cold-start'; readonly atMs: Ms; readonly replica: ReplicaId }
  /** Others send to the engine itself, a share of what it can do; like the first class. */
  | {
      readonly kind: 'foreign'
      readonly atMs: Ms
      readonly forMs: Ms
      readonly replica: ReplicaId
      readonly share: number
    }
  /** A share of all clients leaves at a time drawn from 0 to `withinMs` after the request came. */
  | { readonly kind: 'aborts'; readonly share: number; readonly withinMs: Ms }
  /** Clients of shed requests come again: after Retry-After (`obey`), or after 0.5 s, doubling. */
  | { readonly kind: 'retries'; readonly times: number; readonly obey: boolean }

export interface Scenario {
  readonly name: string
  readonly replicas: readonly { readonly engine: string; readonly count: number; readonly speed: number }[]
  /** Sigma of the lognormal jitter of iteration times. */
  readonly noise: number
  readonly prefixCache: boolean
  /** Requests in flight on one replica, until its speed is known; and what rules without a model go by. */
  readonly maxInFlight: number
  /** What engines do is known to the policy so much later; absent: at once. */
  readonly staleMs?: Ms
  readonly classes: readonly ScenarioClass[]
  readonly rate: RateShape
  readonly faults: readonly Fault[]
  /** Measured: what arrives in `lengthMs` after `warmupMs`. */
  readonly warmupMs: Ms
  readonly lengthMs: Ms
}

/** The model's name in requests and pools. */
export const MODEL = 'model'
const WINDOW_MS: Ms = 30 * 86_400_000
/** The guard is this much looser, at the 99th percentile. */
const GUARD = 3
const EVERYTHING: RouteSpec['when'] = {
  path: undefined,
  header: [],
  model: undefined,
  key: undefined,
  stream: undefined,
  tools: undefined,
  maxTokens: undefined,
}

/** An engine so many times as fast as its profile. */
function atSpeed(profile: EngineProfile, speed: number): EngineProfile {
  const { cost } = profile
  return {
    ...profile,
    cost: {
      wMs: cost.wMs / speed,
      gMsPerKtok: cost.gMsPerKtok / speed,
      cMsPerSeq: cost.cMsPerSeq / speed,
      aMsPerMtok2: cost.aMsPerMtok2 / speed,
      dMsPerKkv: cost.dMsPerKkv / speed,
      p: cost.p,
    },
  }
}

/** One profile a replica, by id. @throws RangeError for an engine that there is not */
export function profilesOf(scenario: Scenario): EngineProfile[] {
  return scenario.replicas.flatMap(({ engine, count, speed }) =>
    Array.from({ length: count }, () => atSpeed(profileNamed(engine), speed)),
  )
}

/** By class id: in the order of the scenario, which is the order of priority. */
export function classesOf(scenario: Scenario): TrafficClass[] {
  return scenario.classes.map((one, id) => ({
    id,
    name: one.name,
    target: slo(one.promise, one.percentile),
    guard: slo(looser(one.promise), 99),
    workload: {
      model: MODEL,
      precision: undefined,
      inputTokens: { p50: 1000, p90: 2700 },
      outputTokens: { p50: 130, p90: 420 },
      cacheHit: 0,
    },
    priority: id,
    pools: [0],
    queue: one.queue,
    ownBounds: undefined,
  }))
}

const slo = (clauses: Clauses, percentile: number): Slo => ({
  percentile,
  mode: 'joint',
  windowMs: WINDOW_MS,
  clauses,
})

function looser(clauses: Clauses): Clauses {
  return clauses.kind === 'stream'
    ? { kind: 'stream', ttftMs: clauses.ttftMs * GUARD, tpotMs: clauses.tpotMs * GUARD }
    : { ...clauses, deadlineMs: clauses.deadlineMs * GUARD }
}

/**
 * What the policy is built from: one pool of all replicas.
 * @param absent  replicas that are not in the pool (yet)
 */
export function policySpecOf(scenario: Scenario, absent: ReadonlySet<ReplicaId> = new Set()): PolicySpec {
  const all = profilesOf(scenario).map((_, id) => {
    const replica = { id, pool: 0, name: `replica-${id}:8000` }
    return absent.has(id) ? { ...replica, retired: true as const } : replica
  })
  const pool = {
    id: 0,
    name: 'pool',
    model: MODEL,
    replicas: all.filter(({ id }) => !absent.has(id)),
    maxInFlight: scenario.maxInFlight,
    kvTokens: Math.min(...profilesOf(scenario).map(({ kvTokens }) => kvTokens)),
    gpusPerReplica: Math.max(...profilesOf(scenario).map(({ gpus }) => gpus)),
  }
  return {
    classes: classesOf(scenario),
    pools: [pool],
    replicas: all,
    routes: [{ when: EVERYTHING, cls: 0, rewriteModel: undefined }],
    retries: { share: 0.1, floor: 3 },
  }
}
