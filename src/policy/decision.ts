/** What goes in and out of the policy's door besides requests: decisions, failures and endings, as data. */
import type { PoolId, ReplicaId, Ticket } from '../request.js'
import type { Progress } from '../slo/latency.js'
import type { ClauseResult, Judgement } from '../slo/verdict.js'
import type { Ms } from '../time.js'

export type DispatchReason = 'home' | 'spill' | 'queued' | 'reroute'

/**
 * no_headroom     every replica is at its limit, and the class does not wait (or its queue is full)
 * infeasible      the deadline the client sent can no longer be met
 * queue_timeout   waited as long as its class, or its client's SDK, allows
 * quota           its key is over its own share
 * no_replica      none healthy
 */
export type ShedReason = 'no_headroom' | 'infeasible' | 'queue_timeout' | 'quota' | 'no_replica'

/**
 * unknown_model      no pool that its class may use serves the model
 * class_not_allowed  the key may not ask for that class
 */
export type RefuseReason = 'unknown_model' | 'class_not_allowed'

/**
 * `shed` and `refuse` close the ticket and bring its judgement; a dispatched or queued ticket is closed by
 * `Policy.finish`. `clause`, `ejected` and `restored` are news, for counters and the log.
 */
export type Decision =
  | { kind: 'dispatch'; ticket: Ticket; pool: PoolId; replica: ReplicaId; why: DispatchReason }
  | { kind: 'queue'; ticket: Ticket; giveUpAt: Ms }
  | { kind: 'shed'; ticket: Ticket; reason: ShedReason; retryAfterMs: Ms; judgement: Judgement }
  | { kind: 'refuse'; ticket: Ticket; reason: RefuseReason; judgement: Judgement }
  | { kind: 'clause'; result: ClauseResult }
  | { kind: 'ejected'; replica: ReplicaId; retryAt: Ms; why: string }
  | { kind: 'restored'; replica: ReplicaId }

/**
 * How one attempt on a replica failed before the commit.
 * refused       no connection: nothing was sent
 * reset         the connection broke after it stood
 * status        an answer with status >= 500
 * busy          429: the replica is full, and healthy
 * stream_error  an error event in a 200 stream
 * head_too_large the head of its answer is over `limits.headers`: the router's limit, no fault of its health
 * not_an_answer a 200 that is neither JSON nor events
 * first_token   the first-token clock ran out
 */
export interface Failure {
  readonly kind:
    | 'refused'
    | 'reset'
    | 'status'
    | 'busy'
    | 'stream_error'
    | 'not_an_answer'
    | 'head_too_large'
    | 'first_token'
  /** For the log and for health's reason, in a few words, without addresses. */
  readonly detail: string
  /** Of `busy`: how long the replica asked to be left alone. */
  readonly retryAfterMs?: Ms
}

/**
 * How a dispatched or queued request ended. `progress` is undefined when no answer began.
 * upstreamError   failed before the commit, with no other replica to take it, or by an error event after it
 * truncated       the stream broke after the commit
 * timeout         one of the five clocks ran out
 * clientLeft      the client closed its connection
 * clientError     the upstream answered 4xx (not 401, 403, 429): the request's own fault
 */
export interface Ending {
  readonly kind: 'complete' | 'upstreamError' | 'truncated' | 'timeout' | 'clientLeft' | 'clientError'
  readonly progress: Progress | undefined
  /** How an attempt that broke after the commit broke: teaches health. Before it, `Policy.failed` was told. */
  readonly failure?: Failure
}
