/** From runs to the figures that are judged: each by repetition, against the others of the same repetition. */
import type { Run } from './measure.js'
import { median } from './rig.js'

const NGINX = 'nginx'
const FASTIFY = 'fastify-http-proxy-10k'
const PORTKEY = 'portkey'

export type Verdict = 'moonshot' | 'must' | 'MISSED' | 'not measured' | 'too noisy'

export interface Goal {
  readonly figure: string
  readonly unit: string
  readonly must: number
  readonly moonshot: number
  /** One value a repetition. */
  readonly values: readonly number[]
  readonly verdict: Verdict
}

interface Aim {
  readonly figure: string
  readonly unit: string
  readonly must: number
  readonly moonshot: number | ((of: Lookup) => number | undefined)
  readonly more?: true
  readonly works: readonly string[]
  readonly value: (subject: Run, of: Lookup) => number | undefined
  /** A figure of CPU or memory, which no waiting for a core can change. */
  readonly cost?: true
}

/** The run of the same repetition and workload. */
type Lookup = (name: string) => Run | undefined

export function cpuOf(run: Run | undefined): number | undefined {
  return run?.result.proxy?.cpu_us_per_event
}

export function memoryOf({ result, idleKb }: Run): number | undefined {
  return result.proxy && (result.proxy.rss_kb - idleKb) / result.concurrency
}

/** @param limitUs  the highest rate of events before p99 stays above it for two intervals in a row */
export function knee(run: Run, limitUs: number): number | undefined {
  const { series } = run.result
  if (series === undefined) return undefined
  let best = 0
  const counted = series.filter(({ t }) => t > 2)
  for (const [i, { events_per_s, p99_us }] of counted.entries()) {
    if (p99_us > limitUs && (counted[i + 1]?.p99_us ?? Infinity) > limitUs) return best
    best = Math.max(best, events_per_s)
  }
  return best
}

function over(a: number | undefined, b: number | undefined): number | undefined {
  return a === undefined || b === undefined || b === 0 ? undefined : a / b
}

/** Quantile less that of no proxy, ms. */
function added(
  run: Run | undefined,
  direct: Run | undefined,
  of: 'event_us' | 'ttft_us',
): number | undefined {
  return run && direct && (run.result[of].p99 - direct.result[of].p99) / 1000
}

const AIMS: readonly Aim[] = [
  {
    figure: 'CPU per event against nginx, W1',
    unit: 'x',
    must: 1.6,
    moonshot: 1.25,
    works: ['W1'],
    cost: true,
    value: (subject, of) => over(cpuOf(subject), cpuOf(of(NGINX))),
  },
  {
    figure: 'CPU per event against nginx, W2',
    unit: 'x',
    must: 1.3,
    moonshot: 1.1,
    works: ['W2'],
    cost: true,
    value: (subject, of) => over(cpuOf(subject), cpuOf(of(NGINX))),
  },
  {
    figure: 'CPU per event against @fastify/http-proxy (10,000 connections), W1',
    unit: 'x',
    must: 0.75,
    moonshot: 0.55,
    works: ['W1'],
    cost: true,
    value: (subject, of) => over(cpuOf(subject), cpuOf(of(FASTIFY))),
  },
  {
    figure: 'CPU per event against Portkey, W1',
    unit: 'x',
    must: 0.45,
    moonshot: 0.3,
    works: ['W1'],
    cost: true,
    value: (subject, of) => over(cpuOf(subject), cpuOf(of(PORTKEY))),
  },
  {
    figure: 'added p99 of an event, W1',
    unit: 'ms',
    must: 1.5,
    moonshot: of => {
      const nginx = added(of(NGINX), of('direct'), 'event_us')
      return nginx && 2 * nginx
    },
    works: ['W1'],
    value: (subject, of) => added(subject, of('direct'), 'event_us'),
  },
  {
    figure: 'p99 of an event, W2',
    unit: 'ms',
    must: 10,
    moonshot: 2,
    works: ['W2'],
    value: subject => subject.result.event_us.p99 / 1000,
  },
  {
    figure: 'events/s at p99 <= 5 ms on one core against @fastify/http-proxy (10,000 connections)',
    unit: 'x',
    must: 1.3,
    moonshot: 2,
    more: true,
    works: ['RAMP'],
    value: (subject, of) => {
      const fastify = of(FASTIFY)
      return over(knee(subject, 5000), fastify && knee(fastify, 5000))
    },
  },
  {
    figure: 'W3 requests per CPU second against @fastify/http-proxy (10,000 connections)',
    unit: 'x',
    must: 3,
    moonshot: 5,
    more: true,
    works: ['W3'],
    cost: true,
    value: (subject, of) => over(cpuOf(of(FASTIFY)), cpuOf(subject)),
  },
  {
    figure: 'memory per stream against nginx, W4',
    unit: 'x',
    must: 2.5,
    moonshot: 1.5,
    works: ['W4'],
    cost: true,
    value: (subject, of) => {
      const nginx = of(NGINX)
      return over(memoryOf(subject), nginx && memoryOf(nginx))
    },
  },
  {
    figure: 'TTFT added p99 at 2,000 streams',
    unit: 'ms',
    must: 3,
    moonshot: 1,
    works: ['TTFT'],
    value: (subject, of) => added(subject, of('direct'), 'ttft_us'),
  },
  {
    figure: 'TTFT added p99 at 400 KB prompts, 150 concurrent',
    unit: 'ms',
    must: 10,
    moonshot: 4,
    works: ['P400K'],
    value: (subject, of) => added(subject, of('direct'), 'ttft_us'),
  },
]

/** What makes figures of these runs worthless, each in a sentence. */
export interface Noise {
  readonly cost: readonly string[]
  readonly latency: readonly string[]
}

const STOLEN_MAX = 0.03
const CLIENT_BUSY_MAX = 0.92
const LATE_MAX_US = 2000
const DIRECT_P99_MAX_US = 300
/** nginx does the same work in each repetition: what it takes differs by the machine alone. */
const NGINX_SPREAD_MAX = 1.6
const RIVALS_MAX = 0.03
/** No workload is past what nginx carries, so where it falls behind it was kept from its core. */
const NGINX_CARRIES = 0.8

/** @param alone  whether every process had its core, or real-time priority, or nobody else was there */
export function noiseOf(runs: readonly Run[], alone: boolean): Noise {
  const most = (of: (run: Run) => number) => Math.max(0, ...runs.map(of))
  const cost: string[] = []
  const latency: string[] = []
  const stolen = most(run => run.stolen)
  if (stolen > STOLEN_MAX)
    cost.push(`the host took ${(stolen * 100).toFixed(1)} % of the machine's time away`)
  for (const work of new Set(runs.map(run => run.work))) {
    const own = runs.flatMap(run => (run.work === work && run.name === NGINX ? [cpuOf(run) ?? 0] : []))
    const ratio = Math.max(...own) / Math.min(...own)
    if (own.length > 1 && ratio > NGINX_SPREAD_MAX) {
      cost.push(
        `nginx itself took ${ratio.toFixed(2)} times as much CPU in one repetition of ${work} as in another`,
      )
    }
  }
  for (const run of runs) {
    if (run.name !== NGINX) continue
    const same = runs.filter(other => other.work === run.work && other.rep === run.rep)
    const share = run.result.events_per_s / Math.max(...same.map(other => other.result.events_per_s))
    if (share < NGINX_CARRIES) {
      cost.push(`nginx carried ${(share * 100).toFixed(0)} % of ${run.work} in repetition ${run.rep}`)
    }
  }
  const rivals = most(run => run.rivals)
  if (rivals > RIVALS_MAX) {
    latency.push(
      `other programs with real-time priority used ${(rivals * 100).toFixed(0)} % of a core beside a run`,
    )
  }
  const direct = runs.filter(run => run.name === 'direct' && run.result.event_us.n > 0)
  const directUs = median(direct.map(run => run.result.event_us.p99))
  if (directUs > DIRECT_P99_MAX_US)
    latency.push(`without a proxy p99 of an event is ${directUs.toFixed(0)} us`)
  // A ramp ends where the generators give up, by design.
  const level = runs.filter(run => run.result.series === undefined)
  const busy = median(level.map(run => run.result.load_cpu_share))
  if (busy > CLIENT_BUSY_MAX) latency.push(`the client used ${(busy * 100).toFixed(0)} % of its core`)
  const late = median(level.map(run => run.lateUs))
  if (late > LATE_MAX_US) latency.push(`the upstream wrote its events ${late.toFixed(0)} us late (p99)`)
  if (!alone) latency.push('other jobs are running, and no real-time priority may be set')
  return { cost, latency: [...cost, ...latency] }
}

function verdictOf(aim: Aim, value: number, moonshot: number): Verdict {
  const reaches = (bound: number) => (aim.more ? value >= bound : value <= bound)
  return reaches(moonshot) ? 'moonshot' : reaches(aim.must) ? 'must' : 'MISSED'
}

/** The table of goals for one build of Weir. */
export function goals(runs: readonly Run[], subject: string, noise: (work: string) => Noise): Goal[] {
  const rows = AIMS.map((aim): Goal => {
    const { figure, unit, must } = aim
    const bounds: number[] = []
    const values: number[] = []
    for (const run of runs) {
      if (run.name !== subject || !aim.works.includes(run.work)) continue
      const of: Lookup = name =>
        runs.find(other => other.name === name && other.work === run.work && other.rep === run.rep)
      const value = aim.value(run, of)
      const bound = typeof aim.moonshot === 'function' ? aim.moonshot(of) : aim.moonshot
      if (value === undefined || bound === undefined) continue
      values.push(value)
      bounds.push(bound)
    }
    if (values.length === 0) {
      const moonshot = typeof aim.moonshot === 'number' ? aim.moonshot : Number.NaN
      return { figure, unit, must, moonshot, values, verdict: 'not measured' }
    }
    const moonshot = median(bounds)
    const { cost, latency } = noise(aim.works[0]!)
    const noisy = (aim.cost ? cost : latency).length > 0
    const verdict = noisy ? 'too noisy' : verdictOf(aim, median(values), moonshot)
    return { figure, unit, must, moonshot, values, verdict }
  })
  const own = runs.filter(run => run.name === subject)
  const wrong = own.reduce((sum, run) => sum + run.result.errors, 0)
  const verdict = own.length === 0 ? 'not measured' : wrong === 0 ? 'moonshot' : 'MISSED'
  const figure = 'wrong, lost, foreign or truncated answers'
  return [...rows, { figure, unit: '', must: 0, moonshot: 0, values: own.length ? [wrong] : [], verdict }]
}

/** CPU of each contender over that of nginx, of @fastify/http-proxy and of Portkey, median over repetitions. */
export function ratiosOf(runs: readonly Run[]): Record<string, Record<string, Record<string, number>>> {
  const all: Record<string, Record<string, Record<string, number>>> = {}
  for (const { work, name } of runs) {
    all[work] ??= {}
    const ofWork = all[work]
    if (ofWork[name] !== undefined) continue
    const others = { x_nginx: NGINX, x_fastify_10k: FASTIFY, x_portkey: PORTKEY }
    const ratios = Object.entries(others).flatMap(([key, other]) => {
      const values = cpuRatios(runs, work, name, other)
      return values.length === 0 ? [] : [[key, median(values)] as const]
    })
    ofWork[name] = Object.fromEntries(ratios)
  }
  return all
}

/** CPU of one contender over another's, each within one repetition. */
export function cpuRatios(runs: readonly Run[], work: string, name: string, other: string): number[] {
  const at = (who: string, rep: number) =>
    cpuOf(runs.find(run => run.work === work && run.name === who && run.rep === rep))
  return runs.flatMap(run => {
    if (run.work !== work || run.name !== name) return []
    const ratio = over(cpuOf(run), at(other, run.rep))
    return ratio === undefined ? [] : [ratio]
  })
}
