/** What decides behind the door: a rule, and the desk it works at. */
import type { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { Forecast } from '../predict/forecast.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms, Rng } from '../time.js'
import type { Ending, Failure, ShedReason } from './decision.js'
import type { Open } from './open.js'
import type { GroupService, PolicySpec } from './policy.js'

/**
 * Decides where requests go, which wait, and which are shed. It is asked one thing at a time, at rising times, and
 * answers by acts of its `Desk`. What happens to requests is counted by the door: a rule keeps only what it decides
 * with, per ticket in `Open.data`.
 *
 * A rule that lets requests wait keeps its own queue of them. The door tells it who enters (`waits`) and who leaves by
 * no act of the rule (`left`); whom it dispatches or sheds itself, it takes out itself.
 */
export interface Rule {
  /** A newcomer. Ends in one act for it: dispatch, queue (where it may wait) or shed. Others may be acted on as well. */
  arrive(open: Open, now: Ms): void
  /**
   * An attempt failed, and may be sent once more: dispatch it to a replica that it may go to, queue it, or do nothing,
   * which gives it up. It must not be shed.
   * @param pools  of its lane; where it failed first
   */
  again(open: Open, pools: readonly Pool[], now: Ms): void
  /** Room may have appeared: one ended, a replica may be tried again, the config changed. Serves those who wait. */
  freed(now: Ms): void
  /** It waits from now on. The door has checked that it may, and until when (`open.place.giveUpAt`). */
  waits?(open: Open, now: Ms): void
  /** It waits no longer: its client left, its time is up, or the config has no place for it. */
  left?(open: Open, now: Ms): void
  /** When `wake` is due; undefined: never, as things stand. */
  readonly wakeAt?: Ms | undefined
  /** Called once when `wakeAt` has come, before anything else at that time or later; moves `wakeAt` on. */
  wake?(now: Ms): void
  /** Its first output came. Called before `open.firstTokenAt` is set and the replica's prefill count falls. */
  firstToken?(open: Open, replica: Replica, now: Ms): void
  /** Further output events of it came. The hot path: it allocates nothing. */
  mark?(open: Open, replica: Replica, now: Ms, events: number): void
  /** An attempt failed before the commit: it is no longer on the replica. `again` may follow. */
  failed?(open: Open, replica: Replica, failure: Failure, now: Ms): void
  /**
   * A request ended that the rule had dispatched or queued; `freed` follows.
   * @param replica  where it was; undefined: in the queue (`left` was called), or failed and not sent again
   */
  ended?(open: Open, replica: Replica | undefined, ending: Ending, judgement: Judgement, now: Ms): void
  /**
   * The desk shows a new config: pools, replicas and lanes. Forgets who waits: `waits` follows for each that still does,
   * in the order they came, and then `freed`.
   */
  reconfigure?(spec: PolicySpec, now: Ms): void
  /** The model that it decides with. */
  readonly forecast?: Forecast
  /** How groups of arrivals are served, where it weighs them. */
  groups?(): readonly GroupService[]
  /** Numbers that it decides with, for the gauges, by name. */
  state?(now: Ms): Readonly<Record<string, number>>
}

/** What a rule sees and may do. Every act is one decision of the call under way. */
export interface Desk {
  readonly rng: Rng
  /** By class id. */
  readonly classes: readonly TrafficClass[]
  /** By pool id. A pool's replicas are those in the config. */
  readonly pools: readonly Pool[]
  /** By replica id; those that retired are among them as long as the config knows their number. */
  readonly replicas: readonly Replica[]
  /** Sends one that is new, waits, or has failed. @throws Error when it is on a replica or closed */
  dispatch(open: Open, replica: Replica, now: Ms): void
  /** @returns false, and nothing is done, where its class does not wait, no more of it may, or its own time is up */
  queue(open: Open, now: Ms): boolean
  /**
   * Refuses a newcomer or one that waits.
   * @param retryAfterMs  undefined: by the rate at which slots of its pools come free
   */
  shed(open: Open, reason: ShedReason, now: Ms, retryAfterMs?: Ms): void
}
