import assert from 'node:assert/strict'
import t from 'tap'
import {
  afterAnswer,
  afterDispatch,
  afterFailure,
  afterNothing,
  HEALTHY,
  type Health,
  mayTry,
} from '../../src/fleet/health.js'
import { Pool } from '../../src/fleet/pool.js'
import { specOf } from '../policy/world.js'

const fail = (health: Health, times: number, mayEject = true): Health => {
  return times === 0 ? health : fail(afterFailure(health, 1, 100, mayEject), times - 1, mayEject)
}

t.test('five failures in a row eject, and any answer between them begins a new row', async t => {
  t.same(fail(HEALTHY, 4), { is: 'up', row: 4 })
  t.same(fail(HEALTHY, 5), { is: 'down', retryAt: 5100, backoffMs: 5000 })
  t.same(fail(afterAnswer(fail(HEALTHY, 4), 1), 4), { is: 'up', row: 4 })
  t.same(fail(afterNothing(fail(HEALTHY, 4), 1, 50), 1), { is: 'down', retryAt: 5100, backoffMs: 5000 })
})

t.test('a replica that may not be ejected stays, and goes at its next failure once it may', async t => {
  t.same(fail(HEALTHY, 9, false), { is: 'up', row: 9 })
  t.equal(fail(fail(HEALTHY, 9, false), 1).is, 'down')
})

t.test('the way back is one trial: it restores, or doubles the time out up to a minute', async t => {
  const down = fail(HEALTHY, 5)
  t.equal(mayTry(down, 5099), false)
  t.equal(mayTry(down, 5100), true)
  let health = afterDispatch(down, 7)
  t.same(health, { is: 'trial', ticket: 7, backoffMs: 5000 })
  t.equal(mayTry(health, 1e9), false, 'one at a time')
  t.equal(afterAnswer(health, 6), health, 'the answer to an older request does not decide it')
  t.equal(afterFailure(health, 6, 100, true), health, 'nor does its failure')
  t.equal(afterFailure(down, 6, 100, true), down)
  t.equal(afterAnswer(down, 6), down)
  t.same(afterAnswer(health, 7), HEALTHY)
  t.same(
    afterNothing(health, 7, 6000),
    { is: 'down', retryAt: 6000, backoffMs: 5000 },
    'undecided: again at once',
  )
  const times = [10_000, 20_000, 40_000, 60_000, 60_000].map(expected => {
    health = afterDispatch(afterFailure(health, 7, 0, true), 7)
    return [health.is === 'trial' && health.backoffMs, expected]
  })
  for (const [got, expected] of times) t.equal(got, expected)
})

t.test('at most half of a pool is out at a time, and a lone replica never', async t => {
  for (const [size, out] of [
    [1, 0],
    [2, 1],
    [3, 1],
    [8, 4],
  ] as const) {
    const pool = new Pool(specOf([size], 4).pools[0] ?? assert.fail())
    for (const replica of pool.replicas) replica.health = fail(replica.health, 5, pool.mayEject)
    t.equal(size - pool.up, out, `${out} of ${size}`)
  }
})

t.test(
  'a replica learns how many tokens it puts into an event, and a pool how long an answer takes',
  async t => {
    const pool = new Pool(specOf([1], 4).pools[0] ?? assert.fail())
    const [replica] = pool.replicas
    assert.ok(replica)
    t.equal(replica.tokensPerMark, 1)
    for (let at = 0; at < 100; at++) replica.answered(30, 10)
    t.ok(Math.abs(replica.tokensPerMark - 3) < 0.001, `${replica.tokensPerMark}`)
    t.equal(pool.slotsPerMs, 4 / 1000, 'a second each, until one was seen')
    pool.answered(2000)
    t.equal(pool.slotsPerMs, 4 / 2000)
    pool.answered(0)
    t.equal(pool.slotsPerMs, 4 / 1900)
  },
)
