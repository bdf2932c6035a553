/** Reads the lines of one event: its data, and whether it names itself an error. */
import { ascii } from './json.js'

const LF = 0x0a
const CR = 0x0d
const SPACE = 0x20
const COLON = 0x3a
const TAB = 0x09

const DATA = ascii('data')
const EVENT = ascii('event')
const ERROR = ascii('error')
const NOTHING = new Uint8Array(0)

/** What one event says. One object serves all events of a stream; its bytes are those of the last `read`. */
export class Fields {
  /** The data lie in `bytes` from `from` to `to`, without the white space around them. */
  bytes: Uint8Array = NOTHING
  from = 0
  to = 0
  /** Data lines; an event without one is no event to a client. */
  dataLines = 0
  /** The event's type is `error`. */
  error = false

  /**
   * @param lines  how many lines of it are not blank, as the scanner counted them
   */
  read(bytes: Uint8Array, from: number, to: number, lines: number): void {
    this.bytes = bytes
    this.from = from
    this.to = from
    this.dataLines = 0
    this.error = false
    if (lines === 1) {
      // The line is all there is: its end is found from behind, without another walk over it.
      let end = to
      while (end > from && isLineEnd(bytes[end - 1])) end--
      this.#line(bytes, from, end, to)
    } else {
      let start = from
      for (let at = from; at <= to; at++) {
        if (at < to && !isLineEnd(bytes[at])) continue
        if (at > start) this.#line(bytes, start, at, to)
        start = at + 1
      }
    }
    this.#trim()
  }

  #line(bytes: Uint8Array, from: number, end: number, eventEnd: number): void {
    const isData = begins(bytes, from, end, DATA)
    if (!isData && !begins(bytes, from, end, EVENT)) return
    let value = from + (isData ? DATA.length : EVENT.length)
    if (value < end) {
      if (bytes[value] !== COLON) return
      value++
      if (value < end && bytes[value] === SPACE) value++
    }
    if (isData) this.#data(bytes, value, end, eventEnd)
    else this.error = end - value === ERROR.length && begins(bytes, value, end, ERROR)
  }

  #data(bytes: Uint8Array, from: number, end: number, eventEnd: number): void {
    this.dataLines++
    if (this.dataLines === 1) {
      this.from = from
      this.to = end
      return
    }
    if (this.dataLines === 2) {
      // Several lines are joined by LF. All of them together are no longer than what is left of the event.
      const joined = new Uint8Array(eventEnd - this.from)
      joined.set(this.bytes.subarray(this.from, this.to))
      this.bytes = joined
      this.to -= this.from
      this.from = 0
    }
    this.bytes[this.to] = LF
    this.bytes.set(bytes.subarray(from, end), this.to + 1)
    this.to += 1 + end - from
  }

  #trim(): void {
    while (this.from < this.to && isBlank(this.bytes[this.from])) this.from++
    while (this.from < this.to && isBlank(this.bytes[this.to - 1])) this.to--
  }
}

function isLineEnd(byte: number | undefined): boolean {
  return byte === LF || byte === CR
}

function isBlank(byte: number | undefined): boolean {
  return byte === SPACE || byte === LF || byte === TAB || byte === CR
}

function begins(bytes: Uint8Array, from: number, end: number, word: Uint8Array): boolean {
  if (end - from < word.length) return false
  for (let i = 0; i < word.length; i++) if (bytes[from + i] !== word[i]) return false
  return true
}
