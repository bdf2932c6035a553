/** Any policy over simulated engines in virtual time: does what it decides, and tells it what comes of that. */
import TinyQueue from 'tinyqueue'
import type { Decision, Ending, Failure } from '../policy/decision.js'
import type { Policy, PolicySpec } from '../policy/policy.js'
import type { ReplicaId, RequestFacts, Ticket } from '../request.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Judgement } from '../slo/verdict.js'
import type { Clock, Ms, Rng } from '../time.js'
import { Engine, type Step } from './engine.js'
import { type Arrival, Job, type JobEnd } from './job.js'
import { NextTimes } from './next-times.js'
import type { EngineProfile } from './profiles.js'

/** Who sends, and when. */
export interface Traffic {
  /** The next of those that come whatever happens, in order of time; undefined: no more. */
  next(): Arrival | undefined
  /** What the sender of one that ended does then: its next call, or the same again. Not before `now`. */
  after?(job: Job, now: Ms): Arrival | undefined
}

/** Something that happens to the fleet, such as a fault. */
export interface Happening {
  readonly at: Ms
  run(fleet: Fleet, now: Ms): void
}

export interface FleetOptions {
  /** By replica id. */
  readonly replicas: readonly EngineProfile[]
  readonly policy: Policy
  /** By class id. */
  readonly classes: readonly TrafficClass[]
  /** By class id: what its requests ask for. */
  readonly models: readonly string[]
  readonly traffic: Traffic
  /** Told of each request once, when it has ended, with what its sender does next. */
  readonly ended: (job: Job, judgement: Judgement, next: Arrival | undefined) => void
  /** The policy hears so much later what engines do; default: at once. */
  readonly staleMs?: Ms
  /** Lognormal jitter of the iteration times. */
  readonly noise?: { readonly sigma: number; readonly rng: Rng }
  /** Those still under way then end as timed out; default: it runs until all have ended. */
  readonly untilMs?: Ms
  readonly happenings?: readonly Happening[]
  /** Times each decision about an arrival; the figures go to `decided`. */
  readonly stopwatch?: { readonly clock: Clock; readonly decided: (tookMs: Ms) => void }
}

/** Tokens come to the router at least this often, though nothing else happens on their replica. */
const MOST_JOINED_MS: Ms = 200

interface Timer {
  readonly at: Ms
  readonly order: number
  readonly run: () => void
}

export class Fleet {
  readonly engines: Engine<Job>[]
  readonly #options: FleetOptions
  readonly #policy: Policy
  readonly #traffic: Traffic
  readonly #next: NextTimes
  readonly #timers = new TinyQueue<Timer>([], (a, b) => a.at - b.at || a.order - b.order)
  /** Open jobs by ticket id. */
  readonly #open = new Map<number, Job>()
  /** By replica id: it answers nobody. */
  readonly #down: boolean[]
  readonly #sink = (step: Step<Job>): void => this.#stepped(step)
  #arrival: Arrival | undefined
  #now: Ms = 0
  #order = 0

  constructor(options: FleetOptions) {
    this.#options = options
    this.#policy = options.policy
    this.#traffic = options.traffic
    this.engines = options.replicas.map(profile => this.#engine(profile))
    this.#down = options.replicas.map(() => false)
    this.#next = new NextTimes(options.replicas.length)
    this.#arrival = this.#traffic.next()
    for (const happening of options.happenings ?? []) {
      this.at(happening.at, () => happening.run(this, this.#now))
    }
  }

  get now(): Ms {
    return this.#now
  }

  get policy(): Policy {
    return this.#policy
  }

  /** Requests that have not ended. */
  get open(): number {
    return this.#open.size
  }

  /** Does something at a time to come, in the order of asking among equal times. */
  at(time: Ms, run: () => void): void {
    this.#timers.push({ at: Math.max(time, this.#now), order: this.#order++, run })
  }

  /** Runs until all traffic has ended, or to `untilMs`. */
  run(): void {
    const until = this.#options.untilMs ?? Number.POSITIVE_INFINITY
    const policy = this.#policy
    for (;;) {
      const engineAt = this.#next.soonest
      const timerAt = this.#timers.peek()?.at ?? Number.POSITIVE_INFINITY
      const wakeAt = policy.wakeAt ?? Number.POSITIVE_INFINITY
      const arriveAt = this.#arrival?.at ?? Number.POSITIVE_INFINITY
      // Nobody is there to whom its next waking could matter.
      if (this.#open.size === 0 && timerAt === Infinity && arriveAt === Infinity) break
      const at = Math.max(this.#now, Math.min(engineAt, timerAt, wakeAt, arriveAt))
      if (at > until) break
      this.#now = at
      if (engineAt <= at) this.#runEngine(this.#next.first)
      else if (timerAt <= at) this.#timers.pop()?.run()
      else if (wakeAt <= at) this.#wake(at)
      else this.#arrive()
    }
    if (until === Number.POSITIVE_INFINITY) return
    this.#now = Math.max(this.#now, until)
    for (const job of [...this.#open.values()]) {
      if (job.endedAt === undefined) this.#cut(job, 'timeout')
      else this.#complete(job)
    }
  }

  /** A request arrives now. */
  send(arrival: Arrival): void {
    const now = this.#now
    const job = new Job(arrival)
    const watch = this.#options.stopwatch
    const from = watch?.clock.now() ?? 0
    const { ticket, decisions } = this.#policy.arrive(this.#facts(arrival, now), now)
    watch?.decided(watch.clock.now() - from)
    job.ticket = ticket
    this.#open.set(ticket.id, job)
    if (arrival.leavesAfterMs !== undefined) {
      this.at(now + arrival.leavesAfterMs, () => {
        if (job.end === undefined && job.endedAt === undefined) this.#cut(job, 'clientLeft')
      })
    }
    this.#follow(decisions)
  }

  /** Breaks a replica off: what it had is lost, and nobody is answered until `restore`. */
  crash(replica: ReplicaId): void {
    this.#down[replica] = true
    const lost = [...this.#open.values()].filter(job => job.replica === replica && job.endedAt === undefined)
    const failure: Failure = { kind: 'reset', detail: 'the replica crashed' }
    for (const job of lost) this.#engineOf(replica).abort(job.sequence as never, this.#now)
    this.#plan(replica)
    for (const job of lost) {
      if (job.end !== undefined || job.replica !== replica) continue
      if (job.firstTokenAt === undefined) this.#failed(job, failure)
      else this.#finish(job, { kind: 'truncated', progress: job.progress(), failure })
    }
  }

  /** A crashed replica is back, its caches empty. */
  restore(replica: ReplicaId, profile = this.#engineOf(replica).profile): void {
    this.#down[replica] = false
    this.engines[replica] = this.#engine(profile)
    this.#plan(replica)
  }

  /** Its iterations take so many times as long from now on. */
  slow(replica: ReplicaId, factor: number): void {
    this.#engineOf(replica).slowness = factor
  }

  /** Every replica forgets its prefix cache. */
  flushCaches(): void {
    for (const engine of this.engines) engine.flushCache()
  }

  /** The policy follows a new config. */
  reconfigure(spec: PolicySpec): void {
    this.#follow(this.#policy.reconfigure(spec, this.#now))
  }

  /** Traffic of others, straight to the engine: the policy does not know of it. */
  sendForeign(replica: ReplicaId, arrival: Arrival): void {
    if (this.#down[replica]) return
    this.#engineOf(replica).submit(new Job(arrival), this.#now)
    this.#plan(replica)
  }

  #engine(profile: EngineProfile): Engine<Job> {
    const { noise } = this.#options
    return new Engine<Job>({
      profile,
      coarse: true,
      mostJoinedMs: MOST_JOINED_MS,
      ...(noise === undefined ? {} : { noise }),
    })
  }

  #engineOf(replica: ReplicaId): Engine<Job> {
    return this.engines[replica] as Engine<Job>
  }

  #plan(replica: ReplicaId): void {
    this.#next.set(replica, this.#engineOf(replica).nextAt)
  }

  #runEngine(replica: ReplicaId): void {
    this.#engineOf(replica).runTo(this.#now, this.#sink)
    this.#plan(replica)
  }

  #arrive(): void {
    const arrival = this.#arrival as Arrival
    this.#arrival = this.#traffic.next()
    this.send(arrival)
  }

  #wake(at: Ms): void {
    this.#follow(this.#policy.wake(at))
    const again = this.#policy.wakeAt
    if (again !== undefined && again <= at)
      throw new Error(`the policy was woken at ${at} and asks for it again`)
  }

  #stepped(step: Step<Job>): void {
    const stale = this.#options.staleMs ?? 0
    if (stale > 0) {
      this.#later(step, stale)
      return
    }
    const policy = this.#policy
    const now = step.endedAt
    let begun = 0
    for (const sequence of step.emitted) {
      const job = sequence.request
      const first = step.begun[begun] === sequence
      if (first) begun++
      // Foreign ones have no ticket; another's decision at this very moment may have ended this one.
      if (job.ticket === undefined || job.end !== undefined) continue
      if (first) this.#begin(job, now)
      else policy.mark(job.ticket, now, sequence.fresh)
    }
    for (const { request } of step.ended) {
      if (request.ticket === undefined || request.end !== undefined) continue
      this.#complete(request)
    }
  }

  /** The policy hears of a step after `stale`. Clients have their tokens at once: they are judged by when those came. */
  #later(step: Step<Job>, stale: Ms): void {
    const first = new Set(step.begun)
    const told = step.emitted.map(sequence => ({
      job: sequence.request,
      marks: first.has(sequence) ? 0 : sequence.fresh,
    }))
    const ended = step.ended.map(({ request }) => request)
    for (const job of ended) job.endedAt = step.endedAt
    this.at(step.endedAt + stale, () => {
      for (const { job, marks } of told) {
        if (job.ticket === undefined || job.end !== undefined) continue
        if (marks === 0) this.#begin(job, this.#now)
        else this.#policy.mark(job.ticket, this.#now, marks)
      }
      for (const job of ended) if (job.ticket !== undefined && job.end === undefined) this.#complete(job)
    })
  }

  /** The policy hears of its first output. */
  #begin(job: Job, now: Ms): void {
    if (job.begun) return
    job.begun = true
    this.#follow(this.#policy.firstToken(job.ticket as Ticket, now))
  }

  #complete(job: Job): void {
    this.#finish(job, { kind: 'complete', progress: job.progress() })
  }

  #follow(decisions: readonly Decision[]): void {
    for (const decision of decisions) this.#do(decision)
  }

  #do(decision: Decision): void {
    switch (decision.kind) {
      case 'dispatch':
        this.#dispatch(this.#jobOf(decision.ticket), decision.replica)
        break
      case 'shed': {
        const job = this.#jobOf(decision.ticket)
        job.retryAfterMs = decision.retryAfterMs
        this.#close(job, 'shed', decision.judgement)
        break
      }
      case 'refuse':
        this.#close(this.#jobOf(decision.ticket), 'refused', decision.judgement)
        break
      case 'queue':
      case 'clause':
      case 'ejected':
      case 'restored':
    }
  }

  #dispatch(job: Job, replica: ReplicaId): void {
    job.replica = replica
    job.dispatchedAt = this.#now
    if (this.#down[replica]) {
      job.sequence = undefined
      // Not within the call that decided it: the door is not re-entered.
      this.at(this.#now, () => {
        if (job.end === undefined && job.replica === replica) {
          this.#failed(job, { kind: 'refused', detail: 'no connection' })
        }
      })
      return
    }
    job.sequence = this.#engineOf(replica).submit(job, this.#now)
    this.#plan(replica)
  }

  #failed(job: Job, failure: Failure): void {
    job.replica = undefined
    job.sequence = undefined
    const { again, decisions } = this.#policy.failed(job.ticket as Ticket, failure, this.#now)
    if (again !== undefined) this.#do(again)
    this.#follow(decisions)
    if (again === undefined) this.#finish(job, { kind: 'upstreamError', progress: undefined })
  }

  /** Ends a job that is still under way. */
  #cut(job: Job, kind: 'timeout' | 'clientLeft'): void {
    if (job.sequence !== undefined && job.replica !== undefined && !this.#down[job.replica]) {
      this.#engineOf(job.replica).abort(job.sequence, this.#now)
      this.#plan(job.replica)
    }
    this.#finish(job, { kind, progress: job.progress() })
  }

  #finish(job: Job, ending: Ending & { kind: JobEnd }): void {
    // What is not heard of yet: an end comes after a beginning.
    if (job.firstTokenAt !== undefined) this.#begin(job, this.#now)
    const { judgement, decisions } = this.#policy.finish(job.ticket as Ticket, ending, this.#now)
    this.#close(job, ending.kind, judgement)
    this.#follow(decisions)
  }

  #close(job: Job, end: JobEnd, judgement: Judgement): void {
    const ticket = job.ticket as Ticket
    this.#open.delete(ticket.id)
    const endedAt = job.endedAt ?? this.#now
    job.close(end, endedAt, this.#options.classes[job.arrival.cls] as TrafficClass)
    const wanted = this.#traffic.after?.(job, endedAt)
    const next = wanted === undefined || wanted.at >= this.#now ? wanted : { ...wanted, at: this.#now }
    this.#options.ended(job, judgement, next)
    if (next !== undefined) this.at(next.at, () => this.send(next))
  }

  #jobOf(ticket: Ticket): Job {
    const job = this.#open.get(ticket.id)
    if (job === undefined) throw new Error(`a decision about ticket ${ticket.id}, which is not open`)
    return job
  }

  #facts(arrival: Arrival, now: Ms): RequestFacts {
    return {
      path: '/v1/chat/completions',
      headers: NO_HEADERS,
      model: this.#options.models[arrival.cls] ?? '',
      stream: true,
      tools: false,
      maxTokens: undefined,
      promptTokens: arrival.promptTokens,
      askedClass: arrival.cls,
      key: undefined,
      own: arrival.deadlineMs === undefined ? NO_BOUNDS : { deadlineMs: arrival.deadlineMs },
      patienceMs: undefined,
      retry: arrival.retry ?? 0,
      prefix: arrival.blockHashes,
      repeatable: true,
      arrivedAt: now,
      bodyAt: now,
    }
  }
}

const NO_HEADERS: RequestFacts['headers'] = {}
const NO_BOUNDS: RequestFacts['own'] = {}
