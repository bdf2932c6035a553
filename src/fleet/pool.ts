/** The replicas that serve one model under one SLO, as configured. */
import type { PoolId, ReplicaId } from '../request.js'

export interface ReplicaSpec {
  readonly id: ReplicaId
  readonly pool: PoolId
  /** host:port, the metric label. */
  readonly name: string
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
}
