/** Counts, from the events of requests, what a diagnosis of one pool needs to know. */
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import { type EngineGauges, engineRates } from './engine-gauges.js'
import { type Bounds, Flight, type Observed, type ObservedEnd } from './observed.js'
import { addCounts, COUNTS, type Count, countsBy, type Look, type PoolWindow } from './pool-window.js'
import { BURST_MS, Side } from './side.js'
import { binOf, SketchWindow } from './sketch.js'
import { Windows } from './windows.js'

/** Prompt tokens of a long prompt: it holds up those behind it. Source: algorithms 6.14. */
const LONG_TOKENS = 6000
/** Of one whose prefill shows in the gaps of streams beside it. */
const BIG_TOKENS = 2000
/** A gap that no step explains: the engine had dropped the stream's memory, or stood still. */
const STALL_MS: Ms = 1000
/** So does one in which the others got so many tokens more than this stream. */
const PASSED_STEPS = 8
/** A gap of so many times the usual is a spike. */
const SPIKE = 3
/** Tokens after which the pace so far says something. */
const PACE_TOKENS = 32
/** Spans a row for the line of the quiet step. */
const ROW_MS: Ms = 250
const WINDOW_MS: Ms = 60_000
const RECENT_MS: Ms = 20_000
/** Judged requests without which less than the whole minute says too little. */
const RECENT_LEAST = 100
/** KV usage from which it counts as full. */
const KV_FULL = 0.9
const AT = Object.fromEntries(COUNTS.map((name, index) => [name, index])) as Record<Count, number>
/** Series before those of the replicas. */
const ARRIVALS = 0
const SHED = 1
const POOL_SERIES = 2

/**
 * Fed at rising times with what a router sees of one pool. A mark costs some additions and allocates nothing; a
 * reading looks at every open request once.
 */
export class PoolCollector {
  readonly #windows: Windows
  readonly #prompts = new SketchWindow(WINDOW_MS, 0)
  readonly #recentPrompts = new SketchWindow(RECENT_MS, 0)
  readonly #sides = new Map<ReplicaId, Side>()
  readonly #open = new Set<Flight>()
  readonly #offset: Ms

  constructor(now: Ms) {
    // Windows count from 0.
    this.#offset = -now
    this.#windows = new Windows(POOL_SERIES, [{ sliceMs: 1000, spanMs: WINDOW_MS }], 0)
  }

  /**
   * A replica takes requests from now on, for the first time or again: a cold one.
   * @param upSince  before `now` where it was up before it was watched
   */
  replicaUp(replica: ReplicaId, now: Ms, upSince: Ms = now): void {
    this.#side(replica, now).upSince = upSince
  }

  /** @param bounds  of its class; undefined for one that is not judged by TTFT and TPOT */
  arrived(promptTokens: number, bounds: Bounds | undefined, bodyAt: Ms, now: Ms): Observed {
    this.#advance(now)
    this.#windows.add(ARRIVALS)
    if (bounds !== undefined) {
      this.#prompts.add(binOf(promptTokens), now + this.#offset)
      this.#recentPrompts.add(binOf(promptTokens), now + this.#offset)
    }
    const flight = new Flight(promptTokens, bounds, bodyAt)
    this.#open.add(flight)
    return flight
  }

  dispatched(observed: Observed, replica: ReplicaId, now: Ms): void {
    const flight = observed as Flight
    this.#advance(now)
    const side = this.#side(replica, now)
    flight.side = side
    flight.dispatchedAt = now
    flight.behindLong = side.waitingLong > 0 && flight.promptTokens <= LONG_TOKENS
    flight.lineTokens = side.waitingTokens + flight.promptTokens
    this.#line(side, flight, 1)
    this.#add(side, 'dispatched')
    this.#add(side, 'dispatchedTokens', flight.promptTokens)
    if (flight.promptTokens > LONG_TOKENS) this.#add(side, 'dispatchedLong')
  }

  /** The attempt on its replica failed before its first token; it may be dispatched again. */
  failed(observed: Observed, now: Ms): void {
    const flight = observed as Flight
    this.#advance(now)
    if (flight.side !== undefined && flight.firstAt === undefined) this.#line(flight.side, flight, -1)
    flight.side = undefined
  }

  /** @param tokens  in its first output event */
  firstToken(observed: Observed, now: Ms, tokens = 1): void {
    const flight = observed as Flight
    const { side } = flight
    if (side === undefined) return
    this.#advance(now)
    this.#line(side, flight, -1)
    side.lastFirstAt = now
    if (flight.promptTokens > BIG_TOKENS) side.lastBigAt = now
    this.#streams(side, 1, now)
    side.context += flight.promptTokens + tokens
    flight.firstAt = now
    flight.lastAt = now
    flight.tokens = tokens
    flight.step = side.step(now)
    if (flight.bounds === undefined) return
    const upstream = now - flight.dispatchedAt
    this.#first(side, flight, upstream, now - flight.bodyAt > flight.bounds.ttftMs)
    // Attention makes long prompts dearer than their tokens.
    if (flight.behindLong || flight.promptTokens > LONG_TOKENS) return
    const w = flight.lineTokens / 1000
    this.#add(side, 'lines')
    this.#add(side, 'lineT', upstream)
    this.#add(side, 'lineW', w)
    this.#add(side, 'lineWW', w * w)
    this.#add(side, 'lineWT', w * upstream)
  }

  /** A further output event. @param tokens  in it, as estimated, above 0 */
  mark(observed: Observed, now: Ms, tokens: number): void {
    const flight = observed as Flight
    const { side } = flight
    if (side === undefined) return
    const from = flight.lastAt
    const gap = now - from
    flight.lastAt = now
    flight.tokens += tokens
    side.context += tokens
    const step = side.step(now)
    const passed = step - flight.step - 1
    flight.step = step
    if (flight.throttled) return
    this.#advance(now)
    const { stallMs } = flight
    if (stallMs !== undefined) {
      flight.stallMs = undefined
      // What then comes at once was held up on its way: the engine had not passed it over.
      if (gap < BURST_MS) {
        this.#add(side, 'stalls', -1)
        this.#add(side, 'stallTokens', -flight.stallTokens)
        this.#add(side, 'stallMs', -stallMs)
      }
    }
    if (gap >= STALL_MS || passed >= PASSED_STEPS * tokens) {
      this.#add(side, 'stalls')
      this.#add(side, 'stallTokens', tokens)
      this.#add(side, 'stallMs', gap)
      flight.stallMs = gap
      flight.stallTokens = tokens
      return
    }
    const quiet = side.waiting === 0 && side.lastFirstAt <= from
    const spike = side.usualMs !== undefined && gap > SPIKE * side.usualMs * tokens
    if (side.waitingBig > 0 || side.lastBigAt > from) {
      this.#add(side, 'besideBig')
      if (spike) this.#add(side, 'spikesBesideBig')
    } else {
      this.#add(side, 'besideNone')
      if (spike) this.#add(side, 'spikesBesideNone')
    }
    if (!quiet) {
      this.#add(side, 'mixedTokens', tokens)
      this.#add(side, 'mixedMs', gap)
      return
    }
    side.rowTokens += tokens
    side.rowMs += gap
    side.rowStreams += tokens * side.streams
    side.rowContext += tokens * side.context
    if (now - side.rowFrom >= ROW_MS) this.#row(side, now)
  }

  ended(observed: Observed, end: ObservedEnd, now: Ms): void {
    const flight = observed as Flight
    this.#advance(now)
    this.#open.delete(flight)
    const { side } = flight
    if (side === undefined) return
    if (flight.firstAt === undefined) {
      this.#line(side, flight, -1)
      // Who gave up late waited all the same.
      if (flight.bounds !== undefined && now - flight.bodyAt > flight.bounds.ttftMs)
        this.#first(side, flight, now - flight.dispatchedAt, true)
      return
    }
    this.#streams(side, -1, now)
    side.context = side.streams === 0 ? 0 : side.context - flight.promptTokens - flight.tokens
    if (flight.bounds !== undefined && !flight.throttled && end.paceMet !== undefined) {
      this.#add(side, 'paced')
      if (!end.paceMet) this.#add(side, 'slow')
    }
    if (!end.complete) return
    this.#add(side, 'ended')
    if (flight.throttled) this.#add(side, 'throttled')
    this.#add(side, 'outputTokens', end.outputTokens ?? flight.tokens)
    if (end.cachedTokens === undefined) return
    this.#add(side, 'cacheTold', end.inputTokens ?? flight.promptTokens)
    this.#add(side, 'cached', end.cachedTokens)
  }

  /** Weir refused it for want of room. */
  shed(observed: Observed, now: Ms): void {
    this.#advance(now)
    this.#windows.add(SHED)
    this.#open.delete(observed as Flight)
  }

  /** A reading of a replica's own metrics. */
  gauges(replica: ReplicaId, gauges: EngineGauges, now: Ms): void {
    this.#advance(now)
    const side = this.#side(replica, now)
    if (gauges.kvUsage !== undefined) {
      this.#add(side, 'kvReadings')
      this.#add(side, 'kvUsage', gauges.kvUsage)
      if (gauges.kvUsage > KV_FULL) this.#add(side, 'kvFull')
    }
    if (gauges.waiting !== undefined) {
      this.#add(side, 'waitingReadings')
      this.#add(side, 'waiting', gauges.waiting)
    }
    if (side.gauges !== undefined && now > side.gaugesAt) {
      const spanMs = now - side.gaugesAt
      const { preemptionsPerMinute } = engineRates(side.gauges, gauges, spanMs)
      if (preemptionsPerMinute !== undefined) {
        this.#add(side, 'preemptionSpanMs', spanMs)
        this.#add(side, 'preemptions', (preemptionsPerMinute * spanMs) / 60_000)
      }
    }
    side.gauges = gauges
    side.gaugesAt = now
  }

  /** The last minute, and the end of it: a third, if that is enough to tell a cause by. */
  look(now: Ms): Look {
    const minute = this.#window(now, WINDOW_MS)
    const recent = this.#window(now, RECENT_MS)
    const enough = recent.counts.firsts >= RECENT_LEAST && recent.counts.paced >= RECENT_LEAST
    return { minute, recent: enough ? recent : minute }
  }

  #window(now: Ms, windowMs: Ms): PoolWindow {
    this.#advance(now)
    const extras = new Map<Side, Float64Array>()
    for (const side of this.#sides.values()) {
      this.#streams(side, 0, now)
      this.#row(side, now)
      extras.set(side, new Float64Array(COUNTS.length))
    }
    let lateInQueue = 0
    for (const flight of this.#open) {
      const extra = flight.side && extras.get(flight.side)
      if (extra !== undefined) this.#running(flight, extra, now)
      else if (flight.bounds !== undefined && now - flight.bodyAt > flight.bounds.ttftMs) lateInQueue++
    }
    const sum = (series: number): number => this.#windows.sum(series, windowMs)
    const read = [...extras].map(([side, extra]) => ({
      replica: side.id,
      ageMs: now - side.upSince,
      counts: countsBy((_, index) => sum(side.series + index) + (extra[index] ?? 0)),
    }))
    const prompts = (windowMs === WINDOW_MS ? this.#prompts : this.#recentPrompts).sum(now + this.#offset)
    return {
      spanMs: Math.min(this.#windows.spanMs(windowMs), now + this.#offset),
      arrivals: sum(ARRIVALS),
      shed: sum(SHED),
      replicasInUse: read.filter(({ counts }) => counts.dispatched > 0).length,
      promptP50: prompts.quantile(0.5),
      promptP90: prompts.quantile(0.9),
      lateInQueue,
      counts: addCounts(read.map(({ counts }) => counts)),
      replicas: read,
    }
  }

  /** What is true of a request before its end: late without a first token, or how it is paced so far. */
  #running(flight: Flight, extra: Float64Array, now: Ms): void {
    const { bounds, firstAt } = flight
    if (bounds === undefined) return
    const more = (name: Count, by = 1): void => {
      extra[AT[name]] = (extra[AT[name]] ?? 0) + by
    }
    if (firstAt === undefined) {
      if (now - flight.bodyAt <= bounds.ttftMs) return
      more('firsts')
      more('late')
      more('promptTokens', flight.promptTokens)
      more('lineTokens', flight.lineTokens)
      more('queueMs', flight.dispatchedAt - flight.bodyAt)
      more('upstreamMs', now - flight.dispatchedAt)
      if (flight.behindLong) {
        more('behindLong')
        more('lateBehindLong')
        more('behindLongMs', now - flight.dispatchedAt)
      }
    } else if (flight.tokens >= PACE_TOKENS && !flight.throttled) {
      more('paced')
      if (now - firstAt > flight.tokens * bounds.tpotMs) more('slow')
    }
  }

  #first(side: Side, flight: Flight, upstream: Ms, late: boolean): void {
    this.#add(side, 'firsts')
    if (late) this.#add(side, 'late')
    this.#add(side, 'promptTokens', flight.promptTokens)
    this.#add(side, 'lineTokens', flight.lineTokens)
    this.#add(side, 'queueMs', flight.dispatchedAt - flight.bodyAt)
    this.#add(side, 'upstreamMs', upstream)
    if (!flight.behindLong) return
    this.#add(side, 'behindLong')
    this.#add(side, 'behindLongMs', upstream)
    if (late) this.#add(side, 'lateBehindLong')
  }

  /** Into the line of prompts that are not through, or out of it. */
  #line(side: Side, { promptTokens }: Flight, by: 1 | -1): void {
    side.waiting += by
    side.waitingTokens += by * promptTokens
    if (promptTokens > LONG_TOKENS) side.waitingLong += by
    if (promptTokens > BIG_TOKENS) side.waitingBig += by
  }

  #streams(side: Side, by: number, now: Ms): void {
    this.#add(side, 'streamMs', side.streams * (now - side.streamsSince))
    side.streamsSince = now
    side.streams += by
  }

  #row(side: Side, now: Ms): void {
    side.rowFrom = now
    const { rowTokens: n, rowMs, rowStreams, rowContext } = side
    if (n === 0) return
    side.rowTokens = 0
    side.rowMs = 0
    side.rowStreams = 0
    side.rowContext = 0
    const [s, d, x] = [rowMs / n, rowStreams / n, rowContext / n / 1000]
    side.usualMs = side.usualMs === undefined ? s : side.usualMs + 0.05 * (s - side.usualMs)
    this.#add(side, 'quietTokens', n)
    this.#add(side, 'quietMs', rowMs)
    this.#add(side, 'quietStreams', rowStreams)
    this.#add(side, 'quietContext', rowContext)
    this.#add(side, 'rows')
    this.#add(side, 'rowD', d)
    this.#add(side, 'rowX', x)
    this.#add(side, 'rowS', s)
    this.#add(side, 'rowDD', d * d)
    this.#add(side, 'rowDX', d * x)
    this.#add(side, 'rowXX', x * x)
    this.#add(side, 'rowDS', d * s)
    this.#add(side, 'rowXS', x * s)
  }

  #side(replica: ReplicaId, now: Ms): Side {
    let side = this.#sides.get(replica)
    if (side === undefined) {
      side = new Side(replica, this.#windows.series, now, now)
      this.#windows.grow(side.series + COUNTS.length)
      this.#sides.set(replica, side)
    }
    return side
  }

  #add(side: Side, name: Count, by = 1): void {
    this.#windows.add(side.series + AT[name], by)
  }

  #advance(now: Ms): void {
    this.#windows.advance(now + this.#offset)
  }
}
