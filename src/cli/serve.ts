/** `weir serve`: the router, until it is told to stop. */
import type { AddressInfo } from 'node:net'
import { parseArgs } from 'node:util'
import pino, { type Logger } from 'pino'
import type { NamedPolicy } from '../baselines/baseline.js'
import { POLICIES, policyNamed } from '../baselines/named.js'
import { assumedConfig } from '../config/assumed.js'
import { showProblems } from '../config/error.js'
import { defaultFile, type Loaded, load } from '../config/load.js'
import type { Resolved } from '../config/resolved.js'
import { startWeir, type Weir } from '../http/weir.js'
import { seededRng } from '../time.js'
import { modelsOf } from '../upstream/probe.js'
import type { Command, Io } from './command.js'
import { Reloader } from './reload.js'
import { showSlo } from './show-slo.js'
import { version } from './version.js'

/**
 * Log lines go out when there are so many bytes of them, or after so long: a write a line costs more than the line. An end
 * by a signal or a fault of Weir's own writes all; only one that no process sees (SIGKILL) loses what is held.
 */
const LOG = { dest: 1, sync: false, minLength: 4096, periodicFlush: 100 } as const

/** How long open streams may go on after SIGTERM; Kubernetes' own default. */
const GRACE_MS = 30_000

const help = `weir serve [-c FILE] [--upstream URL ...] [--port N] [--admin-port N] [--json]

Runs the router until SIGTERM or SIGINT: then takes no new requests, lets open streams end for up to 30 s,
and exits 0. A second signal ends it at once. SIGHUP, a changed file or POST /-/reload on the admin port reads the
config anew: no stream is cut, and a bad file leaves the one before in force.

  -c, --config FILE   config, by default config/weir.yaml
  --replicas P=URL,…  replicas of pool P in place of the file's; repeat it for other pools
  --upstream URL      no config: route to this server (repeat it for more replicas of it), with classes chat and
                      agent as assumed from public traces; its models are asked of its /v1/models
  --upstream-key KEY  credential for --upstream; by default $UPSTREAM_API_KEY
  --host HOST         where applications connect, by default 127.0.0.1
  --port N            by default 8080
  --admin-port N      metrics and health, by default 8081
  --policy NAME       who decides, by default weir; another one to compare, as in weir demo
  --log-level LEVEL   debug, info (one line a request), warn, error, silent; by default info
  --json              log lines only, no greeting

Example: weir serve --upstream http://127.0.0.1:8000
`

export const serve: Command = {
  name: 'serve',
  summary: 'run the router',
  help,
  async run(args, io) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        config: { type: 'string', short: 'c' },
        upstream: { type: 'string', multiple: true },
        replicas: { type: 'string', multiple: true },
        'upstream-key': { type: 'string' },
        host: { type: 'string' },
        port: { type: 'string' },
        'admin-port': { type: 'string' },
        policy: { type: 'string', default: 'weir' },
        'log-level': { type: 'string' },
        json: { type: 'boolean' },
      },
    })
    const level = values['log-level'] ?? 'info'
    if (!['debug', 'info', 'warn', 'error', 'silent'].includes(level)) {
      io.err(`--log-level: got ${level}; allowed: debug, info, warn, error, silent\n`)
      return 1
    }
    const policy = policyNamed(values.policy)
    if (policy === undefined) {
      io.err(`--policy: got ${values.policy}; allowed: ${POLICIES.map(({ name }) => name).join(', ')}\n`)
      return 1
    }
    const listen = portsOf(values, io)
    const replicas = replicasOf(values.replicas ?? [], io)
    if (listen === undefined || replicas === undefined) return 1
    if (values.upstream !== undefined && values.config !== undefined) {
      io.err('--upstream and --config exclude each other: name the replicas in the config file instead\n')
      return 1
    }
    const key = values['upstream-key'] ?? io.env['UPSTREAM_API_KEY']
    const file = values.config ?? defaultFile()
    const read = (): Loaded => load(file, io.env, { ...listen, replicas })
    const loaded =
      values.upstream === undefined ? read() : await fromUpstreams(values.upstream, key, listen, io)
    if (loaded === undefined) return 1
    if (loaded.ok === undefined) {
      io.err(showProblems(loaded.problems))
      return loaded.unreadable === true ? 2 : 1
    }
    if (loaded.warnings.length > 0) io.err(showProblems(loaded.warnings, 'warning'))
    const log = pino({ level }, pino.destination(LOG))
    const assumed = values.upstream !== undefined
    const reloader = assumed ? undefined : new Reloader(read, loaded.files, log)
    return runUntilStopped(loaded.ok, policy, reloader, log, io, values.json === true)
  },
}

interface PortFlags {
  readonly host?: string | undefined
  readonly port?: string | undefined
  readonly 'admin-port'?: string | undefined
}

function portsOf(flags: PortFlags, io: Io) {
  for (const name of ['port', 'admin-port'] as const) {
    const text = flags[name]
    if (text !== undefined && !(/^\d{1,5}$/.test(text) && Number(text) <= 65535)) {
      io.err(`--${name}: got ${text}; allowed: a port from 0 to 65535\n`)
      return undefined
    }
  }
  const { host, port, 'admin-port': adminPort } = flags
  return {
    listen: { ...(host !== undefined && { host }), ...(port !== undefined && { port: Number(port) }) },
    admin: { ...(adminPort !== undefined && { port: Number(adminPort) }) },
  }
}

function replicasOf(flags: readonly string[], io: Io): Record<string, string[]> | undefined {
  const replicas: Record<string, string[]> = {}
  for (const flag of flags) {
    const [, pool, urls] = /^([^=]+)=(.+)$/.exec(flag) ?? []
    if (pool === undefined || urls === undefined) {
      io.err(`--replicas: got ${flag}; allowed: POOL=URL,URL, such as main=http://127.0.0.1:8000\n`)
      return undefined
    }
    replicas[pool] = urls.split(',')
  }
  return replicas
}

async function fromUpstreams(
  urls: readonly string[],
  key: string | undefined,
  overrides: NonNullable<ReturnType<typeof portsOf>>,
  io: Io,
): Promise<Loaded | undefined> {
  const bases = urls.map(url => url.replace(/\/+$/, '').replace(/\/v1$/, ''))
  try {
    const models = await modelsOf(bases[0] ?? '', key)
    return assumedConfig(bases, models, { ...overrides, ...(key !== undefined && { apiKey: key }) })
  } catch (error) {
    io.err(`--upstream: ${error instanceof Error ? error.message : String(error)}\n`)
    io.err('Start the server first, or give the address at which its GET /v1/models answers.\n')
    return undefined
  }
}

async function runUntilStopped(
  config: Resolved,
  { create }: NamedPolicy,
  reloader: Reloader | undefined,
  log: Logger,
  io: Io,
  quiet: boolean,
): Promise<number> {
  const policy = create(config.policy, seededRng(Date.now()))
  let weir: Weir
  try {
    weir = await startWeir({
      config,
      policy,
      log,
      version: version(),
      ...(reloader !== undefined && { reload: async () => reloader.reload('POST /-/reload') }),
    })
  } catch (error) {
    io.err(`weir: cannot start: ${error instanceof Error ? error.message : String(error)}\n`)
    return 1
  }
  reloader?.start(weir)
  if (!quiet) io.err(greeting(config, weir, reloader === undefined))
  // Whoever forked it wants to know where it listens.
  process.send?.({ data: urlOf(weir.data), admin: urlOf(weir.admin) })
  const { first, second } = stopSignals()
  const signal = await first
  reloader?.stop()
  log.info({ signal }, 'draining: no new requests, open streams go on')
  await Promise.race([weir.drain(GRACE_MS), second])
  await weir.close()
  log.info('stopped')
  await new Promise<void>(resolve => log.flush(() => resolve()))
  // The channel to whoever forked it would keep the process.
  if (process.connected) process.disconnect()
  return 0
}

/** Shells and npm may pass one Ctrl-C on more than once. */
const SAME_SIGNAL_MS = 250

/** SIGTERM, SIGINT, or the end of the process that forked this one: the first time, and again. */
function stopSignals(): { readonly first: Promise<string>; readonly second: Promise<void> } {
  let firstAt: number | undefined
  let first: (signal: string) => void = () => undefined
  let second: () => void = () => undefined
  for (const signal of ['SIGTERM', 'SIGINT', 'disconnect']) {
    process.on(signal, () => {
      const now = performance.now()
      firstAt ??= now
      if (now === firstAt) first(signal)
      else if (now - firstAt > SAME_SIGNAL_MS) second()
    })
  }
  return {
    first: new Promise(resolve => {
      first = resolve
    }),
    second: new Promise(resolve => {
      second = resolve
    }),
  }
}

function urlOf({ address, port }: AddressInfo): string {
  return `http://${address.includes(':') ? `[${address}]` : address}:${port}`
}

function greeting(config: Resolved, weir: Weir, assumed: boolean): string {
  const data = urlOf(weir.data)
  const admin = urlOf(weir.admin)
  const lines = [`Weir listens on ${data}/v1; metrics are at ${admin}/metrics.`]
  const { classes, pools } = config.policy
  const model = pools.find(pool => pool.model !== undefined)?.model ?? 'MODEL'
  for (const cls of classes) {
    const { inputTokens, outputTokens } = cls.workload
    lines.push(
      `  class ${cls.name}: ${showSlo(cls.target)}, at p50/p90 ${inputTokens.p50}/${inputTokens.p90} tokens in and ${outputTokens.p50}/${outputTokens.p90} out${assumed ? ' (assumed, not yours: run weir sweep)' : ''}`,
    )
  }
  lines.push(
    'Try it:',
    `  curl -N ${data}/v1/chat/completions -H 'content-type: application/json' \\`,
    `    -d '{"model":"${model}","stream":true,"messages":[{"role":"user","content":"Say hello."}]}'`,
    '',
  )
  return lines.join('\n')
}
