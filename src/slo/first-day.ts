/** What is wrong with a pool of which nothing is usual yet: by what one minute says without another beside it. */

import type { Ms } from '../time.js'
import { Comparison, type DiagnosisOptions, paceOf, quietMs, stallMs, tokenMs } from './comparison.js'
import {
  type Diagnosis,
  type Found,
  found,
  LEAST,
  type MovedClause,
  SICK,
  STALLS,
  whole,
  Z,
} from './diagnose.js'
import { type Counts, type Look, type PoolWindow, stepLine } from './pool-window.js'
import { wilson } from './wilson.js'

/** Of the time to first token, the queue; of late requests, those behind a long prompt; of misses, one replica's. */
const QUEUE = 0.3
const BEHIND = 0.5
const OF_MISSES = 0.5
/** First tokens behind a long prompt take so many times as long as others. */
const LIFT = 1.5
/** Prompts in line, its own included, over its own. */
const LINED = 2
/** p90 of the prompts over the declared one. */
const LONGER_PROMPTS = 1.5
/** Of a token's time: what load adds to an idle step, from which it is load that is to blame. */
const LOADED = 0.3

/**
 * Holds the minute against the promise instead of against what is usual, and says only what stands on its own: most of
 * the time goes to one thing, one replica is unlike the others, the engines themselves tell.
 *
 * Goes wrong where a pool never could keep its promise: there the largest part of the time is named, which need not be
 * what changed. A slower engine (`regression`) or a colder cache it cannot tell at all, for both are changes.
 * @returns undefined while no clause is broken for certain, or too little is known
 */
export function diagnoseFirstDay(look: Look, options: DiagnosisOptions): Diagnosis | undefined {
  const clause = brokenClause(look.minute, options.objective)
  if (clause === undefined) return undefined
  // Held against itself nothing has grown: only the causes are found that need no growth.
  const seen = new Comparison(look.recent, { usual: look.recent, all: look.recent }, options)
  const cause =
    whole(seen, clause) ??
    oddReplica(look.recent) ??
    passedOver(look.recent, clause) ??
    (clause === 'tpot' ? slowPace(look.recent) : lateFirsts(seen, clause))
  return { clause, ...cause }
}

function brokenClause({ counts, lateInQueue }: PoolWindow, objective: number): MovedClause | undefined {
  const broken = (missed: number, all: number): boolean =>
    all >= LEAST && wilson(all - missed, all, Z).high < objective
  const ttft = broken(counts.late + lateInQueue, counts.firsts + lateInQueue)
  const tpot = broken(counts.slow, counts.paced)
  if (ttft) return tpot ? 'both' : 'ttft'
  return tpot ? 'tpot' : undefined
}

/** Replicas of a pool are of one kind: one that is far slower at its load than the next is sick. */
function oddReplica({ counts, replicas }: PoolWindow): Found | undefined {
  const line = stepLine(counts)
  if (line === undefined) return undefined
  const [worst, next] = replicas
    .flatMap(one => {
      const pace = paceOf(one.counts, line)
      return pace === undefined ? [] : [{ ...one, pace }]
    })
    .sort((a, b) => b.pace - a.pace)
  if (worst === undefined || next === undefined || worst.pace < SICK * next.pace) return undefined
  const share = (worst.counts.slow + worst.counts.late) / (counts.slow + counts.late)
  if (share < OF_MISSES) return undefined
  return found('sick_replica', share, {
    replica: worst.replica,
    step_time_over_next: worst.pace / next.pace,
    share_of_misses: share,
  })
}

function lateFirsts({ now, options }: Comparison, clause: MovedClause): Found {
  const n = now.counts
  const queue = Math.max(
    n.firsts > 0 ? n.queueMs / (n.queueMs + n.upstreamMs) : 0,
    now.lateInQueue / (n.late + now.lateInQueue),
  )
  const evidence = {
    queue_share_of_ttft: queue,
    queue_ms: n.queueMs / n.firsts,
    upstream_ms: n.upstreamMs / n.firsts,
    line_over_prompt: n.lineTokens / n.promptTokens,
  }
  if (queue > QUEUE) return found('router_queue', queue, evidence)
  const behind = n.lateBehindLong / n.late
  const others = (n.upstreamMs - n.behindLongMs) / (n.firsts - n.behindLong)
  // NaN: none but them.
  const lifted = !(n.behindLongMs / n.behindLong <= LIFT * others)
  if (clause === 'ttft' && behind > BEHIND && lifted)
    return found('head_of_line', behind, { late_behind_long_share: behind, ...evidence })
  const { demandRatio, declaredPromptP90 } = options
  if (demandRatio !== undefined && demandRatio > 1)
    return found('overload', 1 - 1 / demandRatio, { demand_over_capacity: demandRatio, ...evidence })
  const longer = (now.promptP90 ?? 0) / (declaredPromptP90 ?? Number.POSITIVE_INFINITY)
  if (longer > LONGER_PROMPTS)
    return found('prompt_shift', 1 - 1 / longer, { prompt_p90_over_declared: longer, ...evidence })
  const lined = n.lineTokens / n.promptTokens
  if (lined > LINED)
    return found(clause === 'both' ? 'overload' : 'prefill_capacity', 1 - 1 / lined, evidence)
  return clause === 'both' ? slowPace(now) : found('unexplained', 0, evidence)
}

/** Short memory, where the engine does not tell of it: otherwise `whole` has looked at it. */
function passedOver({ counts: n }: PoolWindow, clause: MovedClause): Found | undefined {
  if (clause === 'ttft' || n.kvReadings > 0 || !(n.stalls > STALLS * n.firsts)) return undefined
  const share = stallMs(n) / (tokenMs(n) - idleMs(n))
  if (share < LOADED) return undefined
  return found('kv_thrash', share, { stalls_per_request: n.stalls / n.firsts, stall_share_of_pace: share })
}

/** A step of one stream, with the context that a stream has here. */
function idleMs(n: Counts): Ms {
  const quiet = n.quietTokens > 0 ? quietMs(n) : 0
  const line = stepLine(n)
  if (line === undefined) return quiet
  const context = n.quietContext / n.quietStreams / 1000
  return Math.min(quiet, line.floorMs + line.perStreamMs + line.perContextMs * context)
}

/** Of a token's time beyond an idle engine's, the largest part. */
function slowPace({ counts: n }: PoolWindow): Found {
  const token = tokenMs(n)
  const quiet = n.quietTokens > 0 ? quietMs(n) : 0
  const idle = idleMs(n)
  const stalled = stallMs(n)
  const batch = quiet - idle
  const prefill = token - quiet - stalled
  const most = Math.max(batch, prefill)
  const share = most / (token - idle)
  const evidence = {
    token_ms: token,
    idle_step_ms: idle,
    batch_ms: batch,
    prefill_ms: prefill,
    stall_ms: stalled,
  }
  if (!(token - idle > LOADED * token && most > stalled)) return found('unexplained', 0, evidence)
  return found(most === batch ? 'batch_pressure' : 'prefill_interference', share, evidence)
}
