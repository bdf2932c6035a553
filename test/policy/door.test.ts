import assert from 'node:assert/strict'
import t from 'tap'
import type { Decision, Failure } from '../../src/policy/decision.js'
import type { Policy, PolicySpec } from '../../src/policy/policy.js'
import { createPolicy } from '../../src/policy/simple.js'
import type { RequestFacts, Ticket } from '../../src/request.js'
import type { TrafficClass } from '../../src/slo/slo.js'
import { seededRng } from '../../src/time.js'
import { agent, anything, ask, chat, complete, left, specOf, stream, usage } from './world.js'

const build = (spec: PolicySpec): Policy => createPolicy(spec, seededRng(1))
const asked = (now: number, change: Partial<RequestFacts> = {}): RequestFacts =>
  ask(now, { askedClass: 1, stream: false, ...change })
const arrive = (
  policy: Policy,
  facts: RequestFacts,
): { ticket: Ticket; first: Decision; news: Decision[] } => {
  const { ticket, decisions } = policy.arrive(facts, facts.bodyAt)
  const [first, ...news] = decisions
  return { ticket, first: first ?? assert.fail('no decision'), news }
}
/** Decisions in short: `dispatch 3 home`, `shed no_headroom`, `clause !target.ttft`. */
const short = (decisions: readonly Decision[]): string[] => decisions.map(inShort)
function inShort(d: Decision): string {
  switch (d.kind) {
    case 'dispatch':
      return `dispatch ${d.replica} ${d.why}`
    case 'queue':
      return `queue until ${d.giveUpAt}`
    case 'shed':
    case 'refuse':
      return `${d.kind} ${d.reason}`
    case 'clause':
      return `clause ${d.result.met ? '' : '!'}${d.result.slo}.${d.result.clause}`
    case 'ejected':
      return `ejected ${d.replica} until ${d.retryAt}`
    case 'restored':
      return `restored ${d.replica}`
  }
}
const failure = (kind: Failure['kind']): Failure => ({ kind, detail: 'as the test says' })
const loads = (policy: Policy): number[] => policy.state(0).replicas.map(({ inFlight }) => inFlight)
const prefills = (policy: Policy): number[] =>
  policy.state(0).replicas.map(({ outstandingPrefillTokens }) => outstandingPrefillTokens)
const depth = (policy: Policy): number | undefined => policy.state(0).queues[0]?.depth

t.test('a burst in one tick fills the limit exactly, and the rest is shed', async t => {
  const policy = build(specOf([1], 10))
  const decisions = Array.from({ length: 200 }, () => arrive(policy, ask(0)).first)
  t.equal(decisions.filter(({ kind }) => kind === 'dispatch').length, 10)
  t.equal(decisions.filter(d => d.kind === 'shed' && d.reason === 'no_headroom').length, 190)
  t.same(loads(policy), [10])
  for (const d of decisions) if (d.kind === 'dispatch') policy.finish(d.ticket, complete(stream(1, 2, 2)), 2)
  t.same(loads(policy), [0])
  t.equal(policy.state(2).open, 0)
  t.match(policy.state(2).totals[0], {
    arrivals: 200,
    offered: 200,
    shed: 190,
    verdicts: { good: 10, shed: 190 },
  })
})

t.test('what is outstanding leaves with the first token, what is in flight with the end', async t => {
  const policy = build(specOf([2], 4))
  const { ticket } = arrive(policy, ask(0, { promptTokens: 700 }))
  arrive(policy, ask(0, { promptTokens: 30 }))
  t.same(prefills(policy).sort(), [30, 700])
  policy.firstToken(ticket, 100)
  t.same(prefills(policy).sort(), [0, 30])
  t.same(loads(policy), [1, 1])
  policy.finish(ticket, complete(stream(100, 300, 5)), 300)
  t.same(loads(policy).sort(), [0, 1])
})

t.test('without room at home it spills in declared order, and comes home again', async t => {
  const classes = [{ ...chat, pools: [1, 0] }, agent]
  const policy = build(specOf([2, 1], 1, { classes }))
  const first = arrive(policy, ask(0))
  const order = [first.first, ...[1, 2, 3].map(() => arrive(policy, ask(0)).first)]
  t.match(short(order), ['dispatch 2 home', /dispatch [01] spill/, /dispatch [01] spill/, 'shed no_headroom'])
  policy.finish(first.ticket, complete(stream(10, 20, 2)), 20)
  t.same(short([arrive(policy, ask(30)).first]), ['dispatch 2 home'])
})

t.test('a request goes to a pool that serves its model, and is refused where there is none', async t => {
  const spec = specOf([1, 1], 4, {
    classes: [
      { ...chat, pools: [0, 1] },
      { ...agent, pools: [0] },
    ],
    routes: [
      { when: { ...anything, model: 'alias' }, cls: 0, rewriteModel: 'm' },
      { when: { ...anything, path: '/v1/*' }, cls: 0, rewriteModel: undefined },
    ],
  })
  const pools = spec.pools.map(pool => (pool.id === 1 ? { ...pool, model: undefined } : pool))
  const policy = build({ ...spec, pools })
  t.same(short([arrive(policy, ask(0)).first]), ['dispatch 0 home'])
  t.same(
    short([arrive(policy, ask(0, { model: 'x' })).first]),
    ['dispatch 1 home'],
    'a pool without a model takes any',
  )
  const alias = arrive(policy, ask(0, { model: 'alias', askedClass: 1 }))
  t.match(
    alias.ticket,
    { model: 'm', cls: 1, route: 0 },
    'the class that was asked for, the rewrite of the route',
  )
  const unknown = arrive(policy, ask(0, { model: 'x', askedClass: 1 }))
  t.match(unknown.first, {
    kind: 'refuse',
    reason: 'unknown_model',
    judgement: { verdict: 'client_error', cls: 1 },
  })
  const nowhere = arrive(policy, ask(0, { path: '/other' }))
  t.match(nowhere.first, { kind: 'refuse', reason: 'unknown_model', judgement: { cls: undefined } })
  const key = { label: 'k', classes: [0] }
  const barred = arrive(policy, ask(0, { askedClass: 1, key }))
  t.match(barred.first, { kind: 'refuse', reason: 'class_not_allowed', judgement: { offered: false } })
  t.throws(() => policy.finish(barred.ticket, left(), 1), /ticket 5 is closed/)
  t.equal(policy.state(0).open, 3)
})

t.test('a class with a queue waits, and is served by deadline when room appears', async t => {
  const policy = build(specOf([1], 1))
  const running = arrive(policy, asked(0))
  const late = arrive(policy, asked(1, { own: { deadlineMs: 50_000 } }))
  const soon = arrive(policy, asked(2, { own: { deadlineMs: 9_000 } }))
  t.same(short([late.first, soon.first]), ['queue until 50001', 'queue until 9002'])
  t.equal(depth(policy), 2)
  t.same(short([arrive(policy, ask(3)).first]), ['shed no_headroom'], 'the other class does not wait')
  const { decisions } = policy.finish(running.ticket, complete(), 1000)
  t.same(short(decisions), ['dispatch 0 queued'])
  t.match(decisions[0], { ticket: { id: soon.ticket.id } })
  t.match(policy.finish(soon.ticket, complete(), 2000).judgement, { verdict: 'good', queueMs: 998 })
  t.equal(depth(policy), 0)
})

t.test('waiting ends with the class, the library, or the deadline that the client sent', async t => {
  const policy = build(specOf([1], 1))
  arrive(policy, asked(0))
  const give = (change: Partial<RequestFacts>): Decision => arrive(policy, asked(0, change)).first
  t.same(short([give({})]), ['queue until 55000'])
  t.same(short([give({ stream: true, patienceMs: 20_000 })]), ['queue until 20000'])
  t.same(short([give({ stream: true, patienceMs: 600_000 })]), ['queue until 55000'])
  t.same(short([give({ patienceMs: 30_000 })]), ['queue until 30000'])
  t.same(short([give({ own: { deadlineMs: 10_000 } })]), ['queue until 10000'])
  t.equal(policy.wakeAt, 10_000)
  t.same(short(policy.wake(9_999)), [])
  t.same(short(policy.wake(10_000)), ['shed infeasible'])
  t.same(short(policy.wake(20_000)), ['shed queue_timeout'])
  t.match(short(policy.wake(30_001)), ['clause !target.deadline', 'shed queue_timeout'])
  t.equal(depth(policy), 2)
  t.match(short(policy.wake(55_000)), ['shed queue_timeout', 'shed queue_timeout'])
  t.equal(depth(policy), 0)
})

t.test('a deadline that the client sent and that passed with the body is told at once', async t => {
  const policy = build(specOf([1], 9))
  const facts = asked(7000, { arrivedAt: 0, own: { deadlineMs: 6_000 } })
  t.match(arrive(policy, facts).first, { kind: 'shed', reason: 'infeasible', judgement: { verdict: 'shed' } })
})

t.test('a full queue sheds, and one who leaves it makes a place at once', async t => {
  const classes = [chat, { ...agent, queue: { max: 2, waitMs: 55_000 } }]
  const policy = build(specOf([1], 1, { classes }))
  const [running, first, second, third] = [0, 0, 0, 0].map(now => arrive(policy, asked(now)))
  assert.ok(running && first && second && third)
  t.match(short([second.first, third.first]), [/queue/, 'shed no_headroom'])
  const { judgement, decisions } = policy.finish(first.ticket, left(), 500)
  t.match(judgement, { verdict: 'client_left', queueMs: undefined, offered: false })
  t.same(decisions, [])
  t.equal(depth(policy), 1)
  t.match(short([arrive(policy, asked(600)).first]), [/queue/])
  t.match(policy.finish(running.ticket, complete(), 700).decisions, [{ ticket: { id: second.ticket.id } }])
})

t.test('those who leave the queue are never sent', async t => {
  const policy = build(specOf([1], 1))
  const running = arrive(policy, asked(0))
  const waiting = Array.from({ length: 20 }, (_, at) => arrive(policy, asked(at)).ticket)
  for (const ticket of waiting.slice(0, 15)) policy.finish(ticket, left(), 100)
  t.equal(depth(policy), 5)
  let sent = 1
  let { decisions } = policy.finish(running.ticket, complete(), 5000)
  for (let next = decisions[0]; next?.kind === 'dispatch'; next = decisions[0]) {
    sent++
    decisions = policy.finish(next.ticket, complete(), 5000 + sent * 100).decisions as Decision[]
  }
  t.equal(sent, 6)
  t.equal(policy.state(0).open, 0)
})

t.test(
  'no lane starves: one that is behind in priority has its turn within the bound that is written down',
  async t => {
    const urgent: TrafficClass = { ...agent, id: 0, name: 'urgent', priority: 0 }
    const batch: TrafficClass = { ...agent, id: 1, name: 'batch', priority: 2 }
    const policy = build(specOf([1], 4, { classes: [urgent, batch] }))
    const running: { ticket: Ticket; until: number }[] = []
    const turns = [0]
    const waits: number[] = []
    let late = 0
    for (let now = 0; now < 120_000; now += 100) {
      const out: Decision[] = [...policy.wake(now)]
      const send = (askedClass: number): void => {
        out.push(...policy.arrive(asked(now, { askedClass }), now).decisions)
      }
      while (policy.state(now).queues[0]?.depth !== 8) send(0)
      if (now % 5000 === 0) send(1)
      for (const over of running.filter(({ until }) => until <= now)) {
        running.splice(running.indexOf(over), 1)
        out.push(...policy.finish(over.ticket, complete(), now).decisions)
      }
      for (const d of out) {
        if (d.kind === 'shed' && d.reason === 'queue_timeout') late++
        if (d.kind !== 'dispatch') continue
        running.push({ ticket: d.ticket, until: now + 1000 })
        if (d.ticket.cls !== 1) continue
        turns.push(now)
        waits.push(now - d.ticket.facts.bodyAt)
      }
    }
    const gaps = turns.slice(1).map((now, at) => now - (turns[at] ?? 0))
    t.ok(
      gaps.length >= 7 && Math.max(...gaps) <= 16_000,
      `two steps behind: (2 + 1) * 5 s and a slot; ${gaps}`,
    )
    t.ok(Math.max(...waits) <= 55_000, `${waits}`)
    t.ok(late > 0, 'who waits longer is told so')
  },
)

t.test('a ttft clause is met with the first token, and missed the moment its bound passes', async t => {
  const policy = build(specOf([1], 9))
  const intime = arrive(policy, ask(1000))
  t.same(short(policy.firstToken(intime.ticket, 1500)), ['clause target.ttft', 'clause guard.ttft'])
  t.equal(policy.wakeAt, undefined, 'nothing is due for it any more')

  const late = arrive(policy, ask(2000))
  const bound = policy.wakeAt ?? assert.fail('a bound is due')
  t.ok(bound > 2500 && bound < 2500.01, `${bound}`)
  t.same(short(policy.wake(2500)), [], 'at the bound it is still met')
  t.same(short(policy.wake(bound)), ['clause !target.ttft'])
  t.same(short(policy.firstToken(late.ticket, 3000)), ['clause guard.ttft'])
  const { judgement } = policy.finish(late.ticket, complete(stream(3000, 3400, 11)), 3400)
  t.equal(judgement.verdict, 'ttft_miss')
  t.same(
    judgement.clauses.map(({ slo, clause, met }) => `${slo}.${clause} ${met}`),
    ['target.tpot true', 'target.joint false', 'guard.tpot true', 'guard.joint true'],
  )
  const unwoken = arrive(policy, ask(5000))
  t.same(short(policy.firstToken(unwoken.ticket, 8000)), ['clause !target.ttft', 'clause !guard.ttft'])
  t.throws(() => policy.firstToken(unwoken.ticket, 8001), /ticket 2 had its first token before/)
})

t.test(
  'a deadline clause is missed the moment it passes, and the guard by the same factor later',
  async t => {
    const policy = build(specOf([1], 9))
    const { ticket } = arrive(policy, asked(0, { own: { deadlineMs: 10_000 } }))
    t.same(short(policy.wake(10_000)), [])
    t.same(short(policy.wake(10_001)), ['clause !target.deadline'])
    t.same(short(policy.wake(39_999)), [])
    t.same(short(policy.wake(40_001)), ['clause !guard.deadline'])
    const { judgement } = policy.finish(ticket, complete(), 50_000)
    t.match(judgement, { verdict: 'deadline_miss', clauses: [] })
    t.equal(policy.wakeAt, undefined)
  },
)

t.test('decisions do not depend on how punctual wake is', async t => {
  const policy = build(specOf([1], 1))
  arrive(policy, asked(0))
  arrive(policy, asked(0, { own: { deadlineMs: 5_000 } }))
  const { first, news } = arrive(policy, asked(9_000))
  t.match(short([first]), [/queue until/])
  t.same(short(news), ['clause !target.deadline', 'shed infeasible'])
  const gone = arrive(policy, asked(9_000, { own: { deadlineMs: 5_000 } }))
  t.match(
    policy.finish(gone.ticket, left(), 20_000).judgement,
    { verdict: 'deadline_miss' },
    'its own end comes first',
  )
})

t.test(
  'a failed attempt goes once to another replica, same pool first, and TTFT counts from the body',
  async t => {
    const policy = build(specOf([2, 1], 1, { classes: [{ ...chat, pools: [0, 1] }, agent] }))
    const { ticket, first } = arrive(policy, ask(0))
    assert.ok(first.kind === 'dispatch')
    const { again, decisions } = policy.failed(ticket, failure('status'), 200)
    t.match(again, { kind: 'dispatch', why: 'reroute', replica: 1 - first.replica })
    t.same(decisions, [])
    t.same(short(policy.firstToken(ticket, 400)), ['clause target.ttft', 'clause guard.ttft'])
    t.throws(() => policy.failed(ticket, failure('reset'), 410), /had output: it ends by finish/)
    const { judgement } = policy.finish(ticket, complete(stream(400, 420, 2)), 420)
    t.match(judgement, { ttftMs: 400, upstreamTtftMs: 200, queueMs: 200 })

    const twice = arrive(policy, ask(1000))
    policy.failed(twice.ticket, failure('reset'), 1010)
    t.equal(policy.failed(twice.ticket, failure('reset'), 1020).again, undefined, 'one counted reroute')
    t.same(loads(policy), [0, 0, 0])
    t.throws(() => policy.failed(twice.ticket, failure('reset'), 1030), /is on no replica/)
    t.throws(() => policy.firstToken(twice.ticket, 1030), /is on no replica/)
    t.match(policy.finish(twice.ticket, { kind: 'upstreamError', progress: undefined }, 1040).judgement, {
      verdict: 'upstream_error',
      pool: 0,
    })
  },
)

t.test(
  'refused connections are outside the budget and the one reroute, and no replica is tried twice',
  async t => {
    const policy = build(
      specOf([3, 1], 9, { classes: [{ ...chat, pools: [0, 1] }, agent], retries: { share: 0, floor: 0 } }),
    )
    const { ticket } = arrive(policy, ask(0, { repeatable: false }))
    const pools = [1, 2, 3].map(at => {
      const { again } = policy.failed(ticket, failure('refused'), at)
      return again?.kind === 'dispatch' ? again.pool : undefined
    })
    t.same(pools, [0, 0, 1], 'all of its pool, then the next one')
    t.equal(policy.failed(ticket, failure('refused'), 4).again, undefined, 'all were tried')
    const other = arrive(policy, ask(10))
    t.equal(policy.failed(other.ticket, failure('reset'), 11).again, undefined, 'no budget')
  },
)

t.test('what may not be repeated is sent again only if nothing of it was sent', async t => {
  const policy = build(specOf([4], 9))
  for (const kind of ['reset', 'status', 'busy', 'stream_error', 'not_an_answer', 'first_token'] as const) {
    const { ticket } = arrive(policy, ask(0, { repeatable: false }))
    t.equal(policy.failed(ticket, failure(kind), 1).again, undefined, kind)
  }
  const { ticket } = arrive(policy, ask(0, { repeatable: false }))
  t.match(policy.failed(ticket, failure('refused'), 1).again, { kind: 'dispatch' })
})

t.test(
  'a failed attempt without room elsewhere goes back to the queue, past the replica that failed it',
  async t => {
    const policy = build(specOf([2], 1))
    const first = arrive(policy, asked(0))
    const second = arrive(policy, asked(0))
    assert.ok(first.first.kind === 'dispatch' && second.first.kind === 'dispatch')
    const { again, decisions } = policy.failed(first.ticket, failure('reset'), 1000)
    t.match(short(again ? [again] : []), ['queue until 56000'])
    t.same(decisions, [], 'its own replica has room, but not for it')
    t.equal(depth(policy), 1)
    const third = arrive(policy, asked(1100))
    t.match(third.first, { kind: 'dispatch', replica: first.first.replica, why: 'home' }, 'for others it has')
    const served = policy.finish(second.ticket, complete(), 2000).decisions
    t.match(served, [
      { kind: 'dispatch', why: 'queued', replica: second.first.replica, ticket: { id: first.ticket.id } },
    ])
  },
)

t.test(
  'five failures in a row eject a replica; one trial brings it back; a client that leaves proves nothing',
  async t => {
    const policy = build(specOf([2], 9, { retries: { share: 1, floor: 99 } }))
    const news: Decision[] = []
    let sick = -1
    const send = (now: number, kind: Failure['kind'] | 'left'): number => {
      const { ticket, first } = arrive(policy, ask(now))
      assert.ok(first.kind === 'dispatch')
      sick = sick < 0 ? first.replica : sick
      if (first.replica !== sick)
        news.push(...policy.finish(ticket, complete(stream(now, now, 1)), now).decisions)
      else if (kind === 'left') news.push(...policy.finish(ticket, left(), now).decisions)
      else {
        const { again, decisions } = policy.failed(ticket, failure(kind), now)
        news.push(...decisions)
        if (again?.kind === 'dispatch') news.push(...policy.finish(ticket, complete(), now).decisions)
      }
      return first.replica
    }
    for (let at = 0; at < 30; at++) send(at, 'busy')
    for (let at = 30; at < 60; at++) send(at, 'first_token')
    t.same(short(news), [], 'a full replica and a slow one are not sick')
    for (let at = 100; news.length === 0; at++) send(at, at % 2 === 0 ? 'status' : 'left')
    t.match(news, [{ kind: 'ejected', replica: sick, why: 'status: as the test says' }])
    const [out] = news.splice(0)
    assert.ok(out?.kind === 'ejected')
    t.equal(policy.state(0).replicas[sick]?.up, false)
    for (let at = out.retryAt - 200; at < out.retryAt; at++) t.not(send(at, 'status'), sick)
    for (let at = out.retryAt; news.length === 0; at++) send(at, 'status')
    const [again] = news.splice(0)
    assert.ok(again?.kind === 'ejected' && again.replica === sick, 'the trial failed')
    t.ok(again.retryAt - out.retryAt >= 10_000, 'twice as long')

    const tried: Ticket[] = []
    for (let at = 0; at < 8; at++) {
      const { ticket, first } = arrive(policy, ask(again.retryAt))
      if (first.kind === 'dispatch' && first.replica === sick) tried.push(ticket)
    }
    t.equal(tried.length, 1, 'one trial at a time')
    const [trial] = tried
    assert.ok(trial)
    policy.firstToken(trial, again.retryAt + 50)
    t.same(short(policy.finish(trial, complete(stream(1, 2, 3)), again.retryAt + 90).decisions), [
      `restored ${sick}`,
    ])
    t.equal(policy.state(0).replicas[sick]?.up, true)
  },
)

t.test(
  'a break after the commit counts against its replica, and its capacity comes back to those who wait',
  async t => {
    const policy = build(specOf([2], 1))
    const broken: Decision[] = []
    for (let at = 0; broken.length === 0; at += 10) {
      const { ticket, first } = arrive(policy, ask(at))
      assert.ok(first.kind === 'dispatch')
      policy.firstToken(ticket, at)
      const progress = stream(at, at, 1)
      const ending =
        first.replica === 0
          ? ({ kind: 'truncated', progress, failure: failure('reset') } as const)
          : complete(progress)
      broken.push(...policy.finish(ticket, ending, at).decisions)
    }
    const [out] = broken
    assert.ok(out?.kind === 'ejected')
    t.equal(out.replica, 0)
    arrive(policy, asked(out.retryAt - 100))
    const waits = arrive(policy, asked(out.retryAt - 100))
    t.equal(waits.first.kind, 'queue')
    t.equal(policy.wakeAt, out.retryAt)
    t.same(short(policy.wake(out.retryAt)), ['dispatch 0 queued'], 'the trial')
  },
)

t.test('no_replica is said where none is healthy', async t => {
  const spec = specOf([1], 4)
  const policy = build({ ...spec, pools: spec.pools.map(pool => ({ ...pool, replicas: [] })), replicas: [] })
  const { first } = arrive(policy, ask(0))
  t.match(first, { kind: 'shed', reason: 'no_replica' })
  assert.ok(first.kind === 'shed')
  t.ok(first.retryAfterMs >= 1000 && first.retryAfterMs <= 59_000)
})

t.test('tokens per event are learned from answers with usage, and used for those without', async t => {
  const policy = build(specOf([1], 4))
  const once = (change: Parameters<typeof stream>[3]): number | undefined => {
    const { ticket } = arrive(policy, ask(0))
    policy.firstToken(ticket, 10)
    return policy.finish(ticket, complete(stream(10, 100, 10, change)), 100).judgement.outputTokens
  }
  t.equal(once({ usage: undefined }), 10)
  for (let at = 0; at < 100; at++) once({ usage: usage(40) })
  t.equal(once({ usage: undefined }), 40)
})

t.test(
  'verdicts sum to arrivals: 60 of 95 offered are good, and 60 of the 90 that were admitted',
  async t => {
    const policy = build(specOf([1], 95))
    const tickets = Array.from({ length: 100 }, () => arrive(policy, ask(0)).ticket)
    const sent = tickets.slice(0, 95)
    const take = (count: number): Ticket[] => sent.splice(0, count)
    for (const ticket of take(5)) policy.finish(ticket, left(), 300)
    for (const ticket of take(60)) {
      policy.firstToken(ticket, 400)
      policy.finish(ticket, complete(stream(400, 800, 11)), 800)
    }
    for (const ticket of take(10)) policy.finish(ticket, { kind: 'upstreamError', progress: undefined }, 900)
    for (const ticket of take(5)) policy.finish(ticket, left(), 900)
    for (const ticket of take(10)) {
      policy.firstToken(ticket, 900)
      policy.finish(ticket, complete(stream(900, 1300, 11)), 1300)
    }
    for (const ticket of take(5)) {
      policy.firstToken(ticket, 1000)
      policy.finish(ticket, { kind: 'truncated', progress: stream(1000, 1100, 3) }, 1100)
    }
    const [row] = policy.state(1300).totals
    assert.ok(row)
    const counts = Object.fromEntries(Object.entries(row.verdicts).filter(([, count]) => count > 0))
    t.same(counts, { good: 60, ttft_miss: 15, upstream_error: 10, truncated: 5, shed: 5, client_left: 5 })
    t.equal(row.arrivals, 100)
    t.equal(row.offered, 95)
    t.equal(row.verdicts.good / row.offered, 60 / 95)
    t.equal(row.verdicts.good / (row.offered - row.shed), 60 / 90)
  },
)

t.test('those who can wait leave a quarter of the slots to those who cannot', async t => {
  const policy = createPolicy(specOf([1], 8), seededRng(1))
  const kinds = (count: number, cls: number): string[] =>
    Array.from({ length: count }, () => policy.arrive(ask(0, { askedClass: cls }), 0).decisions[0]!.kind)
  t.same(kinds(8, 1), [...Array(6).fill('dispatch'), 'queue', 'queue'])
  const chats = Array.from({ length: 2 }, () => policy.arrive(ask(0), 0))
  t.same(
    chats.map(({ decisions }) => decisions[0]?.kind),
    ['dispatch', 'dispatch'],
  )
  t.equal(policy.arrive(ask(0), 0).decisions[0]?.kind, 'shed', 'all eight are taken')
  const { decisions } = policy.finish(chats[0]!.ticket, complete(stream(0, 0, 1)), 1)
  t.same(decisions, [], 'what a chat leaves is not for the queue')
  t.equal(policy.arrive(ask(2), 2).decisions[0]?.kind, 'dispatch')
})

t.test('a class that has its pool for itself may fill it, whether it waits or not', async t => {
  const policy = createPolicy(specOf([1], 8, { classes: [chat, { ...agent, pools: [] }] }), seededRng(1))
  const kinds = Array.from({ length: 8 }, () => policy.arrive(ask(0), 0).decisions[0]?.kind)
  t.same(kinds, Array(8).fill('dispatch'))
})

t.test('a new config takes over what is under way', async t => {
  const policy = createPolicy(specOf([2], 1), seededRng(1))
  const running = [0, 1].map(() => policy.arrive(ask(0), 0).ticket)
  const waiting = arrive(policy, asked(1))
  t.equal(waiting.first.kind, 'queue')

  const before = specOf([2], 1)
  const [kept, gone] = before.pools[0]!.replicas
  const after: PolicySpec = {
    ...before,
    pools: [{ ...before.pools[0]!, replicas: [kept!], maxInFlight: 2 }],
    replicas: [kept!, { ...gone!, retired: true }],
  }
  const decisions = policy.reconfigure(after, 2)
  t.match(
    decisions,
    [{ kind: 'dispatch', ticket: waiting.ticket, replica: 0, why: 'queued' }],
    'the wider limit lets the one in that waits',
  )
  t.same(
    policy.state(2).replicas.map(({ id, inFlight }) => [id, inFlight]),
    [
      [0, 2],
      [1, 1],
    ],
    'counts go on, and what was taken out drains',
  )
  t.equal(policy.arrive(ask(3), 3).decisions[0]?.kind, 'shed', 'and gets nothing new')
  for (const ticket of [...running, waiting.ticket]) policy.finish(ticket, complete(stream(4, 4, 1)), 5)
  t.same(
    policy.state(5).replicas.map(({ id, inFlight }) => [id, inFlight]),
    [[0, 0]],
    'drained, it is no longer shown',
  )
  t.equal(policy.state(5).open, 0)
})

t.test('those who wait for a class that is gone are told, and their verdict is counted', async t => {
  const policy = createPolicy(specOf([1], 1), seededRng(1))
  const { ticket: running } = policy.arrive(ask(0), 0)
  const waiting = arrive(policy, asked(1))
  const before = specOf([1], 1)
  const decisions = policy.reconfigure({ ...before, classes: [chat, { ...agent, retired: true }] }, 2)
  t.match(decisions, [{ kind: 'shed', ticket: waiting.ticket, reason: 'no_replica' }])
  policy.finish(running, complete(stream(3, 3, 1)), 4)
  t.match(policy.state(4), { open: 0, queues: [] })
  t.equal(policy.state(4).totals.find(({ cls }) => cls === 1)?.verdicts.shed, 1)
})

t.test('what one replica keeps goes to that replica, or waits for it, and nowhere else', async t => {
  const policy = createPolicy(specOf([3], 1), seededRng(1))
  const held = { heldBy: 2 }
  const first = policy.arrive(ask(0, held), 0)
  t.match(first.decisions, [{ kind: 'dispatch', replica: 2, why: 'home' }])
  t.match(policy.arrive(ask(1, held), 1).decisions[0], { kind: 'shed', reason: 'no_headroom' })
  const waiting = arrive(policy, asked(1, held))
  t.equal(waiting.first.kind, 'queue', 'though two others are free')
  t.match(policy.finish(first.ticket, complete(stream(2, 2, 1)), 3).decisions, [
    { kind: 'dispatch', ticket: waiting.ticket, replica: 2 },
  ])
  const { again } = policy.failed(waiting.ticket, { kind: 'reset', detail: 'x' }, 4)
  t.equal(again, undefined)
  policy.finish(waiting.ticket, { kind: 'upstreamError', progress: undefined }, 4)
  t.match(
    policy.arrive(ask(5, { heldBy: 77 }), 5).decisions,
    [{ kind: 'dispatch' }],
    'a replica nobody knows binds nothing',
  )
})

t.test('a replica that asks to be left alone is, for as long as it asked', async t => {
  const policy = createPolicy(specOf([2], 8), seededRng(1))
  const first = policy.arrive(ask(0), 0)
  const { replica } = first.decisions[0] as { replica: number }
  const { again } = policy.failed(first.ticket, { kind: 'busy', detail: '429', retryAfterMs: 3000 }, 10)
  t.match(again, { kind: 'dispatch', replica: 1 - replica })
  for (let now = 20; now < 3000; now += 1000) {
    t.match(policy.arrive(ask(now), now).decisions, [{ kind: 'dispatch', replica: 1 - replica }])
  }
  const later = policy.arrive(ask(3010), 3010)
  t.match(later.decisions.at(0), { kind: 'dispatch', replica }, 'it has less to do')
  t.ok(
    policy.state(3010).replicas.every(({ up }) => up),
    'and it was healthy all the time',
  )
})

t.test('those who wait are sent when the time that a replica asked for is over', async t => {
  const policy = createPolicy(specOf([1], 8), seededRng(1))
  const first = arrive(policy, asked(0))
  t.equal(
    policy.failed(first.ticket, { kind: 'busy', detail: '429', retryAfterMs: 2000 }, 1).again,
    undefined,
  )
  policy.finish(first.ticket, { kind: 'upstreamError', progress: undefined }, 1)
  const second = arrive(policy, asked(2))
  t.equal(second.first.kind, 'queue')
  t.equal(policy.wakeAt, 2001)
  t.match(policy.wake(2001), [{ kind: 'dispatch', ticket: second.ticket, why: 'queued' }])
})

t.test('a head that is too large for the router does not eject its replica', async t => {
  const policy = createPolicy(specOf([2], 8), seededRng(1))
  for (let now = 0; now < 20; now++) {
    const { ticket } = policy.arrive(ask(now), now)
    policy.failed(ticket, { kind: 'head_too_large', detail: 'x' }, now)
    policy.finish(ticket, { kind: 'upstreamError', progress: undefined }, now)
  }
  t.ok(policy.state(20).replicas.every(({ up }) => up))
})
