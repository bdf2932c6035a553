/** One request of a simulated fleet, from its sender to its end: what it asks for, and what it got. */
import type { ClassId, ReplicaId, Ticket } from '../request.js'
import type { Progress } from '../slo/latency.js'
import { TPOT_JITTER_MS, TPOT_MIN_TOKENS, type TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'
import type { EngineRequest, Sequence } from './sequence.js'

export interface Arrival {
  readonly at: Ms
  readonly cls: ClassId
  /** At least 1, like the output. */
  readonly promptTokens: number
  readonly outputTokens: number
  /** See `EngineRequest.blockHashes`; the policy sees them too. */
  readonly blockHashes?: ArrayLike<number>
  /** The request's own deadline, from its arrival. */
  readonly deadlineMs?: Ms
  /** Attempts its client made before. */
  readonly retry?: number
  /** Its client closes the connection so long after it came, unless the answer is whole by then. */
  readonly leavesAfterMs?: Ms
  /** Whose it is, in the words of the traffic that made it. */
  readonly sender?: unknown
}

/** `shed` and `refused` by the policy; the rest as in `Ending`. */
export type JobEnd =
  | 'complete'
  | 'shed'
  | 'refused'
  | 'upstreamError'
  | 'truncated'
  | 'timeout'
  | 'clientLeft'

export class Job implements EngineRequest {
  readonly arrival: Arrival
  readonly promptTokens: number
  readonly outputTokens: number
  readonly blockHashes: ArrayLike<number>
  /** undefined only until the policy has seen it. */
  ticket: Ticket | undefined
  replica: ReplicaId | undefined
  sequence: Sequence<Job> | undefined
  end: JobEnd | undefined
  endedAt: Ms | undefined
  dispatchedAt: Ms | undefined
  /** The policy has heard of its first output. */
  begun = false
  /** Met its class's promise, by the simulator's own reckoning. */
  good = false
  /** In the denominator of goodput. */
  offered = true
  /** Of a shed one. */
  retryAfterMs: Ms | undefined

  constructor(arrival: Arrival) {
    this.arrival = arrival
    this.promptTokens = arrival.promptTokens
    this.outputTokens = arrival.outputTokens
    this.blockHashes = arrival.blockHashes ?? NONE
  }

  get firstTokenAt(): Ms | undefined {
    return this.sequence?.firstTokenAt
  }

  /** Output tokens that came. */
  get tokens(): number {
    return this.sequence?.generated ?? 0
  }

  get ttftMs(): Ms | undefined {
    const first = this.firstTokenAt
    return first === undefined ? undefined : first - this.arrival.at
  }

  /** undefined below 2 tokens. */
  get tpotMs(): Ms | undefined {
    const { sequence } = this
    if (sequence === undefined || sequence.generated < 2) return undefined
    return this.spanMs / (sequence.generated - 1)
  }

  /** From the first to the last token. */
  get spanMs(): Ms {
    const { sequence } = this
    if (sequence?.firstTokenAt === undefined || sequence.lastTokenAt === undefined) return 0
    return sequence.lastTokenAt - sequence.firstTokenAt
  }

  /** What a router saw of its answer; undefined where none began. */
  progress(): Progress | undefined {
    const { sequence } = this
    if (sequence?.firstTokenAt === undefined) return undefined
    const whole = sequence.generated === sequence.outputTokens
    return {
      streamed: true,
      firstEvent: sequence.firstTokenAt,
      firstOutput: sequence.firstTokenAt,
      firstVisible: sequence.firstTokenAt,
      lastOutput: sequence.lastTokenAt,
      marks: sequence.generated,
      longestChoiceMarks: sequence.generated,
      longestGap: undefined,
      // Engines tell usage with the last event only.
      usage: whole
        ? {
            promptTokens: this.promptTokens,
            completionTokens: sequence.generated,
            cachedTokens: sequence.cachedTokens,
            reasoningTokens: undefined,
          }
        : undefined,
      throttled: false,
    }
  }

  /** Closes it, and reckons what it counts as: from its own times alone, whatever the policy says. */
  close(end: JobEnd, now: Ms, traffic: TrafficClass): void {
    this.end = end
    this.endedAt = now
    const left = end === 'clientLeft'
    const verdict = end === 'complete' || left ? this.#kept(traffic, now, left) : false
    this.good = verdict === true
    this.offered = verdict !== undefined
  }

  /** Whether its class's promise was kept; undefined: its client left before that could be said. */
  #kept(traffic: TrafficClass, now: Ms, left: boolean): boolean | undefined {
    const { clauses } = traffic.target
    const tookMs = now - this.arrival.at
    if (clauses.kind === 'deadline') {
      if (tookMs > (this.arrival.deadlineMs ?? clauses.deadlineMs)) return false
      if (left) return undefined
      return this.tokens * 1000 >= clauses.minTokensPerSecond * tookMs
    }
    const { ttftMs, tokens } = this
    if (ttftMs === undefined) return tookMs > clauses.ttftMs ? false : undefined
    if (left && tokens < TPOT_MIN_TOKENS) return undefined
    if (ttftMs > clauses.ttftMs) return false
    if (tokens >= TPOT_MIN_TOKENS) return (this.tpotMs ?? 0) <= clauses.tpotMs
    return this.spanMs <= (tokens - 1) * clauses.tpotMs + TPOT_JITTER_MS
  }
}

const NONE: ArrayLike<number> = []
