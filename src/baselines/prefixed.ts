/** A balancer that remembers which replica has seen which beginnings of prompts. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import { PrefixIndex } from '../routing/affinity.js'
import type { Ms } from '../time.js'
import { Balancer } from './balancer.js'

export abstract class Prefixed extends Balancer {
  readonly #index = new PrefixIndex()

  /** Tokens of its prompt that each replica has, by replica id. Valid until the next call. */
  protected hits(open: Open): (replica: Replica) => number {
    const hits = this.#index.hits(open.facts.prefix)
    const { promptTokens } = open
    return ({ spec: { id } }) => Math.min(promptTokens, hits[id] ?? 0)
  }

  protected override send(open: Open, replica: Replica, now: Ms): void {
    this.#index.insert(replica.spec.id, open.facts.prefix)
    super.send(open, replica, now)
  }
}
