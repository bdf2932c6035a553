/** Bounds of good requests: nothing that runs exceeds them, and the clairvoyant's plan is what the engines play. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { goodUnder, listOf } from '../../bench/fleet/bounds-list.js'
import { fluidBound, tightBound } from '../../bench/fleet/bounds-lp.js'
import { type Job, needsOf, type Problem } from '../../bench/fleet/bounds-problem.js'
import { clairvoyant } from '../../bench/fleet/u3.js'
import { courseOf, type Orders, Replica } from '../../bench/fleet/u3-replica.js'
import { played } from '../../bench/fleet/u3-true.js'
import { policyNamed } from '../../src/baselines/named.js'
import { Stage } from '../../src/sim/cell.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { Scenario } from '../../src/sim/scenario.js'

const CLASSES: Problem['classes'] = [
  { name: 'chat', clauses: { kind: 'stream', ttftMs: 500, tpotMs: 40 } },
  { name: 'agent', clauses: { kind: 'deadline', deadlineMs: 8_000, minTokensPerSecond: 0 } },
]
const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0)

function problemOf(jobs: readonly Job[], replicas = 1, classes = CLASSES): Problem {
  return { profile: profileNamed('llama3-8b'), replicas, classes, jobs }
}

/** Chat and deadline work whose lengths are drawn: no trace has to be read. */
function scenarioOf(replicas: number): Scenario {
  const input = { median: 900, sigma: 0.9, min: 16, max: 12_000 }
  return {
    name: 'drawn',
    replicas: [{ engine: 'llama3-8b', count: replicas, speed: 1 }],
    noise: 0,
    prefixCache: true,
    maxInFlight: 32,
    classes: [
      {
        name: 'chat',
        share: 0.8,
        requests: { kind: 'lengths', input, output: { median: 130, sigma: 0.8, min: 1, max: 800 } },
        percentile: 90,
        promise: { kind: 'stream', ttftMs: 500, tpotMs: 40 },
      },
      {
        name: 'agent',
        share: 0.2,
        requests: {
          kind: 'lengths',
          input: { ...input, median: 6_000, max: 30_000 },
          output: { median: 200, sigma: 0.5, min: 1, max: 800 },
        },
        percentile: 90,
        promise: { kind: 'deadline', deadlineMs: 8_000, minTokensPerSecond: 0 },
        queue: { max: 100, waitMs: 5_000 },
      },
    ],
    rate: { kind: 'steady' },
    faults: [],
    warmupMs: 0,
    lengthMs: 10_000,
  }
}

interface Row {
  readonly cls: number
  readonly gapMs: number
  readonly promptTokens: number
  readonly outputTokens: number
}

/** Each row so long after the one before. */
function jobsOf(rows: readonly Row[], hashesOf: (row: Row, at: number) => readonly number[]): Job[] {
  let arrivalMs = 0
  return rows.map((row, at) => {
    arrivalMs += row.gapMs
    const { cls, promptTokens, outputTokens } = row
    return { cls, arrivalMs, promptTokens, outputTokens, blockHashes: hashesOf(row, at) }
  })
}

const rowsWith = (mostGapMs: number, maxLength: number): fc.Arbitrary<Row[]> =>
  fc.array(
    fc.record({
      cls: fc.constantFrom(0, 1),
      gapMs: fc.double({ min: 0, max: mostGapMs, noNaN: true }),
      promptTokens: fc.oneof(fc.integer({ min: 1, max: 2_000 }), fc.integer({ min: 1, max: 20_000 })),
      outputTokens: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 300 })),
    }),
    { minLength: 1, maxLength },
  )

function verdicts(problem: Problem): readonly [light: Uint8Array, engine: Uint8Array] {
  const course = courseOf(problem)
  const orders = allOf(problem)
  const light = new Uint8Array(problem.jobs.length)
  new Replica(problem.profile.maxSeqs).run(course, orders, problem.jobs.length, light)
  return [light, played(course, problem, [orders])]
}

const allOf = (problem: Problem): Orders => ({
  jobs: problem.jobs.map((_, at) => at),
  ready: problem.jobs.map(job => job.arrivalMs + problem.profile.overheadMs),
})

t.test('the light replica ends the same jobs good as the engine', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(rowsWith(60, 60), rows => {
        const [light, engine] = verdicts(problemOf(jobsOf(rows, () => [])))
        assert.deepEqual(light, engine)
      }),
      { numRuns: 150, seed: 1 },
    ),
  )
})

t.test(
  'the light replica finds in its cache what the engine finds, until that is taken for others',
  async t => {
    // One session, its calls one after the other, each longer than the last; between them what fills the memory.
    const profile = { ...profileNamed('llama3-8b'), kvTokens: 40_000 }
    const classes: Problem['classes'] = [
      { name: 'tight', clauses: { kind: 'deadline', deadlineMs: 120, minTokensPerSecond: 0 } },
    ]
    const call = { cls: 0, gapMs: 3_000, promptTokens: 8_000, outputTokens: 4 }
    const other = { cls: 0, gapMs: 3_000, promptTokens: 4_000, outputTokens: 4 }
    const seen = new Set<string>()
    for (let others = 0; others < 12; others++) {
      const rows = [call, ...Array<Row>(others).fill(other), { ...call, promptTokens: 8_640 }]
      const hashesOf = ({ promptTokens }: Row): number[] =>
        promptTokens === 4_000 ? [] : Array.from({ length: promptTokens / 16 }, (_, block) => block + 1)
      const problem = { profile, replicas: 1, classes, jobs: jobsOf(rows, hashesOf) }
      const [light, engine] = verdicts(problem)
      t.strictSame(light, engine, `${others} others between`)
      seen.add(`${light.at(-1)}`)
    }
    t.equal(seen.size, 2, 'found after a few, taken after many')
  },
)

t.test('a copy of a replica goes on as the original does', async t => {
  const problem = listOf(new Stage(scenarioOf(1), new Map()), 1.2, 3, 200)
  const course = courseOf(problem)
  const orders = allOf(problem)
  const whole = new Replica(problem.profile.maxSeqs)
  const copies: Replica[] = []
  whole.run(course, orders, 200, undefined, replica => {
    const copy = new Replica(problem.profile.maxSeqs)
    copy.copyFrom(replica)
    copies.push(copy)
  })
  t.ok(copies.length > 50, 'states on the way')
  for (const copy of copies) copy.run(course, orders, 200)
  t.strictSame(
    copies.map(({ good, busy }) => ({ good, busy })),
    copies.map(() => ({ good: whole.good, busy: whole.busy })),
  )
})

t.test('U1 is what can be reckoned by hand', async t => {
  const { gMsPerKtok, cMsPerSeq, aMsPerMtok2 } = profileNamed('llama3-8b').cost
  const job = { cls: 0, arrivalMs: 0, promptTokens: 4_000, outputTokens: 1, blockHashes: [] }
  const prefillMs = gMsPerKtok * 4 + cMsPerSeq + aMsPerMtok2 * 8
  const classes: Problem['classes'] = [
    { name: 'jobs', clauses: { kind: 'deadline', deadlineMs: 500, minTokensPerSecond: 0 } },
  ]
  const ten = problemOf(Array(10).fill(job), 1, classes)
  t.equal(needsOf(ten)[0]?.prefillMs, prefillMs)
  const bound = await fluidBound(ten)
  t.equal(bound.status, 'optimal')
  t.ok(Math.abs(bound.total - 500 / prefillMs) < 1e-3, `${bound.total} of ${500 / prefillMs}`)
  const three = await fluidBound({ ...ten, replicas: 3 })
  t.ok(Math.abs(three.total - 10) < 1e-3, 'three replicas have time for all')
  // Every 250 ms the ten come again: half the time for each round.
  const again = await fluidBound(ten, 250)
  t.ok(Math.abs(again.total - 250 / prefillMs) < 1e-3, `${again.total} of ${250 / prefillMs}`)
})

t.test('text that several jobs begin with is charged once, to the first that came', async t => {
  const blockHashes = Array.from({ length: 200 }, (_, block) => block + 1)
  const of = (promptTokens: number, arrivalMs: number): Job => ({
    cls: 0,
    arrivalMs,
    promptTokens,
    outputTokens: 10,
    blockHashes: blockHashes.slice(0, Math.floor(promptTokens / 16)),
  })
  const needs = needsOf(problemOf([of(1_600, 0), of(3_200, 100), of(1_600, 200)]))
  // At least one token is always computed, and with it its block.
  t.strictSame(
    needs.map(need => need.uncached),
    [1_600, 1_600, 16],
  )
})

t.test('what not even an idle replica serves in time is in no bound', async t => {
  const long = { cls: 0, arrivalMs: 0, promptTokens: 60_000, outputTokens: 5, blockHashes: [] }
  const problem = problemOf([long, { ...long, promptTokens: 100 }])
  t.strictSame(
    needsOf(problem).map(need => need.possible),
    [false, true],
  )
  t.ok(Math.abs((await fluidBound(problem)).total - 1) < 1e-3)
  t.ok(Math.abs((await tightBound(problem)).total - 1) < 1e-3)
  t.strictSame(clairvoyant(problem, 1).good, [1, 0])
})

t.test('no policy and no plan exceeds U2, U2 not U1, and no policy the clairvoyant', async t => {
  const stage = new Stage(scenarioOf(2), new Map())
  const names = ['least-outstanding', 'two-caps', 'self-only', 'weir']
  for (const [load, seed] of [
    [1.2, 2],
    [3, 3],
  ] as const) {
    const problem = listOf(stage, load, seed, 250)
    const u1 = await fluidBound(problem)
    const u2 = await tightBound(problem)
    const u3 = clairvoyant(problem, seed)
    const most = sum(u3.good)
    t.ok(u2.total <= u1.total + 1e-2, `load ${load}: U2 ${u2.total} within U1 ${u1.total}`)
    t.ok(most <= u2.total + 1e-2, `load ${load}: U3 ${most} within U2 ${u2.total}`)
    t.strictSame(u3.good, u3.planned, 'the engines play what was planned')
    for (const name of names) {
      const policy = policyNamed(name)
      if (policy === undefined) throw new Error(`no policy ${name}`)
      const good = sum(goodUnder(stage, problem, (spec, rng) => policy.create(spec, rng), seed))
      t.ok(good <= most, `load ${load}: ${name} ${good} within U3 ${most}`)
    }
  }
})

t.test('same seed, same plan', async t => {
  const problem = listOf(new Stage(scenarioOf(2), new Map()), 1.5, 5, 200)
  const [one, two] = [clairvoyant(problem, 4), clairvoyant(problem, 4)]
  t.strictSame({ ...one, seconds: 0 }, { ...two, seconds: 0 })
})

t.test('bounds are refused for a fleet of two kinds, and where something fails', async t => {
  const scenario = scenarioOf(1)
  const mixed = {
    ...scenario,
    replicas: [...scenario.replicas, { engine: 'llama3-8b', count: 1, speed: 0.5 }],
  }
  t.throws(() => listOf(new Stage(mixed, new Map()), 1, 1, 10), {
    message: 'bounds are for replicas of one kind and no faults; drawn has others',
  })
  const faulty: Scenario = { ...scenario, faults: [{ kind: 'cache-flush', atMs: 1 }] }
  t.throws(() => listOf(new Stage(faulty, new Map()), 1, 1, 10), {
    message: 'bounds are for replicas of one kind and no faults; drawn has others',
  })
})
