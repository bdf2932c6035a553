/** TTFT, TPOT and the gaps of one answer, from the times its tokens came. */
import type { Ms } from '../time.js'

/** `usage` as the upstream reported it. */
export interface Usage {
  readonly promptTokens: number
  readonly completionTokens: number
  /** `prompt_tokens_details.cached_tokens`; undefined when not told. */
  readonly cachedTokens: number | undefined
  /** `completion_tokens_details.reasoning_tokens`; undefined when not told. */
  readonly reasoningTokens: number | undefined
}

/**
 * How far one answer came. All times on the clock of whoever pushed the bytes; `undefined` means "not yet".
 * A mark is an event that carried output. It may hold several tokens, so marks are not tokens.
 */
export interface Progress {
  /** False for an answer that is one JSON body: it has no first token to time. */
  readonly streamed: boolean
  /** First event of any kind but a comment (vLLM's TTFT). */
  readonly firstEvent: Ms | undefined
  /** First output of any kind: content, reasoning, tool call. */
  readonly firstOutput: Ms | undefined
  /** First `content`, where there is reasoning before it. */
  readonly firstVisible: Ms | undefined
  /** Last output event; for a JSON body, its last byte. */
  readonly lastOutput: Ms | undefined
  /** Output events, over all choices. */
  readonly marks: number
  /** Output events of the choice that has most: equals `marks` unless n > 1. */
  readonly longestChoiceMarks: number
  /** Longest time between two output events. */
  readonly longestGap: Ms | undefined
  readonly usage: Usage | undefined
  /** The relay paused the upstream because the client read too slowly: its gaps are not the server's. */
  readonly throttled: boolean
}

/**
 * Mean time per output token after the first (TPOT).
 * @param first   time of the first output token, ms on the policy clock
 * @param last    time of the last one, same clock
 * @param tokens  output tokens in the answer, the first included
 * @returns ms per token; undefined below 2 tokens, where there is no gap to measure
 * Source: NVIDIA, "LLM Inference Benchmarking: Fundamental Concepts" (there called ITL).
 */
export function tpotMs(first: Ms, last: Ms, tokens: number): Ms | undefined {
  return tokens < 2 ? undefined : (last - first) / (tokens - 1)
}
