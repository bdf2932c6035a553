/** One replica as it stands: its load by exact count, its health, and how it packs tokens into events. */
import type { Ms } from '../time.js'
import { afterDispatch, HEALTHY, type Health, mayTry } from './health.js'
import type { ReplicaSpec } from './pool.js'

/** Share of the newest answer in the mean of tokens per event. */
const NEWEST = 0.1

export class Replica {
  readonly spec: ReplicaSpec
  health: Health = HEALTHY
  /** Output tokens in one output event, a mean over answers that came with usage. */
  tokensPerMark = 1
  /** Requests in flight, at most. */
  limit: number
  #inFlight = 0
  #aloneUntil: Ms = -Infinity
  #prefillTokens = 0

  constructor(spec: ReplicaSpec, limit: number) {
    this.spec = spec
    this.limit = limit
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** Prompt tokens dispatched whose first output has not come. */
  get outstandingPrefillTokens(): number {
    return this.#prefillTokens
  }

  /** Until then it has asked to be left alone. */
  get aloneUntil(): Ms {
    return this.#aloneUntil
  }

  leaveAlone(until: Ms): void {
    this.#aloneUntil = Math.max(this.#aloneUntil, until)
  }

  /** Whatever its load, it may be sent to: healthy, or due for a trial, and not asking to be left alone. */
  isTaking(now: Ms): boolean {
    return now >= this.#aloneUntil && mayTry(this.health, now)
  }

  /** @param keepFree  slots that are not for this request */
  hasRoom(now: Ms, keepFree = 0): boolean {
    return this.#inFlight < this.limit - keepFree && this.isTaking(now)
  }

  /** Counts a request that is sent now. */
  dispatched(ticket: number, promptTokens: number): void {
    this.health = afterDispatch(this.health, ticket)
    this.#inFlight++
    this.#prefillTokens += promptTokens
  }

  prefilled(promptTokens: number): void {
    this.#prefillTokens -= promptTokens
  }

  /** @param promptTokens  what is still to be prefilled: 0 after the first output */
  released(promptTokens: number): void {
    this.#inFlight--
    this.#prefillTokens -= promptTokens
  }

  /** Learns from one whole answer with usage. */
  answered(tokens: number, marks: number): void {
    this.tokensPerMark += NEWEST * (tokens / marks - this.tokensPerMark)
  }
}
