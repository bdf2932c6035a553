/** Which replica keeps which response, so that what goes on from one finds its way back. */
import { LRUCache } from 'lru-cache'
import type { ReplicaId } from '../request.js'

/** Replicas keep responses in memory, and forget them too. */
const MOST = 100_000

export class ResponseTable {
  readonly #replicas = new LRUCache<string, ReplicaId>({ max: MOST })

  set(id: string, replica: ReplicaId): void {
    this.#replicas.set(id, replica)
  }

  /** undefined: never seen, or so long ago that it was forgotten. */
  get(id: string): ReplicaId | undefined {
    return this.#replicas.get(id)
  }
}
