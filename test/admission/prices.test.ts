/** The slow loops of admission: group weights, the price of a loss, keys' weights, and the rate at which room appears. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { GroupPrices } from '../../src/admission/groups.js'
import { LossPrice } from '../../src/admission/price.js'
import { SpareRate } from '../../src/admission/spare.js'
import { Tenants } from '../../src/admission/tenants.js'
import { seededRng } from '../../src/time.js'
import { agent, chat } from '../policy/world.js'

function groups(fairness: number, waiting = fairness): GroupPrices {
  const prices = new GroupPrices()
  prices.reconfigure([chat, agent], [fairness, waiting])
  return prices
}

/** Prompts of 1 to 400 tokens, 20 a second; those above 300 are refused until their weight reaches `price`. */
function refusing(prices: GroupPrices, seconds: number, price: number): void {
  const rng = seededRng(1)
  for (let now = 0; now < seconds * 1000; now += 50) {
    const size = 1 + Math.floor(400 * rng.next())
    const group = prices.groupOf(0, size)
    prices.offered(group, size, now)
    if (size > 300 && (prices.values[group] ?? 0) < price) continue
    prices.admitted(group)
    prices.judged(group, true)
  }
}

t.test('the size that is refused gains weight, up to what gets it served, and the others none', async t => {
  const prices = groups(0.8)
  refusing(prices, 120, 5)
  const chats = prices.groupsOf(0)
  t.same(
    chats.map(({ label }) => label),
    ['q1', 'q2', 'q3', 'q4'],
  )
  t.ok((chats[3]?.value ?? 0) > 3 && (chats[3]?.value ?? 0) < 12, `${chats[3]?.value}`)
  t.same(
    chats.slice(0, 3).map(({ value }) => value),
    [1, 1, 1],
  )
  t.ok((chats[0]?.service ?? 0) > 0.99)
  t.ok((chats[3]?.service ?? 0) > 0.4, `${chats[3]?.service}`)
})

t.test('without fairness nobody gains weight, and none grows beyond its limit', async t => {
  const none = groups(0)
  refusing(none, 120, 5)
  t.ok(none.values.every(value => value === 1))
  const never = groups(1)
  refusing(never, 2000, 1e9)
  t.ok(Math.abs(Math.max(...never.values) - 30) < 1e-9)
})

t.test('a class that waits gains weight by each arrival and loses it by each dispatch', async t => {
  const prices = groups(0.8)
  const group = prices.groupOf(1, 500)
  t.equal(prices.groupOf(1, 50_000), group, 'one group, whatever the size')
  for (let now = 0; now < 20_000; now += 100) {
    prices.offered(prices.groupOf(0, 100), 100, now)
    prices.admitted(prices.groupOf(0, 100))
    prices.offered(group, 100, now)
  }
  const [waiting] = prices.groupsOf(1)
  t.ok((waiting?.value ?? 0) > 2, `${waiting?.value}`)
  t.equal(waiting?.label, 'all')
  for (let i = 0; i < 400; i++) prices.admitted(group)
  t.equal(prices.groupsOf(1)[0]?.value, 1)
})

t.test('weights outlive a new config, and a new class begins at 1', async t => {
  const prices = groups(0.8)
  refusing(prices, 60, 5)
  const before = prices.groupsOf(0).map(({ value }) => value)
  prices.reconfigure([chat, agent, { ...chat, id: 2 }], [0.8, 0.8, 0])
  t.same(
    prices.groupsOf(0).map(({ value }) => value),
    before,
  )
  t.same(
    prices.groupsOf(2).map(({ value }) => value),
    [1, 1, 1, 1],
  )
})

t.test(
  'a loss gets dearer while the admitted miss more than they should, and never cheaper than 1',
  async t => {
    const price = new LossPrice()
    for (let i = 0; i < 1000; i++) price.judged(0, chat.target, true)
    t.equal(price.kappa(0), 1)
    for (let i = 0; i < 1000; i++) price.judged(0, chat.target, i % 4 > 0)
    t.ok(price.kappa(0) > 8, 'three quarters are good, where 95 % should be')
    t.ok(price.kappa(0) <= 10)
    t.equal(price.kappa(1), 1, 'each class has its own')
    price.passed(0, true)
    price.passed(300_000, true)
    t.ok(price.kappa(0) < 1.01, 'what load did not cause is forgotten in quiet times')
  },
)

t.test('predictions are scaled down while answers turn out better than was said of them', async t => {
  const price = new LossPrice()
  for (let i = 0; i < 200; i++) price.compared(0.5, true)
  t.ok(Math.abs(price.scale - Math.exp(-0.3)) < 1e-9)
  for (let i = 0; i < 2000; i++) price.compared(0.5, true)
  t.equal(price.scale, 0.5)
  for (let i = 0; i < 5000; i++) price.compared(1, false)
  t.equal(price.scale, 1, 'never up: the price of losses does the tightening')
})

t.test(
  'a key that used more than its share weighs less, one that used less weighs more, a lone one as it is',
  async t => {
    const tenants = new Tenants()
    tenants.charge('a', 1000, 0)
    t.equal(tenants.weight('a', 0), 1)
    tenants.charge('b', 250, 0)
    t.equal(tenants.weight('a', 0), 0.625)
    t.equal(tenants.weight('b', 0), 1.5)
    t.equal(tenants.weight('new', 0), 1.5)
    t.equal(tenants.weight('a', 600_000), 1, 'long ago')
  },
)

t.test('weights of keys are between a half and one and a half, whatever they used', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(4), fc.nat(1e6), fc.nat(2000)), { maxLength: 40 }), uses => {
        const tenants = new Tenants()
        let now = 0
        for (const [key, work, gap] of uses) {
          now += gap
          tenants.charge(`${key}`, work, now)
          const weight = tenants.weight(`${key}`, now)
          assert(weight >= 0.5 && weight <= 1.5, `${weight}`)
        }
      }),
    ),
  )
})

t.test('room for those who were refused is what was taken at best, less what is taken now', async t => {
  const spare = new SpareRate()
  t.equal(spare.perMs(0), 0.1 / 1000, 'at least one in 10 s')
  for (let now = 0; now < 60_000; now += 20) spare.admitted(now)
  t.ok(spare.perMs(60_000) < 1 / 1000, 'as much as ever')
  const idle = spare.perMs(70_000)
  t.ok(idle > 0.025 && idle < 0.05, `${idle}: 10 s of nothing leave most of 50 a second`)
})
