/** Reads the head of an HTTP/1.1 answer, and how its body is delimited; what two readers could read in two ways is a fault. */

const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/
/** Also of a trailer section. */
export const HEADER_LINE = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t ]*([\t\x20-\x7e\x80-\xff]*)$/
const LENGTH = /^\d{1,15}$/

export interface AnswerHead {
  readonly status: number
  /** Names and values, flat, as they came. */
  readonly headers: readonly string[]
  /** `content-length`, bytes. */
  readonly length: number | undefined
  readonly chunked: boolean
  /** The connection may carry another request. */
  readonly persistent: boolean
  /** How long the upstream says that it keeps an idle connection; undefined: it says nothing. */
  readonly keepAliveMs: number | undefined
}

/**
 * @param text  latin1, up to the empty line and without it
 * @returns what is wrong, in a few words without a byte of it, where something is
 */
export function readAnswerHead(text: string): AnswerHead | string {
  const lines = text.split('\r\n')
  const [, minor, code] = STATUS_LINE.exec(lines[0] as string) ?? []
  if (code === undefined) return 'a bad status line'
  const headers: string[] = []
  let length: string | undefined
  let chunked = false
  let persistent = minor === '1'
  let keepAliveMs: number | undefined
  for (let i = 1; i < lines.length; i++) {
    const line = HEADER_LINE.exec(lines[i] as string)
    if (line === null) return 'a bad header line'
    const name = line[1] as string
    const value = trimmedEnd(line[2] as string)
    headers.push(name, value)
    // Most names are none of these, and their length tells.
    if (name.length === 10) {
      const lower = name.toLowerCase()
      if (lower === 'connection') {
        const options = value.toLowerCase().split(/[\t ,]+/)
        if (options.includes('close')) persistent = false
        else if (options.includes('keep-alive') && minor === '0') persistent = true
      } else if (lower === 'keep-alive') {
        const [, seconds] = /(?:^|[\t ,])timeout=(\d{1,6})/i.exec(value) ?? []
        if (seconds !== undefined) keepAliveMs = Number(seconds) * 1000
      }
    } else if (name.length === 14 && name.toLowerCase() === 'content-length') {
      if (length !== undefined) return 'two lengths'
      if (!LENGTH.test(value)) return 'a bad length'
      length = value
    } else if (name.length === 17 && name.toLowerCase() === 'transfer-encoding') {
      if (chunked) return 'two transfer codings'
      if (value.toLowerCase() !== 'chunked') return 'a transfer coding other than chunked'
      chunked = true
    }
  }
  if (length !== undefined && chunked) return 'both a length and chunks'
  if (chunked && minor === '0') return 'chunks in an HTTP/1.0 answer'
  return {
    status: Number(code),
    headers,
    length: length === undefined ? undefined : Number(length),
    chunked,
    persistent,
    keepAliveMs,
  }
}

function trimmedEnd(value: string): string {
  let end = value.length
  while (end > 0 && (value.charCodeAt(end - 1) === 0x20 || value.charCodeAt(end - 1) === 0x09)) end--
  return end === value.length ? value : value.slice(0, end)
}
