/** A fixed list of requests out of a scenario, for bounds and for policies that are held against them. */
import type { Policy, PolicySpec } from '../../src/policy/policy.js'
import type { Stage } from '../../src/sim/cell.js'
import { Fleet } from '../../src/sim/fleet.js'
import { type Arrival, Job } from '../../src/sim/job.js'
import { Mix } from '../../src/sim/mix.js'
import { classesOf, policySpecOf } from '../../src/sim/scenario.js'
import { type Ms, type Rng, seededRng } from '../../src/time.js'
import type { Problem } from './bounds-problem.js'

/** When a call of a session is taken to end, so that the next one's time does not depend on who serves it. */
const CALL_MS: Ms = 500
const TOKEN_MS: Ms = 20
/** Sessions that are under way at the start come in over this share of the list. */
const WARM_SHARE = 0.2

/**
 * The first `requests` requests of a scenario. A session's next call comes its think time after a nominal end of the
 * one before (0.5 s, and 20 ms a token): a list that policies could stretch would have no bound.
 * @param load  multiple of the fleet's capacity
 * @throws RangeError where replicas differ or anything fails: the bounds know neither
 */
export function listOf(stage: Stage, load: number, seed: number, requests: number): Problem {
  const { scenario, profiles, fastest } = stage
  if (profiles.some(({ cost }) => cost.wMs !== fastest.cost.wMs) || scenario.faults.length > 0) {
    throw new RangeError(`bounds are for replicas of one kind and no faults; ${scenario.name} has others`)
  }
  const rates = stage.ratesAt(load)
  const spanMs = requests / rates.reduce((sum, rate) => sum + rate, 0)
  const mix = new Mix(
    {
      scenario: { ...scenario, warmupMs: spanMs * WARM_SHARE },
      traces: stage.traces,
      rates,
      // Beyond the list, should chance bring fewer.
      untilMs: spanMs * 1.5,
      seed,
    },
    Math.min(fastest.maxModelLen, fastest.kvTokens),
  )
  const jobs: Arrival[] = []
  const calls: Arrival[] = []
  let next = mix.next()
  while (jobs.length < requests) {
    const call = calls[0]
    let arrival: Arrival
    if (call !== undefined && (next === undefined || call.at < next.at)) {
      arrival = call
      calls.shift()
    } else {
      if (next === undefined) break
      arrival = next
      next = mix.next()
    }
    jobs.push(arrival)
    const nominalEnd = arrival.at + CALL_MS + arrival.outputTokens * TOKEN_MS
    const after = mix.after(new Job(arrival), nominalEnd)
    if (after === undefined) continue
    calls.push(after)
    calls.sort((a, b) => a.at - b.at)
  }
  return {
    profile: fastest,
    replicas: profiles.length,
    classes: scenario.classes.map(({ name, promise }) => ({ name, clauses: promise })),
    jobs: jobs.map(({ cls, at, promptTokens, outputTokens, blockHashes = [] }) => ({
      cls,
      arrivalMs: at,
      promptTokens,
      outputTokens,
      blockHashes,
    })),
  }
}

/** What a policy learns on before the list: other traffic of the scenario, and a pause in which all of it ends. */
const LESSON = { load: 0.9, seconds: 60, seed: 7919, pauseMs: 90_000 }

/** The list as traffic, `atMs` later, with what it shares told apart from other lists. */
function arrivalsOf({ jobs }: Problem, atMs: Ms, firstHash: number): Arrival[] {
  return jobs.map(({ cls, arrivalMs, promptTokens, outputTokens, blockHashes }) => ({
    at: arrivalMs + atMs,
    cls,
    promptTokens,
    outputTokens,
    blockHashes: Float64Array.from(blockHashes, hash => hash + firstHash),
  }))
}

/**
 * Good requests by class that a policy gets out of the list, on the same engines, empty at its start, without noise.
 * A minute of other traffic goes before, for policies that learn.
 */
export function goodUnder(
  stage: Stage,
  problem: Problem,
  create: (spec: PolicySpec, rng: Rng) => Policy,
  seed: number,
): number[] {
  const { scenario } = stage
  const good = problem.classes.map(() => 0)
  const rate = stage.ratesAt(LESSON.load).reduce((sum, each) => sum + each, 0)
  const lesson = listOf(stage, LESSON.load, seed + LESSON.seed, Math.ceil(rate * LESSON.seconds * 1000))
  const startMs = (lesson.jobs.at(-1)?.arrivalMs ?? 0) + LESSON.pauseMs
  const arrivals = [...arrivalsOf(lesson, 0, 0), ...arrivalsOf(problem, startMs, 2 ** 40)]
  let taken = 0
  const fleet = new Fleet({
    replicas: Array.from({ length: problem.replicas }, () => problem.profile),
    policy: create(policySpecOf(scenario), seededRng(seed)),
    classes: classesOf(scenario),
    models: stage.models,
    traffic: { next: () => arrivals[taken++] },
    ended: ({ arrival, good: isGood }) => {
      if (isGood && arrival.at >= startMs) good[arrival.cls] = (good[arrival.cls] as number) + 1
    },
  })
  fleet.run()
  return good
}
