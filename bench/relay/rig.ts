/** What the relay benches share: processes on cores of their own, the C load generator, Weir before one upstream. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import net, { type AddressInfo } from 'node:net'
import { cpus, loadavg, release, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

export const here = fileURLToPath(new URL('.', import.meta.url))
const root = fileURLToPath(new URL('../..', import.meta.url))

/** Upstream and load share core 1; a proxy whose cost is compared has core 0 to itself. */
export const ONE_CORE: Place = { cores: '0', priority: 5 }
export const ANY_CORE: Place = { cores: '0,1', priority: 5 }
export const UPSTREAM: Place = { cores: '1', priority: 10 }
export const LOAD: Place = { cores: '1', priority: 20 }

/** Real-time priority keeps other jobs of the machine out of the latencies; it needs the right to set it. */
export const realtime = spawnSync('chrt', ['-r', '10', 'true']).status === 0
/** Without it the proxy's figures hold the generators' use of its core, too. */
export const pinned = cpus().length > 1 && spawnSync('taskset', ['-c', '0,1', 'true']).status === 0

export interface Place {
  readonly cores: string
  /** Of real time, 1 to 99; 0 is ordinary. */
  readonly priority: number
}

/** Round robin: first-in-first-out would let one thread of a Node process starve the others on its core. */
function placed({ cores, priority }: Place, argv: readonly string[]): string[] {
  return [
    ...(realtime && priority > 0 ? ['chrt', '-r', String(priority)] : []),
    ...(pinned ? ['taskset', '-c', cores] : []),
    ...argv,
  ]
}

/** How long a process may take to end after SIGTERM. */
const STOP_MS = 5000

interface RunOptions {
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  /** Where stdout goes: to `out`, or to a file; else nowhere. */
  readonly stdout?: 'keep' | { readonly file: string }
}

/** A process that is one of the bench's own. */
export class Running {
  readonly pid: number
  /** The end of what it wrote to stderr. */
  errors = ''
  /** What it wrote to stdout, if that is kept. */
  out = ''
  private readonly child: ChildProcess
  private readonly gone: Promise<void>

  constructor(place: Place, argv: readonly string[], options: RunOptions = {}) {
    const { cwd = here, env = {}, stdout } = options
    const [command = '', ...args] = placed(place, argv)
    const file = typeof stdout === 'object' ? openSync(stdout.file, 'w') : undefined
    this.child = spawn(command, args, {
      cwd,
      env: { ...process.env, NODE_ENV: 'production', ...env },
      stdio: ['ignore', file ?? (stdout === 'keep' ? 'pipe' : 'ignore'), 'pipe'],
    })
    if (file !== undefined) closeSync(file)
    this.gone = new Promise((resolve, reject) => {
      this.child.once('close', () => resolve())
      this.child.once('error', reject)
    })
    this.child.stderr?.on('data', data => {
      this.errors = (this.errors + String(data)).slice(-4000)
    })
    const parts: Buffer[] = []
    this.child.stdout?.on('data', (data: Buffer) => parts.push(data))
    this.child.once('close', () => {
      this.out = Buffer.concat(parts).toString()
    })
    this.pid = this.child.pid ?? 0
  }

  get ended(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null
  }

  /** Resolves when it ended by itself and all its output is here. */
  async end(): Promise<string> {
    await this.gone
    return this.out
  }

  async stop(): Promise<string> {
    if (!this.ended) this.child.kill('SIGTERM')
    const timer = setTimeout(() => this.child.kill('SIGKILL'), STOP_MS)
    await this.gone
    clearTimeout(timer)
    return this.out
  }

  /** Resolves when `port` takes connections. */
  async listens(port: number): Promise<this> {
    for (let tries = 0; tries < 600 && !this.ended; tries++) {
      if (await opens(port)) return this
      await sleep(100)
    }
    await this.stop()
    throw new Error(`port ${port} does not open: ${this.errors || this.out.slice(-500)}`)
  }

  /** Its own id and those of all its descendants. */
  tree(): number[] {
    const parents = new Map<number, number>()
    for (const name of readdirSync('/proc')) {
      if (!/^\d+$/.test(name)) continue
      const stat = readOr(`/proc/${name}/stat`, '')
      parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 4).split(' ')[0]))
    }
    const all = [this.pid]
    for (let i = 0; i < all.length; i++)
      for (const [pid, parent] of parents) if (parent === all[i]) all.push(pid)
    return all
  }
}

function opens(port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = net.connect(port, '127.0.0.1', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
}

function readOr(path: string, otherwise: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return otherwise
  }
}

/**
 * CPU that other programs with real-time priority have used so far, in the kernel's ticks: what they use while
 * something is measured may be taken from it.
 */
export function rivalTicks(): number {
  const fields = (pid: string) => {
    const stat = readOr(`/proc/${pid}/stat`, '')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  }
  const own = (pid: string): boolean => {
    for (let at = pid; Number(at) > 1; at = fields(at)[1] ?? '0') if (Number(at) === process.pid) return true
    return false
  }
  let ticks = 0
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const { 11: user, 12: system, 37: priority } = fields(name)
    // The kernel's own threads have no command line.
    if (!(Number(priority) > 0) || readOr(`/proc/${name}/cmdline`, '') === '' || own(name)) continue
    ticks += Number(user) + Number(system)
  }
  return ticks
}

export function residentKb(pids: readonly number[]): number {
  const of = (pid: number) => Number(/VmRSS:\s+(\d+)/.exec(readOr(`/proc/${pid}/status`, ''))?.[1] ?? 0)
  return pids.reduce((sum, pid) => sum + of(pid), 0)
}

export const sleep = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = net.createServer()
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise(resolve => server.close(resolve))
  return port
}

export interface Distribution {
  readonly n: number
  readonly p50: number
  readonly p90: number
  readonly p99: number
  readonly max: number
}

/** What sse-load prints, as far as the benches read it. Times in microseconds. */
export interface LoadResult {
  readonly started: number
  readonly completed: number
  readonly events: number
  readonly errors: number
  readonly error_kinds: Readonly<Record<string, number>>
  readonly concurrency: number
  readonly unfinished: number
  readonly dropped: number
  /** Streams that the client left, and streams that broke off as expected (`--leave`, `--cut`). */
  readonly left: number
  readonly cut: number
  readonly events_per_s: number
  readonly requests_per_s: number
  readonly ttft_us: Distribution
  readonly event_us: Distribution
  /** By how much the gap between two events of a stream is longer at the client than at the upstream. */
  readonly gap_error_us: Distribution
  readonly total_us: Distribution
  readonly proxy?: {
    readonly cpu_share: number
    readonly cpu_us_per_event: number
    readonly user_us_per_event: number
    readonly rss_kb: number
  }
  /** With `--series`. */
  readonly series?: readonly { readonly t: number; readonly events_per_s: number; readonly p99_us: number }[]
  readonly load_cpu_share: number
}

/** Compiles the two C programs if they are not newer than their sources. */
export function build(): void {
  execFileSync('make', ['-s'], { cwd: here, stdio: ['ignore', 2, 2] })
}

export function upstream(port: number, options: readonly string[]): Promise<Running> {
  const process = new Running(UPSTREAM, ['./sse-upstream', '--port', String(port), ...options])
  return process.listens(port)
}

/** 99th percentile of how late the upstream wrote its events, microseconds: above 1,000 it was the bottleneck itself. */
export async function upstreamLateUs(port: number): Promise<number> {
  const response = await fetch(`http://127.0.0.1:${port}/stats`)
  const stats = (await response.json()) as { readonly late_us: Distribution }
  return stats.late_us.p99
}

export async function load(port: number, options: readonly string[], place = LOAD): Promise<LoadResult> {
  const argv = ['./sse-load', '--port', String(port), ...options]
  const process = new Running(place, argv, { stdout: 'keep' })
  const out = await process.end()
  try {
    return JSON.parse(out) as LoadResult
  } catch {
    throw new Error(`sse-load: ${process.errors}${out}`)
  }
}

export interface Router extends Running {
  /** One line a request, and what else Weir has to say. */
  readonly log: string
  readonly adminPort: number
}

export interface WeirOptions {
  /** By default one pool of one replica with room for every stream: nothing is to queue. */
  readonly config?: string
  /** By default this tree's build. */
  readonly main?: string
  readonly node?: readonly string[]
  /** Further flags of `serve`. */
  readonly flags?: readonly string[]
}

/** Weir as an operator runs it: `serve` with a config, metrics on the admin port, one log line a request into a file. */
export async function weir(
  place: Place,
  folder: string,
  port: number,
  upstreamUrl: string,
  options: WeirOptions = {},
): Promise<Router> {
  const { config = CONFIG, main = WEIR, node = [process.execPath], flags: more = [] } = options
  const [file, log, adminPort] = [join(folder, 'weir.yaml'), join(folder, 'weir.log'), await freePort()]
  writeFileSync(file, config.replaceAll('UPSTREAM', upstreamUrl))
  const flags = [`--port=${port}`, `--admin-port=${adminPort}`, '--json', ...more]
  const argv = [...node, main, 'serve', '-c', file, ...flags]
  const running = await new Running(place, argv, { stdout: { file: log } }).listens(port)
  return Object.assign(running, { log, adminPort })
}

export const WEIR = join(root, 'dist/cli/main.js')

const CLASSES = `classes:
  chat:
    slo:
      target: { percentile: 90, ttft: 500ms, tpot: 100ms }
    workload:
      model: sim
      input_tokens: { p50: 50, p90: 50 }
      output_tokens: { p50: 50, p90: 200 }
`
/**
 * A second class beside chat, on a pool of its own: what asks for the model of its name.
 * @returns a config in which UPSTREAM and the name in capitals stand for the two replicas
 */
export function besideChat(name: string, ttft: string, inputTokens: number): string {
  return `${CLASSES}    pools: [main]
  ${name}:
    slo:
      target: { percentile: 90, ttft: ${ttft}, tpot: 100ms }
    workload:
      model: ${name}
      input_tokens: { p50: ${inputTokens}, p90: ${inputTokens} }
      output_tokens: { p50: 50, p90: 200 }
    pools: [${name}]
pools:
  main:
    model: "*"
    replicas: ["UPSTREAM"]
    max_in_flight: 10000
  ${name}:
    model: "*"
    replicas: ["${name.toUpperCase()}"]
    max_in_flight: 10000
routes:
  - { when: { model: ${name} }, class: ${name} }
  - { class: chat }
`
}
const CONFIG = `${CLASSES}    pools: [main]
pools:
  main:
    model: "*"
    replicas: ["UPSTREAM"]
    max_in_flight: 10000
`

/** Runs `work` in a folder that is removed afterwards. */
export async function inFolder<T>(work: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'weir-relay-'))
  try {
    return await work(folder)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** The p-quantile by the nearest rank; p from 0 to 1. */
export function quantile(values: readonly number[], p: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.max(0, Math.ceil(p * sorted.length) - 1)] ?? Number.NaN
}

/** Median, and lowest and highest where there are several: `1.2 (1.1..1.5)`. */
export function spread(values: readonly (number | undefined)[], digits: number): string {
  const known = values.filter(value => value !== undefined && !Number.isNaN(value)) as number[]
  if (known.length === 0) return '-'
  const show = (value: number) =>
    value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits })
  if (known.length === 1) return show(median(known))
  return `${show(median(known))} (${show(Math.min(...known))}..${show(Math.max(...known))})`
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const half = sorted.length / 2
  const low = sorted[Math.ceil(half) - 1] ?? Number.NaN
  return Number.isInteger(half) ? (low + (sorted[half] ?? Number.NaN)) / 2 : low
}

/** Machine, versions, commit and how busy the machine was: the foot of every result. */
export function circumstances(proxy: Place, loadBefore: number): string {
  const git = (...args: string[]) => spawnSync('git', args, { cwd: root, encoding: 'utf8' }).stdout.trim()
  const commit = git('rev-parse', '--short', 'HEAD') || 'unknown'
  const changed = git('status', '--porcelain', '--', 'src', 'bench/relay') === '' ? '' : ', changed'
  const model = cpus()[0]?.model ?? 'unknown CPU'
  const priority = realtime
    ? 'real-time priority (load over upstream over proxy)'
    : 'ordinary priority, since none of real time may be set here'
  const where = pinned
    ? `The proxy ran on ${proxy === ONE_CORE ? 'core 0' : 'both cores'}, upstream and load on core 1`
    : 'No process had a core of its own, since taskset or a second core is missing'
  return `Commit ${commit}${changed}, Node ${process.version}, Linux ${release()}, ${cpus().length} cores (${model}).
${where}, with ${priority}.
Load average of the machine before the first run: ${loadBefore.toFixed(2)}; after the last: ${loadavg()[0]?.toFixed(2)}.`
}
