/** Who is measured beside Weir, and how each is installed and started as its own documentation says. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { freePort, here, ONE_CORE, type Router, Running, type WeirOptions, weir } from './rig.js'

type Start = (folder: string, port: number, upstreamPort: number) => Promise<Running | Router>

export interface Contender {
  /** Undefined is no proxy: the client asks the upstream itself. */
  readonly start?: Start
  /** Options of the load generator that this one needs. */
  readonly load?: (upstreamPort: number) => readonly string[]
  /** Installs what is missing. @returns its version. @throws Error with the reason why it cannot run here */
  readonly ready: () => string
}

const npmFolder = join(here, 'contenders')
const url = (port: number) => `http://127.0.0.1:${port}`

/** Outside the repository: whole environments of other languages and other Nodes. */
export const defaultCache = join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'weir-bench')

/** The last line that a failed command wrote, as the reason. */
function run(command: string, args: readonly string[], cwd = here): string {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8' })
  if (error !== undefined) throw new Error(`${command}: ${error.message}`)
  if (status !== 0) throw new Error(`${command}: ${stderr.trim().split('\n').at(-1)}`)
  return stdout + stderr
}

/** A configuration of `contenders/` with the ports written in. */
function configured(folder: string, name: string, port: number, upstreamPort: number): string {
  const file = join(folder, name)
  const template = readFileSync(join(npmFolder, name), 'utf8')
  writeFileSync(file, template.replace('@UPSTREAM@', String(upstreamPort)).replace('@PORT@', String(port)))
  return file
}

function fromDebian(start: Start, versionArgs: readonly string[]): Contender {
  return { start, ready: () => run(versionArgs[0]!, versionArgs.slice(1)).split('\n')[0]!.trim() }
}

function fromNpm(name: string, start: Start): Contender {
  const ready = () => {
    const manifest = join(npmFolder, 'node_modules', name, 'package.json')
    if (!existsSync(manifest)) run('npm', ['install', '--no-package-lock', '--ignore-scripts'], npmFolder)
    return `${name} ${(JSON.parse(readFileSync(manifest, 'utf8')) as { version: string }).version}`
  }
  return { start, ready }
}

function script(file: string, ...more: readonly string[]): Start {
  return (_, port, upstreamPort) =>
    new Running(ONE_CORE, [
      process.execPath,
      join(npmFolder, file),
      String(port),
      url(upstreamPort),
      ...more,
    ]).listens(port)
}

/** @param spec  for pip, with the version that was measured */
function fromPip(
  cache: string,
  name: string,
  spec: string,
  argv: (folder: string, port: number, upstreamPort: number) => Promise<readonly string[]>,
  load?: Contender['load'],
): Contender {
  const bin = join(cache, name, 'bin')
  return {
    ...(load && { load }),
    ready() {
      if (!existsSync(join(bin, name))) {
        run('python3', ['-m', 'venv', join(cache, name)])
        run(join(bin, 'pip'), ['install', '-q', spec])
      }
      return spec.replace('==', ' ')
    },
    async start(folder, port, upstreamPort) {
      const args = await argv(folder, port, upstreamPort)
      const env = {
        LITELLM_LOCAL_MODEL_COST_MAP: 'True',
        // It listens on the loopback alone.
        LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY: 'true',
      }
      return new Running(ONE_CORE, [join(bin, name), ...args], { cwd: folder, env }).listens(port)
    },
  }
}

function fromHere(options: () => WeirOptions, version: () => string): Contender {
  return {
    ready: version,
    start: (folder, port, upstreamPort) => weir(ONE_CORE, folder, port, url(upstreamPort), options()),
  }
}

/** What a router of vllm's or SMG's kind is told: one worker, no choice to make. */
async function routerArgs(port: number, upstreamPort: number): Promise<string[]> {
  const own = ['--host', '127.0.0.1', '--port', String(port), '--prometheus-port', String(await freePort())]
  const more = [
    '--prometheus-host',
    '127.0.0.1',
    '--worker-urls',
    url(upstreamPort),
    '--policy',
    'round_robin',
  ]
  return [...own, ...more]
}

/**
 * @param cache   folder for what is installed outside the repository
 * @param builds  other builds of Weir, name to main file: to compare two states in one run
 */
export function contenders(
  cache: string,
  builds: ReadonlyMap<string, string>,
): Readonly<Record<string, Contender>> {
  const node24 = join(cache, 'node24/node_modules/node/bin/node')
  const portkey = join(npmFolder, 'node_modules/@portkey-ai/gateway/build/start-server.js')
  return {
    direct: { ready: () => 'no proxy' },
    nginx: fromDebian(
      (folder, port, upstreamPort) => {
        const file = configured(folder, 'nginx.conf', port, upstreamPort)
        return new Running(ONE_CORE, ['nginx', '-p', folder, '-c', file]).listens(port)
      },
      ['nginx', '-v'],
    ),
    haproxy: fromDebian(
      (folder, port, upstreamPort) => {
        const file = configured(folder, 'haproxy.cfg', port, upstreamPort)
        return new Running(ONE_CORE, ['haproxy', '-db', '-f', file]).listens(port)
      },
      ['haproxy', '-v'],
    ),
    'fastify-http-proxy': fromNpm('@fastify/http-proxy', script('fastify-http-proxy.mjs')),
    'fastify-http-proxy-10k': fromNpm('@fastify/http-proxy', script('fastify-http-proxy.mjs', '10000')),
    'http-proxy-3': fromNpm('http-proxy-3', script('http-proxy-3.mjs')),
    portkey: {
      ...fromNpm('@portkey-ai/gateway', (_, port) =>
        new Running(ONE_CORE, [process.execPath, portkey, `--port=${port}`, '--headless']).listens(port),
      ),
      // Each request tells it where to go.
      load: upstreamPort => [
        ...['--header', 'x-portkey-provider: openai', '--header', 'authorization: Bearer none'],
        ...['--header', `x-portkey-custom-host: ${url(upstreamPort)}/v1`],
      ],
    },
    litellm: fromPip(
      cache,
      'litellm',
      'litellm[proxy]==1.108.7',
      async (folder, port, upstreamPort) => {
        const file = configured(folder, 'litellm.yaml', port, upstreamPort)
        return ['--config', file, '--host', '127.0.0.1', '--port', String(port), '--telemetry', 'False']
      },
      // It writes each event anew.
      () => ['--lenient'],
    ),
    'vllm-router': fromPip(cache, 'vllm-router', 'vllm-router==0.1.17', (_, port, upstreamPort) =>
      routerArgs(port, upstreamPort),
    ),
    smg: fromPip(cache, 'smg', 'smg==1.13.0', async (_, port, upstreamPort) => [
      'launch',
      ...(await routerArgs(port, upstreamPort)),
    ]),
    weir: fromHere(
      () => ({}),
      () => `this tree on Node ${process.version}`,
    ),
    'weir-node24': fromHere(
      () => ({ node: [node24] }),
      () => {
        if (!existsSync(node24)) {
          mkdirSync(cache, { recursive: true })
          const prefix = join(cache, 'node24')
          run('npm', ['install', '--prefix', prefix, '--no-save', '--no-package-lock', 'node@24'])
        }
        return `this tree on Node ${run(node24, ['--version']).trim()}`
      },
    ),
    ...Object.fromEntries(
      [...builds].map(([name, main]) => [
        name,
        fromHere(
          () => ({ main }),
          () => `another build of Weir on Node ${process.version}`,
        ),
      ]),
    ),
  }
}
