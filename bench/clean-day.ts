/**
 * A day of chat in virtual time, through the policy door and two simulated engines, minute by minute through the
 * printed rules: a clean day must fire nothing, the same day with an incident at noon must page.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Registry } from 'prom-client'
import { loadData } from '../src/config/load.js'
import type { Resolved } from '../src/config/resolved.js'
import { Recorder } from '../src/metrics/record.js'
import type { Decision } from '../src/policy/decision.js'
import { createPolicy } from '../src/policy/simple.js'
import type { RequestFacts, Ticket } from '../src/request.js'
import { prometheusRules } from '../src/rules/prometheus.js'
import { promisesOf } from '../src/rules/promised.js'
import { drawLength } from '../src/sim/draw.js'
import { Engine } from '../src/sim/engine.js'
import { profileNamed } from '../src/sim/profiles.js'
import type { EngineRequest, Sequence } from '../src/sim/sequence.js'
import { lognormalThrough } from '../src/sim/sweep.js'
import { EngineHost, World } from '../src/sim/world.js'
import { type Ms, seededRng } from '../src/time.js'

const MINUTE_MS: Ms = 60_000
const DAY_MINUTES = 1440
const SEEDS = [1, 2, 3]
/** Azure's 2023 conversation trace, as its percentiles have it. */
const INPUT = { p50: 1020, p90: 2734 }
const OUTPUT = { p50: 129, p90: 424 }
/** Requests a second over the day: a fifth of the peak at night. */
const PEAK_RPS = 10
const ENGINE = 'qwen3-32b'
const NOON = { from: 720, to: 745, times: 3 } as const

const loaded = loadData(
  {
    classes: {
      chat: {
        slo: { target: { percentile: 90, ttft: '500ms', tpot: '40ms' } },
        workload: { model: 'm', input_tokens: INPUT, output_tokens: OUTPUT },
        pools: ['main'],
      },
    },
    pools: {
      main: { model: 'm', replicas: ['http://127.0.0.1:1', 'http://127.0.0.1:2'], max_in_flight: 200 },
    },
  },
  'bench',
)
if (loaded.ok === undefined) throw new Error('the config of this bench is wrong')
const config: Resolved = loaded.ok

interface Served extends EngineRequest {
  readonly ticket: Ticket
}

interface Day {
  readonly requests: number
  readonly verdicts: Readonly<Record<string, number>>
  /** A value a minute, by series as scraped. */
  readonly series: ReadonlyMap<string, (number | undefined)[]>
}

async function play(seed: number, incident: boolean): Promise<Day> {
  const rng = seededRng(seed)
  const world = new World()
  const policy = createPolicy(config.policy, seededRng(seed + 1000))
  const recorder = new Recorder(
    new Registry(),
    config.policy,
    { version: 'bench', node: process.version },
    () => policy.state(world.now()),
  )
  const verdicts: Record<string, number> = {}
  const take = (decisions: readonly Decision[]): void => {
    for (const decision of decisions) {
      recorder.news(decision)
      if (decision.kind === 'shed') verdicts['shed'] = (verdicts['shed'] ?? 0) + 1
      if (decision.kind !== 'dispatch') continue
      const { ticket } = decision
      hosts[decision.replica]?.submit({
        ticket,
        promptTokens: ticket.facts.promptTokens,
        outputTokens: drawLength(lognormalThrough(OUTPUT, 2), rng),
      })
    }
  }
  const finish = ({
    request,
    promptTokens,
    generated,
    firstTokenAt,
    lastTokenAt,
  }: Sequence<Served>): void => {
    const { judgement, decisions } = policy.finish(
      request.ticket,
      {
        kind: 'complete',
        progress: {
          ...{ streamed: true, throttled: false, marks: generated, longestChoiceMarks: generated },
          ...{ firstEvent: firstTokenAt, firstOutput: firstTokenAt, firstVisible: firstTokenAt },
          ...{ lastOutput: lastTokenAt, longestGap: undefined },
          usage: {
            ...{ promptTokens, completionTokens: generated },
            ...{ cachedTokens: undefined, reasoningTokens: undefined },
          },
        },
      },
      world.now(),
    )
    recorder.judged(judgement, 'm')
    verdicts[judgement.verdict] = (verdicts[judgement.verdict] ?? 0) + 1
    take(decisions)
  }
  const hosts = config.policy.replicas.map(() => {
    const engine = new Engine<Served>({ profile: profileNamed(ENGINE), coarse: true })
    return new EngineHost<Served>(world, engine, step => {
      for (const { request } of step.begun) take(policy.firstToken(request.ticket, world.now()))
      for (const sequence of step.ended) finish(sequence)
    })
  })
  let requests = 0
  const arrive = (): void => {
    const now = world.now()
    requests++
    take(policy.arrive(facts(now, drawLength(lognormalThrough(INPUT, 16), rng)), now).decisions)
    const minute = now / MINUTE_MS
    const shape = 0.6 - 0.4 * Math.cos((2 * Math.PI * minute) / DAY_MINUTES)
    const more = incident && minute >= NOON.from && minute < NOON.to ? NOON.times : 1
    world.at(now - (Math.log(1 - rng.next()) * 1000) / (PEAK_RPS * shape * more), arrive)
  }
  world.at(0, arrive)

  const series = new Map<string, (number | undefined)[]>()
  for (let minute = 0; minute < DAY_MINUTES; minute++) {
    world.run(minute * MINUTE_MS)
    // Bounds that have passed count now, whether or not anything ends.
    take(policy.wake(world.now()))
    for (const line of (await recorder.text()).split('\n')) {
      if (!/^weir_(clause_total|shed_total|requests_total|replica_up|build_info)\{/.test(line)) continue
      const at = line.lastIndexOf(' ')
      const values = series.get(line.slice(0, at)) ?? []
      values[minute] = Number(line.slice(at + 1))
      series.set(line.slice(0, at), values)
    }
  }
  return { requests, verdicts, series }
}

function facts(now: Ms, promptTokens: number): RequestFacts {
  return {
    ...{ path: '/v1/chat/completions', headers: {}, model: 'm', stream: true, tools: false },
    ...{ maxTokens: undefined, promptTokens, askedClass: undefined, key: undefined, own: {} },
    ...{ patienceMs: undefined, retry: 0, repeatable: true, arrivedAt: now, bodyAt: now },
  }
}

/** Each alert that fires at any minute of the day, with the clauses it names, by Prometheus' own rule engine. */
function fired(series: Day['series']): readonly string[] {
  const dir = mkdtempSync(join(tmpdir(), 'clean-day-'))
  try {
    const groups = prometheusRules(
      promisesOf(config, () => ''),
      { runbook: '' },
    )
    const input = [...series].map(([name, values]) => ({
      series: name,
      values: Array.from({ length: DAY_MINUTES }, (_, minute) => values[minute] ?? '_').join(' '),
    }))
    const ask = {
      expr: 'count by (alertname, severity, window, clause) (count_over_time(ALERTS{alertstate="firing"}[1d]))',
      eval_time: `${DAY_MINUTES - 1}m`,
      exp_samples: [],
    }
    writeFileSync(join(dir, 'rules.yml'), JSON.stringify({ groups }))
    writeFileSync(
      join(dir, 'test.yml'),
      JSON.stringify({
        rule_files: ['rules.yml'],
        evaluation_interval: '1m',
        tests: [{ interval: '1m', input_series: input, promql_expr_test: [ask] }],
      }),
    )
    const { status, stdout, stderr, error } = spawnSync('promtool', ['test', 'rules', 'test.yml'], {
      ...{ cwd: dir, encoding: 'utf8', maxBuffer: 1 << 26 },
    })
    if (error !== undefined) throw error
    if (status === 0) return []
    // promtool says what it got where nothing was expected.
    const got = [...`${stdout}${stderr}`.matchAll(/\{(alertname=[^}]*)\}/g)].map(([, labels = '']) => labels)
    if (got.length === 0) throw new Error(`${stdout}${stderr}`)
    return [...new Set(got)]
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

const began = performance.now()
const rows: string[] = []
let broken = false
for (const seed of SEEDS) {
  for (const incident of [false, true]) {
    const day = await play(seed, incident)
    const alerts = fired(day.series)
    const paged = alerts.some(alert => alert.includes('severity="page"'))
    if (incident ? !paged : alerts.length > 0) broken = true
    const missed = (slo: string): string => {
      const last = (result: string): number =>
        [...day.series]
          .filter(([name]) => name.includes(`slo="${slo}",clause="joint",result="${result}"`))
          .reduce((sum, [, values]) => sum + (values[DAY_MINUTES - 1] ?? 0), 0)
      return `${((100 * last('missed')) / (last('met') + last('missed'))).toFixed(2)} %`
    }
    const said = alerts.length === 0 ? 'none' : alerts.map(alert => `\`${alert}\``).join('<br>')
    rows.push(
      `| ${seed} | ${incident ? 'incident at noon' : 'clean'} | ${day.requests} | ${missed('target')} | ${missed('guard')} | ${said} |`,
    )
    console.log(rows.at(-1))
  }
}
const took = Math.round((performance.now() - began) / 1000)
console.log(`${took} s; ${broken ? 'BROKEN: see above' : 'every clean day is silent, every incident pages'}`)
if (process.argv.includes('--write')) {
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
  writeFileSync(
    'bench/results/clean-day.md',
    `# A clean day fires nothing

\`node --import @tapjs/typescript/import bench/clean-day.ts --write\`, commit ${commit}, Node ${process.version}, ${took} s.

A day of chat in virtual time: Poisson arrivals from ${PEAK_RPS / 5} to ${PEAK_RPS} requests/s, lengths of Azure's 2023 conversation trace
(fitted), two simulated ${ENGINE} engines, p90 500 ms / 40 ms and the default guard. Weir's own counters, one scrape a
minute, go through the rules of \`weir rules\` in promtool's rule engine, minute by minute. The incident is ${NOON.times} times the
traffic for ${NOON.to - NOON.from} minutes. The alerts are all that fired at any minute of the day.

| seed | day | requests | missed target | missed guard | alerts |
|---|---|---|---|---|---|
${rows.join('\n')}
`,
  )
}
process.exitCode = broken ? 1 : 0
