/** Pools and replicas by id, as the config wants them: what stays keeps its counts and its health. */
import { Pool } from '../fleet/pool.js'
import type { Replica } from '../fleet/replica.js'
import type { PolicySpec } from './policy.js'

export class Pools {
  /** By pool id. */
  readonly all: Pool[] = []
  /** By replica id, those that retired among them. */
  readonly replicas: Replica[] = []

  follow(spec: PolicySpec): void {
    for (const pool of spec.pools) {
      const users = spec.classes.filter(({ pools, retired }) => !retired && pools.includes(pool.id))
      const waiting = users.filter(({ queue }) => queue !== undefined)
      const shared = waiting.length > 0 && waiting.length < users.length
      const known = this.all[pool.id]
      if (known === undefined) this.all[pool.id] = new Pool(pool, shared)
      else known.reconfigure(pool, shared)
    }
    for (const { replicas } of this.all) for (const one of replicas) this.replicas[one.spec.id] = one
  }

  /** Of a replica. */
  of({ spec }: Replica): Pool | undefined {
    return this.all[spec.pool]
  }
}
