import fc from 'fast-check'
import t from 'tap'
import { promptPairs } from '../../src/predict/flight.js'
import { Rate } from '../../src/predict/rate.js'
import {
  COLD,
  COLUMNS,
  CONTEXT,
  FLOOR,
  MIXED,
  NET,
  PAIRS,
  PREFILL,
  prefillMs,
  STREAMS,
  type StepCost,
  StepFit,
  stepMs,
} from '../../src/predict/step.js'
import { seededRng } from '../../src/time.js'

const truth: StepCost = {
  floorMs: 7,
  mixedFloorMs: 3,
  perStreamMs: 0.05,
  perContextMs: 4e-5,
  perPrefillMs: 0.02,
  perPairMs: 8e-7,
  netMs: 4,
}

interface Seen {
  readonly streams: number
  readonly context: number
  readonly prefill: number
  readonly net?: boolean
}

/** A row as the observer makes them, and what it takes at a cost. */
function rowOf({ streams, context, prefill, net = false }: Seen, cost: StepCost): [Float64Array, number] {
  const row = new Float64Array(COLUMNS)
  const pairs = prefill === 0 ? 0 : promptPairs(prefill, prefill)
  row[MIXED] = Math.min(1, prefill / 295)
  row[FLOOR] = 1 - row[MIXED]
  row[STREAMS] = streams
  row[CONTEXT] = context / 1e3
  row[PREFILL] = prefill / 1e3
  row[PAIRS] = pairs / 1e6
  row[NET] = net ? 1 : 0
  const took = stepMs(cost, streams, context, prefill) + cost.perPairMs * pairs
  return [row, took + (net ? cost.netMs : 0)]
}

/** Feeds rows of every kind of load, with noise of 2 %. */
function feed(fit: StepFit, rows: number, seed: number, cost = truth, replica = 0, from = 0): number {
  const rng = seededRng(seed)
  for (let i = 0; i < rows; i++) {
    const streams = Math.floor(rng.next() * 60)
    const seen = {
      streams,
      context: streams * (500 + rng.next() * 3000),
      prefill: rng.next() < 0.5 ? 0 : Math.floor(rng.next() * 6000),
      net: rng.next() < 0.05,
    }
    const [row, took] = rowOf(seen, cost)
    fit.add(row, took * (1 + 0.04 * (rng.next() - 0.5)), replica, from + i * 50)
  }
  return from + rows * 50
}

const off = (got: number, wanted: number): number => Math.abs(got / wanted - 1)

/** Largest error over loads that were and were not seen. */
function worst(cost: StepCost, wanted: StepCost): number {
  let most = 0
  for (const streams of [1, 30, 120]) {
    for (const prefill of [0, 400, 2000, 8000]) {
      most = Math.max(
        most,
        off(stepMs(cost, streams, streams * 2000, prefill), stepMs(wanted, streams, streams * 2000, prefill)),
      )
    }
  }
  return most
}

t.test('the fit finds a cost of its own form, from rows with noise', async t => {
  const fit = new StepFit()
  t.ok(worst(fit.cost, truth) > 0.4, 'the cold prior is far off')
  feed(fit, 300, 1)
  t.ok(worst(fit.cost, truth) < 0.05, `${worst(fit.cost, truth)} after 300 rows`)
  feed(fit, 3000, 2)
  t.ok(worst(fit.cost, truth) < 0.02, `${worst(fit.cost, truth)} after 3300`)
  t.ok(off(fit.cost.netMs, truth.netMs) < 0.15, `${fit.cost.netMs} ms outside of steps`)
  t.ok(fit.relativeError < 0.02, `${fit.relativeError}`)
})

t.test('no coefficient is ever below 0, whatever the rows say', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        fc.array(
          fc.record({
            streams: fc.nat(300),
            context: fc.nat(400_000),
            prefill: fc.nat(8192),
            net: fc.boolean(),
            took: fc.double({ min: 0.1, max: 5000, noNaN: true }),
          }),
          { maxLength: 200 },
        ),
        rows => {
          const fit = new StepFit()
          rows.forEach((seen, i) => {
            fit.add(rowOf(seen, truth)[0], seen.took, 0, i * 50)
          })
          for (const value of Object.values(fit.cost))
            if (!(value >= 0 && value < 1e6)) throw new Error(`${value}`)
        },
      ),
      { numRuns: 50 },
    ),
  )
})

t.test('hours at one load do not make it forget the others', async t => {
  const fit = new StepFit()
  const at = feed(fit, 3000, 3)
  const [row, took] = rowOf({ streams: 2, context: 3000, prefill: 0 }, truth)
  for (let i = 0; i < 50_000; i++) fit.add(row, took, 0, at + i * 50)
  t.ok(worst(fit.cost, truth) < 0.05, `${worst(fit.cost, truth)}`)
})

t.test('a kind that gets slower is learned anew, in an hour wholly', async t => {
  const fit = new StepFit()
  const at = feed(fit, 3000, 4)
  const slower: StepCost = { ...truth, floorMs: 10, perPrefillMs: 0.03, perStreamMs: 0.08 }
  const later = feed(fit, 12_000, 5, slower, 0, at)
  t.ok(worst(fit.cost, slower) < 0.12, `${worst(fit.cost, slower)} after ten minutes`)
  feed(fit, 3000, 6, slower, 0, later + 3_600_000)
  t.ok(worst(fit.cost, slower) < 0.04, `${worst(fit.cost, slower)}`)
})

t.test('rows that are plainly wrong, of nearly no time or of a stall, hardly move it', async t => {
  for (const wrong of [0.1, 20_000]) {
    const fit = new StepFit()
    const at = feed(fit, 3000, 7)
    const [row] = rowOf({ streams: 20, context: 40_000, prefill: 1000, net: true }, truth)
    for (let i = 0; i < 5; i++) fit.add(row, wrong, 0, at + i)
    feed(fit, 300, 8, truth, 0, at + 50)
    t.ok(worst(fit.cost, truth) < 0.06, `${wrong} ms: ${worst(fit.cost, truth)}`)
  }
})

t.test('one slow replica is told from the others, and does not spoil their model', async t => {
  const fit = new StepFit()
  const slow: StepCost = {
    ...truth,
    floorMs: truth.floorMs * 1.8,
    mixedFloorMs: truth.mixedFloorMs * 1.8,
    perStreamMs: truth.perStreamMs * 1.8,
    perContextMs: truth.perContextMs * 1.8,
    perPrefillMs: truth.perPrefillMs * 1.8,
    perPairMs: truth.perPairMs * 1.8,
  }
  let at = 0
  for (let round = 0; round < 400; round++) {
    for (let replica = 0; replica < 8; replica++) {
      feed(fit, 10, round * 8 + replica, replica === 3 ? slow : truth, replica, at)
    }
    at += 500
  }
  t.ok(fit.factor(3) / fit.factor(0) > 1.7, `${fit.factor(3)} beside ${fit.factor(0)}`)
  t.ok(fit.factor(3) > 1.5, 'which is what ejects it')
  const healthy = fit.factor(0) * stepMs(fit.cost, 30, 60_000, 0)
  t.ok(off(healthy, stepMs(truth, 30, 60_000, 0)) < 0.05, `${healthy}`)
  t.equal(fit.factor(99), 1, 'one that was never seen is like the mean')
})

t.test('it is calibrated after 200 first tokens and 2,000 gaps', async t => {
  const fit = new StepFit()
  fit.firstTokens = 200
  fit.gaps = 1999
  t.equal(fit.calibrated, false)
  fit.gaps = 2000
  t.equal(fit.calibrated, true)
})

t.test('a stored cost with a 0 in it is a prior like any other', async t => {
  const fit = new StepFit({ ...truth, netMs: 0 })
  t.equal(worst(fit.cost, truth), 0)
  feed(fit, 2000, 6)
  t.ok(worst(fit.cost, truth) < 0.03)
})

t.test('a prompt longer than a step is computed in chunks beside the streams', async t => {
  const streams = 24
  const chunk = 1024 - streams
  const two = prefillMs(truth, streams, 50_000, 2 * chunk, 0, 1024)
  t.ok(off(two, 2 * stepMs(truth, streams, 50_000, chunk)) < 1e-9)
  const more = prefillMs(truth, streams, 50_000, 2 * chunk + 100, 0, 1024)
  t.ok(off(more - two, stepMs(truth, streams, 50_000, 100)) < 1e-9)
  t.equal(prefillMs(truth, streams, 50_000, 0, 0, 1024), 0)
  t.ok(COLD.floorMs > 0)
})

t.test('a rate forgets, and does not start at nothing', async t => {
  const rate = new Rate(10_000)
  t.equal(rate.perMs(0), 0)
  for (let at = 0; at <= 2000; at += 100) rate.add(5, at)
  t.ok(off(rate.perMs(2000), 0.05) < 0.1, `${rate.perMs(2000)}`)
  for (let at = 2100; at <= 60_000; at += 100) rate.add(5, at)
  t.ok(off(rate.perMs(60_000), 0.05) < 0.02)
  t.ok(rate.perMs(90_000) < 0.003)
})

t.test('iterations of many prompt tokens prove the budget when three were seen', async t => {
  const fit = new StepFit()
  fit.beginFrom(COLD, 2048)
  for (let i = 0; i < 2; i++) fit.provedBudget(6000 + i)
  t.equal(fit.budget, 2048, 'two may be reads that joined iterations')
  fit.provedBudget(5000)
  t.equal(fit.budget, 5000, 'three of at least 5,000')
  fit.provedBudget(7000)
  t.equal(fit.budget, 6000)
})

t.test('chunks of a long prompt move the budget, but never below what was proved', async t => {
  const fit = new StepFit()
  for (let i = 0; i < 60; i++) fit.sawChunk(2048)
  t.ok(Math.abs(fit.budget - 2048) < 1, `${fit.budget}`)
  for (let i = 0; i < 3; i++) fit.provedBudget(4000 + i)
  t.equal(fit.budget, 4000)
  for (let i = 0; i < 60; i++) fit.sawChunk(2048)
  t.equal(fit.budget, 4000)
})
