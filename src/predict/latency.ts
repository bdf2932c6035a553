/** What a request would meet on a replica: its time to first token and its pace, by the replica's load now. */
import type { Ms } from '../time.js'
import { promptPairs } from './flight.js'
import { prefillMs, type StepCost, stepMs } from './step.js'

/** A replica's load, as its observer sees it. */
export interface Load {
  readonly fit: { readonly cost: StepCost; readonly budget: number }
  /** How many times as long as the model says its steps take. */
  readonly factor: number
  /** Decoding, and their prompt and output tokens so far. */
  readonly streams: number
  readonly contextTokens: number
  /** Requests without first token, their prompt tokens still to be computed, and the pairs of those. */
  readonly waiting: number
  readonly waitingTokens: number
  readonly waitingPairs: number
  /** When the engine began to compute what waited then; may lie ahead. */
  readonly prefillFrom: Ms
  /** Waiting tokens that came after that. */
  readonly lateTokens: number
  /** When the step under way ends, if it only decodes; -Infinity where nothing does. */
  readonly stepEndsAt: Ms
  /** Share of time that prefill added to decoding lately. */
  prefillShare(now: Ms): number
  /** Variance of the time that prefill adds, by ms of time: few long prompts scatter paces more than many short ones. */
  jolt(now: Ms): Ms
}

/** Prefill can slow decoding so much, at most, that a prediction still says something. Source: algorithms 6.3. */
const PREFILL_SHARE_MAX = 0.85

/**
 * Time to first token of a request sent now. Prompts are computed in order of their coming, those that wait together
 * in one batch; of the batch under way only what is left counts (algorithms 6.2, 6.3).
 * @param cachedTokens  expected to be found in the replica's prefix cache
 */
export function expectedTtft(load: Load, promptTokens: number, cachedTokens: number, now: Ms): Ms {
  const { factor, fit, streams, contextTokens } = load
  const { cost, budget } = fit
  const fresh = Math.max(1, promptTokens - cachedTokens)
  const pairs = promptPairs(promptTokens, fresh)
  const ready = now + cost.netMs
  const work = (tokens: number, itsPairs: number): Ms =>
    factor * prefillMs(cost, streams, contextTokens, tokens, itsPairs, budget)
  if (load.waiting > 0 && ready <= load.prefillFrom) {
    const end = load.prefillFrom + work(load.waitingTokens + fresh, load.waitingPairs + pairs)
    return end - now
  }
  const latePairs = load.waitingTokens > 0 ? (load.waitingPairs * load.lateTokens) / load.waitingTokens : 0
  const under = load.waitingTokens - load.lateTokens
  const freeAt =
    load.waiting > 0 ? load.prefillFrom + work(under, load.waitingPairs - latePairs) : load.stepEndsAt
  // Ready in the middle of a later step: on average half of it is left.
  const half = streams > 0 ? (factor * stepMs(cost, streams, contextTokens, 0)) / 2 : 0
  const begin = freeAt >= ready ? freeAt : ready + half
  return begin - now + work(load.lateTokens + fresh, latePairs + pairs)
}

/**
 * Mean time per output token of a request sent now: those that wait will decode beside it, and prompts will come as
 * they did lately.
 * @param outputTokens  expected of it
 */
export function expectedTpot(load: Load, promptTokens: number, outputTokens: number, now: Ms): Ms {
  const streams = load.streams + load.waiting + 1
  const context = load.contextTokens + load.waitingTokens + promptTokens + outputTokens / 2
  const decode = load.factor * stepMs(load.fit.cost, streams, context, 0)
  return decode / (1 - Math.min(PREFILL_SHARE_MAX, load.prefillShare(now)))
}
