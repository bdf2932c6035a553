/** Specs, facts and answers for tests of the policy door, with what a test does not care about filled in. */
import type { Ending } from '../../src/policy/decision.js'
import type { PolicySpec } from '../../src/policy/policy.js'
import type { RequestFacts } from '../../src/request.js'
import type { RouteSpec } from '../../src/routing/route.js'
import type { Progress, Usage } from '../../src/slo/latency.js'
import type { Clauses, TrafficClass } from '../../src/slo/slo.js'

const WEEK_MS = 604_800_000

function traffic(id: number, name: string, target: Clauses, guard: Clauses): TrafficClass {
  return {
    id,
    name,
    target: { percentile: 90, mode: 'joint', windowMs: WEEK_MS, clauses: target },
    guard: { percentile: 99, mode: 'joint', windowMs: WEEK_MS, clauses: guard },
    workload: {
      model: 'm',
      precision: undefined,
      inputTokens: { p50: 1000, p90: 2700 },
      outputTokens: { p50: 130, p90: 420 },
      cacheHit: 0,
    },
    priority: id,
    pools: [0],
    queue: undefined,
    ownBounds: undefined,
  }
}

/** Class 0: TTFT 500 ms and TPOT 40 ms, guard 2 s and 100 ms. It does not wait. */
export const chat = traffic(
  0,
  'chat',
  { kind: 'stream', ttftMs: 500, tpotMs: 40 },
  { kind: 'stream', ttftMs: 2000, tpotMs: 100 },
)

/** Class 1: 60 s, guard 240 s; waits up to 55 s; own deadlines from 5 s to 600 s. */
export const agent: TrafficClass = {
  ...traffic(
    1,
    'agent',
    { kind: 'deadline', deadlineMs: 60_000, minTokensPerSecond: 0 },
    { kind: 'deadline', deadlineMs: 240_000, minTokensPerSecond: 0 },
  ),
  queue: { max: 500, waitMs: 55_000 },
  ownBounds: { minMs: 5_000, maxMs: 600_000 },
}

export const anything: RouteSpec['when'] = {
  path: undefined,
  header: [],
  model: undefined,
  key: undefined,
  stream: undefined,
  tools: undefined,
  maxTokens: undefined,
}

/** @param sizes  replicas of each pool; ids run on over the pools */
export function specOf(
  sizes: readonly number[],
  limit: number,
  change: Partial<PolicySpec> = {},
): PolicySpec {
  let id = 0
  const pools = sizes.map((size, pool) => ({
    id: pool,
    name: `pool${pool}`,
    model: 'm' as string | undefined,
    replicas: Array.from({ length: size }, () => ({ id: id++, pool, name: `10.0.0.${id}:8000` })),
    maxInFlight: limit,
    gpusPerReplica: 1,
  }))
  return {
    classes: [chat, agent],
    pools,
    replicas: pools.flatMap(pool => pool.replicas),
    routes: [{ when: anything, cls: 0, rewriteModel: undefined }],
    retries: { share: 0.1, floor: 3 },
    ...change,
  }
}

/** A streamed request of 100 prompt tokens whose body is complete at `now`. */
export function ask(now: number, change: Partial<RequestFacts> = {}): RequestFacts {
  return {
    path: '/v1/chat/completions',
    headers: {},
    model: 'm',
    stream: true,
    tools: false,
    maxTokens: undefined,
    promptTokens: 100,
    askedClass: undefined,
    key: undefined,
    own: {},
    patienceMs: undefined,
    retry: 0,
    repeatable: true,
    arrivedAt: now,
    bodyAt: now,
    ...change,
  }
}

export const usage = (completionTokens: number): Usage => {
  return { promptTokens: 90, completionTokens, cachedTokens: undefined, reasoningTokens: undefined }
}

/** A stream with one token an event, from its first output to its last. */
export function stream(first: number, last: number, marks: number, change: Partial<Progress> = {}): Progress {
  return {
    streamed: true,
    firstEvent: first,
    firstOutput: first,
    firstVisible: first,
    lastOutput: last,
    marks,
    longestChoiceMarks: marks,
    longestGap: 40,
    usage: usage(marks),
    throttled: false,
    ...change,
  }
}

export const complete = (progress?: Progress): Ending => ({ kind: 'complete', progress })
export const left = (progress?: Progress): Ending => ({ kind: 'clientLeft', progress })
