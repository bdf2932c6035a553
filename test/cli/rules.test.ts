/** `weir rules`: what it prints in each format, and that the runbook has what its alerts link to. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import { parse, parseAllDocuments } from 'yaml'
import { rules } from '../../src/cli/rules.js'
import { loadData } from '../../src/config/load.js'
import { METRICS } from '../../src/metrics/names.js'
import { type Group, prometheusRules } from '../../src/rules/prometheus.js'
import { leftOut, promisesOf } from '../../src/rules/promised.js'
import { allowedMisses, burnAlert, MOST_MISSES, WINDOW_PAIRS } from '../../src/slo/alerts.js'
import { CAUSES } from '../../src/slo/causes.js'
import { check, skipWithout } from '../fixtures/prometheus.js'
import { CHAT, configData } from '../fixtures/weir.js'

const DAY_MS = 86_400_000

async function weirRules(...args: string[]) {
  let [out, err] = ['', '']
  const io = { out: (text: string) => (out += text), err: (text: string) => (err += text), env: {} }
  const code = await rules.run(args, io)
  return { code, out, err }
}

const shipped = async (...args: string[]) => (await weirRules('-c', 'config/weir.yaml', ...args)).out
const groupsOf = (text: string) => (parse(text) as { groups: Group[] }).groups
const alertsOf = (groups: readonly Group[]) =>
  groups.flatMap(({ rules }) => rules).filter(({ alert }) => alert !== undefined)

t.test('the shipped rules are those of the shipped config', async t => {
  t.equal(
    readFileSync('config/prometheus/weir-rules.yml', 'utf8'),
    await shipped(),
    'make them anew: weir rules -c config/weir.yaml > config/prometheus/weir-rules.yml',
  )
})

t.test('the guard has the pairs of the SRE workbook, the target those that a week allows', async t => {
  const alerts = alertsOf(groupsOf(await shipped())).filter(({ labels }) => labels?.['class'] === 'chat')
  const said = alerts.map(({ alert, labels, expr }) => [
    alert,
    labels?.['window'],
    labels?.['severity'],
    [...expr.matchAll(/> ([\d.]+)/g)].map(([, share]) => Number(share)),
    /\* (\d+) >= 50/.exec(expr)?.[1],
  ])
  t.same(said, [
    ['WeirTargetBurn', '1h', 'ticket', [0.336, 0.336], '300'],
    ['WeirTargetBurn', '6h', 'ticket', [0.14, 0.14], '1800'],
    ['WeirGuardBurn', '1h', 'page', [0.144, 0.144], '300'],
    ['WeirGuardBurn', '6h', 'page', [0.06, 0.06], '1800'],
    ['WeirGuardBurn', '1d', 'ticket', [0.03, 0.03], '7200'],
    ['WeirGuardBurn', '3d', 'ticket', [0.01, 0.01], '21600'],
  ])
})

t.test('an alert that could not fire, or only on a kept SLO, is left out and said so', async t => {
  t.same(
    WINDOW_PAIRS.map(pair => burnAlert(pair, 90, 30 * DAY_MS).fires),
    ['never', 'yes', 'yes', 'yes'],
    'at p90 a burn is 10 at most, and 14.4 is more',
  )
  t.same(
    WINDOW_PAIRS.map(pair => burnAlert(pair, 99, 7 * DAY_MS).factor),
    [3.36, 1.4, 0.7, 0.233333333333],
  )
  const out = await shipped()
  t.match(out, /^# chat-target: no alert over 1d & 2h: at 0\.7x the budget of 7d is kept\.$/m)
  t.same(
    leftOut({
      ...{ cls: 'chat', slo: 'target', kind: 'stream', mode: 'joint', percentile: 90, allowed: 0.1 },
      ...{ periodMs: 30 * DAY_MS, words: '', pools: [] },
      alerts: WINDOW_PAIRS.map(pair => burnAlert(pair, 90, 30 * DAY_MS)),
    }),
    ['no alert over 1h & 5m: 14.4x would need 144 % misses, so it could hardly fire'],
  )
})

t.test('weir check refuses exactly the SLOs whose quickest alert cannot fire', t => {
  const percentiles = fc.integer({ min: 500, max: 999 }).map(tenths => tenths / 10)
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(percentiles, fc.integer({ min: 1, max: 90 }), (percentile, days) => {
        const [quickest] = WINDOW_PAIRS
        const never = burnAlert(quickest, percentile, days * DAY_MS).fires === 'never'
        const { target } = CHAT.slo
        const slo = {
          target: { ...target, percentile, window: `${days}d` },
          guard: { percentile: 99.9 },
        }
        const loaded = loadData(
          configData(['http://127.0.0.1:1'], { classes: { chat: { ...CHAT, slo } } }),
          'test',
        )
        const problems = loaded.ok === undefined ? loaded.problems.map(({ got }) => got) : []
        assert.equal(
          problems.some(got => got.includes('its quickest burn alert')),
          never,
        )
        assert.ok(never || burnAlert(quickest, percentile, days * DAY_MS).missShare <= MOST_MISSES)
      }),
      { numRuns: 200 },
    ),
  )
  t.equal(allowedMisses(99), 0.01, 'and shares are printed as people write them')
  t.equal(allowedMisses(99.9), 0.001)
  t.end()
})

t.test('every alert says class, SLO, clause and severity, what happened, and what to read', async t => {
  const base = 'https://wiki.example/runbook'
  const groups = groupsOf(await shipped('--runbook', base))
  const anchors = anchorsOf(readFileSync('docs/runbook.md', 'utf8'))
  const clauses = new Set<string>()
  for (const { rules } of groups) {
    for (const { record, labels } of rules)
      if (record?.startsWith('weir_slo:moved:') === true) clauses.add(labels?.['clause'] ?? '')
  }
  t.same([...clauses], ['ttft', 'tpot', 'both', 'failed', 'deadline'])
  const alerts = alertsOf(groups)
  t.ok(alerts.length >= 16)
  for (const { alert, expr, labels = {}, annotations = {} } of alerts) {
    for (const name of ['class', 'slo', 'severity']) t.ok(labels[name], `${alert} has ${name}`)
    // A burn has the label of the series it compares first.
    if (labels['clause'] === undefined) t.match(expr, /^weir_slo:moved:ratio/, `${alert} has a clause`)
    t.ok(annotations['summary'], `${alert} has a summary`)
    const [url, anchor = ''] = (annotations['runbook_url'] ?? '').split('#')
    t.equal(url, base)
    for (const clause of clauses) {
      const linked = anchor.replace('{{ $labels.clause }}', clause)
      t.ok(anchors.has(linked), `${alert} links to ${linked}, which the runbook has`)
    }
  }
})

/** As GitHub makes them of headings. */
function anchorsOf(markdown: string): ReadonlySet<string> {
  const headings = [...markdown.matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) => heading)
  return new Set(
    headings.map(text =>
      text
        .toLowerCase()
        .replace(/[^\w -]/g, '')
        .replaceAll(' ', '-'),
    ),
  )
}

t.test(
  'the runbook has every cause of a diagnosis, and names metrics and config keys that exist',
  async t => {
    const text = readFileSync('docs/runbook.md', 'utf8')
    const anchors = anchorsOf(text)
    const causes = Object.keys(CAUSES)
    t.ok(causes.length >= 13)
    for (const cause of causes) t.ok(anchors.has(cause), cause)
    for (const [, anchor = ''] of text.matchAll(/\]\(#([^)]+)\)/g))
      t.ok(anchors.has(anchor), `a link to ${anchor}`)

    const exported = new Set<string>(Object.values(METRICS).map(({ name }) => name))
    const named = [...text.matchAll(/\bweir_\w+/g)].map(([name]) => name.replace(/_(bucket|sum|count)$/, ''))
    t.ok(named.length > 30)
    for (const name of new Set(named)) t.ok(exported.has(name), `${name} is a metric`)

    const keys = new Set(
      [...readFileSync('docs/config.md', 'utf8').matchAll(/^\| `([^`]+)` \|/gm)].map(([, key]) => key),
    )
    const used = [...text.matchAll(/`((?:pools|classes|routes|timeouts|admin)[\w.[\]]*\.\w+)`/g)].map(
      ([, key = '']) => key,
    )
    t.ok(used.length > 20)
    for (const key of new Set(used)) t.ok(keys.has(key), `${key} is a key of the config`)
  },
)

t.test(
  'Prometheus and Alertmanager take the rules, the queries and the examples',
  {
    skip: skipWithout('promtool', 'amtool'),
  },
  async t => {
    const queries = [
      ...readFileSync('docs/runbook.md', 'utf8').matchAll(/^ *```promql\n *(.*)\n *```$/gm),
    ].map(([, expr]) => expr)
    t.ok(queries.length >= 18, `${queries.length} queries`)
    const dir = t.testdir({
      'rules.yml': await shipped(),
      'separate.yml': (await weirRules('-c', 'config/separate-pools.yaml')).out,
      'runbook.yml': JSON.stringify({
        groups: [
          { name: 'runbook', rules: queries.map((expr, i) => ({ record: `runbook:query${i}`, expr })) },
        ],
      }),
    })
    for (const file of ['rules.yml', 'separate.yml', 'runbook.yml'])
      t.match(
        check('promtool', ['check', 'rules', `${dir}/${file}`]).text,
        /SUCCESS: [1-9]\d* rules found/,
        file,
      )
    const examples = 'config/prometheus'
    const config = check('promtool', ['check', 'config', `${examples}/prometheus.yml`])
    t.equal(config.code, 0, config.text)
    const manager = check('amtool', ['check-config', `${examples}/alertmanager.yml`])
    t.equal(manager.code, 0, manager.text)
  },
)

t.test('no rule asks for a metric that this version does not export', async t => {
  const loaded = loadData(configData(['http://127.0.0.1:1']), 'test')
  assert(loaded.ok !== undefined)
  const groups = prometheusRules(
    promisesOf(loaded.ok, () => ''),
    { runbook: '' },
  )
  const exported = new Set<string>(Object.values(METRICS).map(({ name }) => name))
  const asked = groups.flatMap(({ rules }) =>
    rules.flatMap(one => [one.expr, ...Object.values(one.annotations ?? {})]),
  )
  const named = [...asked.join('\n').matchAll(/\bweir_\w+\b(?!:)/g)].map(([name]) => name)
  t.ok(named.includes('weir_headroom_ratio') && named.includes('weir_diagnosis'))
  for (const name of named) t.ok(exported.has(name), name)
})

t.test('--format sloth prints one period a run, with windows that can fire', async t => {
  const month = await shipped('--format', 'sloth')
  t.match(month, /^# Sloth takes one period a run: these are the SLOs of 30d\. With --period 7d it prints/m)
  t.match(month, /^# sloth generate -i THIS --default-slo-period=30d$/m)
  const spec = parse(month)
  t.equal(spec.version, 'prometheus/v1')
  t.match(spec.slos, [
    {
      name: 'chat-guard',
      objective: 99,
      labels: { class: 'chat', slo: 'guard', clause: 'joint' },
      sli: {
        events: {
          error_query:
            'sum(rate(weir_clause_total{class="chat",slo="guard",clause="joint",result="missed"}[{{.window}}]))',
          total_query: 'sum(rate(weir_clause_total{class="chat",slo="guard",clause="joint"}[{{.window}}]))',
        },
      },
      alerting: {
        page_alert: { labels: { severity: 'page' } },
        ticket_alert: { labels: { severity: 'ticket' } },
      },
    },
    { name: 'agent-guard', labels: { clause: 'deadline' } },
  ])
  const week = await shipped('--format', 'sloth', '--period', '7d')
  t.match(parse(week).slos[0], {
    name: 'chat-target',
    objective: 90,
    alerting: { page_alert: { disable: true } },
  })
  const windows = parse(
    week
      .split('\n')
      .filter(line => line.startsWith('#   '))
      .map(line => line.slice(4))
      .join('\n'),
  )
  const [quick, slow] = [
    { errorBudgetPercent: 2, shortWindow: '5m', longWindow: '1h' },
    { errorBudgetPercent: 5, shortWindow: '30m', longWindow: '6h' },
  ]
  t.same(windows.spec, { sloPeriod: '7d', page: { quick, slow }, ticket: { quick, slow } })
})

t.test('--format pyrra switches alerts off where the quickest of them cannot fire', async t => {
  const text = await shipped('--format', 'pyrra')
  t.match(
    text,
    /^# chat-target: Pyrra's alerts are switched off; its quickest, 14x, would need 140 % misses/m,
  )
  const objects = parseAllDocuments(text).map(document => document.toJS())
  t.same(
    objects.map(({ metadata, spec }) => [metadata.name, spec.target, spec.window, spec.alerting.burnrates]),
    [
      ['weir-chat-target', '90', '7d', false],
      ['weir-chat-guard', '99', '30d', undefined],
      ['weir-agent-target', '95', '7d', undefined],
      ['weir-agent-guard', '99', '30d', undefined],
    ],
  )
  t.equal(
    objects[1].spec.indicator.ratio.errors.metric,
    'weir_clause_total{class="chat",slo="guard",clause="joint",result="missed"}',
  )
})

t.test('--format openslo prints SLOs with the same burn rates', async t => {
  const text = await shipped('--format', 'openslo')
  const [service, ...slos] = parseAllDocuments(text).map(document => document.toJS())
  t.match(service, { apiVersion: 'openslo/v1', kind: 'Service', metadata: { name: 'weir' } })
  t.same(
    slos.map(({ metadata, spec }) => [
      metadata.name,
      spec.objectives[0].targetPercent,
      spec.timeWindow[0].duration,
      spec.alertPolicies.map(
        (policy: { spec: { conditions: { spec: { condition: { threshold: number } } }[] } }) =>
          policy.spec.conditions[0]?.spec.condition.threshold,
      ),
    ]),
    [
      ['weir-chat-target', 90, '7d', [3.36, 1.4]],
      ['weir-chat-guard', 99, '30d', [14.4, 6, 3, 1]],
      ['weir-agent-target', 95, '7d', [3.36, 1.4]],
      ['weir-agent-guard', 99, '30d', [14.4, 6, 3, 1]],
    ],
  )
  t.equal(
    slos[3].spec.indicator.spec.ratioMetric.bad.metricSource.spec.query,
    'sum(weir_clause_total{class="agent",slo="guard",clause="deadline",result="missed"})',
  )
})

t.test('where each clause is promised for itself, it is an SLO of its own', async t => {
  const text = readFileSync('config/weir.yaml', 'utf8').replace('tpot: 40ms }', 'tpot: 40ms, mode: clause }')
  const dir = t.testdir({ 'weir.yaml': text })
  const { out } = await weirRules('-c', `${dir}/weir.yaml`, '--format', 'sloth')
  t.match(
    parse(out).slos.map(({ name }: { name: string }) => name),
    ['chat-guard-ttft', 'chat-guard-tpot', 'agent-guard'],
  )
  t.match(out, /^# chat-guard: each clause is an SLO of its own; requests that failed are in neither\./m)
})

t.test('--json is the same, and what is wrong is said', async t => {
  for (const format of ['prometheus', 'sloth', 'pyrra', 'openslo']) {
    const documents = parseAllDocuments(await shipped('--format', format)).map(document => document.toJS())
    const json = JSON.parse(await shipped('--format', format, '--json'))
    t.same(json, documents.length === 1 ? documents[0] : documents, format)
  }
  t.same(await weirRules('--format', 'nagios'), {
    code: 2,
    out: '',
    err: 'weir rules: --format: got "nagios"; allowed: prometheus, sloth, pyrra, openslo\n',
  })
  t.same(await weirRules('-c', 'config/weir.yaml', '--period', '5d'), {
    code: 2,
    out: '',
    err: 'weir rules: --period: got "5d"; allowed: 7d, 30d\n',
  })
  t.match((await weirRules('--period', 'soon')).err, /--period: got "soon"; allowed: a duration, such as 30d/)
  const dir = t.testdir({ 'weir.yaml': 'classes: 1\n' })
  const broken = await weirRules('-c', `${dir}/weir.yaml`)
  t.match(broken, { code: 1, out: '', err: /classes +\(line 1\)/ })
  t.match(await weirRules('-c', `${dir}/no.yaml`), { code: 2, err: /no such file/ })
})
