/** Mixed load with clients that leave, reset and read slowly and upstreams that break off: nothing may be wrong or left over. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import {
  ANY_CORE,
  besideChat,
  build,
  circumstances,
  freePort,
  inFolder,
  type LoadResult,
  load,
  type Place,
  type Router,
  Running,
  sleep,
  weir,
} from './rig.js'

const { values: flags } = parseArgs({
  options: {
    minutes: { type: 'string', default: '30' },
    cycle: { type: 'string', default: '20' },
    write: { type: 'string' },
  },
})
/** Ordinary priority everywhere: what is sought are faults, not times. */
const SHARED: Place = { ...ANY_CORE, priority: 0 }
const CYCLE_S = Number(flags.cycle)
/** Streams still open then get to end; the slow readers need the longest. */
const DRAIN_S = 25
/** Growth is told from one third of the cycles to the next. */
const CYCLES_LEAST = 3
/** A stream silent for so long has stalled. */
const STALL_S = 15
const REST_MS = 2500
const SLOWEST_END_MS = 15_000

interface Kind {
  readonly name: string
  /** Its requests come to an upstream that breaks off. */
  readonly frail?: true
  readonly load: readonly string[]
  /** What must have happened at least once, else the soak has proved nothing. */
  readonly happened: (result: LoadResult) => boolean
}

const completes = (result: LoadResult) => result.completed > 0
const KINDS: readonly Kind[] = [
  kind('streams', '--concurrency 60', completes),
  kind('cut into 7 bytes', '--concurrency 20 --header x-sim-split-bytes:7', completes),
  kind(
    'chunks of 1 byte',
    '--concurrency 2 --header x-sim-split-bytes:1 --header x-sim-tokens:40',
    completes,
  ),
  kind('clients that close', '--concurrency 40 --leave close --leave-within 2500', result => result.left > 0),
  kind('clients that reset', '--concurrency 40 --leave reset --leave-within 2500', result => result.left > 0),
  kind(
    'slow readers',
    '--concurrency 8 --slow-bytes 32768 --slow-ms 20 --header x-sim-event-bytes:16000 --header x-sim-tpot-ms:4 --header x-sim-tokens:400',
    completes,
  ),
  kind('large prompts', '--rate 3 --concurrency 60 --prompt-bytes 400000 --messages 200', completes),
  kind('plain answers', '--rate 60 --concurrency 100 --no-stream', completes),
  kind(
    'large plain answers',
    '--rate 5 --concurrency 50 --no-stream --header x-sim-json-bytes:500000',
    completes,
  ),
  kind('cut streams', '--concurrency 15 --cut --header x-sim-abort-after:20', result => result.cut > 0, true),
  kind(
    'reset streams',
    '--concurrency 15 --cut --header x-sim-abort-after:20 --header x-sim-reset:1',
    result => result.cut > 0,
    true,
  ),
]

function kind(name: string, line: string, happened: Kind['happened'], frail?: true): Kind {
  const model = frail ? ['--model', 'frail'] : []
  return { name, load: [...line.split(' '), ...model], happened, ...(frail && { frail }) }
}

const CONFIG = besideChat('frail', '500ms', 50)

/** Collects garbage and tells the memory on SIGUSR2, so that what is measured is what is held. */
function telling(file: string): string {
  const code = `process.on('SIGUSR2', () => { globalThis.gc(); fs.writeFileSync(${JSON.stringify(file)}, JSON.stringify(process.memoryUsage())) }); import fs from 'node:fs'`
  return `data:text/javascript,${encodeURIComponent(code)}`
}

interface Rest {
  readonly heapMb: number
  readonly outsideMb: number
  readonly rssMb: number
  readonly descriptors: number
}

const violations: string[] = []
function violated(text: string): void {
  violations.push(text)
  process.stdout.write(`VIOLATION: ${text}\n`)
}

async function metricsOf(router: Router): Promise<string> {
  return (await fetch(`http://127.0.0.1:${router.adminPort}/metrics`)).text()
}

/** Value of each series of these names. */
function series(text: string, names: readonly string[]): [string, number][] {
  return text.split('\n').flatMap(line => {
    const [name = '', value] = line.split(' ')
    return names.includes(name.split('{')[0]!) ? [[name, Number(value)] as [string, number]] : []
  })
}

/** Connections of clients that the router still holds. */
function clientSockets(port: number): number {
  const hex = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  const LISTENS = '0A'
  // Their last state belongs to the kernel, not to the process.
  const TIME_WAIT = '06'
  return readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .filter(line => {
      const [, local = '', , state = ''] = line.trim().split(/\s+/)
      return local.endsWith(hex) && state !== LISTENS && state !== TIME_WAIT
    }).length
}

async function eventsOf(port: number): Promise<number> {
  const response = await fetch(`http://127.0.0.1:${port}/stats`)
  return ((await response.json()) as { readonly events: number }).events
}

/** Everything that must be so when nobody asks for anything. */
async function rest(router: Router, port: number, upstreams: readonly number[], file: string): Promise<Rest> {
  await sleep(REST_MS)
  const until = performance.now() + SLOWEST_END_MS
  const left = async () => [
    ...series(await metricsOf(router), [
      'weir_in_flight',
      'weir_queue_depth',
      'weir_replica_outstanding_prefill_tokens',
    ])
      .filter(([, value]) => value !== 0)
      .map(([name, value]) => `${name} is ${value} at rest`),
    ...(clientSockets(port) > 0
      ? [`${clientSockets(port)} connections of clients are still open at rest`]
      : []),
  ]
  while ((await left()).length > 0 && performance.now() < until) await sleep(500)
  for (const text of await left()) violated(text)
  for (const upstream of upstreams) {
    const before = await eventsOf(upstream)
    await sleep(300)
    if ((await eventsOf(upstream)) !== before)
      violated('an upstream still streams although every client is gone')
  }
  process.kill(router.pid, 'SIGUSR2')
  await sleep(700)
  const { heapUsed, external, rss } = JSON.parse(readFileSync(file, 'utf8')) as NodeJS.MemoryUsage
  const descriptors = readdirSync(`/proc/${router.pid}/fd`).length
  return { heapMb: heapUsed / 1e6, outsideMb: external / 1e6, rssMb: rss / 1e6, descriptors }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

/**
 * Growth from the second third of the rests to the last; in the first one tables and windows still fill up.
 * @param allowed  noise of the measure: the windows of the SLO and the sketches breathe
 */
function grows(rests: readonly Rest[], of: (rest: Rest) => number, what: string, allowed: number): void {
  const third = Math.floor(rests.length / 3)
  const middle = mean(rests.slice(third, 2 * third).map(of))
  const last = mean(rests.slice(-third).map(of))
  const text = `${what} at rest: ${middle.toFixed(1)} in the second third, ${last.toFixed(1)} in the last`
  process.stdout.write(`${text}\n`)
  if (last - middle > allowed) violated(`${text}: may grow by ${allowed}`)
}

const minutes = Number(flags.minutes)
const startedAt = performance.now()
const loadBefore = loadavg()[0] ?? Number.NaN
build()
const total = { started: 0, completed: 0, left: 0, cut: 0, wrong: 0, events: 0 }
const rests: Rest[] = []
await inFolder(async folder => {
  const upstreams = [await freePort(), await freePort()]
  const servers: Running[] = []
  for (const port of upstreams) {
    const argv = [
      './sse-upstream',
      '--port',
      String(port),
      '--tokens',
      '60',
      '--tpot-ms',
      '20',
      '--ttft-ms',
      '50',
    ]
    servers.push(await new Running(SHARED, argv).listens(port))
  }
  const port = await freePort()
  const file = join(folder, 'memory.json')
  const router = await weir(SHARED, folder, port, `http://127.0.0.1:${upstreams[0]}`, {
    config: CONFIG.replace('FRAIL', `http://127.0.0.1:${upstreams[1]}`),
    node: [process.execPath, '--expose-gc', '--import', telling(file)],
    // Nothing is to be refused for load here, however busy the machine.
    flags: ['--policy=simple'],
  })
  try {
    let counted = 0
    const over = () => (performance.now() - startedAt) / 60_000 >= minutes - 0.1
    for (let cycle = 1; cycle <= CYCLES_LEAST || !over(); cycle++) {
      const shared = ['--duration', String(CYCLE_S), '--drain', String(DRAIN_S), '--timeout', String(STALL_S)]
      const results = await Promise.all(KINDS.map(({ load: own }) => load(port, [...shared, ...own], SHARED)))
      for (const [i, result] of results.entries()) {
        const { name, happened } = KINDS[i]!
        if (result.errors > 0)
          violated(`${name}: ${result.errors} wrong: ${JSON.stringify(result.error_kinds)}`)
        if (result.unfinished > 0) violated(`${name}: ${result.unfinished} did not end within ${DRAIN_S} s`)
        if (!happened(result)) violated(`${name}: nothing of the kind happened: ${JSON.stringify(result)}`)
        total.started += result.started
        total.completed += result.completed
        total.left += result.left
        total.cut += result.cut
        total.wrong += result.errors
        total.events += result.events
      }
      if (router.ended) throw new Error(`Weir ended: ${router.errors}`)
      const now = await rest(router, port, upstreams, file)
      rests.push(now)
      // Those who left early may not have come as far as being counted; nobody is counted twice.
      const requests = series(await metricsOf(router), ['weir_requests_total']).reduce(
        (sum, [, n]) => sum + n,
        0,
      )
      const least = total.completed
      if (requests < least || requests > total.started) {
        violated(`weir_requests_total is ${requests}: ${least} completed, ${total.started} started`)
      }
      if (requests < counted) violated(`weir_requests_total fell from ${counted} to ${requests}`)
      counted = requests
      process.stdout.write(
        `cycle ${cycle}: ${total.started} requests, ${total.events} events, ${total.left} left, ${total.cut} cut, ${total.wrong} wrong; at rest heap ${now.heapMb.toFixed(1)} MB, outside ${now.outsideMb.toFixed(1)} MB, RSS ${now.rssMb.toFixed(0)} MB, ${now.descriptors} descriptors\n`,
      )
    }
  } finally {
    await router.stop()
    for (const server of servers) await server.stop()
  }
  const said = readFileSync(router.log, 'utf8')
    .split('\n')
    .filter(line => /"level":(50|60)/.test(line))
  if (said.length > 0) violated(`Weir logged ${said.length} errors, the first: ${said[0]}`)
  if (router.errors !== '') violated(`Weir wrote to stderr: ${router.errors}`)
})
grows(rests, ({ heapMb }) => heapMb, 'heap, MB,', 4)
grows(rests, ({ outsideMb }) => outsideMb, 'memory outside the heap, MB,', 15)
grows(rests, ({ descriptors }) => descriptors, 'open descriptors', 20)
const verdict = violations.length === 0 ? 'no violation' : `${violations.length} violations`
process.stdout.write(`${verdict} in ${((performance.now() - startedAt) / 60_000).toFixed(1)} min\n`)
if (flags.write !== undefined) writeFileSync(flags.write, report())
if (violations.length > 0) process.exitCode = 1

function report(): string {
  const third = Math.floor(rests.length / 3)
  const at = (from: number, to: number | undefined, of: (rest: Rest) => number) =>
    mean(rests.slice(from, to).map(of)).toFixed(1)
  const row = (what: string, of: (rest: Rest) => number) =>
    `| ${what} | ${at(0, 1, of)} | ${at(third, 2 * third, of)} | ${at(-third, undefined, of)} |`
  return `# Mixed load over time

Command: \`npm run build && node --import @tapjs/typescript/import bench/relay/soak.ts --minutes ${minutes}\`
${circumstances(SHARED, loadBefore)
  .split('\n')
  .filter(line => !line.startsWith('The proxy ran'))
  .join('\n')}

${total.started.toLocaleString('en-US')} requests, ${total.events.toLocaleString('en-US')} events in ${rests.length} cycles of ${CYCLE_S} s, each followed by a rest: ${KINDS.map(({ name }) => name).join(', ')}.
${total.left.toLocaleString('en-US')} streams were left by their clients, ${total.cut.toLocaleString('en-US')} broke off at the upstream, ${total.wrong} answers were wrong.
At each rest: in-flight, queue and prefill gauges 0, no client's connection open, no upstream still streaming.

| at rest | first | second third | last third |
| --- | --- | --- | --- |
${row('heap after a collection, MB', ({ heapMb }) => heapMb)}
${row('outside the heap, MB', ({ outsideMb }) => outsideMb)}
${row('RSS, MB', ({ rssMb }) => rssMb)}
${row('descriptors', ({ descriptors }) => descriptors)}

${violations.length === 0 ? 'No violation.' : `Violations:\n\n${violations.map(text => `- ${text}`).join('\n')}`}
`
}
