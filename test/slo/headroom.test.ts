import t from 'tap'
import { type Capacity, LearnedCapacity, ModelCapacity, sweptCapacity } from '../../src/slo/capacity.js'
import { Demand, priced, type WorkCost, workOf } from '../../src/slo/demand.js'
import { bindingNow, headroom, instantHeadroom, rampWeight } from '../../src/slo/headroom.js'

const cost: WorkCost = { perPrefillMs: 0.02, perPairMs: 1e-6, perStreamMs: 0.02, perContextMs: 4e-5 }
const CHAT = 0
const AGENT = 1

t.test('work is what a request takes beside the fixed part of a step', async t => {
  const work = workOf(1000, 200, 100)
  t.same(work, { newTokens: 800, pairs: 800 * 600, outputTokens: 100, contextTokens: 100 * 1050 })
  t.ok(Math.abs(priced(work, cost) - (16 + 0.48 + 2 + 4.2)) < 1e-9)
  t.equal(workOf(100, 100, 1).newTokens, 1, 'an engine always computes one token')
})

t.test('demand is a rate of all that came, whatever became of it', async t => {
  const demand = new Demand()
  const work = workOf(1000, 0, 100)
  for (let at = 0; at < 300_000; at += 250) demand.offered(CHAT, work, undefined, at)
  const rate = demand.requestsPerSec(CHAT, 300_000)
  t.ok(Math.abs(rate - 4) < 0.05, `${rate} of 4 requests/s`)
  const perSec = demand.workPerSec(CHAT, cost, 300_000)
  t.ok(Math.abs(perSec / rate / (priced(work, cost) / 1000) - 1) < 1e-6)
  t.ok(Math.abs((demand.workPerRequest(CHAT, cost) ?? 0) - priced(work, cost) / 1000) < 1e-9)
  t.equal(demand.requestsPerSec(AGENT, 300_000), 0)
  t.equal(demand.workPerRequest(AGENT, cost), undefined)
  t.ok(demand.requestsPerSec(CHAT, 360_000) < 1.6, 'and it fades with nothing coming')
})

t.test('the rate of the first seconds is over the time there was', async t => {
  const demand = new Demand()
  for (let at = 0; at <= 5000; at += 500) demand.offered(CHAT, workOf(10, 0, 10), undefined, at)
  const rate = demand.requestsPerSec(CHAT, 5000)
  t.ok(rate > 1.8 && rate < 2.4, `${rate} of 2`)
})

t.test('a retry of what was refused counts once, for a minute', async t => {
  const demand = new Demand()
  const work = workOf(10, 0, 10)
  t.equal(demand.offered(CHAT, work, 'a', 0), true)
  demand.refused('a', 0)
  t.equal(demand.offered(CHAT, work, 'a', 20_000), false, 'the same again')
  demand.refused('a', 20_000)
  t.equal(demand.offered(CHAT, work, 'a', 75_000), false, 'a minute from its last refusal')
  t.equal(demand.offered(CHAT, work, 'b', 75_000), true)
  t.equal(demand.offered(CHAT, work, 'b', 76_000), true, 'asked twice and never refused: two requests')
  t.equal(demand.offered(CHAT, work, 'a', 136_000), true)
})

t.test('a dearer cost reprices what came before', async t => {
  const demand = new Demand()
  demand.offered(CHAT, workOf(1000, 0, 1), undefined, 0)
  const before = demand.workPerSec(CHAT, cost, 0)
  const after = demand.workPerSec(CHAT, { ...cost, perPrefillMs: 0.04 }, 0)
  t.ok(after > 1.9 * before)
})

const capacity: Capacity = { workPerSec: 0.5, source: 'sweep', uncertainty: 0.08 }
const demands = [
  { cls: CHAT, workPerSec: 0.9, workPerRequest: 0.03 },
  { cls: AGENT, workPerSec: 0.3, workPerRequest: undefined },
]

t.test('headroom is one less demand over the capacity of the replicas that are there', async t => {
  const four = headroom(demands, capacity, 4)
  t.match(four, { source: 'sweep' })
  t.ok(Math.abs((four?.demandRatio ?? 0) - 0.6) < 1e-9)
  t.ok(Math.abs((four?.ratio ?? 0) - 0.4) < 1e-9)
  t.ok(Math.abs((four?.uncertainty ?? 0) - 0.048) < 1e-9)
  const [chat, agent] = four?.requestsPerSec ?? []
  t.ok(Math.abs((chat?.value ?? 0) - 0.8 / 0.03) < 1e-6)
  t.equal(agent?.value, undefined, 'of a class that never came nobody knows')
})

t.test('asked for more than there is, the ratio is below 0 and no request fits', async t => {
  const two = headroom(demands, capacity, 2)
  t.ok(Math.abs((two?.ratio ?? 0) + 0.2) < 1e-9)
  t.equal(two?.requestsPerSec[0]?.value, 0)
  t.equal(headroom(demands, capacity, 0), undefined, 'no replica, no ratio')
})

t.test('a cold replica counts in part', async t => {
  t.equal(rampWeight(0, 0), 0.3)
  t.ok(Math.abs(rampWeight(5000, 100) - 0.65) < 1e-9)
  t.equal(rampWeight(60_000, 0), 0.3, 'time alone warms nothing')
  t.equal(rampWeight(60_000, 30), 1)
})

t.test('the resource that is used furthest binds', async t => {
  t.equal(bindingNow({ prefill: 0.4, decode: 0.7, kv: undefined }), 'decode')
  t.equal(bindingNow({ prefill: 0.4, decode: 0.7, kv: 0.9 }), 'kv')
  t.equal(bindingNow({ prefill: undefined, decode: undefined, kv: undefined }), undefined)
})

t.test('instant headroom asks each replica until it says no, 64 times at most', async t => {
  t.equal(
    instantHeadroom(3, (replica, sent) => sent < replica * 2),
    6,
  )
  t.equal(
    instantHeadroom(2, () => true),
    128,
  )
})

/** Ten minutes of 10 s stretches at one load. */
function show(learned: LearnedCapacity, workPerSec: number, good: number, from = 0): void {
  for (let at = from; at < from + 600_000; at += 10_000) learned.add(workPerSec, 100, good * 100, at)
}

t.test('traffic that stays away from the edge leaves the prior as it is', async t => {
  const learned = new LearnedCapacity()
  show(learned, 0.3, 0.99)
  t.same(learned.capacity(0.9, capacity, 600_000), capacity)
})

t.test('where traffic kept its promise beyond the prior, the capacity is learned to be higher', async t => {
  const learned = new LearnedCapacity()
  show(learned, 0.5, 0.96)
  show(learned, 0.7, 0.94)
  const seen = learned.capacity(0.9, capacity, 600_000)
  t.equal(seen.source, 'learned')
  t.ok(seen.workPerSec >= 0.68 && seen.workPerSec < 0.8, `${seen.workPerSec}`)
})

t.test('where it broke below the prior, it is learned to be lower', async t => {
  const learned = new LearnedCapacity()
  show(learned, 0.3, 0.97)
  show(learned, 0.38, 0.8)
  const seen = learned.capacity(0.9, capacity, 600_000)
  t.equal(seen.source, 'learned')
  t.ok(seen.workPerSec > 0.29 && seen.workPerSec < 0.39, `${seen.workPerSec}`)
  t.ok(seen.uncertainty > 0.1, 'it lies somewhere between the two loads')
})

t.test('one good stretch above a broken one moves nothing: attainment falls with load', async t => {
  const learned = new LearnedCapacity()
  show(learned, 0.38, 0.5)
  learned.add(0.6, 250, 250, 600_000)
  t.ok(learned.capacity(0.9, capacity, 600_000).workPerSec < 0.4)
})

t.test('what was learned fades: after hours without such load the prior is back', async t => {
  const learned = new LearnedCapacity()
  show(learned, 0.38, 0.8)
  t.equal(learned.capacity(0.9, capacity, 600_000).source, 'learned')
  t.same(learned.capacity(0.9, capacity, 5 * 3_600_000), capacity)
})

t.test('the model stands by the middle of its knees, surer with more requests', async t => {
  const model = new ModelCapacity()
  t.equal(model.capacity(0.03, 1000), undefined)
  for (const knee of [0.5, 0.52, 0.9, 0.49, 0.51]) model.add(knee)
  const few = model.capacity(0.03, 1000)
  const many = model.capacity(0.03, 16_000)
  t.match(many, { workPerSec: 0.51, source: 'model' })
  t.ok((few?.uncertainty ?? 0) > (many?.uncertainty ?? 1))
  t.match(sweptCapacity(10, 0.05), { workPerSec: 0.5, source: 'sweep' })
})
