import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { showProblems } from '../../src/config/error.js'
import { load } from '../../src/config/load.js'
import { point, SWEEP } from '../fixtures/sweep.js'

const CONFIG = `classes:
  chat:
    slo:
      target: { percentile: 90, ttft: 500ms, tpot: 40ms, mode: clause }
    workload:
      model: small
      input_tokens: { p50: 1000, p90: 2700 }
      output_tokens: { p50: 130, p90: 420 }
    pools: [main]
pools:
  main:
    model: small
    replicas: [http://10.0.0.1:8000]
    sweep: sweeps/main.json
`

/** Loads the config beside a sweep file of this text. */
function loaded(t: Test, sweep: string | object | undefined, config = CONFIG) {
  const dir = t.testdir({ 'weir.yaml': config })
  if (sweep !== undefined) {
    mkdirSync(join(dir, 'sweeps'))
    writeFileSync(join(dir, 'sweeps/main.json'), typeof sweep === 'string' ? sweep : JSON.stringify(sweep))
  }
  const result = load(join(dir, 'weir.yaml'), {})
  const says =
    result.ok === undefined ? showProblems(result.problems) : showProblems(result.warnings, 'warning')
  return { result, says: says.replaceAll(dir, ''), dir }
}

t.test('a pool’s sweep is read with the config, and its knee is the budget', async t => {
  const { result, says, dir } = loaded(t, SWEEP)
  t.equal(says, '', 'no warning')
  t.same(result.ok?.sweeps.get('main'), {
    gpus: 1,
    workload: {
      model: 'small',
      precision: undefined,
      inputTokens: { p50: 1000, p90: 2700 },
      outputTokens: { p50: 130, p90: 420 },
      cacheHit: 0,
    },
    knee: SWEEP.points[1],
    budgetTokPerSecPerGpu: 456,
    steady: { low: 8, high: 10 },
    scaleOutAt: 319.2,
  })
  if (result.ok !== undefined)
    t.same(
      result.files,
      ['weir.yaml', 'sweeps/main.json'].map(name => join(dir, name)),
    )
  t.equal(loaded(t, undefined, CONFIG.replace(/ +sweep.*\n/, '')).result.ok?.sweeps.size, 0)
})

t.test('what is no sweep is refused with the reason', async t => {
  const { points, ...rest } = SWEEP
  const { output_tok_s: _, ...torn } = point(12, 5000, 2.4)
  const cases: [sweep: string | object | undefined, why: RegExp][] = [
    [undefined, /got {6}"sweeps\/main\.json": no such file\n/],
    ['{"weir_sweep": 1,', /main\.json": not JSON\n/],
    ['{"points": []}', /main\.json": no sweep of Weir’s: it has no weir_sweep\n/],
    ['[1, 2]', /main\.json": no sweep of Weir’s/],
    [{ ...SWEEP, weir_sweep: 2 }, /main\.json": a sweep of format 2; this Weir reads 1\n/],
    [rest, /main\.json": damaged: it must have required property 'points'\n/],
    [
      { ...SWEEP, points: [points[0], torn] },
      /damaged: points\[1\] must have required property 'output_tok_s'\n/,
    ],
    [{ ...SWEEP, gpus: 'two' }, /damaged: gpus must be number\n/],
  ]
  for (const [sweep, why] of cases) {
    const { says } = loaded(t, sweep)
    t.match(says, why)
    t.match(says, /\npools\.main\.sweep {3}\(line 14\)\n/)
    t.match(
      says,
      /allowed {2}a file that weir sweep wrote, relative to this one\n {2}fix {6}write it with weir sweep --out /,
    )
  }
})

t.test('a row that breaks Little’s law is an error', async t => {
  const { says } = loaded(t, { ...SWEEP, points: [point(8, 4000, 2), point(12, 2000, 2.4)] })
  t.match(says, /got {6}a row of concurrency 12 with 2\.4 requests\/s of 2 s: 4\.8 in flight\n/)
  t.match(says, /allowed {2}rows in which rate x time is the concurrency, within 15 % \(Little’s law\)\n/)
  t.equal(
    loaded(t, { ...SWEEP, points: [point(8, 4500, 2), point(12, 5000, 2.4)] }).says,
    '',
    '12.5 % is not',
  )
})

t.test('a sweep of another workload or promise is a warning that says both', async t => {
  const workload = {
    ...SWEEP.workload,
    input_tokens: { p50: 500, p90: 2700 },
    model: 'large',
    cache_hit: 0.3,
  }
  const { result, says } = loaded(t, { ...SWEEP, workload })
  t.match(says, /got {6}a sweep with model large, input_tokens 500\/2700, cache_hit 0\.3\n/)
  t.match(says, /allowed {2}anything; but class chat has model small, 1000\/2700, cache_hit 0\n/)
  t.equal(result.ok?.sweeps.size, 1, 'it is used all the same')
  const close = { ...SWEEP.workload, input_tokens: { p50: 900, p90: 3000 } }
  t.equal(loaded(t, { ...SWEEP, workload: close }).says, '', 'a tenth more or less is the same traffic')
  const slo = { ...SWEEP.slo, mode: 'joint', ttft_ms: 300 }
  t.match(
    loaded(t, { ...SWEEP, slo }).says,
    /a sweep with p90 ttft 300ms tpot 40ms joint\n.*class chat has p90 ttft 500ms tpot 40ms clause\n/,
  )
})

t.test('a sweep is held against its own class, else against those at home in the pool', async t => {
  const agent = `  agent:
    slo: { target: { percentile: 95, deadline: 60s } }
    workload:
      model: small
      input_tokens: { p50: 8000, p90: 16000 }
      output_tokens: { p50: 210, p90: 790 }
    pools: [main]
`
  const both = `${CONFIG.replace('pools:\n  main', `${agent}pools:\n  main`)}routes:\n  - class: chat\n`
  const { says } = loaded(t, SWEEP, both)
  t.notMatch(says, 'a sweep with', 'that agents are otherwise is no news')
  t.match(loaded(t, { ...SWEEP, class: 'agent' }, both).says, /anything; but class agent has 8000\/16000/)
  t.notMatch(loaded(t, { ...SWEEP, class: null }, both).says, 'a sweep with', 'one of the two is it')
})

t.test('a sweep without a knee, or one that was interrupted, is a warning', async t => {
  const none = { knee: null, budget_tok_s_per_gpu: null, steady: null, scale_out_at: null }
  const { result, says } = loaded(t, { ...SWEEP, ...none, conclusion: 'the promise is never kept: …' })
  t.match(
    says,
    /got {6}"main", which found no knee: the promise is never kept: …\n.*but the pool has no budget\n/,
  )
  t.equal(result.ok?.sweeps.size, 0)
  t.match(loaded(t, { ...SWEEP, complete: false }).says, /got {6}"main", which was interrupted\n/)
})
