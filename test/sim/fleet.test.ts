/** The fleet simulator: it does what a policy decides, and what it reckons agrees with the policy's judge. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { createPolicy } from '../../src/policy/simple.js'
import { Fleet, type FleetOptions } from '../../src/sim/fleet.js'
import type { Arrival, Job } from '../../src/sim/job.js'
import { NextTimes } from '../../src/sim/next-times.js'
import { profileNamed } from '../../src/sim/profiles.js'
import { RateClock } from '../../src/sim/rate.js'
import { Recovery } from '../../src/sim/recovery.js'
import type { Judgement } from '../../src/slo/verdict.js'
import { seededRng } from '../../src/time.js'
import { agent, chat, specOf } from '../policy/world.js'

const llama = profileNamed('llama3-8b')

interface End {
  readonly job: Job
  readonly judgement: Judgement
}

interface Run {
  readonly arrivals: readonly Arrival[]
  readonly replicas?: number
  readonly limit?: number
  readonly seed?: number
  readonly change?: Partial<FleetOptions>
  readonly during?: (fleet: Fleet) => void
}

function run({ arrivals, replicas = 2, limit = 16, seed = 1, change = {}, during }: Run) {
  const ends: End[] = []
  let at = 0
  const policy = createPolicy(specOf([replicas], limit), seededRng(seed))
  const fleet = new Fleet({
    replicas: Array.from({ length: replicas }, () => llama),
    policy,
    classes: [chat, agent],
    models: ['m', 'm'],
    traffic: { next: () => arrivals[at++] },
    ended: (job, judgement) => ends.push({ job, judgement }),
    ...change,
  })
  during?.(fleet)
  fleet.run()
  return { ends, fleet, policy }
}

const arrivals = (mostGapMs: number) =>
  fc
    .array(
      fc.record({
        gap: fc.double({ min: 0, max: mostGapMs, noNaN: true }),
        cls: fc.integer({ min: 0, max: 1 }),
        promptTokens: fc.integer({ min: 1, max: 20_000 }),
        outputTokens: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 900 })),
        leaves: fc.option(fc.integer({ min: 0, max: 9_000 }), { nil: undefined }),
        deadline: fc.option(fc.integer({ min: 5_000, max: 20_000 }), { nil: undefined }),
      }),
      { minLength: 1, maxLength: 120 },
    )
    .map(rows => {
      let at = 0
      return rows.map(({ gap, cls, promptTokens, outputTokens, leaves, deadline }): Arrival => {
        at += gap
        return {
          at,
          cls,
          promptTokens,
          outputTokens,
          ...(leaves === undefined ? {} : { leavesAfterMs: leaves }),
          ...(deadline === undefined || cls === 0 ? {} : { deadlineMs: deadline }),
        }
      })
    })

/** How late the policy hears of what engines do. */
const stale = fc.constantFrom(0, 0, 30, 250)

/** Crashes and comings back of replica 0, in turn. */
const crashes = fc.array(fc.double({ min: 1, max: 4_000, noNaN: true }), { maxLength: 4 })

t.test(
  'every arrival has one ending, tokens in are tokens out, and nothing is left in flight or in memory',
  async t => {
    t.doesNotThrow(() =>
      fc.assert(
        fc.property(arrivals(150), crashes, stale, (list, breaks, staleMs) => {
          let computed = 0
          const { ends, fleet, policy } = run({
            arrivals: list,
            change: { staleMs },
            during: fleet => {
              let at = 0
              breaks.forEach((gap, turn) => {
                at += gap
                fleet.at(at, () => (turn % 2 === 0 ? fleet.crash(0) : fleet.restore(0)))
              })
              for (let look = 0; look < 60; look++) {
                fleet.at(look * 200, () => {
                  for (const { kvUsage, running } of fleet.engines) {
                    assert.ok(kvUsage >= 0 && kvUsage <= 1 && running >= 0)
                  }
                })
              }
            },
          })
          assert.equal(ends.length, list.length)
          assert.equal(new Set(ends.map(({ job }) => job.arrival)).size, list.length)
          for (const { job } of ends) {
            if (job.end === 'complete') assert.equal(job.tokens, job.outputTokens)
            assert.ok(job.tokens <= job.outputTokens)
            computed += job.tokens
          }
          if (breaks.length === 0) {
            const generated = fleet.engines.reduce((sum, { totals }) => sum + totals.generationTokens, 0)
            assert.equal(generated, computed)
          }
          const state = policy.state(fleet.now)
          assert.equal(state.open, 0)
          for (const replica of state.replicas) {
            assert.equal(replica.inFlight, 0)
            assert.equal(replica.outstandingPrefillTokens, 0)
          }
          for (const engine of fleet.engines) assert.equal(engine.kvUsage, 0)
        }),
        { numRuns: 25 },
      ),
    )
  },
)

t.test('the simulator reckons who was served well by its own times, and the policy judges alike', async t => {
  let seen = { good: 0, bad: 0, excluded: 0 }
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(arrivals(60), list => {
        for (const { job, judgement } of run({ arrivals: list }).ends) {
          assert.equal(job.good, judgement.verdict === 'good', `${judgement.verdict} of ${job.end}`)
          assert.equal(job.offered, judgement.offered)
          const { good, bad, excluded } = seen
          seen = {
            good: good + (job.good ? 1 : 0),
            bad: bad + (job.offered && !job.good ? 1 : 0),
            excluded: excluded + (job.offered ? 0 : 1),
          }
        }
      }),
      { numRuns: 30 },
    ),
  )
  t.ok(seen.good > 0 && seen.bad > 0 && seen.excluded > 0, JSON.stringify(seen))
})

t.test('the same seed gives the same run, noise and all', async t => {
  const list = fc.sample(arrivals(100), { seed: 5, numRuns: 3 }).flat()
  const sorted = list.map((arrival, i) => ({ ...arrival, at: i * 5 }))
  const once = (seed: number) =>
    run({ arrivals: sorted, seed, change: { noise: { sigma: 0.05, rng: seededRng(seed) } } }).ends.map(
      ({ job }) => [job.end, job.endedAt, job.firstTokenAt, job.tokens, job.replica],
    )
  t.same(once(4), once(4))
  t.notSame(once(4), once(5))
})

t.test(
  'a replica that crashed sends what had no output elsewhere, and is refused until it is back',
  async t => {
    const list = Array.from({ length: 40 }, (_, at) => ({
      at: at * 50,
      cls: 0,
      promptTokens: 1000,
      outputTokens: 100,
    }))
    const { ends } = run({
      arrivals: list,
      during: fleet => {
        fleet.at(600, () => fleet.crash(0))
        fleet.at(1500, () => fleet.restore(0))
      },
    })
    const count = (end: string) => ends.filter(({ job }) => job.end === end).length
    t.ok(count('truncated') > 0, 'streams under way are cut')
    t.equal(count('truncated') + count('complete') + count('upstreamError') + count('shed'), list.length)
    const between = ends.filter(({ job }) => job.arrival.at > 600 && job.arrival.at < 1400)
    t.ok(between.every(({ job }) => job.replica === 1 || job.end !== 'complete'))
  },
)

t.test(
  'a policy that hears late keeps slots taken that are free, and judges by when tokens came',
  async t => {
    const list = [0, 1].map(turn => ({ at: turn * 300, cls: 0, promptTokens: 100, outputTokens: 2 }))
    const go = (staleMs: number) => run({ arrivals: list, replicas: 1, limit: 1, change: { staleMs } })
    t.same(
      go(0).ends.map(({ job }) => job.end),
      ['complete', 'complete'],
    )
    const { ends, fleet } = go(400)
    t.same(
      ends.map(({ job }) => job.end),
      ['shed', 'complete'],
      'it does not know yet that the first has ended',
    )
    const first = ends[1]
    t.ok(first?.job.good)
    t.equal(first?.judgement.verdict, 'good')
    t.equal(first?.judgement.ttftMs, first?.job.ttftMs)
    t.equal(fleet.now, (first?.job.endedAt ?? 0) + 400)
  },
)

t.test('a sender that goes on after its answer comes again', async t => {
  let calls = 0
  const first: Arrival = { at: 0, cls: 1, promptTokens: 100, outputTokens: 10, sender: 'agent' }
  const { ends } = run({
    arrivals: [first],
    change: {
      traffic: {
        next: () => (calls++ === 0 ? first : undefined),
        after: (job, now) => (calls++ < 5 ? { ...job.arrival, at: now + 1000 } : undefined),
      },
    },
  })
  t.ok(ends.length > 2)
  for (let i = 1; i < ends.length; i++) {
    t.equal(ends[i]?.job.arrival.at, (ends[i - 1]?.job.endedAt ?? 0) + 1000)
  }
})

t.test(
  'the next of many engines is the one with the soonest time, the lower number among equals',
  async t => {
    t.doesNotThrow(() =>
      fc.assert(
        fc.property(
          fc.integer({ min: 1, max: 20 }),
          fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 30 }))),
          (size, moves) => {
            const times = new NextTimes(size)
            const plain = new Array<number>(size).fill(Number.POSITIVE_INFINITY)
            for (const [who, at] of moves) {
              const time = at === 30 ? Number.POSITIVE_INFINITY : at
              times.set(who % size, time)
              plain[who % size] = time
              assert.equal(times.soonest, Math.min(...plain))
              assert.equal(times.first, plain.indexOf(Math.min(...plain)))
            }
          },
        ),
      ),
    )
  },
)

t.test('one replica that serves one at a time waits like an M/D/1 queue', async t => {
  const REQUESTS = 30_000
  const profile = { ...llama, maxSeqs: 1, overheadMs: 0 }
  // Each takes the same time: alone, and so in steps of one sequence.
  const alone = run({
    arrivals: [{ at: 0, cls: 1, promptTokens: 500, outputTokens: 1 }],
    replicas: 1,
    change: { replicas: [profile] },
  }).ends[0]?.job
  const serviceMs = alone?.endedAt ?? Number.NaN
  for (const utilisation of [0.5, 0.8]) {
    const rng = seededRng(11)
    let at = 0
    let left = REQUESTS
    let waited = 0
    const fleet = new Fleet({
      replicas: [profile],
      policy: createPolicy(specOf([1], 1e6), seededRng(1)),
      classes: [chat, agent],
      models: ['m', 'm'],
      traffic: {
        next: () => {
          if (left-- === 0) return undefined
          at -= (serviceMs / utilisation) * Math.log(1 - rng.next())
          return { at, cls: 1, promptTokens: 500, outputTokens: 1 }
        },
      },
      ended: job => {
        waited += (job.endedAt ?? Number.NaN) - job.arrival.at - serviceMs
      },
    })
    fleet.run()
    const expected = (utilisation * serviceMs) / (2 * (1 - utilisation))
    const error = waited / REQUESTS / expected - 1
    t.ok(
      Math.abs(error) < 0.03,
      `at ${utilisation}: ${(error * 100).toFixed(2)} % off ${expected.toFixed(1)} ms`,
    )
  }
})

t.test(
  'recovery is from the end of a burst to three windows in a row that are as good as before it',
  async t => {
    const recovered = (good: (at: number) => boolean): number | undefined => {
      const recovery = new Recovery(10_000, 20_000, 40_000)
      for (let at = 0; at < 40_000; at += 20) {
        recovery.ended({ arrival: { at }, offered: true, good: good(at) } as Job)
      }
      return recovery.ms
    }
    t.equal(
      recovered(at => at < 10_000 || at >= 20_000),
      0,
    )
    t.equal(
      recovered(at => at < 10_000 || at >= 25_000),
      6_000,
      'the window from 4 to 6 s is half good',
    )
    t.equal(
      recovered(at => at < 10_000 || (at >= 22_000 && at < 26_000) || at >= 30_000),
      10_000,
      'two windows are not enough',
    )
    t.equal(
      recovered(at => at % 40 === 0 && (at < 10_000 || at >= 30_000)),
      10_000,
      'half were good before',
    )
    t.equal(
      recovered(at => at < 10_000),
      undefined,
    )
  },
)

t.test('a day goes from its lowest rate to its highest and back, and its mean is half-way', async t => {
  const clock = new RateClock({ kind: 'daily', periodMs: 86_400_000, low: 0.5, high: 1.5 }, seededRng(1))
  const hours = new Array<number>(24).fill(0)
  for (let at = clock.after(1000); at < 86_400_000; at = clock.after(1000)) {
    hours[Math.floor(at / 3_600_000)]! += 1
  }
  const rate = (hour: number): number => (hours[hour] ?? 0) / 3600
  t.ok(Math.abs(rate(0) - 0.51) < 0.01, `${rate(0)} in the first hour`)
  t.ok(Math.abs(rate(12) - 1.49) < 0.01, `${rate(12)} after noon`)
  t.ok(Math.abs(rate(6) - 1.07) < 0.02, `${rate(6)} in the morning`)
  t.ok(Math.abs(hours.reduce((a, b) => a + b, 0) / 86_400 - 1) < 0.001)
})
