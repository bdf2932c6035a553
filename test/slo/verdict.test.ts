import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { Ledger } from '../../src/slo/ledger.js'
import {
  boundAt,
  clauseBit,
  earlyResults,
  type Judgement,
  judge,
  type Outcome,
  refusal,
  type Served,
  VERDICTS,
} from '../../src/slo/verdict.js'
import { agent, chat, stream, usage } from '../policy/world.js'

/** Arrived at 1000, body at 1010, sent at 1020. */
const asked: Served = {
  traffic: chat,
  pool: 0,
  stream: true,
  promptTokens: 100,
  arrivedAt: 1000,
  bodyAt: 1010,
  dispatchedAt: 1020,
  deadlineMs: Infinity,
  reported: 0,
}
const job: Served = { ...asked, traffic: agent, stream: false, deadlineMs: 60_000 }
const body = stream(1100, 1100, 0, {
  streamed: false,
  firstOutput: undefined,
  lastOutput: 9000,
  usage: usage(50),
})

/** Clauses as text: `target.ttft` met, `!guard.joint` missed. */
const told = ({ clauses }: Judgement): string =>
  clauses.map(({ slo, clause, met }) => `${met ? '' : '!'}${slo}.${clause}`).join(' ')
const allMet = 'target.ttft target.tpot target.joint guard.ttft guard.tpot guard.joint'

t.test('a complete stream is judged by TTFT and TPOT of the target, and by those of the guard', async t => {
  const end = (first: number, span: number, tokens = 11): Judgement =>
    judge(asked, 'complete', stream(first, first + span, tokens), 1, first + span)
  const good = end(1510, 400)
  t.equal(good.verdict, 'good', 'at both bounds it is still met')
  t.equal(told(good), allMet)
  t.match(good, { ttftMs: 500, upstreamTtftMs: 490, queueMs: 10, tpotMs: 40, e2eMs: 910, longestGapMs: 40 })
  t.match(good, { outputTokens: 11, inputTokens: 90, estimated: false, offered: true, cls: 0, pool: 0 })

  t.equal(end(1511, 400).verdict, 'ttft_miss')
  t.equal(told(end(1511, 400)), '!target.ttft target.tpot !target.joint guard.ttft guard.tpot guard.joint')
  t.equal(end(1510, 401).verdict, 'tpot_miss')
  t.equal(end(1511, 401).verdict, 'both_miss')
  t.equal(end(3011, 1001).verdict, 'both_miss')
  t.equal(told(end(3011, 1001)), allMet.replace(/(^| )/g, '$1!'))
})

t.test('short answers: one token has no pace, fewer than eight have 50 ms of allowance', async t => {
  const verdict = (tokens: number, span: number): Judgement =>
    judge(asked, 'complete', stream(1100, 1100 + span, tokens), 1, 1100 + span)
  t.match(verdict(1, 0), { verdict: 'good', tpotMs: undefined })
  t.equal(verdict(7, 6 * 40 + 50).verdict, 'good')
  t.equal(verdict(7, 6 * 40 + 51).verdict, 'tpot_miss')
  t.equal(verdict(8, 7 * 40).verdict, 'good')
  t.equal(verdict(8, 7 * 40 + 1).verdict, 'tpot_miss')
})

t.test('tokens are counted from usage, else from events by what the replica packs into one', async t => {
  const counted = (change: Parameters<typeof stream>[3], perMark: number): Judgement =>
    judge(asked, 'complete', stream(1100, 1500, 6, change), perMark, 1500)
  t.match(counted({ usage: undefined }, 2), { outputTokens: 12, estimated: true, verdict: 'good' })
  t.match(counted({ usage: undefined }, 1), { outputTokens: 6, estimated: true, verdict: 'tpot_miss' })
  t.match(counted({ usage: usage(12) }, 1), { outputTokens: 12, estimated: false, verdict: 'good' })
  for (const nonsense of [0, -3, Number.NaN, 1.5]) {
    t.match(
      counted({ usage: usage(nonsense) }, 2),
      { outputTokens: 12, estimated: true },
      `usage says ${nonsense}`,
    )
  }
  t.match(
    counted({ usage: usage(24), longestChoiceMarks: 3 }, 1),
    { outputTokens: 24, tpotMs: 400 / 11 },
    'n > 1: the longest choice has half of the events, so half of the tokens',
  )
})

t.test(
  'a client that reads too slowly gives no TPOT sample, and its pace is not held against the server',
  async t => {
    const slow = judge(asked, 'complete', stream(1100, 9100, 10, { throttled: true }), 1, 9100)
    t.match(slow, { verdict: 'good', tpotMs: undefined, longestGapMs: undefined })
    t.equal(told(slow), allMet)
  },
)

t.test('what cannot be judged is unmeasured, excluded, and in no clause', async t => {
  const cases: [string, Judgement][] = [
    ['not streamed', judge({ ...asked, stream: false }, 'complete', body, 1, 9000)],
    ['a stream was asked for, JSON came', judge(asked, 'complete', body, 1, 1400)],
    [
      'no output',
      judge(asked, 'complete', stream(1100, 1100, 0, { firstOutput: undefined, usage: usage(0) }), 1, 1200),
    ],
  ]
  for (const [name, judgement] of cases) {
    t.match(judgement, { verdict: 'unmeasured', offered: false, ttftMs: undefined, tpotMs: undefined }, name)
    t.equal(told(judgement), '', name)
  }
})

t.test('a class with a deadline is judged by the end against it', async t => {
  const ends = (end: number, change: Partial<Served> = {}): Judgement =>
    judge({ ...job, ...change }, 'complete', body, 1, end)
  t.match(ends(61_000), { verdict: 'good', e2eMs: 8000, ttftMs: undefined, outputTokens: 50 })
  t.equal(told(ends(61_000)), 'target.deadline guard.deadline')
  t.equal(ends(61_001).verdict, 'deadline_miss')
  t.equal(told(ends(61_001)), '!target.deadline guard.deadline')
  t.equal(told(ends(241_001)), '!target.deadline !guard.deadline')
  const own = { deadlineMs: 10_000 }
  t.equal(told(ends(11_001, own)), '!target.deadline guard.deadline', 'its own deadline is the target')
  t.equal(
    told(ends(41_001, own)),
    '!target.deadline !guard.deadline',
    'and the guard is 4 times as long, as in its class',
  )
  t.equal(boundAt({ ...job, ...own }, 'guard'), 41_000)
})

t.test('a floor on tokens per second is part of the deadline clause', async t => {
  const clauses = { kind: 'deadline', deadlineMs: 60_000, minTokensPerSecond: 10 } as const
  const floored = { ...job, traffic: { ...agent, target: { ...agent.target, clauses } } }
  t.equal(judge(floored, 'complete', body, 1, 6000).verdict, 'good', '50 tokens in 5 s')
  t.equal(judge(floored, 'complete', body, 1, 6001).verdict, 'deadline_miss')
  const uncounted = { ...body, usage: undefined }
  t.equal(judge(floored, 'complete', uncounted, 1, 6000).verdict, 'unmeasured')
  t.equal(judge(floored, 'complete', uncounted, 1, 61_001).verdict, 'deadline_miss')
})

t.test('a client that left counts once its bound had passed, or on what it got from 8 tokens on', async t => {
  const leaves = (end: number, progress?: Parameters<typeof judge>[2], served = asked): Judgement =>
    judge(served, 'clientLeft', progress, 1, end)
  t.match(leaves(1510), { verdict: 'client_left', offered: false })
  t.equal(told(leaves(1510)), '')
  t.match(leaves(1511), { verdict: 'ttft_miss', offered: true })
  t.equal(told(leaves(1511)), '!target.ttft !target.joint', 'the guard goes by its own bound')
  t.equal(told(leaves(3011)), '!target.ttft !target.joint !guard.ttft !guard.joint')
  t.equal(leaves(1300, stream(1100, 1300, 7)).verdict, 'client_left')
  t.equal(leaves(1300, stream(1100, 1300, 8)).verdict, 'good')
  t.equal(leaves(1500, stream(1100, 1500, 8)).verdict, 'tpot_miss')
  t.equal(leaves(2300, stream(2100, 2300, 8)).verdict, 'ttft_miss')
  t.equal(leaves(61_000, undefined, job).verdict, 'client_left')
  t.equal(leaves(61_001, undefined, job).verdict, 'deadline_miss')
  t.equal(leaves(90_000, undefined, { ...asked, stream: false }).verdict, 'client_left')
})

t.test(
  'sheds and failures miss joint or deadline for target and guard, and TTFT only where it had passed',
  async t => {
    const kinds = {
      shed: 'shed',
      upstreamError: 'upstream_error',
      truncated: 'truncated',
      timeout: 'timeout',
    } as const
    for (const [outcome, verdict] of Object.entries(kinds)) {
      const ends = (served: Served, end: number): Judgement =>
        judge(served, outcome as Outcome, undefined, 1, end)
      t.match(ends(asked, 1200), { verdict, offered: true })
      t.equal(told(ends(asked, 1200)), '!target.joint !guard.joint')
      t.equal(told(ends(asked, 1600)), '!target.ttft !target.joint !guard.joint')
      t.equal(told(ends(job, 1200)), '!target.deadline !guard.deadline')
      t.equal(told(ends({ ...asked, stream: false }, 1200)), '', 'no stream, no clause of streams')
    }
    const wrong = judge(asked, 'clientError', undefined, 1, 1200)
    t.match(wrong, { verdict: 'client_error', offered: false })
    t.equal(told(wrong), '')
    t.match(refusal(1), { verdict: 'client_error', offered: false, cls: 1, clauses: [] })
  },
)

t.test('a clause that was reported is not reported again', async t => {
  const reported = clauseBit('target', 'ttft') | clauseBit('guard', 'ttft')
  const late = judge({ ...asked, reported }, 'complete', stream(1511, 1911, 11), 1, 1911)
  t.equal(told(late), 'target.tpot !target.joint guard.tpot guard.joint')
  t.equal(late.verdict, 'ttft_miss', 'the verdict is the same')
  t.same(earlyResults(asked, 1510, false), [])
  t.match(earlyResults(asked, 1511, false), [{ slo: 'target', clause: 'ttft', met: false }])
  t.same(earlyResults({ ...asked, reported }, 9000, false), [])
  t.same(earlyResults(job, 2000, true), [], 'a first token does not meet a deadline')
  t.equal(earlyResults(job, 300_000, false).length, 2)
})

t.test('whatever happened, offered and clauses fit the verdict', async t => {
  const time = fc.integer({ min: 0, max: 5000 })
  const outcome = fc.constantFrom<Outcome>(
    ...(['complete', 'upstreamError', 'truncated', 'timeout', 'clientLeft', 'clientError', 'shed'] as const),
  )
  const law = fc.property(
    fc.record({
      outcome,
      isJob: fc.boolean(),
      asksStream: fc.boolean(),
      reported: fc.integer({ min: 0, max: 255 }),
    }),
    fc.option(fc.tuple(time, time, fc.integer({ min: 0, max: 30 }), fc.boolean(), fc.boolean())),
    time,
    (what, answer, after) => {
      const served = { ...(what.isJob ? job : asked), stream: what.asksStream }
      const [wait, span, marks, counted, throttled] = answer ?? [0, 0, 0, false, false]
      const first = 1010 + wait
      const progress = answer
        ? stream(first, first + span, marks, {
            throttled,
            ...(!counted && { usage: undefined }),
            ...(marks === 0 && { firstOutput: undefined, lastOutput: undefined }),
          })
        : undefined
      const end = first + span + after
      const judgement = judge(served, what.outcome, progress, 1.5, end)
      const { verdict, offered, clauses } = judgement
      assert.equal(offered, !['client_error', 'client_left', 'unmeasured'].includes(verdict))
      const of = (slo: string, clause: string) => clauses.filter(c => c.slo === slo && c.clause === clause)
      for (const clause of ['ttft', 'tpot', 'joint', 'deadline']) assert.ok(of('target', clause).length <= 1)
      const whole = of('target', what.isJob ? 'deadline' : 'joint')
      if (offered && (what.isJob || what.asksStream)) {
        assert.equal(whole.length, 1)
        assert.equal(whole[0]?.met, verdict === 'good')
      }
      if (!what.isJob && (!offered || !what.asksStream)) assert.equal(whole.length, 0)
      for (const value of [judgement.ttftMs, judgement.tpotMs, judgement.e2eMs])
        assert.ok(value === undefined || value >= 0)
      const bits = judge({ ...served, reported: what.reported }, what.outcome, progress, 1.5, end).clauses
      assert.deepEqual(
        bits,
        clauses.filter(c => (what.reported & clauseBit(c.slo, c.clause)) === 0),
      )
    },
  )
  t.doesNotThrow(() => fc.assert(law, { numRuns: 2000 }))
})

t.test('the ledger keeps arrivals, offered and verdicts by class', async t => {
  const ledger = new Ledger(2)
  ledger.arrived(0)
  ledger.arrived(0)
  ledger.arrived(undefined)
  ledger.judged(judge(asked, 'shed', undefined, 1, 1100))
  ledger.judged(refusal(undefined))
  const [first, second, none] = ledger.totals()
  t.match(first, { cls: 0, arrivals: 2, offered: 1, shed: 1, verdicts: { shed: 1, good: 0 } })
  t.match(second, { cls: 1, arrivals: 0, offered: 0 })
  t.match(none, { cls: undefined, arrivals: 1, offered: 0, verdicts: { client_error: 1 } })
  t.same(Object.keys(first?.verdicts ?? {}), VERDICTS)
  t.throws(() => ledger.arrived(7), /no class has the id 7/)
})
