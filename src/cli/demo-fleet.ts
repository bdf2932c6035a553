/** The demo's processes: simulated engines and the router before them, each in a process of its own. */
import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { EngineServerOptions } from '../sim/server.js'

/** Replicas of each pool. */
export type PoolSizes = Readonly<Record<string, number>>

export interface Fleet {
  /** http://host:port of the data port and of the admin port. */
  readonly data: string
  readonly admin: string
  /** Resolves with what happened when one of the processes ends before `stop`. */
  readonly broken: Promise<string>
  /** Ends all processes; resolves when they are gone. */
  stop(): Promise<void>
}

/** A process that is still there then is killed. */
const STOP_MS = 5000

/**
 * @param config  the router's config file, whose replicas are replaced by the engines that are started here
 * @param ports   of the router; 0 for any that is free
 * @param policy  the router's, by name
 * @throws Error with the process's own words when one does not start
 */
export async function startFleet(
  config: string,
  sizes: PoolSizes,
  engine: EngineServerOptions,
  ports: { readonly data: number; readonly admin: number },
  policy: string,
): Promise<Fleet> {
  const children: ChildProcess[] = []
  let stopping = false
  let breaks: (what: string) => void = () => undefined
  const broken = new Promise<string>(resolve => {
    breaks = resolve
  })
  const stop = async (): Promise<void> => {
    stopping = true
    await Promise.all(children.map(ended))
  }
  const start = async (name: string, entry: string, args: readonly string[]): Promise<unknown> => {
    // In a process group of its own: Ctrl-C reaches the demo alone, which ends them in order.
    const child = fork(fileURLToPath(new URL(entry, import.meta.url)), args, {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      detached: true,
    })
    children.push(child)
    let errors = ''
    child.stderr?.on('data', data => {
      errors = (errors + String(data)).slice(-4000)
    })
    child.on('exit', code => {
      if (!stopping) breaks(`${name} ended with code ${code}\n${errors}`)
    })
    return new Promise((resolve, reject) => {
      child.once('message', resolve)
      child.once('error', reject)
      child.once('exit', code => reject(new Error(`${name} did not start (code ${code})\n${errors}`)))
    })
  }
  try {
    const replicas = await Promise.all(
      Object.entries(sizes).map(async ([pool, size]) => {
        const urls = await Promise.all(
          Array.from({ length: size }, async (_, i) => {
            const options = { ...engine, seed: i + 1 }
            const ready = await start(`engine ${pool} ${i}`, '../sim/process.js', [JSON.stringify(options)])
            return (ready as { readonly url: string }).url
          }),
        )
        return `--replicas=${pool}=${urls.join(',')}`
      }),
    )
    const serve = ['serve', '-c', config, ...replicas, '--log-level=warn', '--json', `--policy=${policy}`]
    const listen = [`--port=${ports.data}`, `--admin-port=${ports.admin}`]
    const { data, admin } = (await start('weir', './main.js', [...serve, ...listen])) as {
      readonly data: string
      readonly admin: string
    }
    return { data, admin, broken, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve()
  return new Promise(resolve => {
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
    child.once('exit', () => {
      clearTimeout(timer)
      resolve()
    })
    child.kill('SIGTERM')
  })
}
