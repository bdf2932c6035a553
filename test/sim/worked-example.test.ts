import t from 'tap'
import { createPolicy } from '../../src/policy/simple.js'
import { Fleet } from '../../src/sim/fleet.js'
import type { Arrival } from '../../src/sim/job.js'
import { profileNamed } from '../../src/sim/profiles.js'
import {
  drawnUsers,
  type LoadPoint,
  loadPoint,
  runClosedLoop,
  workedExampleMix,
} from '../../src/sim/workload.js'
import { seededRng } from '../../src/time.js'
import { agent, chat, specOf } from '../policy/world.js'

/** Mean over 5 seeds x 4,000 requests after 300, as the expected figures were made. */
function sweep(concurrency: number): LoadPoint {
  const points = [1, 2, 3, 4, 5].map(seed => {
    const users = drawnUsers(workedExampleMix, 0, seed)
    const loop = { profile: profileNamed('worked-example'), users, concurrency }
    return loadPoint(runClosedLoop({ ...loop, requests: 4000, warmup: 300 }), { ttftMs: 500, tpotMs: 40 })
  })
  const mean = (key: keyof LoadPoint): number =>
    points.reduce((sum, point) => sum + point[key], 0) / points.length
  return {
    ttftP50Ms: mean('ttftP50Ms'),
    ttftP90Ms: mean('ttftP90Ms'),
    tpotP50Ms: mean('tpotP50Ms'),
    tpotP90Ms: mean('tpotP90Ms'),
    outputTokensPerSec: mean('outputTokensPerSec'),
    goodputTokensPerSec: mean('goodputTokensPerSec'),
    goodShare: mean('goodShare'),
  }
}

t.test('the worked example comes out: knee 12, its latency, goodput and throughput', async t => {
  const grid = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
  const points = new Map(grid.map(concurrency => [concurrency, sweep(concurrency)]))
  const at = (concurrency: number): LoadPoint => points.get(concurrency) ?? sweep(concurrency)
  const holds = grid.map(concurrency => at(concurrency).ttftP90Ms <= 500 && at(concurrency).tpotP90Ms <= 40)
  t.same(holds, [true, true, true, true, true, false, false, false, false, false], 'the last to hold is 12')

  t.ok(Math.abs(at(12).ttftP90Ms - 459) <= 30, `TTFT p90 at 12: ${at(12).ttftP90Ms}`)
  t.ok(Math.abs(at(12).tpotP90Ms - 13.9) <= 0.5, `TPOT p90 at 12: ${at(12).tpotP90Ms}`)
  t.ok(Math.abs(at(12).goodputTokensPerSec / 913 - 1) <= 0.04, `goodput at 12: ${at(12).goodputTokensPerSec}`)
  t.ok(Math.abs(at(48).outputTokensPerSec / 1799 - 1) <= 0.02, `output at 48: ${at(48).outputTokensPerSec}`)
  t.ok(
    at(32).goodputTokensPerSec > 1.3 * at(12).goodputTokensPerSec,
    'goodput alone keeps rising past the knee',
  )
})

/** The same closed loop behind a router: who has an answer asks at once for the next. */
function behindRouter(concurrency: number, requests: number, warmup: number): { ttft: number; tpot: number } {
  const users = drawnUsers(workedExampleMix, 0, 1)
  const ask = (user: number, at: number): Arrival => {
    const { inputTokens, outputTokens } = users(user)
    return { at, cls: 1, promptTokens: inputTokens, outputTokens, sender: user }
  }
  const [ttft, tpot]: [number[], number[]] = [[], []]
  let [sent, ends] = [0, 0]
  new Fleet({
    replicas: [profileNamed('worked-example')],
    policy: createPolicy(specOf([1], 1000), seededRng(1)),
    classes: [chat, agent],
    models: ['m', 'm'],
    traffic: {
      next: () => (sent < concurrency ? ask(sent++, 0) : undefined),
      after: ({ arrival }, now) =>
        ends < warmup + requests ? ask(arrival.sender as number, now) : undefined,
    },
    ended: job => {
      ends++
      if (ends <= warmup || ends > warmup + requests) return
      ttft.push(job.ttftMs ?? Number.NaN)
      if (job.tpotMs !== undefined) tpot.push(job.tpotMs)
    },
  }).run()
  const p90 = (list: number[]): number =>
    list.sort((a, b) => a - b)[Math.ceil(list.length * 0.9) - 1] ?? Number.NaN
  return { ttft: p90(ttft), tpot: p90(tpot) }
}

t.test('the fleet simulator gives the worked example, too', async t => {
  const { ttft, tpot } = behindRouter(12, 4000, 300)
  t.ok(Math.abs(ttft - 459) <= 40 && ttft <= 500, `TTFT p90 at 12: ${ttft}`)
  t.ok(Math.abs(tpot - 13.9) <= 0.5, `TPOT p90 at 12: ${tpot}`)
  const past = behindRouter(16, 4000, 300)
  t.ok(past.ttft > 500, `TTFT p90 at 16: ${past.ttft}`)
})
