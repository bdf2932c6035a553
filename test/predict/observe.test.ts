import t from 'tap'
import { RelativeErrors } from '../../src/predict/errors.js'
import type { Flight } from '../../src/predict/flight.js'
import { expectedTpot, expectedTtft } from '../../src/predict/latency.js'
import { ReplicaObserver } from '../../src/predict/observe.js'
import { type StepCost, StepFit, stepMs } from '../../src/predict/step.js'
import { Engine } from '../../src/sim/engine.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { EngineRequest } from '../../src/sim/sequence.js'
import { EngineHost, World } from '../../src/sim/world.js'
import { seededRng } from '../../src/time.js'

interface Watched extends EngineRequest {
  flight: Flight
  readonly ttft: number
  readonly tpot: number
  /** Tokens since its last event. */
  held: number
}

interface Played {
  readonly fit: StepFit
  readonly observer: ReplicaObserver
  readonly ttft: RelativeErrors
  readonly tpot: RelativeErrors
}

/**
 * Poisson traffic on a simulated engine, watched from outside.
 * @param coalesce  tokens in an event
 * @param smearMs   a step's events come one after another within this time
 * @param told      usage comes at the end
 */
function play(o: {
  profile: string
  rate: number
  seconds: number
  seed?: number
  coalesce?: number
  smearMs?: number
  told?: boolean
}): Played {
  const { coalesce = 1, smearMs = 0, told = true } = o
  const rng = seededRng(o.seed ?? 1)
  const world = new World()
  const fit = new StepFit()
  const observer = new ReplicaObserver(fit, 0)
  const played: Played = { fit, observer, ttft: new RelativeErrors(), tpot: new RelativeErrors() }
  const engine = new Engine<Watched>({ profile: profileNamed(o.profile) })
  const host = new EngineHost<Watched>(world, engine, step => {
    step.emitted.forEach((one, i) => {
      const now = step.endedAt + (smearMs * i) / step.emitted.length
      const { request } = one
      const ended = one.generated === one.outputTokens
      if (one.generated === one.fresh) {
        observer.firstToken(request.flight, now, 1)
        if (fit.calibrated) played.ttft.add(request.ttft, now - one.arrivedAt)
      } else if (++request.held === coalesce || ended) {
        observer.mark(request.flight, now, request.held)
        request.held = 0
      }
      if (!ended) return
      observer.ended(
        request.flight,
        now,
        told ? { promptTokens: one.promptTokens, cachedTokens: 0 } : undefined,
      )
      const span = (one.lastTokenAt ?? 0) - (one.firstTokenAt ?? 0)
      if (fit.calibrated && one.generated > 100) played.tpot.add(request.tpot, span / (one.generated - 1))
    })
  })
  for (let at = 0; at < o.seconds * 1000; at += (-Math.log(1 - rng.next()) / o.rate) * 1000) {
    const promptTokens = Math.round(200 + 4000 * rng.next() ** 3)
    const outputTokens = Math.round(20 + 400 * rng.next())
    world.at(at, () => {
      const now = world.now()
      const ttft = expectedTtft(observer, promptTokens, 0, now)
      const tpot = expectedTpot(observer, promptTokens, outputTokens, now)
      const flight = observer.dispatched(promptTokens, 0, now)
      host.submit({ promptTokens, outputTokens, flight, ttft, tpot, held: 0 })
    })
  }
  world.run()
  return played
}

for (const [profile, rate] of [
  ['llama3-8b', 8],
  ['qwen3-32b', 4],
  ['llama2-70b', 1.2],
] as const) {
  t.test(
    `on ${profile} TTFT is predicted within 10 % at the median, the step within 8 % at the mean`,
    async t => {
      const { ttft, fit, tpot } = play({ profile, rate, seconds: 400 })
      t.ok(ttft.count > 50, `${ttft.count} predictions`)
      t.ok((ttft.medianAbsolute ?? 1) < 0.1, `TTFT ${ttft.medianAbsolute}`)
      t.ok(Math.abs(ttft.bias ?? 1) < 0.06, `bias ${ttft.bias}`)
      t.ok((tpot.medianAbsolute ?? 1) < 0.15, `TPOT ${tpot.medianAbsolute}`)
      t.ok(fit.relativeError < 0.08, `step ${fit.relativeError}`)
    },
  )
}

t.test('after the last end there is nothing left', async t => {
  const { observer } = play({ profile: 'llama3-8b', rate: 8, seconds: 30 })
  t.match(observer, { streams: 0, contextTokens: 0, waiting: 0, waitingTokens: 0, waitingPairs: 0 })
})

t.test(
  'events of several tokens, and events that trail behind their step, teach nearly the same',
  async t => {
    const plain = play({ profile: 'llama3-8b', rate: 6, seconds: 240 }).fit.cost
    const at = (cost: StepCost, prefill: number): number => stepMs(cost, 20, 30_000, prefill)
    for (const how of [{ coalesce: 8 }, { smearMs: 1.5 }, { smearMs: 4 }]) {
      const { cost } = play({ profile: 'llama3-8b', rate: 6, seconds: 240, ...how }).fit
      for (const prefill of [0, 1000, 4000]) {
        const ratio = at(cost, prefill) / at(plain, prefill)
        t.ok(Math.abs(ratio - 1) < 0.12, `${JSON.stringify(how)}, ${prefill}: ${ratio}`)
      }
    }
  },
)

t.test('the tokens of a step are learned, larger and smaller than thought', async t => {
  const small = play({ profile: 'worked-example', rate: 2, seconds: 400 }).fit.budget
  t.ok(small > 700 && small < 2100, `${small} of 1,024`)
  const large = play({ profile: 'llama3-8b', rate: 2, seconds: 100 }).fit.budget
  t.ok(large > 3500, `${large}: as much as one prompt had in one step`)
})

t.test('prompts that never told their tokens teach decoding only', async t => {
  const { fit } = play({ profile: 'llama3-8b', rate: 6, seconds: 60, told: false })
  const engine = 7.1 + 0.043 + 0.04 * 20
  t.ok(Math.abs(stepMs(fit.cost, 10, 20_000, 0) / engine - 1) < 0.1, `${stepMs(fit.cost, 10, 20_000, 0)}`)
  t.ok(Math.abs(fit.cost.perPrefillMs / 0.06 - 1) < 0.05, 'prefill stays at the prior')
})

t.test('what was cached is known at the end, and counts from there', async t => {
  const fit = new StepFit()
  const observer = new ReplicaObserver(fit, 0)
  const rng = seededRng(3)
  // Steps of 10 ms, and of 30 where a prompt of 4,000 tokens is in them, of which 3,000 were cached, untold.
  let now = 0
  const others = Array.from({ length: 10 }, () => {
    const flight = observer.dispatched(500, 0, now)
    observer.firstToken(flight, now, 1)
    return flight
  })
  let flight: Flight | undefined
  const step = (ms: number): void => {
    now += ms
    for (const other of others) observer.mark(other, now, 1)
  }
  for (let i = 0; i < 20_000; i++) {
    if (flight === undefined && rng.next() < 0.1) {
      flight = observer.dispatched(4000, 0, now + 10 * rng.next())
      step(10)
      step(30)
      observer.firstToken(flight, now, 1)
    }
    step(10)
    if (flight === undefined) continue
    observer.mark(flight, now, 1)
    if (rng.next() > 0.3) continue
    observer.ended(flight, now, { promptTokens: 4000, cachedTokens: 3000 })
    flight = undefined
  }
  const more = stepMs(fit.cost, 10, 5000, 1000) + fit.cost.perPairMs * 3.5e6 - stepMs(fit.cost, 10, 5000, 0)
  t.ok(Math.abs(more / 20 - 1) < 0.1, `1,000 new tokens add ${more} of 20 ms`)
})

t.test('of a prompt under way only what is left counts', async t => {
  const cost: StepCost = {
    floorMs: 10,
    mixedFloorMs: 0,
    perStreamMs: 0,
    perContextMs: 0,
    perPrefillMs: 0.05,
    perPairMs: 0,
    netMs: 0,
  }
  const fit = new StepFit(cost)
  fit.budget = 8192
  const observer = new ReplicaObserver(fit, 0)
  t.ok(Math.abs(expectedTtft(observer, 2000, 0, 0) - 100) < 1e-6, 'alone')
  t.ok(Math.abs(expectedTtft(observer, 2000, 1500, 0) - 25) < 1e-6, 'with what is cached left out')
  const first = observer.dispatched(4000, 0, 0)
  t.ok(
    Math.abs(expectedTtft(observer, 2000, 0, 50) - 250) < 1e-6,
    '150 ms are left of the first, 100 are its own',
  )
  const second = observer.dispatched(2000, 0, 50)
  t.ok(
    Math.abs(expectedTtft(observer, 1000, 0, 100) - 250) < 1e-6,
    '100 left, then both that came later, in one step',
  )
  observer.firstToken(first, 200, 1)
  t.ok(
    Math.abs(expectedTtft(observer, 1000, 0, 200) - 150) < 1e-6,
    'the second begins now, and this joins it',
  )
  t.equal(observer.waitingTokens, 2000)
  observer.ended(second, 210, undefined)
  t.match(observer, { waiting: 0, waitingTokens: 0, lateTokens: 0, streams: 1, contextTokens: 4001 })
  t.ok(Math.abs(expectedTpot(observer, 1000, 100, 210) - 10 / (1 - observer.prefillShare(210))) < 1e-6)
})

t.test('relative errors have a median, a tail and a sign', async t => {
  const errors = new RelativeErrors()
  t.equal(errors.medianAbsolute, undefined)
  for (let i = 1; i <= 100; i++) errors.add(100 + i, 100)
  errors.add(5, 0)
  t.equal(errors.count, 100)
  t.ok(Math.abs((errors.medianAbsolute ?? 0) - 0.5) < 1e-6)
  t.ok(Math.abs((errors.p90Absolute ?? 0) - 0.9) < 1e-6)
  t.ok(Math.abs((errors.bias ?? 0) - 0.5) < 1e-6)
  for (let i = 0; i < 512; i++) errors.add(80, 100)
  t.ok(Math.abs((errors.bias ?? 0) + 0.2) < 1e-6, 'the old ones are gone')
})
