/** What decides in each rule, shown on a situation made by hand. */
import assert from 'node:assert/strict'
import t from 'tap'
import { Gradient2 } from '../../src/baselines/gradient2.js'
import { policyNamed } from '../../src/baselines/named.js'
import type { Decision } from '../../src/policy/decision.js'
import type { Policy, PolicySpec } from '../../src/policy/policy.js'
import type { RequestFacts, Ticket } from '../../src/request.js'
import { PrefixIndex } from '../../src/routing/affinity.js'
import { seededRng } from '../../src/time.js'
import { ask, complete, specOf, stream } from '../policy/world.js'

function build(name: string, spec: PolicySpec, knobs?: Record<string, number>): Policy {
  return policyNamed(name)?.create(spec, seededRng(7), knobs) ?? assert.fail(name)
}
/** The same pools, whose replicas each hold so many tokens of context. */
const holding = (kvTokens: number, spec: PolicySpec): PolicySpec => ({
  ...spec,
  pools: spec.pools.map(pool => ({ ...pool, kvTokens })),
})
function arrive(policy: Policy, facts: RequestFacts): { ticket: Ticket; first: Decision } {
  const { ticket, decisions } = policy.arrive(facts, facts.bodyAt)
  return { ticket, first: decisions[0] ?? assert.fail('no decision') }
}
/** Where it was sent; -1: nowhere. */
const sentTo = (policy: Policy, facts: RequestFacts): number => {
  const { first } = arrive(policy, facts)
  return first.kind === 'dispatch' ? first.replica : -1
}
/** Hashes of a prompt's blocks: those of one conversation begin alike. */
const prefix = (conversation: number, blocks: number): number[] =>
  Array.from({ length: blocks }, (_, block) => conversation * 1e6 + block)
const asAgent = (now: number, change: Partial<RequestFacts> = {}): RequestFacts =>
  ask(now, { askedClass: 1, ...change })
const end = (policy: Policy, ticket: Ticket, now: number): readonly Decision[] =>
  policy.finish(ticket, complete(stream(now, now, 1)), now).decisions

t.test('round robin gives each replica its turn, and skips one that is out', async t => {
  const policy = build('round-robin', specOf([3], 4))
  t.same(
    [1, 2, 3, 4].map(() => sentTo(policy, ask(0))),
    [0, 1, 2, 0],
  )
  const { ticket } = arrive(policy, ask(0))
  policy.failed(ticket, { kind: 'busy', detail: '429', retryAfterMs: 60_000 }, 0)
  const turns = [1, 2, 3, 4].map(() => sentTo(policy, ask(1)))
  t.notOk(turns.includes(1), `${turns}`)
})

t.test('random and the power of two use all replicas; of two drawn, the fuller one never wins', async t => {
  const random = build('random', specOf([3], 4))
  const sent = [0, 0, 0]
  for (let at = 0; at < 300; at++) sent[sentTo(random, ask(0))]! += 1
  t.ok(
    sent.every(count => count > 70),
    `${sent}`,
  )

  const p2c = build('p2c', specOf([2], 4))
  const first = sentTo(p2c, ask(0))
  t.equal(sentTo(p2c, ask(0)), 1 - first, 'of two replicas both are drawn')
  const many = build('p2c', specOf([3], 4))
  for (let at = 0; at < 300; at++) sentTo(many, ask(0))
  const loads = many.state(0).replicas.map(({ inFlight }) => inFlight)
  t.ok(Math.max(...loads) - Math.min(...loads) <= 3, `${loads}`)
})

t.test(
  'least outstanding counts requests, prefill-least prompt tokens before their first output',
  async t => {
    for (const name of ['least-outstanding', 'prefill-least']) {
      const policy = build(name, specOf([2], 9))
      const long = arrive(policy, ask(0, { promptTokens: 9000 }))
      const busy = long.first.kind === 'dispatch' ? long.first.replica : assert.fail()
      const sent = [1, 2, 3].map(() => sentTo(policy, ask(0, { promptTokens: 10 })))
      const even = name === 'least-outstanding'
      t.equal(sent.filter(at => at === busy).length, even ? 1 : 0, `${name}: ${sent}`)
      policy.firstToken(long.ticket, 5)
      if (!even) t.equal(sentTo(policy, ask(6)), busy, 'once it is computed it weighs nothing')
    }
  },
)

t.test('peak-EWMA believes a slow first output at once, and forgets it by its decay', async t => {
  const policy = build('peak-ewma', specOf([2], 9))
  const slow = arrive(policy, ask(0))
  const at = slow.first.kind === 'dispatch' ? slow.first.replica : assert.fail()
  policy.firstToken(slow.ticket, 2_000)
  end(policy, slow.ticket, 2_100)
  for (let n = 0; n < 20; n++) t.equal(sentTo(policy, ask(2_100)), 1 - at, `${n} in flight there, none here`)
  const usual = arrive(policy, ask(82_000))
  t.match(usual.first, { replica: 1 - at })
  policy.firstToken(usual.ticket, 82_100)
  t.equal(sentTo(policy, ask(82_100)), at, 'eight decays later its 2 s are less than the 100 ms of the other')
})

t.test('cache-aware follows the prefix until loads differ by more than 32 and 1.1 times', async t => {
  const policy = build('cache-aware', specOf([2], 9))
  const long = { promptTokens: 320, prefix: prefix(1, 20) }
  const home = sentTo(policy, ask(0, long))
  for (let n = 2; n <= 33; n++) t.equal(sentTo(policy, ask(0, long)), home, `request ${n}`)
  t.equal(sentTo(policy, ask(0, long)), 1 - home, '33 against 0 is too much: the shortest queue')
  t.equal(
    sentTo(policy, ask(0, long)),
    1 - home,
    '33 against 1 is not, and of two that have it the emptier is next',
  )

  const half = { promptTokens: 640, prefix: [...prefix(1, 20), ...prefix(2, 20)] }
  t.equal(
    sentTo(policy, ask(0, half)),
    1 - home,
    'half of the prompt is not more than half: the shortest queue',
  )
})

t.test('aibrix follows the longest match that is not a deviation above the mean, until 8 apart', async t => {
  const long = { promptTokens: 320, prefix: prefix(1, 20) }
  const even = build('aibrix', specOf([3], 9))
  for (let n = 0; n < 3; n++) sentTo(even, ask(0))
  const home = sentTo(even, ask(0, long))
  sentTo(even, ask(0))
  sentTo(even, ask(0))
  t.equal(sentTo(even, ask(0, long)), home, 'two each: the match')
  t.not(sentTo(even, ask(0, long)), home, '3, 2, 2: more than 2.33 + 0.47')

  const loose = build('aibrix', specOf([2], 9), { deviations: 100 })
  const first = sentTo(loose, ask(0, long))
  for (let n = 2; n <= 9; n++) t.equal(sentTo(loose, ask(0, long)), first, `request ${n}`)
  t.equal(sentTo(loose, ask(0, long)), 1 - first, '9 apart: the fewest')
})

t.test('dynamo weighs prompts to compute against contexts, and refuses when all are busy', async t => {
  const hit = { promptTokens: 800, prefix: prefix(1, 50) }
  for (const overlap of [1, 2]) {
    const policy = build('dynamo', specOf([2], 9), { overlap })
    const first = arrive(policy, ask(0, hit))
    const home = first.first.kind === 'dispatch' ? first.first.replica : assert.fail()
    policy.firstToken(first.ticket, 10)
    // Here 0 to compute and 801 + 800 of context; there 800 to compute and 800 of context.
    t.equal(sentTo(policy, ask(10, hit)), overlap === 1 ? 1 - home : home)
  }
  const policy = build('dynamo', specOf([2], 9), { busyPrefillTokens: 1000 })
  const [one, other] = [
    arrive(policy, ask(0, { promptTokens: 1500 })),
    sentTo(policy, ask(0, { promptTokens: 1500 })),
  ]
  t.match(one.first, { kind: 'dispatch', replica: 1 - other })
  t.match(arrive(policy, ask(0)).first, { kind: 'shed', reason: 'no_headroom' })
  policy.firstToken(one.ticket, 5)
  t.equal(sentTo(policy, ask(6)), 1 - other)
})

t.test('llm-d scores what it scraped last: 49 ms long an old queue looks empty', async t => {
  const policy = build('llm-d', specOf([2], 9))
  const long = { promptTokens: 20_000, prefix: prefix(1, 1250) }
  const home = sentTo(policy, ask(0, long))
  for (let n = 0; n < 5; n++) t.equal(sentTo(policy, ask(1, long)), home, 'its prefix is here')
  const stale = Array.from({ length: 20 }, () => sentTo(policy, ask(49)))
  t.ok(stale.includes(home), 'nothing is known of the queue yet')
  const seen = Array.from({ length: 20 }, () => sentTo(policy, ask(50)))
  t.notOk(seen.includes(home), 'now it is')
  t.equal(
    sentTo(policy, ask(50, long)),
    home,
    '3 for the prefix outweigh 2 for the queue and what KV it has left',
  )
})

t.test('the gate refuses agents while saturated, and chat never', async t => {
  const policy = build('llm-d-gate', holding(1000, specOf([1], 9)), { staleMs: 200 })
  sentTo(policy, ask(0, { promptTokens: 700 }))
  t.equal(sentTo(policy, asAgent(200, { promptTokens: 200 })), 0, '0.7 of 0.8')
  t.equal(sentTo(policy, asAgent(399)), 0, 'it is 0.9 by now, but not scraped')
  t.match(arrive(policy, asAgent(400)).first, { kind: 'shed', reason: 'no_headroom' })
  t.equal(sentTo(policy, ask(400)), 0)

  const waits = build('llm-d-gate', specOf([1], 9), { waiting: 2 })
  for (let n = 0; n < 4; n++) sentTo(waits, ask(0, { promptTokens: 4096 }))
  t.match(arrive(waits, asAgent(200)).first, { kind: 'shed' }, 'two of four do not fit into one step')
})

t.test('the probabilistic admitter refuses agents at 300 times the fifth power of saturation', async t => {
  const policy = build('llm-d-probabilistic', holding(1000, specOf([1], 9)))
  sentTo(policy, ask(0, { promptTokens: 200 }))
  let refused = 0
  for (let n = 0; n < 1000; n++) if (sentTo(policy, asAgent(200, { promptTokens: 1 })) < 0) refused++
  t.ok(Math.abs(refused / 1000 - 300 * (0.2 / 0.8) ** 5) < 0.05, `${refused} of 1000, 293 expected`)
})

t.test('a static cap refuses beyond it, agents too; the second cap counts prompt tokens', async t => {
  const cap = build('static-cap', specOf([2], 99), { cap: 2 })
  t.same([1, 2, 3, 4].map(() => sentTo(cap, ask(0))).sort(), [0, 0, 1, 1])
  t.match(arrive(cap, ask(0)).first, { kind: 'shed', reason: 'no_headroom' })
  t.match(arrive(cap, asAgent(0)).first, { kind: 'shed', reason: 'no_headroom' })

  const two = build('two-caps', specOf([1], 99), { cap: 9, tokens: 1000 })
  const huge = arrive(two, ask(0, { promptTokens: 5000 }))
  t.match(huge.first, { kind: 'dispatch' }, 'longer than the cap, where nothing else is computed')
  t.equal(sentTo(two, ask(0, { promptTokens: 1 })), -1)
  two.firstToken(huge.ticket, 5)
  t.equal(sentTo(two, ask(5, { promptTokens: 600 })), 0)
  t.equal(sentTo(two, ask(5, { promptTokens: 401 })), -1)
  t.equal(sentTo(two, ask(5, { promptTokens: 400 })), 0)
})

t.test(
  'cap with a queue: agents leave a quarter to chat and wait by deadline; prefixes are followed',
  async t => {
    const policy = build('cap-edf-prefix', specOf([1], 99), { cap: 4 })
    const running = [1, 2, 3].map(() => arrive(policy, asAgent(0)))
    const [late, early] = [60_000, 20_000].map(deadlineMs =>
      arrive(policy, asAgent(0, { own: { deadlineMs } })),
    )
    t.match([late?.first.kind, early?.first.kind], ['queue', 'queue'])
    t.equal(sentTo(policy, ask(0)), 0, 'the fourth slot is for chat')
    t.equal(sentTo(policy, ask(0)), -1, 'which does not wait')
    const done = running.map(({ ticket }) => end(policy, ticket, 10))
    t.same(done[0], [], 'the fourth slot is taken still')
    t.match(done.slice(1).flat(), [
      { kind: 'dispatch', ticket: { id: early?.ticket.id }, why: 'queued' },
      { kind: 'dispatch', ticket: { id: late?.ticket.id }, why: 'queued' },
    ])

    const pair = build('cap-edf-prefix', specOf([2], 99), { cap: 4 })
    const long = { promptTokens: 320, prefix: prefix(1, 20) }
    const home = sentTo(pair, ask(0, long))
    t.equal(
      sentTo(pair, ask(0, long)),
      1 - home,
      '320 before it and none of its own are as many as 320 of its own',
    )
  },
)

t.test(
  'split pools: the first replicas for chat, the others for agents, whose queue is their own',
  async t => {
    const policy = build('split', specOf([4], 99), { share: 0.5, chatCap: 2, agentCap: 1 })
    t.same([1, 2, 3, 4].map(() => sentTo(policy, ask(0))).sort(), [0, 0, 1, 1])
    t.equal(sentTo(policy, ask(0)), -1, 'agents have room, and chat may not use it')
    const agents = [1, 2].map(() => arrive(policy, asAgent(0)))
    t.same(agents.map(({ first }) => (first.kind === 'dispatch' ? first.replica : -1)).sort(), [2, 3])
    t.match(arrive(policy, asAgent(0)).first, { kind: 'queue' })
    const alone = build('split', specOf([1], 99), { chatCap: 2, agentCap: 1 })
    t.same([sentTo(alone, ask(0)), sentTo(alone, asAgent(0))], [0, -1], 'one replica is nobody’s own')
  },
)

t.test('gradient2 moves its limit as the formula says', async t => {
  const limiter = new Gradient2({ tolerance: 1.5, queue: 4, min: 4 })
  limiter.sample(1, 20)
  t.equal(limiter.limit, 0.8 * 20 + 0.2 * (20 + 4), 'as usual: it grows by a fifth of the queue')
  limiter.sample(1, 10)
  t.equal(limiter.limit, 20.8, 'half of it is not in use: no change')
  for (let n = 3; n <= 10; n++) limiter.sample(1, 0)
  limiter.sample(3, 20)
  const long = 1 + (2 / 601) * 2
  const gradient = (1.5 * long) / 3
  t.ok(
    Math.abs(limiter.limit - (0.8 * 20.8 + 0.2 * (20.8 * gradient + 4))) < 1e-9,
    'three times as slow: it shrinks',
  )
  for (let n = 0; n < 100; n++) limiter.sample(100, 200)
  t.ok(limiter.limit < 9, 'the gradient is 0.5 at least: 0.9 L + 0.8 has its rest at 8')
  for (let n = 0; n < 2000; n++) limiter.sample(1, 200)
  t.equal(limiter.limit, 200)
})

t.test('gradient2 as a rule: a replica takes its limit, and a slow second lowers it', async t => {
  const policy = build('gradient2', specOf([1], 99), { min: 4 })
  const sent = Array.from({ length: 25 }, () => arrive(policy, ask(0)))
  t.equal(sent.filter(({ first }) => first.kind === 'dispatch').length, 20)
  t.equal(sent.filter(({ first }) => first.kind === 'shed').length, 5)
  let now = 0
  const second = (tickets: readonly Ticket[], tookMs: number): void => {
    now += tookMs
    tickets.forEach((ticket, at) => {
      policy.firstToken(ticket, now + at * 100)
    })
    now += tickets.length * 100
    for (const ticket of tickets) end(policy, ticket, now)
  }
  const taken = (): readonly Ticket[] => {
    const all = Array.from({ length: 250 }, () => arrive(policy, ask(now)))
    return all.filter(({ first }) => first.kind === 'dispatch').map(({ ticket }) => ticket)
  }
  second(
    sent.flatMap(({ ticket, first }) => (first.kind === 'dispatch' ? [ticket] : [])),
    100,
  )
  const before = taken()
  second(before, 60_000)
  const after = taken()
  t.ok(after.length < before.length, `${before.length} before, ${after.length} after`)
})

t.test(
  'self-only: until its model is calibrated Weir’s limit holds, then the chance of the request alone',
  async t => {
    const policy = build('self-only', specOf([1], 3), { threshold: 0.5 })
    t.same(
      [1, 2, 3, 4].map(() => sentTo(policy, ask(0))),
      [0, 0, 0, -1],
    )

    const known = build('self-only', specOf([1], 3), { threshold: 0.5 })
    const fit = known.forecast?.pool(0).fit ?? assert.fail('a policy with a model shows it')
    fit.firstTokens = 200
    fit.gaps = 2000
    // Cold: 10 ms and 60 us a prompt token. 500 ms are spent at 8,000 tokens, the bound is as likely met as not.
    const tickets = Array.from({ length: 12 }, () => arrive(known, ask(0, { promptTokens: 1000 })))
    const sent = tickets.filter(({ first }) => first.kind === 'dispatch')
    t.ok(sent.length >= 6 && sent.length <= 9, `${sent.length} of 12, not by the limit of 3`)
    const waiting = arrive(known, asAgent(0, { own: { deadlineMs: 5_000 }, promptTokens: 90_000 }))
    t.match(
      waiting.first,
      { kind: 'queue' },
      '90,000 tokens take more than 5 s: it waits where chat is refused',
    )
    t.ok((known.wakeAt ?? Infinity) <= 25, 'it looks again soon')
    t.match(
      arrive(known, asAgent(0, { promptTokens: 1000 })).first,
      { kind: 'dispatch' },
      'a minute is enough',
    )
  },
)

t.test('the prefix index knows who has how much of a prompt, and forgets the oldest', async t => {
  const index = new PrefixIndex(40)
  const hits = (hashes: readonly number[] | undefined): (number | undefined)[] =>
    Array.from(index.hits(hashes), tokens => tokens)
  t.same(hits(prefix(1, 3)), [])
  index.insert(0, prefix(1, 20))
  index.insert(2, prefix(1, 5))
  t.same(hits(prefix(1, 30)), [320, 0, 80])
  t.same(hits([...prefix(1, 2), ...prefix(9, 2)]), [32, 0, 32], 'up to where it differs')
  t.same(hits([...prefix(9, 1), ...prefix(1, 20)]), [0, 0, 0], 'a prompt is found from its beginning only')
  t.same(hits(undefined), [0, 0, 0])
  index.insert(0, prefix(2, 30))
  t.equal(hits(prefix(1, 20))[0], 160, '50 new blocks in a room for 40: the ten oldest, its last, are gone')
  index.insert(0, prefix(1, 20))
  t.equal(hits(prefix(1, 20))[0], 320, 'sent again, there again')
  index.forget(0)
  t.same([hits(prefix(1, 20))[0], hits(prefix(1, 20))[2]], [0, 80])
})
