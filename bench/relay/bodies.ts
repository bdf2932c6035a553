/** What large bodies do to the streams beside them: clients and upstreams of both in processes of their own. */
import { writeFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import {
  besideChat,
  build,
  circumstances,
  freePort,
  inFolder,
  type LoadResult,
  load,
  median,
  ONE_CORE,
  type Place,
  Running,
  spread,
  upstream,
  weir,
} from './rig.js'

const { values: flags } = parseArgs({
  options: {
    reps: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '10' },
    main: { type: 'string' },
    write: { type: 'string' },
  },
})
const reps = Number(flags.reps)
const seconds = Number(flags.seconds)

/** No stream may wait longer than this for its next event because of someone's body. */
const GOAL_MS = 50
/** The streams' own client and upstream come first, so that what is measured is Weir. */
const BULK: Place = { cores: '1', priority: 1 }

const MB = 1_000_000
interface Point {
  readonly name: string
  readonly streams: number
  readonly body: number
  /** Bodies a second. */
  readonly rate: number
}
const POINTS: readonly Point[] = [
  { name: 'no bodies', streams: 10, body: 0, rate: 0 },
  { name: '1.1 MB, 5 a second', streams: 10, body: 1.1 * MB, rate: 5 },
  { name: '4.9 MB, 2 a second', streams: 10, body: 4.9 * MB, rate: 2 },
  { name: '20 MB, 1 a second', streams: 10, body: 20 * MB, rate: 1 },
  { name: 'no bodies, 300 streams', streams: 300, body: 0, rate: 0 },
  { name: '20 MB, 1 a second, 300 streams', streams: 300, body: 20 * MB, rate: 1 },
]

const CONFIG = besideChat('bulk', '5s', 50_000)

interface Found {
  readonly streams: LoadResult
  readonly bodies: LoadResult | undefined
}

function measure({ streams, body, rate }: Point): Promise<Found> {
  return inFolder(async folder => {
    const [own, bulk, port] = [await freePort(), await freePort(), await freePort()]
    const short = ['--tokens', '20', '--tpot-ms', '20', '--ttft-ms', '50']
    const servers = [
      await upstream(own, ['--tokens', '200', '--tpot-ms', '20', '--ttft-ms', '50']),
      await new Running(BULK, ['./sse-upstream', '--port', String(bulk), ...short]).listens(bulk),
    ]
    const config = CONFIG.replace('BULK', `http://127.0.0.1:${bulk}`)
    const options = { config, ...(flags.main !== undefined && { main: flags.main }) }
    const router = await weir(ONE_CORE, folder, port, `http://127.0.0.1:${own}`, options)
    try {
      const beside = ['--concurrency', String(streams), '--warmup', '3', '--duration', String(3 + seconds)]
      const heavy = [
        '--rate',
        String(rate),
        '--arrivals',
        'uniform',
        '--concurrency',
        '50',
        '--model',
        'bulk',
      ]
      const [result, bodies] = await Promise.all([
        load(port, [...beside, '--ramp', '2', '--drain', '6']),
        rate === 0
          ? undefined
          : load(
              port,
              [...heavy, '--prompt-bytes', String(body), '--duration', String(3 + seconds), '--drain', '10'],
              BULK,
            ),
      ])
      return { streams: result, bodies }
    } finally {
      await router.stop()
      for (const server of servers) await server.stop()
    }
  })
}

const loadBefore = loadavg()[0] ?? Number.NaN
build()
const found = new Map<Point, Found[]>(POINTS.map(point => [point, []]))
for (let rep = 1; rep <= reps; rep++) {
  for (const point of POINTS) {
    const one = await measure(point)
    found.get(point)?.push(one)
    const { gap_error_us, errors } = one.streams
    process.stderr.write(
      `run ${rep}, ${point.name}: gap longer by p99 ${gap_error_us.p99.toFixed(0)} us, at most ${gap_error_us.max.toFixed(0)} us; ${one.bodies?.completed ?? 0} bodies, ${errors + (one.bodies?.errors ?? 0)} wrong\n`,
    )
  }
}

let missed = false
const rows = POINTS.map(point => {
  const runs = found.get(point) ?? []
  const of = (value: (result: LoadResult) => number, digits: number) =>
    spread(
      runs.map(run => value(run.streams)),
      digits,
    )
  const longest = runs.map(run => run.streams.gap_error_us.max / 1000)
  const wrong = runs.reduce((sum, run) => sum + run.streams.errors + (run.bodies?.errors ?? 0), 0)
  const met = median(longest) <= GOAL_MS && wrong === 0
  if (!met) missed = true
  const ttft = spread(
    runs.map(run => run.bodies && run.bodies.ttft_us.p50 / 1000),
    0,
  )
  const cells = [
    point.name,
    String(point.streams),
    of(result => result.gap_error_us.p99 / 1000, 2),
    spread(longest, 1),
    of(result => result.event_us.max / 1000, 1),
    ttft,
    String(runs.reduce((sum, run) => sum + (run.bodies?.completed ?? 0), 0)),
    String(wrong),
    met ? 'met' : 'MISSED',
  ]
  return `| ${cells.join(' | ')} |`
})

const report = `# Streams beside large bodies

Command: \`npm run build && node --import @tapjs/typescript/import bench/relay/bodies.ts --reps ${reps} --seconds ${seconds}\`
${circumstances(ONE_CORE, loadBefore)}

Streams of 50 tok/s go to one upstream, requests with large bodies to another; the two clients and the two upstreams are a
process each. Gap error: by how much the time between two events of a stream is longer at the client than it was at the
upstream. Goal: never more than ${GOAL_MS} ms. Cells are the median of ${reps} runs (lowest..highest).

| bodies | streams | gap error p99 ms | longest ms | event latency max ms | TTFT of the bodies p50 ms | bodies | wrong answers | goal |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
${rows.join('\n')}
`
process.stdout.write(report)
if (flags.write !== undefined) writeFileSync(flags.write, report)
if (missed) process.exitCode = 1
