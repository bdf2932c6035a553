/** The traffic of a scenario: which requests come when, drawn from traces, sessions and distributions. */
import type { ClassId } from '../request.js'
import { type Ms, type Rng, seededRng } from '../time.js'
import { type Blocks, blockExpander, HashRanges } from './block-hashes.js'
import { drawLength } from './draw.js'
import type { Traffic } from './fleet.js'
import type { Parcel } from './fluid.js'
import type { Arrival, Job } from './job.js'
import { BLOCK_TOKENS } from './kv-cache.js'
import { RateClock } from './rate.js'
import type { Fault, RequestSource, Scenario } from './scenario.js'
import { type Call, SESSION_BLOCK_TOKENS, Session } from './session.js'

/** A trace that was read: as much of it as is needed here. */
export type TraceData =
  | { readonly kind: 'requests'; readonly rows: readonly Row[] }
  | { readonly kind: 'sessions'; readonly sessions: readonly { readonly calls: readonly Call[] }[] }

interface Row {
  readonly atMs: Ms
  readonly inputTokens: number
  readonly outputTokens: number
  readonly prefix?: Blocks | undefined
}

/** Requests drawn to know the mean of a distribution. */
const DRAWN = 5_000
/** Before a client that does not obey comes again; doubles each time. */
const IMPATIENT_MS: Ms = 500
/** Of a call before its run is known: first token, and time a token. */
const CALL_MS: Ms = 500
const TOKEN_MS: Ms = 20

/** Usable sessions of a source: each cut before its first call that is too long, and after `maxCalls`. */
function sessionsOf(source: RequestSource & { kind: 'sessions' }, data: TraceData): (readonly Call[])[] {
  if (data.kind !== 'sessions') throw new RangeError(`${source.trace} holds no sessions`)
  return data.sessions
    .map(({ calls }) => {
      const long = calls.findIndex(({ inputTokens }) => inputTokens > source.maxInputTokens)
      return calls.slice(0, Math.min(long < 0 ? calls.length : long, source.maxCalls))
    })
    .filter(calls => calls.length > 0)
}

function rowsOf(source: RequestSource & { kind: 'trace' }, data: TraceData): readonly Row[] {
  if (data.kind !== 'requests') throw new RangeError(`${source.trace} holds sessions: give it as such`)
  return data.rows.filter(({ inputTokens }) => inputTokens <= source.maxInputTokens)
}

/**
 * A sample of what a class asks for, with the hits of a cache that forgets nothing and is shared by all: what no router
 * can beat.
 */
export function sampleOf(source: RequestSource, data: TraceData | undefined, prefixCache: boolean): Parcel[] {
  if (source.kind === 'lengths') {
    const rng = seededRng(1)
    return Array.from({ length: DRAWN }, () => ({
      promptTokens: drawLength(source.input, rng),
      cachedTokens: 0,
      outputTokens: drawLength(source.output, rng),
    }))
  }
  if (data === undefined) throw new RangeError(`the trace ${source.trace} was not read`)
  if (source.kind === 'trace') {
    const seen = new Set<number>()
    return rowsOf(source, data).map(row => {
      const ids = prefixCache ? (row.prefix?.ids ?? []) : []
      const hits = leading(ids, id => seen.has(id))
      for (const id of ids) seen.add(id)
      return parcel(row, hits * (row.prefix?.blockTokens ?? 0))
    })
  }
  return sessionsOf(source, data).flatMap(calls =>
    calls.map((call, at) => {
      const before = prefixCache ? (calls[at - 1]?.ids ?? []) : []
      const hits = leading(call.ids, (id, place) => before[place] === id)
      return parcel(call, hits * SESSION_BLOCK_TOKENS)
    }),
  )
}

function leading(ids: readonly number[], known: (id: number, place: number) => boolean): number {
  let hits = 0
  while (hits < ids.length && known(ids[hits] as number, hits)) hits++
  return hits
}

function parcel(of: { inputTokens: number; outputTokens: number }, hit: number): Parcel {
  const most = Math.floor((of.inputTokens - 1) / BLOCK_TOKENS) * BLOCK_TOKENS
  return {
    promptTokens: of.inputTokens,
    cachedTokens: Math.min(hit, most),
    outputTokens: of.outputTokens,
  }
}

/** One class's traffic. */
interface Stream {
  /** Time of `take`'s; Infinity: no more. */
  readonly at: Ms
  take(): Arrival
}

export interface MixOptions {
  readonly scenario: Scenario
  readonly traces: ReadonlyMap<string, TraceData>
  /** Requests a millisecond, by class id. */
  readonly rates: readonly number[]
  /** Nothing comes after this. */
  readonly untilMs: Ms
  readonly seed: number
}

export class Mix implements Traffic {
  readonly #streams: readonly Stream[]
  readonly #untilMs: Ms
  readonly #rng: Rng
  readonly #aborts: (Fault & { kind: 'aborts' }) | undefined
  readonly #retries: (Fault & { kind: 'retries' }) | undefined
  readonly #shifts: readonly (Fault & { kind: 'prompt-shift' })[]
  readonly #mostTokens: number

  /** @param mostTokens  prompt and output of one request, at most: longer prompts are cut */
  constructor(options: MixOptions, mostTokens: number) {
    const { scenario, traces, rates, untilMs, seed } = options
    const seeds = seededRng(seed)
    const dice = (): Rng => seededRng(Math.floor(seeds.next() * 2 ** 32))
    const shapeSeed = Math.floor(seeds.next() * 2 ** 32)
    const ranges = new HashRanges()
    this.#untilMs = untilMs
    this.#rng = dice()
    this.#mostTokens = mostTokens
    this.#aborts = scenario.faults.find(fault => fault.kind === 'aborts')
    this.#retries = scenario.faults.find(fault => fault.kind === 'retries')
    this.#shifts = scenario.faults.filter(fault => fault.kind === 'prompt-shift')
    this.#streams = scenario.classes.flatMap(({ requests }, cls): Stream[] => {
      const rng = dice()
      const rate = rates[cls] ?? 0
      if (rate === 0) return []
      // All classes rise and fall together.
      const clock = new RateClock(scenario.rate, seededRng(shapeSeed))
      const { prefixCache } = scenario
      const flow = { cls, rate, clock, rng, untilMs, prefixCache, ranges }
      if (requests.kind === 'lengths') return [lengthStream(requests, flow)]
      const data = traces.get(requests.trace)
      if (data === undefined) throw new RangeError(`the trace ${requests.trace} was not read`)
      return requests.kind === 'trace'
        ? [rowStream(requests, rowsOf(requests, data), flow)]
        : [
            startStream(sessionsOf(requests, data), requests.maxThinkMs, flow),
            underWay(sessionsOf(requests, data), requests.maxThinkMs, flow, scenario.warmupMs),
          ]
    })
  }

  next(): Arrival | undefined {
    let first: Stream | undefined
    for (const stream of this.#streams) if (first === undefined || stream.at < first.at) first = stream
    if (first === undefined || first.at > this.#untilMs) return undefined
    return this.#treat(first.take())
  }

  after(job: Job, now: Ms): Arrival | undefined {
    const again = this.#again(job, now) ?? this.#nextCall(job, now)
    return again === undefined || again.at > this.#untilMs ? undefined : again
  }

  #again(job: Job, now: Ms): Arrival | undefined {
    const { arrival } = job
    const tried = arrival.retry ?? 0
    if (job.end !== 'shed' || this.#retries === undefined || tried >= this.#retries.times) return undefined
    const wait = this.#retries.obey ? (job.retryAfterMs ?? IMPATIENT_MS) : IMPATIENT_MS * 2 ** tried
    // Clients' libraries spread their waits.
    return { ...arrival, at: now + wait * (1 + 0.25 * this.#rng.next()), retry: tried + 1 }
  }

  #nextCall({ arrival }: Job, now: Ms): Arrival | undefined {
    const next = arrival.sender instanceof Session ? arrival.sender.call(now) : undefined
    return next && this.#treat(next)
  }

  #treat(arrival: Arrival): Arrival {
    let promptTokens = arrival.promptTokens
    for (const { atMs, forMs, factor } of this.#shifts) {
      if (arrival.at >= atMs && arrival.at < atMs + forMs) promptTokens = Math.round(promptTokens * factor)
    }
    promptTokens = Math.max(1, Math.min(promptTokens, this.#mostTokens - arrival.outputTokens))
    const leaves = this.#aborts !== undefined && this.#rng.next() < this.#aborts.share
    if (!leaves && promptTokens === arrival.promptTokens) return arrival
    return {
      ...arrival,
      promptTokens,
      ...(leaves ? { leavesAfterMs: this.#rng.next() * (this.#aborts?.withinMs ?? 0) } : {}),
    }
  }
}

interface Flow {
  readonly cls: ClassId
  /** Requests a millisecond. */
  readonly rate: number
  readonly clock: RateClock
  readonly rng: Rng
  readonly untilMs: Ms
  readonly prefixCache: boolean
  /** One for the whole run: what one class says, no other does. */
  readonly ranges: HashRanges
}

const exponential = (rng: Rng, mean: number): number => -mean * Math.log(1 - rng.next())

function lengthStream(source: RequestSource & { kind: 'lengths' }, flow: Flow): Stream {
  const { cls, rate, clock, rng } = flow
  let at = clock.after(exponential(rng, 1 / rate))
  return {
    get at() {
      return at
    },
    take() {
      const arrival = {
        at,
        cls,
        promptTokens: drawLength(source.input, rng),
        outputTokens: drawLength(source.output, rng),
      }
      at = clock.after(exponential(rng, 1 / rate))
      return arrival
    },
  }
}

/**
 * Rows in their order from a random one on, over and over. Recorded gaps are scaled so that as many rows come in the
 * run as the rate asks for, whichever part of the trace it plays.
 */
function rowStream(source: RequestSource & { kind: 'trace' }, rows: readonly Row[], flow: Flow): Stream {
  const { cls, rate, clock, rng, untilMs, prefixCache, ranges } = flow
  const start = Math.floor(rng.next() * rows.length)
  const row = (at: number): Row => rows[(start + at) % rows.length] as Row
  const span = (rows.at(-1) as Row).atMs - (rows[0] as Row).atMs
  const gapBefore = (at: number): Ms => {
    const gap = row(at).atMs - row(at - 1).atMs
    return gap < 0 ? span / rows.length : gap
  }
  const count = Math.max(1, Math.round(rate * untilMs))
  let recorded = 0
  for (let at = 1; at <= count; at++) recorded += gapBefore(at)
  const scale = recorded === 0 ? 0 : untilMs / recorded
  const poisson = source.arrivals === 'poisson' || scale === 0
  const steady = (at: number): Ms => (poisson ? exponential(rng, 1 / rate) : gapBefore(at) * scale)
  const expand = blockExpander(ranges)
  let taken = 0
  let at = clock.after(poisson ? steady(0) : rng.next() / rate)
  return {
    get at() {
      return at
    },
    take() {
      const { inputTokens, outputTokens, prefix } = row(taken)
      // A second time round, the text is another one.
      const lap = Math.floor((start + taken) / rows.length)
      const hashes = prefixCache && prefix !== undefined ? expand(prefix, inputTokens, lap) : undefined
      const arrival: Arrival = {
        at,
        cls,
        promptTokens: inputTokens,
        outputTokens,
        ...(hashes === undefined ? {} : { blockHashes: hashes }),
      }
      taken++
      at = clock.after(steady(taken))
      return arrival
    },
  }
}

const meanCalls = (sessions: readonly (readonly Call[])[]): number =>
  sessions.reduce((sum, calls) => sum + calls.length, 0) / sessions.length

/** Sessions that begin in the run. */
function startStream(sessions: readonly (readonly Call[])[], maxThinkMs: Ms, flow: Flow): Stream {
  const { cls, rate, clock, rng } = flow
  const gap = meanCalls(sessions) / rate
  const ranges = flow.prefixCache ? flow.ranges : undefined
  let at = clock.after(exponential(rng, gap))
  return {
    get at() {
      return at
    },
    take() {
      const calls = sessions[Math.floor(rng.next() * sessions.length)] as readonly Call[]
      const arrival = new Session(cls, calls, 0, maxThinkMs, ranges).first(at)
      at = clock.after(exponential(rng, gap))
      return arrival
    },
  }
}

/** Sessions that began before the run: as many as the rate keeps under way, coming in over the warm-up. */
function underWay(sessions: readonly (readonly Call[])[], maxThinkMs: Ms, flow: Flow, overMs: Ms): Stream {
  const { cls, rate, rng } = flow
  const all = sessions.flat()
  const callMs =
    all.reduce((sum, call) => sum + Math.min(call.thinkMs, maxThinkMs) + call.outputTokens * TOKEN_MS, 0) /
      all.length +
    CALL_MS
  const count = Math.round(rate * callMs)
  const times = Array.from({ length: count }, () => rng.next() * overMs).sort((a, b) => a - b)
  const ranges = flow.prefixCache ? flow.ranges : undefined
  // A session is met in proportion to its length.
  const places = sessions.flatMap(calls => calls.map((_, from) => ({ calls, from })))
  let taken = 0
  return {
    get at() {
      return times[taken] ?? Number.POSITIVE_INFINITY
    },
    take() {
      const { calls, from } = places[Math.floor(rng.next() * places.length)] as (typeof places)[number]
      return new Session(cls, calls, from, maxThinkMs, ranges).first(times[taken++] as Ms)
    },
  }
}
