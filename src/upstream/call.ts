/** What a relay is: one request to one replica, its answer handed over as it comes. */
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'

/** One replica to connect to. */
export interface Endpoint {
  readonly id: ReplicaId
  /** scheme://host:port */
  readonly origin: string
  readonly basePath: string
  readonly connectMs: Ms
  /** No calls will come for it. */
  readonly retired: boolean
}

export interface CallRequest {
  /** POST unless given. */
  readonly method?: 'GET' | 'HEAD' | 'POST' | 'DELETE'
  /** Begins with a slash; the replica's base path is put before it. */
  readonly path: string
  /** Names and values, flat. Framing and host are the relay's. */
  readonly headers: readonly string[]
  /** In pieces that follow each other; undefined: none. They must stay as they are until the call is over. */
  readonly body: readonly Uint8Array[] | undefined
  /** May be sent again on a fresh socket when a reused one turns out dead before an answer byte. */
  readonly repeatable: boolean
}

/**
 * How a call broke.
 * refused  nothing was sent: no connection
 * connect_timeout  the same, for the connect clock ran out
 * head_too_large  the head of its answer is over `limits.headers`
 * reset    sent, and the connection broke, or what came is not HTTP
 */
export interface CallFailure {
  readonly kind: 'refused' | 'connect_timeout' | 'reset' | 'head_too_large'
  /** A few words for the log, without an address. */
  readonly detail: string
}

/**
 * Takes one answer. Order: `head`, `data` any number of times, then `end` or `broke` once; after `abort` nothing.
 * `broke` may come at any time. None of them is called before `Relay.call` has returned.
 */
export interface AnswerHandler {
  /** @param headers  names and values, flat, as they came; of a compressed body, as its plain form is */
  head(status: number, headers: readonly string[]): void
  /** The chunk's bytes are true only until this returns: what is kept is copied. Returns false to pause until `Call.resume`. */
  data(chunk: Buffer): boolean
  end(): void
  broke(failure: CallFailure): void
  /** A dead reused socket: the same request goes out again on a fresh one. */
  repeated(): void
}

export interface Call {
  /** Closes the connection at once. */
  abort(): void
  resume(): void
}

export interface Relay {
  call(replica: ReplicaId, request: CallRequest, handler: AnswerHandler): Call
  /**
   * Follows a new list of endpoints, by replica id. Calls to one that is gone, or that changed, go on; its idle
   * connections are closed.
   */
  reconfigure(endpoints: readonly Endpoint[]): void
  /** Closes all connections at once. */
  close(): Promise<void>
}
