/** What is known of one request before anything is decided about it, and the handle it has afterwards. */
import type { Ms } from './time.js'

declare const idOf: unique symbol

/** Index into `PolicySpec.classes`. */
export type ClassId = number & { readonly [idOf]?: 'class' }
/** Index into `PolicySpec.pools`. */
export type PoolId = number & { readonly [idOf]?: 'pool' }
/** A replica's own number, unique over all pools: index into `PolicySpec.replicas`. */
export type ReplicaId = number & { readonly [idOf]?: 'replica' }

/** The API key that called, where keys are configured. */
export interface KeyFacts {
  /** Operator's name for the key; never the key. */
  readonly label: string
  /** Classes it may ask for by prefix or header; undefined: all. */
  readonly classes: readonly ClassId[] | undefined
}

export interface RequestFacts {
  /** Path as the client wrote it, without the query; what `routes[].when.path` matches. */
  readonly path: string
  /** Request headers by lower-case name, as Node gives them; what `routes[].when.header` matches. */
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  /** `model` of the body, before any rewrite. */
  readonly model: string
  readonly stream: boolean
  /** The body brings a non-empty `tools` or `functions`. */
  readonly tools: boolean
  /** `max_completion_tokens`, else `max_tokens`. */
  readonly maxTokens: number | undefined
  /** Estimated prompt tokens: at least 1. */
  readonly promptTokens: number
  /** Class the client named by URL prefix or `x-weir-class`. It wins over the routes' class. */
  readonly askedClass: ClassId | undefined
  readonly key: KeyFacts | undefined
  /** The request's own bounds (`x-weir-…-ms`), not clamped yet. */
  readonly own: OwnBounds
  /** How long the client's SDK waits for the head (`X-Stainless-Timeout`); undefined when it says nothing. */
  readonly patienceMs: Ms | undefined
  /** How many attempts the client made before (`X-Stainless-Retry-Count`). */
  readonly retry: number
  /** The same for the same caller with the same body; undefined: not known. For telling a retry from new demand. */
  readonly retryKey?: string | undefined
  /** The replica that keeps what this request goes on from (`previous_response_id`): no other can answer it. */
  readonly heldBy?: ReplicaId | undefined
  /**
   * One hash for each leading block of the prompt (about 16 tokens), each over the whole prompt up to its block's end:
   * equal hashes mean equal prefixes. Left out: nothing is known of what it shares with others.
   */
  readonly prefix?: ArrayLike<number> | undefined
  /** False where the body has `store` or `background` true: not repeated once sent. */
  readonly repeatable: boolean
  /** Request head parsed. */
  readonly arrivedAt: Ms
  /** Request body complete: where TTFT starts. */
  readonly bodyAt: Ms
}

export interface OwnBounds {
  readonly deadlineMs?: Ms
  readonly ttftMs?: Ms
  readonly tpotMs?: Ms
}

/** The policy's handle on one request, from `arrive` to `finish`. Opaque but for these. */
export interface Ticket {
  readonly id: number
  readonly facts: RequestFacts
  /** undefined only when the request was refused before it had a class. */
  readonly cls: ClassId | undefined
  /** Model to ask the upstream for: `facts.model`, or what the route rewrote it to. */
  readonly model: string
  /** Index of the route that matched, for `weir explain` and the log. */
  readonly route: number
}
