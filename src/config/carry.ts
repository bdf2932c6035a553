/** Gives a new config the ids of the running one, so that what is under way keeps its place when the config changes. */

import type { PoolSpec, ReplicaSpec } from '../fleet/pool.js'
import type { ClassId, PoolId, ReplicaId } from '../request.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Resolved } from './resolved.js'

/**
 * Renumbers a config after the one that runs: a class and a pool are the same by name, a replica by pool and URL.
 * What the new config no longer has stays in its tables, marked `retired`: ids are indexes, and none is used twice.
 * @returns a config in which every id of `running` means what it meant
 */
export function carryOver(next: Resolved, running: Resolved): Resolved {
  const classes = renumber(next.policy.classes, running.policy.classes, cls => cls.name)
  const pools = renumber(next.policy.pools, running.policy.pools, pool => pool.name)
  const replicas = renumber(next.replicas, running.replicas, ({ pool, origin, basePath }, config) => {
    return `${(config === 'next' ? next : running).policy.pools[pool]?.name} ${origin}${basePath}`
  })

  const classId = (id: ClassId): ClassId => classes.idOf[id]!
  const poolId = (id: PoolId): PoolId => pools.idOf[id]!
  const replicaId = (id: ReplicaId): ReplicaId => replicas.idOf[id]!
  const { policy } = next
  const specs = policy.replicas.map(one => ({ ...one, id: replicaId(one.id), pool: poolId(one.pool) }))

  return Object.freeze<Resolved>({
    ...next,
    keys: next.keys?.map(key => ({ ...key, classes: key.classes?.map(classId) })),
    commitAfterMs: classes.laid(next.commitAfterMs, running.commitAfterMs),
    pools: pools.laid(
      next.pools.map(pool => ({ ...pool, id: poolId(pool.id) })),
      running.pools,
    ),
    replicas: replicas.laid(
      next.replicas.map(one => ({ ...one, id: replicaId(one.id), pool: poolId(one.pool) })),
      running.replicas,
    ),
    classIds: new Map([...next.classIds].map(([name, id]) => [name, classId(id)])),
    policy: {
      ...policy,
      classes: classes.laid<TrafficClass>(
        policy.classes.map(cls => ({ ...cls, id: classId(cls.id), pools: cls.pools.map(poolId) })),
        running.policy.classes.map(cls => ({ ...cls, retired: true })),
      ),
      pools: pools.laid<PoolSpec>(
        policy.pools.map(pool => ({
          ...pool,
          id: poolId(pool.id),
          replicas: pool.replicas.map(({ id }) => specs.find(spec => spec.id === replicaId(id))!),
        })),
        running.policy.pools.map(pool => ({ ...pool, replicas: [], retired: true })),
      ),
      replicas: replicas.laid<ReplicaSpec>(
        specs,
        running.policy.replicas.map(one => ({ ...one, retired: true })),
      ),
      routes: policy.routes.map(route => ({ ...route, cls: classId(route.cls) })),
    },
  })
}

interface Numbering {
  /** Id in the next config to id in the carried one. */
  readonly idOf: readonly number[]
  /** The next config's rows at their new places, the running one's where nothing took theirs. */
  laid<T>(next: readonly T[], running: readonly T[]): readonly T[]
}

function renumber<T>(
  next: readonly T[],
  running: readonly T[],
  nameOf: (one: T, config: 'next' | 'running') => string,
): Numbering {
  const known = new Map(running.map((one, id) => [nameOf(one, 'running'), id]))
  let free = running.length
  const idOf = next.map(one => known.get(nameOf(one, 'next')) ?? free++)
  return {
    idOf,
    laid(rows, before) {
      const table = [...before]
      rows.forEach((row, id) => {
        table[idOf[id]!] = row
      })
      return Object.freeze(table)
    },
  }
}
