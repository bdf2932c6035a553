import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { Decision } from '../../src/policy/decision.js'
import { createPolicy } from '../../src/policy/simple.js'
import { watched, witnessed } from '../../src/policy/watched.js'
import { Forecast } from '../../src/predict/forecast.js'
import type { Ticket } from '../../src/request.js'
import { seededRng } from '../../src/time.js'
import { ask, complete, left, specOf, stream } from './world.js'

const spec = () => specOf([2, 1], 2)

/** Random lives of requests through a door. @param each  called after every call, with the time */
function live(policy: ReturnType<typeof createPolicy>, seed: number, each: (now: number) => void): string[] {
  const rng = seededRng(seed)
  const said: string[] = []
  const running = new Map<Ticket, number | undefined>()
  const waiting = new Set<Ticket>()
  const note = (decisions: readonly Decision[]): void => {
    for (const one of decisions) {
      said.push('replica' in one ? `${one.kind} ${one.replica}` : one.kind)
      if (one.kind === 'queue') waiting.add(one.ticket)
      if (one.kind === 'shed') waiting.delete(one.ticket)
      if (one.kind !== 'dispatch') continue
      waiting.delete(one.ticket)
      running.set(one.ticket, undefined)
    }
  }
  let now = 1000
  for (let call = 0; call < 300; call++) {
    now += Math.round(rng.next() * 400)
    const [ticket, first] = [...running][Math.floor(rng.next() * running.size)] ?? []
    const dice = rng.next()
    if (ticket === undefined || dice < 0.3) {
      note(
        policy.arrive(ask(now, { askedClass: rng.next() < 0.5 ? 1 : 0, stream: rng.next() < 0.9 }), now)
          .decisions,
      )
    } else if (first === undefined && dice < 0.4) {
      running.delete(ticket)
      const { again, decisions } = policy.failed(ticket, { kind: 'reset', detail: '' }, now)
      if (again === undefined)
        note(policy.finish(ticket, { kind: 'upstreamError', progress: undefined }, now).decisions)
      else note([again])
      note(decisions)
    } else if (first === undefined) {
      running.set(ticket, now)
      note(policy.firstToken(ticket, now))
    } else if (dice < 0.7) {
      policy.mark(ticket, now, 1 + Math.floor(rng.next() * 3))
    } else {
      running.delete(ticket)
      const progress = stream(first, now, 20)
      note(policy.finish(ticket, dice < 0.9 ? complete(progress) : left(progress), now).decisions)
    }
    const [waits] = waiting
    if (waits !== undefined && rng.next() < 0.05) {
      waiting.delete(waits)
      note(policy.finish(waits, left(), now).decisions)
    }
    note(policy.wake(now))
    each(now)
  }
  return said
}

t.test('a watched policy decides what it would decide alone', async t => {
  const law = fc.property(fc.integer(), seed => {
    const alone = live(createPolicy(spec(), seededRng(seed)), seed, () => {})
    const seen = live(watched(createPolicy(spec(), seededRng(seed)), new Forecast(spec())), seed, () => {})
    assert.deepEqual(seen, alone)
    assert.ok(alone.length > 50)
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 30 }))
})

t.test('whatever happens, the forecast has under way what streams on the replicas', async t => {
  const law = fc.property(fc.integer(), seed => {
    const forecast = new Forecast(spec())
    const policy = watched(createPolicy(spec(), seededRng(seed)), forecast)
    const streaming = new Map<Ticket, number>()
    const counted = witnessed(policy, {
      dispatched: (ticket, _, replica) => ticket.facts.stream && streaming.set(ticket, replica),
      firstToken: () => {},
      mark: () => {},
      failed: ticket => streaming.delete(ticket),
      shed: ticket => assert.ok(!streaming.has(ticket)),
      ended: ticket => streaming.delete(ticket),
      reconfigure: () => {},
    })
    live(counted, seed, now => {
      for (const { id } of spec().replicas) {
        const { waiting, streams } = forecast.replica(id).observer
        const own = [...streaming.values()].filter(replica => replica === id).length
        assert.equal(waiting + streams, own)
        assert.ok((policy.state(now).replicas[id]?.inFlight ?? 0) >= own)
      }
    })
  })
  t.doesNotThrow(() => fc.assert(law, { numRuns: 30 }))
})

t.test('a watched policy shows its forecast, which follows the config', async t => {
  const forecast = new Forecast(specOf([1], 2))
  const policy = watched(createPolicy(specOf([1], 2), seededRng(1)), forecast)
  t.equal(policy.forecast, forecast)
  t.equal(createPolicy(spec(), seededRng(1)).forecast, undefined)
  policy.reconfigure(specOf([1, 2], 2), 10)
  t.equal(forecast.replica(2).pool, forecast.pool(1))
  const { ticket } = policy.arrive(ask(20), 20)
  t.equal(forecast.replica(0).observer.waiting, 1)
  policy.firstToken(ticket, 30)
  policy.mark(ticket, 40, 3)
  t.equal(forecast.replica(0).observer.contextTokens, 104, 'its prompt, the first token and three more')
})

t.test('a request that is refused for what it asks is shown to nobody', async t => {
  const said: string[] = []
  const say = (what: string) => () => void said.push(what)
  const policy = witnessed(createPolicy(spec(), seededRng(1)), {
    arrived: say('arrived'),
    dispatched: say('dispatched'),
    firstToken: say('first token'),
    mark: say('mark'),
    failed: say('failed'),
    shed: say('shed'),
    ended: say('ended'),
    reconfigure: say('reconfigure'),
  })
  policy.arrive(ask(0, { model: 'nobody has it' }), 0)
  t.same(said, [])
  const { ticket } = policy.arrive(ask(0), 0)
  policy.finish(ticket, complete(stream(1, 2, 3)), 5)
  t.same(said, ['arrived', 'dispatched', 'ended'])
})
