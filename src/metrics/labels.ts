/** Ids to label values. All come from the config or a closed list: no request can make a new one. */
import type { PolicySpec } from '../policy/policy.js'
import type { ClassId, PoolId, ReplicaId, Ticket } from '../request.js'

/** What labels are made of. */
export type Labelled = Pick<PolicySpec, 'classes' | 'pools' | 'replicas' | 'routes'>

export type ClassPool = {
  readonly class: string
  readonly pool: string
}

/** Where there is no class, pool or model. */
export const NONE = 'none'
/** Every model that the config does not name. */
const OTHER = 'other'

export class Labels {
  readonly #spec: Labelled
  readonly #models: ReadonlySet<string>
  /** By class id + 1 and pool id + 1; 0 stands for none. */
  readonly #classPool: readonly (readonly ClassPool[])[]

  constructor(spec: Labelled) {
    this.#spec = spec
    this.#models = namedModels(spec)
    const pools = [NONE, ...spec.pools.map(pool => pool.name)]
    this.#classPool = [NONE, ...spec.classes.map(cls => cls.name)].map(cls =>
      pools.map(pool => Object.freeze({ class: cls, pool })),
    )
  }

  /** @throws RangeError for an id that the config does not have */
  of(cls: ClassId | undefined, pool: PoolId | undefined): ClassPool {
    const labels = this.#classPool[cls === undefined ? 0 : cls + 1]?.[pool === undefined ? 0 : pool + 1]
    if (labels === undefined) throw new RangeError(`the config has no class ${cls} or no pool ${pool}`)
    return labels
  }

  class(cls: ClassId | undefined): string {
    return this.of(cls, undefined).class
  }

  pool(pool: PoolId | undefined): string {
    return this.of(undefined, pool).pool
  }

  /** @throws RangeError for an id that the config does not have */
  replica(id: ReplicaId): { pool: string; replica: string } {
    const replica = this.#spec.replicas[id]
    if (replica === undefined) throw new RangeError(`the config has no replica ${id}`)
    return { pool: this.pool(replica.pool), replica: replica.name }
  }

  model(asked: string): string {
    return this.#models.has(asked) ? asked : OTHER
  }

  /** The pool a request would go to if there were room: the first of its class that serves its model. */
  home(ticket: Ticket): string {
    if (ticket.cls === undefined) return NONE
    const home = this.#spec.classes[ticket.cls]?.pools.find(id => {
      const served = this.#spec.pools[id]?.model
      return served === undefined || served === ticket.model
    })
    return this.pool(home)
  }
}

/** What pools serve, and what routes rewrite to or name without a wildcard. */
function namedModels(spec: Labelled): ReadonlySet<string> {
  const models = new Set<string>()
  for (const { model } of spec.pools) if (model !== undefined) models.add(model)
  for (const { when, rewriteModel } of spec.routes) {
    if (rewriteModel !== undefined) models.add(rewriteModel)
    if (when.model !== undefined && !when.model.includes('*')) models.add(when.model)
  }
  return models
}
