/** The six workloads of the headroom bench: engine, promise and where the requests come from. */
import { type AgentSession, readTrace, SESSION_BLOCK_TOKENS, type TraceRow } from '../../src/load/trace.js'
import { drawLength } from '../../src/sim/draw.js'
import { BLOCK_TOKENS } from '../../src/sim/kv-cache.js'
import type { EngineRequest } from '../../src/sim/sequence.js'
import { type LengthMix, workedExampleMix } from '../../src/sim/workload.js'
import type { Clauses, Slo, TrafficClass } from '../../src/slo/slo.js'
import { type Rng, seededRng } from '../../src/time.js'

export interface Call {
  readonly cls: number
  readonly request: EngineRequest
}

export interface Workload {
  readonly name: string
  readonly profile: string
  readonly classes: readonly TrafficClass[]
  /** Requests of one replica, one after the other; another seed, other requests. */
  readonly source: (seed: number) => () => Call
}

const CHAT = chat(500, 40)
/** Tokens of a coding agent's prompt, at most, so that the sessions below fit into one engine's memory. */
const AGENT_INPUT_MAX = 32_768
/** Sessions that one replica serves in turn, and the share of requests that are theirs. */
const SESSIONS = 8
const AGENT_SHARE = 0.2

function chat(ttftMs: number, tpotMs: number): Clauses {
  return { kind: 'stream', ttftMs, tpotMs }
}

function traffic(id: number, name: string, clauses: Clauses, percentile = 90): TrafficClass {
  const target: Slo = { percentile, mode: 'joint', windowMs: 604_800_000, clauses }
  const length = { p50: 1, p90: 1 }
  const workload = {
    model: name,
    precision: undefined,
    inputTokens: length,
    outputTokens: length,
    cacheHit: 0,
  }
  return {
    id,
    name,
    target,
    guard: target,
    workload,
    priority: 0,
    pools: [0],
    queue: undefined,
    ownBounds: undefined,
  }
}

async function rowsOf(file: string): Promise<readonly TraceRow[]> {
  const trace = await readTrace(`bench/data/${file}`, { rng: seededRng(0) })
  if (trace.kind !== 'requests') throw new Error(`${file} is no trace of requests`)
  return trace.rows
}

async function sessionsOf(file: string): Promise<readonly AgentSession[]> {
  const trace = await readTrace(`bench/data/${file}`, { rng: seededRng(0), maxInputTokens: AGENT_INPUT_MAX })
  if (trace.kind !== 'sessions') throw new Error(`${file} is no trace of sessions`)
  return trace.sessions
}

/** Hashes of the engine's blocks, each larger block of the trace being several of them. */
function hashes(ids: readonly number[], blockTokens: number, inputTokens: number, scope: number): number[] {
  const each = blockTokens / BLOCK_TOKENS
  const blocks = Math.min(Math.floor(inputTokens / BLOCK_TOKENS), ids.length * each)
  return Array.from(
    { length: blocks },
    (_, i) => (scope * 1e6 + (ids[Math.floor(i / each)] ?? 0)) * each + (i % each),
  )
}

/** Rows at random, with nothing known of what they share. */
function drawn(rows: readonly TraceRow[], rng: Rng): () => Call {
  return () => {
    const row = rows[Math.floor(rng.next() * rows.length)] as TraceRow
    return { cls: 0, request: { promptTokens: row.inputTokens, outputTokens: row.outputTokens } }
  }
}

/** Rows in their order from a random one on, for what they share is told by their order. */
function replayed(rows: readonly TraceRow[], rng: Rng): () => Call {
  let at = Math.floor(rng.next() * rows.length)
  return () => {
    const row = rows[at++ % rows.length] as TraceRow
    const { inputTokens, outputTokens, prefix } = row
    const blockHashes = prefix === undefined ? [] : hashes(prefix.ids, prefix.blockTokens, inputTokens, 0)
    return { cls: 0, request: { promptTokens: inputTokens, outputTokens, blockHashes } }
  }
}

function lengths(mix: LengthMix, rng: Rng): () => Call {
  return () => ({
    cls: 0,
    request: { promptTokens: drawLength(mix.input, rng), outputTokens: drawLength(mix.output, rng) },
  })
}

/** Chat rows, and among them the calls of a few agent sessions, each in its order from a random call on. */
function mixed(rows: readonly TraceRow[], sessions: readonly AgentSession[], seed: number): () => Call {
  const rng = seededRng(seed)
  const chatCall = drawn(rows, rng)
  const running: { session: AgentSession; at: number; scope: number }[] = []
  // No two sources share a session's blocks.
  let scope = seed * 10_000
  let turn = 0
  const entered = () => {
    const session = sessions[Math.floor(rng.next() * sessions.length)] as AgentSession
    return { session, at: Math.floor(rng.next() * session.calls.length), scope: ++scope }
  }
  for (let i = 0; i < SESSIONS; i++) running.push(entered())
  return () => {
    if (rng.next() >= AGENT_SHARE) return chatCall()
    const slot = turn++ % SESSIONS
    let one = running[slot] ?? entered()
    if (one.at >= one.session.calls.length) one = entered()
    running[slot] = { ...one, at: one.at + 1 }
    const call = one.session.calls[one.at]
    if (call === undefined) return chatCall()
    const { inputTokens, outputTokens, ids } = call
    const blockHashes = hashes(ids, SESSION_BLOCK_TOKENS, inputTokens, one.scope)
    return { cls: 1, request: { promptTokens: inputTokens, outputTokens, blockHashes } }
  }
}

export async function workloads(): Promise<readonly Workload[]> {
  const conv = await rowsOf('azure2023-conv.csv.gz')
  const code = await rowsOf('azure2023-code.csv.gz')
  const mooncake = await rowsOf('mooncake-conversation.jsonl.gz')
  const sessions = await sessionsOf('agent-claudecode-sessions.jsonl.gz')
  const long: LengthMix = {
    input: { median: 500, sigma: 0.8, min: 16, max: 8000 },
    output: { median: 2500, sigma: 0.6, min: 64, max: 16_000 },
  }
  const one = (clauses: Clauses) => [traffic(0, 'chat', clauses)]
  const agents = traffic(1, 'agent', { kind: 'deadline', deadlineMs: 60_000, minTokensPerSecond: 0 }, 95)
  return [
    {
      name: 'Azure chat',
      profile: 'llama3-8b',
      classes: one(CHAT),
      source: seed => drawn(conv, seededRng(seed)),
    },
    {
      name: 'Azure code',
      profile: 'qwen3-32b',
      classes: one(CHAT),
      source: seed => drawn(code, seededRng(seed)),
    },
    {
      name: 'Mooncake',
      profile: 'llama3-8b',
      classes: one(chat(2000, 40)),
      source: seed => replayed(mooncake, seededRng(seed)),
    },
    {
      name: 'worked example',
      profile: 'worked-example',
      classes: one(CHAT),
      source: seed => lengths(workedExampleMix, seededRng(seed)),
    },
    {
      name: 'chat and agents',
      profile: 'llama3-8b',
      classes: [traffic(0, 'chat', CHAT), agents],
      source: seed => mixed(conv, sessions, seed),
    },
    {
      name: 'long answers',
      profile: 'llama3-8b',
      classes: one(CHAT),
      source: seed => lengths(long, seededRng(seed)),
    },
  ]
}
