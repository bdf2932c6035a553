/** Plays traffic against an OpenAI base URL: open loop, closed loop and agent sessions, on its own monotonic clock. */
import { Pool } from 'undici'
import { type Ms, type Rng, seededRng } from '../time.js'
import { Call, type CallPlan, type PlayRecord } from './call.js'
import { chatBody } from './prompt.js'
import { type AgentSession, SESSION_BLOCK_TOKENS, type TraceRow } from './trace.js'

/**
 * poisson   open loop: arrivals at random with this mean rate, each with the lengths of a row drawn at random
 * trace     open loop: every row at its own time divided by `speed`
 * closed    `concurrency` users, each: a row drawn at random, wait for its end, think, again. Instead of rows a
 *           function may say what a user, counted from 0, sends next
 * sessions  session starts at random with this mean rate; each is a session drawn at random, entered at a random call
 *           and played to its end: the next call is sent at the end of the previous one plus its think time divided
 *           by `thinkDivisor`. A session's text is its own each time it is played, so its first call finds no cache.
 * An open loop never waits for an answer. A closed user or a session whose call was not complete waits at least the
 * retry-after it was told, or 1 s; it does not repeat the call.
 */
export type Arrivals =
  | { readonly kind: 'poisson'; readonly perSecond: number; readonly rows: readonly TraceRow[] }
  | { readonly kind: 'trace'; readonly speed: number; readonly rows: readonly TraceRow[] }
  | {
      readonly kind: 'closed'
      readonly concurrency: number
      readonly thinkMs: Ms
      readonly rows: readonly TraceRow[] | ((user: number) => Lengths)
    }
  | {
      readonly kind: 'sessions'
      readonly startsPerSecond: number
      /** Sessions under way when the play begins: their next calls come spread over the first 5 s. Default none. */
      readonly atStart?: number
      readonly thinkDivisor: number
      readonly sessions: readonly AgentSession[]
    }

export interface Traffic {
  /** Names its records; usually the class. */
  readonly label: string
  readonly arrivals: Arrivals
  /** Added to each of its requests, for example x-weir-class. */
  readonly headers?: Readonly<Record<string, string>>
  /** Header that carries the name of the played session, for example x-weir-session. */
  readonly sessionHeader?: string
  readonly model: string
  /** After the last arrival its calls may run this long; the rest is hung up on. */
  readonly drainMs: Ms
  /** Share of its calls, 0 to 1, that the player hangs up on, at a random moment within `abortWithinMs`. */
  readonly abortShare?: number
  readonly abortWithinMs?: Ms
}

export interface PlayOptions {
  /** Base URL, with or without /v1 at its end. */
  readonly target: string
  readonly traffic: readonly Traffic[]
  /** Arrivals stop then. undefined: when every trace is played out, or at `stop`. */
  readonly durationMs?: Ms
  /** Draws arrivals, rows and texts: the same seed plays the same. */
  readonly rng: Rng
  /** Ask for usage in the stream; default true. */
  readonly askUsage?: boolean
  /** Put the wanted length into the body (max_tokens, ignore_eos), for real engines; default false. */
  readonly exactBody?: boolean
  readonly onRecord: (record: PlayRecord) => void
}

/** Over this time sessions that were under way send their next calls. */
const EARLY_MS: Ms = 5000
const FAILURE_PAUSE_MS: Ms = 1000
const ABORT_WITHIN_MS: Ms = 2000
/** Node fires a longer timer at once; a rate of 0 plans its first arrival at infinity. */
const LONGEST_TIMER_MS: Ms = 2 ** 31 - 1
/** The simulated engine's answer length; a router that passes it on need not know it. */
const LENGTH_HEADER = 'x-engine-output-tokens'

/** What a call needs of its row: not its time. */
export type Lengths = Omit<TraceRow, 'atMs'>

/** What runs by itself: an open loop, one closed user, or one played session. */
interface Lane {
  readonly traffic: Traffic
  /** Its own, so that how long one lane's answers take changes nothing in another. */
  readonly rng: Rng
  /** Unlike that of any other lane of any other play: names its texts. */
  readonly name: string
  sent: number
}

/** Plays once. Its state is what runs: the sources of arrivals, the calls in flight, and the timers. */
export class Player {
  readonly #options: PlayOptions
  readonly #pool: Pool
  readonly #path: string
  readonly #calls = new Set<Call>()
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #ended: Promise<void>
  #resolveEnded: () => void = () => {}
  #begin: Ms = performance.now()
  /** Set once no more arrivals come. */
  #windowMs: Ms | undefined
  #openSources = 0
  #sent = 0

  /** @throws TypeError when the target is no URL */
  constructor(options: PlayOptions) {
    this.#options = options
    const { origin, basePath } = splitTarget(options.target)
    this.#path = `${basePath}/v1/chat/completions`
    // No clock of undici's may end a call: how long it took is what is measured.
    this.#pool = new Pool(origin, { headersTimeout: 0, bodyTimeout: 0 })
    this.#ended = new Promise(resolve => {
      this.#resolveEnded = resolve
    })
  }

  /** Calls sent so far. */
  get sent(): number {
    return this.#sent
  }

  inFlight(label?: string): number {
    if (label === undefined) return this.#calls.size
    let count = 0
    for (const call of this.#calls) if (call.plan.label === label) count++
    return count
  }

  /**
   * Plays until the last call has ended; to be called once.
   * @returns the arrival window in ms: rates divide by it
   */
  async play(): Promise<Ms> {
    const { traffic, durationMs, rng } = this.#options
    if (this.#windowMs === undefined) {
      this.#begin = performance.now()
      this.#openSources = traffic.length
      const playId = draw32(rng).toString(36)
      for (const each of traffic)
        this.#start({ traffic: each, rng: fork(rng), name: `${playId}-${each.label}`, sent: 0 })
      if (durationMs !== undefined) this.#after(durationMs, () => this.#closeArrivals())
    }
    await this.#ended
    for (const timer of this.#timers) clearTimeout(timer)
    await this.#pool.destroy()
    return this.#windowMs ?? 0
  }

  /** Ends arrivals and hangs up on what runs; `play` then resolves. */
  stop(): void {
    this.#closeArrivals()
    for (const call of this.#calls) call.leave()
  }

  #start(lane: Lane): void {
    const { arrivals } = lane.traffic
    switch (arrivals.kind) {
      case 'poisson':
        this.#openLoop(poissonTimes(arrivals.perSecond, fork(lane.rng)), lateMs => {
          this.#send(lane, pick(arrivals.rows, lane.rng), lateMs)
        })
        return
      case 'trace': {
        let index = 0
        this.#openLoop(traceTimes(arrivals.rows, arrivals.speed), lateMs => {
          const row = arrivals.rows[index++]
          if (row !== undefined) this.#send(lane, row, lateMs)
        })
        return
      }
      case 'closed': {
        const { rows, thinkMs } = arrivals
        for (let user = 0; user < arrivals.concurrency; user++) {
          const own = child(lane, user)
          this.#user(own, typeof rows === 'function' ? () => rows(user) : () => pick(rows, own.rng), thinkMs)
        }
        return
      }
      case 'sessions': {
        let played = 0
        const starts = poissonTimes(arrivals.startsPerSecond, fork(lane.rng), arrivals.atStart)
        this.#openLoop(starts, lateMs => {
          const session = pick(arrivals.sessions, lane.rng)
          const entry = Math.floor(lane.rng.next() * session.calls.length)
          this.#session(child(lane, played++), session, entry, arrivals.thinkDivisor, lateMs)
        })
        return
      }
    }
  }

  /** Sends at each planned time. A late timer delays no later plan: all that is due by then is sent at once. */
  #openLoop(times: Iterator<Ms>, send: (lateMs: Ms) => void): void {
    let due = times.next()
    const step = (): void => {
      for (; due.done !== true; due = times.next()) {
        const lateMs = performance.now() - this.#begin - due.value
        if (lateMs < 0) {
          this.#after(-lateMs, step)
          return
        }
        send(lateMs)
      }
      if (--this.#openSources === 0) this.#closeArrivals()
    }
    step()
  }

  #user(lane: Lane, next: () => Lengths, thinkMs: Ms): void {
    this.#send(lane, next(), 0, record => {
      const pause = pauseMs(record, thinkMs)
      const again = (): void => this.#user(lane, next, thinkMs)
      // A timer of 0 is one of 1 ms, in which an engine may begin an iteration without the request.
      if (pause > 0) this.#after(pause, again)
      else if (this.#windowMs === undefined) again()
    })
  }

  #session(lane: Lane, session: AgentSession, index: number, thinkDivisor: number, lateMs: Ms): void {
    const call = session.calls[index]
    if (call === undefined) return
    const prefix = { scope: lane.name, blockTokens: SESSION_BLOCK_TOKENS, ids: call.ids }
    this.#send(lane, { ...call, prefix }, lateMs, record => {
      const thinkMs = (session.calls[index + 1]?.thinkMs ?? 0) / thinkDivisor
      this.#after(pauseMs(record, thinkMs), () => this.#session(lane, session, index + 1, thinkDivisor, 0))
    })
  }

  #send(lane: Lane, row: Lengths, lateMs: Ms, onEnd?: (record: PlayRecord) => void): void {
    const { traffic, rng } = lane
    const { abortShare = 0, abortWithinMs = ABORT_WITHIN_MS } = traffic
    this.#sent++
    let abortTimer: NodeJS.Timeout | undefined
    const call = new Call(this.#plan(lane, row, lateMs), this.#begin, record => {
      this.#cancel(abortTimer)
      this.#calls.delete(call)
      this.#options.onRecord(record)
      onEnd?.(record)
      this.#endIfDone()
    })
    this.#calls.add(call)
    if (abortShare > 0 && rng.next() < abortShare)
      abortTimer = this.#timer(rng.next() * abortWithinMs, () => call.leave())
    call.send(this.#pool)
  }

  #plan(lane: Lane, row: Lengths, lateMs: Ms): CallPlan {
    const { askUsage = true, exactBody = false } = this.#options
    const { label, arrivals, model, headers, sessionHeader } = lane.traffic
    const session = arrivals.kind === 'sessions' ? lane.name : undefined
    return {
      label,
      session,
      lateMs,
      inputTokens: row.inputTokens,
      wantedTokens: row.outputTokens,
      path: this.#path,
      headers: {
        'content-type': 'application/json',
        [LENGTH_HEADER]: String(row.outputTokens),
        ...(session === undefined || sessionHeader === undefined ? {} : { [sessionHeader]: session }),
        ...headers,
      },
      body: chatBody({
        model,
        inputTokens: row.inputTokens,
        prefix: row.prefix,
        unique: `${lane.name}/${lane.sent++}`,
        askUsage,
        exactTokens: exactBody ? row.outputTokens : undefined,
      }),
    }
  }

  /** From here on nothing is sent; what runs has its traffic's drain left. */
  #closeArrivals(): void {
    if (this.#windowMs !== undefined) return
    this.#windowMs = performance.now() - this.#begin
    for (const { label, drainMs } of this.#options.traffic)
      this.#timer(drainMs, () => {
        for (const call of this.#calls) if (call.plan.label === label) call.leave()
      })
    this.#endIfDone()
  }

  #endIfDone(): void {
    if (this.#windowMs !== undefined && this.#calls.size === 0) this.#resolveEnded()
  }

  /** Like a timer, but nothing comes of it once arrivals are closed. */
  #after(ms: Ms, then: () => void): void {
    this.#timer(ms, () => {
      if (this.#windowMs === undefined) then()
    })
  }

  #timer(ms: Ms, then: () => void): NodeJS.Timeout {
    const timer = setTimeout(
      () => {
        this.#timers.delete(timer)
        then()
      },
      Math.min(ms, LONGEST_TIMER_MS),
    )
    this.#timers.add(timer)
    return timer
  }

  #cancel(timer: NodeJS.Timeout | undefined): void {
    if (timer === undefined) return
    clearTimeout(timer)
    this.#timers.delete(timer)
  }
}

/** Splits a base URL into origin and the path before /v1. */
export function splitTarget(target: string): { readonly origin: string; readonly basePath: string } {
  const url = new URL(target)
  return { origin: url.origin, basePath: url.pathname.replace(/\/+$/, '').replace(/\/v1$/, '') }
}

function pauseMs(record: PlayRecord, thinkMs: Ms): Ms {
  return record.outcome === 'complete' ? thinkMs : Math.max(thinkMs, record.retryAfterMs ?? FAILURE_PAUSE_MS)
}

/** @param early  so many more arrive spread evenly over the first `EARLY_MS` */
function* poissonTimes(perSecond: number, rng: Rng, early = 0): Generator<Ms, undefined> {
  let given = 0
  for (let at = 0; ; ) {
    at += (-Math.log(1 - rng.next()) / perSecond) * 1000
    for (; given < early && ((given + 0.5) / early) * EARLY_MS < at; given++)
      yield ((given + 0.5) / early) * EARLY_MS
    yield at
  }
}

function* traceTimes(rows: readonly TraceRow[], speed: number): Generator<Ms, undefined> {
  for (const row of rows) yield row.atMs / speed
}

function child(lane: Lane, number: number): Lane {
  return { traffic: lane.traffic, rng: fork(lane.rng), name: `${lane.name}-${number}`, sent: 0 }
}

function fork(rng: Rng): Rng {
  return seededRng(draw32(rng))
}

function draw32(rng: Rng): number {
  return Math.floor(rng.next() * 2 ** 32)
}

function pick<T>(items: readonly T[], rng: Rng): T {
  const item = items[Math.floor(rng.next() * items.length)]
  if (item === undefined) throw new RangeError('nothing to draw from: the traffic has no rows')
  return item
}
