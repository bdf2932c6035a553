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
import { Diagnoser, type Finding } from '../src/slo/diagnose.js'
import { type Observed, PoolCollector } from '../src/slo/pool-collector.js'
import type { Clauses, TrafficClass } from '../src/slo/slo.js'
import { type Ms, type Rng, seededRng } from '../src/time.js'

const REPLICAS = 3
const CHAT = 0
const AGENT = 1
const TTFT_MS: Ms = 500
const TPOT_MS: Ms = 40
const LOOK_MS: Ms = 10_000
const WARM_MS: Ms = 60_000
const MINUTE_MS: Ms = 60_000
/** Healthy minutes before the fault, after the warm-up. */
const HEALTHY_MINUTES = 4
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
  readonly inject: (run: Run) => void
}

export const FAULTS: readonly Fault[] = [
  {
    cause: 'prompt_shift',
    fleet: 'small chunks',
    what: 'chat prompts 2.8 times as long',
    inject: run => run.chats({ input: { ...CHATS.input, median: 4200 } }),
  },
  {
    cause: 'cache_loss',
    fleet: 'small chunks',
    what: 'no two prompts begin alike any more',
    inject: run => run.chats({ shared: 0 }),
  },
  {
    cause: 'router_queue',
    fleet: 'small chunks',
    what: 'max_in_flight set to 16',
    inject: run => run.limit(16),
  },
  {
    cause: 'prefill_capacity',
    fleet: 'small chunks',
    what: '28 requests/s more, of which each gets about 6 tokens',
    inject: run => run.add({ ...CHATS, perSecond: 28, output: { median: 6, sigma: 0.4, min: 2, max: 20 } }),
  },
  {
    cause: 'cold_start',
    fleet: 'small chunks',
    what: 'two of three replicas restarted; 0.7 s more a request for a minute',
    inject: run => run.restart([0, 1], 700, 60_000),
  },
  {
    cause: 'head_of_line',
    fleet: 'small chunks',
    what: 'agents send 1.4 prompts/s of 20,000 tokens',
    inject: run => run.add(LONG_PROMPTS),
  },
  {
    cause: 'batch_pressure',
    fleet: 'large chunks',
    what: 'chat answers 3.5 times as long',
    inject: run => run.chats({ output: { ...CHATS.output, median: 455, max: 4000 } }),
  },
  {
    cause: 'kv_thrash',
    fleet: 'large chunks',
    what: 'KV memory of 100,000 tokens, and chat answers 2.5 times as long',
    kvTokens: 100_000,
    inject: run => run.chats({ output: { ...CHATS.output, median: 325, max: 4000 } }),
  },
  {
    cause: 'prefill_interference',
    fleet: 'large chunks',
    what: 'agents send 3 prompts/s of 5,000 tokens',
    inject: run =>
      run.add({
        ...LONG_PROMPTS,
        perSecond: 3,
        input: { median: 5000, sigma: 0.1, min: 4000, max: 6000 },
      }),
  },
  {
    cause: 'sick_replica',
    fleet: 'small chunks',
    what: 'each step of one replica takes 2.2 times as long',
    inject: run => run.slow([1], 2.2),
  },
  {
    cause: 'overload',
    fleet: 'small chunks',
    what: '3 times as many requests',
    inject: run => run.chats({ perSecond: 3 * CHATS.perSecond }),
  },
  {
    cause: 'regression',
    fleet: 'small chunks',
    what: 'each step of every replica takes 1.8 times as long',
    inject: run => run.slow([0, 1, 2], 1.8),
  },
  {
    cause: 'slow_clients',
    fleet: 'small chunks',
    what: '25 % of the clients read 12 tokens/s',
    inject: run => run.chats({ slowClients: 0.25 }),
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

/** One pool, its traffic, and whoever watches it. */
export class Run {
  readonly world = new World()
  readonly diagnoser = new Diagnoser('main')
  readonly baselines = new Baselines()
  readonly findings: { readonly at: Ms; readonly finding: Finding | undefined }[] = []
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

  constructor(fleet: Fleet, seed: number, options: { kvTokens?: number | undefined; gauges?: boolean } = {}) {
    this.#rng = seededRng(seed)
    this.#gauges = options.gauges ?? true
    this.#policy = createPolicy(spec(256), seededRng(seed + 1000))
    for (let replica = 0; replica < REPLICAS; replica++) {
      const named = profileNamed('qwen3-32b')
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
    this.#decided(this.#policy.reconfigure(spec(maxInFlight), this.world.now()))
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

  window() {
    return this.#collector.window(this.world.now())
  }

  #host(profile: Profile): EngineHost<Request> {
    const noise = { sigma: 0.02, rng: this.#rng }
    return new EngineHost<Request>(this.world, new Engine<Request>({ profile, noise }), step =>
      this.#stepped(step),
    )
  }

  #next(traffic: Traffic): void {
    const rate = (traffic.perSecond * this.swing(this.world.now())) / 1000
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
    const bounds = traffic.cls === CHAT ? { ttftMs: TTFT_MS, tpotMs: TPOT_MS } : undefined
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
      const window = this.#collector.window(now)
      const base = this.baselines.at(hour)
      const finding = this.diagnoser.look(now, window, base, { objective: 0.9 })
      this.findings.push({ at: now, finding })
      if (this.diagnoser.well && now - this.#learnedAt >= MINUTE_MS) {
        this.#learnedAt = now
        this.baselines.learn(window, hour)
      }
    }
    this.world.at(now + LOOK_MS, () => this.#look())
  }
}

function spec(maxInFlight: number): PolicySpec {
  const stream: Clauses = { kind: 'stream', ttftMs: TTFT_MS, tpotMs: TPOT_MS }
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
        inputTokens: { p50: 1500, p90: 3700 },
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

/** Healthy minutes, then the fault, until something is found. */
export function runFault(fault: Fault, seed: number, gauges = true): FaultResult {
  const run = new Run(fault.fleet, seed, { kvTokens: fault.kvTokens, gauges })
  const at = WARM_MS + (HEALTHY_MINUTES + 1) * MINUTE_MS
  run.world.run(at)
  const early = run.findings.filter(({ finding }) => finding !== undefined).length
  const before = run.findings.length
  fault.inject(run)
  const since = (): (typeof run.findings)[number] | undefined =>
    run.findings.slice(before).find(({ finding }) => finding !== undefined)
  run.world.run(at + FAULT_MS, () => since() !== undefined)
  const found = since()
  return { cause: fault.cause, seed, early, first: found?.finding, afterMs: found && found.at - at }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [only, seeds = '1'] = process.argv.slice(2)
  for (const fault of FAULTS) {
    if (only !== undefined && only !== 'all' && fault.cause !== only) continue
    for (let seed = 1; seed <= Number(seeds); seed++) {
      const from = performance.now()
      const r = runFault(fault, seed)
      console.log(
        fault.cause,
        seed,
        'early',
        r.early,
        '->',
        r.first?.clause,
        r.first?.cause,
        r.first?.confidence.toFixed(2),
        'after',
        r.afterMs,
        ((performance.now() - from) / 1000).toFixed(1) + ' s',
      )
      if (process.argv[4]) console.log(r.first?.sentence, JSON.stringify(r.first?.evidence))
    }
  }
}
