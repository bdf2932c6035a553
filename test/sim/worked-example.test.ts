import t from 'tap'
import { profileNamed } from '../../src/sim/profiles.js'
import {
  drawnUsers,
  type LoadPoint,
  loadPoint,
  runClosedLoop,
  workedExampleMix,
} from '../../src/sim/workload.js'

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
