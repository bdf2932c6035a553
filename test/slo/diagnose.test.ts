import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { CLEAN, FAULTS, runClean, runFault } from '../../bench/diagnosis.js'
import { type Baseline, Baselines } from '../../src/slo/baseline.js'
import { diagnose } from '../../src/slo/diagnose.js'
import { Diagnoser } from '../../src/slo/diagnoser.js'
import type { EngineGauges } from '../../src/slo/engine-gauges.js'
import { diagnoseFirstDay } from '../../src/slo/first-day.js'
import type { Observed } from '../../src/slo/observed.js'
import { PoolCollector } from '../../src/slo/pool-collector.js'
import {
  addCounts,
  type Counts,
  countsBy,
  type Look,
  mergeWindows,
  type PoolWindow,
  stepLine,
} from '../../src/slo/pool-window.js'

const BOUNDS = { ttftMs: 500, tpotMs: 40 }
const PROMISE = { objective: 0.9 }
const NO_GAUGES: EngineGauges = {
  running: undefined,
  waiting: undefined,
  kvUsage: undefined,
  preemptionsTotal: undefined,
  prefixHitsTotal: undefined,
  prefixQueriesTotal: undefined,
  prefixHitShare: undefined,
}

t.test('each of the 13 faults is named first, with a sentence and figures', async t => {
  for (const fault of FAULTS) {
    const { first, early } = runFault(fault, 51)
    t.equal(first?.cause, fault.cause)
    t.equal(early, 0, 'and nothing was found before')
    t.match(first?.sentence, /^Pool main: .+, since \d+ s ago, because .+\. Do this: .+\.$/)
    t.ok(Object.values(first?.evidence ?? {}).every(Number.isFinite), JSON.stringify(first?.evidence))
  }
})

t.test('a pool that keeps its promise gets no label, busy or not', async t => {
  for (const clean of CLEAN.slice(-6)) {
    const { alarms, looks } = runClean(clean, 52, 360_000)
    t.equal(alarms, 0, clean.what)
    t.ok(looks > 25)
  }
})

t.test('without engine gauges short memory shows by the streams that are passed over', async t => {
  const fault = FAULTS.find(({ cause }) => cause === 'kv_thrash')
  const { first } = fault ? runFault(fault, 53, { gauges: false }) : {}
  t.equal(first?.cause, 'kv_thrash')
  t.notOk('kv_usage' in (first?.evidence ?? {}), 'and no gauge is made up')
})

t.test(
  'on the first day, with nothing usual to hold it against, what stands on its own is named',
  async t => {
    const alone = [
      'prompt_shift',
      'router_queue',
      'prefill_capacity',
      'cold_start',
      'batch_pressure',
      'kv_thrash',
    ]
    for (const fault of FAULTS) {
      if (![...alone, 'prefill_interference', 'sick_replica'].includes(fault.cause)) continue
      const { first, early } = runFault(fault, 51, { firstDay: true })
      t.equal(first?.cause, fault.cause)
      t.equal(early, 0, 'and nothing was found before')
      t.match(first?.sentence, /^Pool main: .+ \(Nothing is usual here yet to hold it against\.\)$/)
      t.ok(Object.values(first?.evidence ?? {}).every(Number.isFinite), JSON.stringify(first?.evidence))
    }
  },
)

/** A collector, and requests at times of the test's own. */
function pool() {
  const collector = new PoolCollector(0)
  collector.replicaUp(0, 0, -1e6)
  const begin = (at: number, firstAt: number, promptTokens = 1000): Observed => {
    const one = collector.arrived(promptTokens, BOUNDS, at, at)
    collector.dispatched(one, 0, at)
    collector.firstToken(one, firstAt)
    return one
  }
  const counts = (now: number): Counts => collector.look(now).minute.counts
  return { collector, begin, counts }
}

t.test('a token is counted by what its gap fell together with', async t => {
  const { collector, begin, counts } = pool()
  const one = begin(0, 100)
  collector.mark(one, 120, 1)
  collector.mark(one, 160, 2)
  const other = collector.arrived(3000, BOUNDS, 165, 165)
  collector.dispatched(other, 0, 165)
  collector.mark(one, 240, 1)
  collector.firstToken(other, 241)
  collector.mark(one, 300, 1)
  collector.mark(one, 320, 1)
  collector.mark(one, 1400, 1)
  const seen = counts(1500)
  t.match(seen, { quietTokens: 4, quietMs: 80 }, 'two gaps of quiet, and one after the prefill')
  t.match(seen, { mixedTokens: 2, mixedMs: 140 }, 'beside the prompt, and in the step that ended it')
  t.match(seen, { stalls: 1, stallMs: 1080 })
  t.match(seen, { besideBig: 2, besideNone: 3 })
})

t.test('a stream that is passed over by the engine is told from one whose bytes were held up', async t => {
  const { collector, begin, counts } = pool()
  const [first, second] = [begin(0, 100), begin(0, 100)]
  for (let at = 120; at <= 400; at += 20) collector.mark(first, at, 1)
  collector.mark(second, 400, 1)
  t.match(counts(400), { stalls: 1, stallTokens: 1, stallMs: 300 })
  collector.mark(second, 400, 1)
  t.match(counts(400), { stalls: 0, stallTokens: 0, stallMs: 0 }, 'the next came in the same breath')
})

t.test('what is late shows before it ends, and what waits in Weir too', async t => {
  const { collector, begin } = pool()
  begin(0, 100)
  const waits = collector.arrived(50, BOUNDS, 0, 0)
  const pending = collector.arrived(50, BOUNDS, 0, 100)
  collector.dispatched(pending, 0, 200)
  const load = collector.arrived(9000, undefined, 0, 100)
  collector.dispatched(load, 0, 200)
  t.match(collector.look(500).minute, { lateInQueue: 0, counts: { firsts: 1, late: 0 } })
  t.match(collector.look(700).minute, {
    arrivals: 4,
    lateInQueue: 1,
    counts: { firsts: 2, late: 1, queueMs: 200, upstreamMs: 600, dispatched: 3, dispatchedLong: 1 },
  })
  collector.shed(waits, 800)
  collector.ended(pending, { complete: false }, 900)
  collector.ended(load, { complete: false }, 900)
  t.match(collector.look(900).minute, {
    shed: 1,
    lateInQueue: 0,
    counts: { firsts: 2, late: 1, upstreamMs: 800, ended: 0 },
  })
  t.match(
    collector.look(62_000).minute,
    { arrivals: 0, counts: { firsts: 0, dispatched: 0 } },
    'and is forgotten',
  )
})

t.test(
  'a stream is judged by its pace so far, then by its verdict, and not while its client is slow',
  async t => {
    const { collector, begin, counts } = pool()
    const [one, slow] = [begin(0, 100), begin(0, 100)]
    slow.throttled = true
    for (let token = 1; token <= 40; token++) {
      collector.mark(one, 100 + 45 * token, 1)
      collector.mark(slow, 100 + 45 * token, 1)
    }
    t.match(counts(1900), { paced: 1, slow: 1 })
    t.equal(
      counts(1900).quietTokens + counts(1900).mixedTokens,
      40,
      'gaps of a throttled stream are nobody’s',
    )
    const end = { complete: true, outputTokens: 41, inputTokens: 1000, cachedTokens: 640 }
    collector.ended(one, { ...end, paceMet: true }, 1901)
    collector.ended(slow, { ...end, paceMet: true }, 1901)
    t.match(counts(1902), { paced: 1, slow: 0, ended: 2, throttled: 1, cacheTold: 2000, cached: 1280 })
  },
)

t.test(
  'an attempt that failed leaves the line of its replica, and short ones behind a long one are told',
  async t => {
    const { collector, counts } = pool()
    const long = collector.arrived(9000, BOUNDS, 0, 0)
    collector.dispatched(long, 0, 0)
    const short = collector.arrived(100, BOUNDS, 0, 10)
    collector.dispatched(short, 0, 10)
    collector.failed(long, 20)
    collector.dispatched(long, 1, 20)
    const third = collector.arrived(100, BOUNDS, 20, 20)
    collector.dispatched(third, 0, 20)
    for (const one of [short, third, long]) collector.firstToken(one, 600)
    t.match(counts(600), {
      behindLong: 1,
      lateBehindLong: 1,
      behindLongMs: 590,
      lineTokens: 9100 + 200 + 9000,
    })
  },
)

t.test(
  'gauges that are not told stay unknown, and a counter that fell is an engine that began anew',
  async t => {
    const { collector, counts } = pool()
    collector.gauges(0, NO_GAUGES, 0)
    t.match(counts(100), { kvReadings: 0, waitingReadings: 0, preemptionSpanMs: 0 })
    collector.gauges(0, { ...NO_GAUGES, kvUsage: 0.95, waiting: 4, preemptionsTotal: 7 }, 500)
    collector.gauges(0, { ...NO_GAUGES, kvUsage: 0.5, preemptionsTotal: 9 }, 1000)
    collector.gauges(0, { ...NO_GAUGES, preemptionsTotal: 1 }, 1500)
    t.match(counts(1500), { kvReadings: 2, kvUsage: 1.45, kvFull: 1, waitingReadings: 1, waiting: 4 })
    t.match(counts(1500), { preemptionSpanMs: 500, preemptions: 2 })
  },
)

const NOTHING = countsBy(() => 0)

/** Two replicas of like load. */
function windowOf(counts: Partial<Counts>, over: Partial<PoolWindow> = {}): PoolWindow {
  const half = countsBy(name => (counts[name] ?? 0) / 2)
  return {
    spanMs: 60_000,
    arrivals: 600,
    shed: 0,
    replicasInUse: 2,
    promptP50: 1000,
    promptP90: 2700,
    lateInQueue: 0,
    counts: { ...NOTHING, ...counts },
    replicas: [0, 1].map(replica => ({ replica, ageMs: 1e9, counts: half })),
    ...over,
  }
}

const WELL: Partial<Counts> = {
  dispatched: 600,
  firsts: 600,
  late: 6,
  promptTokens: 600_000,
  lineTokens: 700_000,
  upstreamMs: 60_000,
  paced: 600,
  slow: 6,
  quietTokens: 50_000,
  quietMs: 1_000_000,
  quietStreams: 500_000,
  quietContext: 500_000_000,
  mixedTokens: 10_000,
  mixedMs: 300_000,
  streamMs: 1_300_000,
  ended: 600,
}
const usual = windowOf(WELL)
const base: Baseline = { usual, all: usual }
const lookAt = (counts: Partial<Counts>, over: Partial<PoolWindow> = {}): Look => {
  const window = windowOf({ ...WELL, ...counts }, over)
  return { minute: window, recent: window }
}

t.test('a clause has moved when it is met less often for certain, and is not for certain kept', async t => {
  const clause = (counts: Partial<Counts>) => diagnose(lookAt(counts), base, PROMISE)?.clause
  t.equal(clause({}), undefined)
  t.equal(clause({ late: 30 }), undefined, '95 % is worse than before, and more than was promised')
  t.equal(clause({ late: 120 }), 'ttft')
  t.equal(clause({ slow: 120 }), 'tpot')
  t.equal(clause({ slow: 120, late: 120 }), 'both')
  t.equal(clause({ firsts: 60, late: 60, paced: 60, slow: 60 }), undefined, '60 requests are too few')
  const few = windowOf({ ...WELL, firsts: 60, paced: 60 })
  t.equal(diagnose(lookAt({ late: 120 }), { usual: few, all: few }, PROMISE), undefined, 'before as well')
  const bad = windowOf({ ...WELL, late: 110 })
  t.equal(
    diagnose(lookAt({ late: 120 }), { usual: bad, all: bad }, PROMISE),
    undefined,
    'as bad as ever is no change',
  )
})

t.test('where all wait in Weir and nothing is known of the engines, no figure is made up', async t => {
  const stuck = windowOf({}, { lateInQueue: 300 })
  const seen = diagnose({ minute: stuck, recent: stuck }, base, PROMISE)
  t.match(seen, { clause: 'ttft', cause: 'router_queue', confidence: 1 })
  t.same(seen?.evidence, { queue_share_of_excess: 1, late_in_queue: 300 })
})

t.test('what nothing explains is said to be so', async t => {
  t.match(diagnose(lookAt({ late: 120 }), base, PROMISE), { cause: 'unexplained', confidence: 0 })
  t.match(diagnose(lookAt({ slow: 120 }), base, PROMISE), { cause: 'unexplained', confidence: 0 })
})

t.test('a demand that is known to be above capacity is overload, whatever it was before', async t => {
  const both = { slow: 120, late: 120 }
  t.match(diagnose(lookAt(both), base, { ...PROMISE, demandRatio: 1.2 }), {
    clause: 'both',
    cause: 'overload',
    evidence: { demand_over_capacity: 1.2 },
  })
  t.not(diagnose(lookAt(both), base, { ...PROMISE, demandRatio: 0.7 })?.cause, 'overload')
})

t.test('one look is chance, two that agree are a finding, and two without end it', async t => {
  const diagnoser = new Diagnoser('main')
  const late = lookAt({ late: 120, queueMs: 600_000 })
  const look = (now: number, what: Look) => diagnoser.look(now, what, base, PROMISE)
  t.equal(look(0, lookAt({})), undefined)
  t.ok(diagnoser.well)
  t.equal(look(10_000, late), undefined)
  t.notOk(diagnoser.well, 'what may be ill is not learned from')
  t.match(look(20_000, late), {
    clause: 'ttft',
    cause: 'router_queue',
    since: 10_000,
    action: 'raise max_in_flight if the replicas have room, else add replicas',
    sentence:
      'Pool main: first tokens are late for 20 %, since 10 s ago, because requests wait in Weir for a replica. ' +
      'That explains 100 % of the excess. Do this: raise max_in_flight if the replicas have room, else add replicas.',
  })
  t.equal(look(30_000, lookAt({}))?.cause, 'router_queue')
  t.equal(look(40_000, lookAt({})), undefined)
  t.ok(diagnoser.well)
})

t.test('on the first day a clause is broken when the promise is, for certain', async t => {
  const first = (counts: Partial<Counts>, over: Partial<PoolWindow> = {}, options = {}) =>
    diagnoseFirstDay(lookAt(counts, over), { ...PROMISE, ...options })
  t.equal(first({}), undefined)
  t.equal(first({ late: 70 }), undefined, '88 % of 600 may be 90 %')
  t.equal(first({ firsts: 60, late: 60, paced: 60, slow: 60 }), undefined, '60 requests are too few')
  t.match(first({ late: 120 }), { clause: 'ttft', cause: 'unexplained', confidence: 0 })
  t.match(first({ late: 120, queueMs: 60_000 }), { cause: 'router_queue', confidence: 0.5 })
  const stuck = first({}, { lateInQueue: 300 })
  t.match(stuck, { clause: 'ttft', cause: 'router_queue', evidence: { upstream_ms: 100 } })
  t.match(first({ late: 120, lineTokens: 2_400_000 }), { cause: 'prefill_capacity', confidence: 0.75 })
  t.match(first({ late: 120 }, {}, { declaredPromptP90: 1350 }), { cause: 'prompt_shift', confidence: 0.5 })
  t.match(first({ late: 120 }, {}, { demandRatio: 1.25 }), {
    cause: 'overload',
    evidence: { demand_over_capacity: 1.25 },
  })
  const behind = { late: 120, behindLong: 200, behindLongMs: 40_000, lateBehindLong: 90 }
  t.match(first(behind), { cause: 'head_of_line', confidence: 0.75 })
  t.match(first({ ...behind, behindLongMs: 20_000 }), { cause: 'unexplained' }, 'they take no longer')
  t.match(first({ slow: 120 }), { clause: 'tpot', cause: 'unexplained' }, 'an idle engine is as slow')
  const stalls = { slow: 120, stalls: 60, stallTokens: 60, stallMs: 600_000 }
  t.match(first(stalls), { clause: 'tpot', cause: 'kv_thrash' })
  t.match(first({ ...stalls, kvReadings: 120, kvUsage: 60 }), { cause: 'unexplained' }, 'memory is not full')
  t.match(first({ slow: 120, late: 120 }), { clause: 'both', cause: 'unexplained' })
})

t.test('a first minute that breaks the promise is not what is usual', async t => {
  const diagnoser = new Diagnoser('new')
  diagnoser.look(0, lookAt({ late: 120 }), undefined, PROMISE)
  t.notOk(diagnoser.well)
  diagnoser.look(10_000, lookAt({}), undefined, PROMISE)
  t.ok(diagnoser.well)
})

t.test('an hour speaks for itself once it was seen often enough', async t => {
  const baselines = new Baselines()
  t.equal(baselines.at(3), undefined)
  const busy = windowOf({ ...WELL, firsts: 6000 })
  for (let minute = 0; minute < 100; minute++) baselines.learn(usual, 2)
  for (let minute = 0; minute < 19; minute++) baselines.learn(busy, 3)
  t.equal(baselines.at(3)?.usual, baselines.at(3)?.all)
  baselines.learn(busy, 3)
  const perMinute = (window: PoolWindow | undefined): number =>
    ((window?.counts.firsts ?? 0) * 60_000) / (window?.spanMs ?? 1)
  t.ok(Math.abs(perMinute(baselines.at(3)?.usual) - 6000) < 1e-6)
  t.ok(Math.abs(perMinute(baselines.at(2)?.usual) - 600) < 1e-6)
  const all = perMinute(baselines.at(3)?.all)
  t.ok(all > 1000 && all < 2500, `between the two, by their minutes: ${all}`)
})

t.test('windows add up: merged, the counts are the sum and ratios do not change', async t => {
  const counts = fc.record({ firsts: fc.nat(1000), late: fc.nat(1000), quietMs: fc.nat(1e6) })
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(counts, counts, (a, b) => {
        const [first, second] = [windowOf(a), windowOf(b)]
        const merged = mergeWindows(first, second, 1)
        assert.deepEqual(merged.counts, addCounts([first.counts, second.counts]))
        assert.deepEqual(merged.counts, addCounts(merged.replicas.map(one => one.counts)))
        assert.deepEqual(mergeWindows(first, first, 1).replicasInUse, first.replicasInUse)
      }),
    ),
  )
})

t.test('the line of a quiet step is found again, and never falls with load', async t => {
  const rowsOf = (rows: readonly (readonly [number, number, number])[]): Counts =>
    addCounts(
      rows.map(([d, x, s]) => ({
        ...NOTHING,
        rows: 1,
        rowD: d,
        rowX: x,
        rowS: s,
        rowDD: d * d,
        rowDX: d * x,
        rowXX: x * x,
        rowDS: d * s,
        rowXS: x * s,
      })),
    )
  const load = fc.array(fc.tuple(fc.integer({ min: 1, max: 100 }), fc.integer({ min: 1, max: 300 })), {
    minLength: 60,
    maxLength: 60,
  })
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(load, loads => {
        const line = stepLine(rowsOf(loads.map(([d, x]) => [d, x, 13 + 0.1 * d + 0.04 * x])))
        assert.ok(line)
        for (const [d, x] of loads) {
          const expected = 13 + 0.1 * d + 0.04 * x
          const got = line.floorMs + line.perStreamMs * d + line.perContextMs * x
          assert.ok(Math.abs(got - expected) < 0.05 * expected, `${got} for ${expected}`)
        }
        const falling = stepLine(rowsOf(loads.map(([d, x]) => [d, x, 50 - 0.1 * d - 0.1 * x])))
        assert.ok(falling && falling.perStreamMs >= 0 && falling.perContextMs >= 0)
      }),
      { numRuns: 50 },
    ),
  )
  t.equal(stepLine(rowsOf([[1, 1, 1]])), undefined, 'too few rows say nothing')
})
