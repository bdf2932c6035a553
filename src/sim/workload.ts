/** Closed-loop load on one engine in virtual time, and what came of it. */
import { type Ms, type Rng, seededRng } from '../time.js'
import { drawLength, type LengthSpec } from './draw.js'
import { Engine } from './engine.js'
import { BLOCK_TOKENS } from './kv-cache.js'
import type { EngineProfile } from './profiles.js'
import type { EngineRequest, Sequence } from './sequence.js'
import { EngineHost, World } from './world.js'

export interface LengthMix {
  readonly input: LengthSpec
  readonly output: LengthSpec
}

/** The lengths of the worked example in inference-slos: mean 4,620 in, 510 out. */
export const workedExampleMix: LengthMix = {
  input: { median: 2200, sigma: 1.3, min: 16, max: 32_000 },
  output: { median: 450, sigma: 0.5, min: 2, max: 2000 },
}

/** One request of a closed user. */
export interface Lengths {
  readonly inputTokens: number
  readonly outputTokens: number
  /** Text that it begins with and shares: equal leading ids are equal blocks of `blockTokens`, a multiple of 16. */
  readonly prefix: { readonly blockTokens: number; readonly ids: readonly number[] } | undefined
}

/**
 * The next request of a user, from 0. Each user draws from dice of its own: which requests it makes depends on the
 * seed alone, not on when answers come, so that a run over sockets and one in virtual time play the same.
 */
export type Users = (user: number) => Lengths

/** Shared text comes in blocks of this many tokens; what is left of a block is not shared. */
const SHARED_BLOCK_TOKENS = 64

/**
 * Users whose lengths follow two distributions, independent of each other.
 * @param cacheHit  share of each prompt, 0 to 1, that is the start of one text common to all: after the first
 *                  requests it is found in the prefix cache
 */
export function drawnUsers(mix: LengthMix, cacheHit: number, seed: number): Users {
  return eachWithRng(seed, rng => {
    const inputTokens = drawLength(mix.input, rng)
    const outputTokens = drawLength(mix.output, rng)
    const blocks = Math.floor((cacheHit * inputTokens) / SHARED_BLOCK_TOKENS)
    const ids = Array.from({ length: blocks }, (_, id) => id)
    const prefix = blocks === 0 ? undefined : { blockTokens: SHARED_BLOCK_TOKENS, ids }
    return { inputTokens, outputTokens, prefix }
  })
}

/** Users that each draw their requests from `rows`, any as likely as another. `rows` must not be empty. */
export function rowUsers(rows: readonly Lengths[], seed: number): Users {
  return eachWithRng(seed, rng => rows[Math.floor(rng.next() * rows.length)] as Lengths)
}

function eachWithRng(seed: number, draw: (rng: Rng) => Lengths): Users {
  const seeds = seededRng(seed)
  const rngs: Rng[] = []
  return user => {
    while (rngs.length <= user) rngs.push(seededRng(Math.floor(seeds.next() * 2 ** 32)))
    return draw(rngs[user] as Rng)
  }
}

export interface Outcome {
  readonly endedAt: Ms
  readonly ttftMs: Ms
  /** undefined where the answer has one token. */
  readonly tpotMs: Ms | undefined
  readonly e2eMs: Ms
  readonly inputTokens: number
  readonly outputTokens: number
}

export interface ClosedLoop {
  readonly profile: EngineProfile
  readonly users: Users
  /** Requests in flight at all times: as many users. */
  readonly concurrency: number
  /** Requests to measure, by order of their end. */
  readonly requests: number
  /** Requests that end before measuring begins. */
  readonly warmup: number
  /** Virtual time at which it stops, however many requests have ended; default never. */
  readonly untilMs?: Ms
}

export interface ClosedLoopResult {
  readonly outcomes: readonly Outcome[]
  /** From the end of the last warm-up request to the end of the last measured one. */
  readonly spanMs: Ms
  readonly preemptions: number
}

interface UserRequest extends EngineRequest {
  readonly user: number
}

/** Keeps `concurrency` requests in flight without think time; same users, same result. */
export function runClosedLoop(loop: ClosedLoop): ClosedLoopResult {
  const world = new World()
  const outcomes: Outcome[] = []
  let ends = 0
  let from = 0
  let to = 0
  const send = (user: number): void => {
    const { inputTokens, outputTokens, prefix } = loop.users(user)
    const hashes = prefix === undefined ? {} : { blockHashes: hashesOf(prefix, inputTokens) }
    host.submit({ user, promptTokens: inputTokens, outputTokens, ...hashes })
  }
  const engine = new Engine<UserRequest>({ profile: loop.profile, coarse: true })
  const host = new EngineHost<UserRequest>(world, engine, step => {
    for (const sequence of step.ended) {
      ends++
      if (ends === loop.warmup) from = step.endedAt
      if (ends > loop.warmup && outcomes.length < loop.requests) {
        outcomes.push(outcomeOf(sequence, step.endedAt))
        to = step.endedAt
      }
      send(sequence.request.user)
    }
  })
  for (let user = 0; user < loop.concurrency; user++) send(user)
  world.run(loop.untilMs, () => outcomes.length === loop.requests)
  return { outcomes, spanMs: to - from, preemptions: host.engine.totals.preemptions }
}

/** One hash a block of the engine; what the ids do not cover is nobody else's and needs none. */
function hashesOf({ blockTokens, ids }: NonNullable<Lengths['prefix']>, inputTokens: number): number[] {
  const parts = blockTokens / BLOCK_TOKENS
  const length = Math.min(ids.length * parts, Math.floor(inputTokens / BLOCK_TOKENS))
  return Array.from({ length }, (_, at) => (ids[Math.floor(at / parts)] ?? 0) * parts + (at % parts) + 1)
}

function outcomeOf(sequence: Sequence<UserRequest>, endedAt: Ms): Outcome {
  const first = sequence.firstTokenAt ?? Number.NaN
  const last = sequence.lastTokenAt ?? Number.NaN
  const tokens = sequence.generated
  return {
    endedAt,
    ttftMs: first - sequence.arrivedAt,
    tpotMs: tokens < 2 ? undefined : (last - first) / (tokens - 1),
    e2eMs: endedAt - sequence.arrivedAt,
    inputTokens: sequence.promptTokens,
    outputTokens: tokens,
  }
}

export interface LoadPoint {
  readonly ttftP50Ms: Ms
  readonly ttftP90Ms: Ms
  readonly tpotP50Ms: Ms
  readonly tpotP90Ms: Ms
  readonly outputTokensPerSec: number
  /** Output tokens of the requests that met both bounds, per second. */
  readonly goodputTokensPerSec: number
  /** Share of requests that met both, 0 to 1. */
  readonly goodShare: number
}

/** The figures of one closed-loop run under bounds on TTFT and on each request's mean TPOT. */
export function loadPoint(result: ClosedLoopResult, bounds: { ttftMs: Ms; tpotMs: Ms }): LoadPoint {
  const ttft = result.outcomes.map(outcome => outcome.ttftMs).sort((a, b) => a - b)
  const tpot = result.outcomes.flatMap(outcome => outcome.tpotMs ?? []).sort((a, b) => a - b)
  const good = result.outcomes.filter(
    outcome => outcome.ttftMs <= bounds.ttftMs && (outcome.tpotMs ?? 0) <= bounds.tpotMs,
  )
  const tokens = (outcomes: readonly Outcome[]): number =>
    outcomes.reduce((sum, outcome) => sum + outcome.outputTokens, 0)
  return {
    ttftP50Ms: quantile(ttft, 0.5),
    ttftP90Ms: quantile(ttft, 0.9),
    tpotP50Ms: quantile(tpot, 0.5),
    tpotP90Ms: quantile(tpot, 0.9),
    outputTokensPerSec: (tokens(result.outcomes) / result.spanMs) * 1000,
    goodputTokensPerSec: (tokens(good) / result.spanMs) * 1000,
    goodShare: good.length / result.outcomes.length,
  }
}

/** Nearest rank in a sorted list; NaN where it is empty. */
function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN
}
