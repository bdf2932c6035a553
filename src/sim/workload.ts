/** Closed-loop load on one engine in virtual time, and what came of it. */
import { type Ms, type Rng, seededRng } from '../time.js'
import { drawLength, type LengthSpec } from './draw.js'
import { Engine } from './engine.js'
import type { EngineProfile } from './profiles.js'
import type { Sequence } from './sequence.js'
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

export interface Outcome {
  readonly ttftMs: Ms
  /** undefined where the answer has one token. */
  readonly tpotMs: Ms | undefined
  readonly outputTokens: number
}

export interface ClosedLoop {
  readonly profile: EngineProfile
  readonly mix: LengthMix
  /** Requests in flight at all times. */
  readonly concurrency: number
  /** Requests to measure, by order of their end. */
  readonly requests: number
  /** Requests that end before measuring begins. */
  readonly warmup: number
  readonly seed: number
}

export interface ClosedLoopResult {
  readonly outcomes: readonly Outcome[]
  /** From the end of the last warm-up request to the end of the last measured one. */
  readonly spanMs: Ms
  readonly preemptions: number
}

/** Keeps `concurrency` requests in flight without think time; same seed, same result. */
export function runClosedLoop(loop: ClosedLoop): ClosedLoopResult {
  const rng: Rng = seededRng(loop.seed)
  const world = new World()
  const outcomes: Outcome[] = []
  let ends = 0
  let from = 0
  let to = 0
  const send = (): void => {
    host.submit({
      promptTokens: drawLength(loop.mix.input, rng),
      outputTokens: drawLength(loop.mix.output, rng),
    })
  }
  const host = new EngineHost(world, new Engine({ profile: loop.profile, coarse: true }), step => {
    for (const sequence of step.ended) {
      ends++
      if (ends === loop.warmup) from = step.endedAt
      if (ends > loop.warmup && outcomes.length < loop.requests) {
        outcomes.push(outcomeOf(sequence))
        to = step.endedAt
      }
      send()
    }
  })
  for (let i = 0; i < loop.concurrency; i++) send()
  world.run(undefined, () => outcomes.length === loop.requests)
  return { outcomes, spanMs: to - from, preemptions: host.engine.totals.preemptions }
}

function outcomeOf(sequence: Sequence): Outcome {
  const first = sequence.firstTokenAt ?? Number.NaN
  const last = sequence.lastTokenAt ?? Number.NaN
  const tokens = sequence.generated
  return {
    ttftMs: first - sequence.arrivedAt,
    tpotMs: tokens < 2 ? undefined : (last - first) / (tokens - 1),
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
