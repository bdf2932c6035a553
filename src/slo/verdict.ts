/** Which clauses one request met, and the one verdict it counts as. */
import type { ClassId, PoolId } from '../request.js'
import type { Ms } from '../time.js'
import { type Progress, tpotMs } from './latency.js'
import { type SloName, TPOT_JITTER_MS, TPOT_MIN_TOKENS, type TrafficClass } from './slo.js'

export const VERDICTS = [
  'good',
  'ttft_miss',
  'tpot_miss',
  'both_miss',
  'deadline_miss',
  'shed',
  'upstream_error',
  'truncated',
  'timeout',
  'client_error',
  'client_left',
  'unmeasured',
] as const
export type Verdict = (typeof VERDICTS)[number]

export type ClauseName = 'ttft' | 'tpot' | 'joint' | 'deadline'

/** One clause of one SLO, decided for one request. Each is reported once a request at most. */
export interface ClauseResult {
  readonly cls: ClassId
  /** undefined: no replica was chosen yet. */
  readonly pool: PoolId | undefined
  readonly slo: SloName
  readonly clause: ClauseName
  readonly met: boolean
}

/** All there is to count of one request, once, at its end. */
export interface Judgement {
  readonly verdict: Verdict
  readonly cls: ClassId | undefined
  readonly pool: PoolId | undefined
  /** In the denominator of goodput: false for client_error, client_left, unmeasured and sheds for quota. */
  readonly offered: boolean
  /** Clauses decided now; those decided earlier (a bound that passed) were reported then. */
  readonly clauses: readonly ClauseResult[]
  /** Body complete to first output. undefined: not streamed, or no output came. */
  readonly ttftMs: Ms | undefined
  /** First dispatch's upstream part of TTFT: from the last dispatch to first output. */
  readonly upstreamTtftMs: Ms | undefined
  /** Body complete to the (last) dispatch; undefined when never dispatched. */
  readonly queueMs: Ms | undefined
  /** undefined below 2 tokens, when throttled by the client, or when not streamed. */
  readonly tpotMs: Ms | undefined
  /** Arrival to last output; undefined when there was none. */
  readonly e2eMs: Ms | undefined
  readonly longestGapMs: Ms | undefined
  /** From usage, else estimated; undefined when nothing could be counted. */
  readonly outputTokens: number | undefined
  readonly inputTokens: number | undefined
  /** Of the input tokens, those the upstream had in its cache; undefined when not told. */
  readonly cachedTokens?: number | undefined
  /** Output events of a stream. */
  readonly marks?: number | undefined
  /** The output count is an estimate: the upstream sent no usage. */
  readonly estimated: boolean
  /** `clauseBit`s of what was reported before the end. */
  readonly reported?: number
}

/** How a request left Weir: the kinds of `Ending`, and the refusal under load. */
export type Outcome =
  | 'complete'
  | 'upstreamError'
  | 'truncated'
  | 'timeout'
  | 'clientLeft'
  | 'clientError'
  | 'shed'

/** What a judge needs to know of a request besides how it ended. */
export interface Served {
  readonly traffic: TrafficClass
  /** Of the last dispatch. */
  readonly pool: PoolId | undefined
  /** The client asked for a stream. */
  readonly stream: boolean
  /** Estimated, for answers without usage. */
  readonly promptTokens: number
  readonly arrivedAt: Ms
  readonly bodyAt: Ms
  /** The last dispatch. */
  readonly dispatchedAt: Ms | undefined
  /** From arrival: the request's own, clamped, else the class's. Not read in a class of streams. */
  readonly deadlineMs: Ms
  /** `clauseBit`s of what was reported before. */
  readonly reported: number
}

const BITS = { ttft: 1, tpot: 2, joint: 4, deadline: 8 } as const
const SLOS = ['target', 'guard'] as const
const OUTPUTLESS = { outputTokens: undefined, choiceTokens: undefined, estimated: false } as const
const EXCLUDED: ReadonlySet<Verdict> = new Set(['client_error', 'client_left', 'unmeasured'])

/** The bit that stands for one clause of one SLO in `Served.reported`. */
export function clauseBit(slo: SloName, clause: ClauseName): number {
  return slo === 'target' ? BITS[clause] : BITS[clause] << 4
}

/** The clause that time alone can break, whatever comes later. */
export function earlyClause(traffic: TrafficClass): 'ttft' | 'deadline' {
  return traffic.target.clauses.kind === 'stream' ? 'ttft' : 'deadline'
}

/**
 * Last moment at which the early clause is still met.
 * A request's own deadline is the target's; the guard's is as many times longer as the class has it.
 * @returns undefined where the clause is not judged: no stream was asked for in a class of streams
 */
export function boundAt(served: Served, slo: SloName): Ms | undefined {
  const bounds = served.traffic[slo].clauses
  if (bounds.kind === 'stream') return served.stream ? served.bodyAt + bounds.ttftMs : undefined
  const target = served.traffic.target.clauses
  const scale = target.kind === 'deadline' ? bounds.deadlineMs / target.deadlineMs : 1
  return served.arrivedAt + served.deadlineMs * scale
}

/**
 * Early clauses decided at `now` and not reported before: missed where the bound has passed, and TTFT met where it
 * has not. A deadline is met at the end only.
 * @param firstToken  it comes at `now`
 */
export function earlyResults(served: Served, now: Ms, firstToken: boolean): ClauseResult[] {
  const clause = earlyClause(served.traffic)
  const results: ClauseResult[] = []
  for (const slo of SLOS) {
    const bound = boundAt(served, slo)
    if (bound === undefined || (served.reported & clauseBit(slo, clause)) !== 0) continue
    if (now > bound) results.push(result(served, slo, clause, false))
    else if (firstToken && clause === 'ttft') results.push(result(served, slo, clause, true))
  }
  return results
}

/**
 * Judges one request at its end.
 *
 * - Only a stream in a class of streams is held to TTFT and TPOT; any other answer there is `unmeasured`.
 * - A shed, upstream error, truncation or timeout misses `joint` (streams) or `deadline`, for target and guard.
 * - A client that left is judged if its bound had passed, or on what it got if that was 8 tokens or more;
 *   else it is excluded. Each SLO goes by its own bound here.
 * - What is excluded counts in no clause now; a bound that had passed before was counted then, and stays.
 * @param progress       how far the last answer came; undefined when none began
 * @param tokensPerMark  of the replica that answered, for answers without usage
 * @param end            ms on the policy clock; a deadline is met if the end is not past it
 * Source: algorithms 1.2.
 */
export function judge(
  served: Served,
  outcome: Outcome,
  progress: Progress | undefined,
  tokensPerMark: number,
  end: Ms,
): Judgement {
  const answer = measure(served, progress, tokensPerMark)
  const clauses: ClauseResult[] = []
  let verdict: Verdict = 'unmeasured'
  for (const slo of SLOS) {
    const marks = marksOf(served, slo, outcome, answer, end)
    for (const clause of ['ttft', 'tpot', 'joint', 'deadline'] as const) {
      const met = marks[clause]
      if (met === undefined || (served.reported & clauseBit(slo, clause)) !== 0) continue
      clauses.push(result(served, slo, clause, met))
    }
    if (slo === 'target') verdict = verdictOf(outcome, marks)
  }
  return {
    verdict,
    cls: served.traffic.id,
    pool: served.pool,
    offered: !EXCLUDED.has(verdict),
    clauses,
    ttftMs: answer.ttftMs,
    upstreamTtftMs: answer.upstreamTtftMs,
    queueMs: served.dispatchedAt === undefined ? undefined : served.dispatchedAt - served.bodyAt,
    tpotMs: answer.throttled ? undefined : answer.tpotMs,
    e2eMs: answer.e2eMs,
    longestGapMs: answer.throttled ? undefined : progress?.longestGap,
    outputTokens: answer.outputTokens,
    inputTokens: progress && (progress.usage?.promptTokens ?? served.promptTokens),
    cachedTokens: progress?.usage?.cachedTokens,
    marks: progress?.streamed ? progress.marks : undefined,
    estimated: answer.estimated,
    reported: served.reported,
  }
}

/** The judgement of a request that was refused for what it asks, before anything was done for it. */
export function refusal(cls: ClassId | undefined): Judgement {
  return {
    verdict: 'client_error',
    cls,
    pool: undefined,
    offered: false,
    clauses: [],
    ttftMs: undefined,
    upstreamTtftMs: undefined,
    queueMs: undefined,
    tpotMs: undefined,
    e2eMs: undefined,
    longestGapMs: undefined,
    outputTokens: undefined,
    inputTokens: undefined,
    estimated: false,
  }
}

/** What was met under one SLO; a clause that is absent was not decided. */
type Marks = { readonly [clause in ClauseName]?: boolean | undefined }

interface Answer {
  /** First output of a stream. */
  readonly first: Ms | undefined
  readonly ttftMs: Ms | undefined
  readonly upstreamTtftMs: Ms | undefined
  readonly e2eMs: Ms | undefined
  /** First output to last. */
  readonly spanMs: Ms
  readonly tpotMs: Ms | undefined
  readonly outputTokens: number | undefined
  /** Of the longest choice, which is what one reader waits for. */
  readonly choiceTokens: number | undefined
  readonly estimated: boolean
  readonly throttled: boolean
}

function measure(served: Served, progress: Progress | undefined, tokensPerMark: number): Answer {
  const first = progress?.streamed === true && served.stream ? progress.firstOutput : undefined
  const last = progress?.lastOutput
  const counted = progress === undefined ? OUTPUTLESS : countTokens(progress, tokensPerMark)
  const paced = first !== undefined && last !== undefined && counted.choiceTokens !== undefined
  return {
    outputTokens: counted.outputTokens,
    choiceTokens: counted.choiceTokens,
    estimated: counted.estimated,
    first,
    ttftMs: first === undefined ? undefined : first - served.bodyAt,
    upstreamTtftMs:
      first === undefined || served.dispatchedAt === undefined ? undefined : first - served.dispatchedAt,
    e2eMs: last === undefined ? undefined : last - served.arrivedAt,
    spanMs: first === undefined || last === undefined ? 0 : last - first,
    tpotMs: paced ? tpotMs(first, last, counted.choiceTokens) : undefined,
    throttled: progress?.throttled === true,
  }
}

/**
 * Output tokens: as told by usage, else a stream's marks times what its replica puts into one.
 * With n > 1 usage counts all choices; the longest one has its share of the marks of them.
 */
function countTokens(progress: Progress, tokensPerMark: number) {
  const { marks, longestChoiceMarks } = progress
  const told = progress.usage?.completionTokens
  const trusted = told !== undefined && Number.isSafeInteger(told) && told >= (marks === 0 ? 0 : 1)
  if (!trusted && (!progress.streamed || marks === 0)) return OUTPUTLESS
  const outputTokens = trusted ? told : Math.max(1, Math.round(marks * tokensPerMark))
  const choiceTokens = marks === 0 ? outputTokens : (outputTokens * longestChoiceMarks) / marks
  return { outputTokens, choiceTokens, estimated: !trusted }
}

function marksOf(served: Served, slo: SloName, outcome: Outcome, answer: Answer, end: Ms): Marks {
  const { clauses } = served.traffic[slo]
  const bound = boundAt(served, slo)
  if (bound === undefined) return {}
  const failed = outcome !== 'complete' && outcome !== 'clientLeft' && outcome !== 'clientError'

  if (clauses.kind === 'deadline') {
    if (failed || end > bound) return { deadline: false }
    if (outcome !== 'complete') return {}
    return { deadline: fastEnough(answer, clauses.minTokensPerSecond, end - served.arrivedAt) }
  }

  const { first, choiceTokens } = answer
  const tooLate = end > bound ? false : undefined
  const inTime = first === undefined ? tooLate : first <= bound
  if (failed) return { ttft: inTime, joint: false }
  if (outcome === 'clientError') return { ttft: inTime }
  if (first === undefined && outcome === 'clientLeft')
    return inTime === false ? { ttft: false, joint: false } : {}
  const enough = outcome === 'complete' ? 1 : TPOT_MIN_TOKENS
  if (first === undefined || choiceTokens === undefined || choiceTokens < enough) return { ttft: inTime }
  const tpot = pacedWell(answer, choiceTokens, clauses.tpotMs)
  return { ttft: inTime, tpot, joint: inTime === true && tpot }
}

/**
 * The TPOT clause. One token has no pace, and a client that reads too slowly makes its own: both are met.
 * A few tokens may come bunched by a delay of one event, which says nothing of the pace: they get an allowance.
 */
function pacedWell(answer: Answer, tokens: number, bound: Ms): boolean {
  if (answer.throttled || answer.tpotMs === undefined) return true
  if (tokens >= TPOT_MIN_TOKENS) return answer.tpotMs <= bound
  return answer.spanMs <= (tokens - 1) * bound + TPOT_JITTER_MS
}

/** The floor on output tokens per second of the whole request; undefined when they cannot be counted. */
function fastEnough(answer: Answer, minTokensPerSecond: number, tookMs: Ms): boolean | undefined {
  if (minTokensPerSecond <= 0) return true
  const { outputTokens } = answer
  return outputTokens === undefined ? undefined : outputTokens * 1000 >= minTokensPerSecond * tookMs
}

function verdictOf(outcome: Outcome, marks: Marks): Verdict {
  switch (outcome) {
    case 'shed':
      return 'shed'
    case 'upstreamError':
      return 'upstream_error'
    case 'truncated':
      return 'truncated'
    case 'timeout':
      return 'timeout'
    case 'clientError':
      return 'client_error'
    case 'complete':
    case 'clientLeft':
      if (marks.deadline !== undefined) return marks.deadline ? 'good' : 'deadline_miss'
      if (marks.joint === undefined) return outcome === 'complete' ? 'unmeasured' : 'client_left'
      if (marks.joint) return 'good'
      if (marks.ttft === false) return marks.tpot === false ? 'both_miss' : 'ttft_miss'
      return 'tpot_miss'
  }
}

function result(served: Served, slo: SloName, clause: ClauseName, met: boolean): ClauseResult {
  return { cls: served.traffic.id, pool: served.pool, slo, clause, met }
}
