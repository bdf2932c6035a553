import t from 'tap'
import { drawLength } from '../../src/sim/draw.js'
import { profileNamed } from '../../src/sim/profiles.js'
import { lognormalThrough, percentilesOf, presetOf, virtualPoint } from '../../src/sim/sweep.js'
import {
  drawnUsers,
  type Lengths,
  rowUsers,
  runClosedLoop,
  workedExampleMix,
} from '../../src/sim/workload.js'
import type { Slo } from '../../src/slo/slo.js'
import { findings, littleError, type SweepPoint } from '../../src/slo/sweep.js'
import { seededRng } from '../../src/time.js'

const PROFILE = profileNamed('worked-example')
const SLO = presetOf('worked-example')?.slo as Slo
const users = (seed: number) => drawnUsers(workedExampleMix, 0, seed)
const point = (concurrency: number, requests = 20_000, seed = 1): SweepPoint =>
  virtualPoint(PROFILE, users, concurrency, SLO, { seed, requests }).point

t.test('the worked example: knee 12, TTFT binds, 8 to 10, and 48 is no capacity', async t => {
  const points = [8, 12, 16, 48].map(concurrency => point(concurrency))
  const got = findings(points, SLO, 1)
  t.match(got, { knee: 12, binding: 'ttft', steady: { low: 8, high: 10 } })
  t.ok(Math.abs((got.budget_tok_s_per_gpu ?? 0) / 913 - 1) < 0.04, `budget ${got.budget_tok_s_per_gpu}`)
  t.ok(Math.abs((got.scale_out_at ?? 0) / 639 - 1) < 0.04, `scale out at ${got.scale_out_at}`)
  const [, , , slide] = points
  t.ok(Math.abs((slide?.output_tok_s ?? 0) / 1799 - 1) < 0.02, `throughput at 48: ${slide?.output_tok_s}`)
  t.equal(slide?.holds, false)
  for (const one of points) t.ok(littleError(one) < 0.01, `Little's law at ${one.concurrency}`)
})

t.test('other seeds find the same knee', async t => {
  for (const seed of [101, 201]) {
    const points = [8, 12, 16].map(concurrency => point(concurrency, 20_000, seed))
    t.equal(findings(points, SLO, 1).knee, 12, `seeds from ${seed}`)
  }
})

t.test('the same seed gives the same point, another one another', async t => {
  t.same(point(4, 4000), point(4, 4000))
  t.not(point(4, 4000).ttft_ms.p90, point(4, 4000, 2).ttft_ms.p90)
})

t.test('a point whose interval straddles the percentile goes on, five times as far at most', async t => {
  const slo = (ttftMs: number): Slo => ({ ...SLO, clauses: { kind: 'stream', ttftMs, tpotMs: 40 } })
  const clear = virtualPoint(PROFILE, users, 4, slo(2000), { seed: 1, requests: 4000 })
  t.match(clear, { seeds: 1, point: { decided: true, requests: 4000 } })
  const edge = virtualPoint(PROFILE, users, 4, slo(point(4).ttft_ms.p90 ?? 0), { seed: 1, requests: 4000 })
  t.ok(edge.seeds > 1 && edge.seeds <= 5, `${edge.seeds} seeds`)
})

t.test('what a user asks depends on the seed alone, not on who else asks or when', async t => {
  const alone = users(7)
  const first = Array.from({ length: 5 }, () => alone(2))
  const crowd = users(7)
  const mixed: Lengths[] = []
  for (let i = 0; i < 5; i++) {
    crowd(0)
    mixed.push(crowd(2))
    crowd(9)
  }
  t.same(mixed, first)
  t.notSame(users(8)(2), first[0])
  t.notSame(users(7)(3), first[0])
})

t.test('a lognormal goes through both percentiles and is clipped far out', async t => {
  const spec = lognormalThrough({ p50: 1020, p90: 2734 }, 16)
  t.same(percentilesOf(spec), { p50: 1020, p90: 2734 })
  const rng = seededRng(1)
  const drawn = Array.from({ length: 20_000 }, () => drawLength(spec, rng)).sort((a, b) => a - b)
  t.ok(Math.abs((drawn[9999] ?? 0) / 1020 - 1) < 0.03, `median ${drawn[9999]}`)
  t.ok(Math.abs((drawn[17_999] ?? 0) / 2734 - 1) < 0.03, `p90 ${drawn[17_999]}`)
  t.ok((drawn.at(-1) ?? 0) <= spec.max && spec.max < 12_000, `at most ${spec.max}`)
  t.same(lognormalThrough({ p50: 100, p90: 100 }, 16), { median: 100, sigma: 0, min: 16, max: 100 })
})

t.test('a cached share of the prompts costs no prefill, and a trace may bring its own', async t => {
  const mix = {
    input: lognormalThrough({ p50: 4000, p90: 8000 }, 16),
    output: lognormalThrough({ p50: 50, p90: 90 }, 2),
  }
  const run = (hit: number): number => {
    const loop = {
      profile: PROFILE,
      users: drawnUsers(mix, hit, 1),
      concurrency: 4,
      requests: 500,
      warmup: 50,
    }
    const ttft = runClosedLoop(loop).outcomes.map(outcome => outcome.ttftMs)
    return ttft.reduce((sum, ms) => sum + ms, 0) / ttft.length
  }
  const [none, most] = [run(0), run(0.9)]
  t.ok(most < none / 3, `mean TTFT ${most.toFixed(0)} ms with 90 % cached, ${none.toFixed(0)} ms without`)
  const row = { inputTokens: 2048, outputTokens: 20, prefix: { blockTokens: 512, ids: [7, 8, 9, 10] } }
  const loop = { profile: PROFILE, users: rowUsers([row], 1), concurrency: 1, requests: 20, warmup: 1 }
  const cached = runClosedLoop(loop).outcomes[0]?.ttftMs ?? 0
  const fresh =
    runClosedLoop({ ...loop, users: rowUsers([{ ...row, prefix: undefined }], 1) }).outcomes[0]?.ttftMs ?? 0
  t.ok(
    cached < fresh / 2,
    `${cached.toFixed(0)} ms for the same prompt again, ${fresh.toFixed(0)} ms for another`,
  )
})

t.test('every engine of the data can be swept by its name', async t => {
  for (const [name, gpus] of [
    ['b300class_qwen3-32b_bf16_tp8', 8],
    ['h100-80gb_llama2-70b_fp16_tp4', 4],
    ['a100-80gb_bloom-176b_fp16_tp8', 8],
    ['a100_sxm_llama3-8b_bf16_tp1_composed', 1],
    ['worked-example-h100-8b', 1],
  ] as const) {
    const profile = profileNamed(name)
    t.match(profile, { name, gpus })
    const mix = {
      input: lognormalThrough({ p50: 500, p90: 900 }, 16),
      output: lognormalThrough({ p50: 50, p90: 90 }, 2),
    }
    const got = virtualPoint(profile, seed => drawnUsers(mix, 0, seed), 2, SLO, { seed: 1, requests: 200 })
    t.ok(got.point.output_tok_s > 10, `${name}: ${got.point.output_tok_s} tok/s`)
  }
  t.equal(presetOf('llama3-8b'), undefined, 'most bring no workload of their own')
})
