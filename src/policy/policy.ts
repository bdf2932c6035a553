/** The front door of the decision core. The server and the simulator call this and nothing behind it. */
import type { PoolSpec, ReplicaSpec } from '../fleet/pool.js'
import type { Forecast } from '../predict/forecast.js'
import type { ClassId, PoolId, ReplicaId, RequestFacts, Ticket } from '../request.js'
import type { RouteSpec } from '../routing/route.js'
import type { ClassTotals } from '../slo/ledger.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms } from '../time.js'
import type { Decision, Ending, Failure } from './decision.js'

/** What a policy is built from: the frozen part of the config that it may know. */
export interface PolicySpec {
  readonly classes: readonly TrafficClass[]
  readonly pools: readonly PoolSpec[]
  /** Every replica of every pool, by id. */
  readonly replicas: readonly ReplicaSpec[]
  readonly routes: readonly RouteSpec[]
  /** Reroutes allowed over 10 s: `share` of the requests, never fewer than `floor`. */
  readonly retries: { readonly share: number; readonly floor: number }
  /** Least gain at which a request is taken, and how evenly groups are served, each 0 to 1; undefined: the core's own. */
  readonly admission?: { readonly theta: number; readonly fairness: number } | undefined
}

export interface Policy {
  /**
   * A request whose body is complete. The first decision is about this ticket (`dispatch`, `queue`, `shed` or
   * `refuse`); others may follow. Checking a limit and counting against it are one step.
   */
  arrive(facts: RequestFacts, now: Ms): { readonly ticket: Ticket; readonly decisions: readonly Decision[] }
  /** The first output of a dispatched ticket came. Called once. */
  firstToken(ticket: Ticket, now: Ms): readonly Decision[]
  /**
   * Further output events of it came, the last of them at `now`: what a policy with a model of the engine learns
   * from. Where several are told at once, nothing else happened on the replica since the first of them.
   */
  mark(ticket: Ticket, now: Ms, events: number): void
  /**
   * The attempt on its replica failed before the commit. `again` is where it goes now (`dispatch` or `queue`);
   * undefined: nowhere, so answer the client and call `finish`.
   */
  failed(
    ticket: Ticket,
    failure: Failure,
    now: Ms,
  ): { readonly again: Decision | undefined; readonly decisions: readonly Decision[] }
  /** Closes a dispatched or queued ticket, once; a second call throws. */
  finish(
    ticket: Ticket,
    ending: Ending,
    now: Ms,
  ): { readonly judgement: Judgement; readonly decisions: readonly Decision[] }
  /** Time passed: queue give-ups, bounds that passed, replicas due for a trial. */
  wake(now: Ms): readonly Decision[]
  /**
   * Follows a new config from here on. Ids keep their meaning; what is no longer wanted is `retired`, not missing.
   * Requests that are under way keep the promise they came under; those that wait do so under the new config.
   */
  reconfigure(spec: PolicySpec, now: Ms): readonly Decision[]
  /** When `wake` should be called next; undefined: not before something else happens. */
  readonly wakeAt: Ms | undefined
  /** What the gauges show: the very numbers the policy decides with. */
  state(now: Ms): PolicyState
  /** The model that it decides with, or that `watched` keeps beside it. */
  readonly forecast?: Forecast
}

export interface ReplicaState {
  readonly id: ReplicaId
  readonly pool: PoolId
  readonly up: boolean
  readonly inFlight: number
  /** Prompt tokens dispatched whose first output has not come. */
  readonly outstandingPrefillTokens: number
}

/** Whom the policy serves how well: see `admission.fairness`. */
export interface GroupService {
  readonly cls: ClassId
  readonly group: string
  /** Share admitted times the share of those that was good, 0 to 1; what came long ago fades. */
  readonly share: number
}

export interface PolicyState {
  /** Those in the config, and those that are no longer in it and still have something in flight. */
  readonly replicas: readonly ReplicaState[]
  readonly queues: readonly { readonly cls: ClassId; readonly depth: number }[]
  /** Tickets not closed yet. */
  readonly open: number
  /** Arrivals and verdicts since the start: one row a class, then one for requests refused before they had a class. */
  readonly totals: readonly ClassTotals[]
  /** How groups of arrivals are served, where the rule weighs them; without those of which too few came to say. */
  readonly groups?: readonly GroupService[]
  /** What the rule behind the door decides with, by name; absent: nothing but the above. */
  readonly rule?: Readonly<Record<string, number>>
}
