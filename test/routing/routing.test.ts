import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { Pool } from '../../src/fleet/pool.js'
import type { RequestFacts } from '../../src/request.js'
import { compileRoutes, mayAsk } from '../../src/routing/classify.js'
import { glob } from '../../src/routing/glob.js'
import { pick } from '../../src/routing/pick.js'
import type { RouteSpec } from '../../src/routing/route.js'
import { seededRng } from '../../src/time.js'
import { anything, ask, specOf } from '../policy/world.js'

const route = (when: Partial<RouteSpec['when']>, cls: number, rewriteModel?: string): RouteSpec => {
  return { when: { ...anything, ...when }, cls, rewriteModel }
}

t.test('a star stands for any characters and everything else for itself, over the whole text', async t => {
  const cases: [string, string, boolean][] = [
    ['/agent/*', '/agent/v1/chat', true],
    ['/agent/*', '/agent/', true],
    ['/agent/*', '/agent', false],
    ['*-agent', 'small-agent', true],
    ['*-agent', 'small-agents', false],
    ['a*a', 'a', false],
    ['a*a', 'aa', true],
    ['a*b*c', 'a-b-b-c', true],
    ['a.c', 'abc', false],
    ['*', '', true],
    ['', '', true],
    ['', 'a', false],
  ]
  for (const [pattern, text, match] of cases) t.equal(glob(pattern)(text), match, `${pattern} on ${text}`)
})

t.test('a glob matches what the regular expression it stands for matches', async t => {
  const letters = fc.string({ unit: fc.constantFrom('a', 'b', '*', '.'), maxLength: 8 })
  const law = fc.property(
    letters,
    fc.string({ unit: fc.constantFrom('a', 'b', '.'), maxLength: 10 }),
    (pattern, text) => {
      const same = new RegExp(`^${pattern.replaceAll('.', '\\.').replaceAll('*', '.*')}$`)
      assert.equal(glob(pattern)(text), same.test(text))
    },
  )
  t.doesNotThrow(() => fc.assert(law, { numRuns: 5000 }))
  const hostile = glob(`${'*a'.repeat(200)}*b`)
  t.equal(hostile('a'.repeat(100_000)), false, 'and a text made to backtrack is done at once')
})

t.test('the first route whose conditions all hold gives class and model', async t => {
  const classify = compileRoutes([
    route({ path: '/agent/*', stream: true }, 1),
    route({ header: [['x-team', 'batch*']], tools: false }, 2, 'tiny'),
    route({ model: '*-agent', key: 'ci' }, 3),
    route({ maxTokens: { min: 1000, max: 2000 } }, 4),
    route({}, 0, 'big'),
  ])
  const cls = (change: Partial<RequestFacts>): number => classify(ask(0, change)).route
  t.equal(cls({ path: '/agent/v1/x' }), 0)
  t.equal(cls({ path: '/agent/v1/x', stream: false }), 4)
  t.equal(cls({ headers: { 'x-team': 'batch-7' } }), 1)
  t.equal(cls({ headers: { 'x-team': ['web', 'batch'] } }), 1, 'any value of a header that came twice')
  t.equal(cls({ headers: { 'x-team': ['web'] } }), 4)
  t.equal(cls({ headers: { 'x-team': 'batch' }, tools: true }), 4)
  const key = { label: 'ci', classes: undefined }
  t.equal(cls({ model: 'x-agent', key }), 2)
  t.equal(cls({ model: 'x-agent', key: { ...key, label: 'web' } }), 4)
  t.equal(cls({ model: 'x-agent' }), 4)
  t.equal(cls({ maxTokens: 1000 }), 3)
  t.equal(cls({ maxTokens: 2001 }), 4)
  t.equal(cls({ maxTokens: undefined }), 4, 'without max_tokens no bound on it holds')
  t.same(classify(ask(0)), { route: 4, cls: 0, model: 'big' })
  t.same(classify(ask(0, { headers: { 'x-team': 'batch' } })), { route: 1, cls: 2, model: 'tiny' })
  t.same(compileRoutes([])(ask(0)), { route: -1, cls: undefined, model: 'm' })
})

t.test('the class that a client asks for wins, and the rewrite of its route holds all the same', async t => {
  const classify = compileRoutes([route({}, 0, 'big')])
  t.same(classify(ask(0, { askedClass: 1 })), { route: 0, cls: 1, model: 'big' })
  t.equal(mayAsk(ask(0, { askedClass: 1 })), true)
  t.equal(mayAsk(ask(0, { askedClass: 1, key: { label: 'k', classes: [1] } })), true)
  t.equal(mayAsk(ask(0, { askedClass: 1, key: { label: 'k', classes: [0] } })), false)
  t.equal(
    mayAsk(ask(0, { key: { label: 'k', classes: [] } })),
    true,
    'a route may give what a key may not ask for',
  )
})

t.test(
  'the replica with the fewest prompt tokens to prefill is taken, then the one with fewest in flight',
  async t => {
    const [pool, spare] = specOf([3, 1], 2).pools.map(spec => new Pool(spec))
    assert.ok(pool && spare)
    const [a, b, c] = pool.replicas
    assert.ok(a && b && c)
    const rng = seededRng(1)
    const next = (tried: number[] = []): number | undefined => pick([pool, spare], tried, 0, rng)?.spec.id
    a.dispatched(1, 500)
    b.dispatched(2, 300)
    c.dispatched(3, 400)
    t.equal(next(), 1)
    b.prefilled(300)
    a.prefilled(500)
    a.released(0)
    t.equal(next(), 0, 'nothing to prefill on two, nothing in flight on one')
    t.equal(next([0]), 1)
    t.equal(next([0, 1]), 2)
    t.equal(next([0, 1, 2]), 3, 'then the next pool')
    t.equal(next([0, 1, 2, 3]), undefined)
    for (const [at, replica] of [a, a, b, c].entries()) replica.dispatched(10 + at, 1)
    t.equal(next(), 3, 'a full pool has no room')
    b.health = { is: 'down', retryAt: 10, backoffMs: 5000 }
    b.released(1)
    t.equal(pick([pool], [], 9, rng), undefined)
    t.equal(pick([pool], [], 10, rng), b, 'one that is down may be tried when its time has come')
    b.dispatched(99, 1)
    b.released(1)
    t.equal(pick([pool], [], 10, rng), undefined, 'but by one request at a time')
  },
)

t.test('equals are drawn by lot, evenly, and the same seed draws the same', async t => {
  const pool = new Pool(specOf([4], 9).pools[0] ?? assert.fail())
  const draw = (seed: number): number[] => {
    const rng = seededRng(seed)
    return Array.from({ length: 4000 }, () => pick([pool], [], 0, rng)?.spec.id ?? -1)
  }
  const counts = [0, 1, 2, 3].map(id => draw(7).filter(drawn => drawn === id).length)
  for (const count of counts) t.ok(count > 850 && count < 1150, `${counts}`)
  t.same(draw(7), draw(7))
})
