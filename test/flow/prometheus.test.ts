/** The printed rules in a real Prometheus: what pages, what does not, and the page that arrives with the right words. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { showProblems } from '../../src/config/error.js'
import { loadData } from '../../src/config/load.js'
import type { Resolved } from '../../src/config/resolved.js'
import { type Group, prometheusRules } from '../../src/rules/prometheus.js'
import { promisesOf } from '../../src/rules/promised.js'
import { DONE, FIN, ROLE, TOK, USAGE } from '../fixtures/events.js'
import { fastClock } from '../fixtures/fast-clock.js'
import { check, skipWithout, startPrometheus } from '../fixtures/prometheus.js'
import { HDR, type Step, startUpstream } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir } from '../fixtures/weir.js'

const RUNBOOK = 'http://wiki.example/weir'

function rulesFor(data: object, scale = 1): readonly Group[] {
  const loaded = loadData(data, 'test')
  if (loaded.ok === undefined) throw new Error(showProblems(loaded.problems))
  return rulesOf(loaded.ok, scale)
}

const rulesOf = (config: Resolved, scale: number): readonly Group[] =>
  prometheusRules(
    promisesOf(config, ({ percentile }) => `p${percentile}`),
    { runbook: RUNBOOK, scale },
  )

/** Counts of one clause, a minute a step: `[steps, met, missed]` one after another. */
function counts(
  cls: string,
  slo: string,
  clause: string,
  phases: readonly (readonly [number, number, number])[],
) {
  return (['met', 'missed'] as const).map((result, column) => {
    let total = 0
    const values = phases.flatMap(phase =>
      Array.from({ length: phase[0] }, () => (total += phase[column === 0 ? 1 : 2])),
    )
    return {
      series: `weir_clause_total{class="${cls}",pool="main",slo="${slo}",clause="${clause}",result="${result}"}`,
      values: values.join(' '),
    }
  })
}

type Phases = readonly (readonly [minutes: number, ttft: number, tpot: number, joint: number])[]

/** Clause counters of a stream class at 100 requests a minute, of which so many miss each clause. */
const stream = (cls: string, slo: string, phases: Phases, perMinute = 100) =>
  (['ttft', 'tpot', 'joint'] as const).flatMap((clause, column) =>
    counts(
      cls,
      slo,
      clause,
      phases.map(phase => {
        const missed = phase[column + 1] ?? 0
        return [phase[0], perMinute - missed, missed]
      }),
    ),
  )

interface Case {
  readonly name: string
  readonly rules?: readonly Group[]
  /** The group that it is about; the others would only take time. */
  readonly group: string
  readonly input: readonly { readonly series: string; readonly values: string }[]
  /** Minutes of a step of the input, where it is not 1. */
  readonly step?: number
  /** Steps after the start; rules are evaluated at each fifth. */
  readonly at: number
  /** Labels of the alerts that fire then. */
  readonly firing: readonly Readonly<Record<string, string>>[]
  readonly queries?: readonly (readonly [expr: string, value: number])[]
}

const RULES = rulesFor(
  configData(['http://127.0.0.1:1'], { classes: { chat: CHAT, agent: AGENT }, routes: [{ class: 'chat' }] }),
)
const EACH = rulesFor(
  configData(['http://127.0.0.1:1'], {
    classes: { chat: { ...CHAT, slo: { target: { ...CHAT.slo.target, mode: 'clause' } } } },
  }),
)
/** Upstream errors a minute, and sheds for quota, which are nobody's fault but the key's. */
const failures = (perMinute: number) => [
  {
    series: 'weir_requests_total{class="chat",pool="main",model="m",verdict="upstream_error"}',
    values: `0+${perMinute}x2000`,
  },
  {
    series: 'weir_requests_total{class="chat",pool="main",model="m",verdict="shed"}',
    values: '0+50x2000',
  },
  { series: 'weir_shed_total{class="chat",reason="quota"}', values: '0+50x2000' },
]
const guard = (severity: string, window: string, clause: string) => ({
  alertname: 'WeirGuardBurn',
  class: 'chat',
  slo: 'guard',
  severity,
  window,
  clause,
})
const target = (window: string, clause: string) => ({
  alertname: 'WeirTargetBurn',
  class: 'chat',
  slo: 'target',
  severity: 'ticket',
  window,
  clause,
})

const CASES: readonly Case[] = [
  {
    name: 'a burn that must page: half of the pace is gone for 20 minutes',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [
      [360, 0, 0, 0],
      [25, 0, 50, 50],
    ]),
    at: 380,
    firing: [guard('page', '1h', 'tpot')],
  },
  {
    name: 'all four alerts of the guard, when little is good for three days',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [[2200, 90, 90, 100]]),
    step: 2,
    at: 2190,
    firing: [
      ...[guard('page', '1h', 'both'), guard('page', '6h', 'both')],
      ...[guard('ticket', '1d', 'both'), guard('ticket', '3d', 'both')],
    ],
  },
  {
    name: 'a burn of 5 is for working hours: after a day a ticket, and no page',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [[760, 5, 0, 5]]),
    step: 2,
    at: 750,
    firing: [guard('ticket', '1d', 'ttft')],
  },
  {
    name: 'the slow alerts wait until they have seen their window',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [[400, 5, 0, 5]]),
    at: 395,
    firing: [],
    queries: [['weir_slo:bad:ratio3d{slo="guard",class="chat"} > bool 0.03', 1]],
  },
  {
    name: 'one bad minute does not page',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [
      [360, 0, 0, 0],
      [2, 100, 100, 100],
      [8, 0, 0, 0],
    ]),
    at: 365,
    firing: [],
  },
  {
    name: 'what is over does not page, though the hour is still bad',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [
      [360, 0, 0, 0],
      [20, 0, 100, 100],
      [15, 0, 0, 0],
    ]),
    at: 390,
    firing: [],
    queries: [['weir_slo:bad:ratio1h{slo="guard",class="chat"} > bool 0.144', 1]],
  },
  {
    name: 'ten requests in five minutes are no evidence',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [[10, 2, 2, 2]], 2),
    at: 5,
    firing: [],
    queries: [['weir_slo:bad:ratio1h{slo="guard",class="chat"}', 1]],
  },
  {
    name: 'at p90 nothing burns at 14.4: with every request missed it is 10, and 3.36 over 7 days fires',
    group: 'weir-chat-target',
    input: stream('chat', 'target', [[70, 100, 100, 100]]),
    at: 65,
    firing: [target('1h', 'both'), target('6h', 'both')],
    queries: [
      ['weir_slo:bad:ratio1h{slo="target",class="chat"} / 0.1', 10],
      ['weir_slo:budget_remaining:ratio{slo="target",class="chat"}', -9],
    ],
  },
  {
    name: 'sheds and errors are in neither clause: the page says that requests fail',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [[60, 0, 1, 80]]),
    at: 55,
    firing: [guard('page', '1h', 'failed'), guard('page', '6h', 'failed')],
  },
  {
    name: 'while nothing ends, first tokens that are overdue page already',
    group: 'weir-chat-guard',
    input: [
      ...counts('chat', 'guard', 'ttft', [
        [360, 100, 0],
        [20, 0, 100],
      ]),
      ...['tpot', 'joint'].flatMap(clause =>
        counts('chat', 'guard', clause, [
          [360, 100, 0],
          [20, 0, 0],
        ]),
      ),
    ],
    at: 375,
    firing: [guard('page', '1h', 'ttft')],
  },
  {
    name: 'a deadline class has the clause deadline',
    group: 'weir-agent-guard',
    input: counts('agent', 'guard', 'deadline', [
      [360, 100, 0],
      [25, 0, 100],
    ]),
    at: 380,
    firing: [{ ...guard('page', '1h', 'deadline'), class: 'agent' }],
  },
  {
    name: 'where each clause is promised for itself, 10 % of each may miss though 18 % miss one',
    rules: EACH,
    group: 'weir-chat-target',
    input: stream('chat', 'target', [[400, 9, 9, 18]]),
    at: 395,
    firing: [],
    queries: [['weir_slo:bad:ratio6h{slo="target",class="chat"}', 0.09]],
  },
  {
    name: 'and there too failures count, against either clause',
    rules: EACH,
    group: 'weir-chat-target',
    input: [...stream('chat', 'target', [[400, 8, 3, 19]]), ...failures(8)],
    at: 395,
    firing: [target('6h', 'ttft')],
    queries: [['weir_slo:bad:ratio6h{slo="target",class="chat"}', 0.16]],
  },
  {
    name: 'though none counts twice that failed after its bound had passed',
    rules: EACH,
    group: 'weir-chat-target',
    input: [...stream('chat', 'target', [[400, 10, 0, 10]]), ...failures(10)],
    at: 395,
    firing: [],
    queries: [['weir_slo:bad:ratio6h{slo="target",class="chat"}', 0.1]],
  },
  {
    name: 'no traffic at all is no alert',
    group: 'weir-chat-guard',
    input: stream('chat', 'guard', [[400, 0, 0, 0]], 0),
    at: 395,
    firing: [],
  },
  {
    name: 'an ejected replica is a ticket, a pool without any is a page, and little headroom is one',
    group: 'weir-fleet',
    input: [
      { series: 'weir_build_info{job="weir",instance="a"}', values: '1x30' },
      { series: 'weir_replica_up{pool="main",replica="r:1"}', values: '0x30' },
      { series: 'weir_replica_up{pool="main",replica="r:2"}', values: '1x30' },
      { series: 'weir_replica_up{pool="spare",replica="r:3"}', values: '0x30' },
      { series: 'weir_headroom_ratio{pool="main"}', values: '0.05x30' },
      { series: 'weir_headroom_ratio{pool="spare"}', values: '0.5x30' },
    ],
    at: 20,
    firing: [
      { alertname: 'WeirHeadroomGone', severity: 'page', pool: 'main' },
      { alertname: 'WeirPoolDown', severity: 'page', pool: 'spare' },
      { alertname: 'WeirReplicaEjected', severity: 'ticket', pool: 'main', replica: 'r:1' },
      { alertname: 'WeirReplicaEjected', severity: 'ticket', pool: 'spare', replica: 'r:3' },
    ].map(labels => ({ class: 'none', slo: 'none', clause: 'none', ...labels })),
  },
]

const sample = (name: string, labels: Readonly<Record<string, string>>): string =>
  `${name}{${Object.entries({ alertstate: 'firing', ...labels })
    .map(([key, value]) => `${key}="${value}"`)
    .join(',')}}`

t.test('each burn fires what it should', { skip: skipWithout('promtool') }, async t => {
  for (const { name, rules = RULES, group, input, step = 1, at, firing, queries = [] } of CASES) {
    const dir = t.testdir({
      'rules.yml': JSON.stringify({ groups: rules.filter(({ name }) => name === group) }),
      'test.yml': JSON.stringify({
        rule_files: ['rules.yml'],
        evaluation_interval: `${step * 5}m`,
        tests: [
          {
            interval: `${step}m`,
            input_series: input,
            promql_expr_test: [
              {
                expr: 'ALERTS{alertstate="firing"}',
                eval_time: `${at * step}m`,
                exp_samples: firing.map(labels => ({ labels: sample('ALERTS', labels), value: 1 })),
              },
              ...queries.map(([expr, value]) => ({
                expr: `round(sum(${expr}), 0.0001)`,
                eval_time: `${at * step}m`,
                exp_samples: [{ value }],
              })),
            ],
          },
        ],
      }),
    })
    const { code, text } = check('promtool', ['test', 'rules', 'test.yml'], dir)
    t.equal(code, 0, `${name}\n${code === 0 ? '' : text}`)
  }
})

t.test('the page says what, since when and why, in one sentence', { skip: skipWithout('promtool') }, t => {
  const dir = t.testdir({
    'rules.yml': JSON.stringify({
      groups: RULES.filter(({ name }) => ['weir-chat-guard', 'weir-fleet'].includes(name)),
    }),
    'test.yml': JSON.stringify({
      rule_files: ['rules.yml'],
      evaluation_interval: '1m',
      tests: [
        {
          interval: '1m',
          input_series: [
            ...stream('chat', 'guard', [
              [360, 0, 0, 0],
              [20, 0, 50, 50],
            ]),
            { series: 'weir_diagnosis{pool="main",clause="tpot",cause="kv_thrash"}', values: '0x360 0.7x20' },
            { series: 'weir_diagnosis{pool="main",clause="tpot",cause="batch_pressure"}', values: '0x380' },
          ],
          alert_rule_test: [
            {
              alertname: 'WeirGuardBurn',
              eval_time: '379m',
              exp_alerts: [
                {
                  exp_labels: { class: 'chat', slo: 'guard', severity: 'page', window: '1h', clause: 'tpot' },
                  exp_annotations: {
                    summary:
                      'chat: 50% of the requests of 5m and 16.67% of those of 1h missed the guard (p99): tokens ' +
                      'come too slowly. That burns the budget of 30d at more than 14.4 times its pace; a whole one ' +
                      'would last 1d 19h 12m 0s.',
                    since: '1970-01-01 06:00:00 +0000 UTC',
                    shares: 'missed in 5m: joint 50% tpot 50% ttft 0%; shed unknown requests/s',
                    cause: 'kv_thrash in pool main (tpot). ',
                    runbook_url: `${RUNBOOK}#clause-tpot`,
                  },
                },
              ],
            },
          ],
        },
        {
          interval: '1m',
          input_series: [{ series: 'up{job="weir",instance="a"}', values: '0x10' }],
          alert_rule_test: [
            {
              alertname: 'WeirDown',
              eval_time: '5m',
              exp_alerts: [
                {
                  exp_labels: { class: 'none', slo: 'none', clause: 'none', severity: 'page' },
                  exp_annotations: {
                    summary:
                      'No Weir answers to its scrape: its clients get no answers, or nobody sees how good they are.',
                    runbook_url: `${RUNBOOK}#weir-down`,
                  },
                },
              ],
            },
          ],
        },
      ],
    }),
  })
  const { code, text } = check('promtool', ['test', 'rules', 'test.yml'], dir)
  t.equal(code, 0, text)
  t.end()
})

/** An hour passes in a minute. */
const SCALE = 1 / 60

/** What vLLM tells of its memory, with so many streams thrown out of it. */
const vllm = (usage: number, preemptions: number): string =>
  [
    'vllm:num_requests_running{engine="0"} 40',
    'vllm:num_requests_waiting{engine="0"} 0',
    `vllm:kv_cache_usage_perc{engine="0"} ${usage}`,
    `vllm:num_preemptions_total{engine="0"} ${preemptions}`,
    '',
  ].join('\n')

t.test(
  'a pace that breaks pages through Prometheus and Alertmanager, with the clause, the cause and the runbook',
  { skip: skipWithout('prometheus', 'prometheus-alertmanager') },
  async t => {
    /** Between two tokens. */
    let pauseMs = 0
    let preemptions = 0
    function* answer(): Generator<Step> {
      yield HDR
      yield ROLE
      for (const text of ['a', 'b', 'c']) {
        yield TOK(text)
        if (pauseMs > 0 && text !== 'c') yield { wait: pauseMs }
      }
      yield FIN + USAGE(5, 3) + DONE
      yield 'EOF'
    }
    const upstream = await startUpstream(t, answer, {
      metrics: () => vllm(pauseMs > 0 ? 0.97 : 0.4, pauseMs > 0 ? ++preemptions : preemptions),
    })
    // Bounds that a busy machine keeps: 400 ms a token for the target, 1 s for the guard.
    const slo = { target: { percentile: 90, ttft: '20s', tpot: '400ms' } }
    const data = configData(
      [upstream.url],
      { classes: { chat: { ...CHAT, slo } } },
      { max_in_flight: 500, engine: 'vllm' },
    )
    const clock = fastClock()
    const weir = await startTestWeir(t, data, { level: 'warn', clock })
    const { notified, query } = await startPrometheus(
      t,
      t.testdir({}),
      new URL(weir.admin).host,
      rulesFor(data, SCALE),
    )
    const body = JSON.stringify({ model: 'm', stream: true, messages: [{ role: 'user', content: 'hi' }] })
    const asked = new Set<Promise<unknown>>()
    const ask = (): void => {
      const one = fetch(`${weir.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
      })
        .then(response => response.text())
        .catch(() => undefined)
        .finally(() => asked.delete(one))
      asked.add(one)
    }
    let asking: NodeJS.Timeout | undefined
    const begin = (): void => {
      asking = setInterval(ask, 50)
    }
    const end = async (): Promise<void> => {
      clearInterval(asking)
      await Promise.all(asked)
    }
    begin()
    t.teardown(end)

    const value = async (expr: string): Promise<number | undefined> => (await query(expr))[0]?.value
    const decided = 'max(weir_clause:decided:rate5m{slo="guard",clause="joint"}) * 5'
    await weir.until('enough requests to judge', async () => ((await value(decided)) ?? 0) >= 50, 20_000)
    await sleep(3000)
    t.equal(await value('weir_slo:bad:ratio1h{slo="guard"}'), 0, 'all is well')
    t.same(await query('ALERTS'), [], 'and nothing fires')
    t.same(notified, [])

    // As it mostly goes: first the target is missed, and what is wrong is found; then it gets worse.
    pauseMs = 600
    const missed = () => weir.metric('weir_clause_total', { slo: 'target', clause: 'tpot', result: 'missed' })
    await weir.until('enough that miss the target', async () => (await missed()) >= 120, 30_000)
    await end()
    // Weir looks every 10 s, and believes what two looks in a row agree on. No stream is there to see the skip.
    const diagnosed = 'weir_diagnosis{clause="tpot",cause="kv_thrash"} > 0'
    for (let look = 0; look < 2; look++) {
      clock.skip(10_000)
      await sleep(1500)
    }
    await weir.until('a diagnosis', async () => (await value(diagnosed)) !== undefined, 10_000)
    t.same(
      notified.filter(({ labels }) => labels['severity'] === 'page'),
      [],
      'the guard is kept: nobody is woken',
    )
    begin()
    pauseMs = 1200
    const page = () =>
      notified.find(
        ({ labels: { alertname, severity, window } }) =>
          alertname === 'WeirGuardBurn' && severity === 'page' && window === '1h',
      )
    await weir.until('the page', () => page() !== undefined, 30_000)
    t.match(page(), {
      status: 'firing',
      labels: { class: 'chat', slo: 'guard', clause: 'tpot' },
      annotations: {
        summary:
          /^chat: [\d.]+% of the requests of 5m and [\d.]+% of those of 1h missed the guard \(p99\): tokens come/,
        since: /^20\d\d-/,
        shares: /joint [\d.]+% tpot [\d.]+% ttft 0%; shed 0 requests\/s$/,
        cause: 'kv_thrash in pool main (tpot). ',
        runbook_url: `${RUNBOOK}#clause-tpot`,
      },
    })
    t.same(
      [...new Set(notified.map(({ labels }) => labels['clause']))],
      ['tpot'],
      'no alert names another clause',
    )
  },
)
