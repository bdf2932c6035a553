/** One scenario, load, seed and policy of the core's bench: a fleet in virtual time, and what came of it. */

import type { PoolSpec } from '../../src/fleet/pool.js'
import { type AgentSession, readTrace, SESSION_BLOCK_TOKENS, type TraceRow } from '../../src/load/trace.js'
import type { Policy, PolicySpec } from '../../src/policy/policy.js'
import { Fleet, type Traffic } from '../../src/sim/fleet.js'
import type { Arrival, Job } from '../../src/sim/job.js'
import { BLOCK_TOKENS } from '../../src/sim/kv-cache.js'
import { type EngineProfile, profileNamed } from '../../src/sim/profiles.js'
import type { Clauses, TrafficClass } from '../../src/slo/slo.js'
import { type Rng, seededRng } from '../../src/time.js'

export interface Scenario {
  readonly name: string
  readonly profile: string
  readonly ttftMs: number
  readonly tpotMs: number
  /** Share of offered work that is jobs or agents. */
  readonly jobs?: number
  readonly agents?: number
  readonly trace: 'conv' | 'code' | 'mooncake'
}

export const SCENARIOS: readonly Scenario[] = [
  { name: 'chat8', profile: 'llama3-8b', ttftMs: 500, tpotMs: 40, trace: 'conv' },
  { name: 'chat32', profile: 'qwen3-32b', ttftMs: 500, tpotMs: 40, trace: 'conv' },
  { name: 'chat70', profile: 'llama2-70b', ttftMs: 1000, tpotMs: 80, trace: 'conv' },
  { name: 'code8', profile: 'llama3-8b', ttftMs: 500, tpotMs: 40, trace: 'code' },
  { name: 'moon8', profile: 'llama3-8b', ttftMs: 2000, tpotMs: 40, trace: 'mooncake' },
  { name: 'jobs8', profile: 'llama3-8b', ttftMs: 500, tpotMs: 40, trace: 'conv', jobs: 0.4 },
  { name: 'agents8', profile: 'llama3-8b', ttftMs: 500, tpotMs: 40, trace: 'conv', agents: 0.2 },
  { name: 'agents8h', profile: 'llama3-8b', ttftMs: 500, tpotMs: 40, trace: 'conv', agents: 0.5 },
  { name: 'agents32', profile: 'qwen3-32b', ttftMs: 500, tpotMs: 40, trace: 'conv', agents: 0.2 },
]

export const N = 8

function trafficClass(
  id: number,
  name: string,
  clauses: Clauses,
  percentile: number,
  queue?: TrafficClass['queue'],
): TrafficClass {
  const target = { percentile, mode: 'joint', windowMs: 604_800_000, clauses } as const
  const lengths = { p50: 1, p90: 1 }
  return {
    id,
    name,
    target,
    guard: target,
    workload: { model: 'm', precision: undefined, inputTokens: lengths, outputTokens: lengths, cacheHit: 0 },
    priority: id,
    pools: [0],
    queue,
    ownBounds: undefined,
  }
}

export function classesOf(s: Scenario): TrafficClass[] {
  const chat = trafficClass(0, 'chat', { kind: 'stream', ttftMs: s.ttftMs, tpotMs: s.tpotMs }, 90)
  if (s.jobs === undefined && s.agents === undefined) return [chat]
  const agent = trafficClass(
    1,
    'agent',
    { kind: 'deadline', deadlineMs: 60_000, minTokensPerSecond: 0 },
    95,
    { max: 2000, waitMs: 55_000 },
  )
  return [chat, agent]
}

export function specOf(s: Scenario, maxInFlight: number, n = N): PolicySpec {
  const replicas = Array.from({ length: n }, (_, id) => ({ id, pool: 0, name: `r${id}` }))
  const pool: PoolSpec = {
    id: 0,
    name: 'main',
    model: 'm',
    replicas,
    maxInFlight,
    gpusPerReplica: 1,
    kvTokens: profileNamed(s.profile).kvTokens,
  } as PoolSpec
  return {
    classes: classesOf(s),
    pools: [pool],
    replicas,
    routes: [],
    retries: { share: 0.1, floor: 3 },
  } as unknown as PolicySpec
}

/** GPU ms of one request at a full batch, less the part that every step pays anyway. */
function workMs(p: EngineProfile, input: number, cached: number, output: number): number {
  const c = p.cost
  const fresh = input - cached
  return (
    (c.gMsPerKtok * (fresh + output)) / 1000 +
    c.cMsPerSeq * output +
    (c.aMsPerMtok2 * fresh * (cached + fresh / 2)) / 1e6 +
    (c.dMsPerKkv * output * (input + output / 2)) / 1000
  )
}

/** Share of time that is not the floor of steps that just meet the pace. */
function freeShare(p: EngineProfile, tpotMs: number): number {
  return 1 - p.cost.wMs / tpotMs
}

const DIR = 'bench/data/'
const rowsCache = new Map<string, readonly TraceRow[]>()
async function rowsOf(file: string): Promise<readonly TraceRow[]> {
  const known = rowsCache.get(file)
  if (known) return known
  const trace = await readTrace(DIR + file, { rng: seededRng(0) })
  if (trace.kind !== 'requests') throw new Error(file)
  rowsCache.set(file, trace.rows)
  return trace.rows
}
let sessionsCache: readonly AgentSession[] | undefined
async function sessionsOf(): Promise<readonly AgentSession[]> {
  if (sessionsCache) return sessionsCache
  const trace = await readTrace(`${DIR}agent-claudecode-sessions.jsonl.gz`, {
    rng: seededRng(0),
    maxInputTokens: 120_000,
  })
  if (trace.kind !== 'sessions') throw new Error('sessions')
  sessionsCache = trace.sessions
  return trace.sessions
}

const FILES = {
  conv: 'azure2023-conv.csv.gz',
  code: 'azure2023-code.csv.gz',
  mooncake: 'mooncake-conversation.jsonl.gz',
}

function hashes(
  ids: readonly number[],
  blockTokens: number,
  inputTokens: number,
  scope: number,
): Float64Array {
  const each = blockTokens / BLOCK_TOKENS
  const blocks = Math.min(Math.floor(inputTokens / BLOCK_TOKENS), ids.length * each)
  return Float64Array.from(
    { length: blocks },
    (_, i) => (scope * 1e6 + (ids[Math.floor(i / each)] ?? 0)) * each + (i % each),
  )
}

export interface Built {
  readonly traffic: Traffic
  readonly rate: number
}

/** Open-loop rows from a random place on, their time scaled; and agents as sessions in closed loops, or jobs. */
export async function trafficOf(
  s: Scenario,
  load: number,
  seed: number,
  endMs: number,
  n = N,
  shape?: (t: number) => number,
): Promise<Built> {
  const rng = seededRng(seed * 7919 + 13)
  const rows = await rowsOf(FILES[s.trace])
  const profile = profileNamed(s.profile)
  const second = s.jobs ?? s.agents ?? 0
  let mean = 0
  for (const r of rows) {
    const cached = s.trace === 'mooncake' ? 0.3 * r.inputTokens : 0
    mean += workMs(profile, r.inputTokens, cached, r.outputTokens)
  }
  mean /= rows.length
  const capacityPerMs = (n * freeShare(profile, s.tpotMs)) / mean
  const rate = capacityPerMs * load * (1 - second)
  const own = rows.length / ((rows.at(-1) as TraceRow).atMs - (rows[0] as TraceRow).atMs)
  const stretch = own / rate
  let at = Math.floor(rng.next() * rows.length)
  const base = 0
  let last = (rows[at] as TraceRow).atMs
  let now = 0
  const chat = (): Arrival => {
    const row = rows[at] as TraceRow
    at = (at + 1) % rows.length
    let gap = row.atMs - last
    if (gap < 0) gap = 0
    last = row.atMs
    now += (gap * stretch) / (shape?.(now) ?? 1)
    const blockHashes =
      row.prefix === undefined
        ? undefined
        : hashes(row.prefix.ids, row.prefix.blockTokens, row.inputTokens, 0)
    return {
      at: now,
      cls: 0,
      promptTokens: row.inputTokens,
      outputTokens: row.outputTokens,
      ...(blockHashes ? { blockHashes } : {}),
    }
  }
  void base
  if (second === 0) {
    return {
      rate: rate * 1000,
      traffic: {
        next: () => {
          const a = chat()
          return a.at > endMs ? undefined : a
        },
      },
    }
  }
  const sources: (() => Arrival | undefined)[] = [chat]
  let after: Traffic['after']
  if (s.jobs !== undefined) {
    // Jobs: the rows of the long prompts, Poisson.
    const long = rows.filter(r => r.inputTokens > 1500)
    let w = 0
    for (const r of long) w += workMs(profile, r.inputTokens, 0, r.outputTokens * 2)
    w /= long.length
    const jobRate = (n * freeShare(profile, s.tpotMs) * load * second) / w
    let t = 0
    sources.push(() => {
      t += -Math.log(1 - rng.next()) / jobRate
      const r = long[Math.floor(rng.next() * long.length)] as TraceRow
      return { at: t, cls: 1, promptTokens: r.inputTokens, outputTokens: Math.min(2000, r.outputTokens * 2) }
    })
  } else {
    const sessions = await sessionsOf()
    let w = 0
    let calls = 0
    for (const one of sessions)
      for (const c of one.calls) {
        w += workMs(profile, c.inputTokens, 0.94 * c.inputTokens, c.outputTokens)
        calls++
      }
    w /= calls
    // Sessions in a closed loop would slow down in overload: calls come open-loop here, each session's in order.
    const callRate = (n * freeShare(profile, s.tpotMs) * load * second) / w
    const slots = Math.max(8, Math.round(callRate * 1000 * 20))
    let scope = seed * 1000
    const entered = () => {
      const session = sessions[Math.floor(rng.next() * sessions.length)] as AgentSession
      return { session, at: Math.floor(rng.next() * session.calls.length * 0.5), scope: ++scope }
    }
    const live = Array.from({ length: slots }, entered)
    let t = 0
    let turn = 0
    sources.push(() => {
      t += -Math.log(1 - rng.next()) / callRate
      const slot = turn++ % slots
      let one = live[slot] as ReturnType<typeof entered>
      if (one.at >= one.session.calls.length) {
        one = entered()
        live[slot] = one
      }
      const c = one.session.calls[one.at++] as AgentSession['calls'][number]
      return {
        at: t,
        cls: 1,
        promptTokens: c.inputTokens,
        outputTokens: Math.max(1, c.outputTokens),
        blockHashes: hashes(c.ids, SESSION_BLOCK_TOKENS, c.inputTokens, one.scope),
      }
    })
  }
  const heads = sources.map(f => f())
  return {
    rate: rate * 1000,
    traffic: {
      ...(after ? { after } : {}),
      next() {
        let k = -1
        for (let i = 0; i < heads.length; i++) {
          const h = heads[i]
          if (h !== undefined && (k < 0 || h.at < (heads[k] as Arrival).at)) k = i
        }
        const h = heads[k]
        if (h === undefined || h.at > endMs) return undefined
        heads[k] = (sources[k] as () => Arrival | undefined)()
        return h
      },
    },
  }
}

export interface Outcome {
  offered: number
  good: number
  shed: number
  byClass: { offered: number; good: number; shed: number; attained: number }[]
  quartiles: number[]
  wasted: number
  ttft50: number
  jobs: Job[]
  decideP99?: number
  tookMs: number
}

export type Make = (spec: PolicySpec, rng: Rng) => Policy

export async function run(
  s: Scenario,
  load: number,
  seed: number,
  make: Make,
  maxInFlight = 100_000,
  opts: { warmMs?: number; spanMs?: number; n?: number; shape?: (t: number) => number } = {},
): Promise<Outcome> {
  const warm = opts.warmMs ?? 20_000
  const end = warm + (opts.spanMs ?? 60_000)
  const n = opts.n ?? N
  const profile = profileNamed(s.profile)
  const spec = specOf(s, maxInFlight, n)
  const policy = make(spec, seededRng(seed))
  const { traffic } = await trafficOf(s, load, seed, end, n, opts.shape)
  const jobs: Job[] = []
  const from = performance.now()
  const times: number[] = []
  const fleet = new Fleet({
    replicas: Array.from({ length: n }, () => profile),
    policy,
    classes: spec.classes,
    model: 'm',
    traffic,
    noise: { sigma: 0.02, rng: seededRng(seed + 99) },
    ended: job => {
      if (job.arrival.at >= warm) jobs.push(job)
    },
    stopwatch: { clock: performance, decided: ms => times.push(ms) },
  })
  fleet.run()
  const out: Outcome = {
    offered: 0,
    good: 0,
    shed: 0,
    byClass: spec.classes.map(() => ({ offered: 0, good: 0, shed: 0, attained: 0 })),
    quartiles: [],
    wasted: 0,
    ttft50: 0,
    jobs,
    tookMs: performance.now() - from,
  }
  let work = 0,
    waste = 0
  for (const job of jobs) {
    if (!job.offered) continue
    const c = out.byClass[job.arrival.cls] as Outcome['byClass'][number]
    out.offered++
    c.offered++
    if (job.good) {
      out.good++
      c.good++
    }
    if (job.end === 'shed') {
      out.shed++
      c.shed++
    } else {
      const w = workMs(profile, job.promptTokens, 0, job.tokens)
      work += w
      if (!job.good) waste += w
    }
  }
  for (const c of out.byClass) c.attained = c.good / Math.max(1, c.offered - c.shed)
  out.wasted = waste / Math.max(1e-9, work)
  const chats = jobs
    .filter(j => j.arrival.cls === 0 && j.offered)
    .sort((a, b) => a.promptTokens - b.promptTokens)
  for (let q = 0; q < 4; q++) {
    const part = chats.slice(Math.floor((chats.length * q) / 4), Math.floor((chats.length * (q + 1)) / 4))
    out.quartiles.push(part.filter(j => j.good).length / Math.max(1, part.length))
  }
  const ttfts = jobs
    .filter(j => j.arrival.cls === 0 && j.ttftMs !== undefined)
    .map(j => j.ttftMs as number)
    .sort((a, b) => a - b)
  out.ttft50 = ttfts[Math.floor(ttfts.length / 2)] ?? Number.NaN
  times.sort((a, b) => a - b)
  out.decideP99 = times[Math.floor(times.length * 0.99)] ?? 0
  return out
}

export const show = (o: Outcome): string =>
  `good ${(o.good / o.offered).toFixed(3)} (${o.byClass.map(c => `${(c.good / c.offered).toFixed(3)} shed ${(c.shed / c.offered).toFixed(2)} att ${c.attained.toFixed(3)}`).join(' | ')}) q ${o.quartiles.map(x => x.toFixed(2)).join(' ')} waste ${o.wasted.toFixed(3)} ttft50 ${o.ttft50.toFixed(0)} n ${o.offered} dec99 ${((o.decideP99 ?? 0) * 1000).toFixed(0)}us took ${(o.tookMs / 1000).toFixed(1)}s`
