import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { Slo } from '../../src/slo/slo.js'
import {
  type Answered,
  clauseRatios,
  findings,
  littleError,
  type SweepPoint,
  settled,
  sweepPoint,
} from '../../src/slo/sweep.js'
import { settledAfter, wilson } from '../../src/slo/wilson.js'

const WINDOW = 7 * 86_400_000
const CLAUSE: Slo = {
  percentile: 90,
  mode: 'clause',
  windowMs: WINDOW,
  clauses: { kind: 'stream', ttftMs: 500, tpotMs: 40 },
}
const JOINT: Slo = { ...CLAUSE, mode: 'joint' }
const DEADLINE: Slo = {
  percentile: 95,
  mode: 'joint',
  windowMs: WINDOW,
  clauses: { kind: 'deadline', deadlineMs: 10_000, minTokensPerSecond: 20 },
}

const answer = (ttftMs: number, tpotMs: number, more: Partial<Answered> = {}): Answered => ({
  complete: true,
  ttftMs,
  tpotMs,
  e2eMs: ttftMs + 99 * tpotMs,
  inputTokens: 1000,
  outputTokens: 100,
  ...more,
})

/** So many of the first kind, then so many of the second, and so on. */
const answers = (...kinds: readonly (readonly [count: number, one: Answered])[]): Answered[] =>
  kinds.flatMap(([count, one]) => Array<Answered>(count).fill(one))

/** A point at which this share of 10,000 requests met TTFT, and all met TPOT. */
const point = (concurrency: number, share: number, goodput = 100 * concurrency): SweepPoint => {
  const met = Math.round(share * 10_000)
  const got = sweepPoint(
    concurrency,
    answers([met, answer(400, 10)], [10_000 - met, answer(600, 10)]),
    1e6,
    CLAUSE,
  )
  return { ...got, goodput_tok_s: goodput }
}

const near = (got: number, wanted: number): boolean => Math.abs(got / wanted - 1) < 1e-3

t.test('one point counts shares, percentiles and rates, and goodput only of the good', async t => {
  const got = sweepPoint(10, answers([180, answer(300, 20)], [20, answer(900, 50)]), 20_000, CLAUSE)
  t.match(got, { concurrency: 10, requests: 200, failed: 0, span_s: 20, requests_per_s: 10 })
  t.same(got.ttft_ms, { p50: 300, p90: 300, promised: 300 }, 'nearest rank: the 180th of 200')
  t.same(got.met_share, { ttft: 0.9, tpot: 0.9, joint: 0.9 })
  t.match(got, { input_tok_s: 10_000, output_tok_s: 1000, goodput_tok_s: 900, good_share: 0.9, holds: true })
  t.throws(() => sweepPoint(4, [], 1000, CLAUSE), { message: 'no answers at concurrency 4' })
})

t.test('what failed misses every clause and gives no latency and no tokens', async t => {
  const failed = answer(1, 1, { complete: false, ttftMs: undefined, tpotMs: undefined })
  const got = sweepPoint(1, answers([80, answer(300, 20)], [20, failed]), 10_000, CLAUSE)
  t.match(got, { failed: 20, good_share: 0.8, output_tok_s: 800, holds: false })
  t.same(got.met_share, { ttft: 0.8, tpot: 0.8, joint: 0.8 })
  t.equal(got.ttft_ms.p50, 300)
  const none = sweepPoint(1, answers([100, failed]), 10_000, CLAUSE)
  t.same(none.ttft_ms, { p50: null, p90: null, promised: null })
})

t.test('clauses may hold each for itself where they do not hold together', async t => {
  const mixed = answers([90, answer(300, 20)], [5, answer(900, 20)], [5, answer(300, 50)])
  const at85 = answers([85, answer(300, 20)], [8, answer(900, 20)], [7, answer(300, 50)])
  t.equal(sweepPoint(1, mixed, 1000, JOINT).holds, true)
  t.equal(sweepPoint(1, at85, 1000, CLAUSE).holds, true, '92 % and 93 %')
  t.equal(sweepPoint(1, at85, 1000, JOINT).holds, false, '85 % together')
})

t.test('short answers have an allowance for one late event, and one token has no pace', async t => {
  const few = answer(300, 45, { outputTokens: 5 })
  const one = answer(300, 0, { outputTokens: 1, tpotMs: undefined })
  t.equal(sweepPoint(1, answers([100, few]), 1000, CLAUSE).good_share, 1, '180 ms for 4 gaps: 160 + 50')
  t.equal(sweepPoint(1, answers([100, answer(300, 55, { outputTokens: 5 })]), 1000, CLAUSE).good_share, 0)
  t.equal(sweepPoint(1, answers([100, one]), 1000, CLAUSE).good_share, 1)
})

t.test('a deadline class is swept by its deadline and its least rate', async t => {
  const fast = answer(100, 40, { e2eMs: 4000 })
  const late = answer(100, 40, { e2eMs: 11_000, outputTokens: 1000 })
  const slow = answer(100, 40, { e2eMs: 9000 })
  const got = sweepPoint(4, answers([950, fast], [50, late]), 1e6, DEADLINE)
  t.match(got, { holds: true, good_share: 0.95, met_share: { deadline: 0.95 } })
  t.equal(sweepPoint(4, answers([100, slow]), 1e6, DEADLINE).good_share, 0, '100 tokens in 9 s, 20 a second')
  t.match(findings([got], DEADLINE, 1), { knee: 4, binding: 'deadline' })
})

t.test('a verdict that the interval straddles is undecided and says how long would decide it', async t => {
  const share = (met: number, total: number) =>
    sweepPoint(4, answers([met, answer(400, 10)], [total - met, answer(600, 10)]), 100_000, CLAUSE)
  t.match(share(99, 99), { holds: true, decided: false, decided_after_s: 102 }, 'below 100 it is unknown')
  t.match(share(930, 1000), { holds: true, decided: true, decided_after_s: null })
  t.match(share(870, 1000), { holds: false, decided: true })
  const close = share(910, 1000)
  t.match(close, { holds: true, decided: false })
  const needed = settledAfter(0.91, 0.9) ?? 0
  t.equal(close.decided_after_s, Math.ceil(needed / 10), 'requests at 10 a second')
  t.ok(wilson(0.91 * needed, needed).low >= 0.8999, 'and so many would do')
  t.match(share(900, 1000), { decided: false, decided_after_s: null }, 'no time would')
  t.equal(
    settled(answers([930, answer(1, 1)], [70, answer(600, 1)]), CLAUSE, 3.29),
    false,
    'a wider interval',
  )
})

t.test('Wilson’s interval of 90 in 100 is 0.826 to 0.945, and stays within 0 and 1', async t => {
  const { low, high } = wilson(90, 100)
  t.ok(near(low, 0.8256) && near(high, 0.9448), `${low} to ${high}`)
  t.same(wilson(0, 10).low, 0)
  t.ok(wilson(10, 10).high > 0.999_999 && wilson(10, 10).high <= 1)
  t.ok(near(wilson(10, 10).low, 0.7225), 'by hand: n / (n + z²)')
  t.equal(settledAfter(0.9, 0.9), undefined)
})

t.test('the knee is a point of the grid, the value between stands beside it', async t => {
  const points = [point(4, 0.96), point(8, 0.94), point(12, 0.91), point(16, 0.89), point(24, 0.7)]
  const got = findings(points, CLAUSE, 1)
  t.match(got, { knee: 12, knee_interpolated: 14, binding: 'ttft' })
  t.match(got, { budget_tok_s_per_gpu: 1200, scale_out_at: 840, steady: { low: 8, high: 10 } })
  t.match(findings(points, CLAUSE, 4), { budget_tok_s_per_gpu: 300, scale_out_at: 210 })
  const open = findings(points.slice(0, 2), CLAUSE, 1)
  t.match(open, { knee: 8, knee_interpolated: null }, 'the grid ends before the promise breaks')
})

t.test('goodput that rises past the knee moves nothing', async t => {
  const points = [point(8, 0.95, 700), point(12, 0.91, 900), point(48, 0.73, 1300)]
  t.match(findings(points, CLAUSE, 1), { knee: 12, budget_tok_s_per_gpu: 900 })
})

t.test('a point that noise lifted over the percentile after one that failed is no knee', async t => {
  const lucky = [point(4, 0.95), point(8, 0.85), point(12, 0.901), point(16, 0.7)]
  t.equal(findings(lucky, CLAUSE, 1).knee, 4)
  const unlucky = [point(4, 0.95), point(8, 0.899), point(12, 0.905), point(16, 0.7)]
  t.equal(findings(unlucky, CLAUSE, 1).knee, 12, 'two neighbours hold together')
})

t.test('without a knee the clause that is worst at the first point is named', async t => {
  const points = [point(1, 0.5), point(2, 0.4)]
  t.same(findings(points, CLAUSE, 1), {
    knee: null,
    knee_interpolated: null,
    binding: 'ttft',
    budget_tok_s_per_gpu: null,
    steady: null,
    scale_out_at: null,
  })
  const slow = sweepPoint(1, answers([200, answer(450, 80)]), 1e5, CLAUSE)
  t.match(clauseRatios(slow, CLAUSE), [
    { clause: 'ttft', ms: 450, ratio: 0.9 },
    { clause: 'tpot', ratio: 2 },
  ])
  t.equal(findings([slow], CLAUSE, 1).binding, 'tpot')
  t.throws(() => findings([], CLAUSE, 1), { message: 'no points' })
})

t.test('Little’s law: concurrency is rate times time', async t => {
  const got = sweepPoint(10, answers([100, answer(100, 10, { e2eMs: 1000 })]), 10_000, CLAUSE)
  t.equal(littleError(got), 0)
  t.equal(littleError({ ...got, concurrency: 20 }), 0.5)
  t.equal(littleError({ ...got, concurrency: 8 }), 0.25)
})

t.test('the knee is always on the grid, holds, and no later point does once noise is evened out', async t => {
  const template = point(1, 0.9)
  const shares = fc.array(fc.double({ min: 0.5, max: 1, noNaN: true }), { minLength: 1, maxLength: 8 })
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(shares, list => {
        const points = list.map((share, i) => ({
          ...template,
          concurrency: i + 1,
          requests: 100,
          met_share: { ttft: share, tpot: 1 },
          holds: share >= 0.9,
        }))
        const { knee, knee_interpolated: between } = findings(points, CLAUSE, 1)
        const falling = list.every((share, i) => i === 0 || share <= (list[i - 1] ?? 0))
        if (falling) assert.equal(knee ?? 0, list.filter(share => share >= 0.9).length)
        if (knee !== null) assert.ok(points[knee - 1]?.holds)
        if (knee !== null && between !== null) assert.ok(between >= knee && between <= knee + 1)
        if (knee === null) assert.ok((list[0] ?? 0) < 0.9 || !falling)
      }),
      { numRuns: 300 },
    ),
  )
})
