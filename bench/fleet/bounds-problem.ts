/** The question that a bound answers: a list of requests with all that only the future knows, and a fleet. */
import { BLOCK_TOKENS } from '../../src/sim/kv-cache.js'
import type { EngineProfile } from '../../src/sim/profiles.js'
import { stepMs } from '../../src/sim/step-cost.js'
import { type Clauses, TPOT_JITTER_MS, TPOT_MIN_TOKENS } from '../../src/slo/slo.js'
import type { Ms } from '../../src/time.js'

/** One request, its true length included. It is sent once and never asked for again. */
export interface Job {
  /** Index into `Problem.classes`. */
  readonly cls: number
  readonly arrivalMs: Ms
  readonly promptTokens: number
  readonly outputTokens: number
  /** As `EngineRequest.blockHashes`; none: nothing of it is ever found in a cache. */
  readonly blockHashes: ArrayLike<number>
}

export interface Problem {
  /** Of every replica. */
  readonly profile: EngineProfile
  readonly replicas: number
  readonly classes: readonly { readonly name: string; readonly clauses: Clauses }[]
  /** In order of arrival. */
  readonly jobs: readonly Job[]
}

/** What is least needed of an engine for one job, and until when. */
export interface Need {
  /** Prompt tokens that the first job with this text has to have computed. */
  readonly uncached: number
  /** Time in iterations for its prefill and for its decoding where every token pays its matrix work only, ms. */
  readonly prefillMs: Ms
  readonly decodeMs: Ms
  /** First moment at which an engine sees it. */
  readonly from: Ms
  /** Latest first token and latest last token with which it is good; the first is the last for deadline work. */
  readonly firstBy: Ms
  readonly lastBy: Ms
  /** Good on an idle replica that holds every block it shares with any other job. */
  readonly possible: boolean
}

/** First to last token at most, for the TPOT clause. Source: `judge` in slo/verdict.ts. */
export function spanMs(outputTokens: number, tpotMs: Ms): Ms {
  return (outputTokens - 1) * tpotMs + (outputTokens < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0)
}

/** From arrival to last token at most, for the deadline and the floor on speed. */
export function withinMs(outputTokens: number, clauses: Extract<Clauses, { kind: 'deadline' }>): Ms {
  const floor = clauses.minTokensPerSecond
  return floor > 0 ? Math.min(clauses.deadlineMs, (outputTokens * 1000) / floor) : clauses.deadlineMs
}

/**
 * The needs of all jobs.
 *
 * An iteration with T tokens takes at least g T + c S + a A + d K (`stepMs` without the weight read), and each term is
 * a sum over what each sequence computes in it: so what one job costs there is its own, whoever else is in the batch.
 * Text that several jobs begin with is charged once, to the first of them to arrive. That is never too much: if any
 * of them is served, some iteration between the first one's arrival and the last token of the one charged computed it.
 */
export function needsOf(problem: Problem): Need[] {
  const { cost, overheadMs } = problem.profile
  const seen = new Map<number, number>()
  for (const job of problem.jobs) {
    for (let at = 0; at < job.blockHashes.length; at++) {
      const hash = job.blockHashes[at] as number
      seen.set(hash, (seen.get(hash) ?? 0) + 1)
    }
  }
  const before = new Set<number>()
  return problem.jobs.map(job => {
    const { promptTokens: prompt, outputTokens: output, blockHashes } = job
    const whole = Math.min(blockHashes.length, Math.floor((prompt - 1) / BLOCK_TOKENS))
    let known = 0
    while (known < whole && before.has(blockHashes[known] as number)) known++
    let shared = 0
    while (shared < whole && (seen.get(blockHashes[shared] as number) ?? 0) > 1) shared++
    for (let at = 0; at < blockHashes.length; at++) before.add(blockHashes[at] as number)

    const past = known * BLOCK_TOKENS
    const uncached = prompt - past
    const steps = output - 1
    const prefillMs =
      (cost.gMsPerKtok * uncached) / 1000 +
      cost.cMsPerSeq +
      (cost.aMsPerMtok2 * uncached * (past + uncached / 2)) / 1e6
    const decodeMs = (cost.gMsPerKtok * steps) / 1000 + cost.cMsPerSeq * steps + kvReadMs(problem, job)
    const clauses = problem.classes[job.cls]?.clauses as Clauses
    const alone = aloneMs(problem.profile, job, shared * BLOCK_TOKENS)
    const from = job.arrivalMs + overheadMs
    if (clauses.kind === 'stream') {
      const firstBy = job.arrivalMs + clauses.ttftMs
      const span = spanMs(output, clauses.tpotMs)
      const possible = from + alone.firstMs <= firstBy && alone.spanMs <= span
      return { uncached, prefillMs, decodeMs, from, firstBy, lastBy: firstBy + span, possible }
    }
    const lastBy = job.arrivalMs + withinMs(output, clauses)
    const possible = from + alone.firstMs + alone.spanMs <= lastBy
    return { uncached, prefillMs, decodeMs, from, firstBy: lastBy, lastBy, possible }
  })
}

/** Reading the KV of all tokens so far, once for each token after the first. */
function kvReadMs({ profile }: Problem, { promptTokens, outputTokens }: Job): Ms {
  const steps = outputTokens - 1
  return (profile.cost.dMsPerKkv * (steps * promptTokens + (steps * outputTokens) / 2)) / 1000
}

/** Prefill and decoding of a job that has a replica for itself. Others in a batch can only make it longer. */
function aloneMs(profile: EngineProfile, job: Job, cached: number): { firstMs: Ms; spanMs: Ms } {
  const { cost } = profile
  let firstMs = 0
  for (let past = cached; past < job.promptTokens; ) {
    const chunk = Math.min(profile.maxBatchedTokens, job.promptTokens - past)
    firstMs += stepMs(cost, chunk, 1, chunk * (past + chunk / 2), 0)
    past += chunk
  }
  const steps = job.outputTokens - 1
  // The step's time is linear in the KV: the mean length gives the sum.
  const spanMs = steps * stepMs(cost, 1, 1, 0, job.promptTokens + job.outputTokens / 2)
  return { firstMs, spanMs }
}
