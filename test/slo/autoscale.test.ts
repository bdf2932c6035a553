import t from 'tap'
import { Autoscaler, type ScaleInput } from '../../src/slo/autoscale.js'

const MINUTE = 60_000
/** A replica serves one GPU second of work a second. */
const input = (demand: number, ready: number, more: Partial<ScaleInput> = {}): ScaleInput => ({
  demand,
  perReplica: 1,
  ready,
  pending: 0,
  burn: 0,
  target: 0.7,
  down: 0.55,
  coldStartMs: 180_000,
  ...more,
})

/** Ticks of 10 s, with the wish obeyed at once. */
function play(
  scaler: Autoscaler,
  from: number,
  seconds: number,
  demand: (second: number) => number,
  ready: number,
) {
  const desired: number[] = []
  let there = ready
  for (let second = 0; second <= seconds; second += 10) {
    there = scaler.update(input(demand(second), there), from + second * 1000).desired
    desired.push(there)
  }
  return desired
}

t.test('at 70 % of capacity nothing is asked for, above it one more', async t => {
  t.match(new Autoscaler().update(input(7, 10), 0), { desired: 10, why: 'steady' })
  t.match(new Autoscaler().update(input(7.01, 10), 0), { desired: 11, why: 'demand' })
})

t.test('a step up is at most a quarter, at least one, and the next comes a minute later', async t => {
  const eight = new Autoscaler()
  t.equal(eight.update(input(40, 8), 0).desired, 10, 'needed are 58')
  t.equal(eight.update(input(40, 8), 30_000).desired, 10, 'the first has not shown in the demand')
  t.equal(eight.update(input(40, 8, { pending: 2 }), MINUTE).desired, 12)
  t.equal(new Autoscaler().update(input(5, 1), 0).desired, 2)
})

t.test('a wish that is not obeyed stands, and does not grow by itself', async t => {
  const scaler = new Autoscaler()
  for (let at = 0; at < 20 * MINUTE; at += 10_000) {
    t.equal(scaler.update(input(8, 10), at).desired, 12, `${at} ms`)
  }
})

t.test('a rise is answered before it comes: by what it will be when a replica is ready', async t => {
  // 0.5 % of capacity a 10 s step; at t the mean is still below the line.
  const demand = (second: number): number => 5 + second * 0.005
  const scaler = new Autoscaler()
  let at = 0
  let scale = scaler.update(input(demand(at), 10), 0)
  for (; scale.desired === 10; scale = scaler.update(input(demand(at), 10), at * 1000)) at += 10
  t.ok(demand(at) < 7, `asked at ${demand(at)} of 10`)
  t.ok(demand(at + 180) >= 6.5, `which is ${demand(at + 180)} when the replica is there`)
  t.equal(scale.why, 'rising demand')
})

t.test('the trend adds at most half of the level', async t => {
  const scaler = new Autoscaler()
  let expected = 0
  for (let at = 0; at <= 600; at += 10) expected = scaler.update(input(at, 1000), at * 1000).expected
  t.ok(expected <= 600 * 1.5, `${expected}`)
  t.ok(expected > 700, `${expected}: it leads`)
})

t.test('one is taken away only after ten minutes in which it was not needed, one at a time', async t => {
  const desired = play(new Autoscaler(), 0, 1810, () => 2, 10)
  t.equal(desired[59], 10, 'just before ten minutes')
  t.equal(desired[60], 9)
  t.equal(desired[119], 9)
  t.equal(desired[120], 8)
  t.equal(desired[180], 7)
})

t.test('a moment of demand, a burning budget or a replica on its way keeps them', async t => {
  const spiked = play(new Autoscaler(), 0, 900, second => (second === 300 ? 6.5 : 2), 10)
  t.equal(spiked[61], 10, 'the ten minutes began anew')
  const burning = new Autoscaler()
  const pending = new Autoscaler()
  for (let at = 0; at <= 30 * MINUTE; at += 10_000) {
    t.equal(burning.update(input(2, 10, { burn: 1 }), at).desired, 10)
    t.equal(pending.update(input(2, 9, { pending: 1 }), at).desired, 10)
  }
})

t.test('the dials are the operator’s', async t => {
  t.equal(new Autoscaler().update(input(7, 10, { target: 0.5 }), 0).desired, 12)
  const sooner = new Autoscaler()
  for (let at = 0; at <= 10 * MINUTE; at += 10_000) sooner.update(input(6, 10, { down: 0.68 }), at)
  t.equal(sooner.update(input(6, 10, { down: 0.68 }), 11 * MINUTE).desired, 9)
  const slow = (coldStartMs: number): number => {
    const scaler = new Autoscaler()
    for (let at = 0; at <= 600; at += 10) scaler.update(input(at, 1000, { coldStartMs }), at * 1000)
    return scaler.update(input(600, 1000, { coldStartMs }), 600_000).expected
  }
  t.ok(slow(20_000) < slow(180_000), 'a replica that is ready sooner need not be asked for as early')
})

t.test('a load that swings about the line does not flap', async t => {
  const desired = play(new Autoscaler(), 0, 4 * 3600, second => 6.5 + 0.6 * Math.sin(second / 60), 10)
  const changes = desired.filter((value, i) => i > 0 && value !== desired[i - 1]).length
  t.ok(changes <= 2, `${changes} changes in four hours`)
})

t.test('without a known capacity the wish is what is there', async t => {
  t.match(new Autoscaler().update(input(50, 3, { perReplica: undefined, pending: 1 }), 0), {
    desired: 4,
    why: 'unknown capacity',
  })
})

t.test('the last replica stays, and from none demand asks for one', async t => {
  t.equal(play(new Autoscaler(), 0, 1810, () => 0, 1).at(-1), 1)
  t.equal(new Autoscaler().update(input(0.1, 0), 0).desired, 1)
})
