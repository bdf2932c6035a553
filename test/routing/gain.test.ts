/** Marginal goodput as laws: what a newcomer costs, whom, and how that moves with load. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { Load } from '../../src/predict/latency.js'
import { normalCdf } from '../../src/predict/normal.js'
import { Gain, type Newcomer, weigh } from '../../src/routing/gain.js'
import { type Promised, Running } from '../../src/routing/running.js'

/** Costs of llama3-8b on one H100, as fitted. */
const COST = {
  floorMs: 7.1,
  mixedFloorMs: 2.7,
  perStreamMs: 0.025,
  perContextMs: 0.00004,
  perPrefillMs: 0.021,
  perPairMs: 1e-6,
  netMs: 0,
}
const SPREAD = { ttftMs: 20, ttftShare: 0.05, paceShare: 0.1 }
const NOW = 10_000

const loadOf = (change: Partial<Load> = {}): Load => ({
  fit: { cost: COST, budget: 8192 },
  factor: 1,
  streams: 0,
  contextTokens: 0,
  waiting: 0,
  waitingTokens: 0,
  waitingPairs: 0,
  prefillFrom: 0,
  lateTokens: 0,
  stepEndsAt: Number.NEGATIVE_INFINITY,
  prefillShare: () => 0.3,
  jolt: () => 5,
  ...change,
})

interface One {
  bound: number
  tokens: number
  /** Of its time so far, by token. */
  paceMs: number
  length: number
}
const chatting = (change: Partial<One> = {}): One => ({
  bound: 40,
  tokens: 50,
  paceMs: 30,
  length: 200,
  ...change,
})

/** A replica with these under way. */
function running(ones: readonly One[]): Running {
  const all = new Running()
  for (const { bound, tokens, paceMs, length } of ones) {
    const dueAt = bound > 0 ? 500 : NOW + paceMs * (length - tokens)
    const one: Promised = { bound, dueAt, group: 0, slot: -1 }
    all.add(one, 0, 0, Float64Array.of(length * 0.7, length, length * 1.5))
    all.firstToken(one, NOW - tokens * paceMs)
    all.tokens[one.slot] = tokens
  }
  return all
}

const newcomer = (promptTokens: number, change: Partial<Newcomer> = {}): Newcomer => ({
  promptTokens,
  dueAt: NOW + 500,
  bound: 40,
  lengths: Float64Array.of(60, 150, 400),
  ...change,
})

function gainOf(load: Load, here: Running, one: Newcomer, cached = 0, scale = 1): Gain {
  const gain = new Gain()
  weigh(load, here, one, cached, Float64Array.of(1, 1, 1, 1), SPREAD, scale, NOW, gain)
  return gain
}

/** A load with so many alike under way. */
function busy(streams: number, ones: readonly One[], change: Partial<Load> = {}): [Load, Running] {
  return [loadOf({ streams, contextTokens: streams * 1200, ...change }), running(ones)]
}

t.test('the table of the normal distribution has its known values and is a distribution', async t => {
  for (const [z, share] of [
    [0, 0.5],
    [1, 0.841345],
    [-1, 0.158655],
    [1.959964, 0.975],
    [-3, 0.00135],
    [9, 1],
    [-9, 0],
  ] as const)
    t.ok(Math.abs(normalCdf(z) - share) < 1e-5, `${z}: ${normalCdf(z)}`)
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        fc.double({ min: -6, max: 6, noNaN: true }),
        fc.double({ min: 0, max: 2, noNaN: true }),
        (z, more) => {
          assert(normalCdf(z + more) >= normalCdf(z))
          assert(Math.abs(normalCdf(z) + normalCdf(-z) - 1) < 1e-6)
        },
      ),
    ),
  )
})

t.test('on an idle replica a chat is good, and costs nobody anything', async t => {
  const gain = gainOf(loadOf({ prefillShare: () => 0, jolt: () => 0 }), running([]), newcomer(1000))
  t.ok(gain.good > 0.999)
  t.equal(gain.loss, 0)
})

t.test('what no replica could do in time has no chance to be good', async t => {
  const idle = loadOf({ prefillShare: () => 0, jolt: () => 0 })
  t.ok(gainOf(idle, running([]), newcomer(40_000)).good < 1e-6, '1.6 s of prefill')
  t.ok(gainOf(idle, running([]), newcomer(40_000), 39_000).good > 0.99, 'unless it is in the cache')
})

t.test('more load never makes a chance better, nor a longer prompt a cost smaller', async t => {
  const counts = fc.integer({ min: 0, max: 150 })
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        counts,
        counts,
        fc.integer({ min: 1, max: 8000 }),
        fc.integer({ min: 0, max: 6000 }),
        (few, more, prompt, longer) => {
          const ones = Array.from({ length: 20 }, () => chatting())
          const [here, there] = [busy(few, ones), busy(few + more, ones)]
          assert(gainOf(...there, newcomer(prompt)).good <= gainOf(...here, newcomer(prompt)).good + 1e-9)
          const [short, long] = [
            gainOf(...here, newcomer(prompt)),
            gainOf(...here, newcomer(prompt + longer)),
          ]
          assert(long.loss >= short.loss - 1e-3)
          assert(long.ttftMs >= short.ttftMs - 1e-9)
          assert(short.loss >= -1e-6 && short.loss <= 20 + 1e-6)
        },
      ),
      { numRuns: 300 },
    ),
  )
})

t.test('those who have lost already cost nothing, and neither do those far from their bound', async t => {
  const cost = (ones: readonly One[]): number => gainOf(...busy(120, ones), newcomer(4000)).loss
  t.equal(
    cost([chatting({ paceMs: 80, tokens: 150, length: 160 }), chatting({ paceMs: 70, tokens: 190 })]),
    0,
    'lost',
  )
  t.equal(cost([chatting({ paceMs: 8, tokens: 190 })]), 0, 'safe')
  t.ok(cost([chatting({ paceMs: 40.3, tokens: 150, length: 160 })]) > 0.1, 'on the edge')
})

t.test('a deadline under way is charged like a pace: by what is left of it', async t => {
  const cost = (paceMs: number): number =>
    gainOf(...busy(120, [chatting({ bound: 0, paceMs, tokens: 20, length: 400 })]), newcomer(8000)).loss
  t.ok(cost(19) > 0.02, 'it just makes it')
  t.ok(cost(200) < 1e-6, 'it has time')
})

t.test('those who wait for the same batch are later by what the newcomer adds to it', async t => {
  const here = new Running()
  const one: Promised = { bound: 40, dueAt: NOW + 260, group: 0, slot: -1 }
  here.add(one, NOW - 20, NOW + 240, Float64Array.of(60, 150, 400))
  const load = loadOf({
    waiting: 1,
    waitingTokens: 4000,
    waitingPairs: 8e6,
    prefillFrom: NOW + 150,
    prefillShare: () => 0,
  })
  t.ok(gainOf(load, here, newcomer(2000)).loss > 0.4, '40 ms more, where 20 are left')
  t.ok(gainOf(load, here, newcomer(30)).loss < 0.1, 'a short one')
  const full = { ...load, fit: { cost: COST, budget: 4000 } }
  t.ok(gainOf(full, here, newcomer(2000)).loss < 0.1, 'the batch is full: it comes in the next')
})

t.test('predictions that are scaled down make chances better', async t => {
  const [load, here] = busy(160, [chatting()])
  const crowded = { ...load, prefillShare: () => 0.75 }
  const plain = gainOf(crowded, here, newcomer(1000))
  const scaled = gainOf(crowded, here, newcomer(1000), 0, 0.6)
  t.ok(plain.good < 0.5 && scaled.good > 0.9, `${plain.good} ${scaled.good}`)
})

t.test('columns hold who is there, whoever leaves and in whatever order', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(fc.array(fc.nat(1000), { maxLength: 80 }), picks => {
        const all = new Running()
        const here: (Promised & { name: number })[] = []
        picks.forEach((pick, name) => {
          if (pick % 3 === 0 && here.length > 0) {
            const [gone] = here.splice(pick % here.length, 1)
            all.remove(gone as Promised)
          } else {
            const one = { bound: pick % 2, dueAt: name, group: 0, slot: -1, name }
            all.add(one, 0, 0, Float64Array.of(name, name, name))
            here.push(one)
          }
        })
        assert.equal(all.count, here.length)
        assert.equal(all.deadlines, here.filter(({ bound }) => bound === 0).length)
        for (const { slot, name } of here) {
          assert.equal(all.dueAt[slot], name)
          assert.equal(all.lengths[slot * 3 + 2], name)
        }
      }),
    ),
  )
})
