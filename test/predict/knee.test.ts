import t from 'tap'
import { KneeSearch } from '../../src/predict/knee.js'
import { OutputLengths } from '../../src/predict/lengths.js'
import { RecentRequests } from '../../src/predict/recent.js'
import type { StepCost } from '../../src/predict/step.js'
import { VirtualReplica } from '../../src/predict/virtual.js'
import type { Clauses, TrafficClass } from '../../src/slo/slo.js'
import { seededRng } from '../../src/time.js'

/** A step takes 10 ms and 1 ms a stream, a prompt token 0.01 ms; nothing else costs. */
const cost: StepCost = {
  floorMs: 10,
  mixedFloorMs: 10,
  perStreamMs: 1,
  perContextMs: 0,
  perPrefillMs: 0.01,
  perPairMs: 0,
  netMs: 0,
}

function traffic(id: number, clauses: Clauses): TrafficClass {
  const target = { percentile: 90, mode: 'joint', windowMs: 1, clauses } as const
  const inputTokens = { p50: 1, p90: 1 }
  const workload = { model: '*', precision: undefined, inputTokens, outputTokens: inputTokens, cacheHit: 0 }
  return {
    id,
    name: `class ${id}`,
    target,
    guard: target,
    workload,
    priority: 0,
    pools: [0],
    queue: undefined,
    ownBounds: undefined,
  }
}

const chat = traffic(0, { kind: 'stream', ttftMs: 500, tpotMs: 40 })

function alike(promptTokens: number, outputTokens: number, count = 1000, cls = 0): RecentRequests {
  const recent = new RecentRequests()
  for (let i = 0; i < count; i++) recent.add({ cls, promptTokens, cachedTokens: 0, outputTokens })
  return recent
}

function search(recent: RecentRequests, classes = [chat], more: { kvTokens?: number; cost?: StepCost } = {}) {
  return new KneeSearch({
    cost: more.cost ?? cost,
    budget: 8192,
    kvTokens: more.kvTokens,
    recent,
    classes,
    near: 3,
    seed: 1,
  })
}

function found(one: KneeSearch) {
  while (!one.advance(500));
  return one.knee
}

t.test('requests that are all alike break their promise where arithmetic says', async t => {
  // 1 prompt token and answers of 1,000: the pace is 10 + n ms, and 40 are allowed.
  const knee = found(search(alike(1, 1000)))
  t.equal(knee?.concurrency, 30)
  t.equal(knee?.binding, 'decode')
  const rate = 30 / (999 * 0.04)
  t.ok(Math.abs((knee?.requestsPerSec ?? 0) / rate - 1) < 0.01, `${knee?.requestsPerSec} of ${rate}`)
})

t.test('a dearer prompt binds by prefill, and is found in small pieces as well', async t => {
  const slow = { ...cost, perStreamMs: 0, perPrefillMs: 0.1 }
  const whole = found(search(alike(2000, 20), [chat], { cost: slow }))
  t.equal(whole?.binding, 'prefill')
  const pieces = search(alike(2000, 20), [chat], { cost: slow })
  let calls = 1
  while (!pieces.advance(10)) calls++
  t.same(pieces.knee, whole)
  t.ok(calls > 100, `${calls} pieces`)
})

t.test('a promise that not even one request keeps has its knee at 0', async t => {
  const knee = found(search(alike(8000, 100), [chat], { cost: { ...cost, perPrefillMs: 1 } }))
  t.match(knee, { concurrency: 0, requestsPerSec: 0, edgeRequestsPerSec: 0, binding: 'prefill' })
})

t.test('each class has to keep its own promise', async t => {
  const recent = alike(1, 1000)
  for (let i = 0; i < 1000; i++) recent.add({ cls: 1, promptTokens: 1, cachedTokens: 0, outputTokens: 1000 })
  const agent = traffic(1, { kind: 'deadline', deadlineMs: 25_000, minTokensPerSecond: 0 })
  const knee = found(search(recent, [chat, agent]))
  t.equal(knee?.binding, 'deadline')
  t.equal(knee?.concurrency, 15, '999 steps of 25 ms')
})

t.test('memory that is told keeps prompts waiting', async t => {
  const free = found(search(alike(1000, 100)))
  const tight = found(search(alike(1000, 100), [chat], { kvTokens: 10_000 }))
  t.ok((tight?.concurrency ?? 99) < 14, `${tight?.concurrency}`)
  t.ok((free?.concurrency ?? 0) > (tight?.concurrency ?? 99))
})

t.test('without a request there is no mix', async t => {
  t.throws(() => search(new RecentRequests()), {
    message: 'no request was seen: there is no mix to find a knee for',
  })
})

t.test('a virtual replica gives each stream one token a step, in order of coming', async t => {
  const ends: { ttftMs: number; decodeMs: number }[] = []
  const next = () => ({ cls: 0, promptTokens: 1000, cachedTokens: 0, outputTokens: 11 })
  const one = new VirtualReplica({ cost, budget: 8192, kvTokens: undefined, concurrency: 2, next })
  one.advance(end => ends.push({ ttftMs: end.ttftMs, decodeMs: end.decodeMs }))
  t.equal(ends.length, 2)
  t.same(ends[0], { ttftMs: 30, decodeMs: 120 }, 'both prompts in a step of 10 + 20 ms, then ten of 12')
})

t.test('the mix forgets the oldest, and knows what was cached of it', async t => {
  const recent = new RecentRequests()
  t.equal(recent.cachedShare(0), 0)
  for (let i = 0; i < 100; i++) recent.add({ cls: 0, promptTokens: 100, cachedTokens: 50, outputTokens: 0 })
  t.equal(recent.cachedShare(0), 0.5)
  t.equal(recent.at(7).outputTokens, 1, 'an answer has at least one token')
  for (let i = 0; i < 16_384; i++)
    recent.add({ cls: 1, promptTokens: 100, cachedTokens: 25, outputTokens: 5 })
  t.equal(recent.count, 16_384)
  t.equal(recent.cachedShare(0), 0)
  t.equal(recent.cachedShare(1), 0.25)
})

t.test('answers are expected to be as long as those of their class, model and prompt size were', async t => {
  const lengths = new OutputLengths()
  const of = (promptTokens: number, cls = 0, model = 'm', maxTokens?: number) => ({
    cls,
    model,
    promptTokens,
    maxTokens,
  })
  t.equal(lengths.mean(of(100)), 200, 'before anything came')
  t.equal(lengths.mean(of(100, 0, 'm', 50)), 50, 'and never more than allowed')
  const rng = seededRng(1)
  for (let i = 0; i < 2000; i++) {
    lengths.add(0, 'm', 300, 100 + Math.floor(rng.next() * 100))
    lengths.add(0, 'm', 5000, 1000 + Math.floor(rng.next() * 1000))
  }
  t.ok(Math.abs(lengths.mean(of(300)) / 150 - 1) < 0.03, `${lengths.mean(of(300))}`)
  t.ok(Math.abs(lengths.mean(of(5000)) / 1500 - 1) < 0.03, `${lengths.mean(of(5000))}`)
  t.ok(Math.abs(lengths.quantile(of(300), 0.9) / 190 - 1) < 0.04, `${lengths.quantile(of(300), 0.9)}`)
  t.equal(lengths.quantile(of(5000, 0, 'm', 1200), 0.9), 1200)
  t.ok(Math.abs(lengths.mean(of(300, 0, 'new')) / 825 - 1) < 0.05, 'a new model is like its class')
  t.ok(Math.abs(lengths.mean(of(300, 5)) / 825 - 1) < 0.05, 'a new class like all')
  for (let i = 0; i < 100; i++) lengths.add(0, 'new', 300, 10)
  const half = lengths.mean(of(300, 0, 'new'))
  t.ok(half > 100 && half < 600, `${half}: a hundred answers do not yet stand for themselves`)
})

t.test('an answer under way is expected to go on as those that got so far', async t => {
  const lengths = new OutputLengths()
  const query = { cls: 0, model: 'm', promptTokens: 10, maxTokens: undefined }
  for (let i = 0; i < 500; i++) lengths.add(0, 'm', 10, i % 2 === 0 ? 10 : 1000)
  t.ok(Math.abs(lengths.remaining(query, 0) / 505 - 1) < 0.03)
  t.ok(Math.abs(lengths.remaining(query, 100) / 900 - 1) < 0.03, `${lengths.remaining(query, 100)}`)
  t.equal(lengths.remaining({ ...query, maxTokens: 120 }, 100), 20)
  t.equal(lengths.remaining(query, 5000), 200, 'longer than any before')
})

t.test('answers of long ago fade', async t => {
  const lengths = new OutputLengths()
  const query = { cls: 0, model: 'm', promptTokens: 10, maxTokens: undefined }
  for (let i = 0; i < 4000; i++) lengths.add(0, 'm', 10, 1000)
  for (let i = 0; i < 20_000; i++) lengths.add(0, 'm', 10, 50)
  t.ok(lengths.mean(query) < 80, `${lengths.mean(query)}`)
})

t.test('answers of one token end like others: a search over nothing else comes to its end', async t => {
  const deadline = traffic(0, { kind: 'deadline', deadlineMs: 100, minTokensPerSecond: 0 })
  const knee = found(search(alike(100, 1), [deadline]))
  t.match(knee, { binding: 'deadline' })
  t.ok(knee!.concurrency >= 1)
})
