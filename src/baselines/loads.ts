/** What each replica has to do, as a router can count it: own requests only, exact, without the engine's word. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { ReplicaId } from '../request.js'

/** Of one replica. */
export interface Load {
  /** Requests whose first output has not come, and their prompt tokens that no cache has. */
  waiting: number
  prefillTokens: number
  /** Prompt and output tokens of all that is in flight. */
  contextTokens: number
}

/** Of one request on a replica, in `Open.data`. */
interface Share {
  prefillTokens: number
  contextTokens: number
}

export class Loads {
  readonly #loads: Load[] = []

  of(id: ReplicaId): Load {
    let load = this.#loads[id]
    if (load === undefined) {
      load = { waiting: 0, prefillTokens: 0, contextTokens: 0 }
      this.#loads[id] = load
    }
    return load
  }

  /** @param cachedTokens  of its prompt, expected in the replica's cache */
  sent(open: Open, { spec: { id } }: Replica, cachedTokens: number): void {
    const share: Share = { prefillTokens: open.promptTokens - cachedTokens, contextTokens: open.promptTokens }
    const load = this.of(id)
    open.data = share
    load.waiting++
    load.prefillTokens += share.prefillTokens
    load.contextTokens += share.contextTokens
  }

  firstToken(open: Open, replica: Replica): void {
    const load = this.of(replica.spec.id)
    const share = open.data as Share
    load.waiting--
    load.prefillTokens -= share.prefillTokens
    share.prefillTokens = 0
    this.mark(open, replica, 1)
  }

  mark(open: Open, { spec: { id }, tokensPerMark }: Replica, events: number): void {
    const tokens = events * tokensPerMark
    this.of(id).contextTokens += tokens
    const share = open.data as Share
    share.contextTokens += tokens
  }

  /** It is no longer on the replica. */
  gone(open: Open, { spec: { id } }: Replica): void {
    const load = this.of(id)
    const share = open.data as Share
    if (open.firstTokenAt === undefined) load.waiting--
    load.prefillTokens -= share.prefillTokens
    load.contextTokens -= share.contextTokens
    open.data = undefined
  }
}
