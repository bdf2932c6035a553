/** Requests of one class that wait for room: by deadline inside an API key, by share between keys. */
import type { Ms } from '../time.js'
import { LazyHeap } from './lazy-heap.js'

/** One waiting request; the handle to take it out again. */
export interface Waiting<T> {
  readonly item: T
  readonly deadlineAt: Ms
  readonly work: number
  readonly seq: number
  readonly line: Line<T>
  gone: boolean
}

/** The requests of one key, and the work that was served to it from this queue. */
interface Line<T> {
  readonly heap: LazyHeap<Waiting<T>>
  served: number
}

/**
 * Start-time fair queueing over keys: the key with the least served work is next, and a key that comes back is
 * lifted to where the others are. A deadline, however short, moves a request only past those of its own key.
 *
 * Two keys that both have something waiting get equal work, but for one request of each. Keys are the operator's,
 * so their lines are kept: a debt is not forgotten by leaving the queue empty for a moment.
 */
export class DeadlineQueue<T> {
  readonly #lines = new Map<string, Line<T>>()
  readonly #busy: Line<T>[] = []
  /** Where the key stood that was served last, before that. */
  #level = 0
  #size = 0
  #seq = 0

  /** Exact: those that left are not in it. */
  get size(): number {
    return this.#size
  }

  /**
   * @param key   label of the API key, '' without
   * @param work  what serving it takes, in any unit that is the same for all
   */
  push(item: T, key: string, deadlineAt: Ms, work: number): Waiting<T> {
    let line = this.#lines.get(key)
    if (line === undefined) {
      line = { heap: new LazyHeap<Waiting<T>>(byDeadline), served: 0 }
      this.#lines.set(key, line)
    }
    if (line.heap.size === 0) {
      line.served = Math.max(line.served, this.#level)
      this.#busy.push(line)
    }
    const waiting: Waiting<T> = { item, deadlineAt, work, seq: this.#seq++, line, gone: false }
    line.heap.push(waiting)
    this.#size++
    return waiting
  }

  /** Takes one out that is waiting and no longer wants to be served. */
  remove(waiting: Waiting<T>): void {
    waiting.line.heap.drop(waiting)
    this.#left(waiting.line)
  }

  /** Who is next. */
  peek(): Waiting<T> | undefined {
    return this.#next(this.#busy)?.heap.peek()
  }

  /**
   * Takes out the first, in serving order, that `fits`; those before it keep their places.
   * @param fits  asked of each at most once
   */
  take(fits: (item: T) => boolean): T | undefined {
    const lines = [...this.#busy]
    for (let line = this.#next(lines); line !== undefined; line = this.#next(lines)) {
      const found = firstThat(line.heap, fits)
      if (found !== undefined) {
        this.#level = line.served
        line.served += found.work
        this.#left(line)
        return found.item
      }
      lines.splice(lines.indexOf(line), 1)
    }
    return undefined
  }

  /** Everyone who waits, in no order. */
  all(): Waiting<T>[] {
    return this.#busy.flatMap(({ heap }) => heap.all())
  }

  #next(lines: readonly Line<T>[]): Line<T> | undefined {
    let best: Line<T> | undefined
    for (const line of lines) if (best === undefined || compare(line, best) < 0) best = line
    return best
  }

  #left(line: Line<T>): void {
    this.#size--
    if (line.heap.size === 0) this.#busy.splice(this.#busy.indexOf(line), 1)
  }
}

function byDeadline<T>(a: Waiting<T>, b: Waiting<T>): number {
  return a.deadlineAt - b.deadlineAt || a.seq - b.seq
}

function compare<T>(a: Line<T>, b: Line<T>): number {
  if (a.served !== b.served) return a.served - b.served
  const [first, second] = [a.heap.peek(), b.heap.peek()]
  return first === undefined || second === undefined ? 0 : byDeadline(first, second)
}

function firstThat<T>(heap: LazyHeap<Waiting<T>>, fits: (item: T) => boolean): Waiting<T> | undefined {
  const passed: Waiting<T>[] = []
  let waiting = heap.pop()
  while (waiting !== undefined && !fits(waiting.item)) {
    passed.push(waiting)
    waiting = heap.pop()
  }
  for (const kept of passed) heap.push(kept)
  return waiting
}
