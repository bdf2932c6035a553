/** How much of a prompt each replica is held to have in its prefix cache. */
import type { ReplicaId } from '../request.js'
import { PrefixIndex } from './affinity.js'
import { Sessions } from './sessions.js'

/** Memory of how many expected cache hits were found, in requests. */
const HITS_MEMORY = 0.99

/**
 * One request is asked about at a time (`ask`). By its prefix where that is known, else by its session, else by what
 * is usual in its class. The first two are believed as far as engines bore them out lately.
 */
export class Cached {
  readonly #prefixes = new PrefixIndex()
  readonly #sessions = new Sessions()
  /** What was expected in caches, and found there, fading. */
  #expected = 0
  #found = 0
  /** Of the request that is asked about. */
  #most = 0
  #hits: ArrayLike<number | undefined> | undefined
  #usual = 0
  #session: { readonly replica: ReplicaId; readonly tokens: number } | undefined

  /** @param usual  tokens found of its like, on any replica; used where neither prefix nor session is known */
  ask(
    promptTokens: number,
    prefix: ArrayLike<number> | undefined,
    session: string | undefined,
    usual: number,
  ): void {
    this.#most = promptTokens - 1
    this.#hits = prefix === undefined ? undefined : this.#prefixes.hits(prefix)
    this.#session = prefix === undefined && session !== undefined ? this.#sessions.of(session) : undefined
    this.#usual = prefix === undefined && session === undefined ? usual : 0
  }

  /** Tokens expected on a replica. */
  on(id: ReplicaId): number {
    const trust = this.#expected > 0 ? this.#found / this.#expected : 1
    return this.#usual + trust * this.known(id)
  }

  /** Of these, what its prefix or session says. */
  known(id: ReplicaId): number {
    if (this.#session !== undefined)
      return this.#session.replica === id ? Math.min(this.#most, this.#session.tokens) : 0
    return Math.min(this.#most, this.#hits?.[id] ?? 0)
  }

  /** On the replica that has the most. */
  get most(): number {
    let most = this.#session === undefined ? 0 : this.on(this.#session.replica)
    const hits = this.#hits
    if (hits !== undefined)
      for (let id = 0; id < hits.length; id++) if (hits[id]) most = Math.max(most, this.on(id))
    return Math.max(most, this.#usual)
  }

  /** Its session was served elsewhere. */
  strays(id: ReplicaId): boolean {
    return this.#session !== undefined && this.#session.replica !== id
  }

  sent(id: ReplicaId, prefix: ArrayLike<number> | undefined): void {
    this.#prefixes.insert(id, prefix)
  }

  /** A whole answer: from now on its session is there, with so many tokens. */
  answered(session: string, id: ReplicaId, tokens: number): void {
    this.#sessions.answered(session, id, tokens)
  }

  /** The engine said how many tokens of a prompt it found, where so many were expected. */
  found(tokens: number, expected: number): void {
    this.#expected = HITS_MEMORY * this.#expected + expected
    this.#found = HITS_MEMORY * this.#found + Math.min(tokens, expected)
  }

  /** The replica has lost its cache. */
  forget(id: ReplicaId): void {
    this.#prefixes.forget(id)
  }
}
