/** What one replica has promised: the requests it is serving, as columns that a gain is counted over. */
import type { Ms } from '../time.js'

/** Likely lengths kept of each answer. Source: algorithms 6.4 (its mean alone hides short answers). */
export const THIRDS = 3

/**
 * One request on a replica, as the rule that sent it keeps it. `bound` and `from` say what it was promised: either
 * tokens at `bound` ms each since its first (`from`, undefined while there is none), or its end by `from`.
 */
export interface Promised {
  /** Ms a token; 0: a deadline. */
  readonly bound: Ms
  /** With a pace: when its first token is due. With a deadline: that moment. */
  readonly dueAt: Ms
  /** Row of the weights by which its loss counts. */
  readonly group: number
  /** Its place in the columns; the columns' own. */
  slot: number
}

const FIRST_SLOTS = 16

/** Requests in slots 0 to `count` - 1, in no order: the last one takes the slot of one that leaves. */
export class Running {
  count = 0
  /** Those of them that have a deadline. */
  deadlines = 0
  /** Ms a token; 0: a deadline. */
  bound = new Float64Array(FIRST_SLOTS)
  /** With a pace: when its first token came, or is expected. With a deadline: that moment. */
  from = new Float64Array(FIRST_SLOTS)
  /** When its first token came, or is expected: no token comes before. */
  firstAt = new Float64Array(FIRST_SLOTS)
  /** When it was sent, and when its first token is due. */
  sentAt = new Float64Array(FIRST_SLOTS)
  dueAt = new Float64Array(FIRST_SLOTS)
  /** 1 once the first token has come. */
  begun = new Uint8Array(FIRST_SLOTS)
  /** Output tokens so far. */
  tokens = new Float64Array(FIRST_SLOTS)
  group = new Uint16Array(FIRST_SLOTS)
  /** Likely whole lengths, three a slot. */
  lengths = new Float64Array(FIRST_SLOTS * THIRDS)
  /** At so many tokens its likely lengths are looked up anew. */
  readonly #owners: Promised[] = []

  /** @param lengths  three likely lengths; copied */
  add(one: Promised, now: Ms, firstAt: Ms, lengths: Float64Array): void {
    const slot = this.count++
    if (slot === this.bound.length) this.#grow()
    one.slot = slot
    if (one.bound === 0) this.deadlines++
    this.#owners[slot] = one
    this.bound[slot] = one.bound
    this.from[slot] = one.bound > 0 ? firstAt : one.dueAt
    this.sentAt[slot] = now
    this.dueAt[slot] = one.dueAt
    this.firstAt[slot] = firstAt
    this.begun[slot] = 0
    this.tokens[slot] = 0
    this.group[slot] = one.group
    for (let k = 0; k < THIRDS; k++) this.lengths[slot * THIRDS + k] = lengths[k] as number
  }

  firstToken(one: Promised, now: Ms): void {
    if (one.bound > 0) this.from[one.slot] = now
    this.firstAt[one.slot] = now
    this.begun[one.slot] = 1
  }

  remove(one: Promised): void {
    const last = --this.count
    if (one.bound === 0) this.deadlines--
    const mover = this.#owners[last] as Promised
    const { slot } = one
    if (mover !== one) {
      for (const column of [
        this.bound,
        this.from,
        this.firstAt,
        this.sentAt,
        this.dueAt,
        this.begun,
        this.tokens,
        this.group,
      ])
        column[slot] = column[last] as number
      for (let k = 0; k < THIRDS; k++)
        this.lengths[slot * THIRDS + k] = this.lengths[last * THIRDS + k] as number
      mover.slot = slot
      this.#owners[slot] = mover
    }
    this.#owners.length = last
    one.slot = -1
  }

  #grow(): void {
    const twice = <T extends Float64Array | Uint16Array | Uint8Array>(column: T): T => {
      const wider = new (column.constructor as new (size: number) => T)(column.length * 2)
      wider.set(column)
      return wider
    }
    this.bound = twice(this.bound)
    this.from = twice(this.from)
    this.firstAt = twice(this.firstAt)
    this.sentAt = twice(this.sentAt)
    this.dueAt = twice(this.dueAt)
    this.begun = twice(this.begun)
    this.tokens = twice(this.tokens)
    this.group = twice(this.group)
    this.lengths = twice(this.lengths)
  }
}
