import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Registry } from 'prom-client'
import t from 'tap'
import { watchEventLoop } from '../../src/metrics/eventloop.js'
import type { Labelled } from '../../src/metrics/labels.js'
import { METRICS } from '../../src/metrics/names.js'
import { Recorder } from '../../src/metrics/record.js'
import type { Decision } from '../../src/policy/decision.js'
import type { PolicyState } from '../../src/policy/policy.js'
import type { RequestFacts, Ticket } from '../../src/request.js'
import type { RouteSpec } from '../../src/routing/route.js'
import { SloBook } from '../../src/slo/book.js'
import type { Reading } from '../../src/slo/reading.js'
import type { Clauses, Slo, TrafficClass } from '../../src/slo/slo.js'
import type { ClauseName, Judgement, Verdict } from '../../src/slo/verdict.js'
import { seededRng } from '../../src/time.js'
import { edgesOf, quantile, samples, sum } from './scraped.js'

const CHAT = 0
const AGENT = 1
const MAIN = 0
const SPARE = 1

const slo = (percentile: number, clauses: Clauses): Slo => ({
  percentile,
  mode: 'joint',
  windowMs: 604_800_000,
  clauses,
})
const stream = (ttftMs: number, tpotMs: number): Clauses => ({ kind: 'stream', ttftMs, tpotMs })
const deadline = (deadlineMs: number): Clauses => ({ kind: 'deadline', deadlineMs, minTokensPerSecond: 0 })

const cls = (id: number, name: string, target: Slo, guard: Slo): TrafficClass => ({
  id,
  name,
  target,
  guard,
  workload: {
    model: 'llama-3.1-8b',
    precision: undefined,
    inputTokens: { p50: 1000, p90: 2700 },
    outputTokens: { p50: 130, p90: 420 },
    cacheHit: 0,
  },
  priority: id,
  pools: [MAIN, SPARE],
  queue: undefined,
  ownBounds: undefined,
})

const route = (model: string | undefined, rewriteModel: string | undefined): RouteSpec => ({
  when: {
    path: undefined,
    header: [],
    model,
    key: undefined,
    stream: undefined,
    tools: undefined,
    maxTokens: undefined,
  },
  cls: CHAT,
  rewriteModel,
})

const REPLICAS = [
  { id: 0, pool: MAIN, name: '10.0.0.1:8000' },
  { id: 1, pool: SPARE, name: '10.0.0.9:8000' },
]
const SPEC: Labelled = {
  classes: [
    // 815 ms, 33.3 ms and 42 s are on no ladder.
    cls(CHAT, 'chat', slo(90, stream(815, 33.3)), slo(99, stream(2000, 100))),
    cls(AGENT, 'agent', slo(95, deadline(42_000)), slo(99, deadline(3_600_000))),
  ],
  pools: [
    {
      id: MAIN,
      name: 'main',
      model: 'llama-3.1-8b',
      replicas: REPLICAS.slice(0, 1),
      maxInFlight: 32,
      gpusPerReplica: 1,
    },
    {
      id: SPARE,
      name: 'spare',
      model: undefined,
      replicas: REPLICAS.slice(1),
      maxInFlight: 32,
      gpusPerReplica: 1,
    },
  ],
  replicas: REPLICAS,
  routes: [route('exact-name', undefined), route('*-agent', 'rewritten'), route(undefined, undefined)],
}
const AT_REST: PolicyState = {
  replicas: [
    { id: 0, pool: MAIN, up: true, inFlight: 0, outstandingPrefillTokens: 0 },
    { id: 1, pool: SPARE, up: true, inFlight: 0, outstandingPrefillTokens: 0 },
  ],
  queues: [{ cls: AGENT, depth: 0 }],
  open: 0,
  totals: [],
}
const BUILD = { version: '1.2.3', node: 'v20.19.0' }

const recorder = (state: () => PolicyState = () => AT_REST, spec = SPEC, book?: () => Reading): Recorder =>
  new Recorder(new Registry(), spec, BUILD, state, book)

const judgement = (verdict: Verdict, more: Partial<Judgement> = {}): Judgement => ({
  verdict,
  cls: CHAT,
  pool: MAIN,
  offered: !['client_error', 'client_left', 'unmeasured'].includes(verdict),
  clauses: [],
  ttftMs: undefined,
  upstreamTtftMs: undefined,
  queueMs: undefined,
  tpotMs: undefined,
  e2eMs: undefined,
  longestGapMs: undefined,
  outputTokens: undefined,
  inputTokens: undefined,
  estimated: false,
  ...more,
})

const ticket = (model: string, of: number | undefined = CHAT): Ticket => ({
  id: 1,
  cls: of,
  model,
  route: 0,
  facts: {} as RequestFacts,
})

t.test('verdicts sum to arrivals, and each request moves its own counter once', async t => {
  const metrics = recorder()
  const clause = (name: ClauseName, met: boolean) =>
    ({ cls: CHAT, pool: MAIN, slo: 'target', clause: name, met }) as const
  const repeat = (times: number, one: () => void) => {
    for (let i = 0; i < times; i++) one()
  }
  repeat(60, () => metrics.judged(judgement('good', { clauses: [clause('joint', true)] }), 'llama-3.1-8b'))
  repeat(10, () =>
    metrics.judged(judgement('ttft_miss', { clauses: [clause('joint', false)] }), 'llama-3.1-8b'),
  )
  repeat(10, () =>
    metrics.judged(judgement('upstream_error', { clauses: [clause('joint', false)] }), 'llama-3.1-8b'),
  )
  repeat(5, () =>
    metrics.judged(judgement('truncated', { clauses: [clause('joint', false)] }), 'llama-3.1-8b'),
  )
  repeat(5, () =>
    metrics.news({
      kind: 'shed',
      ticket: ticket('llama-3.1-8b'),
      reason: 'no_headroom',
      retryAfterMs: 2000,
      judgement: judgement('shed', {
        pool: undefined,
        clauses: [{ ...clause('joint', false), pool: undefined }],
      }),
    }),
  )
  repeat(5, () => metrics.judged(judgement('client_left'), 'llama-3.1-8b'))
  repeat(5, () =>
    metrics.judged(judgement('ttft_miss', { clauses: [clause('joint', false)] }), 'llama-3.1-8b'),
  )
  const text = await metrics.text()
  const requests = (labels: Record<string, string>) => sum(text, 'weir_requests_total', labels) ?? 0
  t.equal(requests({}), 100)
  t.equal(requests({ verdict: 'good' }), 60)
  t.equal(requests({ verdict: 'ttft_miss' }), 15)
  t.equal(requests({ verdict: 'shed', pool: 'none' }), 5)
  t.equal(sum(text, 'weir_shed_total', { class: 'chat', reason: 'no_headroom' }), 5)
  const offered = requests({}) - requests({ verdict: 'client_left' })
  t.equal(offered, 95, 'good over offered is 60/95')
  t.equal(offered - requests({ verdict: 'shed' }), 90, 'attainment of the admitted is 60/90')
  t.equal(sum(text, 'weir_clause_total', { slo: 'target', clause: 'joint', result: 'met' }), 60)
  t.equal(sum(text, 'weir_clause_total', { slo: 'target', clause: 'joint', result: 'missed' }), 35)
  t.equal(sum(text, 'weir_clause_total', { pool: 'none', result: 'missed' }), 5)
})

t.test('a request that ended before the policy saw it is one verdict, without a class', async t => {
  const metrics = recorder()
  metrics.early('client_error')
  metrics.early('shed')
  metrics.news({
    kind: 'refuse',
    ticket: ticket('no-such-model'),
    reason: 'unknown_model',
    judgement: judgement('client_error', { pool: undefined }),
  })
  const requests = samples(await metrics.text()).filter(({ name }) => name === 'weir_requests_total')
  const none = { pool: 'none', verdict: 'client_error' }
  t.same(
    requests.map(({ labels, value }) => ({ ...labels, value })),
    [
      { class: 'none', ...none, model: 'none', value: 1 },
      { class: 'none', ...none, verdict: 'shed', model: 'none', value: 1 },
      { class: 'chat', ...none, model: 'other', value: 1 },
    ],
  )
})

t.test('a clause that was decided early is counted from the news', async t => {
  const metrics = recorder()
  metrics.news({
    kind: 'clause',
    result: { cls: CHAT, pool: undefined, slo: 'guard', clause: 'ttft', met: false },
  })
  const text = await metrics.text()
  t.equal(
    sum(text, 'weir_clause_total', {
      class: 'chat',
      pool: 'none',
      slo: 'guard',
      clause: 'ttft',
      result: 'missed',
    }),
    1,
  )
  t.equal(sum(text, 'weir_requests_total'), undefined, 'the request itself has not ended')
})

t.test('times are in seconds, and a time that is unknown is no sample', async t => {
  const metrics = recorder()
  metrics.judged(
    judgement('good', {
      ttftMs: 250,
      upstreamTtftMs: 240,
      queueMs: 0,
      tpotMs: 20,
      e2eMs: 2_500,
      longestGapMs: 80,
    }),
    'llama-3.1-8b',
  )
  metrics.judged(judgement('unmeasured', { queueMs: 3, e2eMs: 500 }), 'llama-3.1-8b')
  metrics.overhead(0.4)
  metrics.eventLoopDelay(12)
  const text = await metrics.text()
  const histogram = (name: string) => [sum(text, `${name}_sum`), sum(text, `${name}_count`)]
  t.same(histogram('weir_ttft_seconds'), [0.25, 1])
  t.same(histogram('weir_upstream_ttft_seconds'), [0.24, 1])
  t.same(histogram('weir_queue_seconds'), [0.003, 2], 'a wait of 0 is a sample')
  t.same(histogram('weir_tpot_seconds'), [0.02, 1])
  t.same(histogram('weir_e2e_seconds'), [3, 2])
  t.same(histogram('weir_longest_gap_seconds'), [0.08, 1])
  t.same(histogram('weir_relay_overhead_seconds'), [0.0004, 1])
  t.same(histogram('weir_event_loop_delay_seconds'), [0.012, 1])
  t.notMatch(text, /nan/i)
})

t.test('tokens count by kind: good output apart, and an unknown number not at all', async t => {
  const metrics = recorder()
  metrics.judged(judgement('good', { inputTokens: 1000, outputTokens: 100 }), 'llama-3.1-8b')
  metrics.judged(
    judgement('tpot_miss', { inputTokens: 500, outputTokens: 40, estimated: true }),
    'llama-3.1-8b',
  )
  metrics.judged(judgement('upstream_error', { inputTokens: 7, estimated: true }), 'llama-3.1-8b')
  metrics.judged(judgement('shed', { pool: undefined }), 'llama-3.1-8b')
  metrics.unparsed(SPARE, 3)
  const text = await metrics.text()
  t.equal(sum(text, 'weir_tokens_total', { class: 'chat', pool: 'main', kind: 'input' }), 1507)
  t.equal(sum(text, 'weir_tokens_total', { kind: 'output' }), 140)
  t.equal(sum(text, 'weir_tokens_total', { kind: 'output_good' }), 100)
  t.equal(sum(text, 'weir_tokens_total', { pool: 'none' }), undefined)
  t.equal(
    sum(text, 'weir_usage_missing_total', { pool: 'main' }),
    1,
    'an answer without tokens lacks no usage',
  )
  t.equal(sum(text, 'weir_unparsed_events_total', { pool: 'spare' }), 3)
  t.equal(sum(text, 'weir_unparsed_events_total', { pool: 'main' }), 0)
})

t.test('spills count from home to where they went, reroutes at the pool that failed', async t => {
  const metrics = recorder()
  const dispatch = (why: 'home' | 'spill' | 'queued' | 'reroute', model: string, pool = SPARE): Decision => ({
    kind: 'dispatch',
    ticket: ticket(model),
    pool,
    replica: pool,
    why,
  })
  metrics.news(dispatch('spill', 'llama-3.1-8b'))
  metrics.news(dispatch('home', 'llama-3.1-8b', MAIN))
  metrics.news(dispatch('queued', 'llama-3.1-8b'))
  metrics.news(dispatch('reroute', 'llama-3.1-8b'))
  metrics.news({ kind: 'ejected', replica: 0, retryAt: 5000, why: 'connection refused' })
  metrics.rerouted(MAIN, 'refused')
  const text = await metrics.text()
  t.equal(sum(text, 'weir_spill_total'), 1)
  t.equal(sum(text, 'weir_spill_total', { class: 'chat', from: 'main', to: 'spare' }), 1)
  t.equal(sum(text, 'weir_reroute_total', { pool: 'main', reason: 'refused' }), 1)
})

t.test('gauges show the state of the policy at the scrape, not before', async t => {
  let state = AT_REST
  const metrics = recorder(() => state)
  t.equal(sum(await metrics.text(), 'weir_in_flight'), 0)
  state = {
    replicas: [
      { id: 0, pool: MAIN, up: true, inFlight: 7, outstandingPrefillTokens: 4100 },
      { id: 1, pool: SPARE, up: false, inFlight: 2, outstandingPrefillTokens: 0 },
    ],
    queues: [{ cls: AGENT, depth: 12 }],
    groups: [{ cls: CHAT, group: 'q1', share: 0.9 }],
    open: 21,
    totals: [],
  }
  const text = await metrics.text()
  const main = { pool: 'main', replica: '10.0.0.1:8000' }
  const spare = { pool: 'spare', replica: '10.0.0.9:8000' }
  t.equal(sum(text, 'weir_in_flight', main), 7)
  t.equal(sum(text, 'weir_in_flight', spare), 2)
  t.equal(sum(text, 'weir_replica_up', main), 1)
  t.equal(sum(text, 'weir_replica_up', spare), 0)
  t.equal(sum(text, 'weir_replica_outstanding_prefill_tokens', main), 4100)
  t.equal(sum(text, 'weir_queue_depth', { class: 'agent' }), 12)
  t.equal(sum(text, 'weir_group_service_ratio', { class: 'chat', group: 'q1' }), 0.9)
  t.equal(sum(text, 'weir_queue_depth', { class: 'chat' }), undefined, 'chat does not wait in Weir')
})

t.test(
  'gauges of the promises are read from the book at the scrape, and what is unknown is no sample',
  async t => {
    const book = new SloBook(SPEC, 0)
    let [now, state] = [0, AT_REST]
    const metrics = recorder(
      () => state,
      SPEC,
      () => book.reading(now),
    )
    const clauses = (met: boolean) =>
      (['ttft', 'tpot', 'joint'] as const).flatMap(clause =>
        (['target', 'guard'] as const).map(slo => ({
          ...{ cls: CHAT, pool: MAIN, slo, clause },
          met: met || slo === 'guard' || clause === 'ttft',
        })),
      )
    const names = [
      'weir_goodput_requests_per_second',
      'weir_goodput_tokens_per_second_per_gpu',
      'weir_attainment_ratio',
      'weir_burn_rate',
      'weir_error_budget_remaining_ratio',
      'weir_workload_drift_ratio',
    ]
    const figures = (text: string) =>
      samples(text)
        .filter(({ name }) => names.includes(name))
        .map(({ name, labels, value }) => `${name.slice(5)} ${Object.values(labels).join(' ')} ${value}`)
    t.same(figures(await metrics.text()), [], 'nothing is known at the start')

    now = 30_000
    for (let i = 0; i < 120; i++) {
      const met = i % 4 > 0
      const tokens = { inputTokens: 5400, outputTokens: 420 }
      book.judged(
        judgement(met ? 'good' : 'tpot_miss', { ...tokens, clauses: clauses(met) }),
        'llama-3.1-8b',
        now,
      )
    }
    const early = figures(await metrics.text())
    t.ok(early.includes('attainment_ratio chat target joint 10s 0.75'))
    t.same(
      early.filter(line => !/ 10s /.test(line)),
      [],
      'no other window has been seen',
    )

    now = 60_000
    state = { ...AT_REST, replicas: AT_REST.replicas.map(one => ({ ...one, up: one.pool === MAIN })) }
    const text = await metrics.text()
    const minute = figures(text)
    for (const line of [
      'goodput_requests_per_second chat main 1.5',
      'goodput_requests_per_second agent spare 0',
      'goodput_tokens_per_second_per_gpu chat main 630',
      'attainment_ratio chat target tpot 60s 0.75',
      'attainment_ratio chat target ttft 60s 1',
      'attainment_ratio chat guard joint 60s 1',
      'burn_rate chat target 60s 2.5',
      'burn_rate chat guard 60s 0',
      'workload_drift_ratio chat model 0',
    ]) {
      t.ok(minute.includes(line), line)
    }
    t.equal(Math.round(sum(text, 'weir_workload_drift_ratio', { dimension: 'input_tokens' })! * 10), 10)
    for (const absent of [
      /5m/,
      /error_budget/,
      /per_gpu \w+ spare/,
      /(attainment|burn|drift)\w+ agent/,
      /cache_hit/,
    ]) {
      t.same(
        minute.filter(line => absent.test(line)),
        [],
      )
    }
    t.notMatch(text, /NaN|Infinity/)

    for (now = 120_000; now <= 604_800_000; now += 120_000) {
      book.judged(judgement('tpot_miss', { clauses: clauses(false) }), 'llama-3.1-8b', now)
    }
    const week = await metrics.text()
    t.equal(sum(week, 'weir_burn_rate', { class: 'chat', slo: 'target', window: '7d' })! > 9, true)
    t.ok(sum(week, 'weir_error_budget_remaining_ratio', { class: 'chat', slo: 'target' })! < -8)
    t.equal(sum(week, 'weir_error_budget_remaining_ratio', { class: 'chat', slo: 'guard' }), 1)
    t.ok(figures(week).length < 100, `${figures(week).length} series`)
  },
)

t.test('a scrape takes nothing away from the next one', async t => {
  const metrics = recorder()
  metrics.judged(judgement('good', { ttftMs: 100 }), 'llama-3.1-8b')
  metrics.eventLoopDelay(3)
  t.equal(await metrics.text(), await metrics.text())
})

t.test(
  'before the first request the build, the reloads and the counters that ratios need are there',
  async t => {
    const text = await recorder().text()
    t.equal(sum(text, 'weir_build_info', BUILD), 1)
    t.equal(sum(text, 'weir_config_reloads_total'), 0)
    t.equal(sum(text, 'weir_shed_total', { class: 'agent', reason: 'quota' }), 0)
    t.equal(sum(text, 'weir_usage_missing_total', { pool: 'spare' }), 0)
    t.equal(
      sum(text, 'weir_clause_total', { class: 'chat', slo: 'guard', clause: 'joint', result: 'met' }),
      0,
    )
    t.equal(
      sum(text, 'weir_clause_total', { class: 'agent', slo: 'target', clause: 'deadline', result: 'missed' }),
      0,
    )
    t.equal(sum(text, 'weir_clause_total', { class: 'agent', clause: 'ttft' }), undefined)
    t.equal(sum(text, 'weir_ttft_seconds_count'), undefined)
  },
)

t.test(
  'made-up models share one label, and names from the config keep theirs even when the junk came first',
  async t => {
    const metrics = recorder()
    const rng = seededRng(39)
    metrics.judged(judgement('client_error', { pool: undefined }), 'm-first')
    const before = samples(await metrics.text()).length
    for (let i = 0; i < 5000; i++) {
      const junk = `m-${rng.next().toString(36)}"}\n`
      metrics.judged(judgement('client_error', { pool: undefined }), junk)
      metrics.news({
        kind: 'refuse',
        ticket: ticket(junk),
        reason: 'unknown_model',
        judgement: judgement('client_error', { pool: undefined }),
      })
      metrics.early('client_error')
    }
    t.equal(
      samples(await metrics.text()).length,
      before + 1,
      'the one new series is of those that never had a class',
    )
    for (const model of ['llama-3.1-8b', 'exact-name', 'rewritten', '*-agent']) {
      metrics.judged(judgement('good'), model)
    }
    const text = await metrics.text()
    t.equal(sum(text, 'weir_requests_total', { model: 'other', verdict: 'client_error' }), 10_001)
    for (const model of ['llama-3.1-8b', 'exact-name', 'rewritten']) {
      t.equal(sum(text, 'weir_requests_total', { model }), 1)
    }
    t.equal(sum(text, 'weir_requests_total', { model: '*-agent' }), undefined, 'a pattern is no name')
  },
)

t.test('an id that the config does not have is an error, not a new series', async t => {
  const metrics = recorder()
  t.throws(() => metrics.judged(judgement('good', { pool: 9 }), 'llama-3.1-8b'), {
    message: 'the config has no class 0 or no pool 9',
  })
  const broken = recorder(() => ({ ...AT_REST, replicas: [{ ...AT_REST.replicas[0], id: 7 }] as never }))
  await t.rejects(broken.text(), { message: 'the config has no replica 7' })
})

t.test('every promised bound is an edge, and edges are short decimals at most 1.3 apart', async t => {
  const metrics = recorder()
  metrics.judged(judgement('good', { ttftMs: 1, upstreamTtftMs: 1, tpotMs: 1, e2eMs: 1 }), 'llama-3.1-8b')
  const text = await metrics.text()
  const has = (name: string, bounds: string[]) => {
    const edges = edgesOf(text, name)
    for (const bound of bounds) t.ok(edges.includes(bound), `${name} has the edge ${bound}`)
  }
  has('weir_ttft_seconds', ['0.815', '2', '600'])
  has('weir_upstream_ttft_seconds', ['0.815', '2'])
  has('weir_tpot_seconds', ['0.0333', '0.1', '5'])
  has('weir_e2e_seconds', ['42', '1800', '3600'])
  t.notOk(edgesOf(text, 'weir_ttft_seconds').includes('0.0333'), 'a TPOT bound is no edge of TTFT')
  for (const [name, from, to] of [
    ['weir_ttft_seconds', 0.001, 600],
    ['weir_upstream_ttft_seconds', 0.001, 600],
    ['weir_tpot_seconds', 0.001, 5],
    ['weir_e2e_seconds', 0.01, 1800],
  ] as const) {
    const edges = edgesOf(text, name)
    t.equal(Number(edges[0]), from)
    const steps = edges
      .slice(1)
      .map((edge, i) => ({ edge: Number(edge), by: Number(edge) / Number(edges[i]) }))
    t.same(
      steps.filter(({ edge, by }) => by <= 1 || (edge <= to && by > 1.3)),
      [],
      `${name} rises in steps of at most 1.3`,
    )
    t.same(
      edges.filter(edge => edge.length > 7),
      [],
      `${name} has no edge with a tail of digits`,
    )
    t.ok(edges.length <= 64, `${name} has ${edges.length} edges`)
  }
})

t.test(
  'p50, p95 and p99 read from the buckets are within 15 % of the truth over the whole range',
  async t => {
    const rng = seededRng(40)
    const normal = () => Math.sqrt(-2 * Math.log(1 - rng.next())) * Math.cos(2 * Math.PI * rng.next())
    const between = (from: number, to: number) => from * (to / from) ** rng.next()
    const field = {
      weir_ttft_seconds: 'ttftMs',
      weir_tpot_seconds: 'tpotMs',
      weir_e2e_seconds: 'e2eMs',
    } as const
    const range = {
      weir_ttft_seconds: [20, 180_000],
      weir_tpot_seconds: [2, 2_000],
      weir_e2e_seconds: [200, 1_200_000],
    } as const
    for (const name of ['weir_ttft_seconds', 'weir_tpot_seconds', 'weir_e2e_seconds'] as const) {
      const [from, to] = range[name]
      const wide = () => between(from, to)
      // Narrow ones are the hard case: a whole distribution inside one or two buckets.
      const shapes: (() => number)[] = [wide]
      for (let mid = from; mid <= to; mid *= 1.9) {
        for (const sigma of [0.12, 0.5]) {
          const centre = mid
          shapes.push(() => Math.min(to, centre * Math.exp(sigma * normal())))
        }
      }
      let worst = { off: 0, what: '' }
      for (const shape of shapes) {
        const metrics = recorder()
        const values = Array.from({ length: 2000 }, shape)
        for (const value of values)
          metrics.judged(judgement('good', { [field[name]]: value }), 'llama-3.1-8b')
        values.sort((a, b) => a - b)
        const text = await metrics.text()
        for (const share of [0.5, 0.95, 0.99]) {
          const truth = (values[Math.ceil(share * values.length) - 1] ?? 0) / 1000
          const off = Math.abs(quantile(text, name, share) / truth - 1)
          if (off > worst.off) worst = { off, what: `p${share * 100} of ${truth} s` }
        }
      }
      t.ok(worst.off <= 0.15, `${name}: off by ${(worst.off * 100).toFixed(1)} % at most, at ${worst.what}`)
    }
  },
)

t.test('a stall of the event loop shows as one long delay, and the watch ends when told', async t => {
  const delays: number[] = []
  const clock = { now: () => performance.now() }
  const stop = watchEventLoop(clock, delay => delays.push(delay))
  await sleep(60)
  const until = clock.now() + 150
  while (clock.now() < until) {}
  await sleep(60)
  stop()
  t.ok(Math.max(...delays) >= 100, `the longest delay was ${Math.max(...delays)} ms`)
  t.ok(Math.min(...delays) >= 0, 'a timer is never early')
  const seen = delays.length
  await sleep(100)
  t.equal(delays.length, seen)
})

t.test('docs/metrics.md has a row for every metric, and no other', async t => {
  const docs = readFileSync(new URL('../../docs/metrics.md', import.meta.url), 'utf8')
  const rows = [...docs.matchAll(/^\| `(weir_\w+)` \| (\w+) \| (.*?) \| (.*) \|$/gm)].map(row =>
    row.slice(1, 5),
  )
  t.same(
    rows,
    Object.values(METRICS).map(({ name, type, labels, help }) => [
      name,
      type,
      labels.map(label => `\`${label}\``).join(', '),
      help,
    ]),
  )
  const scraped = (await recorder().text()).matchAll(/^# HELP (\w+) (.*)\n# TYPE \1 (\w+)$/gm)
  t.same(
    [...scraped].map(([, name, help, type]) => [name, type, help]).sort(),
    rows.map(([name, type, , help]) => [name, type, help]).sort(),
    'and a scrape has them all',
  )
  const promql = [...docs.matchAll(/^```promql\n([\s\S]*?)^```$/gm)].map(block => block[1] ?? '').join('\n')
  const named = [...promql.matchAll(/\bweir_\w+/g)].map(([name]) => name.replace(/_(bucket|sum|count)$/, ''))
  const known = new Set<string>(rows.map(([name]) => name ?? ''))
  t.ok(named.length > 0)
  t.same(
    named.filter(name => !known.has(name)),
    [],
    'and its queries ask for metrics that exist',
  )
})

const promtool = spawnSync('promtool', ['--version']).status === 0
const skip =
  promtool || process.env['CI'] === 'true' ? false : 'promtool is not on PATH (Debian package: prometheus)'
t.test('promtool finds nothing wrong with a scrape, nor with the queries of the docs', { skip }, async t => {
  if (!promtool) {
    t.fail('promtool is not on PATH: install the Debian package prometheus')
    return
  }
  const metrics = recorder()
  metrics.judged(judgement('good', { ttftMs: 1, tpotMs: 1, inputTokens: 5, outputTokens: 5 }), 'llama-3.1-8b')
  const checked = spawnSync('promtool', ['check', 'metrics'], {
    input: await metrics.text(),
    encoding: 'utf8',
  })
  t.equal(`${checked.stdout}${checked.stderr}`, '')
  t.equal(checked.status, 0)
  const docs = readFileSync(new URL('../../docs/metrics.md', import.meta.url), 'utf8')
  const queries = [...docs.matchAll(/^```promql\n(.*)\n```$/gm)].map(([, query]) => query)
  const rules = queries.map((expr, i) => ({ record: `docs:query${i}`, expr }))
  const dir = t.testdir({ 'rules.yml': JSON.stringify({ groups: [{ name: 'docs', rules }] }) })
  const parsed = spawnSync('promtool', ['check', 'rules', `${dir}/rules.yml`], { encoding: 'utf8' })
  t.match(`${parsed.stdout}${parsed.stderr}`, `SUCCESS: ${queries.length} rules found`)
  t.ok(queries.length > 0)
})

t.test(
  'under a new config counters go on, and only a histogram whose edges changed starts again',
  async t => {
    const metrics = recorder()
    metrics.judged(judgement('good', { ttftMs: 100, tpotMs: 10, e2eMs: 900 }), 'llama-3.1-8b')
    const [chatNow, ...others] = SPEC.classes
    const late = { ...chatNow!, target: slo(90, stream(901, 33.3)) }
    metrics.reconfigure({
      ...SPEC,
      classes: [late, ...others, cls(2, 'new', slo(90, stream(901, 33.3)), slo(99, stream(2000, 100)))],
    })
    metrics.judged(judgement('good', { cls: 2, ttftMs: 100, tpotMs: 10, e2eMs: 900 }), 'llama-3.1-8b')
    const text = await metrics.text()
    t.equal(sum(text, 'weir_requests_total', { class: 'chat' }), 1)
    t.equal(sum(text, 'weir_requests_total', { class: 'new' }), 1)
    t.equal(sum(text, 'weir_tpot_seconds_count'), 2, 'its edges are what they were')
    t.equal(sum(text, 'weir_ttft_seconds_count'), 1, 'a bound of TTFT moved')
    t.ok(edgesOf(text, 'weir_ttft_seconds').includes('0.901'))
    t.equal(sum(text, 'weir_config_reloads_total'), 1)
  },
)
