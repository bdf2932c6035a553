/** How true Weir's clock is: its TTFT and TPOT of each request beside those of a C client and the engine's own stamps. */
import { readFileSync, writeFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import {
  ANY_CORE,
  build,
  circumstances,
  freePort,
  inFolder,
  type LoadResult,
  load,
  median,
  quantile,
  Running,
  sleep,
  spread,
  UPSTREAM,
  upstream,
  weir,
} from './rig.js'

const GOAL_TTFT_MS = 2
const GOAL_TPOT_PERCENT = 1
/** Until Weir's code is compiled and its connections are open; requests that start earlier are not counted. */
const WARMUP_S = 5

const SIMULATED_ENGINE = fileURLToPath(new URL('../../dist/sim/process.js', import.meta.url))

interface Point {
  readonly name: string
  readonly serve: (port: number) => Promise<Running>
  /** The ramp is about as long as a stream, so that starts stay spread. */
  readonly load: readonly string[]
}

const fast = ['--tokens', '50', '--tpot-ms', '50', '--ttft-ms', '200']
const slow = ['--tokens', '20', '--tpot-ms', '200', '--ttft-ms', '200']
const POINTS: readonly Point[] = [
  {
    name: '200 streams x 20 tok/s',
    serve: port => upstream(port, fast),
    load: ['--concurrency', '200', '--ramp', '2.65'],
  },
  {
    name: '1,000 streams x 5 tok/s',
    serve: port => upstream(port, slow),
    load: ['--concurrency', '1000', '--ramp', '4'],
  },
  {
    name: '200 streams x 20 tok/s, each event cut into 4 writes',
    serve: port => upstream(port, [...fast, '--split-bytes', '50']),
    load: ['--concurrency', '200', '--ramp', '2.65'],
  },
  {
    name: 'simulated engine, some 150 streams, 3 tokens an event',
    serve: simulatedEngine,
    load: [
      // A closed loop would send every request into the burst of events that ended the stream before it.
      ...['--rate', '32', '--concurrency', '2000'],
      ...['--lenient', '--model', 'llama2-70b', '--token-bytes', '4'],
      ...['--header', 'x-engine-stamps: 1'],
      ...['--header', 'x-engine-output-tokens: 150'],
      ...['--header', 'x-engine-tokens-per-event: 3'],
    ],
  },
]

function simulatedEngine(port: number): Promise<Running> {
  const options = JSON.stringify({ port, profile: 'llama2-70b' })
  return new Running(UPSTREAM, [process.execPath, SIMULATED_ENGINE, options]).listens(port)
}

/** A line of sse-load's request log; stamps in ns on CLOCK_MONOTONIC, 0 where the engine told none. */
interface Seen {
  readonly id: string
  readonly ttft_ms: number
  readonly tokens: number
  readonly tpot_ms: number
  readonly sent_ns: number
  readonly engine_rx_ns: number
  readonly engine_first_ns: number
  readonly engine_last_ns: number
  readonly new_connection: boolean
}

/** What Weir's log line says of one request. */
interface Told {
  readonly id: string
  readonly ttftMs: number
  readonly upstreamTtftMs: number
  readonly tpotMs: number
  readonly outputTokens: number
  readonly estimated?: boolean
}

/** Errors of one run, one number a request. */
interface Errors {
  readonly requests: number
  /** Client's TTFT less Weir's, ms. */
  readonly ttft: readonly number[]
  /** Weir's TPOT over the client's, less 1, in percent. */
  readonly tpot: readonly number[]
  /** From the client's send to the engine's stamp on its first output, less Weir's TTFT, ms. */
  readonly ttftEngine: readonly number[]
  /** From request read to first output at the engine, less Weir's upstream TTFT, ms; empty where it stamps no reading. */
  readonly upstream: readonly number[]
  /** Weir's TPOT over that of the engine's stamps, less 1, in percent. */
  readonly tpotEngine: readonly number[]
  /** As `ttft`, of requests that had to open a connection. */
  readonly opening: readonly number[]
}

function linesOf(text: string): object[] {
  return text.split('\n').flatMap(line => (line.startsWith('{') ? [JSON.parse(line) as object] : []))
}

/** @throws Error where a request lacks its counterpart, or the two disagree on its tokens */
function compare(seen: readonly Seen[], told: ReadonlyMap<string, Told>): Errors {
  const ttft: number[] = []
  const tpot: number[] = []
  const ttftEngine: number[] = []
  const upstreamPart: number[] = []
  const tpotEngine: number[] = []
  const opening: number[] = []
  for (const client of seen) {
    const own = told.get(client.id)
    if (own === undefined) throw new Error(`${client.id}: Weir's log has no line of it`)
    if (own.outputTokens !== client.tokens || own.estimated)
      throw new Error(`${client.id}: ${own.outputTokens} tokens by Weir, ${client.tokens} by the client`)
    ttft.push(client.ttft_ms - own.ttftMs)
    if (client.new_connection) opening.push(client.ttft_ms - own.ttftMs)
    tpot.push((own.tpotMs / client.tpot_ms - 1) * 100)
    ttftEngine.push((client.engine_first_ns - client.sent_ns) / 1e6 - own.ttftMs)
    if (client.engine_rx_ns > 0)
      upstreamPart.push((client.engine_first_ns - client.engine_rx_ns) / 1e6 - own.upstreamTtftMs)
    const engineTpot = (client.engine_last_ns - client.engine_first_ns) / 1e6 / (client.tokens - 1)
    tpotEngine.push((own.tpotMs / engineTpot - 1) * 100)
  }
  return { requests: seen.length, ttft, tpot, ttftEngine, upstream: upstreamPart, tpotEngine, opening }
}

async function measure(point: Point, seconds: number): Promise<{ result: LoadResult; errors: Errors }> {
  const engine = await freePort()
  const engineProcess = await point.serve(engine)
  try {
    return await inFolder(async folder => {
      const port = await freePort()
      const router = await weir(ANY_CORE, folder, port, `http://127.0.0.1:${engine}`)
      let result: LoadResult
      const requestLog = join(folder, 'requests.jsonl')
      try {
        result = await load(port, [
          ...['--warmup', String(WARMUP_S), '--duration', String(WARMUP_S + seconds)],
          ...['--request-log', requestLog, ...point.load],
        ])
        // The last line comes with the end of the last stream.
        await sleep(500)
      } finally {
        await router.stop()
      }
      if (result.errors > 0) throw new Error(`${point.name}: ${JSON.stringify(result.error_kinds)}`)
      const told = new Map((linesOf(readFileSync(router.log, 'utf8')) as Told[]).map(line => [line.id, line]))
      const seen = linesOf(readFileSync(requestLog, 'utf8')) as Seen[]
      return { result, errors: compare(seen, told) }
    })
  } finally {
    await engineProcess.stop()
  }
}

const { values: flags } = parseArgs({
  options: {
    reps: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '20' },
    /** Only points whose names hold this. */
    only: { type: 'string', default: '' },
    write: { type: 'boolean', default: false },
  },
})
const reps = Number(flags.reps)
const loadBefore = loadavg()[0] ?? Number.NaN
build()

const points = POINTS.filter(({ name }) => name.includes(flags.only))
const runs = new Map<Point, Errors[]>(points.map(point => [point, []]))
for (let rep = 1; rep <= reps; rep++) {
  for (const point of points) {
    const { result, errors } = await measure(point, Number(flags.seconds))
    runs.get(point)?.push(errors)
    const p99 = (values: readonly number[]) => quantile(values.map(Math.abs), 0.99).toFixed(3)
    process.stderr.write(
      `run ${rep}, ${point.name}: ${errors.requests} requests, ${result.events_per_s.toFixed(0)} events/s, p99 of errors: TTFT ${p99(errors.ttft)} ms, TPOT ${p99(errors.tpot)} %, of ${errors.opening.length} that opened a connection TTFT ${p99(errors.opening)} ms, client busy ${result.load_cpu_share}\n`,
    )
  }
}

type Measure = Exclude<keyof Errors, 'requests'>

const PS = [0.5, 0.9, 0.99, 1]

/** Each quantile of the errors' sizes, by run. */
function sizes(point: Point, measure: Measure, p: number): number[] {
  return (runs.get(point) ?? []).map(run => quantile(run[measure].map(Math.abs), p))
}

let missed = false
function row(point: Point, measure: Measure, digits: number, goal?: number): string {
  const cells = PS.map(p => spread(sizes(point, measure, p), digits))
  const requests = median((runs.get(point) ?? []).map(run => run.requests))
  if (goal === undefined) return `| ${point.name} | ${requests} | ${cells.join(' | ')} |`
  const met = median(sizes(point, measure, 0.99)) <= goal
  if (!met) missed = true
  return `| ${point.name} | ${requests} | ${cells.join(' | ')} | ${met ? 'met' : 'MISSED'} |`
}

function table(measure: Measure, digits: number, goal?: number): string {
  const columns = ['point', 'requests a run', 'p50', 'p90', 'p99', 'max', ...(goal ? ['goal'] : [])]
  const rows = points.filter(point => (runs.get(point)?.[0]?.[measure].length ?? 0) > 0)
  return [
    `| ${columns.join(' | ')} |`,
    `|${'---|'.repeat(columns.length)}`,
    ...rows.map(point => row(point, measure, digits, goal)),
  ].join('\n')
}

/** Share of requests, in percent, for which the client's TTFT was the longer one. */
const longer = [...runs.values()].flat().flatMap(run => run.ttft)
const longerShare = (longer.filter(error => error >= 0).length / longer.length) * 100

const report = `# How true Weir's clock is

Command: \`npm run build && node --import @tapjs/typescript/import bench/relay/fidelity.ts --reps ${reps} --seconds ${flags.seconds} --write\`
${circumstances(ANY_CORE, loadBefore)}

Each request is timed three times: by Weir (its log line: \`ttftMs\`, \`upstreamTtftMs\`, \`tpotMs\`), by a C client that
shares no code with it, and by the stamps (CLOCK_MONOTONIC, one clock for all processes of the machine) that the engine
puts into its events. They are joined by \`x-request-id\`; every request of the client had its line and the same number of
tokens. ${WARMUP_S} s of warm-up are left out. Errors are absolute, one a request; cells are the median of ${reps} runs (lowest..highest).

The client's TTFT runs from its send to the event in its hands. Weir's runs from the complete body to the event in
Weir's hands. So the client's holds more: both ways between client and Weir, Weir's reading of the head, and its write.
It was the longer one for ${longerShare.toFixed(1)} % of the requests.

## TTFT: client less Weir, ms. Goal: p99 at most ${GOAL_TTFT_MS}

${table('ttft', 2, GOAL_TTFT_MS)}

## TPOT: Weir against client, % of the client's. Goal: p99 at most ${GOAL_TPOT_PERCENT}

${table('tpot', 3, GOAL_TPOT_PERCENT)}

## Against the engine's stamps

TTFT, ms: from the client's send to the engine's stamp on its first output, less Weir's.

${table('ttftEngine', 2)}

Upstream TTFT, ms: from the request read by the engine to its stamp on the first output, less Weir's. The simulated
engine does not stamp the reading.

${table('upstream', 2)}

TPOT, % of the engine's.

${table('tpotEngine', 3)}

Streams of the first and third point have 50 tokens, of the second 20, in a closed loop with starts spread. The simulated
engine (profile llama2-70b) answers 32 requests/s, Poisson, with 150 tokens in 50 events each, and sends the events of all
its streams in one burst an iteration; there Weir asks for usage and takes the added event out again, and the client
counts tokens by the length of the text.
`

process.stdout.write(report)
if (flags.write) writeFileSync(new URL('../results/fidelity.md', import.meta.url), report)
if (missed) process.exitCode = 1
