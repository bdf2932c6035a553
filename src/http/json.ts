/** Walks JSON as bytes: proves that it is well formed and finds members, without making a value of it. */

/** Deepest nesting that is followed; real requests stay below 20. */
export const MAX_DEPTH = 256

/** From `start` up to, not including, `end`. */
export interface Span {
  readonly start: number
  readonly end: number
}

/** Why the bytes are not the JSON they should be; `at` is a byte offset. Never quotes the input. */
export class JsonFault extends Error {
  constructor(
    readonly what: string,
    readonly at: number,
  ) {
    super(`${what} at byte ${at}`)
  }
}

const QUOTE = 0x22
const BACKSLASH = 0x5c
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

const DATA_URL = [0x64, 0x61, 0x74, 0x61, 0x3a] // data:

/** One pass over one document. Counts what it passes, for an estimate of prompt tokens. */
export class JsonWalk {
  /** Bytes of string values passed, without `data:` URLs: images are not text. */
  textBytes = 0
  /** Numbers passed: a prompt may be an array of token ids. */
  numbers = 0
  private readonly closers = new Uint8Array(MAX_DEPTH)

  constructor(readonly bytes: Uint8Array) {}

  /**
   * Visits each member of the object that starts at `at` (white space before it is fine).
   * @param visit  called with the key's span (quotes included) and the value's span, which it need not walk
   * @returns offset behind the object
   * @throws JsonFault
   */
  members(at: number, visit: (key: Span, value: Span) => void): number {
    const { bytes } = this
    let i = this.space(at)
    if (bytes[i] !== OPEN_BRACE) throw new JsonFault('expected an object', i)
    i = this.space(i + 1)
    if (bytes[i] === CLOSE_BRACE) return i + 1
    for (;;) {
      const keyStart = i
      i = this.string(i, false)
      const key = { start: keyStart, end: i }
      i = this.space(i)
      if (bytes[i] !== COLON) throw new JsonFault('expected ":" after a member name', i)
      const start = this.space(i + 1)
      i = this.value(start)
      visit(key, { start, end: i })
      i = this.space(i)
      if (bytes[i] === CLOSE_BRACE) return i + 1
      if (bytes[i] !== COMMA) throw new JsonFault('expected "," or "}"', i)
      i = this.space(i + 1)
    }
  }

  /** Offset of the first byte at or behind `at` that is not white space. */
  space(at: number): number {
    const { bytes } = this
    let i = at
    for (let c = bytes[i]; c === 0x20 || c === 0x0a || c === 0x0d || c === 0x09; c = bytes[++i]);
    return i
  }

  /** Walks the value that starts at `at`, however deep, without recursion. Returns the offset behind it. */
  private value(at: number): number {
    const { bytes, closers } = this
    let depth = 0
    let i = at
    for (;;) {
      const c = bytes[i]
      if (c === OPEN_BRACE || c === OPEN_BRACKET) {
        const closer = c === OPEN_BRACE ? CLOSE_BRACE : CLOSE_BRACKET
        if (depth === MAX_DEPTH) throw new JsonFault(`nested deeper than ${MAX_DEPTH}`, i)
        i = this.space(i + 1)
        if (bytes[i] !== closer) {
          closers[depth++] = closer
          if (closer === CLOSE_BRACE) i = this.memberName(i)
          continue
        }
        i++
      } else if (c === QUOTE) {
        i = this.string(i, true)
      } else {
        i = this.scalar(i)
      }
      // A value ended: go on with what holds it.
      for (;;) {
        if (depth === 0) return i
        i = this.space(i)
        const closer = closers[depth - 1]
        if (bytes[i] === COMMA) {
          i = this.space(i + 1)
          if (closer === CLOSE_BRACE) i = this.memberName(i)
          break
        }
        if (bytes[i] !== closer) throw new JsonFault('expected "," or the end of a list or object', i)
        depth--
        i++
      }
    }
  }

  private memberName(at: number): number {
    const colon = this.space(this.string(at, false))
    if (this.bytes[colon] !== COLON) throw new JsonFault('expected ":" after a member name', colon)
    return this.space(colon + 1)
  }

  private string(at: number, isValue: boolean): number {
    const { bytes } = this
    if (bytes[at] !== QUOTE) throw new JsonFault('expected a string', at)
    let i = at + 1
    for (;;) {
      const c = bytes[i]
      if (c === undefined) throw new JsonFault('a string does not end', at)
      if (c === QUOTE) break
      if (c < 0x20) throw new JsonFault('a control character in a string', i)
      i = c === BACKSLASH ? this.escape(i) : i + 1
    }
    if (isValue && !this.isDataUrl(at + 1)) this.textBytes += i - at - 1
    return i + 1
  }

  private escape(at: number): number {
    const c = this.bytes[at + 1]
    if (c === 0x75) {
      for (let k = 2; k < 6; k++) {
        if (!isHex(this.bytes[at + k])) throw new JsonFault('a bad \\u escape', at)
      }
      return at + 6
    }
    // " \ / b f n r t
    if (
      c === 0x22 ||
      c === 0x5c ||
      c === 0x2f ||
      c === 0x62 ||
      c === 0x66 ||
      c === 0x6e ||
      c === 0x72 ||
      c === 0x74
    ) {
      return at + 2
    }
    throw new JsonFault('a bad escape', at)
  }

  private isDataUrl(at: number): boolean {
    for (let k = 0; k < DATA_URL.length; k++) if (this.bytes[at + k] !== DATA_URL[k]) return false
    return true
  }

  private scalar(at: number): number {
    for (const word of WORDS) if (this.isWord(at, word)) return at + word.length
    return this.number(at)
  }

  private isWord(at: number, word: string): boolean {
    for (let k = 0; k < word.length; k++) if (this.bytes[at + k] !== word.charCodeAt(k)) return false
    return true
  }

  private number(at: number): number {
    const { bytes } = this
    let i = bytes[at] === 0x2d ? at + 1 : at
    const whole = i
    i = this.digits(i)
    if (bytes[whole] === 0x30 && i > whole + 1) throw new JsonFault('a number with a leading zero', at)
    if (bytes[i] === 0x2e) i = this.digits(i + 1)
    if (bytes[i] === 0x65 || bytes[i] === 0x45) {
      i++
      if (bytes[i] === 0x2b || bytes[i] === 0x2d) i++
      i = this.digits(i)
    }
    this.numbers++
    return i
  }

  private digits(at: number): number {
    let i = at
    for (let c = this.bytes[i]; c !== undefined && c >= 0x30 && c <= 0x39; c = this.bytes[++i]);
    if (i === at) throw new JsonFault(at >= this.bytes.length ? 'it ends too early' : 'expected a value', at)
    return i
  }
}

const WORDS = ['true', 'false', 'null']

function isHex(c: number | undefined): boolean {
  return c !== undefined && ((c >= 0x30 && c <= 0x39) || (c >= 0x41 && c <= 0x46) || (c >= 0x61 && c <= 0x66))
}
