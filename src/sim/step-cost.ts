/** What one engine iteration costs, from what is in it. */
import type { Ms } from '../time.js'

/** Coefficients of one model on one GPU group; `profiles.ts` has the fitted ones. */
export interface StepCoefficients {
  /** Weight read plus launch floor, ms. */
  readonly wMs: number
  /** Matrix multiply, ms per 1,000 tokens. */
  readonly gMsPerKtok: number
  /** Overhead, ms per sequence in the batch. */
  readonly cMsPerSeq: number
  /** Prefill attention, ms per 10^6 token pairs. */
  readonly aMsPerMtok2: number
  /** KV read by decodes, ms per 1,000 tokens. */
  readonly dMsPerKkv: number
  /** Sharpness of the knee between `wMs` and `gMsPerKtok`: a p-norm exponent, no length. */
  readonly p: number
}

/**
 * Time of one iteration: a soft roofline over the tokens computed, plus what grows with sequences, prefill
 * attention and the KV read.
 * @param tokens     tokens computed, prefill and decode together
 * @param sequences  prefill chunks + decoding sequences
 * @param attention  sum over prefill chunks of chunk * (past + chunk / 2), tokens^2
 * @param kvTokens   sum of the decoding sequences' current lengths, tokens
 * @returns ms
 * Source: our fits on public measurements (aiconfigurator, splitwise-sim, vidur); held-out error is 1 to 4 % at
 * the median.
 */
export function stepMs(
  cost: StepCoefficients,
  tokens: number,
  sequences: number,
  attention: number,
  kvTokens: number,
): Ms {
  const matrix = (cost.gMsPerKtok * tokens) / 1000
  const roofline =
    cost.p === 2
      ? Math.sqrt(cost.wMs * cost.wMs + matrix * matrix)
      : (cost.wMs ** cost.p + matrix ** cost.p) ** (1 / cost.p)
  return (
    roofline +
    cost.cMsPerSeq * sequences +
    (cost.aMsPerMtok2 * attention) / 1e6 +
    (cost.dMsPerKkv * kvTokens) / 1000
  )
}
