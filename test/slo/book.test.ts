import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { PolicySpec } from '../../src/policy/policy.js'
import type { Ticket } from '../../src/request.js'
import { type EachRunning, SloBook } from '../../src/slo/book.js'
import { budgetLeft, burnRate, exhaustedInMs } from '../../src/slo/burn.js'
import type { Progress } from '../../src/slo/latency.js'
import type { Attainment } from '../../src/slo/reading.js'
import { readSavedBook, type SavedBook } from '../../src/slo/saved-book.js'
import type { Slo, SloName, TrafficClass } from '../../src/slo/slo.js'
import {
  type ClauseName,
  earlyResults,
  type Judgement,
  judge,
  type Outcome,
  type Served,
} from '../../src/slo/verdict.js'
import { LEVELS, windowName } from '../../src/slo/windows.js'
import { agent, ask, chat, specOf, stream, usage } from '../policy/world.js'

const SECOND = 1000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR
const SPEC = specOf([2, 1], 8)
/** The policy's clock does not begin at 0. */
const START = 5_000_000

const withSlo = (cls: TrafficClass, slo: SloName, change: Partial<Slo>): TrafficClass => ({
  ...cls,
  [slo]: { ...cls[slo], ...change },
})
const classes = (change: (cls: TrafficClass) => TrafficClass): PolicySpec => ({
  ...SPEC,
  classes: SPEC.classes.map(change),
})
/** @param stepMs  passes between two rows */
const viaJson = (book: SloBook, now: number, stepMs = 0): SavedBook => {
  let at = now - stepMs
  const clock = { now: () => (at += stepMs) }
  const read = readSavedBook(JSON.parse(JSON.stringify([...book.save(clock)])))
  if (typeof read === 'string') throw new Error(read)
  return read
}

/** A request for chat whose body was complete at `at`, as the judge sees it. */
const served = (at: number, change: Partial<Served> = {}): Served => ({
  traffic: chat,
  pool: 0,
  stream: true,
  promptTokens: 100,
  arrivedAt: at,
  bodyAt: at,
  dispatchedAt: at,
  deadlineMs: Infinity,
  reported: 0,
  ...change,
})

/** A complete chat answer of 11 tokens; judged at its end. */
function answer(
  at: number,
  ttftMs: number,
  tpotMs: number,
  change: Partial<Served> = {},
): [Judgement, number] {
  const [first, last] = [at + ttftMs, at + ttftMs + 10 * tpotMs]
  return [judge(served(at, change), 'complete', stream(first, last, 11), 1, last), last]
}
/** Ends at `at`. */
const good = (at: number): Judgement => answer(at - 500, 100, 40)[0]
const slow = (at: number): Judgement => answer(at - 510, 100, 41)[0]
const shed = (at: number, change: Partial<Served> = {}): Judgement =>
  judge(served(at, { pool: undefined, dispatchedAt: undefined, ...change }), 'shed', undefined, 1, at)

const find = (
  book: SloBook,
  now: number,
  clause: ClauseName,
  windowMs: number,
  slo: SloName = 'target',
  cls = 0,
): Attainment => {
  const found = book
    .reading(now)
    .attainment()
    .find(row => row.cls === cls && row.slo === slo && row.clause === clause && row.windowMs === windowMs)
  assert.ok(found)
  return found
}
const burnOf = (book: SloBook, now: number, windowMs: number, slo: SloName = 'target', cls = 0) =>
  book
    .reading(now)
    .burn()
    .find(row => row.cls === cls && row.slo === slo && row.windowMs === windowMs)?.rate

t.test('each window attains what the list of all verdicts says', async t => {
  const requests = fc.array(
    fc.record({
      gap: fc.oneof(fc.nat(2000), fc.nat(10 * MINUTE), fc.nat(2 * DAY)),
      ttftMs: fc.nat(2500),
      tpotMs: fc.nat(130),
    }),
    { maxLength: 40 },
  )
  const bounds = { target: { ttftMs: 500, tpotMs: 40 }, guard: { ttftMs: 2000, tpotMs: 100 } }
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(requests, fc.nat(3 * HOUR), (list, rest) => {
        const book = new SloBook(SPEC, START)
        let at = START
        const ended = list.map(({ gap, ttftMs, tpotMs }) => {
          at += gap
          // Judged in the order of their ends, as the clock is.
          book.judged(answer(at - ttftMs - 10 * tpotMs, ttftMs, tpotMs)[0], 'm', at)
          return { at, ttftMs, tpotMs }
        })
        const now = at + rest
        for (const row of book.reading(now).attainment()) {
          if (row.cls !== 0) continue
          const { sliceMs } = LEVELS.find(({ spanMs }) => spanMs >= row.windowMs)!
          const begin = START + Math.floor((now - START - row.windowMs) / sliceMs) * sliceMs
          const inside = ended.filter(one => one.at >= begin)
          const { ttftMs, tpotMs } = bounds[row.slo]
          const met = inside.filter(
            one =>
              (row.clause === 'tpot' || one.ttftMs <= ttftMs) &&
              (row.clause === 'ttft' || one.tpotMs <= tpotMs),
          )
          assert.deepEqual(
            [row.met, row.missed],
            [met.length, inside.length - met.length],
            `${row.slo} ${row.clause} ${windowName(row.windowMs)}`,
          )
        }
      }),
      { numRuns: 50 },
    ),
  )
})

t.test(
  'a share is known from 100 requests on, over what has been seen, and held against its interval',
  async t => {
    const book = new SloBook(SPEC, START)
    const add = (count: number, one: (at: number) => Judgement, at: number): void => {
      for (let i = 0; i < count; i++) book.judged(one(at), 'm', at)
    }
    add(99, good, START + SECOND)
    t.match(find(book, START + 10 * SECOND, 'joint', 10 * SECOND), {
      met: 99,
      share: undefined,
      holds: undefined,
    })
    add(1, good, START + 10 * SECOND)
    t.match(find(book, START + 10 * SECOND, 'joint', 10 * SECOND), { met: 100, share: 1, holds: true })
    t.equal(find(book, START + MINUTE - 1, 'joint', MINUTE).share, undefined, 'a minute has not been seen')
    add(10, slow, START + MINUTE)
    const unsure = find(book, START + MINUTE, 'joint', MINUTE)
    t.match(unsure, { met: 100, missed: 10, holds: undefined })
    t.ok(unsure.share! > 0.9 && unsure.interval!.low < 0.9, 'above 90 %, and not for sure')
    t.match(find(book, START + MINUTE, 'ttft', MINUTE), { met: 110, missed: 0 })
    t.match(find(book, START + MINUTE, 'joint', MINUTE, 'guard'), { met: 110, missed: 0 })
    add(30, slow, START + MINUTE)
    t.match(find(book, START + MINUTE, 'tpot', MINUTE), { met: 100, missed: 40, holds: false })
  },
)

t.test('good over offered: 100 arrive, 5 are excluded, 5 shed, 60 good, as in case S43', async t => {
  const book = new SloBook(SPEC, START)
  const at = START + MINUTE
  const end = (count: number, judgement: Judgement): void => {
    for (let i = 0; i < 10 * count; i++) book.judged(judgement, 'm', at)
  }
  const failed = (outcome: Outcome, progress?: Progress) => judge(served(at - 100), outcome, progress, 1, at)
  end(60, good(at))
  end(25, slow(at))
  end(3, failed('upstreamError'))
  end(2, failed('truncated', stream(at - 50, at, 3)))
  end(2, failed('clientError'))
  end(3, failed('clientLeft'))
  for (let i = 0; i < 50; i++) {
    const ticket: Ticket = { id: i, facts: ask(at), cls: 0, model: 'm', route: 0 }
    book.news({ kind: 'shed', ticket, judgement: shed(at) }, at)
  }
  const [offered] = book.reading(at).offered()
  t.match(offered, { cls: 0, goodShare: 60 / 95, admittedGoodShare: 60 / 90, shedShare: 5 / 95 })
  t.equal(offered?.offeredPerSecond, 950 / 60)
  t.match(find(book, at, 'joint', MINUTE), { met: 600, missed: 350 }, 'the clause agrees')
  t.match(find(book, at, 'tpot', MINUTE), { met: 600, missed: 250 }, 'failures are no TPOT')
  t.equal(book.reading(at + 2 * MINUTE).offered()[0]?.goodShare, undefined, 'a quiet minute says nothing')
  t.equal(book.reading(at + 2 * MINUTE).offered()[0]?.goodPerSecond, 0)
})

t.test('goodput is good requests, and their output tokens a GPU that is up', async t => {
  const spec = { ...SPEC, pools: SPEC.pools.map(pool => ({ ...pool, gpusPerReplica: 4 })) }
  const book = new SloBook({ ...spec, classes: spec.classes.map(cls => ({ ...cls, pools: [0, 1] })) }, START)
  for (let i = 0; i < 120; i++) book.judged(good(START + i * 500), 'm', START + i * 500)
  for (let i = 0; i < 30; i++) book.judged(slow(START + MINUTE - 1), 'm', START + MINUTE - 1)
  const up = [true, true, false].map((up, id) => ({ pool: id === 2 ? 1 : 0, up }))
  t.same(book.reading(START + MINUTE - 1).goodput(up)[0], {
    cls: 0,
    pool: 0,
    requestsPerSecond: undefined,
    tokensPerSecondPerGpu: undefined,
  })
  const rows = book.reading(START + MINUTE).goodput(up)
  t.same(rows[0], { cls: 0, pool: 0, requestsPerSecond: 2, tokensPerSecondPerGpu: (2 * 11) / 8 })
  t.match(
    rows[1],
    { pool: 1, requestsPerSecond: 0, tokensPerSecondPerGpu: undefined },
    'no replica is up there',
  )
  const one = book.reading(START + MINUTE).goodput([{ pool: 0, up: true }])
  t.equal(one[0]?.tokensPerSecondPerGpu, 22 / 4)
})

t.test('overload shows while nothing completes, and is put right at the end', async t => {
  const open = new Map<number, { ticket: Ticket; progress: Progress | undefined }>()
  const running: EachRunning = see => {
    for (const { ticket, progress } of open.values()) see(ticket, 0, progress)
  }
  const book = new SloBook(SPEC, START, running)
  const begin = (count: number, progress: Progress | undefined, cls = 0, change = {}): void => {
    for (let i = 0; i < count; i++) {
      const ticket: Ticket = { id: i, facts: ask(START, change), cls, model: 'm', route: 0 }
      open.set(open.size, { ticket, progress })
    }
  }
  begin(100, undefined)
  begin(100, undefined, 1)
  t.match(find(book, START + 500, 'joint', 10 * SECOND), { met: 0, missed: 0 }, 'at the bound it is kept')
  t.match(find(book, START + 501, 'joint', 10 * SECOND), { met: 0, missed: 100 })
  t.match(find(book, START + 501, 'joint', 10 * SECOND, 'guard'), { missed: 0 })
  const now = START + 10 * SECOND
  t.match(find(book, now, 'joint', 10 * SECOND), { share: 0, holds: false })
  t.match(find(book, now, 'joint', 10 * SECOND, 'guard'), { share: 0 })
  t.match(find(book, now, 'tpot', 10 * SECOND), { missed: 0 }, 'there is no pace yet')
  t.match(find(book, now, 'deadline', 10 * SECOND, 'target', 1), { missed: 0 })
  for (const result of earlyResults(served(START), START + 501, false))
    book.news({ kind: 'clause', result }, now)
  t.match(find(book, now, 'ttft', 10 * SECOND), { missed: 1 }, 'a bound that passed counts once, for good')

  open.clear()
  for (let i = 0; i < 40; i++) {
    const left = judge(served(START, { reported: 1 }), 'clientError', undefined, 1, now)
    book.judged(left, 'm', now)
  }
  for (let i = 0; i < 60; i++) book.judged(answer(now - 600, 501, 1, { reported: 1 })[0], 'm', now)
  t.match(find(book, now, 'joint', 10 * SECOND), { met: 0, missed: 60 }, 'what is excluded is taken back')
  t.match(find(book, now, 'ttft', 10 * SECOND), { met: 0, missed: 1 })

  const pace = (marks: number, change: Partial<Progress> = {}): Progress =>
    stream(START + 100, now, marks, { usage: undefined, ...change })
  const lost = (progress: Progress, change = {}): number => {
    open.clear()
    begin(1, progress, 0, change)
    return find(book, now, 'tpot', 10 * SECOND).missed
  }
  // 9,900 ms since the first output, a bound of 40 ms.
  t.equal(lost(pace(166)), 0, '59.6 ms a token: slow, and it may still turn out well')
  t.equal(lost(pace(164)), 1, '60.4 ms a token')
  t.equal(lost(pace(31)), 0, 'too few to tell')
  t.equal(lost(pace(31), { maxTokens: 200 }), 1, 'not even 200 tokens would be in time')
  t.equal(lost(pace(31), { maxTokens: 249 }), 0)
  t.equal(lost(pace(100, { throttled: true })), 0, 'its client reads slowly')
  t.equal(lost(pace(100, { usage: usage(200) })), 0, 'usage tells more tokens than there were events')
  t.equal(lost(pace(100), { stream: false }), 0)
  t.equal(find(book, now, 'joint', 10 * SECOND).missed, 60)
  lost(pace(164))
  t.equal(find(book, now, 'joint', 10 * SECOND).missed, 61)
  t.equal(find(book, now, 'joint', 10 * SECOND, 'guard').missed, 0)

  // 4 tokens an event, as the pool's answers turn out to have.
  t.equal(lost(pace(50)), 1)
  for (let i = 0; i < 100; i++) {
    const many = judge(served(now), 'complete', stream(now, now + 400, 10, { usage: usage(40) }), 1, now)
    book.judged(many, 'm', now)
  }
  t.equal(lost(pace(50)), 0, '50 ms a token')
})

t.test('burn is misses over what may miss: at p90 never above 10, so no alert asks for more', async t => {
  t.equal(burnRate(7, 7, 90), 10)
  t.equal(burnRate(1, 100, 99), 1)
  t.equal(burnRate(0, 5, 99.9), 0)
  t.equal(budgetLeft(0.25), 0.75)
  t.equal(exhaustedInMs(0.5, 7 * DAY, 7), DAY / 2)
  t.equal(exhaustedInMs(0.5, 7 * DAY, 0), Infinity)
  t.equal(exhaustedInMs(-0.1, 7 * DAY, 1), 0)

  const book = new SloBook(SPEC, START)
  const at = START + 5 * MINUTE
  for (let i = 0; i < 49; i++) book.judged(slow(at), 'm', at)
  t.equal(burnOf(book, at, 5 * MINUTE), undefined, '49 events are no evidence')
  book.judged(slow(at), 'm', at)
  t.equal(burnOf(book, at, 5 * MINUTE), 10)
  t.equal(burnOf(book, at, 5 * MINUTE, 'guard'), 0)
  t.equal(burnOf(book, at, HOUR), undefined, 'an hour has not been seen')
  const late = agentEnds(at, 120_000)
  for (let i = 0; i < 50; i++) book.judged(late, 'm', at)
  t.equal(burnOf(book, at, 5 * MINUTE, 'target', 1), 10, 'a deadline is a promise too')
})

const agentEnds = (end: number, tookMs: number): Judgement => {
  const job = served(end - tookMs, { traffic: agent, stream: false, deadlineMs: 60_000 })
  return judge(job, 'complete', stream(end, end, 0, { streamed: false, firstOutput: undefined }), 1, end)
}

t.test('promised by clause, the worse one burns, and what failed is held against both', async t => {
  const both = (mode: Slo['mode']): SloBook => {
    const book = new SloBook(
      classes(cls => withSlo(cls, 'target', { mode })),
      START,
    )
    const at = START + 5 * MINUTE
    const add = (count: number, judgement: Judgement): void => {
      for (let i = 0; i < count; i++) book.judged(judgement, 'm', at)
    }
    add(80, good(at))
    add(10, slow(at))
    add(5, answer(at - 600, 501, 5)[0])
    add(5, shed(at))
    return book
  }
  const at = START + 5 * MINUTE
  t.equal(burnOf(both('joint'), at, 5 * MINUTE), burnRate(20, 100, 90))
  t.equal(burnOf(both('clause'), at, 5 * MINUTE), burnRate(15, 100, 90), 'TPOT: 10 slow, 5 shed')
  t.match(find(both('clause'), at, 'tpot', 5 * MINUTE), { met: 85, missed: 10 }, 'attainment has no sheds')

  const book = new SloBook(
    classes(cls => withSlo(cls, 'target', { mode: 'clause' })),
    START,
  )
  const timedOut = served(at - 700, { reported: 1 })
  for (const result of earlyResults(served(at - 700), at, false)) {
    for (let i = 0; i < 50; i++) book.news({ kind: 'clause', result }, at)
  }
  for (let i = 0; i < 50; i++) book.judged(judge(timedOut, 'timeout', undefined, 1, at), 'm', at)
  for (let i = 0; i < 150; i++) book.judged(good(at), 'm', at)
  t.equal(burnOf(book, at, 5 * MINUTE), burnRate(50, 200, 90), 'a miss that was known early counts once')
})

t.test('an alert fires while both of its windows burn, and only those that can fire are there', async t => {
  const spec = classes(cls => withSlo(cls, 'guard', { windowMs: 30 * DAY }))
  const book = new SloBook(spec, START)
  const alerts = (now: number) =>
    book
      .reading(now)
      .alerts()
      .filter(({ cls }) => cls === 0)
  const factors = (slo: SloName) =>
    alerts(START).flatMap(row => (row.slo === slo ? [[row.alert.factor, windowName(row.alert.longMs)]] : []))
  t.same(factors('guard'), [
    [14.4, '1h'],
    [6, '6h'],
    [3, '1d'],
    [1, '3d'],
  ])
  t.same(factors('target'), [
    [3.36, '1h'],
    [1.4, '6h'],
  ])

  const firing = (now: number): string[] =>
    alerts(now)
      .filter(row => row.firing)
      .map(row => `${row.slo} ${windowName(row.alert.longMs)}`)
  let now = START
  /** One request each 5 s, every `nth` of them slow, or too slow even for the guard. */
  const play = (forMs: number, nth: number, judgement: (at: number) => Judgement): void => {
    for (const end = now + forMs; now < end; now += 5 * SECOND) {
      const miss = nth > 0 && (now / (5 * SECOND)) % nth === 0
      book.judged(miss ? judgement(now) : good(now), 'm', now)
    }
  }
  const awful = (at: number): Judgement => answer(at - 2000, 100, 150)[0]
  play(2 * HOUR, 20, slow)
  t.same(firing(now), [], 'a clean time, with misses that the promise allows')
  play(6 * MINUTE, 1, awful)
  t.same(firing(now), [], '6 minutes are 10 % of the hour: 1 of 3.36, and 10 of 14.4')
  play(4 * MINUTE, 1, awful)
  t.same(firing(now), ['guard 1h'], '10 minutes burn 16 of 14.4')
  play(12 * MINUTE, 1, awful)
  t.same(firing(now), ['target 1h', 'guard 1h'])
  play(6 * MINUTE, 0, awful)
  t.same(firing(now), [], 'it is over: the short windows say so')
  play(4 * HOUR, 4, slow)
  t.same(firing(now), ['target 6h'], 'a quarter slow: 2.5 is below 3.36 of the hour, and above 1.4 of six')
})

t.test('the budget is that of the whole period: not known before, negative when overspent', async t => {
  const book = new SloBook(
    classes(cls => withSlo(cls, 'target', { windowMs: 3 * DAY })),
    START,
  )
  const target = (now: number) => book.reading(now).budgets()[0]
  let now = START
  for (; now < START + 3 * DAY; now += 30 * SECOND) {
    book.judged((now - START) % (20 * 30 * SECOND) === 0 ? slow(now) : good(now), 'm', now)
  }
  t.match(target(START + 3 * DAY - SECOND), { left: undefined, exhaustedInMs: undefined, periodMs: 3 * DAY })
  const half = target(START + 3 * DAY)
  t.equal(half?.seenMs, 3 * DAY)
  t.ok(Math.abs(half!.left! - 0.5) < 0.01, `one in 20 of one in 10: ${half?.left}`)
  t.ok(Math.abs(half!.exhaustedInMs! / (3 * DAY) - 1) < 0.05, 'half is left, at half the rate')
  for (const end = now + DAY; now < end; now += 30 * SECOND) book.judged(slow(now), 'm', now)
  t.match(target(now), { exhaustedInMs: 0 })
  t.ok(target(now)!.left! < -2)
})

const requests = fc.array(
  fc.record({
    gap: fc.oneof(fc.nat(3000), fc.nat(20 * MINUTE), fc.nat(2 * DAY)),
    kind: fc.constantFrom('good', 'slow', 'shed', 'agent', 'early'),
    repeat: fc.constantFrom(1, 7, 120),
  }),
  { maxLength: 25 },
)
type Steps = ReturnType<typeof fc.sample<{ gap: number; kind: string; repeat: number }[]>>[number]

/** Plays the same on a book whose clock is `shift` off. @returns when it is, on the first clock */
function play(book: SloBook, steps: Steps, from: number, shift: number): number {
  let at = from
  for (const { gap, kind, repeat } of steps) {
    at += gap
    const now = at + shift
    for (let i = 0; i < repeat; i++) {
      if (kind === 'good')
        book.judged({ ...good(now), cachedTokens: i % 90 }, i % 3 === 0 ? 'other' : 'm', now)
      else if (kind === 'slow') book.judged(slow(now), 'm', now)
      else if (kind === 'shed') book.judged(shed(now), 'm', now)
      else if (kind === 'agent') book.judged(agentEnds(now, 50_000 + 100 * i), 'm', now)
      else
        for (const result of earlyResults(served(now - 600), now, false))
          book.news({ kind: 'clause', result }, now)
    }
  }
  return at
}
const all = (book: SloBook, now: number) => {
  const reading = book.reading(now)
  return {
    attainment: reading.attainment(),
    burn: reading.burn(),
    alerts: reading.alerts(),
    budgets: reading.budgets(),
    goodput: reading.goodput([{ pool: 0, up: true }]),
    offered: reading.offered(),
    spreads: reading.spreads(),
    drift: reading.drift(),
  }
}

t.test('a restart with the state kept is no restart, whatever the monotonic clock begins at', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        requests,
        requests,
        fc.nat(2 * DAY),
        fc.integer({ min: -START, max: 1e9 }),
        fc.oneof(fc.constant(0), fc.nat(HOUR)),
        (a, b, rest, shift, stepMs) => {
          const whole = new SloBook(SPEC, START)
          const saved = play(whole, a, START, 0)
          const file = viaJson(whole, saved, stepMs)
          // The clock stands a step after the last row.
          const gapMs = stepMs + rest
          const begin = saved + (file.length - 1) * stepMs + gapMs
          const again = new SloBook(SPEC, begin + shift)
          assert.equal(again.restore(file, gapMs, begin + shift), undefined)
          const end = play(whole, b, begin, 0)
          play(again, b, begin, shift)
          // Sums of the times differ in their last binary digits.
          const [x, y] = [all(whole, end), all(again, end + shift)]
          assert.deepEqual(
            y.spreads.map(({ count }) => count),
            x.spreads.map(({ count }) => count),
          )
          assert.deepEqual({ ...y, spreads: [] }, { ...x, spreads: [] })
        },
      ),
      { numRuns: 40 },
    ),
  )
})

t.test(
  'what the config does not have any more is dropped, what it has anew begins at the restart',
  async t => {
    const before = new SloBook(SPEC, START)
    for (let i = 0; i < 200; i++) before.judged(i % 2 ? good(START) : agentEnds(START, 1000), 'm', START)
    const file = viaJson(before, START + HOUR)
    const changed = {
      classes: [
        withSlo(chat, 'target', { clauses: { kind: 'stream', ttftMs: 400, tpotMs: 40 } }),
        { ...agent, name: 'jobs' },
      ] as const,
      pools: SPEC.pools,
    }
    const book = new SloBook(changed, 0)
    t.equal(book.restore(file, HOUR, 0), undefined)
    t.match(find(book, 0, 'joint', 3 * DAY), { met: 0 }, 'another bound')
    t.match(find(book, 0, 'joint', 3 * DAY, 'guard'), { met: 100 })
    t.match(find(book, 0, 'deadline', 3 * DAY, 'target', 1), { met: 0 }, 'another class')
    t.same(
      book
        .reading(MINUTE)
        .budgets()
        .map(({ seenMs }) => seenMs),
      [MINUTE, 2 * HOUR + MINUTE, MINUTE, MINUTE],
    )
    const back = new SloBook(SPEC, 0)
    t.equal(back.restore(file, -5 * HOUR, 0), undefined, 'the wall clock was set back')
    t.match(find(back, 0, 'joint', HOUR), { met: 100 })
  },
)

t.test(
  'what is no saved book is told from one, and a book that cannot be filled stays as it was',
  async t => {
    const book = new SloBook(SPEC, START)
    book.judged(good(START), 'm', START)
    const file = viaJson(book, START)
    const [row, ...others] = file
    const with1 = (change: object) => [...others, { ...row, ...change }]
    const broken = `row ${others.length} lacks a part, or has one of another kind`
    for (const [wrong, why] of [
      [null, 'no list of rows'],
      [{ version: 1, promises: [] }, 'no list of rows'],
      [with1({ at: '5' }), broken],
      [with1({ at: -5 }), broken],
      [with1({ kind: 'hope' }), broken],
      [with1({ kind: 'shape' }), broken],
      [with1({ slo: 'hope' }), broken],
      [with1({ since: undefined }), broken],
      [with1({ counts: [[['1']]] }), broken],
      [[...file, null], `row ${file.length} lacks a part, or has one of another kind`],
    ] as const) {
      t.equal(readSavedBook(wrong), why)
    }
    const changed = (kind: string, change: (row: SavedBook[number]) => object) =>
      file.map(row => (row.kind === kind ? { ...row, ...change(row) } : row)) as SavedBook
    for (const wrong of [
      changed('promise', ({ counts }) => ({ counts: counts.slice(1) })),
      changed('flow', ({ counts }) => ({ counts: counts.map(() => [[-1], [], []]) })),
      changed('shape', row => ({ sketches: row.kind === 'shape' && row.sketches.slice(1) })),
      changed('shape', row => ({
        sketches: row.kind === 'shape' && row.sketches.map(() => [[[0, 1.5, 1]], [], [], []]),
      })),
    ]) {
      t.equal(book.restore(wrong, 0, START), 'its counts do not fit the windows of this version')
      t.match(find(book, START, 'joint', DAY), { met: 1 })
    }
  },
)

t.test(
  'under a new config a promise with new bounds begins anew, and classes and pools can come and go',
  async t => {
    const book = new SloBook(SPEC, START)
    const at = START + HOUR
    for (let i = 0; i < 100; i++) book.judged(good(at), 'm', at)
    const harder = withSlo(chat, 'guard', { clauses: { kind: 'stream', ttftMs: 1000, tpotMs: 100 } })
    const more: TrafficClass = { ...chat, id: 2, name: 'more', pools: [2, 0] }
    const pools = [...SPEC.pools, { ...SPEC.pools[0]!, id: 2, name: 'third' }]
    book.reconfigure({ classes: [harder, { ...agent, retired: true }, more], pools }, at)
    t.match(find(book, at, 'joint', HOUR), { met: 100, share: 1 })
    t.match(find(book, at, 'joint', HOUR, 'guard'), { met: 0 })
    t.notOk(
      book
        .reading(at)
        .attainment()
        .some(({ cls }) => cls === 1),
      'what has retired is not shown',
    )
    book.judged(agentEnds(at, 1000), 'm', at)
    for (let i = 0; i < 100; i++) book.judged({ ...good(at), cls: 2, pool: 2, clauses: [] }, 'm', at)
    t.equal(book.reading(at + 30 * SECOND).goodput([])[1]?.requestsPerSecond, undefined)
    const rows = book.reading(at + MINUTE).goodput([])
    t.same(
      rows.map(({ cls, pool, requestsPerSecond }) => [cls, pool, requestsPerSecond]),
      [
        [0, 0, 100 / 60],
        [2, 2, 100 / 60],
        [2, 0, 0],
      ],
    )
    book.reconfigure({ classes: [withSlo(harder, 'target', { percentile: 95 }), agent, more], pools }, at)
    t.match(find(book, at, 'joint', HOUR), { met: 100 }, 'another percentile of the same counts')
    t.match(find(book, at, 'deadline', HOUR, 'target', 1), { met: 1 }, 'back again')
  },
)

t.test('percentiles are shown where 100 answers say them, per window', async t => {
  const book = new SloBook(SPEC, START)
  for (let i = 1; i <= 100; i++)
    book.judged(answer(START - 1000 - 5 * i, 5 * i, 20)[0], 'm', START + 30 * SECOND)
  t.same(book.reading(START + 59 * SECOND).spreads(), [])
  const [ttft, tpot, ...rest] = book.reading(START + MINUTE).spreads()
  t.same([ttft?.measure, ttft?.windowMs, ttft?.count], ['ttft', MINUTE, 100])
  for (const [got, want] of [
    [ttft?.p50, 250],
    [ttft?.p90, 450],
    [ttft?.p99, 495],
    [tpot?.p90, 20],
  ] as const) {
    t.ok(Math.abs(got! / want - 1) <= 0.01, `${got} for ${want}`)
  }
  t.same(
    rest.map(({ measure }) => measure),
    ['e2e', 'input', 'output'],
  )
  book.judged(
    { ...good(START), ttftMs: Number.NaN, inputTokens: -5, outputTokens: 1e30 },
    'm',
    START + MINUTE,
  )
  t.same(
    book
      .reading(START + MINUTE)
      .spreads()
      .map(({ count }) => count),
    [100, 101, 101, 100, 100],
  )
})

t.test('drift is how far live traffic is from the declared workload, where it is known', async t => {
  const cls: TrafficClass = { ...chat, workload: { ...chat.workload, cacheHit: 0.3 } }
  const spec = { ...SPEC, classes: [cls, agent] }
  const drift = (book: SloBook, now: number) => book.reading(now).drift()[0]
  const fill = (book: SloBook, count: number, at: number, change: Partial<Judgement>, model = 'm'): void => {
    for (let i = 0; i < count; i++) {
      book.judged({ ...good(at), inputTokens: 2700, outputTokens: 420, ...change }, model, at)
    }
  }
  const at = START + MINUTE
  const book = new SloBook(spec, START)
  fill(book, 99, at, {})
  t.same(drift(book, at), { cls: 0, ratios: {}, offWorkload: false })
  fill(book, 1, at, {})
  const asDeclared = drift(book, at)
  t.same(
    Object.keys(asDeclared!.ratios),
    ['input_tokens', 'output_tokens', 'model'],
    'nothing told of the cache',
  )
  t.ok(Object.values(asDeclared!.ratios).every(ratio => ratio < 0.02))
  t.equal(asDeclared?.offWorkload, false)

  const longer = new SloBook(spec, START)
  fill(longer, 100, at, { inputTokens: 2700 * 2.1, outputTokens: 210, cachedTokens: 2700 * 2.1 * 0.55 })
  const off = drift(longer, at)
  t.ok(off!.ratios.input_tokens! > 1 && off!.ratios.input_tokens! < 1.1)
  t.ok(Math.abs(off!.ratios.output_tokens! - 1) < 0.03, 'half is as far as twice')
  t.ok(Math.abs(off!.ratios.cache_hit! - 1) < 0.01)
  t.equal(off?.offWorkload, true)

  const others = new SloBook(spec, START)
  fill(others, 140, at, {})
  fill(others, 60, at, {}, 'other')
  t.ok(Math.abs(drift(others, at)!.ratios.model! - 1.2) < 1e-9)
  const any = new SloBook({ ...spec, pools: SPEC.pools.map(pool => ({ ...pool, model: undefined })) }, START)
  fill(any, 200, at, {}, 'other')
  t.equal(drift(any, at)?.ratios.model, undefined, 'no pool goes by the declared name')

  const thin = new SloBook(spec, START)
  for (let i = 0; i < 60; i++) fill(thin, 2, START + i * MINUTE, {})
  t.same(drift(thin, START + 59 * MINUTE)?.ratios, {})
  t.ok('input_tokens' in drift(thin, START + HOUR)!.ratios, 'the hour has enough answers')
})
