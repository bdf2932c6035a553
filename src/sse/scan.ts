/** Finds where the events of a byte stream end, however the bytes were cut and whatever ends its lines. */

const LF = 0x0a
const CR = 0x0d
const COLON = 0x3a
const BOM = Uint8Array.of(0xef, 0xbb, 0xbf)

/**
 * What a block of bytes is. `gap`: a blank line outside an event. `comment`: one comment line outside an event. `event`:
 * lines up to and with a blank one, comments inside it included. `rest`: the LF of a CRLF whose CR ended a block.
 */
export type BlockKind = 'gap' | 'comment' | 'event' | 'rest'

/**
 * Splits a stream into blocks; between two blocks a client's parser is at rest, so that something may be put in.
 * It looks at each byte once and keeps none.
 *
 * A CR may be a whole line end or half of one, and the next byte may be far off. Where the last line end was CRLF the
 * next byte is waited for; else the CR ends the line at once, and an LF that follows is swallowed. So an event of a
 * CR-only stream is not held back until the next one comes, and no cut changes what a block is.
 */
export class Scanner {
  /** Of the block that `next` or `finish` found last. */
  kind: BlockKind = 'gap'
  /** Of that block: how many of its lines are not blank. */
  lines = 0
  /** Of that block: bytes of a byte order mark before its first line, 3 or 0. */
  bom = 0
  /** Of the block that has begun and not ended. */
  open: BlockKind = 'gap'

  #inLine = false
  #openLines = 0
  #crlf = false
  #waitingCr = false
  #swallowLf = false
  /** Bytes of a byte order mark seen at the head of the stream; -1 past it. */
  #bomSeen = 0
  #openBom = 0

  /**
   * Where the next block ends. Call it again with its own answer until that is -1, then with the next chunk and 0.
   * @returns an offset in `chunk` (0: the chunk before held all of the block); -1 when the chunk is used up
   */
  next(chunk: Uint8Array, from: number): number {
    const length = chunk.length
    let at = from
    if (at === length) return -1
    if (this.#waitingCr) {
      this.#waitingCr = false
      this.#crlf = chunk[at] === LF
      if (this.#crlf) at++
      if (this.#endLine()) return at
    }
    while (at < length) {
      let byte = chunk[at]
      if (this.#swallowLf) {
        this.#swallowLf = false
        if (byte === LF) {
          this.#crlf = true
          at++
          if (this.open !== 'gap') continue
          this.kind = 'rest'
          return at
        }
      }
      if (!this.#inLine) {
        if (this.#bomSeen >= 0 && this.#isBom(byte)) {
          at++
          continue
        }
        if (this.#inLine) this.#beginLine(BOM[0])
        else if (byte !== LF && byte !== CR) this.#beginLine(byte)
      }
      while (byte !== LF && byte !== CR) {
        if (++at === length) return -1
        byte = chunk[at]
      }
      at++
      if (byte === LF) this.#crlf = false
      else if (!this.#crlf) this.#swallowLf = true
      else if (at === length) {
        this.#waitingCr = true
        return -1
      } else {
        this.#crlf = chunk[at] === LF
        if (this.#crlf) at++
      }
      if (this.#endLine()) return at
    }
    return -1
  }

  /**
   * The stream ended. What had begun is the last block.
   * @returns true if that block had its blank line (or, a comment, its line end)
   */
  finish(): boolean {
    if (this.#waitingCr) {
      this.#waitingCr = false
      if (this.#endLine()) return true
    }
    this.#endBlock(this.open)
    return false
  }

  /** At the head of the stream. A line that only begins like the mark is an event's line. */
  #isBom(byte: number | undefined): boolean {
    if (byte === BOM[this.#bomSeen]) {
      if (++this.#bomSeen === BOM.length) {
        this.#openBom = BOM.length
        this.#bomSeen = -1
      }
      return true
    }
    if (this.#bomSeen > 0) this.#inLine = true
    this.#bomSeen = -1
    return false
  }

  #beginLine(byte: number | undefined): void {
    this.#inLine = true
    this.#openLines++
    if (this.open === 'gap') this.open = byte === COLON ? 'comment' : 'event'
  }

  /** @returns true if a block ended with the line */
  #endLine(): boolean {
    const blank = !this.#inLine
    this.#inLine = false
    if (!blank && this.open === 'event') return false
    this.#endBlock(this.open)
    return true
  }

  #endBlock(kind: BlockKind): void {
    this.kind = kind
    this.lines = this.#openLines
    this.bom = this.#openBom
    this.open = 'gap'
    this.#openLines = 0
    this.#openBom = 0
  }
}
