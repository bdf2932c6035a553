/** How many replicas are looked at for one request: the cost of a decision does not grow with the fleet. */
import t from 'tap'
import { Replica } from '../../src/fleet/replica.js'
import { Forecast } from '../../src/predict/forecast.js'
import { Asked, Chooser } from '../../src/routing/choose.js'
import { View } from '../../src/routing/view.js'
import { seededRng } from '../../src/time.js'
import { specOf } from '../policy/world.js'

const SPREAD = { ttftMs: 20, ttftShare: 0.05, paceShare: 0.1 }

/** Looks at an idle fleet. @returns the replicas that were looked at, and the one that was chosen */
function lookAt(count: number, seed = 1) {
  const spec = specOf([count], 32)
  const forecast = new Forecast(spec)
  const replicas = spec.replicas.map(one => new Replica(one, 32))
  const views = replicas.map(one => new View(one, forecast.replica(one.spec.id), true))
  const looked: number[] = []
  const asked = new Asked({
    promptTokens: 500,
    dueAt: 500,
    bound: 40,
    lengths: Float64Array.of(50, 150, 400),
  })
  const chosen = new Chooser(seededRng(seed), views, SPREAD).choose(
    asked,
    replicas,
    id => {
      looked.push(id)
      return 0
    },
    new Float64Array(8),
    1,
    0,
  )
  return { looked, chosen: chosen.view?.replica.spec.id }
}

t.test('of up to 64 replicas each is looked at, of more the same few of any fleet', async t => {
  for (const count of [1, 8, 64]) {
    t.same(
      lookAt(count).looked,
      Array.from({ length: count }, (_, id) => id),
    )
  }
  t.equal(lookAt(1000).looked.length, 24)
  t.equal(lookAt(10_000).looked.length, 24)
})

t.test('who is drawn depends on the dice, and the chosen one is among them', async t => {
  const [first, again, other] = [lookAt(10_000, 1), lookAt(10_000, 1), lookAt(10_000, 2)]
  t.same(again, first)
  t.notSame(other.looked, first.looked)
  t.ok(first.chosen !== undefined && first.looked.includes(first.chosen))
})
