/** What relaying costs: Weir beside nginx, @fastify/http-proxy and no proxy at all, in turns, on workloads W1 to W4. */
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import {
  build,
  circumstances,
  freePort,
  here,
  inFolder,
  type LoadResult,
  load,
  ONE_CORE,
  Running,
  residentKb,
  sleep,
  spread,
  upstream,
  upstreamLateUs,
  weir,
} from './rig.js'

interface Workload {
  readonly what: string
  readonly upstream: readonly string[]
  readonly warmup: readonly string[]
  readonly load: readonly string[]
}

const STREAM_WARMUP = ['--concurrency', '100', '--duration', '3', '--ramp', '0.2', '--drain', '0']
const WORKLOADS: Readonly<Record<string, Workload>> = {
  W1: {
    what: '200 streams x 50 tok/s x 200 tokens: 10,000 events/s, below saturation',
    upstream: ['--tokens', '200', '--tpot-ms', '20', '--ttft-ms', '50'],
    warmup: STREAM_WARMUP,
    load: args('--concurrency 200 --duration 7 --warmup 2 --ramp 1.5 --drain 6'),
  },
  W2: {
    what: '1,000 streams x 33 tok/s: 33,000 events/s, past the saturation of most proxies',
    upstream: ['--tokens', '200', '--tpot-ms', '30.303', '--ttft-ms', '50'],
    warmup: STREAM_WARMUP,
    load: args('--concurrency 1000 --duration 6.5 --warmup 2.5 --ramp 2 --drain 12'),
  },
  W3: {
    what: 'plain JSON answers of 1 KB, 64 connections, closed loop',
    upstream: [],
    warmup: args('--no-stream --concurrency 32 --duration 2'),
    load: args('--no-stream --concurrency 64 --duration 3 --warmup 0.5 --ramp 0.2'),
  },
  W4: {
    what: '2,000 streams x 5 tok/s: memory per stream',
    upstream: ['--tokens', '50', '--tpot-ms', '200', '--ttft-ms', '50'],
    // Only a little: memory is what is measured.
    warmup: args('--concurrency 100 --duration 1 --ramp 0.2 --drain 0'),
    load: args('--concurrency 2000 --duration 10 --warmup 4 --ramp 3 --drain 12'),
  },
}

function args(line: string): string[] {
  return line.split(' ')
}

/** Starts a proxy on `port` before the upstream; undefined is no proxy. */
type Start = (folder: string, port: number, upstreamPort: number) => Promise<Running>

const NGINX = 'nginx'
const FASTIFY = '@fastify/http-proxy'
const CONTENDERS: Readonly<Record<string, Start | undefined>> = {
  direct: undefined,
  [NGINX]: (folder, port, upstreamPort) => {
    const template = readFileSync(join(here, 'contenders/nginx.conf'), 'utf8')
    const file = join(folder, 'nginx.conf')
    writeFileSync(file, template.replace('@UPSTREAM@', String(upstreamPort)).replace('@PORT@', String(port)))
    return new Running(ONE_CORE, ['nginx', '-p', folder, '-c', file]).listens(port)
  },
  [FASTIFY]: (_, port, upstreamPort) => {
    const file = join(here, 'contenders/fastify-http-proxy.mjs')
    const target = `http://127.0.0.1:${upstreamPort}`
    return new Running(ONE_CORE, [process.execPath, file, String(port), target, '10000']).listens(port)
  },
  weir: (folder, port, upstreamPort) =>
    weir(ONE_CORE, folder, port, `http://127.0.0.1:${upstreamPort}`, 'warn'),
}

interface Run {
  readonly work: string
  readonly name: string
  readonly rep: number
  readonly result: LoadResult
  /** Resident memory after warm-up. */
  readonly idleKb: number
  /** p99 of how late the upstream wrote its events. */
  readonly lateUs: number
}

function run(work: string, workload: Workload, name: string, rep: number): Promise<Run> {
  return inFolder(async folder => {
    const upstreamPort = await freePort()
    const server = await upstream(upstreamPort, workload.upstream)
    let proxy: Running | undefined
    try {
      const proxyPort = await freePort()
      proxy = await CONTENDERS[name]?.(folder, proxyPort, upstreamPort)
      const port = proxy === undefined ? upstreamPort : proxyPort
      if (proxy !== undefined) await load(port, workload.warmup)
      await sleep(300)
      const pids = proxy?.tree() ?? []
      const idleKb = residentKb(pids)
      const result = await load(port, [...workload.load, ...(proxy ? ['--pid', pids.join(',')] : [])])
      return { work, name, rep, result, idleKb, lateUs: await upstreamLateUs(upstreamPort) }
    } finally {
      await proxy?.stop()
      await server.stop()
    }
  })
}

const { values: flags } = parseArgs({
  options: {
    work: { type: 'string', default: Object.keys(WORKLOADS).join(',') },
    only: { type: 'string', default: Object.keys(CONTENDERS).join(',') },
    reps: { type: 'string', default: '3' },
    write: { type: 'boolean', default: false },
  },
})
const reps = Number(flags.reps)
const names = flags.only.split(',')
const loadBefore = loadavg()[0] ?? Number.NaN
build()
if (names.includes(FASTIFY) && !existsSync(join(here, 'contenders/node_modules'))) {
  const install = ['install', '--ignore-scripts', '--no-package-lock', '--no-audit', '--no-fund']
  execFileSync('npm', install, { cwd: join(here, 'contenders'), stdio: ['ignore', 2, 2] })
}

const runs: Run[] = []
for (const work of flags.work.split(',')) {
  const workload = WORKLOADS[work]
  if (workload === undefined) throw new Error(`no workload ${work}; there are ${Object.keys(WORKLOADS)}`)
  for (let rep = 1; rep <= reps; rep++) {
    for (const name of names) {
      const done = await run(work, workload, name, rep)
      runs.push(done)
      const { proxy, event_us, errors, error_kinds, load_cpu_share, requests_per_s, events_per_s } =
        done.result
      process.stderr.write(
        `${work} ${rep} ${name}: ${events_per_s.toFixed(0)} events/s, ${requests_per_s.toFixed(0)} requests/s, CPU ${proxy?.cpu_us_per_event.toFixed(1)} us, p99 ${event_us.p99.toFixed(0)} us, ${errors} errors ${errors > 0 ? JSON.stringify(error_kinds) : ''}, client busy ${load_cpu_share}, upstream late ${done.lateUs} us\n`,
      )
    }
  }
}

/** CPU of each run over that of `other` in the same repetition. */
function ratios(of: readonly Run[], other: string): (number | undefined)[] {
  return of.map(({ work, rep, result }) => {
    const same = runs.find(run => run.work === work && run.rep === rep && run.name === other)
    const own = result.proxy?.cpu_us_per_event
    const its = same?.result.proxy?.cpu_us_per_event
    return own === undefined || its === undefined ? undefined : own / its
  })
}

type Column = readonly [head: string, of: (run: Run) => number | undefined, digits: number]

const CPU_SHARE: Column = ['CPU share', run => run.result.proxy?.cpu_share, 2]
const EVENT_COLUMNS: readonly Column[] = [
  ['events/s', run => run.result.events_per_s, 0],
  ['CPU us/event', run => run.result.proxy?.cpu_us_per_event, 1],
  ['of that user', run => run.result.proxy?.user_us_per_event, 1],
  CPU_SHARE,
  ['event p50 us', run => run.result.event_us.p50, 0],
  ['event p99 us', run => run.result.event_us.p99, 0],
  ['TTFT p99 ms', run => run.result.ttft_us.p99 / 1000, 1],
]
const COLUMNS: Readonly<Record<string, readonly Column[]>> = {
  W1: EVENT_COLUMNS,
  W2: EVENT_COLUMNS,
  W3: [
    ['requests/s', run => run.result.requests_per_s, 0],
    ['CPU us/request', run => run.result.proxy?.cpu_us_per_event, 1],
    CPU_SHARE,
    ['p50 us', run => run.result.total_us.p50, 0],
    ['p99 us', run => run.result.total_us.p99, 0],
  ],
  W4: [
    [
      'KB/stream',
      ({ result, idleKb }) => result.proxy && (result.proxy.rss_kb - idleKb) / result.concurrency,
      1,
    ],
    ['RSS MB', run => run.result.proxy && run.result.proxy.rss_kb / 1024, 0],
    ...EVENT_COLUMNS,
  ],
}

function section(work: string): string {
  const columns = COLUMNS[work] ?? EVENT_COLUMNS
  const ofWork = runs.filter(run => run.work === work)
  const rows = names.map(name => {
    const of = ofWork.filter(run => run.name === name)
    const cells = columns.map(([, value, digits]) => spread(of.map(value), digits))
    const errors = of.reduce((sum, run) => sum + run.result.errors, 0)
    const answers = of.reduce((sum, run) => sum + run.result.completed, 0)
    const against = [NGINX, FASTIFY].map(other => spread(ratios(of, other), 2))
    return `| ${[name, ...cells, ...against, `${errors} of ${answers.toLocaleString('en-US')}`].join(' | ')} |`
  })
  const heads = ['', ...columns.map(([head]) => head), 'CPU x nginx', 'CPU x fastify', 'wrong answers']
  const busiest = Math.max(...ofWork.map(run => run.result.load_cpu_share))
  const latest = Math.max(...ofWork.map(run => run.lateUs))
  return `## ${work}: ${WORKLOADS[work]?.what}

| ${heads.join(' | ')} |
|${'---|'.repeat(heads.length)}
${rows.join('\n')}

The client used at most ${busiest.toFixed(2)} of its core; the upstream wrote its events at most ${latest.toFixed(0)} us late (p99).`
}

function versionOf(file: string): string {
  const { version } = JSON.parse(readFileSync(join(here, 'contenders', file), 'utf8')) as { version: string }
  return version
}

const versions = [
  ...(names.includes(NGINX) ? [spawnSync('nginx', ['-v']).stderr.toString().trim()] : []),
  ...(names.includes(FASTIFY)
    ? [`${FASTIFY} ${versionOf(`node_modules/${FASTIFY}/package.json`)} with 10,000 connections`]
    : []),
].join('; ')

const command = `node --import @tapjs/typescript/import bench/relay/baseline.ts --reps ${reps} --write`
const report = `# What relaying costs, beside other proxies

Command: \`npm run build && ${command}\`
${circumstances(ONE_CORE, loadBefore)}
${versions}; Weir's log level is warn.

No target: a record of where Weir stands. Repetitions go round all contenders, so that the machine's drift hits all alike;
cells are the median of ${reps} (lowest..highest), ratios those within one repetition. Compare ratios, not figures of two runs.
CPU is user and system time of the proxy's whole process tree over the events (W3: requests) of the measured window.
Event latency is the client's receipt less the upstream's write. A wrong answer is one that failed, was cut, or differs in a
byte from what the upstream sent. With real-time priority the helper threads of a Node process take turns with its main
thread on that one core, which lengthens the tail of its latencies and not its CPU.

${[...new Set(runs.map(({ work }) => work))].map(section).join('\n\n')}
`

process.stdout.write(report)
if (flags.write) writeFileSync(new URL('../results/relay-baseline.md', import.meta.url), report)
if (runs.some(({ result }) => result.errors > 0)) process.exitCode = 1
