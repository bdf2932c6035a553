/** Live traffic in virtual time: eight replicas under a rising load, watched from outside. */
import { RelativeErrors } from '../../src/predict/errors.js'
import { type Flight, promptPairs } from '../../src/predict/flight.js'
import { expectedTpot, expectedTtft } from '../../src/predict/latency.js'
import { ReplicaObserver } from '../../src/predict/observe.js'
import { RecentRequests } from '../../src/predict/recent.js'
import { StepFit, stepMs } from '../../src/predict/step.js'
import { Engine, type Step } from '../../src/sim/engine.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { Sequence } from '../../src/sim/sequence.js'
import { EngineHost, World } from '../../src/sim/world.js'
import { seededRng } from '../../src/time.js'
import { JITTER, type Tagged, tagged } from './sweep.js'
import type { Call, Workload } from './workloads.js'

export const REPLICAS = 8
/** First tokens after which predictions are counted. Source: algorithms M13, converged in 200 requests. */
const CONVERGED = 200

export interface LiveOptions {
  /** Arrivals on one replica, requests a second, at the begin and at the end; Poisson, rising in between. */
  readonly from: number
  readonly to: number
  readonly seconds: number
  readonly seed: number
}

export interface Live {
  readonly fit: StepFit
  readonly recent: RecentRequests
  readonly ttft: RelativeErrors
  readonly tpot: RelativeErrors
  /** The model's pace for the steps that then were, against the real one. */
  readonly hindsight: RelativeErrors
  /** By replica, for each has sessions of its own. */
  readonly calls: Call[][]
}

interface Watched extends Tagged {
  flight: Flight
  readonly ttft: number
  readonly tpot: number
  modelledAtFirst: number
}

export function live(load: Workload, options: LiveOptions): Live {
  const world = new World()
  const made: Live = {
    fit: new StepFit(),
    recent: new RecentRequests(),
    ttft: new RelativeErrors(),
    tpot: new RelativeErrors(),
    hindsight: new RelativeErrors(),
    calls: Array.from({ length: REPLICAS }, () => []),
  }
  for (let replica = 0; replica < REPLICAS; replica++) runReplica(load, options, world, made, replica)
  world.run(options.seconds * 1000)
  return made
}

function runReplica(load: Workload, options: LiveOptions, world: World, made: Live, replica: number): void {
  const seed = options.seed * 100 + replica
  const rng = seededRng(seed + 7_000)
  const noise = { sigma: JITTER, rng: seededRng(seed + 8_000) }
  const next = load.source(seed + 9_000)
  const observer = new ReplicaObserver(made.fit, replica)
  let outputs = 0
  let ends = 0
  let modelled = 0
  const engine = new Engine<Watched>({ profile: profileNamed(load.profile), noise })
  const host = new EngineHost<Watched>(world, engine, step => {
    modelled += modelledMs(observer, step)
    tell(observer, step)
    for (const one of step.begun) {
      one.request.modelledAtFirst = modelled
      if (made.fit.firstTokens > CONVERGED) made.ttft.add(one.request.ttft, step.endedAt - one.arrivedAt)
    }
    for (const one of step.ended) {
      finish(one, made, modelled)
      outputs += one.generated
      ends++
    }
  })
  const submit = (): void => {
    const now = world.now()
    const call = next()
    const asked = tagged(call)
    made.calls[replica]?.push(call)
    const cached = asked.promptTokens * made.recent.cachedShare(asked.cls)
    const ttft = expectedTtft(observer, asked.promptTokens, cached, now)
    const tpot = expectedTpot(observer, asked.promptTokens, ends === 0 ? 200 : outputs / ends, now)
    host.submit({
      ...asked,
      ttft,
      tpot,
      modelledAtFirst: 0,
      flight: observer.dispatched(asked.promptTokens, cached, now),
    })
  }
  const end = options.seconds * 1000
  const again = (): void => {
    const share = world.now() / end
    const perMs = (options.from + share * (options.to - options.from)) / 1000
    const at = world.now() - Math.log(1 - rng.next()) / perMs
    world.at(at, () => {
      submit()
      again()
    })
  }
  again()
}

/** What a router sees of a step. */
function tell(observer: ReplicaObserver, step: Step<Watched>): void {
  for (const one of step.emitted) {
    if (one.generated === one.fresh) observer.firstToken(one.request.flight, step.endedAt, one.fresh)
    else observer.mark(one.request.flight, step.endedAt, one.fresh)
  }
  for (const one of step.ended) {
    const { promptTokens, cachedTokens } = one
    observer.ended(one.request.flight, step.endedAt, { promptTokens, cachedTokens })
  }
}

/** What the model, knowing what was in the step, would have it take. */
function modelledMs(observer: ReplicaObserver, step: Step<Watched>): number {
  const { cost } = observer.fit
  const pairs = step.begun.reduce(
    (sum, one) => sum + promptPairs(one.promptTokens, one.promptTokens - one.cachedTokens),
    0,
  )
  const own = stepMs(cost, step.decodeTokens, observer.contextTokens, step.prefillTokens)
  return observer.factor * (own + cost.perPairMs * pairs)
}

function finish(one: Sequence<Watched>, made: Live, modelled: number): void {
  const { promptTokens, cachedTokens, generated } = one
  made.recent.add({ cls: one.request.cls, promptTokens, cachedTokens, outputTokens: generated })
  const span = (one.lastTokenAt ?? 0) - (one.firstTokenAt ?? 0)
  if (made.fit.firstTokens <= CONVERGED || generated < 8) return
  made.tpot.add(one.request.tpot, span / (generated - 1))
  made.hindsight.add(modelled - one.request.modelledAtFirst, span)
}
