/** What holds for every policy that has a name, whatever it decides. */
import assert from 'node:assert/strict'
import t from 'tap'
import { runLifecycles } from '../../bench/lifecycle.js'
import { POLICIES, policyNamed } from '../../src/baselines/named.js'
import { seededRng } from '../../src/time.js'
import { ask, specOf } from '../policy/world.js'

const NAMES = [
  ...[
    'weir',
    'round-robin',
    'random',
    'simple',
    'least-outstanding',
    'p2c',
    'prefill-least',
    'peak-ewma',
    'cache-aware',
  ],
  ...[
    'llm-d',
    'llm-d-gate',
    'llm-d-probabilistic',
    'self-only',
    'dynamo',
    'aibrix',
    'static-cap',
    'two-caps',
  ],
  ...['cap-edf-prefix', 'gradient2', 'split'],
]
/** Policies that refuse chat only where no replica is left. */
const REFUSES_NOBODY = [
  ...['round-robin', 'random', 'least-outstanding', 'p2c', 'prefill-least', 'peak-ewma', 'cache-aware'],
  ...['llm-d', 'llm-d-gate', 'llm-d-probabilistic', 'aibrix'],
]

t.test('every name has one policy, with a source and knobs whose default a sweep tries', async t => {
  t.same(POLICIES.map(({ name }) => name).sort(), NAMES.toSorted())
  for (const { name, source, knobs } of POLICIES) {
    t.ok(source.length > 5, name)
    for (const knob of knobs) t.ok(knob.values.includes(knob.default), `${name}.${knob.name}`)
  }
  t.equal(policyNamed('nobody'), undefined)
})

t.test('a knob that a policy does not have is refused by name', async t => {
  const create = () => policyNamed('static-cap')?.create(specOf([1], 4), seededRng(1), { cups: 3 })
  t.throws(create, new RangeError('static-cap has no knob cups; it has: cap'))
})

for (const { name, create } of POLICIES) {
  t.test(
    `${name}: every arrival has one ending, counts equal the open tickets, same seed same decisions`,
    async t => {
      const run = (seed: number) =>
        runLifecycles({
          seed,
          lifecycles: 1500,
          checkEvery: 7,
          create,
          limit: name === 'simple' ? 4 : Infinity,
        })
      const first = run(1)
      t.equal(
        Object.values(first.verdicts).reduce((sum, count) => sum + count, 0),
        first.arrivals,
      )
      t.equal(run(1).fingerprint, first.fingerprint)
      t.not(run(2).fingerprint, first.fingerprint)
    },
  )
}

t.test('a policy without admission sends every chat, and says no only where no replica is left', async t => {
  for (const name of REFUSES_NOBODY) {
    const policy = policyNamed(name)?.create(specOf([2], 4), seededRng(1)) ?? assert.fail(name)
    const kinds = Array.from(
      { length: 600 },
      () => policy.arrive(ask(0, { promptTokens: 4000 }), 0).decisions[0]?.kind,
    )
    t.equal(kinds.filter(kind => kind === 'dispatch').length, 600, name)

    const alone = policyNamed(name)?.create(specOf([1], 4), seededRng(1)) ?? assert.fail(name)
    const { ticket } = alone.arrive(ask(0), 0)
    alone.failed(ticket, { kind: 'busy', detail: '429', retryAfterMs: 5_000 }, 0)
    t.match(alone.arrive(ask(1), 1).decisions, [{ kind: 'shed', retryAfterMs: 4_999 }], name)
  }
})

t.test('the caps hold over every lifecycle', async t => {
  for (const [name, knobs] of [
    ['static-cap', { cap: 3 }],
    ['two-caps', { cap: 3, tokens: 4000 }],
    ['cap-edf-prefix', { cap: 3 }],
    ['split', { chatCap: 3, agentCap: 2 }],
  ] as const) {
    const { decisions } = runLifecycles({
      seed: 5,
      lifecycles: 1500,
      checkEvery: 50,
      create: (spec, rng) => policyNamed(name)?.create(spec, rng, knobs) ?? assert.fail(name),
      limit: 3,
    })
    t.ok(decisions.shed > 100, `${name} sheds`)
    t.equal(decisions.queue > 0, name === 'cap-edf-prefix' || name === 'split', `${name} and the queue`)
  }
})
