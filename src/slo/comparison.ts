/** The last minute of a pool beside what is usual for it, in the figures that causes are told apart by. */
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import type { Baseline } from './baseline.js'
import { type Counts, type PoolWindow, prefillLine, type StepLine, stepLine } from './pool-window.js'

export interface DiagnosisOptions {
  /** Share of requests that have to meet each clause, 0 to 1. */
  readonly objective: number
  /** Younger replicas are cold. Source: algorithms 5, the default of T_cold. */
  readonly coldStartMs?: Ms
  /** Offered work over what the pool can serve within its SLO, where that is known. */
  readonly demandRatio?: number | undefined
  /** Prompt tokens of the workload that the promise is made for, at p90. */
  readonly declaredPromptP90?: number | undefined
}

const COLD_START_MS: Ms = 180_000
/** A replica of which fewer quiet tokens came has no pace to tell. */
const PACE_TOKENS = 100
/** So with first tokens. */
const PACE_REQUESTS = 30

interface ReplicaPace {
  readonly replica: ReplicaId
  readonly counts: Counts
  /** Time of a quiet step over what it takes at this load when all is well. */
  readonly ratio: number
}

/** Now and usual, side by side, in the figures that the causes are told apart by. */
export class Comparison {
  readonly now: PoolWindow
  readonly base: Baseline
  readonly options: DiagnosisOptions
  readonly coldStartMs: Ms
  readonly paces: readonly ReplicaPace[]
  /** Of all replicas together. */
  readonly pace: number
  /** Time to first token over what it takes with such a line of prompts when all is well. */
  readonly prefillPace: number
  /** Requests to each replica in use. */
  readonly demand: number
  /** Streams at once on each replica in use. */
  readonly streams: number
  /** Mean time of a token. */
  readonly tpot: number
  /** p90 and mean of the prompts. */
  readonly prompts: number
  readonly meanPrompt: number
  readonly hits: number
  readonly usualHits: number
  /** Share of prompts that has to be computed. */
  readonly uncached: number
  /** Of the excess of TTFT, the time in Weir's queue. */
  readonly queueShare: number
  /** Of the excess of a token's time: what more streams and context take, what prefill does, and waits of over 1 s. */
  readonly batchShare: number
  readonly prefillShare: number
  readonly stallShare: number
  /** Share of the streams' time that prefill takes. */
  readonly rho: number

  constructor(now: PoolWindow, base: Baseline, options: DiagnosisOptions) {
    const { usual } = base
    const [n, u] = [now.counts, usual.counts]
    this.now = now
    this.base = base
    this.options = options
    this.coldStartMs = options.coldStartMs ?? COLD_START_MS
    const line = stepLine(base.all.counts)
    this.paces = line === undefined ? [] : pacesOf(now, base.all, line)
    this.pace = line === undefined ? 1 : (paceOf(n, line) ?? 1) / (paceOf(base.all.counts, line) ?? 1)
    const perReplica = ({ spanMs, replicasInUse }: PoolWindow, count: number): number =>
      count / spanMs / Math.max(1, replicasInUse)
    this.demand = ratio(perReplica(now, now.arrivals), perReplica(usual, usual.arrivals))
    this.streams = ratio(perReplica(now, n.streamMs), perReplica(usual, u.streamMs))
    this.tpot = ratio(tokenMs(n), tokenMs(u))
    this.prompts = ratio(now.promptP90 ?? 0, usual.promptP90 ?? 0)
    this.meanPrompt = ratio(n.promptTokens / n.firsts, u.promptTokens / u.firsts)
    this.hits = n.cacheTold > 0 ? n.cached / n.cacheTold : 0
    this.usualHits = u.cacheTold > 0 ? u.cached / u.cacheTold : 0
    this.uncached = n.cacheTold > 0 ? ratio(1 - this.hits, 1 - this.usualHits) : 1

    const queue = n.queueMs / n.firsts - u.queueMs / u.firsts
    const upstream = n.upstreamMs / n.firsts - u.upstreamMs / u.firsts
    const waiting = now.lateInQueue > 0 ? now.lateInQueue / (n.late + now.lateInQueue) : 0
    this.prefillPace = prefillPace(n, base.all.counts)
    this.queueShare = Math.max(waiting, share(queue, queue + Math.max(0, upstream)))

    const excess = tokenMs(n) - tokenMs(u)
    const [quiet, quietUsual] = [quietMs(n), quietMs(u)]
    const grown = line === undefined ? quiet - quietUsual : lineMs(n, line) - lineMs(u, line)
    this.batchShare = share(grown, excess)
    const stalled = stallMs(n) - stallMs(u)
    this.stallShare = share(stalled, excess)
    this.prefillShare = share(
      tokenMs(n) - quiet - stallMs(n) - (tokenMs(u) - quietUsual - stallMs(u)),
      excess,
    )
    this.rho = 1 - quiet / tokenMs(n)
  }
}

/** Each replica's pace over its own usual one, so that hardware that always was slower is not sick. */
function pacesOf(now: PoolWindow, usual: PoolWindow, line: StepLine): ReplicaPace[] {
  return now.replicas.flatMap(({ replica, counts }) => {
    const pace = paceOf(counts, line)
    if (pace === undefined) return []
    const before = usual.replicas.find(one => one.replica === replica)
    const own = (before && paceOf(before.counts, line)) ?? 1
    return [{ replica, counts, ratio: pace / own }]
  })
}

function prefillPace(now: Counts, usual: Counts): number {
  const line = prefillLine(usual)
  if (line === undefined || now.lines < PACE_REQUESTS) return 1
  return now.lineT / now.lines / (line.floorMs + (line.perTokensMs * now.lineW) / now.lines)
}

/** Time of a quiet step over what it takes by the line; undefined where too few came. */
export function paceOf(c: Counts, line: StepLine): number | undefined {
  return c.quietTokens < PACE_TOKENS ? undefined : quietMs(c) / lineMs(c, line)
}

/** What a quiet step takes by the line, at the streams and context there were. */
function lineMs(c: Counts, line: StepLine): Ms {
  const [d, x] = [c.quietStreams / c.quietTokens, c.quietContext / c.quietTokens / 1000]
  return line.floorMs + line.perStreamMs * d + line.perContextMs * x
}

/** Mean of the quiet steps. */
export function quietMs(c: Counts): Ms {
  return c.quietMs / c.quietTokens
}

function tokens(c: Counts): number {
  return c.quietTokens + c.mixedTokens + c.stallTokens
}

/** Mean time of a token, of all streams. */
export function tokenMs(c: Counts): Ms {
  return (c.quietMs + c.mixedMs + c.stallMs) / tokens(c)
}

/** What waits of over a second add to it. */
export function stallMs(c: Counts): Ms {
  return c.stallMs / tokens(c)
}

/** 1 where either side is unknown or nothing. */
export function ratio(now: number, usual: number): number {
  return now > 0 && usual > 0 && now < Infinity && usual < Infinity ? now / usual : 1
}

function share(part: number, excess: number): number {
  return part > 0 && excess > 0 ? Math.min(1, part / excess) : 0
}
