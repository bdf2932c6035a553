/**
 * Reads the answers that come on one HTTP/1.1 connection. Strict: what two readers could read in two ways is refused, since the
 * end of one answer is where the next one begins.
 */

import { HEADER_LINE, readAnswerHead } from './answer-head.js'

/** Why bytes are not an answer; `large` is a head over the limit. */
export interface AnswerFault {
  readonly kind: 'bad' | 'large'
  /** A few words, without a byte of what came. */
  readonly detail: string
}

/** What is found, in order: `head`, `body` any number of times, then `end`; or `bad` at any time, and nothing after it. */
export interface AnswerSink {
  /** Of the final answer; informational ones are passed over. @param headers  names and values, flat */
  head(status: number, headers: readonly string[]): void
  /** Bytes of the body, without their framing; at most one call a push. They are the caller's again afterwards. */
  body(bytes: Buffer, from: number, to: number): void
  /** The answer is whole. `reusable` and `keepAliveMs` of the parser hold now. */
  end(): void
  bad(fault: AnswerFault): void
}

const LF = 0x0a
const CR = 0x0d
const SEMICOLON = 0x3b

/** A chunk-size line with its extensions, bytes. */
const MAX_SIZE_LINE = 1024
/** Informational answers before the final one. */
const MAX_INTERIM = 16

/** Value of a hexadecimal digit, by byte; -1 for other bytes. */
const HEX = new Int8Array(256).fill(-1)
for (let digit = 0; digit < 16; digit++) {
  HEX[digit.toString(16).charCodeAt(0)] = digit
  HEX[digit.toString(16).toUpperCase().charCodeAt(0)] = digit
}

const BEGIN = 'HTTP/1.'

/** Where in an answer it is. `REST`: none is expected, and any byte is one too many. `DEAD`: bad, or stopped. */
const REST = 0
const HEAD = 1
/** `left` bytes of a body with a length. */
const COUNTED = 2
const UNTIL_CLOSE = 3
const SIZE = 4
const EXTENSION = 5
const SIZE_LF = 6
/** `left` bytes of a chunk. */
const CHUNK = 7
const CHUNK_CR = 8
const CHUNK_LF = 9
const TRAILER = 10
const DEAD = 11

export class ResponseParser {
  /** The connection may carry another request after this answer. */
  reusable = true
  /** How long the upstream says that it keeps an idle connection; undefined: it says nothing. */
  keepAliveMs: number | undefined
  private at: number = REST
  private fault: AnswerFault | undefined
  private stopped = false
  private headOnly = false
  private left = 0
  private digits = 0
  /** Bytes of a size line, or of a trailer section, so far. */
  private lineBytes = 0
  private interim = 0
  /** Begin of a head, or of a trailer line, that was cut. */
  private held: Buffer | undefined

  /** @param headLimit  bytes of a head, and of a trailer section, at most */
  constructor(
    private readonly sink: AnswerSink,
    private readonly headLimit: number,
  ) {}

  /** A request goes out: one answer is expected. @param headOnly  to a HEAD: without a body, whatever its head says */
  expect(headOnly: boolean): void {
    this.at = HEAD
    this.headOnly = headOnly
    this.interim = 0
    this.keepAliveMs = undefined
  }

  /** Reads no further: nobody listens. */
  stop(): void {
    this.at = DEAD
    this.stopped = true
    this.held = undefined
  }

  /** Reads the first `length` bytes. Body bytes of several chunks are moved together in place. */
  push(bytes: Buffer, length: number): void {
    let at = 0
    let from = 0
    let to = 0
    while (at < length) {
      switch (this.at) {
        case CHUNK:
        case COUNTED:
        case UNTIL_CLOSE: {
          const end = this.left < length - at ? at + this.left : length
          if (to === from) {
            from = at
            to = end
          } else {
            if (to !== at) bytes.copyWithin(to, at, end)
            to += end - at
          }
          if (this.at !== UNTIL_CLOSE) this.left -= end - at
          at = end
          if (this.left > 0) break
          if (this.at === CHUNK) this.at = CHUNK_CR
          else {
            this.finish(bytes, from, to, at < length)
            return
          }
          break
        }
        case SIZE:
          at = this.readSize(bytes, at, length)
          break
        case EXTENSION: {
          const byte = bytes[at++] as number
          if (byte === CR) this.at = SIZE_LF
          else if ((byte < 0x20 && byte !== 0x09) || byte === 0x7f)
            this.fail('a control character in a chunk extension')
          else if (++this.lineBytes > MAX_SIZE_LINE) this.fail('a chunk extension without end')
          break
        }
        case SIZE_LF:
          if (bytes[at++] !== LF) this.fail('a chunk size without its line end')
          else if (this.left > 0) this.at = CHUNK
          else {
            this.at = TRAILER
            this.lineBytes = 0
          }
          break
        case CHUNK_CR:
          if (bytes[at++] === CR) this.at = CHUNK_LF
          else this.fail('a chunk longer than its size')
          break
        case CHUNK_LF:
          if (bytes[at++] === LF) this.beginSize()
          else this.fail('a chunk longer than its size')
          break
        case TRAILER:
          at = this.readTrailer(bytes, at, length)
          if (this.atRest) {
            this.finish(bytes, from, to, at < length)
            return
          }
          break
        case HEAD:
          at = this.readHead(bytes, at, length)
          if (this.atRest) {
            this.finish(bytes, 0, 0, at < length)
            return
          }
          break
        case REST:
          this.fail('bytes that nothing was asked for')
          break
        default:
          // What is good before a fault is still the answer's.
          at = length
      }
    }
    if (to > from && !this.stopped) this.sink.body(bytes, from, to)
    if (this.fault === undefined || this.stopped) return
    this.stopped = true
    this.sink.bad(this.fault)
  }

  /** The upstream sent its last byte. @returns false where the answer was cut by it */
  close(): boolean {
    if (this.at !== UNTIL_CLOSE) return false
    this.at = REST
    this.sink.end()
    return true
  }

  private get atRest(): boolean {
    return this.at === REST
  }

  /** @param more  bytes follow, which no request has asked for */
  private finish(bytes: Buffer, from: number, to: number, more: boolean): void {
    this.at = REST
    if (more) this.reusable = false
    if (to > from) this.sink.body(bytes, from, to)
    if (!this.stopped) this.sink.end()
  }

  private fail(detail: string, kind: AnswerFault['kind'] = 'bad'): void {
    this.at = DEAD
    this.held = undefined
    this.reusable = false
    this.fault = { kind, detail }
  }

  private beginSize(): void {
    this.at = SIZE
    this.left = 0
    this.digits = 0
    this.lineBytes = 0
  }

  private readSize(bytes: Buffer, from: number, length: number): number {
    let at = from
    let { left, digits } = this
    for (; at < length; at++) {
      const byte = bytes[at] as number
      const digit = HEX[byte] as number
      if (digit >= 0) {
        left = left * 16 + digit
        if (++digits > 16 || left > Number.MAX_SAFE_INTEGER) {
          this.fail('a chunk size beyond counting')
          return length
        }
      } else if (digits > 0 && (byte === CR || byte === SEMICOLON)) {
        this.at = byte === CR ? SIZE_LF : EXTENSION
        at++
        break
      } else {
        this.fail('a chunk size that is no number')
        return length
      }
    }
    this.left = left
    this.digits = digits
    return at
  }

  /** One line of the section behind the last chunk, which is read over; at an empty one it comes to rest. */
  private readTrailer(bytes: Buffer, from: number, length: number): number {
    const lf = bytes.indexOf(LF, from)
    const end = lf >= 0 && lf < length ? lf + 1 : length
    this.lineBytes += end - from
    if (this.lineBytes > this.headLimit) {
      this.fail('a trailer section over the limit of a head')
      return length
    }
    const part = bytes.subarray(from, end)
    const line = this.held === undefined ? part : Buffer.concat([this.held, part])
    if (end === length && bytes[end - 1] !== LF) {
      this.held = line === part ? Buffer.from(part) : line
      return length
    }
    this.held = undefined
    const text = line.toString('latin1', 0, Math.max(0, line.length - 2))
    if (line[line.length - 2] !== CR || (text !== '' && !HEADER_LINE.test(text))) {
      this.fail('a bad trailer line')
      return length
    }
    if (text === '') this.at = REST
    return end
  }

  /** To the end of a head, or of what is here of it; without a body to come, it comes to rest. */
  private readHead(bytes: Buffer, from: number, length: number): number {
    const part = bytes.subarray(from, length)
    const before = this.held?.length ?? 0
    const all = this.held === undefined ? part : Buffer.concat([this.held, part])
    const found = all.indexOf('\r\n\r\n', Math.max(0, before - 3), 'latin1')
    const size = found < 0 ? all.length : found + 4
    if (size > this.headLimit) {
      this.fail(`the head of its answer is over ${this.headLimit} bytes (limits.headers)`, 'large')
      return length
    }
    if (found < 0) {
      const begin = all.toString('latin1', 0, BEGIN.length)
      if (!BEGIN.startsWith(begin)) this.fail('no HTTP/1 answer')
      else this.held = this.held === undefined ? Buffer.from(part) : all
      return length
    }
    this.held = undefined
    this.takeHead(all.toString('latin1', 0, found))
    return from + size - before
  }

  private takeHead(text: string): void {
    const head = readAnswerHead(text)
    if (typeof head === 'string') {
      this.fail(head)
      return
    }
    const { status, length } = head
    if (status < 200) {
      if (status === 101) this.fail('a change of protocol that was not asked for')
      else if (++this.interim > MAX_INTERIM) this.fail('informational answers without end')
      return
    }
    this.keepAliveMs = head.keepAliveMs
    if (!head.persistent) this.reusable = false
    if (this.headOnly || status === 204 || status === 304) this.at = REST
    else if (head.chunked) this.beginSize()
    else if (length !== undefined) {
      this.left = length
      this.at = length > 0 ? COUNTED : REST
    } else {
      this.left = Infinity
      this.reusable = false
      this.at = UNTIL_CLOSE
    }
    this.sink.head(status, head.headers)
  }
}
