import t from 'tap'
import type { PlayRecord } from '../../src/load/call.js'
import {
  type Bounds,
  judge,
  quantiles,
  recordTpotMs,
  summarise,
  summaryTable,
} from '../../src/load/report.js'

const CHAT: Bounds = { ttftMs: 500, tpotMs: 40 }
const AGENT: Bounds = { deadlineMs: 60_000 }

/** A good chat answer of 11 tokens, but for what is said. */
const made = (said: Partial<PlayRecord>): PlayRecord => ({
  label: 'chat',
  session: undefined,
  sentAt: 0,
  lateMs: 0,
  inputTokens: 100,
  wantedTokens: 11,
  outcome: 'complete',
  status: 200,
  code: undefined,
  retryAfterMs: undefined,
  ttftMs: 200,
  lastMs: 500,
  e2eMs: 510,
  tokens: 11,
  tokensFrom: 'usage',
  cachedTokens: undefined,
  weirClass: undefined,
  pool: undefined,
  decision: undefined,
  ...said,
})

const none = { ttftMs: undefined, lastMs: undefined, tokens: 0 }

t.test('TPOT is the mean gap after the first token', async t => {
  t.equal(recordTpotMs(made({})), 30)
  t.equal(recordTpotMs(made({ tokens: 1, lastMs: 200 })), undefined)
  t.equal(recordTpotMs(made(none)), undefined)
})

t.test('an answer is judged by its bounds, which are themselves met', async t => {
  const cases: [wanted: string, said: Partial<PlayRecord>][] = [
    ['good', {}],
    ['good', { ttftMs: 500, lastMs: 900 }],
    ['ttft_miss', { ttftMs: 500.1, lastMs: 600 }],
    ['tpot_miss', { lastMs: 600.1 }],
    ['both_miss', { ttftMs: 501, lastMs: 1000 }],
    // A one-token answer has no gap; below 8 tokens one late chunk of 50 ms is allowed for.
    ['good', { tokens: 1, lastMs: 200 }],
    ['good', { tokens: 7, lastMs: 200 + 6 * 40 + 50 }],
    ['tpot_miss', { tokens: 7, lastMs: 200 + 6 * 40 + 51 }],
    ['tpot_miss', { tokens: 8, lastMs: 200 + 7 * 40 + 1 }],
    ['unmeasured', none],
    ['shed', { ...none, outcome: 'shed', status: 503, code: 'weir_no_headroom' }],
    ['truncated', { outcome: 'truncated' }],
    ['upstream_error', { ...none, outcome: 'error', status: 502, code: 'weir_upstream_error' }],
    ['upstream_error', { ...none, outcome: 'error', status: undefined, code: 'ECONNREFUSED' }],
    ['upstream_error', { ...none, outcome: 'error', status: 429 }],
    ['upstream_error', { outcome: 'error', status: 200, code: 'oom' }],
    ['client_error', { ...none, outcome: 'error', status: 404 }],
    ['timeout', { ...none, outcome: 'error', status: 504, code: 'weir_first_token_timeout' }],
    ['timeout', { outcome: 'error', status: 200, code: 'weir_stream_stalled' }],
    // Hung up on: excluded, unless it was late by then or has enough tokens to judge.
    ['client_left', { ...none, outcome: 'left', e2eMs: 500 }],
    ['ttft_miss', { ...none, outcome: 'left', e2eMs: 501 }],
    ['client_left', { outcome: 'left', tokens: 7 }],
    ['good', { outcome: 'left', tokens: 11 }],
    ['tpot_miss', { outcome: 'left', tokens: 8, lastMs: 1000 }],
  ]
  for (const [wanted, said] of cases) t.equal(judge(made(said), CHAT), wanted, JSON.stringify(said))
})

t.test('a deadline is judged by the last token', async t => {
  t.equal(judge(made({ lastMs: 60_000, e2eMs: 61_000 }), AGENT), 'good')
  t.equal(judge(made({ lastMs: 60_001 }), AGENT), 'deadline_miss')
  t.equal(
    judge(made({ ...none, e2eMs: 100 }), AGENT),
    'good',
    'an answer without output is judged by its end',
  )
  t.equal(judge(made({ outcome: 'left', e2eMs: 60_000 }), AGENT), 'client_left')
  t.equal(judge(made({ outcome: 'left', e2eMs: 60_001 }), AGENT), 'deadline_miss')
})

t.test('percentiles are by nearest rank, and none where nothing was measured', async t => {
  const hundred = Array.from({ length: 100 }, (_, i) => 100 - i)
  t.same(quantiles(hundred), { p50: 50, p90: 90, p99: 99 })
  t.same(quantiles([7, undefined, 3]), { p50: 3, p90: 7, p99: 7 })
  t.same(quantiles([10, 9, 100]), { p50: 10, p90: 100, p99: 100 }, 'sorted as numbers')
  t.same(quantiles([]), { p50: null, p90: null, p99: null })
})

t.test(
  '100 arrivals, 95 offered, 60 good: goodput over the offered, attainment beside the shed share',
  async t => {
    const times = (count: number, said: Partial<PlayRecord>): PlayRecord[] =>
      Array.from({ length: count }, () => made(said))
    const records = [
      ...times(60, {}),
      ...times(20, { ttftMs: 900, lastMs: 1200 }),
      ...times(10, { lastMs: 2200, tokensFrom: 'events' }),
      ...times(5, { ...none, outcome: 'shed', status: 503, code: 'weir_no_headroom' }),
      ...times(2, { ...none, outcome: 'shed', status: 429, code: 'weir_quota' }),
      ...times(2, { ...none, outcome: 'error', status: 400 }),
      ...times(1, { ...none, outcome: 'left', e2eMs: 10 }),
      made({ label: 'agent', lastMs: 5000 }),
    ]
    const bounds = new Map<string, Bounds>([
      ['chat', CHAT],
      ['agent', AGENT],
      ['idle', CHAT],
    ])
    const summary = summarise(records, bounds, 30_000)
    t.match(summary, { duration_s: 30, arrivals: 101, offered: 96, goodput_rps: 61 / 30 })
    t.same(summary.verdicts, {
      good: 61,
      ttft_miss: 20,
      tpot_miss: 10,
      shed: 7,
      client_error: 2,
      client_left: 1,
    })
    t.same(summary.classes['chat'], {
      arrivals: 100,
      offered: 95,
      good: 60,
      goodput_rps: 2,
      attainment: 60 / 95,
      admitted_attainment: 60 / 90,
      shed_share: 5 / 95,
      ttft_ms: { p50: 200, p90: 900, p99: 900 },
      tpot_ms: { p50: 30, p90: 200, p99: 200 },
      without_usage: 10,
    })
    t.match(summary.classes['agent'], { offered: 1, good: 1, attainment: 1, shed_share: 0 })
    t.match(summary.classes['idle'], {
      offered: 0,
      attainment: null,
      shed_share: null,
      ttft_ms: { p50: null },
    })
    const table = summaryTable(summary)
    t.match(table, /^class +offered +good +good\/s +attainment +of admitted +shed /)
    t.match(
      table,
      /\nchat +95 +60 +2\.00 +63\.2 % +66\.7 % +5\.3 % +200\/900\/900 ms +30\.0\/200\.0\/200\.0 ms\n/,
    )
    t.match(table, /\nidle +0 +0 +0\.00 +- +- +- +- +-\n/)
    t.match(table, /101 arrivals in 30\.0 s: good 61, ttft_miss 20, tpot_miss 10, shed 7/)
    t.match(table, /\n10 answers brought no usage/)
  },
)

t.test('a record of a class without bounds is an error by its name', async t => {
  t.throws(() => summarise([made({ label: 'x' })], new Map(), 1000), {
    message: 'no bounds for the label "x"',
  })
})
