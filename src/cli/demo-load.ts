/** Turns `--load` into rates: how much work the demo's pools can do within the SLO, and what a request takes of it. */
import { rowLengths, sessionLengths } from '../load/lengths.js'
import type { AgentSession, TraceRow } from '../load/trace.js'
import type { EngineProfile } from '../sim/profiles.js'
import type { Ms } from '../time.js'

/** Agents' share of the work; chat has the rest. */
const AGENT_SHARE = 0.2

/**
 * Chat requests a second that one replica of `qwen3-32b` serves with at least 90 % within 500 ms and 40 ms:
 * `bench/demo-capacity.ts` (94 % at 6.5, 89 % at 7; Azure conversations, Poisson, 3 seeds of 600 s).
 */
const CHAT_PER_REPLICA = 6.5

/** About what a token takes while the pools are at work, ms: how long a call keeps its session. */
const TOKEN_MS: Ms = 25

export interface DemoRates {
  readonly chatPerSecond: number
  readonly sessionStartsPerSecond: number
  /** Sessions that are under way when the demo begins, so that it need not run for minutes to reach its load. */
  readonly sessionsAtStart: number
}

/**
 * Rates at which the whole fleet has `load` times the work that it can do within the SLO.
 * @param replicas  of both pools together
 */
export function demoRates(
  load: number,
  replicas: number,
  profile: EngineProfile,
  chat: readonly TraceRow[],
  sessions: readonly AgentSession[],
  thinkDivisor: number,
): DemoRates {
  const row = rowLengths(chat)
  const call = sessionLengths(sessions)
  const chatWork = workMs(profile, row.meanInputTokens, row.meanInputTokens, row.meanOutputTokens)
  const callWork = workMs(profile, call.meanNewInputTokens, call.meanInputTokens, call.meanOutputTokens)
  const work = load * replicas * CHAT_PER_REPLICA * chatWork
  const callsPerSecond = (AGENT_SHARE * work) / callWork
  const sessionMs = call.meanCalls * (thinkMs(sessions) / thinkDivisor + call.meanOutputTokens * TOKEN_MS)
  const sessionStartsPerSecond = callsPerSecond / call.meanCalls
  return {
    chatPerSecond: ((1 - AGENT_SHARE) * work) / chatWork,
    sessionStartsPerSecond,
    sessionsAtStart: Math.round((sessionStartsPerSecond * sessionMs) / 1000),
  }
}

/**
 * Engine time that a request adds to the iterations it rides in, ms: all but the weights, which are read anyway.
 * @param computed  prompt tokens not found in the prefix cache
 */
function workMs(profile: EngineProfile, computed: number, prompt: number, output: number): Ms {
  const { gMsPerKtok, cMsPerSeq, aMsPerMtok2, dMsPerKkv } = profile.cost
  const past = prompt - computed
  const prefill = (gMsPerKtok * computed) / 1000 + (aMsPerMtok2 * computed * (past + computed / 2)) / 1e6
  const token = gMsPerKtok / 1000 + cMsPerSeq + (dMsPerKkv * (prompt + output / 2)) / 1000
  return prefill + cMsPerSeq + output * token
}

/** Mean think time before a call that is not the first of its session. */
function thinkMs(sessions: readonly AgentSession[]): Ms {
  let total = 0
  let calls = 0
  for (const session of sessions) {
    for (const call of session.calls.slice(1)) {
      total += call.thinkMs
      calls++
    }
  }
  return calls === 0 ? 0 : total / calls
}
