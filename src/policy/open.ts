/** An open ticket: where its request is now, and what was promised to it. */
import { type Deadline, deadlineOf, patienceMs } from '../admission/deadline.js'
import type { Waiting } from '../admission/queue.js'
import type { Replica } from '../fleet/replica.js'
import type { ClassId, PoolId, ReplicaId, RequestFacts, Ticket } from '../request.js'
import type { TrafficClass } from '../slo/slo.js'
import {
  boundAt,
  type ClauseResult,
  clauseBit,
  earlyClause,
  earlyResults,
  type Served,
} from '../slo/verdict.js'
import type { Ms } from '../time.js'
import type { Lane } from './lane.js'

/** A bound is still met at its very moment, and missed this much later: a thousandth of a millisecond. */
const PAST_MS: Ms = 0.001

export type Place =
  | { readonly at: 'queue'; readonly since: Ms; readonly giveUpAt: Ms }
  | { readonly at: 'replica'; readonly replica: Replica; readonly since: Ms }
  /** Just created; or failed and not sent again, until its caller finishes it. */
  | { readonly at: 'nowhere' }
  | { readonly at: 'closed' }

/** When to look at a ticket again; without a ticket: when a replica is due for a trial. */
export interface Alarm {
  readonly at: Ms
  readonly ticket: Open | undefined
  gone: boolean
}

export class Open implements Ticket, Served {
  readonly id: number
  readonly facts: RequestFacts
  readonly model: string
  readonly route: number
  /** Changes only while it waits, when the config does. */
  lane: Lane
  readonly deadline: Deadline
  place: Place = { at: 'nowhere' }
  pool: PoolId | undefined
  dispatchedAt: Ms | undefined
  firstTokenAt: Ms | undefined
  alarm: Alarm | undefined
  reported = 0
  readonly tried: ReplicaId[] = []
  /** Its one counted reroute is spent. */
  rerouted = false
  /** In the queue, before it was sent and failed. */
  waitedMs: Ms = 0
  /** Where it stands in the rule's queue. */
  waiting: Waiting<Open> | undefined
  /** What the rule keeps of it; nobody else reads it. */
  data: unknown

  constructor(id: number, facts: RequestFacts, lane: Lane, model: string, route: number) {
    this.id = id
    this.facts = facts
    this.lane = lane
    this.model = model
    this.route = route
    this.deadline = deadlineOf(lane.traffic, facts)
  }

  /** The one replica that it can go to, where that is one of its class's. */
  get heldBy(): ReplicaId | undefined {
    const { heldBy } = this.facts
    if (heldBy === undefined) return undefined
    const known = this.lane.pools.some(pool => pool.replicas.some(({ spec }) => spec.id === heldBy))
    return known ? heldBy : undefined
  }

  get traffic(): TrafficClass {
    return this.lane.traffic
  }

  get cls(): ClassId {
    return this.lane.traffic.id
  }

  get stream(): boolean {
    return this.facts.stream
  }

  get promptTokens(): number {
    return this.facts.promptTokens
  }

  get arrivedAt(): Ms {
    return this.facts.arrivedAt
  }

  get bodyAt(): Ms {
    return this.facts.bodyAt
  }

  get deadlineMs(): Ms {
    return this.deadline.ms
  }

  get deadlineAt(): Ms {
    return this.facts.arrivedAt + this.deadline.ms
  }

  /** Prompt tokens that its replica still has to prefill. */
  get unfilledTokens(): number {
    return this.firstTokenAt === undefined ? this.facts.promptTokens : 0
  }

  /** Until when it may wait, if it starts to at `now`: its class, its deadline and a stream's library allow it. */
  giveUpAt(now: Ms, waitMs: Ms): Ms {
    const library = this.facts.stream ? (patienceMs(this.facts) ?? Infinity) : Infinity
    return Math.min(now + waitMs - this.waitedMs, this.deadlineAt, this.facts.arrivedAt + library)
  }

  /** Reports the early clauses that are decided at `now`, each once. */
  decided(now: Ms, firstToken: boolean): ClauseResult[] {
    if (!this.#awaitsEarly) return []
    const results = earlyResults(this, now, firstToken)
    for (const { slo, clause } of results) this.reported |= clauseBit(slo, clause)
    return results
  }

  /** When something is due for it by time alone; Infinity: nothing. */
  get dueAt(): Ms {
    let due = this.place.at === 'queue' ? this.place.giveUpAt : Infinity
    if (!this.#awaitsEarly) return due
    for (const slo of ['target', 'guard'] as const) {
      const bound = boundAt(this, slo)
      if (bound === undefined || (this.reported & clauseBit(slo, earlyClause(this.traffic))) !== 0) continue
      due = Math.min(due, bound + PAST_MS)
    }
    return due
  }

  /** A first token settles TTFT; a deadline waits for the end. */
  get #awaitsEarly(): boolean {
    return this.firstTokenAt === undefined || earlyClause(this.traffic) === 'deadline'
  }
}
