/** The independent answer: a closed-loop sweep of the simulated engine itself, which knows nothing of the model. */
import { Engine } from '../../src/sim/engine.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { EngineRequest, Sequence } from '../../src/sim/sequence.js'
import { EngineHost, World } from '../../src/sim/world.js'
import { TPOT_JITTER_MS, TPOT_MIN_TOKENS, type TrafficClass } from '../../src/slo/slo.js'
import { seededRng } from '../../src/time.js'
import type { Call, Workload } from './workloads.js'

/** Lognormal jitter of an iteration; 1 to 3 % were measured (engine-data). */
export const JITTER = 0.02

export interface Point {
  readonly concurrency: number
  readonly requestsPerSec: number
  /** Smallest distance of a class from its promise. */
  readonly margin: number
}

export interface Swept {
  readonly concurrency: number
  readonly requestsPerSec: number
  /** Where the promise breaks, between that concurrency and the next. */
  readonly edgeRequestsPerSec: number
}

export type Tagged = EngineRequest & { readonly cls: number }

export const tagged = (call: Call): Tagged => ({ ...call.request, cls: call.cls })

export function isGood(one: Sequence, traffic: TrafficClass): boolean {
  const { clauses } = traffic.target
  const first = one.firstTokenAt ?? Number.NaN
  const last = one.lastTokenAt ?? Number.NaN
  if (clauses.kind === 'deadline') return last - one.arrivedAt <= clauses.deadlineMs
  const allowance = one.generated < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0
  return (
    first - one.arrivedAt <= clauses.ttftMs &&
    last - first <= (one.generated - 1) * clauses.tpotMs + allowance
  )
}

function point(load: Workload, concurrency: number, requests: number, seed: number): Point {
  const world = new World()
  const noise = { sigma: JITTER, rng: seededRng(seed + 5000) }
  const next = load.source(seed)
  const warmup = Math.max(300, Math.round(requests / 10))
  const all = load.classes.map(() => 0)
  const good = load.classes.map(() => 0)
  let [ends, from, to] = [0, 0, 0]
  const engine = new Engine<Tagged>({ profile: profileNamed(load.profile), noise, coarse: true })
  const host = new EngineHost<Tagged>(world, engine, step => {
    for (const one of step.ended) {
      ends++
      if (ends === warmup) from = step.endedAt
      host.submit(tagged(next()))
      if (ends <= warmup || ends > warmup + requests) continue
      to = step.endedAt
      const { cls } = one.request
      all[cls] = (all[cls] ?? 0) + 1
      const traffic = load.classes[cls]
      if (traffic !== undefined && isGood(one, traffic)) good[cls] = (good[cls] ?? 0) + 1
    }
  })
  for (let i = 0; i < concurrency; i++) host.submit(tagged(next()))
  world.run(undefined, () => ends >= warmup + requests)
  const margins = load.classes.map((one, i) =>
    all[i] ? (good[i] ?? 0) / (all[i] ?? 1) - one.target.percentile / 100 : 1,
  )
  return { concurrency, requestsPerSec: (requests / (to - from)) * 1000, margin: Math.min(...margins) }
}

/** The knee over several seeds taken together: every point is their mean. */
export function sweep(load: Workload, requests: number, seeds: readonly number[]): Swept {
  const tried = new Map<number, Point>()
  const at = (concurrency: number): Point => {
    const known = tried.get(concurrency)
    if (known !== undefined) return known
    const points = seeds.map(seed => point(load, concurrency, requests, seed))
    const mean = (of: (one: Point) => number): number =>
      points.reduce((sum, one) => sum + of(one), 0) / points.length
    const made = {
      concurrency,
      requestsPerSec: mean(one => one.requestsPerSec),
      margin: mean(one => one.margin),
    }
    tried.set(concurrency, made)
    return made
  }
  let pass = 1
  let fail = 2
  while (at(fail).margin >= 0) {
    pass = fail
    fail *= 2
  }
  while (fail - pass > 1) {
    const middle = Math.floor((pass + fail) / 2)
    if (at(middle).margin >= 0) pass = middle
    else fail = middle
  }
  const low = at(pass)
  const high = at(fail)
  const share = low.margin / (low.margin - high.margin)
  return {
    concurrency: pass,
    requestsPerSec: low.requestsPerSec,
    edgeRequestsPerSec: low.requestsPerSec + share * (high.requestsPerSec - low.requestsPerSec),
  }
}
