import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { runLifecycles } from '../../bench/lifecycle.js'
import type { Decision } from '../../src/policy/decision.js'
import { createPolicy } from '../../src/policy/simple.js'
import type { Ticket } from '../../src/request.js'
import { seededRng } from '../../src/time.js'
import { ask, complete, left, specOf, stream } from './world.js'

t.test('whatever happens to requests, no count is lost and verdicts sum to arrivals', async t => {
  const law = fc.property(fc.integer(), seed => {
    runLifecycles({ seed, lifecycles: 200, checkEvery: 1 })
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 50 }))
})

t.test('lifecycles meet every kind of decision and every verdict', async t => {
  const { decisions, verdicts, arrivals } = runLifecycles({ seed: 1, lifecycles: 5000, checkEvery: 100 })
  for (const [kind, count] of Object.entries({ ...decisions, ...verdicts }))
    t.ok(count > 5, `${count} of ${kind}`)
  t.equal(
    Object.values(verdicts).reduce((sum, count) => sum + count, 0),
    arrivals,
  )
})

t.test('the same seed gives the same decisions, and another seed others', async t => {
  const run = (seed: number): number => runLifecycles({ seed, lifecycles: 1000, checkEvery: 100 }).fingerprint
  t.equal(run(3), run(3))
  t.not(run(3), run(4))
})

/** Calls in virtual time, in order. */
class Agenda {
  readonly #due: { at: number; run: (now: number) => void }[] = []
  at(at: number, run: (now: number) => void): void {
    this.#due.push({ at, run })
  }
  run(): void {
    for (;;) {
      this.#due.sort((a, b) => a.at - b.at)
      const next = this.#due.shift()
      if (next === undefined) return
      next.run(next.at)
    }
  }
}

for (const kind of ['status', 'refused', 'reset'] as const) {
  t.test(`a replica that fails fast (${kind}) is no black hole`, async t => {
    const policy = createPolicy(specOf([2], 32), seededRng(9))
    const agenda = new Agenda()
    let [answered, failedBefore, failedAfter] = [0, 0, 0]
    let out = false
    const start = (decision: Decision | undefined, now: number): void => {
      if (decision?.kind !== 'dispatch') return
      const { ticket, replica } = decision
      if (replica === 0) {
        agenda.at(now + 300, then => policy.firstToken(ticket, then))
        agenda.at(now + 2000, then => {
          policy.finish(ticket, complete(stream(now + 300, then, 40)), then)
          answered++
        })
        return
      }
      agenda.at(now + 5, then => {
        if (out) failedAfter++
        else failedBefore++
        const { again, decisions } = policy.failed(ticket, { kind, detail: 'HTTP 503' }, then)
        out ||= decisions.some(news => news.kind === 'ejected')
        if (again === undefined) policy.finish(ticket, { kind: 'upstreamError', progress: undefined }, then)
        start(again, then)
      })
    }
    for (let at = 0; at < 200; at++)
      agenda.at(at * 100, now => start(policy.arrive(ask(now), now).decisions[0], now))
    agenda.run()
    t.equal(failedBefore, 5, 'out of rotation after 5 failures')
    t.ok(
      failedAfter >= 1 && failedAfter <= 3,
      `trials only: after 5 s, 10 s, 20 s; there were ${failedAfter}`,
    )
    t.ok(answered >= 198, `${answered} of 200 clients have the answer`)
    t.equal(policy.state(0).replicas[1]?.up, false)
    t.equal(policy.state(0).replicas[1]?.inFlight, 0)
  })
}

t.test('aborted requests give their counts back, and load is even afterwards', async t => {
  const policy = createPolicy(specOf([2], 20), seededRng(5))
  const rng = seededRng(6)
  let now = 0
  const open: Ticket[] = []
  for (let at = 0; at < 450; at++) {
    const { ticket } = policy.arrive(ask(now, { askedClass: 1 }), now)
    open.push(ticket)
    if (open.length < 60) continue
    const [gone] = open.splice(Math.floor(rng.next() * open.length), 1)
    assert.ok(gone)
    const reset = { kind: 'truncated', progress: undefined, failure: { kind: 'reset', detail: '' } } as const
    now += 10
    policy.finish(gone, at % 9 === 0 ? reset : left(), now)
  }
  for (const ticket of open) policy.finish(ticket, left(), now)
  for (const { inFlight, outstandingPrefillTokens } of policy.state(now).replicas) {
    t.equal(inFlight, 0)
    t.equal(outstandingPrefillTokens, 0)
  }
  t.equal(policy.state(now).open, 0)

  now += 120_000
  const sent = [0, 0]
  const running: Ticket[] = []
  for (let at = 0; at < 200; at++) {
    if (running.length === 10)
      policy.finish(running.shift() ?? assert.fail(), complete(stream(now, now, 1)), now)
    now += 50
    const { ticket, decisions } = policy.arrive(ask(now), now)
    const [first] = decisions
    assert.ok(first?.kind === 'dispatch')
    sent[first.replica]! += 1
    policy.firstToken(ticket, now)
    running.push(ticket)
  }
  t.ok(
    sent.every(count => count >= 80),
    `${sent}`,
  )
})
