/** Random request lifecycles through the policy door, with ends in every state, beside a plain model of what is open. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { fileURLToPath } from 'node:url'
import type { Decision, Ending, Failure } from '../src/policy/decision.js'
import type { Policy, PolicySpec } from '../src/policy/policy.js'
import { createPolicy } from '../src/policy/simple.js'
import type { RequestFacts, Ticket } from '../src/request.js'
import type { Progress } from '../src/slo/latency.js'
import type { Clauses, Slo, TrafficClass } from '../src/slo/slo.js'
import type { ClauseResult, Judgement, Verdict } from '../src/slo/verdict.js'
import { type Rng, seededRng } from '../src/time.js'

export interface LifecycleOptions {
  readonly seed: number
  readonly lifecycles: number
  /** Steps between two comparisons of the policy's numbers with the model's. */
  readonly checkEvery: number
  /** Default: the policy of `createPolicy`. */
  readonly create?: (spec: PolicySpec, rng: Rng) => Policy
  /** Requests in flight on one replica, at most. Default: the spec's. */
  readonly limit?: number
  /** A stopwatch in ms, for the time of one `arrive`. Without one nothing is timed. */
  readonly stopwatch?: () => number
}

export interface LifecycleReport {
  readonly arrivals: number
  readonly calls: number
  readonly decisions: Readonly<Record<Decision['kind'], number>>
  readonly verdicts: Readonly<Record<Verdict, number>>
  /** Over every decision and judgement in order: equal for equal seeds. */
  readonly fingerprint: number
  /** Time of each `arrive`, by the stopwatch. */
  readonly arriveMs: readonly number[]
}

const LIMIT = 4
/** Open requests around which arrivals slow down: more than all replicas take, so that the queue is in use. */
const CROWD = 44
const FAILURES = [
  'refused',
  'reset',
  'status',
  'busy',
  'stream_error',
  'not_an_answer',
  'first_token',
] as const
const ENDINGS = ['complete', 'upstreamError', 'truncated', 'timeout', 'clientLeft', 'clientError'] as const
const EXCLUDED = ['client_error', 'client_left', 'unmeasured'] as const

/** Two classes over two pools of four replicas: chat is shed, agents wait. */
function lifecycleSpec(): PolicySpec {
  const slo = (percentile: number, clauses: Clauses): Slo => {
    return { percentile, mode: 'joint', windowMs: 604_800_000, clauses }
  }
  const workload: TrafficClass['workload'] = {
    model: 'small',
    precision: undefined,
    inputTokens: { p50: 1000, p90: 2700 },
    outputTokens: { p50: 130, p90: 420 },
    cacheHit: 0.3,
  }
  const chat: TrafficClass = {
    id: 0,
    name: 'chat',
    target: slo(90, { kind: 'stream', ttftMs: 500, tpotMs: 40 }),
    guard: slo(99, { kind: 'stream', ttftMs: 2000, tpotMs: 100 }),
    workload,
    priority: 0,
    pools: [0, 1],
    queue: undefined,
    ownBounds: undefined,
  }
  const agent: TrafficClass = {
    id: 1,
    name: 'agent',
    target: slo(95, { kind: 'deadline', deadlineMs: 6000, minTokensPerSecond: 0 }),
    guard: slo(99, { kind: 'deadline', deadlineMs: 24_000, minTokensPerSecond: 0 }),
    workload,
    priority: 1,
    pools: [0, 1],
    queue: { max: 20, waitMs: 5000 },
    ownBounds: { minMs: 500, maxMs: 60_000 },
  }
  const pools = [0, 1].map(pool => ({
    id: pool,
    name: `pool${pool}`,
    model: pool === 0 ? 'small' : undefined,
    replicas: [0, 1, 2, 3].map(at => ({ id: pool * 4 + at, pool, name: `10.0.${pool}.${at}:8000` })),
    maxInFlight: LIMIT,
    gpusPerReplica: 1,
  }))
  const any = { path: undefined, header: [], key: undefined, stream: undefined, tools: undefined }
  return {
    classes: [chat, agent],
    pools,
    replicas: pools.flatMap(pool => pool.replicas),
    routes: [
      { when: { ...any, model: '*-agent', maxTokens: undefined }, cls: 1, rewriteModel: 'small' },
      { when: { ...any, model: undefined, maxTokens: undefined }, cls: 0, rewriteModel: undefined },
    ],
    retries: { share: 0.1, floor: 3 },
  }
}

/** One open request, as anyone outside the policy can know it. */
interface Known {
  readonly ticket: Ticket
  readonly bornAt: number
  replica: number | undefined
  at: 'queue' | 'replica' | 'nowhere'
  dispatchedAt: number
  firstTokenAt: number | undefined
}

/**
 * Plays lifecycles until so many requests have arrived, then ends all that are open.
 * @throws AssertionError at the first step after which the policy and the model disagree, or a count is lost
 */
export function runLifecycles(options: LifecycleOptions): LifecycleReport {
  const world = new World(options)
  while (world.arrivals < options.lifecycles) world.step()
  world.drain()
  return world.report()
}

class World {
  arrivals = 0
  readonly #options: LifecycleOptions
  readonly #rng: Rng
  readonly #policy: Policy
  readonly #open: Known[] = []
  readonly #byTicket = new Map<Ticket, Known>()
  readonly #inFlight = new Array<number>(8).fill(0)
  readonly #decisions = { dispatch: 0, queue: 0, shed: 0, refuse: 0, clause: 0, ejected: 0, restored: 0 }
  readonly #joint = { met: 0, missed: 0 }
  #offeredStreams = 0
  #calls = 0
  #fingerprint = 0
  readonly #arriveMs: number[] = []
  #now = 1000

  constructor(options: LifecycleOptions) {
    this.#options = options
    this.#rng = seededRng(options.seed)
    this.#policy = (options.create ?? createPolicy)(lifecycleSpec(), seededRng(options.seed + 1))
  }

  step(): void {
    this.#now += this.#rng.next() ** 4 * 100
    const known = this.#open[Math.floor(this.#rng.next() * this.#open.length)]
    const roll = this.#rng.next()
    if (known?.at === 'replica' && known.firstTokenAt !== undefined)
      this.#policy.mark(known.ticket, this.#now, 1)
    if (known === undefined || roll < (this.#open.length < CROWD ? 0.5 : 0.1)) this.#arrive()
    else if (roll < 0.56) this.#wake()
    else if (roll < 0.75 && known.at === 'replica' && known.firstTokenAt === undefined) this.#token(known)
    else if (roll < 0.8 && known.at === 'replica' && known.firstTokenAt === undefined) this.#fail(known)
    else if (known.at !== 'queue' || roll > 0.97) this.#finish(known)
    if (++this.#calls % this.#options.checkEvery === 0) this.#check()
  }

  drain(): void {
    for (let known = this.#open[0]; known !== undefined; known = this.#open[0]) {
      this.#finish(known)
      this.#check()
    }
    const { replicas, queues, open } = this.#policy.state(this.#now)
    assert.equal(open, 0)
    for (const queue of queues) assert.equal(queue.depth, 0)
    for (const replica of replicas) {
      assert.equal(replica.inFlight, 0)
      assert.equal(replica.outstandingPrefillTokens, 0)
    }
  }

  report(): LifecycleReport {
    const verdicts: Record<string, number> = {}
    for (const row of this.#policy.state(this.#now).totals) {
      for (const [verdict, count] of Object.entries(row.verdicts)) {
        verdicts[verdict] = (verdicts[verdict] ?? 0) + count
      }
    }
    return {
      arrivals: this.arrivals,
      calls: this.#calls,
      decisions: this.#decisions,
      verdicts: verdicts as Record<Verdict, number>,
      fingerprint: this.#fingerprint,
      arriveMs: this.#arriveMs,
    }
  }

  #arrive(): void {
    const facts = this.#facts()
    const { stopwatch } = this.#options
    const from = stopwatch?.()
    const { ticket, decisions } = this.#policy.arrive(facts, this.#now)
    if (stopwatch !== undefined && from !== undefined) this.#arriveMs.push(stopwatch() - from)
    this.arrivals++
    const first = decisions[0]
    assert.ok(
      first !== undefined && 'ticket' in first && first.ticket === ticket,
      'the first decision is its own',
    )
    const known: Known = {
      ticket,
      bornAt: this.#now,
      replica: undefined,
      at: 'nowhere',
      dispatchedAt: this.#now,
      firstTokenAt: undefined,
    }
    if (first.kind === 'refuse') this.#note(first)
    else {
      this.#open.push(known)
      this.#byTicket.set(ticket, known)
      // Those who waited were served before the newcomer: the model has to see it in that order.
      this.#all(decisions.slice(1))
      this.#apply(first)
      return
    }
    this.#judged(ticket, first.judgement)
    this.#all(decisions.slice(1))
  }

  #wake(): void {
    const due = this.#policy.wakeAt
    if (due !== undefined && this.#rng.next() < 0.5 && due > this.#now && due < this.#now + 2000)
      this.#now = due
    this.#all(this.#policy.wake(this.#now))
    const next = this.#policy.wakeAt
    assert.ok(next === undefined || next > this.#now, 'what was due is done: wakeAt lies ahead')
  }

  #token(known: Known): void {
    known.firstTokenAt = this.#now
    this.#all(this.#policy.firstToken(known.ticket, this.#now))
  }

  #fail(known: Known): void {
    const kind = FAILURES[Math.floor(this.#rng.next() * FAILURES.length)] ?? 'reset'
    const failure: Failure = { kind, detail: 'by lot' }
    this.#free(known)
    const { again, decisions } = this.#policy.failed(known.ticket, failure, this.#now)
    if (again !== undefined) {
      assert.ok(again.kind === 'dispatch' || again.kind === 'queue')
      this.#apply(again)
    }
    this.#all(decisions)
  }

  #finish(known: Known): void {
    const kind = ENDINGS[Math.floor(this.#rng.next() ** 2 * ENDINGS.length)] ?? 'complete'
    const breaks = kind === 'truncated' || kind === 'upstreamError'
    const ending: Ending = {
      kind: known.at === 'replica' || kind === 'clientLeft' ? kind : 'upstreamError',
      progress: known.at === 'replica' ? this.#progress(known) : undefined,
      ...(breaks && known.at === 'replica' && { failure: { kind: 'reset', detail: 'by lot' } as const }),
    }
    this.#free(known)
    this.#forget(known)
    const { judgement, decisions } = this.#policy.finish(known.ticket, ending, this.#now)
    this.#judged(known.ticket, judgement)
    this.#all(decisions)
    assert.throws(() => this.#policy.finish(known.ticket, ending, this.#now), /is closed/)
  }

  #all(decisions: readonly Decision[]): void {
    for (const decision of decisions) this.#apply(decision)
  }

  #apply(decision: Decision): void {
    this.#note(decision)
    if (decision.kind === 'clause') this.#clause(decision.result)
    if (!('ticket' in decision)) return
    const known = this.#byTicket.get(decision.ticket)
    assert.ok(known, 'a decision is about an open ticket')
    if (decision.kind === 'dispatch') {
      assert.notEqual(known.at, 'replica', 'a ticket is on one replica at a time')
      known.at = 'replica'
      known.replica = decision.replica
      known.dispatchedAt = this.#now
      this.#inFlight[decision.replica]! += 1
      assert.ok(
        this.#inFlight[decision.replica]! <= (this.#options.limit ?? LIMIT),
        'no replica is over its limit',
      )
    } else if (decision.kind === 'queue') {
      known.at = 'queue'
    } else {
      assert.notEqual(known.at, 'replica', 'what is running is not shed')
      this.#forget(known)
      this.#judged(decision.ticket, decision.judgement)
    }
  }

  #free(known: Known): void {
    if (known.at === 'replica' && known.replica !== undefined) this.#inFlight[known.replica]! -= 1
    known.at = 'nowhere'
  }

  #forget(known: Known): void {
    this.#byTicket.delete(known.ticket)
    const last = this.#open.pop()
    if (last !== undefined && last !== known) this.#open[this.#open.indexOf(known)] = last
  }

  #judged(ticket: Ticket, judgement: Judgement): void {
    for (const result of judgement.clauses) this.#clause(result)
    const excluded = EXCLUDED.some(verdict => verdict === judgement.verdict)
    assert.equal(judgement.offered, !excluded)
    if (judgement.offered && judgement.cls === 0 && ticket.facts.stream) this.#offeredStreams++
    this.#mix(judgement.verdict)
  }

  #clause({ slo, clause, met }: ClauseResult): void {
    if (slo === 'target' && clause === 'joint') this.#joint[met ? 'met' : 'missed']++
  }

  #note(decision: Decision): void {
    this.#decisions[decision.kind]++
    this.#mix(decision.kind)
    if ('ticket' in decision) this.#mix(`${decision.ticket.id}`)
    if ('replica' in decision) this.#mix(`${decision.replica}`)
    if ('retryAfterMs' in decision) this.#mix(`${decision.retryAfterMs}`)
  }

  #mix(text: string): void {
    for (let at = 0; at < text.length; at++) {
      this.#fingerprint = Math.imul(this.#fingerprint ^ text.charCodeAt(at), 16777619) >>> 0
    }
  }

  #check(): void {
    const { replicas, queues, open, totals } = this.#policy.state(this.#now)
    const expected = { open: this.#open.length, queued: 0, tokens: new Array<number>(8).fill(0) }
    for (const { at, replica, firstTokenAt, ticket } of this.#open) {
      if (at === 'queue') expected.queued++
      if (at === 'replica' && replica !== undefined && firstTokenAt === undefined) {
        expected.tokens[replica]! += ticket.facts.promptTokens
      }
    }
    assert.equal(open, expected.open)
    assert.equal(queues.length, 1)
    assert.equal(queues[0]?.depth, expected.queued)
    assert.deepEqual(
      replicas.map(replica => replica.inFlight),
      this.#inFlight,
    )
    assert.deepEqual(
      replicas.map(replica => replica.outstandingPrefillTokens),
      expected.tokens,
    )

    let arrivals = 0
    let judged = 0
    for (const row of totals) {
      arrivals += row.arrivals
      const counts = Object.values(row.verdicts).reduce((sum, count) => sum + count, 0)
      const excluded = EXCLUDED.reduce((sum, verdict) => sum + row.verdicts[verdict], 0)
      judged += counts
      assert.equal(row.offered, counts - excluded)
      assert.equal(row.shed, row.verdicts.shed)
    }
    assert.equal(arrivals, this.arrivals)
    assert.equal(judged, arrivals - open, 'verdicts sum to the arrivals that ended')
    assert.equal(
      this.#joint.met + this.#joint.missed,
      this.#offeredStreams,
      'one joint result an offered stream',
    )
  }

  #facts(): RequestFacts {
    const lot = (): number => this.#rng.next()
    const key =
      lot() < 0.5
        ? undefined
        : { label: `key${Math.floor(lot() * 5)}`, classes: lot() < 0.9 ? undefined : [0] }
    return {
      path: '/v1/chat/completions',
      headers: {},
      model: ['small', 'small-agent', 'other'][Math.floor(lot() * 3)] ?? 'small',
      stream: lot() < 0.8,
      tools: false,
      maxTokens: undefined,
      promptTokens: 1 + Math.floor(lot() * 4000),
      askedClass: lot() < 0.1 ? 1 : undefined,
      key,
      own: lot() < 0.2 ? { deadlineMs: lot() * 8000 } : {},
      patienceMs: lot() < 0.2 ? lot() * 8000 : 600_000,
      retry: 0,
      repeatable: lot() < 0.9,
      arrivedAt: this.#now - lot() * 20,
      bodyAt: this.#now,
    }
  }

  #progress(known: Known): Progress {
    const streamed = known.ticket.facts.stream && known.firstTokenAt !== undefined
    const marks = known.firstTokenAt === undefined ? 0 : 1 + Math.floor(this.#rng.next() * 40)
    return {
      streamed,
      firstEvent: known.firstTokenAt,
      firstOutput: known.firstTokenAt,
      firstVisible: known.firstTokenAt,
      lastOutput: known.firstTokenAt === undefined ? undefined : this.#now,
      marks,
      longestChoiceMarks: marks,
      longestGap: undefined,
      usage:
        this.#rng.next() < 0.7
          ? {
              promptTokens: 10,
              completionTokens: marks * 2,
              cachedTokens: undefined,
              reasoningTokens: undefined,
            }
          : undefined,
      throttled: this.#rng.next() < 0.05,
    }
  }
}

/** `bench/lifecycle.ts [lifecycles] [seed]`; with `--write` the table goes to results/ as well. */
function main(args: readonly string[]): void {
  const [lifecycles = 1_000_000, seed = 1] = args.filter(arg => !arg.startsWith('--')).map(Number)
  runLifecycles({ seed: seed + 1, lifecycles: 20_000, checkEvery: 1000 })
  const from = performance.now()
  const report = runLifecycles({ seed, lifecycles, checkEvery: 64, stopwatch: () => performance.now() })
  const tookMs = performance.now() - from
  const sorted = report.arriveMs.toSorted((a, b) => a - b)
  const us = (share: number): string =>
    ((sorted[Math.floor(share * (sorted.length - 1))] ?? 0) * 1000).toFixed(2)
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
  const table = [
    '# Random lifecycles through the policy door',
    '',
    `Workload: ${lifecycles} requests of two classes over 2 pools of 4 replicas, limit ${LIMIT} each, ends in every state; seed ${seed}.`,
    'Laws held: in flight and outstanding prefill equal the open tickets and never pass the limit, all exactly 0 at rest;',
    'verdicts sum to arrivals less open; one `joint` result an offered stream; a second finish throws.',
    '',
    '| what | value |',
    '|---|---|',
    `| one \`arrive\` at 8 replicas, stopwatch included, p50 / p99 | ${us(0.5)} / ${us(0.99)} us |`,
    `| calls of the door | ${report.calls} |`,
    `| whole run with its checks | ${(tookMs / 1000).toFixed(1)} s |`,
    ...Object.entries(report.decisions).map(([kind, count]) => `| decisions: ${kind} | ${count} |`),
    ...Object.entries(report.verdicts).map(([verdict, count]) => `| verdicts: ${verdict} | ${count} |`),
    '',
    `Command: \`node --import @tapjs/typescript/import bench/lifecycle.ts ${lifecycles} ${seed} --write\`; after commit ${commit};`,
    `Node ${process.version}, ${cpus()[0]?.model ?? 'unknown CPU'}.`,
    '',
  ].join('\n')
  process.stdout.write(table)
  if (args.includes('--write')) writeFileSync(new URL('./results/lifecycle.md', import.meta.url), table)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main(process.argv.slice(2))
