/** The config after loading: one frozen form with units resolved, in which nothing is looked up by string but names. */
import type { PolicySpec } from '../policy/policy.js'
import type { ClassId, PoolId, ReplicaId } from '../request.js'
import type { AutoscaleOptions } from '../slo/autoscale.js'
import type { SweptBudget } from '../slo/sweep.js'
import type { Ms } from '../time.js'

/** The five clocks. `undefined` is `off`. */
export interface Timeouts {
  readonly connectMs: Ms
  readonly firstTokenMs: Ms | undefined
  readonly stallMs: Ms | undefined
  readonly totalMs: Ms | undefined
}

/** Routes that a pool may allow, by what they are for; they are passed on unmeasured. */
export type Group = 'embeddings' | 'audio' | 'images' | 'files' | 'rerank' | 'tokenize' | 'realtime'

/** What the sockets need to know of a pool; what decides about it is in `policy.pools[id]`. */
export interface PoolWire {
  readonly id: PoolId
  readonly timeouts: Timeouts
  /** Weir's own credential for the replicas. */
  readonly apiKey: string | undefined
  /** Ask for `stream_options.include_usage` and take the added event out again. */
  readonly askUsage: boolean
  /** Hand the client's own credentials on. Only where the pool has no `apiKey`. */
  readonly passAuthorization: boolean
  /** Send the class's priority in place of the client's. */
  readonly sendPriority: boolean
  /** Top-level members of a body that are refused. */
  readonly refuseMembers: readonly string[]
  /** Groups of routes that are passed through to its replicas. */
  readonly allow: ReadonlySet<Group>
  /** Kind of server, as configured; all are spoken to alike. */
  readonly engine?: 'auto' | 'vllm' | 'sglang' | 'trtllm' | 'llamacpp' | 'openai'
}

export interface ReplicaWire {
  readonly id: ReplicaId
  readonly pool: PoolId
  /** scheme://host:port, no path. */
  readonly origin: string
  /** Path before `/v1`, without a slash at the end; usually ''. */
  readonly basePath: string
}

export interface KeyEntry {
  readonly label: string
  /** SHA-256 of the key; the key itself is not kept. */
  readonly digest: Uint8Array
  readonly classes: readonly ClassId[] | undefined
}

export interface Resolved {
  readonly listen: { readonly host: string; readonly port: number }
  readonly admin: { readonly host: string; readonly port: number; readonly token: string | undefined }
  /** undefined: anyone may call. */
  readonly keys: readonly KeyEntry[] | undefined
  /** Bytes, and the time in which a request's head and body must be here. */
  readonly limits: {
    readonly body: number
    readonly headers: number
    readonly event: number
    readonly headMs: Ms
    readonly bodyMs: Ms
  }
  /** By class id: when a silent stream commits; undefined is `never`. */
  readonly commitAfterMs: readonly (Ms | undefined)[]
  readonly overloadStatus: 503 | 429
  /** Where figures are kept over a restart; undefined: nowhere. */
  readonly stateDir: string | undefined
  /** Origins of pages that may read answers; `*` is any. */
  readonly cors: readonly string[]
  /** By pool id. */
  readonly pools: readonly PoolWire[]
  /** By replica id. */
  readonly replicas: readonly ReplicaWire[]
  /** What the wished number of replicas goes by. */
  readonly autoscale: AutoscaleOptions
  /** By pool name: what its sweep says it can promise. A pool without one is not in it. */
  readonly sweeps: ReadonlyMap<string, SweptBudget>
  /** Class name to id, for URL prefixes and `x-weir-class`. */
  readonly classIds: ReadonlyMap<string, ClassId>
  readonly policy: PolicySpec
}
