/** Mean lengths of what the player will send, for those who turn a load into a rate. */
import { type AgentSession, SESSION_BLOCK_TOKENS, type TraceRow } from './trace.js'

export interface RowLengths {
  readonly meanInputTokens: number
  readonly meanOutputTokens: number
}

export interface SessionLengths extends RowLengths {
  /** Calls of one session from where it is entered to its end. */
  readonly meanCalls: number
  /** Input a replica that kept the session's previous call has to compute; an entry call finds nothing kept. */
  readonly meanNewInputTokens: number
}

/** Means over rows, each as likely as any other. `rows` must not be empty. */
export function rowLengths(rows: readonly TraceRow[]): RowLengths {
  let input = 0
  let output = 0
  for (const row of rows) {
    input += row.inputTokens
    output += row.outputTokens
  }
  return { meanInputTokens: input / rows.length, meanOutputTokens: output / rows.length }
}

/**
 * Means per call as the player draws them: a session at random, entered at a random call, played to its end. Call j
 * of k is then played with probability (j + 1) / k, so late calls weigh more than in the file. `sessions` must not be
 * empty.
 */
export function sessionLengths(sessions: readonly AgentSession[]): SessionLengths {
  let calls = 0
  let input = 0
  let output = 0
  let reused = 0
  for (const session of sessions) {
    const count = session.calls.length
    session.calls.forEach((call, j) => {
      const share = (j + 1) / count
      calls += share
      input += share * call.inputTokens
      output += share * call.outputTokens
      const before = session.calls[j - 1]
      if (before !== undefined) reused += (j / count) * sharedTokens(before.ids, call.ids)
    })
  }
  return {
    meanCalls: calls / sessions.length,
    meanInputTokens: input / calls,
    meanOutputTokens: output / calls,
    meanNewInputTokens: (input - reused) / calls,
  }
}

function sharedTokens(a: readonly number[], b: readonly number[]): number {
  let blocks = 0
  while (blocks < a.length && blocks < b.length && a[blocks] === b[blocks]) blocks++
  return blocks * SESSION_BLOCK_TOKENS
}
