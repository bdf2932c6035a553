/** A heap whose items may be dropped where they lie: they leave at the top, or when half of it is gone. */
import TinyQueue from 'tinyqueue'

/** Below this many dropped items a rebuild is not worth it. */
const MIN_GONE = 32

export class LazyHeap<T extends { gone: boolean }> {
  readonly #compare: (a: T, b: T) => number
  #heap: TinyQueue<T>
  /** Dropped, and still in the heap. */
  #gone = 0

  constructor(compare: (a: T, b: T) => number) {
    this.#compare = compare
    this.#heap = new TinyQueue<T>([], compare)
  }

  /** Items that were not dropped. */
  get size(): number {
    return this.#heap.length - this.#gone
  }

  push(item: T): void {
    this.#heap.push(item)
  }

  /** The first that was not dropped. */
  peek(): T | undefined {
    let top = this.#heap.peek()
    while (top?.gone === true) {
      this.#heap.pop()
      this.#gone--
      top = this.#heap.peek()
    }
    return top
  }

  /** Those that were not dropped, in no order. */
  all(): T[] {
    return this.#heap.data.filter(item => !item.gone)
  }

  pop(): T | undefined {
    return this.peek() && this.#heap.pop()
  }

  /** Drops an item that is in the heap, once. */
  drop(item: T): void {
    item.gone = true
    this.#gone++
    if (this.#gone < MIN_GONE || this.#gone * 2 < this.#heap.length) return
    this.#heap = new TinyQueue<T>(
      this.#heap.data.filter(kept => !kept.gone),
      this.#compare,
    )
    this.#gone = 0
  }
}
