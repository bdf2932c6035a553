/** The replicas that serve one model under one SLO: as configured, and as they stand. */
import type { PoolId, ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import { Replica } from './replica.js'

export interface ReplicaSpec {
  readonly id: ReplicaId
  readonly pool: PoolId
  /** host:port, the metric label. */
  readonly name: string
  /** No longer in the config: it ends what it has, and takes nothing new. */
  readonly retired?: true
}

export interface PoolSpec {
  readonly id: PoolId
  readonly name: string
  /** The model it serves; undefined (`"*"` in the config) takes any. */
  readonly model: string | undefined
  readonly replicas: readonly ReplicaSpec[]
  /** Requests in flight on one replica, at most, until its speed is known. */
  readonly maxInFlight: number
  readonly gpusPerReplica: number
  /** Tokens of context that one replica's memory holds; undefined: not known. */
  readonly kvTokens?: number | undefined
  /** No longer in the config. */
  readonly retired?: true
}

/** Share of the newest answer in the mean service time, and the mean before there is one. */
const NEWEST = 0.05
const SERVICE_MS: Ms = 1_000
/** Long answers that fill every slot would make a chat wait for one of them to end. */
const KEPT_SHARE = 0.25

export class Pool {
  #spec: PoolSpec
  #replicas: readonly Replica[] = []
  #keptFree = 0
  #serviceMs: Ms | undefined

  /** @param shared  classes that wait and classes that do not both use it */
  constructor(spec: PoolSpec, shared = false) {
    this.#spec = spec
    this.reconfigure(spec, shared)
  }

  get spec(): PoolSpec {
    return this.#spec
  }

  /** Those in the config. */
  get replicas(): readonly Replica[] {
    return this.#replicas
  }

  /** Slots of each replica that requests which can wait leave free for those that cannot. */
  get keptFree(): number {
    return this.#keptFree
  }

  /** Takes a new spec of the same pool; a replica that stays keeps its counts and its health. */
  reconfigure(spec: PoolSpec, shared: boolean): void {
    const kept = new Map(this.#replicas.map(replica => [replica.spec.id, replica]))
    this.#spec = spec
    this.#keptFree = shared ? Math.floor(spec.maxInFlight * KEPT_SHARE) : 0
    this.#replicas = spec.replicas.map(one => {
      const replica = kept.get(one.id) ?? new Replica(one, spec.maxInFlight)
      replica.limit = spec.maxInFlight
      return replica
    })
  }

  serves(model: string): boolean {
    return this.spec.model === undefined || this.spec.model === model
  }

  get up(): number {
    let count = 0
    for (const replica of this.replicas) if (replica.health.is === 'up') count++
    return count
  }

  /** One more may be ejected: at most half of the pool is out at a time, so a lone replica never is. */
  get mayEject(): boolean {
    return this.replicas.length - this.up < Math.floor(this.replicas.length / 2)
  }

  /** Slots that come free in a millisecond when all are taken, of one replica at least. */
  get slotsPerMs(): number {
    return (Math.max(1, this.up) * this.spec.maxInFlight) / (this.#serviceMs ?? SERVICE_MS)
  }

  /** Learns from one whole answer. @param tookMs  from dispatch to end */
  answered(tookMs: Ms): void {
    const mean = this.#serviceMs ?? tookMs
    this.#serviceMs = Math.max(1, mean + NEWEST * (tookMs - mean))
  }
}
