/** The outlook of a pool in virtual time: simulated engines behind the policy's door, watched from there. */
import t from 'tap'
import { Outlook, type OutlookDials } from '../../src/policy/outlook.js'
import type { PolicySpec } from '../../src/policy/policy.js'
import type { PoolReading } from '../../src/policy/pool-outlook.js'
import { createPolicy } from '../../src/policy/simple.js'
import { watched, witnessed } from '../../src/policy/watched.js'
import { Forecast } from '../../src/predict/forecast.js'
import { drawLength } from '../../src/sim/draw.js'
import { Fleet } from '../../src/sim/fleet.js'
import type { Arrival } from '../../src/sim/job.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { Finding } from '../../src/slo/diagnoser.js'
import type { SweptBudget } from '../../src/slo/sweep.js'
import { seededRng } from '../../src/time.js'
import { ask, complete, specOf, stream } from './world.js'

const DIALS: OutlookDials = {
  sweeps: new Map(),
  autoscale: { target: 0.7, down: 0.55, coldStartMs: 180_000 },
}
const MINUTE = 60_000
const PROMPTS = { median: 1500, sigma: 0.7, min: 32, max: 16_000 }
const ANSWERS = { median: 130, sigma: 0.7, min: 2, max: 2000 }

interface Played {
  readonly outlook: Outlook
  /** What was diagnosed, in order; undefined: it is over. */
  readonly found: (Finding | undefined)[]
  /** Of the requests that ended: all, and the good ones. */
  readonly ends: { all: number; good: number }
  readonly fleet: Fleet
  reading(): PoolReading
}

/** Poisson traffic of chats on qwen3-32b. */
function play(o: {
  replicas: number
  perSecond: (now: number) => number
  minutes: number
  limit?: number
  dials?: Partial<OutlookDials>
  during?: (fleet: Fleet) => void
  seed?: number
}): Played {
  const spec: PolicySpec = specOf([o.replicas], o.limit ?? 200)
  const rng = seededRng(o.seed ?? 1)
  const forecast = new Forecast(spec)
  const policy = watched(createPolicy(spec, seededRng(2)), forecast)
  const found: (Finding | undefined)[] = []
  const outlook = new Outlook(
    {
      spec,
      ...DIALS,
      ...o.dials,
      forecast,
      replicas: now => policy.state(now).replicas,
      hour: () => 12,
      burn: () => undefined,
      diagnosed: (_, finding) => found.push(finding),
    },
    0,
  )
  const ends = { all: 0, good: 0 }
  let at = 0
  const next = (): Arrival | undefined => {
    at += (-Math.log(1 - rng.next()) / o.perSecond(at)) * 1000
    if (at > o.minutes * MINUTE) return undefined
    return { at, cls: 0, promptTokens: drawLength(PROMPTS, rng), outputTokens: drawLength(ANSWERS, rng) }
  }
  const fleet = new Fleet({
    replicas: Array.from({ length: o.replicas }, () => profileNamed('qwen3-32b')),
    policy: witnessed(policy, outlook),
    classes: spec.classes,
    models: ['m'],
    traffic: { next },
    noise: { sigma: 0.02, rng: seededRng(3) },
    ended: (_, { verdict }) => {
      ends.all++
      if (verdict === 'good') ends.good++
    },
  })
  const tick = (): void => {
    if (fleet.now >= outlook.dueAt) outlook.due(fleet.now)
    if (fleet.now < o.minutes * MINUTE) fleet.at(outlook.dueAt, tick)
  }
  fleet.at(0, tick)
  o.during?.(fleet)
  fleet.run()
  return {
    outlook,
    found,
    ends,
    fleet,
    reading: () => outlook.readings(o.minutes * MINUTE)[0] as PoolReading,
  }
}

const perSecondAtEdge = ({ demands, headroom }: PoolReading): number =>
  (demands[0]?.requestsPerSec ?? Number.NaN) / (headroom?.demandRatio ?? Number.NaN)

t.test('where the model says that the promise breaks, it breaks', async t => {
  const seen = play({ replicas: 3, perSecond: () => 12, minutes: 4 })
  const reading = seen.reading()
  const { capacity, headroom, scale, knee, model, weight, ready } = reading
  t.equal(capacity?.source, 'model')
  t.match({ weight, ready }, { weight: 3, ready: 3 })
  t.ok(model.fit.calibrated)
  t.ok((model.ttftErrors.medianAbsolute ?? 1) < 0.1, `TTFT is off by ${model.ttftErrors.medianAbsolute}`)
  t.ok((model.tpotErrors.medianAbsolute ?? 1) < 0.2, `TPOT is off by ${model.tpotErrors.medianAbsolute}`)
  const edge = perSecondAtEdge(reading)
  t.ok(Math.abs((knee?.edgeRequestsPerSec ?? 0) / (edge / 3) - 1) < 0.15, `${edge} a second is three knees`)
  const room = headroom?.requestsPerSec[0]?.value ?? 0
  t.ok(Math.abs(room / (edge - 12) - 1) < 0.25, `${room} a second are left below ${edge}`)
  t.equal(scale?.desired, 4, 'three are more than 70 % full')
  t.equal(reading.binding, 'decode')
  t.equal(seen.found.length, 0, 'nothing is wrong')

  const below = play({ replicas: 3, perSecond: () => 0.8 * edge, minutes: 3, seed: 5 }).ends
  const above = play({ replicas: 3, perSecond: () => 1.2 * edge, minutes: 3, seed: 5 }).ends
  t.ok(below.good / below.all > 0.9, `${below.good} of ${below.all} are good at 80 % of it`)
  t.ok(above.good / above.all < 0.9, `${above.good} of ${above.all} are good at 120 % of it`)
})

t.test('what is shed is asked for as well, and replicas are wished for it', async t => {
  const { outlook, reading, ends } = play({ replicas: 2, perSecond: () => 16, minutes: 4, limit: 24 })
  const { headroom, scale, demands } = reading()
  t.ok(ends.good / ends.all < 0.8, 'many are shed')
  t.ok(Math.abs((demands[0]?.requestsPerSec ?? 0) / 16 - 1) < 0.2, `${demands[0]?.requestsPerSec} a second`)
  t.ok((headroom?.demandRatio ?? 0) > 1.2, `${headroom?.demandRatio} of what can be served is asked for`)
  t.ok((headroom?.ratio ?? 0) < -0.2)
  t.same(headroom?.requestsPerSec, [{ cls: 0, value: 0 }], 'no more can come')
  t.ok((scale?.desired ?? 0) >= 4, `${scale?.desired} are wished for`)
  t.equal(outlook.readings(0).length, 1)
})

t.test('one slow replica is named, and when it is well again that is over', async t => {
  const { found } = play({
    replicas: 3,
    perSecond: () => 11,
    minutes: 16,
    during(fleet) {
      fleet.at(6 * MINUTE, () => fleet.slow(1, 2.5))
      fleet.at(11 * MINUTE, () => fleet.slow(1, 1))
    },
  })
  t.match(found[0], { cause: 'sick_replica', clause: /^(tpot|both)$/, evidence: { replica: 1 } })
  t.match(
    found[0]?.sentence,
    /^Pool pool0: .* because one replica is slower than it was, and than the others \(replica 10\.0\.0\.2:8000\)\./,
  )
  const since = found[0]?.since ?? 0
  t.ok(since >= 6 * MINUTE && since < 8 * MINUTE, `seen after ${since} ms`)
  t.equal(found.at(-1), undefined)
})

const swept = {
  gpus: 1,
  workload: { ...specOf([1], 1).classes[0]!.workload },
  knee: { concurrency: 12, requests_per_s: 2 },
} as unknown as SweptBudget

/** An outlook without engines, before a policy that is called by hand. */
function byHand(spec: PolicySpec, dials: Partial<OutlookDials> = {}, now = 0) {
  const inner = watched(createPolicy(spec, seededRng(1)), new Forecast(spec))
  const outlook = new Outlook(
    {
      spec,
      ...DIALS,
      ...dials,
      forecast: inner.forecast as Forecast,
      replicas: at => inner.state(at).replicas,
      hour: () => 12,
      burn: () => undefined,
      diagnosed: () => {},
    },
    now,
  )
  return { outlook, policy: witnessed(inner, outlook) }
}

t.test('a sweep gives a capacity before anything was learned; without one it is unknown', async t => {
  const spec = specOf([2, 1], 8)
  const { outlook, policy } = byHand(spec, { sweeps: new Map([['pool0', swept]]) })
  for (let at = 0; at < 60; at++) policy.arrive(ask(at * 1000, { promptTokens: 1000 }), at * 1000)
  const [known, unknown] = outlook.readings(60_000)
  t.match(known?.capacity, { source: 'sweep' })
  // The declared prompts have a mean of 1,350 tokens and answers of 197.
  const edge = perSecondAtEdge(known as PoolReading)
  t.ok(edge > 4 && edge < 6, `two replicas of 2 a second with prompts a little longer: ${edge}`)
  t.equal(unknown?.capacity, undefined)
  t.equal(unknown?.headroom, undefined)
  outlook.due(60_000)
  t.match(outlook.readings(60_000)[1]?.scale, { why: 'unknown capacity' })
})

t.test('who is refused and comes again is one who asks', async t => {
  const { outlook, policy } = byHand(specOf([1], 1))
  const come = (retryKey: string, at = 0) => policy.arrive(ask(at, { retryKey }), at).decisions[0]?.kind
  const asked = (): number => outlook.readings(0)[0]?.demands[0]?.requestsPerSec ?? 0
  t.equal(come('a'), 'dispatch')
  t.equal(come('b'), 'shed')
  const two = asked()
  t.equal(come('b'), 'shed')
  t.equal(come('b'), 'shed')
  t.equal(asked(), two)
  t.equal(come('c'), 'shed')
  t.ok(Math.abs(asked() / two - 1.5) < 1e-9, 'another is another')
})

t.test('an attempt that fails leaves a retry behind, and a client that left does not', async t => {
  const { outlook, policy } = byHand(specOf([1], 9))
  const rate = (at: number): number => outlook.readings(at)[0]?.demands[0]?.requestsPerSec ?? 0
  const end = (retryKey: string, at: number, kind: 'timeout' | 'clientLeft') => {
    const { ticket } = policy.arrive(ask(at, { retryKey }), at)
    policy.finish(ticket, { kind, progress: undefined }, at)
  }
  end('a', 0, 'timeout')
  const one = rate(0)
  end('a', 0, 'timeout')
  t.equal(rate(0), one)
  end('b', 0, 'clientLeft')
  end('b', 0, 'clientLeft')
  t.ok(rate(0) > 2.9 * one)
})

t.test('what spills is asked of both pools', async t => {
  const spec = specOf([1, 1], 1)
  const classes = spec.classes.map(cls => ({ ...cls, pools: [0, 1] }))
  const { outlook, policy } = byHand({ ...spec, classes })
  const { ticket } = policy.arrive(ask(0), 0)
  const spilled = policy.arrive(ask(0), 0)
  t.match(spilled.decisions[0], { kind: 'dispatch', why: 'spill' })
  const rates = (at: number) => outlook.readings(at).map(({ demands }) => demands[0]?.requestsPerSec)
  const [home, spare] = rates(0)
  t.ok(Math.abs((home ?? 0) / (spare ?? 1) - 2) < 1e-9, `${home} and ${spare}`)
  for (const one of [ticket, spilled.ticket]) {
    policy.firstToken(one, 10)
    policy.mark(one, 20, 4)
    policy.finish(one, complete(stream(10, 20, 5, { throttled: true })), 30)
  }
  t.same(
    outlook.readings(30).map(({ finding }) => finding),
    [undefined, undefined],
  )
})

t.test('a replica that came up is cold at first, and one that is out counts for nothing', async t => {
  const { outlook, policy } = byHand(specOf([2], 50))
  const standing = (at: number) => {
    outlook.due(at)
    const { ready, weight } = outlook.readings(at)[0] as PoolReading
    return { ready, weight: Math.round(weight * 100) / 100 }
  }
  t.same(standing(1000), { ready: 2, weight: 2 })
  policy.reconfigure(specOf([3], 50), 1500)
  t.same(standing(2000), { ready: 3, weight: 2.3 })
  t.same(standing(60_000), { ready: 3, weight: 2.3 }, 'it has ended nothing')
  for (let i = 0; i < 300; i++) {
    const { ticket } = policy.arrive(ask(60_000), 60_000)
    policy.finish(ticket, complete(stream(60_000, 60_000, 1)), 60_000)
  }
  t.ok(standing(62_000).weight > 2.9, 'it has ended its share of three hundred')
  policy.reconfigure(specOf([1], 50), 63_000)
  t.same(standing(64_000), { ready: 1, weight: 1 })
})

t.test('a reload brings pools and takes them, with the sweeps they have then', async t => {
  const { outlook, policy } = byHand(specOf([1], 5))
  outlook.retune({ ...DIALS, sweeps: new Map([['pool1', swept]]) })
  const two = specOf([1, 1], 5)
  policy.reconfigure(two, 10)
  t.same(
    outlook.readings(10).map(({ pool, capacity }) => [pool, capacity?.source]),
    [
      [0, undefined],
      [1, 'sweep'],
    ],
  )
  const [first, second] = two.pools
  const pools = [first!, { ...second!, replicas: [], retired: true as const }]
  policy.reconfigure({ ...two, pools }, 20)
  t.same(
    outlook.readings(20).map(({ pool }) => pool),
    [0],
  )
})

t.test('an engine that tells of a full KV memory is bound by it', async t => {
  const { outlook, reading, fleet } = play({ replicas: 2, perSecond: () => 4, minutes: 3 })
  t.equal(reading().binding, 'decode')
  const full = {
    running: 9,
    waiting: 0,
    kvUsage: 0.97,
    preemptionsTotal: 0,
    prefixHitsTotal: undefined,
    prefixQueriesTotal: undefined,
    prefixHitShare: undefined,
  }
  outlook.gauges(1, full, fleet.now)
  t.equal(outlook.readings(fleet.now)[0]?.binding, 'kv')
  t.not(outlook.readings(fleet.now + 5000)[0]?.binding, 'kv', 'what it said five seconds ago is no figure')
})

t.test(
  'what is usual and what was learned outlive a restart, by the names of pools and replicas',
  async t => {
    const { outlook, fleet } = play({ replicas: 3, perSecond: () => 8, minutes: 4 })
    type Row = { usual?: { window: { replicas: unknown[]; counts: number[]; plain: unknown[] } } }
    const save = (of: Outlook, now: number): Row[] => JSON.parse(JSON.stringify([...of.save(now)]))
    const saved = save(outlook, fleet.now)
    const known = (of: Outlook, now: number) => of.readings(now)[0]?.capacity
    t.match(known(outlook, fleet.now), { source: 'model' })
    const { outlook: again } = byHand(specOf([3], 200))
    t.equal(known(again, 5), undefined)
    t.equal(again.restore(saved, 0, 5), undefined)
    t.same(save(again, 5), saved)
    t.equal(known(again, 5)?.workPerSec, known(outlook, fleet.now)?.workPerSec)
    const old = byHand(specOf([3], 200)).outlook
    t.equal(old.restore(saved, 3_600_000, 5), undefined)
    t.match(
      save(old, 5)[0],
      { capacity: { bins: [[Number, Number, Number, Number]] } },
      'what was seen an hour ago is an hour old',
    )
    t.match(save(old, 5).slice(1), saved.slice(1))
    const fewer = byHand(specOf([1], 200)).outlook
    t.equal(fewer.restore(saved, 0, 5), undefined)
    t.match(save(fewer, 5)[1], { usual: { hour: null, window: { replicas: [{ name: '10.0.0.1:8000' }] } } })
    t.equal(save(fewer, 5)[1]?.usual?.window.replicas.length, 1, 'who is gone is forgotten')
  },
)

t.test('a foreign outlook is refused, and nothing of it is taken', async t => {
  const { outlook, fleet } = play({ replicas: 2, perSecond: () => 8, minutes: 3 })
  type Row = { usual: { window: Record<string, unknown> } }
  const [capacity, row] = JSON.parse(JSON.stringify([...outlook.save(fleet.now)])) as [object, Row]
  const { usual } = row
  const fresh = byHand(specOf([2], 200)).outlook
  const none = JSON.stringify([...fresh.save(5)])
  const windows = 'what is usual for pool pool0 is not in the counts of this version'
  const figures = 'the capacity of pool pool0 is not in figures'
  for (const [foreign, why] of [
    [7, 'no list of rows'],
    [null, 'no list of rows'],
    [[null], 'its version is undefined, not 2'],
    [[{ ...row, version: 1 }], 'its version is 1, not 2'],
    [[capacity, { ...row, usual: {} }], windows],
    [[capacity, { ...row, usual: { ...usual, hour: 24 } }], windows],
    [[row, { ...row, usual: { ...usual, window: { ...usual.window, counts: [1, 2] } } }], windows],
    [[row, { ...row, usual: { ...usual, window: { ...usual.window, plain: ['x'] } } }], windows],
    [[row, { ...capacity, capacity: null }], figures],
    [[row, { ...capacity, capacity: { bins: [[1, 2, 3]], knees: [] } }], figures],
    [[row, { ...capacity, capacity: { bins: [[1, 2, 3, 0]], knees: [] } }], figures],
    [[row, { ...capacity, capacity: { bins: [], knees: ['1'] } }], figures],
  ] as const) {
    t.equal(fresh.restore(foreign, 0, 5), why)
  }
  t.equal(JSON.stringify([...fresh.save(5)]), none)
})
