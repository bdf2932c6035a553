/** Walks over a request's JSON as bytes: proves that it is well formed and finds members, without making a value of it. */
import { JsonWalk as Cursor } from '../sse/json.js'

/** From `start` up to, not including, `end`. */
export interface Span {
  readonly start: number
  readonly end: number
}

/** Why the bytes are not the JSON they should be. Never quotes the input. */
export class JsonFault extends Error {
  /** @param at  byte offset */
  constructor(why: string, at: number) {
    super(`${why} at byte ${at}`)
  }
}

/** Passes over one document. Counts what it passes, for an estimate of prompt tokens. */
export class JsonWalk {
  /** Bytes of string values passed, without `data:` URLs: images are not text. */
  textBytes = 0
  /** Numbers passed: a prompt may be a list of token ids. */
  numbers = 0

  constructor(readonly bytes: Uint8Array) {}

  /**
   * Visits each member of the object that starts at `at` (white space before it is fine).
   * @param visit  called with the key's span (quotes included) and the value's span, which it need not walk
   * @returns offset behind the object
   * @throws JsonFault
   */
  members(at: number, visit: (key: Span, value: Span) => void): number {
    const cursor = new Cursor()
    cursor.start(this.bytes, at, this.bytes.length)
    if (!cursor.enterObject()) throw new JsonFault('expected an object', cursor.at)
    while (cursor.member()) {
      const key = { start: cursor.from - 1, end: cursor.to + 1 }
      const start = cursor.at
      cursor.skip()
      if (cursor.fault !== undefined) break
      this.textBytes = cursor.textBytes
      this.numbers = cursor.numbers
      visit(key, { start, end: cursor.at })
    }
    if (cursor.fault !== undefined) throw new JsonFault(cursor.fault.why, cursor.fault.at)
    return cursor.at
  }

  /** Offset of the first byte at or behind `at` that is not white space. */
  space(at: number): number {
    const { bytes } = this
    let i = at
    for (let c = bytes[i]; c === 0x20 || c === 0x0a || c === 0x0d || c === 0x09; c = bytes[++i]);
    return i
  }
}
