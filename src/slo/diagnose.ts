/** Which clause of a pool moved, and why: the last minute held against what is usual. */
import type { Baseline } from './baseline.js'
import type { Cause } from './causes.js'
import { Comparison, type DiagnosisOptions, ratio } from './comparison.js'
import type { Counts, Look, PoolWindow } from './pool-window.js'
import { wilson } from './wilson.js'

/** `none`: Weir's clauses hold, but what clients see does not. */
export type MovedClause = 'ttft' | 'tpot' | 'both' | 'none'

export interface Diagnosis {
  readonly clause: MovedClause
  readonly cause: Cause
  /** Share of the excess that the cause explains, 0 to 1. */
  readonly confidence: number
  /** The figures that speak for it, by name; ratios are of now to usual. */
  readonly evidence: Readonly<Record<string, number>>
}

/** Judged requests below which nothing is said. */
export const LEAST = 100
/** The window is looked at again and again: 3 sigma, not 2, so that chance alone moves no clause. */
export const Z = 3
/** Stalls a request from which memory is short, where the engine does not tell. */
export const STALLS = 0.02
/** Ratios to the usual from which something is another state of things. */
export const SICK = 1.5
const SLOWER = 1.2
const SLOWER_PREFILL = 1.35
const ALIKE = 1.15
const MORE_DEMAND = 1.25
const MORE_STREAMS = 1.6
const LONGER_PROMPTS = 1.5
/** Streams rise so much of what requests rise by, or the new ones have hardly any answer. */
const PILING = 0.8
/** Share of all clients. */
const MORE_SLOW_CLIENTS = 0.05

/**
 * @param base  what is usual; learned while nothing was wrong
 * @returns undefined while no clause moved, or too little is known
 */
export function diagnose(look: Look, base: Baseline, options: DiagnosisOptions): Diagnosis | undefined {
  const clause = movedClause(look.minute, base.usual, options.objective)
  if (clause === undefined) return slowClients(look.minute, base.usual)
  const seen = new Comparison(look.recent, base, options)
  const found = whole(seen, clause) ?? (clause === 'tpot' ? slowPace(seen) : lateFirsts(seen, clause))
  return { clause, ...found }
}

export type Found = Omit<Diagnosis, 'clause'>

/** @param share  of the excess that it explains; brought to 0 to 1 */
export function found(cause: Cause, share: number, evidence: Found['evidence']): Found {
  // A figure that nothing was counted for is left out.
  const known = Object.entries(evidence).filter(([, value]) => Number.isFinite(value))
  return { cause, confidence: Math.min(1, Math.max(0, share || 0)), evidence: Object.fromEntries(known) }
}

/** A clause moved if it is met less often than usual for certain, and is not for certain kept. */
function movedClause(now: PoolWindow, usual: PoolWindow, objective: number): MovedClause | undefined {
  const [n, u] = [now.counts, usual.counts]
  const ttft = fell(
    n.late + now.lateInQueue,
    n.firsts + now.lateInQueue,
    u.late + usual.lateInQueue,
    u.firsts + usual.lateInQueue,
    objective,
  )
  const tpot = fell(n.slow, n.paced, u.slow, u.paced, objective)
  if (ttft) return tpot ? 'both' : 'ttft'
  return tpot ? 'tpot' : undefined
}

function fell(missed: number, all: number, missedBefore: number, before: number, objective: number): boolean {
  if (all < LEAST || before < LEAST) return false
  const apart = wilson(all - missed, all, Z).high < wilson(before - missedBefore, before, Z).low
  return apart && wilson(all - missed, all).low < objective
}

function slowClients({ counts: n }: PoolWindow, { counts: u }: PoolWindow): Diagnosis | undefined {
  if (n.ended < LEAST || u.ended < LEAST) return undefined
  const [share, usual] = [n.throttled / n.ended, u.throttled / u.ended]
  const more = wilson(n.throttled, n.ended, Z).low > wilson(u.throttled, u.ended, Z).high
  if (!more || share < usual + MORE_SLOW_CLIENTS) return undefined
  const evidence = { throttled_share: share, usual_throttled_share: usual }
  return { clause: 'none', ...found('slow_clients', (share - usual) / share, evidence) }
}

/** Causes that show in every clause. */
export function whole(seen: Comparison, clause: MovedClause): Found | undefined {
  return coldStart(seen) ?? sickReplica(seen) ?? regression(seen) ?? overload(seen, clause) ?? kvThrash(seen)
}

function coldStart({ now, base, coldStartMs, demand }: Comparison): Found | undefined {
  let [late, lateCold, firsts, firstsCold, warm, warmUsual] = [0, 0, 0, 0, 0, 0]
  for (const { replica, ageMs, counts } of now.replicas) {
    const cold = ageMs < coldStartMs
    late += counts.late
    firsts += counts.firsts
    if (cold) {
      lateCold += counts.late
      firstsCold += counts.firsts
    } else {
      const before = base.usual.replicas.find(one => one.replica === replica)?.counts.dispatched ?? 0
      warm += counts.dispatched / now.spanMs
      warmUsual += before / base.usual.spanMs
    }
  }
  if (firstsCold === 0) return undefined
  const share = lateCold / late
  // Where all are young, age is no difference; where some are, the others have to do their work.
  const apart = firstsCold === firsts || lateCold / firstsCold > 1.5 * (late / firsts)
  const moved = ratio(warm, warmUsual)
  if (!(share > 0.5 && apart) && !(moved > MORE_DEMAND && demand < MORE_DEMAND)) return undefined
  return found('cold_start', Math.max(share, 1 - 1 / moved), {
    cold_share_of_late: share,
    cold_share_of_requests: firstsCold / firsts,
    warm_replicas_demand_ratio: moved,
  })
}

function sickReplica(seen: Comparison): Found | undefined {
  const { paces } = seen
  if (paces.length < 2) return undefined
  const [worst, ...others] = [...paces].sort((a, b) => b.ratio - a.ratio)
  if (worst === undefined || worst.ratio < SICK) return undefined
  const rest = Math.max(...others.map(({ ratio }) => ratio))
  if (rest > 1 + (worst.ratio - 1) / 2) return undefined
  const missed = (counts: Counts): number => counts.slow + counts.late
  const share = missed(worst.counts) / missed(seen.now.counts)
  return found('sick_replica', share, {
    replica: worst.replica,
    step_time_ratio: worst.ratio,
    others_step_time_ratio: rest,
    share_of_misses: share,
  })
}

function regression(seen: Comparison): Found | undefined {
  const { paces, demand, prefillPace } = seen
  if (demand > MORE_DEMAND) return undefined
  // A replica that prefills all the time has no quiet step; then first tokens tell, if prompts are as they were.
  const blind = paces.length < seen.now.replicasInUse / 2
  const likePrompts = seen.meanPrompt < ALIKE && seen.uncached < ALIKE
  const least = blind ? 1 : Math.min(...paces.map(one => one.ratio))
  if (least < SLOWER && !(blind && likePrompts && prefillPace > SLOWER_PREFILL)) return undefined
  const pace = blind ? prefillPace : seen.pace
  return found('regression', (1 - 1 / pace) / Math.max(1 - 1 / pace, 1 - 1 / seen.tpot), {
    ...(blind ? { prefill_time_ratio: pace } : { step_time_ratio: pace, least_step_time_ratio: least }),
    demand_per_replica_ratio: demand,
  })
}

function overload(seen: Comparison, clause: MovedClause): Found | undefined {
  const { demand, streams, options } = seen
  const told = options.demandRatio !== undefined && options.demandRatio > 1
  const more = demand > MORE_DEMAND && clause !== 'tpot'
  // Paces follow late first tokens when streams pile up as much as requests do; short answers only have to be prefilled.
  const piling = more && streams > Math.max(MORE_STREAMS, PILING * demand)
  if (!(clause === 'both' && (told || more)) && !piling) return undefined
  // Requests, streams and times rise together: how much of it demand began is what demand itself rose by.
  return found('overload', told ? 1 : Math.log(demand) / Math.log(Math.max(demand, streams)), {
    demand_per_replica_ratio: demand,
    streams_ratio: streams,
    ...(options.demandRatio !== undefined && { demand_over_capacity: options.demandRatio }),
  })
}

function kvThrash(seen: Comparison): Found | undefined {
  const { now, base } = seen
  const [n, u] = [now.counts, base.usual.counts]
  const stalls = n.stalls / n.firsts
  const usual = u.stalls / u.firsts
  const share = seen.stallShare
  if (n.kvReadings > 0) {
    const perMinute = n.preemptionSpanMs > 0 ? (n.preemptions * 60_000) / n.preemptionSpanMs : 0
    if (!(n.kvFull > 0.1 * n.kvReadings && perMinute > 0)) return undefined
    // Most waits are shorter than a second, and those for memory are no gaps at all: time says more than gaps do.
    return found('kv_thrash', n.kvFull / n.kvReadings, {
      kv_full_share_of_time: n.kvFull / n.kvReadings,
      kv_usage: n.kvUsage / n.kvReadings,
      preemptions_per_minute_and_replica: perMinute,
      stalls_per_request: stalls,
    })
  }
  if (!(stalls > STALLS && stalls > 3 * usual)) return undefined
  return found('kv_thrash', share, {
    stalls_per_request: stalls,
    usual_stalls_per_request: usual,
    stall_share_of_pace: share,
  })
}

/** First tokens are late, paces are not the whole of it. */
function lateFirsts(seen: Comparison, clause: MovedClause): Found {
  const { now, base } = seen
  const [n, u] = [now.counts, base.usual.counts]
  const queue = seen.queueShare
  if (queue > 0.3) {
    return found('router_queue', queue, {
      queue_share_of_excess: queue,
      queue_ms: n.queueMs / n.firsts,
      late_in_queue: now.lateInQueue,
    })
  }
  if (seen.prompts < LONGER_PROMPTS) {
    const behind = n.lateBehindLong / n.late
    const [long, usual] = [n.dispatchedLong / n.dispatched, u.dispatchedLong / u.dispatched]
    // More requests alone bring more long ones, too.
    if (behind > 0.5 && long > 1.5 * usual) {
      return found('head_of_line', behind, {
        late_behind_long_share: behind,
        long_share: long,
        usual_long_share: usual,
        behind_long_ms: n.behindLongMs / n.behindLong,
      })
    }
  }
  // What a replica has to prefill is a product: requests, tokens of a prompt, share of it that is not cached, and
  // the time of one token. Logarithms share the excess out between them.
  const parts: readonly (readonly [Cause, number])[] = [
    ['prompt_shift', Math.log(Math.max(1, seen.meanPrompt))],
    ['cache_loss', Math.log(Math.max(1, seen.uncached))],
    ['prefill_capacity', Math.log(Math.max(1, seen.demand))],
    ['regression', Math.log(Math.max(1, seen.pace))],
  ]
  const sum = parts.reduce((total, [, part]) => total + part, 0)
  const [cause, most] = parts.reduce((best, one) => (one[1] > best[1] ? one : best))
  const evidence = {
    queue_share_of_excess: queue,
    mean_prompt_ratio: seen.meanPrompt,
    prompt_p90_ratio: seen.prompts,
    hit_share: seen.hits,
    usual_hit_share: seen.usualHits,
    demand_per_replica_ratio: seen.demand,
    line_tokens_ratio: ratio(n.lineTokens / n.firsts, u.lineTokens / u.firsts),
    ...(n.waitingReadings > 0 && { engine_waiting: n.waiting / n.waitingReadings }),
  }
  if (clause === 'both' && most < 0.2) return slowPace(seen)
  // A burst inside of the minute leaves the mean demand as it is; the line of prompts tells of it.
  if (most < 0.1) {
    const lined = ratio(n.lineTokens / n.firsts, u.lineTokens / u.firsts)
    return lined > 1.5
      ? found('prefill_capacity', 1 - 1 / lined, evidence)
      : found('unexplained', 0, evidence)
  }
  return found(cause, most / sum, evidence)
}

/** Tokens come too slowly: of each one's time, which part grew. */
function slowPace(seen: Comparison): Found {
  const { batchShare, prefillShare, now, base } = seen
  const [n, u] = [now.counts, base.usual.counts]
  const lift = ratio(n.spikesBesideBig / n.besideBig, n.spikesBesideNone / n.besideNone)
  const evidence = {
    batch_share_of_excess: batchShare,
    prefill_share_of_excess: prefillShare,
    stall_share_of_excess: seen.stallShare,
    streams_ratio: seen.streams,
    prefill_share_of_time: seen.rho,
    spike_lift_beside_big_prompts: lift,
    beside_big_ratio: ratio(
      n.besideBig / (n.besideBig + n.besideNone),
      u.besideBig / (u.besideBig + u.besideNone),
    ),
  }
  if (Math.max(batchShare, prefillShare) < 0.3) return found('unexplained', 0, evidence)
  return prefillShare > batchShare
    ? found('prefill_interference', prefillShare, evidence)
    : found('batch_pressure', batchShare, evidence)
}
