/** When each of many engines has something to do next, and which is first: a binary heap that knows where each stands. */
import type { Ms } from '../time.js'

export class NextTimes {
  readonly #at: Float64Array
  /** Members in heap order: the soonest first, the lower number first among equals. */
  readonly #heap: Int32Array
  /** Where a member stands in the heap. */
  readonly #place: Int32Array

  /** @param size  members, numbered from 0; all of them stand at Infinity */
  constructor(size: number) {
    this.#at = new Float64Array(size).fill(Number.POSITIVE_INFINITY)
    this.#heap = Int32Array.from({ length: size }, (_, member) => member)
    this.#place = Int32Array.from(this.#heap)
  }

  /** The member that is first. */
  get first(): number {
    return this.#heap[0] as number
  }

  /** Its time; Infinity where there is no member. */
  get soonest(): Ms {
    return this.#heap.length === 0 ? Number.POSITIVE_INFINITY : (this.#at[this.#heap[0] as number] as number)
  }

  set(member: number, at: Ms): void {
    const before = this.#at[member] as number
    if (at === before) return
    this.#at[member] = at
    if (at < before) this.#up(member)
    else this.#down(member)
  }

  #precedes(a: number, b: number): boolean {
    const difference = (this.#at[a] as number) - (this.#at[b] as number)
    return difference < 0 || (!(difference > 0) && a < b)
  }

  #up(member: number): void {
    const heap = this.#heap
    let at = this.#place[member] as number
    while (at > 0) {
      const parent = (at - 1) >> 1
      const above = heap[parent] as number
      if (!this.#precedes(member, above)) break
      heap[at] = above
      this.#place[above] = at
      at = parent
    }
    heap[at] = member
    this.#place[member] = at
  }

  #down(member: number): void {
    const heap = this.#heap
    const size = heap.length
    let at = this.#place[member] as number
    for (;;) {
      let child = 2 * at + 1
      if (child >= size) break
      if (child + 1 < size && this.#precedes(heap[child + 1] as number, heap[child] as number)) child++
      const below = heap[child] as number
      if (!this.#precedes(below, member)) break
      heap[at] = below
      this.#place[below] = at
      at = child
    }
    heap[at] = member
    this.#place[member] = at
  }
}
