/** Reads public traces of LLM traffic: request rows with arrival times, or agent sessions. */
import { readFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'
import type { Ms, Rng } from '../time.js'

/** Which blocks a prompt begins with: equal leading ids in one scope are equal text. */
export interface Prefix {
  /** Ids mean something only inside their scope. */
  readonly scope: string
  readonly blockTokens: number
  readonly ids: readonly number[]
}

export interface TraceRow {
  /** Since the start of the trace. */
  readonly atMs: Ms
  readonly inputTokens: number
  /** At least 1: an answer of 0 tokens is played as 1. */
  readonly outputTokens: number
  /** undefined: nothing is known of what it shares with others. */
  readonly prefix: Prefix | undefined
}

export interface AgentCall {
  readonly inputTokens: number
  readonly outputTokens: number
  /** Client and tool time between the end of the previous call and this one; 0 where the trace has none. */
  readonly thinkMs: Ms
  /** Ids of the full blocks of `SESSION_BLOCK_TOKENS`, local to the session. */
  readonly ids: readonly number[]
}

export interface AgentSession {
  readonly id: string
  readonly calls: readonly AgentCall[]
}

/** `leftOut` counts rows or calls above the input limit. Rows come in order of time. */
export type Trace =
  | { readonly kind: 'requests'; readonly rows: readonly TraceRow[]; readonly leftOut: number }
  | { readonly kind: 'sessions'; readonly sessions: readonly AgentSession[]; readonly leftOut: number }

export const SESSION_BLOCK_TOKENS = 64
const MOONCAKE_BLOCK_TOKENS = 512
/** Mooncake's clock ticks about every 3 s: what came inside a tick carries the tick's time. */
const MOONCAKE_TICK_MS: Ms = 3000

const FORMATS = `
  .csv    with the header t_ms,input_tokens,output_tokens (ms, tokens, tokens)
  .jsonl  Mooncake: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks
  .jsonl  agent sessions: session, seq, in, out, think_time (s), hash_ids of 64-token blocks
each of them plain or gzipped`

/** A trace that cannot be read. The message names file, line, what was got and what is allowed. */
export class TraceError extends Error {
  override readonly name = 'TraceError'
}

export interface TraceOptions {
  /** Rows and calls with more input tokens are left out and counted; their neighbours stay as they are. */
  readonly maxInputTokens?: number
  /** Spreads the groups of a Mooncake trace inside their tick. */
  readonly rng: Rng
}

/**
 * Reads a whole trace; the format is told from the first line, gzip from the first bytes.
 * A Mooncake trace holds groups of equal time about 3 s apart: each is spread uniformly over the time to the next
 * group, at most 3 s, since the groups are an artefact of its clock.
 * @throws TraceError for a file that is not there, is of no known format, or has a bad row
 */
export async function readTrace(file: string, options: TraceOptions): Promise<Trace> {
  const lines = splitLines(await readBytes(file))
  const first = lines.next().value?.text ?? ''
  const max = options.maxInputTokens ?? Number.POSITIVE_INFINITY
  if (first.trim() === 't_ms,input_tokens,output_tokens') return readAzure(file, lines, max)
  const head = first.startsWith('{') ? parseObject(new Row(file, 1), first) : {}
  if ('timestamp' in head && 'input_length' in head)
    return readMooncake(file, both(first, lines), max, options.rng)
  if ('session' in head && 'seq' in head) return readSessions(file, both(first, lines), max)
  throw new TraceError(
    `${file}:1: not a trace Weir can read: it begins with ${quote(first)}\nallowed:${FORMATS}`,
  )
}

interface Line {
  readonly number: number
  readonly text: string
}

async function readBytes(file: string): Promise<Buffer> {
  const bytes = await readFile(file).catch((cause: NodeJS.ErrnoException) => {
    throw new TraceError(
      `${file}: cannot be read: ${cause.code ?? cause.message}; give the path of a trace file`,
      { cause },
    )
  })
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes
  return promisify(gunzip)(bytes).catch((cause: Error) => {
    throw new TraceError(`${file}: broken gzip: ${cause.message}; copy the file again`, { cause })
  })
}

/** Lines are decoded one by one: an agent trace of 1 MB unpacks to 40 MB. Empty lines are passed over. */
function* splitLines(bytes: Buffer): Generator<Line, undefined> {
  let number = 0
  for (let at = 0; at < bytes.length; ) {
    const end = bytes.indexOf(10, at)
    const text = bytes.toString('utf8', at, end < 0 ? bytes.length : end)
    at = end < 0 ? bytes.length : end + 1
    number++
    if (text.trim() !== '') yield { number, text }
  }
}

function* both(first: string, rest: Iterable<Line>): Generator<Line> {
  yield { number: 1, text: first }
  yield* rest
}

function readAzure(file: string, lines: Iterable<Line>, max: number): Trace {
  const rows: TraceRow[] = []
  let leftOut = 0
  for (const { number, text } of lines) {
    const row = new Row(file, number)
    const cells = text.split(',')
    if (cells.length !== 3) row.bad('the line', text, '3 values: t_ms,input_tokens,output_tokens')
    const atMs = row.time('t_ms', cell(cells[0]))
    const inputTokens = row.count('input_tokens', cell(cells[1]), 1)
    const outputTokens = Math.max(1, row.count('output_tokens', cell(cells[2]), 0))
    if (inputTokens > max) leftOut++
    else rows.push({ atMs, inputTokens, outputTokens, prefix: undefined })
  }
  return requests(file, rows, leftOut)
}

function readMooncake(file: string, lines: Iterable<Line>, max: number, rng: Rng): Trace {
  const rows: TraceRow[] = []
  let leftOut = 0
  for (const { number, text } of lines) {
    const row = new Row(file, number)
    const value = parseObject(row, text)
    const atMs = row.time('timestamp', value['timestamp'])
    const inputTokens = row.count('input_length', value['input_length'], 1)
    const outputTokens = Math.max(1, row.count('output_length', value['output_length'], 0))
    const ids = row.ids('hash_ids', value['hash_ids'])
    if (inputTokens > max) leftOut++
    else
      rows.push({
        atMs,
        inputTokens,
        outputTokens,
        prefix: { scope: 'mooncake', blockTokens: MOONCAKE_BLOCK_TOKENS, ids },
      })
  }
  return requests(file, spread(rows, rng), leftOut)
}

function spread(rows: readonly TraceRow[], rng: Rng): TraceRow[] {
  const ticks = [...new Set(rows.map(row => row.atMs))].sort((a, b) => a - b)
  const width = new Map<Ms, Ms>()
  ticks.forEach((tick, i) => {
    width.set(tick, Math.min(MOONCAKE_TICK_MS, (ticks[i + 1] ?? Number.POSITIVE_INFINITY) - tick))
  })
  return rows.map(row => ({ ...row, atMs: row.atMs + rng.next() * (width.get(row.atMs) ?? 0) }))
}

function requests(file: string, rows: TraceRow[], leftOut: number): Trace {
  if (rows.length === 0) throw nothingLeft(file, leftOut)
  rows.sort((a, b) => a.atMs - b.atMs)
  return { kind: 'requests', rows, leftOut }
}

function readSessions(file: string, lines: Iterable<Line>, max: number): Trace {
  const sessions = new Map<string, AgentCall[]>()
  let leftOut = 0
  for (const { number, text } of lines) {
    const row = new Row(file, number)
    const value = parseObject(row, text)
    const id = value['session']
    if (typeof id !== 'string') return row.bad('session', id, 'a text')
    const inputTokens = row.count('in', value['in'], 1)
    const outputTokens = Math.max(1, row.count('out', value['out'], 0))
    const thinkMs = row.time('think_time', value['think_time'] ?? 0) * 1000
    const ids = row.ids('hash_ids', value['hash_ids'])
    if (inputTokens > max) {
      leftOut++
      continue
    }
    const calls = sessions.get(id)
    const call = { inputTokens, outputTokens, thinkMs, ids }
    if (calls === undefined) sessions.set(id, [call])
    else calls.push(call)
  }
  if (sessions.size === 0) throw nothingLeft(file, leftOut)
  return { kind: 'sessions', sessions: [...sessions].map(([id, calls]) => ({ id, calls })), leftOut }
}

function nothingLeft(file: string, leftOut: number): TraceError {
  return new TraceError(
    leftOut === 0
      ? `${file}: holds no rows; allowed: at least one`
      : `${file}: all ${leftOut} rows are above the input limit; raise the limit`,
  )
}

/** One line of the file, for errors that name it. */
class Row {
  readonly #file: string
  readonly #line: number

  constructor(file: string, line: number) {
    this.#file = file
    this.#line = line
  }

  bad(field: string, got: unknown, allowed: string): never {
    throw new TraceError(
      `${this.#file}:${this.#line}: ${field} is ${quote(got)}; allowed: ${allowed}; correct or remove the line`,
    )
  }

  time(field: string, value: unknown): number {
    return typeof value === 'number' && Number.isFinite(value) && value >= 0
      ? value
      : this.bad(field, value, 'a number from 0')
  }

  count(field: string, value: unknown, least: number): number {
    return typeof value === 'number' && Number.isSafeInteger(value) && value >= least
      ? value
      : this.bad(field, value, `a whole number from ${least}`)
  }

  ids(field: string, value: unknown): number[] {
    return Array.isArray(value) && value.every(id => Number.isSafeInteger(id))
      ? value
      : this.bad(field, value, 'a list of whole numbers')
  }
}

function parseObject(row: Row, text: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return row.bad('the line', text, 'one JSON object')
  }
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : row.bad('the line', text, 'one JSON object')
}

/** A number where the cell is one, else the cell's own text, for the error. */
function cell(text: string | undefined): unknown {
  const trimmed = text?.trim() ?? ''
  return trimmed === '' || Number.isNaN(Number(trimmed)) ? trimmed : Number(trimmed)
}

function quote(value: unknown): string {
  const text = value === undefined ? 'missing' : JSON.stringify(value)
  return text.length > 80 ? `${text.slice(0, 77)}...` : text
}
