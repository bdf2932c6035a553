/** `npm run bench:relay`: what relaying costs through Weir, beside other proxies and beside none, in turns. */
import { writeFileSync } from 'node:fs'
import { availableParallelism, cpus, loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import { contenders, defaultCache } from './contenders.js'
import { cpuOf, cpuRatios, type Goal, goals, knee, memoryOf, noiseOf, ratiosOf } from './figures.js'
import { measure, type Run } from './measure.js'
import { build, circumstances, median, ONE_CORE, realtime, spread } from './rig.js'
import { WORKLOADS, type Workload } from './workloads.js'

const USAGE = `npm run bench:relay -- [--work W1,W3] [--only nginx,weir] [--reps 5] [--json] [--write]

  --work NAMES      of ${Object.keys(WORKLOADS).join(', ')}; by default W0, W1, W2, W3, W4, RAMP, TTFT, P400K
  --only NAMES      these contenders, in each workload; by default those that each workload names
  --reps N          by default 5
  --also NAME=FILE  another build of Weir (its dist/cli/main.js) as a contender
  --cache FOLDER    for Node 24 and the Python routers, by default ${defaultCache}
  --json            one object on stdout instead of the tables
  --write FILE      the tables into a file as well

Exit 0: judged, and every must holds. 1: a must is missed, or an answer was wrong. 2: the machine is too noisy to judge.
`

const { values: flags } = parseArgs({
  options: {
    work: { type: 'string', default: 'W0,W1,W2,W3,W4,RAMP,TTFT,P400K' },
    only: { type: 'string' },
    reps: { type: 'string', default: '5' },
    also: { type: 'string', multiple: true, default: [] },
    cache: { type: 'string', default: defaultCache },
    json: { type: 'boolean', default: false },
    write: { type: 'string' },
    help: { type: 'boolean', short: 'h', default: false },
  },
})
if (flags.help) {
  process.stdout.write(USAGE)
  process.exit(0)
}

const builds = new Map(flags.also.map(text => text.split('=', 2) as [string, string]))
const all = contenders(flags.cache, builds)
const works = flags.work.split(',')
const reps = Number(flags.reps)
const unknown = [
  ...works.filter(work => !(work in WORKLOADS)),
  ...(flags.only?.split(',') ?? []).filter(name => !(name in all)),
]
if (unknown.length > 0 || !(reps >= 1)) {
  process.stderr.write(`unknown: ${unknown.join(', ') || `--reps ${flags.reps}`}\n\n${USAGE}`)
  process.exit(1)
}

function say(text: string): void {
  process.stderr.write(`${text}\n`)
}

/** Those that a workload is put to, by what was asked. */
function namesOf(work: string): readonly string[] {
  return flags.only?.split(',') ?? [...WORKLOADS[work]!.contenders, ...builds.keys()]
}

const loadBefore = loadavg()[0] ?? Number.NaN
/** Others' jobs lengthen the latencies of whoever has no priority over them. */
const alone = realtime || loadBefore < availableParallelism() / 2
build()

const versions = new Map<string, string>()
const skipped = new Map<string, string>()
for (const name of new Set(works.flatMap(namesOf))) {
  try {
    versions.set(name, all[name]!.ready())
  } catch (error) {
    skipped.set(name, (error as Error).message)
    say(`skipped: ${name}: ${(error as Error).message}`)
  }
}
const seconds = works.reduce(
  (sum, work) => sum + WORKLOADS[work]!.seconds * namesOf(work).filter(name => versions.has(name)).length,
  0,
)
say(`about ${Math.ceil((seconds * reps) / 60)} min`)

const runs: Run[] = []
const failures = new Map<string, string>()
for (const work of works) {
  for (let rep = 1; rep <= reps; rep++) {
    for (const name of namesOf(work).filter(name => versions.has(name))) {
      try {
        const done = await measure(work, WORKLOADS[work]!, name, all[name]!, rep)
        runs.push(done)
        say(brief(done))
      } catch (error) {
        failures.set(`${work} ${name}`, (error as Error).message.trim().split('\n').at(-1) ?? '')
        say(`${work} ${rep} ${name}: ${(error as Error).message}`)
      }
    }
  }
}

function brief({ work, rep, name, result, lateUs }: Run): string {
  const { events_per_s, requests_per_s, event_us, ttft_us, errors, error_kinds } = result
  const cpu = result.proxy?.cpu_us_per_event
  const wrong = errors === 0 ? '' : `, WRONG ${errors}: ${JSON.stringify(error_kinds)}`
  return `${work} ${rep} ${name.padEnd(22)} ${events_per_s.toFixed(0)} events/s, ${requests_per_s.toFixed(0)} requests/s, CPU ${cpu?.toFixed(1) ?? '-'} us, event p99 ${event_us.p99.toFixed(0)} us, TTFT p99 ${(ttft_us.p99 / 1000).toFixed(1)} ms, client ${result.load_cpu_share}, late ${lateUs.toFixed(0)} us${wrong}`
}

type Column = readonly [head: string, of: (run: Run) => number | undefined, digits: number]

function timed(of: (run: Run) => { readonly n: number }, value: (run: Run) => number): Column[1] {
  return run => (of(run).n > 0 ? value(run) : undefined)
}

const CPU_SHARE: Column = ['CPU share', run => run.result.proxy?.cpu_share, 2]
const EVENT_P99: Column = [
  'event p99 us',
  timed(
    run => run.result.event_us,
    run => run.result.event_us.p99,
  ),
  0,
]
const TTFT_P50: Column = ['TTFT p50 ms', run => run.result.ttft_us.p50 / 1000, 1]
const TTFT_P99: Column = ['TTFT p99 ms', run => run.result.ttft_us.p99 / 1000, 1]
const EVENT_COLUMNS: readonly Column[] = [
  ['events/s', run => run.result.events_per_s, 0],
  ['CPU us/event', cpuOf, 1],
  ['of that user', run => run.result.proxy?.user_us_per_event, 1],
  CPU_SHARE,
  [
    'event p50 us',
    timed(
      run => run.result.event_us,
      run => run.result.event_us.p50,
    ),
    0,
  ],
  EVENT_P99,
  TTFT_P99,
]
const WAIT_COLUMNS: readonly Column[] = [
  ['requests/s', run => run.result.requests_per_s, 0],
  TTFT_P50,
  TTFT_P99,
  ['TTFT added p99 ms', run => ttftAdded(run), 1],
  ['TTFT max ms', run => run.result.ttft_us.max / 1000, 0],
  EVENT_P99,
  CPU_SHARE,
]
const COLUMNS: Readonly<Record<string, readonly Column[]>> = {
  W3: [
    ['requests/s', run => run.result.requests_per_s, 0],
    ['CPU us/request', cpuOf, 1],
    CPU_SHARE,
    ['p50 us', run => run.result.total_us.p50, 0],
    ['p99 us', run => run.result.total_us.p99, 0],
  ],
  W4: [
    ['KB/stream', memoryOf, 1],
    ['RSS MB', run => run.result.proxy && run.result.proxy.rss_kb / 1024, 0],
    ...EVENT_COLUMNS,
  ],
  RAMP: [
    ['events/s at p99 <= 5 ms', run => knee(run, 5000), 0],
    ['at p99 <= 20 ms', run => knee(run, 20_000), 0],
    ['most events/s', run => run.result.series && Math.max(...run.result.series.map(s => s.events_per_s)), 0],
  ],
  TTFT: WAIT_COLUMNS,
  P4K: WAIT_COLUMNS,
  P100K: WAIT_COLUMNS,
  P400K: WAIT_COLUMNS,
  P2M: WAIT_COLUMNS,
}

/** p99 less that without a proxy, of the same repetition. */
function ttftAdded(run: Run): number | undefined {
  const direct = runs.find(
    other => other.name === 'direct' && other.work === run.work && other.rep === run.rep,
  )
  return direct && (run.result.ttft_us.p99 - direct.result.ttft_us.p99) / 1000
}

function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  return [heads, heads.map(() => '---'), ...rows].map(cells => `| ${cells.join(' | ')} |`).join('\n')
}

function section(work: string): string {
  const columns = COLUMNS[work] ?? EVENT_COLUMNS
  const ofWork = runs.filter(run => run.work === work)
  const cost = !['RAMP'].includes(work)
  const rows = [...new Set(ofWork.map(({ name }) => name))].map(name => {
    const of = ofWork.filter(run => run.name === name)
    const cells = columns.map(([, value, digits]) => spread(of.map(value), digits))
    const ratios = cost
      ? ['nginx', 'fastify-http-proxy-10k'].map(other => spread(cpuRatios(runs, work, name, other), 2))
      : []
    const errors = of.reduce((sum, run) => sum + run.result.errors, 0)
    const answers = of.reduce((sum, run) => sum + run.result.completed, 0)
    return [name, ...cells, ...ratios, `${errors} of ${answers.toLocaleString('en-US')}`]
  })
  const heads = [
    '',
    ...columns.map(([head]) => head),
    ...(cost ? ['CPU x nginx', 'CPU x fastify 10k'] : []),
    'wrong answers',
  ]
  const noise = noiseOf(ofWork, alone).latency
  const busiest = Math.max(...ofWork.map(run => run.result.load_cpu_share))
  const latest = Math.max(...ofWork.map(run => run.lateUs))
  const stolen = Math.max(...ofWork.map(run => run.stolen))
  return `## ${work}: ${(WORKLOADS[work] as Workload).what}

${table(heads, rows)}

The client used at most ${busiest.toFixed(2)} of its core; the upstream wrote its events at most ${latest.toFixed(0)} us late (p99); the host took at most ${(stolen * 100).toFixed(1)} % of the time away.${noise.length > 0 ? `\nToo noisy to judge: ${noise.join('; ')}.` : ''}`
}

function goalTable(subject: string): string {
  const rows = goalsOf(subject).map(({ figure, unit, must, moonshot, values, verdict }) => {
    const digits = unit === '' ? 0 : 2
    const bound = (value: number) => (Number.isNaN(value) ? '2x nginx' : `${value.toFixed(digits)} ${unit}`)
    return [figure, spread(values, digits), bound(must), bound(moonshot), verdict]
  })
  return `## Goals: ${subject}\n\n${table(['figure', 'measured', 'must', 'moonshot', 'verdict'], rows)}`
}

function goalsOf(subject: string): Goal[] {
  return goals(runs, subject, work =>
    noiseOf(
      runs.filter(run => run.work === work),
      alone,
    ),
  )
}

const subjects = ['weir', 'weir-node24', ...builds.keys()].filter(name => runs.some(run => run.name === name))
const measured = works.filter(work => runs.some(run => run.work === work))
const command = `npm run bench:relay -- --work ${flags.work}${flags.only ? ` --only ${flags.only}` : ''} --reps ${reps}`
const report = `# What relaying costs, beside other proxies

Command: \`npm run build && ${command}\`
${circumstances(ONE_CORE, loadBefore)}

${[...versions].map(([name, version]) => `- ${name}: ${version}`).join('\n')}
${[...skipped].map(([name, reason]) => `- ${name}: SKIPPED: ${reason}`).join('\n')}
${[...failures].map(([name, reason]) => `- ${name}: FAILED: ${reason}`).join('\n')}

Weir runs whole: \`weir serve\` with a config, classification, admission, metrics scraped each 5 s, and one log line a
request into a file. Repetitions go round all contenders, so that the machine's drift hits all alike; cells are the median
of ${reps} (lowest..highest), ratios and differences those within one repetition. CPU is user and system time of the
proxy's whole process tree over the events (W3: requests) of the measured window. Event latency is the client's receipt
less the upstream's write; TTFT starts at the request's scheduled instant. A wrong answer is one that failed, was cut, or
differs in a byte from what the upstream sent (litellm writes events anew: there only order, end and status are checked).

${subjects.map(goalTable).join('\n\n')}

${measured.map(section).join('\n\n')}
`

if (flags.json) {
  const machine = { cores: cpus().length, cpu: cpus()[0]?.model, node: process.version, realtime }
  const noise = Object.fromEntries(
    measured.map(work => [
      work,
      noiseOf(
        runs.filter(run => run.work === work),
        alone,
      ).latency,
    ]),
  )
  const told = Object.fromEntries(
    subjects.map(subject => [
      subject,
      goalsOf(subject).map(goal => ({
        ...goal,
        median: goal.values.length > 0 ? median(goal.values) : null,
      })),
    ]),
  )
  const object = {
    command,
    machine,
    reps,
    versions: Object.fromEntries(versions),
    skipped: Object.fromEntries(skipped),
    failures: Object.fromEntries(failures),
    noise,
    ratios: ratiosOf(runs),
    goals: told,
    runs,
  }
  process.stdout.write(`${JSON.stringify(object)}\n`)
} else process.stdout.write(report)
if (flags.write !== undefined) writeFileSync(flags.write, report)

// Node 24 is told beside it; what must hold is the least Node that Weir runs on.
const verdicts = goalsOf('weir').map(({ verdict }) => verdict)
if (verdicts.includes('MISSED')) process.exitCode = 1
else if (verdicts.includes('too noisy')) process.exitCode = 2
