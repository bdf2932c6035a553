/** Which replica answered a session last, and so has its context: for requests whose prompts tell nothing of what they share. */
import { LRUCache } from 'lru-cache'
import type { ReplicaId } from '../request.js'

/** Sessions remembered: about 20 MB. Those that never come back leave by age of use. */
const SESSIONS_MAX = 100_000

interface Bound {
  replica: ReplicaId
  /** Its prompt and answer: what a next turn begins with. */
  tokens: number
}

/**
 * A binding is stored after a whole answer only, and names what is probably cached where; it is no order. A turn whose
 * replica left, is down or has no headroom goes elsewhere in the same request, and is bound there when it is answered.
 */
export class Sessions {
  readonly #bound = new LRUCache<string, Bound>({ max: SESSIONS_MAX })

  get size(): number {
    return this.#bound.size
  }

  /** A turn of the session was answered whole. */
  answered(session: string, replica: ReplicaId, tokens: number): void {
    const known = this.#bound.get(session)
    if (known === undefined) this.#bound.set(session, { replica, tokens })
    else {
      known.replica = replica
      known.tokens = tokens
    }
  }

  /** undefined: it is new, or forgotten. */
  of(session: string): Readonly<Bound> | undefined {
    return this.#bound.get(session)
  }
}
