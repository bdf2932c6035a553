/** Walks over JSON as bytes: no string is decoded, nothing is allocated, and a fault ends the walk instead of throwing. */

const QUOTE = 0x22
const COMMA = 0x2c
const MINUS = 0x2d
const DOT = 0x2e
const ZERO = 0x30
const NINE = 0x39
const COLON = 0x3a
const OPEN_BRACKET = 0x5b
const BACKSLASH = 0x5c
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d

/** Deeper nesting than this is taken for malformed: the walk recurses, and the stack is not the sender's to fill. */
export const MAX_DEPTH = 128
/** Characters; a longer number is well formed, but its value is not worth the reading. */
const MAX_NUMBER = 40

/** @param word  ASCII only: the walk compares bytes. */
export function ascii(word: string): Uint8Array {
  return Uint8Array.from(word, letter => letter.charCodeAt(0))
}

const NOTHING = new Uint8Array(0)
const TRUE = ascii('true')
const FALSE = ascii('false')
const NULL = ascii('null')
const DATA_URL = ascii('data:')

/** What is not JSON about the bytes, without quoting them, and where. */
export interface JsonFault {
  readonly why: string
  readonly at: number
}

/**
 * A cursor that stands before a value. Each value must be consumed once: by `skip`, by one of the readers, or by
 * `enterObject` or `enterArray` and a loop over `member` or `element` until that is false. After a fault every
 * call is false, so that loops end by themselves; `whole` tells at the end.
 */
export class JsonWalk {
  #bytes: Uint8Array = NOTHING
  #at = 0
  #end = 0
  #depth = 0
  /** Just entered: the next member or element has no comma before it. */
  #fresh = false
  #fault: JsonFault | undefined
  #textBytes = 0
  #numbers = 0
  /** Where the last string or key lies, between its quotes. */
  #from = 0
  #to = 0

  start(bytes: Uint8Array, from: number, to: number): void {
    this.#bytes = bytes
    this.#at = from
    this.#end = to
    this.#depth = 0
    this.#fresh = false
    this.#fault = undefined
    this.#textBytes = 0
    this.#numbers = 0
    this.#blank()
  }

  /** The value was consumed, was well formed, and nothing follows it. */
  whole(): boolean {
    return this.#blank() === -1 && this.#fault === undefined
  }

  /** What is wrong, once something is. */
  get fault(): JsonFault | undefined {
    return this.#fault
  }

  /** Where it stands: before a value, or behind the one just consumed. */
  get at(): number {
    return this.#at
  }

  /** Bytes of the string values that were skipped, without `data:` URLs: images are not text. */
  get textBytes(): number {
    return this.#textBytes
  }

  /** Numbers that were skipped: a prompt may be a list of token ids. */
  get numbers(): number {
    return this.#numbers
  }

  /** Steps into the value if it is an object; else consumes nothing. */
  enterObject(): boolean {
    return this.#enter(OPEN_BRACE)
  }

  /** Steps into the value if it is an array; else consumes nothing. */
  enterArray(): boolean {
    return this.#enter(OPEN_BRACKET)
  }

  /** To the next member's value, its key ready for `is`; false past the last one. */
  member(): boolean {
    let byte = this.#blank()
    if (byte === CLOSE_BRACE) return this.#leave()
    if (!this.#fresh) {
      if (byte !== COMMA) return this.#fail('expected "," or "}"')
      this.#at++
      byte = this.#blank()
    }
    this.#fresh = false
    if (byte !== QUOTE) return this.#fail('expected a member name')
    if (!this.#quoted()) return false
    if (this.#blank() !== COLON) return this.#fail('expected ":" after a member name')
    this.#at++
    this.#blank()
    return true
  }

  /** To the next element; false past the last one. */
  element(): boolean {
    const byte = this.#blank()
    if (byte === CLOSE_BRACKET) return this.#leave()
    if (!this.#fresh) {
      if (byte !== COMMA) return this.#fail('expected "," or "]"')
      this.#at++
      this.#blank()
    }
    this.#fresh = false
    return this.#fault === undefined
  }

  /** The key, or the string just read, is this word. One that is written with escapes is never equal. */
  is(word: Uint8Array): boolean {
    const length = word.length
    const from = this.#from
    if (this.#to - from !== length) return false
    const bytes = this.#bytes
    for (let i = 0; i < length; i++) if (bytes[from + i] !== word[i]) return false
    return true
  }

  /** The key, or the string just read, ends with this word. */
  endsWith(word: Uint8Array): boolean {
    const from = this.#to - word.length
    if (from < this.#from) return false
    const bytes = this.#bytes
    for (let i = 0; i < word.length; i++) if (bytes[from + i] !== word[i]) return false
    return true
  }

  /** Where the string just read begins, after its quote. */
  get from(): number {
    return this.#from
  }

  /** Where the string just read ends, before its quote. */
  get to(): number {
    return this.#to
  }

  /** Consumes the value, whatever it is. */
  skip(): void {
    const byte = this.#peek()
    if (byte === QUOTE) {
      if (this.#quoted() && !this.#isDataUrl()) this.#textBytes += this.#to - this.#from
    } else if (byte === OPEN_BRACE) {
      this.enterObject()
      while (this.member()) this.skip()
    } else if (byte === OPEN_BRACKET) {
      this.enterArray()
      while (this.element()) this.skip()
    } else if (byte === 0x74) this.#word(TRUE)
    else if (byte === 0x66) this.#word(FALSE)
    else if (byte === 0x6e) this.#word(NULL)
    else {
      this.#digits()
      this.#numbers++
    }
  }

  /** Consumes the value; true if it is a string that is not empty, then ready for `is`. */
  text(): boolean {
    if (this.#peek() === QUOTE) return this.#quoted() && this.#to > this.#from
    this.skip()
    return false
  }

  /** Consumes the value; true if it is a string or an array that is not empty. */
  filled(): boolean {
    if (!this.enterArray()) return this.text()
    let filled = false
    while (this.element()) {
      filled = true
      this.skip()
    }
    return filled
  }

  /** Consumes the value; NaN if it is no number. */
  number(): number {
    const byte = this.#peek()
    if (byte === MINUS || (byte >= ZERO && byte <= NINE)) return this.#digits()
    this.skip()
    return Number.NaN
  }

  /** Consumes the value; the number of its member `key` if it is an object; else NaN. */
  numberIn(key: Uint8Array): number {
    let value = Number.NaN
    if (this.enterObject()) {
      while (this.member()) {
        if (this.is(key)) value = this.number()
        else this.skip()
      }
    } else this.skip()
    return value
  }

  /** Consumes the value; its number if it is one, or a string of up to 15 digits; else NaN. */
  numberOrDigits(): number {
    if (this.#peek() !== QUOTE) return this.number()
    const length = this.text() ? this.#to - this.#from : 0
    if (length === 0 || length > 15) return Number.NaN
    let value = 0
    for (let i = this.#from; i < this.#to; i++) {
      const digit = (this.#bytes[i] as number) - ZERO
      if (digit < 0 || digit > 9) return Number.NaN
      value = value * 10 + digit
    }
    return value
  }

  #fail(why: string): false {
    this.#fault ??= { why, at: this.#at }
    this.#at = this.#end
    return false
  }

  #isDataUrl(): boolean {
    const from = this.#from
    for (let i = 0; i < DATA_URL.length; i++) if (this.#bytes[from + i] !== DATA_URL[i]) return false
    return true
  }

  #peek(): number {
    return this.#at < this.#end ? (this.#bytes[this.#at] as number) : -1
  }

  /** Past white space; the byte there, -1 at the end. */
  #blank(): number {
    const bytes = this.#bytes
    const end = this.#end
    let at = this.#at
    while (at < end) {
      const byte = bytes[at] as number
      if (byte > 0x20 || (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09)) {
        this.#at = at
        return byte
      }
      at++
    }
    this.#at = at
    return -1
  }

  #enter(bracket: number): boolean {
    if (this.#peek() !== bracket) return false
    if (++this.#depth > MAX_DEPTH) this.#fail(`nested deeper than ${MAX_DEPTH}`)
    else this.#at++
    this.#fresh = true
    return true
  }

  #leave(): false {
    this.#at++
    this.#depth--
    this.#fresh = false
    return false
  }

  /** From the opening quote to past the closing one. */
  #quoted(): boolean {
    const bytes = this.#bytes
    const end = this.#end
    let at = this.#at + 1
    this.#from = at
    while (at < end) {
      const byte = bytes[at] as number
      if (byte === QUOTE) {
        this.#to = at
        this.#at = at + 1
        return true
      }
      if (byte < 0x20) {
        this.#at = at
        return this.#fail('a control character in a string')
      }
      if (byte === BACKSLASH) {
        const behind = escapeEnd(bytes, at + 1, end)
        if (behind < 0) {
          this.#at = at
          return this.#fail('a bad escape in a string')
        }
        at = behind
      } else at++
    }
    return this.#fail('a string does not end')
  }

  #word(word: Uint8Array): void {
    for (let i = 0; i < word.length; i++) {
      if (this.#peek() !== word[i]) {
        this.#fail('expected a value')
        return
      }
      this.#at++
    }
  }

  #digits(): number {
    const bytes = this.#bytes
    const start = this.#at
    const minus = this.#peek() === MINUS
    if (minus) this.#at++
    const first = this.#at
    let value = 0
    while (isDigit(this.#peek())) value = value * 10 + ((bytes[this.#at++] as number) - ZERO)
    const count = this.#at - first
    if (count === 0 || (count > 1 && bytes[first] === ZERO)) {
      this.#at = first
      this.#fail(count === 0 ? 'expected a value' : 'a number with a leading zero')
      return Number.NaN
    }
    let plain = count < 16
    if (this.#peek() === DOT) {
      plain = false
      this.#at++
      if (!this.#run()) return Number.NaN
    }
    if ((this.#peek() | 0x20) === 0x65) {
      plain = false
      this.#at++
      if (this.#peek() === 0x2b || this.#peek() === MINUS) this.#at++
      if (!this.#run()) return Number.NaN
    }
    if (plain) return minus ? -value : value
    if (this.#at - start > MAX_NUMBER) return Number.NaN
    return Number(String.fromCharCode(...bytes.subarray(start, this.#at)))
  }

  /** At least one digit. */
  #run(): boolean {
    if (!isDigit(this.#peek())) return this.#fail('expected a digit')
    while (isDigit(this.#peek())) this.#at++
    return true
  }
}

function isDigit(byte: number): boolean {
  return byte >= ZERO && byte <= NINE
}

/** @returns the place past an escape whose backslash is before `at`; -1 if it is none */
function escapeEnd(bytes: Uint8Array, at: number, end: number): number {
  if (at >= end) return -1
  switch (bytes[at]) {
    case QUOTE:
    case BACKSLASH:
    case 0x2f:
    case 0x62:
    case 0x66:
    case 0x6e:
    case 0x72:
    case 0x74:
      return at + 1
    case 0x75: {
      if (at + 5 > end) return -1
      for (let i = at + 1; i < at + 5; i++) {
        const byte = bytes[i] as number
        const letter = byte | 0x20
        if (!isDigit(byte) && (letter < 0x61 || letter > 0x66)) return -1
      }
      return at + 5
    }
    default:
      return -1
  }
}
