/** Faults injected one by one into a few simulated engines behind the policy door: is the first diagnosis the right one? */
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { fileURLToPath } from 'node:url'
import type { Decision } from '../src/policy/decision.js'
import type { Policy, PolicySpec } from '../src/policy/policy.js'
import { createPolicy } from '../src/policy/simple.js'
import type { ReplicaId, RequestFacts, Ticket } from '../src/request.js'
import { drawLength, type LengthSpec } from '../src/sim/draw.js'
import { Engine, type Step } from '../src/sim/engine.js'
import { BLOCK_TOKENS } from '../src/sim/kv-cache.js'
import { type EngineProfile, profileNamed } from '../src/sim/profiles.js'
import type { EngineRequest, Sequence } from '../src/sim/sequence.js'
import { EngineHost, World } from '../src/sim/world.js'
import { Baselines } from '../src/slo/baseline.js'
import type { Cause } from '../src/slo/causes.js'
import { Diagnoser, type Finding } from '../src/slo/diagnoser.js'
import type { Observed } from '../src/slo/observed.js'
import { PoolCollector } from '../src/slo/pool-collector.js'
import type { Clauses, TrafficClass } from '../src/slo/slo.js'
import { type Ms, type Rng, seededRng } from '../src/time.js'

const REPLICAS = 3
const CHAT = 0
const AGENT = 1
/** What engines are asked to do: bounds, and so many times the rates below. */
const ENGINES = {
  'qwen3-32b': { ttftMs: 500, tpotMs: 40, rate: 1 },
  'llama3-8b': { ttftMs: 250, tpotMs: 20, rate: 2.2 },
} as const
type EngineName = keyof typeof ENGINES
const LOOK_MS: Ms = 10_000
const WARM_MS: Ms = 60_000
const MINUTE_MS: Ms = 60_000
/** Healthy minutes before the fault, after the warm-up. */
const HEALTHY_MINUTES = 4
const DECLARED_PROMPT_P90 = 3700
/** How long a fault has to show itself. */
const FAULT_MS: Ms = 240_000

/** Requests of one class: Poisson arrivals, lognormal lengths. */
interface Traffic {
  cls: number
  perSecond: number
  input: LengthSpec
  output: LengthSpec
  /** Share of each prompt that is the start of a text common to all; and which text. */
  shared: number
  text: number
  /** Share of the clients that read slowly. */
  slowClients: number
}

const CHATS: Traffic = {
  cls: CHAT,
  perSecond: 20,
  input: { median: 1500, sigma: 0.7, min: 32, max: 24_000 },
  output: { median: 130, sigma: 0.8, min: 2, max: 2000 },
  shared: 0.6,
  text: 1,
  slowClients: 0.01,
}
const LONG_PROMPTS: Traffic = {
  ...CHATS,
  cls: AGENT,
  shared: 0,
  perSecond: 1.4,
  input: { median: 20_000, sigma: 0.2, min: 12_000, max: 30_000 },
  output: { median: 60, sigma: 0.5, min: 2, max: 400 },
}

/** Chunks of 512 tokens hold steps short, so that prompts wait first; of 8,192, running streams do. */
type Fleet = 'small chunks' | 'large chunks'

interface Fault {
  readonly cause: Cause
  readonly fleet: Fleet
  readonly what: string
  readonly kvTokens?: number
  /** @param much  1 is what `what` says; less is a milder form of it */
  readonly inject: (run: Run, much: number) => void
}

const grown = (factor: number, much: number): number => 1 + (factor - 1) * much

export const FAULTS: readonly Fault[] = [
  {
    cause: 'prompt_shift',
    fleet: 'small chunks',
    what: 'chat prompts 2.8 times as long',
    inject: (run, much) => run.chats({ input: { ...CHATS.input, median: 1500 * grown(2.8, much) } }),
  },
  {
    cause: 'cache_loss',
    fleet: 'small chunks',
    what: 'no two prompts begin alike any more',
    inject: (run, much) => run.chats({ shared: 0.6 * (1 - much) }),
  },
  {
    cause: 'router_queue',
    fleet: 'small chunks',
    what: 'max_in_flight set to 16',
    inject: (run, much) => run.limit(Math.round(16 / much)),
  },
  {
    cause: 'prefill_capacity',
    fleet: 'small chunks',
    what: '34 requests/s more, of which each gets about 6 tokens',
    inject: (run, much) =>
      run.add({ ...CHATS, perSecond: 34 * much, output: { median: 6, sigma: 0.4, min: 2, max: 20 } }),
  },
  {
    cause: 'cold_start',
    fleet: 'small chunks',
    what: 'two of three replicas restarted; 0.7 s more a request for a minute',
    inject: (run, much) => run.restart([0, 1], 700 * much, 60_000),
  },
  {
    cause: 'head_of_line',
    fleet: 'small chunks',
    what: 'agents send 1.4 prompts/s of 20,000 tokens',
    inject: (run, much) => run.add({ ...LONG_PROMPTS, perSecond: 1.4 * much }),
  },
  {
    cause: 'batch_pressure',
    fleet: 'large chunks',
    what: 'chat answers 3.5 times as long',
    inject: (run, much) =>
      run.chats({ output: { ...CHATS.output, median: 130 * grown(3.5, much), max: 4000 } }),
  },
  {
    cause: 'kv_thrash',
    fleet: 'large chunks',
    what: 'chat answers 2.5 times as long, in KV memory of 100,000 tokens',
    kvTokens: 100_000,
    inject: (run, much) =>
      run.chats({ output: { ...CHATS.output, median: 130 * grown(2.5, much), max: 4000 } }),
  },
  {
    cause: 'prefill_interference',
    fleet: 'large chunks',
    what: 'agents send 3 prompts/s of 5,000 tokens',
    inject: (run, much) =>
      run.add({
        ...LONG_PROMPTS,
        perSecond: 3 * much,
        input: { median: 5000, sigma: 0.1, min: 4000, max: 6000 },
      }),
  },
  {
    cause: 'sick_replica',
    fleet: 'small chunks',
    what: 'each step of one replica takes 2.2 times as long',
    inject: (run, much) => run.slow([1], grown(2.2, much)),
  },
  {
    cause: 'overload',
    fleet: 'small chunks',
    what: '3 times as many requests',
    inject: (run, much) => run.chats({ perSecond: CHATS.perSecond * grown(3, much) }),
  },
  {
    cause: 'regression',
    fleet: 'small chunks',
    what: 'each step of every replica takes 1.8 times as long',
    inject: (run, much) => run.slow([0, 1, 2], grown(1.8, much)),
  },
  {
    cause: 'slow_clients',
    fleet: 'small chunks',
    what: '25 % of the clients read 12 tokens/s',
    inject: (run, much) => run.chats({ slowClients: 0.25 * much }),
  },
]

/** A profile whose costs a fault may change while it runs. */
type Mutable<T> = { -readonly [key in keyof T]: T[key] }
type Profile = Omit<EngineProfile, 'cost'> & { readonly cost: Mutable<EngineProfile['cost']> }

interface Request extends EngineRequest {
  readonly ticket: Ticket
  readonly observed: Observed
  readonly replica: ReplicaId
  readonly slow: boolean
  firstAt: Ms | undefined
  marks: number
  /** Tokens that a slow client has not taken. */
  held: number
  delivering: boolean
}

/** Tokens that the relay takes for a slow client before it pauses the upstream; then it reads so many at a time. */
const SLOW_BUFFER = 16
const SLOW_READ = 8
const SLOW_TOKEN_MS: Ms = 83

interface RunOptions {
  readonly engine?: EngineName
  readonly kvTokens?: number | undefined
  readonly gauges?: boolean
  /** Nothing is ever usual, as on a router's first day. */
  readonly firstDay?: boolean
}

/** One pool, its traffic, and whoever watches it. */
export class Run {
  readonly world = new World()
  readonly diagnoser = new Diagnoser('main')
  readonly baselines = new Baselines()
  readonly findings: { readonly at: Ms; readonly finding: Finding | undefined }[] = []
  /** Share that met the worse of the clauses, in the worst minute so far. */
  worst = 1
  /** Of the day, by the clock of the run. */
  hourMs: Ms = 3_600_000
  /** Times the arrivals of all traffic. */
  swing: (now: Ms) => number = () => 1
  readonly #rng: Rng
  readonly #profiles: Profile[] = []
  readonly #hosts: EngineHost<Request>[] = []
  readonly #policy: Policy
  readonly #collector = new PoolCollector(0)
  readonly #traffic: Traffic[] = [{ ...CHATS }]
  readonly #waiting = new Map<Ticket, { readonly request: Omit<Request, 'replica'> }>()
  readonly #held = new Map<ReplicaId, { readonly ms: Ms; readonly until: Ms }>()
  #wakeAt: Ms = Number.POSITIVE_INFINITY
  #learnedAt: Ms = WARM_MS
  /** Whether engines tell their gauges. */
  readonly #gauges: boolean
  readonly #firstDay: boolean
  readonly seed: number

  readonly #asked: (typeof ENGINES)[EngineName]

  constructor(fleet: Fleet, seed: number, options: RunOptions = {}) {
    const { engine = 'qwen3-32b' } = options
    this.seed = seed
    this.#asked = ENGINES[engine]
    this.#rng = seededRng(seed)
    this.#gauges = options.gauges ?? true
    this.#firstDay = options.firstDay ?? false
    this.#policy = createPolicy(spec(256, this.#asked), seededRng(seed + 1000))
    for (let replica = 0; replica < REPLICAS; replica++) {
      const named = profileNamed(engine)
      const profile: Profile = {
        ...named,
        cost: { ...named.cost },
        maxBatchedTokens: fleet === 'small chunks' ? 512 : 8192,
        kvTokens: options.kvTokens ?? named.kvTokens,
        maxModelLen: Math.min(named.maxModelLen, options.kvTokens ?? named.kvTokens),
        overheadMs: 5,
      }
      this.#profiles.push(profile)
      this.#hosts.push(this.#host(profile))
      this.#collector.replicaUp(replica, 0, -3_600_000)
    }
    // Pools differ in how busy they are.
    this.chats({ perSecond: CHATS.perSecond * (0.85 + 0.3 * this.#rng.next()) })
    for (const one of this.#traffic) this.#next(one)
    this.#look()
    this.#scrape()
  }

  chats(change: Partial<Traffic>): void {
    Object.assign(this.#traffic[0] as Traffic, change)
  }

  add(traffic: Traffic): void {
    const one = { ...traffic }
    this.#traffic.push(one)
    this.#next(one)
  }

  slow(replicas: readonly ReplicaId[], factor: number): void {
    for (const replica of replicas) {
      const { cost } = this.#profiles[replica] as Profile
      cost.wMs *= factor
      cost.gMsPerKtok *= factor
      cost.cMsPerSeq *= factor
      cost.aMsPerMtok2 *= factor
      cost.dMsPerKkv *= factor
    }
  }

  limit(maxInFlight: number): void {
    this.#decided(this.#policy.reconfigure(spec(maxInFlight, this.#asked), this.world.now()))
  }

  /** New processes with empty caches, in which each request takes so much longer for a while. */
  restart(replicas: readonly ReplicaId[], ms: Ms, forMs: Ms): void {
    const now = this.world.now()
    for (const replica of replicas) {
      this.#hosts[replica] = this.#host(this.#profiles[replica] as Profile)
      this.#held.set(replica, { ms, until: now + forMs })
      this.#collector.replicaUp(replica, now)
    }
  }

  #host(profile: Profile): EngineHost<Request> {
    const noise = { sigma: 0.02, rng: this.#rng }
    return new EngineHost<Request>(this.world, new Engine<Request>({ profile, noise }), step =>
      this.#stepped(step),
    )
  }

  #next(traffic: Traffic): void {
    const rate = (traffic.perSecond * this.#asked.rate * this.swing(this.world.now())) / 1000
    const gap = -Math.log(1 - this.#rng.next()) / rate
    this.world.at(this.world.now() + gap, () => {
      this.#arrive(traffic)
      this.#next(traffic)
    })
  }

  #arrive(traffic: Traffic): void {
    const now = this.world.now()
    const rng = this.#rng
    const promptTokens = drawLength(traffic.input, rng)
    const outputTokens = drawLength(traffic.output, rng)
    const shared = Math.floor((traffic.shared * promptTokens) / BLOCK_TOKENS)
    const blockHashes = Array.from({ length: shared }, (_, at) => traffic.text * 1_000_000 + at)
    // Weir counts bytes, not tokens.
    const estimate = Math.max(1, Math.round(promptTokens * (0.9 + 0.2 * rng.next())))
    const { ticket, decisions } = this.#policy.arrive(facts(traffic, estimate, now), now)
    const bounds = traffic.cls === CHAT ? this.#asked : undefined
    const request = {
      ticket,
      observed: this.#collector.arrived(estimate, bounds, now, now),
      promptTokens,
      outputTokens,
      blockHashes,
      slow: rng.next() < traffic.slowClients,
      firstAt: undefined,
      marks: 0,
      held: 0,
      delivering: false,
    }
    this.#waiting.set(ticket, { request })
    this.#decided(decisions)
  }

  #decided(decisions: readonly Decision[]): void {
    const now = this.world.now()
    for (const decision of decisions) {
      if (!('ticket' in decision)) continue
      const waiting = this.#waiting.get(decision.ticket)
      if (waiting === undefined || decision.kind === 'queue') continue
      this.#waiting.delete(decision.ticket)
      if (decision.kind === 'dispatch') {
        const request: Request = { ...waiting.request, replica: decision.replica }
        this.#collector.dispatched(request.observed, decision.replica, now)
        const host = this.#hosts[decision.replica] as EngineHost<Request>
        const held = this.#held.get(decision.replica)
        if (held !== undefined && now < held.until) this.world.at(now + held.ms, () => host.submit(request))
        else host.submit(request)
      } else this.#collector.shed(waiting.request.observed, now)
    }
    const { wakeAt } = this.#policy
    if (wakeAt === undefined || wakeAt === this.#wakeAt) return
    this.#wakeAt = wakeAt
    this.world.at(wakeAt, () => {
      if (this.#wakeAt === wakeAt) this.#wakeAt = Number.POSITIVE_INFINITY
      this.#decided(this.#policy.wake(this.world.now()))
    })
  }

  #stepped(step: Step<Request>): void {
    for (const sequence of step.emitted) {
      const { request } = sequence
      if (request.firstAt === undefined) this.#first(request)
      else if (request.slow && request.marks >= SLOW_BUFFER) this.#hold(sequence)
      else this.#mark(request, sequence.fresh)
    }
    for (const sequence of step.ended) if (sequence.request.held === 0) this.#finish(sequence)
  }

  #first(request: Request): void {
    const now = this.world.now()
    request.firstAt = now
    request.marks = 1
    this.#collector.firstToken(request.observed, now)
    this.#decided(this.#policy.firstToken(request.ticket, now))
  }

  #mark(request: Request, tokens: number): void {
    request.marks++
    this.#collector.mark(request.observed, this.world.now(), tokens)
  }

  #hold(sequence: Sequence<Request>): void {
    const { request } = sequence
    request.observed.throttled = true
    request.held += sequence.fresh
    if (request.delivering) return
    request.delivering = true
    const deliver = (): void => {
      const read = Math.min(SLOW_READ, request.held)
      request.held -= read
      for (let token = 0; token < read; token++) this.#mark(request, 1)
      if (request.held === 0 && sequence.state === 'ended') this.#finish(sequence)
      else this.world.at(this.world.now() + SLOW_READ * SLOW_TOKEN_MS, deliver)
    }
    this.world.at(this.world.now() + SLOW_READ * SLOW_TOKEN_MS, deliver)
  }

  #finish({ request, cachedTokens, generated }: Sequence<Request>): void {
    const now = this.world.now()
    const { judgement, decisions } = this.#policy.finish(
      request.ticket,
      {
        kind: 'complete',
        progress: {
          streamed: true,
          firstEvent: request.firstAt,
          firstOutput: request.firstAt,
          firstVisible: request.firstAt,
          lastOutput: now,
          marks: request.marks,
          longestChoiceMarks: request.marks,
          longestGap: undefined,
          usage: {
            promptTokens: request.promptTokens,
            completionTokens: generated,
            cachedTokens,
            reasoningTokens: undefined,
          },
          throttled: request.observed.throttled,
        },
      },
      now,
    )
    const pace = judgement.clauses.find(({ slo, clause }) => slo === 'target' && clause === 'tpot')
    this.#collector.ended(request.observed, { complete: true, ...judgement, paceMet: pace?.met }, now)
    this.#decided(decisions)
  }

  #scrape(): void {
    const now = this.world.now()
    if (this.#gauges) {
      this.#hosts.forEach(({ engine }, replica) => {
        const { preemptions, prefixHits, prefixQueries } = engine.totals
        this.#collector.gauges(
          replica,
          {
            running: engine.running,
            waiting: engine.waiting,
            kvUsage: engine.kvUsage,
            preemptionsTotal: preemptions,
            prefixHitsTotal: prefixHits,
            prefixQueriesTotal: prefixQueries,
            prefixHitShare: undefined,
          },
          now,
        )
      })
    }
    this.world.at(now + 500, () => this.#scrape())
  }

  #look(): void {
    const now = this.world.now()
    if (now >= WARM_MS) {
      const hour = Math.floor(now / this.hourMs) % 24
      const look = this.#collector.look(now)
      const base = this.#firstDay ? undefined : this.baselines.at(hour)
      const promise = { objective: 0.9, declaredPromptP90: DECLARED_PROMPT_P90 }
      const finding = this.diagnoser.look(now, look, base, promise)
      this.findings.push({ at: now, finding })
      const { late, firsts, slow, paced } = look.minute.counts
      this.worst = Math.min(this.worst, 1 - late / Math.max(1, firsts), 1 - slow / Math.max(1, paced))
      if (this.diagnoser.well && now - this.#learnedAt >= MINUTE_MS) {
        this.#learnedAt = now
        this.baselines.learn(look.minute, hour)
      }
    }
    this.world.at(now + LOOK_MS, () => this.#look())
  }
}

function spec(maxInFlight: number, { ttftMs, tpotMs }: { ttftMs: Ms; tpotMs: Ms }): PolicySpec {
  const stream: Clauses = { kind: 'stream', ttftMs, tpotMs }
  const deadline: Clauses = { kind: 'deadline', deadlineMs: 60_000, minTokensPerSecond: 0 }
  const cls = (id: number, name: string, clauses: Clauses): TrafficClass => {
    const slo = { percentile: 90, mode: 'joint', windowMs: 604_800_000, clauses } as const
    return {
      id,
      name,
      target: slo,
      guard: slo,
      workload: {
        model: 'm',
        precision: undefined,
        inputTokens: { p50: 1500, p90: DECLARED_PROMPT_P90 },
        outputTokens: { p50: 130, p90: 360 },
        cacheHit: 0.6,
      },
      priority: id,
      pools: [0],
      // Both wait, so that a limit that is too low makes a queue.
      queue: { max: 5000, waitMs: 60_000 },
      ownBounds: undefined,
    }
  }
  const replicas = Array.from({ length: REPLICAS }, (_, id) => ({ id, pool: 0, name: `r${id}` }))
  const any = {
    path: undefined,
    header: [],
    key: undefined,
    stream: undefined,
    tools: undefined,
    maxTokens: undefined,
  }
  return {
    classes: [cls(CHAT, 'chat', stream), cls(AGENT, 'agent', deadline)],
    pools: [{ id: 0, name: 'main', model: undefined, replicas, maxInFlight, gpusPerReplica: 1 }],
    replicas,
    routes: [
      { when: { ...any, model: '*-agent' }, cls: AGENT, rewriteModel: 'm' },
      { when: { ...any, model: undefined }, cls: CHAT, rewriteModel: undefined },
    ],
    retries: { share: 0.1, floor: 3 },
  }
}

function facts({ cls }: Traffic, promptTokens: number, now: Ms): RequestFacts {
  return {
    path: '/v1/chat/completions',
    headers: {},
    model: cls === CHAT ? 'm' : 'm-agent',
    stream: true,
    tools: false,
    maxTokens: undefined,
    promptTokens,
    askedClass: undefined,
    key: undefined,
    own: {},
    patienceMs: undefined,
    retry: 0,
    repeatable: true,
    arrivedAt: now,
    bodyAt: now,
  }
}

export interface FaultResult {
  readonly cause: Cause
  readonly seed: number
  /** Findings before the fault: false alarms. */
  readonly early: number
  readonly first: Finding | undefined
  readonly afterMs: Ms | undefined
}

interface FaultOptions {
  readonly much?: number
  readonly gauges?: boolean
  readonly engine?: EngineName
  readonly firstDay?: boolean
}

/** Healthy minutes, then the fault, until something is found. */
export function runFault(
  fault: Fault,
  seed: number,
  { much = 1, ...options }: FaultOptions = {},
): FaultResult {
  const run = new Run(fault.fleet, seed, { ...options, kvTokens: fault.kvTokens })
  const at = WARM_MS + (HEALTHY_MINUTES + 1) * MINUTE_MS
  run.world.run(at)
  const early = run.findings.filter(({ finding }) => finding !== undefined).length
  const before = run.findings.length
  fault.inject(run, much)
  const since = () => run.findings.slice(before).find(({ finding }) => finding !== undefined)
  run.world.run(at + FAULT_MS, () => since() !== undefined)
  const found = since()
  return { cause: fault.cause, seed, early, first: found?.finding, afterMs: found && found.at - at }
}

export interface CleanResult {
  readonly what: string
  readonly seed: number
  readonly looks: number
  readonly alarms: number
  /** What was found, if anything. */
  readonly causes: readonly Cause[]
  /** Share that met the worse of the clauses, in the worst minute. */
  readonly worst: number
}

interface Clean {
  readonly what: string
  readonly fleet: Fleet
  readonly start: (run: Run) => void
}

/** Of a day here an hour is two minutes. */
const HOUR_MS: Ms = 120_000

/** Loads at which the promise is kept; the day also has a rate that wanders from minute to minute. */
export const CLEAN: readonly Clean[] = [
  ...([0.3, 0.6, 1, 1.25] as const).flatMap(load =>
    (['small chunks', 'large chunks'] as const).map(fleet => ({
      what: `steady, ${Math.round(CHATS.perSecond * load)} requests/s, ${fleet}`,
      fleet,
      start: (run: Run) => run.chats({ perSecond: CHATS.perSecond * load }),
    })),
  ),
  ...(['small chunks', 'large chunks'] as const).map(fleet => ({
    what: `daily swing from 5 to 25 requests/s with some agents, ${fleet}`,
    fleet,
    start: (run: Run): void => {
      run.hourMs = HOUR_MS
      run.chats({ perSecond: CHATS.perSecond * 0.75 })
      run.add({
        ...CHATS,
        cls: AGENT,
        perSecond: 0.5,
        input: { median: 3000, sigma: 0.6, min: 500, max: 8000 },
      })
      const minutes = seededRng(run.seed + 7)
      let [minute, wander] = [-1, 1]
      run.swing = now => {
        if (Math.floor(now / MINUTE_MS) !== minute) {
          minute = Math.floor(now / MINUTE_MS)
          wander = 0.9 + 0.2 * minutes.next()
        }
        return wander * (1 - 0.6 * Math.cos((2 * Math.PI * now) / (24 * HOUR_MS)))
      }
    },
  })),
]

/** A day, or half an hour at one load. */
export function runClean(
  clean: Clean,
  seed: number,
  ms = clean.what.startsWith('daily') ? 24 * HOUR_MS : 1_800_000,
) {
  const run = new Run(clean.fleet, seed)
  clean.start(run)
  run.world.run(ms)
  const alarms = run.findings.flatMap(({ finding }) => finding ?? [])
  return {
    what: clean.what,
    seed,
    looks: run.findings.length,
    alarms: alarms.length,
    causes: [...new Set(alarms.map(({ cause }) => cause))],
    worst: run.worst,
  } satisfies CleanResult
}

/** One row a fault, one column a label. */
function matrix(results: readonly FaultResult[]): string[] {
  const labels = [...FAULTS.map(({ cause }) => cause), 'unexplained'] as const
  const seen = labels.filter(label => results.some(({ first }) => first?.cause === label))
  const rows = FAULTS.map(({ cause }) => {
    const own = results.filter(one => one.cause === cause)
    const count = (label: Cause | undefined): string => {
      const n = own.filter(({ first }) => first?.cause === label).length
      return n === 0 ? '' : String(n)
    }
    const times = own.flatMap(({ afterMs }) => afterMs ?? []).sort((a, b) => a - b)
    const median = times[Math.floor((times.length - 1) / 2)]
    const clauses = [...new Set(own.flatMap(({ first }) => first?.clause ?? []))].join(', ')
    const seconds = median === undefined ? '' : `${median / 1000} s`
    return `| ${[cause, ...seen.map(count), count(undefined), clauses, seconds].join(' | ')} |`
  })
  return [
    `| fault \\ first label | ${[...seen, 'none', 'clause', 'after (median)'].join(' | ')} |`,
    `|---|${'---|'.repeat(seen.length + 3)}`,
    ...rows,
  ]
}

function rightShare(results: readonly FaultResult[]): { text: string; share: number } {
  const right = results.filter(({ cause, first }) => first?.cause === cause).length
  const none = results.filter(({ first }) => first === undefined).length
  const share = right / results.length
  return {
    share,
    text: `${right} of ${results.length} right (${(100 * share).toFixed(1)} %), ${results.length - right - none} wrong, ${none} without a label`,
  }
}

/** Mean CPU of one mark, in ns, and of one look at a pool of 64 replicas with 2,048 open streams, in ms. */
function costs(): { markNs: number; lookMs: number } {
  const collector = new PoolCollector(0)
  const streams = Array.from({ length: 2048 }, (_, i) => {
    const one = collector.arrived(1000, ENGINES['qwen3-32b'], 0, 0)
    collector.dispatched(one, i % 64, 0)
    collector.firstToken(one, 100)
    return one
  })
  let now = 100
  const play = (steps: number): number => {
    const from = performance.now()
    for (let step = 0; step < steps; step++) {
      now += 20
      for (const one of streams) collector.mark(one, now, 1)
    }
    return ((performance.now() - from) * 1e6) / (steps * streams.length)
  }
  play(200)
  const markNs = play(1000)
  const from = performance.now()
  for (let look = 0; look < 50; look++) collector.look(now)
  return { markNs, lookMs: (performance.now() - from) / 50 }
}

/** `bench/diagnosis.ts [seeds] [from]`; with `--write` the tables go to results/ as well. Exits 1 when a goal is missed. */
function main(args: readonly string[]): void {
  const [seeds = 10, from = 101] = args.filter(arg => !arg.startsWith('--')).map(Number)
  const list = Array.from({ length: seeds }, (_, i) => from + i)
  const faults = (options?: FaultOptions): FaultResult[] =>
    FAULTS.flatMap(fault => list.map(seed => runFault(fault, seed, options)))
  const full = faults()
  const blind = faults({ gauges: false })
  const mild = faults({ much: 0.7 })
  const other = faults({ engine: 'llama3-8b' })
  const firstDay = faults({ firstDay: true })
  const clean = CLEAN.flatMap(one => list.map(seed => runClean(one, seed)))
  const looks = clean.reduce((sum, one) => sum + one.looks, 0)
  const alarms = clean.reduce((sum, one) => sum + one.alarms, 0)
  const early = full.filter(one => one.early > 0).length
  const days = clean.filter(one => one.alarms > 0).length
  const { markNs, lookMs } = costs()
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
  const cleanRows = CLEAN.map(({ what }) => {
    const own = clean.filter(one => one.what === what)
    const sum = (value: (one: CleanResult) => number): number => own.reduce((all, one) => all + value(one), 0)
    const causes = [...new Set(own.flatMap(one => one.causes))].join(', ')
    const worst = Math.min(...own.map(one => one.worst))
    return `| ${what} | ${(100 * worst).toFixed(1)} % | ${sum(one => one.looks)} | ${sum(one => one.alarms)} | ${sum(one => Number(one.alarms > 0))} of ${own.length} | ${causes} |`
  })
  const text = [
    '# Diagnosis: the right cause, first',
    '',
    `Fleet: ${REPLICAS} simulated engines (\`qwen3-32b\`, chunks of 512 or 8,192 tokens, 2 % jitter) behind \`createPolicy\`, in`,
    `virtual time. Traffic: Poisson, 17 to 23 chats/s by seed, prompts p50 1,500 tokens, answers p50 130, 60 % of each`,
    `prompt shared; 1 % of the clients are slow. SLO: p90 TTFT 500 ms, p90 TPOT 40 ms. After ${HEALTHY_MINUTES + 2} healthy minutes the fault`,
    `comes and stays; every 10 s the last minute is looked at, and the first label that two looks agree on counts.`,
    `Seeds ${list[0]} to ${list.at(-1)}; thresholds were set on others.`,
    '',
    '| fault | fleet | what is done |',
    '|---|---|---|',
    ...FAULTS.map(({ cause, fleet, what }) => `| ${cause} | ${fleet} | ${what} |`),
    '',
    `## With engine gauges: ${rightShare(full).text}`,
    '',
    ...matrix(full),
    '',
    `## Without engine gauges: ${rightShare(blind).text}`,
    '',
    ...matrix(blind),
    '',
    `## Milder: 70 % of each change, with gauges: ${rightShare(mild).text}`,
    '',
    'A change that moves no clause for certain gets no label, and should not.',
    '',
    ...matrix(mild),
    '',
    `## Another engine, llama3-8b, at 2.2 times the rates, p90 TTFT 250 ms and TPOT 20 ms: ${rightShare(other).text}`,
    '',
    ...matrix(other),
    '',
    `## On the first day, with gauges and nothing usual: ${rightShare(firstDay).text}`,
    '',
    'A slower engine, a colder cache and slower clients are changes: without a before they have no name, or another.',
    '',
    ...matrix(firstDay),
    '',
    `## Clean: ${alarms} of ${looks} looks with a label (${((100 * alarms) / looks).toFixed(2)} %), in ${days} of ${clean.length} runs`,
    '',
    `Half an hour at one load, or a day whose hours are two minutes. Before the faults above: ${early} of ${full.length} runs had a label.`,
    '',
    '| load | least attainment of a minute | looks | with a label | runs with one | labels |',
    '|---|---|---|---|---|---|',
    ...cleanRows,
    '',
    `Cost: ${markNs.toFixed(0)} ns of CPU a mark; ${lookMs.toFixed(1)} ms a look at a pool of 64 replicas with 2,048 open streams.`,
    '',
    `Command: \`node --import @tapjs/typescript/import bench/diagnosis.ts ${seeds} ${from} --write\`; after commit ${commit};`,
    `Node ${process.version}, ${cpus()[0]?.model ?? 'unknown CPU'}.`,
    '',
  ].join('\n')
  process.stdout.write(text)
  if (args.includes('--write')) writeFileSync(new URL('./results/diagnosis.md', import.meta.url), text)
  if (rightShare(full).share < 0.95 || alarms / looks > 0.02) process.exitCode = 1
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main(process.argv.slice(2))
