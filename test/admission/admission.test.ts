import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { deadlineOf, patienceMs } from '../../src/admission/deadline.js'
import { LazyHeap } from '../../src/admission/lazy-heap.js'
import { DeadlineQueue, type Waiting } from '../../src/admission/queue.js'
import { Reservations } from '../../src/admission/retry-after.js'
import { RetryBudget } from '../../src/admission/retry-budget.js'
import { seededRng } from '../../src/time.js'
import { agent, ask, chat } from '../policy/world.js'

const any = (): boolean => true
const drain = <T>(queue: DeadlineQueue<T>): T[] => {
  const out: T[] = []
  for (let item = queue.take(any); item !== undefined; item = queue.take(any)) out.push(item)
  return out
}

t.test('inside a key the earliest deadline is first, and equals in the order they came', async t => {
  const queue = new DeadlineQueue<string>()
  queue.push('late', '', 300, 1)
  queue.push('first', '', 100, 1)
  queue.push('second', '', 100, 1)
  t.equal(queue.peek()?.item, 'first')
  t.equal(queue.size, 3)
  t.same(drain(queue), ['first', 'second', 'late'])
  t.equal(queue.size, 0)
  t.equal(queue.peek(), undefined)
})

t.test('no key outranks another by claiming short deadlines', async t => {
  const queue = new DeadlineQueue<string>()
  for (let at = 0; at < 50; at++) {
    queue.push('hasty', 'hasty', at, 10)
    queue.push('calm', 'calm', 100_000 + at, 10)
  }
  const first = Array.from({ length: 20 }, () => queue.take(any))
  t.equal(first.filter(name => name === 'calm').length, 10)
})

t.test('keys share by work, not by number', async t => {
  const queue = new DeadlineQueue<string>()
  for (let at = 0; at < 100; at++) {
    queue.push('big', 'big', 0, 300)
    queue.push('small', 'small', 0, 100)
  }
  const first = Array.from({ length: 80 }, () => queue.take(any))
  t.equal(first.filter(name => name === 'small').length, 60)
})

t.test(
  'a key that comes back starts where the others are, with no credit for its absence and no debt forgotten',
  async t => {
    const queue = new DeadlineQueue<string>()
    for (let at = 0; at < 100; at++) queue.push('steady', 'steady', 0, 1)
    for (let at = 0; at < 60; at++) queue.take(any)
    for (let at = 0; at < 40; at++) queue.push('back', 'back', 1, 1)
    const next = Array.from({ length: 40 }, () => queue.take(any))
    t.equal(next.filter(name => name === 'back').length, 20, 'no credit')

    const other = new DeadlineQueue<string>()
    for (let at = 0; at < 100; at++) other.push('steady', 'steady', 1000, 1)
    let waits = false
    const served = Array.from({ length: 40 }, () => {
      if (!waits) other.push('single', 'single', 0, 1)
      const item = other.take(any)
      waits = item !== 'single'
      return item
    })
    t.equal(served.filter(name => name === 'single').length, 20, 'one at a time is not a way to be first')
  },
)

t.test('those who do not fit are passed over and keep their places', async t => {
  const queue = new DeadlineQueue<number>()
  for (const at of [1, 2, 3, 4]) queue.push(at, at % 2 === 0 ? 'even' : 'odd', at, 1)
  t.equal(
    queue.take(item => item > 2),
    3,
  )
  t.equal(
    queue.take(item => item > 9),
    undefined,
  )
  t.equal(queue.size, 3)
  t.same(drain(queue).sort(), [1, 2, 4])
})

t.test('one that leaves is gone from the depth at once, and memory follows', async t => {
  const queue = new DeadlineQueue<number>()
  const held: Waiting<number>[] = []
  for (let at = 0; at < 1000; at++) held.push(queue.push(at, '', at, 1))
  for (const waiting of held.slice(0, 999)) queue.remove(waiting)
  t.equal(queue.size, 1)
  t.equal(queue.peek()?.item, 999)
  t.same(drain(queue), [999])
})

t.test('a lazy heap gives what a sorted list would, however items are dropped', async t => {
  const law = fc.property(fc.array(fc.tuple(fc.nat(100), fc.nat(3)), { maxLength: 300 }), steps => {
    const heap = new LazyHeap<{ at: number; gone: boolean }>((a, b) => a.at - b.at)
    const list: { at: number; gone: boolean }[] = []
    for (const [at, what] of steps) {
      list.sort((a, b) => a.at - b.at)
      if (what === 0) assert.equal(heap.pop()?.at, list.shift()?.at)
      else if (what === 1 && list.length > 0) {
        const [dropped] = list.splice(at % list.length, 1)
        if (dropped) heap.drop(dropped)
      } else {
        const item = { at, gone: false }
        heap.push(item)
        list.push(item)
      }
      assert.equal(heap.size, list.length)
      assert.equal(
        heap.peek()?.at,
        list.reduce<number | undefined>((min, { at }) => Math.min(min ?? at, at), undefined),
      )
    }
  })
  t.doesNotThrow(() => fc.assert(law))
})

t.test('reroutes are a tenth of the requests of 10 s, and never fewer than three', async t => {
  const budget = new RetryBudget({ share: 0.1, floor: 3 })
  const spend = (now: number): number => {
    let spent = 0
    for (; budget.allows(now); spent++) budget.reroute(now)
    return spent
  }
  t.equal(spend(1_000_000), 3)
  t.equal(spend(1_005_000), 0)
  t.equal(spend(1_010_000), 3, 'ten seconds later they are free again')
  for (let at = 0; at < 100; at++) budget.request(1_030_000 + at * 90)
  t.equal(spend(1_039_000), 10)
  t.equal(spend(1_500_000), 3, 'and requests are forgotten as well')
})

t.test('refused clients are told times that spread at the rate at which slots come free', async t => {
  const rng = seededRng(1)
  const one = new Reservations()
  const first = one.next(0, 0, 4 / 10_000, rng)
  t.ok(first >= 2500 && first <= 3000, `a slot every 2.5 s: ${first}`)
  const second = one.next(0, 0, 4 / 10_000, rng)
  t.ok(second >= 5000 && second <= 6000, `the next one after it: ${second}`)
  const behind = new Reservations().next(0, 7, 4 / 10_000, rng)
  t.ok(behind >= 20_000 && behind <= 24_000, `behind seven who wait: ${behind}`)

  const burst = new Reservations()
  const told = Array.from({ length: 190 }, () => burst.next(0, 0, 10 / 1000, rng))
  t.ok(Math.min(...told) >= 1000 && Math.max(...told) <= 59_000)
  const perSecond = Array.from(
    { length: 19 },
    (_, s) => told.filter(at => Math.floor(at / 1000) === s).length,
  )
  t.ok(Math.max(...perSecond.slice(2)) <= 15, `about ten a second come back: ${perSecond}`)
  for (let at = 0; at < 100_000; at++) burst.next(0, 0, 10 / 1000, rng)
  const last = Array.from({ length: 100 }, () => burst.next(0, 0, 10 / 1000, rng))
  t.ok(
    Math.max(...last) <= 59_000 && new Set(last).size > 90,
    'and at the end of the horizon they still differ',
  )
})

t.test(
  "a deadline is the client's, clamped by its class; a library that waits for a whole answer sets one too",
  async t => {
    const of = (change: Parameters<typeof ask>[1], traffic = agent) => deadlineOf(traffic, ask(0, change))
    t.same(of({}), { ms: 60_000, by: 'class' })
    t.same(of({ own: { deadlineMs: 20_000 } }), { ms: 20_000, by: 'client' })
    t.same(of({ own: { deadlineMs: 1 } }), { ms: 5_000, by: 'client' })
    t.same(of({ own: { deadlineMs: 1e9 } }), { ms: 600_000, by: 'client' })
    t.same(
      of({ patienceMs: 20_000 }),
      { ms: 60_000, by: 'class' },
      'a stream: the library waits for the head only',
    )
    t.same(of({ patienceMs: 20_000, stream: false }), { ms: 20_000, by: 'sdk' })
    t.same(
      of({ patienceMs: 600_000, stream: false }),
      { ms: 60_000, by: 'class' },
      'its default means nothing',
    )
    t.same(of({ patienceMs: 20_000, stream: false, own: { deadlineMs: 9_000 } }), { ms: 9_000, by: 'client' })
    t.same(of({ patienceMs: 9_000, stream: false, own: { deadlineMs: 20_000 } }), { ms: 9_000, by: 'sdk' })
    t.same(of({}, chat), { ms: Infinity, by: 'class' })
    t.equal(patienceMs(ask(0, { patienceMs: 600_000 })), undefined)
    t.equal(patienceMs(ask(0, { patienceMs: 30_000 })), 30_000)
  },
)
