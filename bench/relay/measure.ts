/** One run: a proxy before an upstream, one workload through it, and what it cost. */
import { readFileSync } from 'node:fs'
import type { Contender } from './contenders.js'
import {
  freePort,
  inFolder,
  type LoadResult,
  load,
  type Running,
  residentKb,
  rivalTicks,
  sleep,
  upstream,
  upstreamLateUs,
} from './rig.js'
import type { Workload } from './workloads.js'

export interface Run {
  readonly work: string
  readonly name: string
  readonly rep: number
  readonly result: LoadResult
  /** Resident memory after warm-up. */
  readonly idleKb: number
  /** p99 of how late the upstream wrote its events. */
  readonly lateUs: number
  /** Share of the machine's time that its host gave to others, 0 to 1. */
  readonly stolen: number
  /** Share of one core that other programs with real-time priority used meanwhile. */
  readonly rivals: number
}

/** Of `/proc`, on every machine that Linux runs on today. */
const TICK_MS = 10

/** As an operator's Prometheus would, only more often: each run is to hold its share. */
const SCRAPE_EVERY_MS = 5000

/** @throws Error where the proxy does not start */
export function measure(
  work: string,
  workload: Workload,
  name: string,
  contender: Contender,
  rep: number,
): Promise<Run> {
  return inFolder(async folder => {
    const upstreamPort = await freePort()
    const server = await upstream(upstreamPort, workload.upstream)
    let proxy: Running | undefined
    let scraping: NodeJS.Timeout | undefined
    try {
      const proxyPort = await freePort()
      proxy = await contender.start?.(folder, proxyPort, upstreamPort)
      if (proxy !== undefined && 'adminPort' in proxy) scraping = scrapes(Number(proxy.adminPort))
      const port = proxy === undefined ? upstreamPort : proxyPort
      const own = contender.load?.(upstreamPort) ?? []
      if (proxy !== undefined) await load(port, [...workload.warmup, ...own])
      await sleep(300)
      const pids = proxy?.tree() ?? []
      const idleKb = residentKb(pids)
      const [rivalsBefore, startedAt] = [rivalTicks(), performance.now()]
      const before = ticks()
      const result = await load(port, [
        ...workload.load,
        ...own,
        ...(proxy ? ['--pid', pids.slice(0, 60).join(',')] : []),
      ])
      const after = ticks()
      const stolen = (after.stolen - before.stolen) / Math.max(1, after.all - before.all)
      const rivals = ((rivalTicks() - rivalsBefore) * TICK_MS) / (performance.now() - startedAt)
      const lateUs = await upstreamLateUs(upstreamPort)
      return { work, name, rep, result, idleKb, lateUs, stolen, rivals: Math.max(0, rivals) }
    } finally {
      clearInterval(scraping)
      await proxy?.stop()
      await server.stop()
    }
  })
}

function scrapes(adminPort: number): NodeJS.Timeout {
  return setInterval(() => {
    fetch(`http://127.0.0.1:${adminPort}/metrics`)
      .then(response => response.arrayBuffer())
      .catch(() => undefined)
  }, SCRAPE_EVERY_MS)
}

/** Of all cores since the start of the machine, in the kernel's ticks. */
function ticks(): { readonly all: number; readonly stolen: number } {
  const [, ...fields] = readFileSync('/proc/stat', 'utf8').split('\n')[0]!.split(/\s+/)
  const counts = fields.slice(0, 8).map(Number)
  return { all: counts.reduce((sum, count) => sum + count, 0), stolen: counts[7] ?? 0 }
}
