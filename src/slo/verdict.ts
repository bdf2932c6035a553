/** Which clauses one request met, and the one verdict it counts as. */
import type { ClassId, PoolId } from '../request.js'
import type { Ms } from '../time.js'
import type { SloName } from './slo.js'

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
  /** The output count is an estimate: the upstream sent no usage. */
  readonly estimated: boolean
}
