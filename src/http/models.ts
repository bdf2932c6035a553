/** `/v1/models`: the union of what the pools serve and of the names that routes rewrite. */
import type { Resolved } from '../config/resolved.js'
import type { PoolId } from '../request.js'
import type { Clock, Ms } from '../time.js'

/** One entry of the list, as OpenAI's clients read it. */
export interface ModelEntry {
  readonly id: string
  readonly object: 'model'
  readonly created: number
  readonly owned_by: string
}

/** Asks a pool's replicas which models they have; rejects when none answers. */
export type AskModels = (pool: PoolId) => Promise<readonly string[]>

const KEEP_MS: Ms = 30_000

export class ModelList {
  private readonly asked = new Map<PoolId, { readonly at: Ms; readonly models: Promise<readonly string[]> }>()

  /** @param ask  used for pools that take any model (`model: "*"`), whose models only their replicas know */
  constructor(
    private config: Resolved,
    private readonly ask: AskModels,
    private readonly clock: Clock,
  ) {}

  reconfigure(config: Resolved): void {
    this.config = config
    this.asked.clear()
  }

  async entries(): Promise<readonly ModelEntry[]> {
    const { pools, routes } = this.config.policy
    const names = new Set<string>()
    for (const pool of pools) {
      if (pool.retired) continue
      if (pool.model !== undefined) names.add(pool.model)
      else for (const model of await this.askedModels(pool.id)) names.add(model)
    }
    for (const { when, rewriteModel } of routes) {
      if (rewriteModel !== undefined && when.model !== undefined && !when.model.includes('*'))
        names.add(when.model)
    }
    return [...names].map(id => ({ id, object: 'model', created: 0, owned_by: 'weir' }))
  }

  /** Kept for half a minute; a pool that cannot be asked adds nothing. */
  private askedModels(pool: PoolId): Promise<readonly string[]> {
    const now = this.clock.now()
    const kept = this.asked.get(pool)
    if (kept !== undefined && now - kept.at < KEEP_MS) return kept.models
    const models = this.ask(pool).catch(() => {
      this.asked.delete(pool)
      return []
    })
    this.asked.set(pool, { at: now, models })
    return models
  }
}
