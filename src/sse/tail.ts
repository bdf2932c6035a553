/** Holds the part of an event that has come so far, in one buffer that grows by doubling. */

const NOTHING = new Uint8Array(0)
const SMALLEST = 512

/**
 * Bytes that were handed out are never written over: what is added lies behind them, and a buffer that is too small
 * or was cleared is left to whoever holds a part of it.
 */
export class Tail {
  /** The held bytes are the first `length` of these. */
  bytes: Uint8Array = NOTHING
  length = 0

  add(chunk: Uint8Array, from: number, to: number): void {
    if (from === to) return
    const length = this.length + to - from
    if (length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(SMALLEST, 2 * length))
      larger.set(this.held())
      this.bytes = larger
    }
    this.bytes.set(chunk.subarray(from, to), this.length)
    this.length = length
  }

  /** A view of what is held. */
  held(): Uint8Array {
    return this.bytes.subarray(0, this.length)
  }

  clear(): void {
    this.bytes = NOTHING
    this.length = 0
  }
}
