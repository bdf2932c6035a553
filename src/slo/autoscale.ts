/** How many replicas a pool should have: up at once, ahead of a rise; down late, and one at a time. */
import type { Ms } from '../time.js'

export interface AutoscaleOptions {
  /** Demand over capacity to run at. Source of the default 0.70: the essay's 70 %, algorithms 5. */
  readonly target: number
  /** One replica fewer must stay below this for ten minutes. Source of the default 0.55: algorithms 5. */
  readonly down: number
  /** A replica needs so long to get ready. Source of the default 180 s: algorithms 5. */
  readonly coldStartMs: Ms
}

const DOWN_AFTER_MS: Ms = 600_000
/** A step up is at most one replica or this share of those there. Source: algorithms 5. */
const UP_SHARE = 0.25
/** Time between two steps up: the memory of the demand, before which the first step's effect is not in it. */
const UP_EVERY_MS: Ms = 60_000
/** Holt's smoothing of level and trend, and the time of one sample. Source: algorithms 5 and 6.9. */
const LEVEL = 0.3
const TREND = 0.05
const SAMPLE_MS: Ms = 10_000
/** The trend adds at most this share to the level. Source: algorithms 5. */
const TREND_MOST = 0.5

export interface ScaleInput extends AutoscaleOptions {
  /** GPU seconds of work a second, as offered; a mean over about 60 s. */
  readonly demand: number
  /** GPU seconds of work a second that one replica serves within its promise; undefined: not known yet. */
  readonly perReplica: number | undefined
  readonly ready: number
  /** Started, not ready. */
  readonly pending: number
  /** Burn of the error budget over 24 h; undefined: not known. From 1 on nothing is taken away. */
  readonly burn: number | undefined
}

export interface Scale {
  readonly desired: number
  /** Demand to be ready for, in the unit of `demand`: the mean, or more where a rise would outrun a cold start. */
  readonly expected: number
  readonly why: 'unknown capacity' | 'demand' | 'rising demand' | 'low demand' | 'steady'
}

/** Its wish stands until demand moves it: whoever scales by it may be slow, and is not asked twice for the same. */
export class Autoscaler {
  #level: number | undefined
  #trend = 0
  #sampleAt: Ms = 0
  #lowSince: Ms | undefined
  #raisedAt: Ms | undefined
  #desired: number | undefined

  /** To be called at rising times, every 10 s or more often. */
  update(input: ScaleInput, now: Ms): Scale {
    this.#sample(input.demand, now)
    const rise = this.#rise(input.coldStartMs)
    const expected = Math.max(input.demand, rise)
    const { perReplica } = input
    const there = input.ready + input.pending
    if (perReplica === undefined || !(perReplica > 0)) {
      return { desired: this.#desired ?? there, expected, why: 'unknown capacity' }
    }
    const wish = this.#desired ?? there
    // A ratio that is 0.7 but for rounding asks for nobody.
    const needed = Math.ceil(expected / (input.target * perReplica) - 1e-9)
    if (needed > wish) {
      this.#desired = this.#up(wish, needed, now)
      return { desired: this.#desired, expected, why: rise > input.demand ? 'rising demand' : 'demand' }
    }
    const less = this.#down(input, wish, expected / perReplica, now)
    this.#desired = less ? wish - 1 : wish
    return { desired: this.#desired, expected, why: less ? 'low demand' : 'steady' }
  }

  #up(wish: number, needed: number, now: Ms): number {
    this.#lowSince = undefined
    if (this.#raisedAt !== undefined && now - this.#raisedAt < UP_EVERY_MS) return wish
    this.#raisedAt = now
    return Math.min(needed, wish + Math.max(1, Math.floor(wish * UP_SHARE)))
  }

  /** One fewer would have been enough for ten minutes. @param replicas  that the demand would fill */
  #down(input: ScaleInput, wish: number, replicas: number, now: Ms): boolean {
    const low = wish > 1 && replicas / (wish - 1) < input.down && (input.burn ?? 0) < 1 && input.pending === 0
    if (!low) {
      this.#lowSince = undefined
      return false
    }
    this.#lowSince ??= now
    if (now - this.#lowSince < DOWN_AFTER_MS) return false
    this.#lowSince = now
    return true
  }

  /** Level and trend of the demand, by Holt's method, one sample every 10 s. */
  #sample(demand: number, now: Ms): void {
    if (this.#level === undefined) {
      this.#level = demand
      this.#sampleAt = now
      return
    }
    for (; now - this.#sampleAt >= SAMPLE_MS; this.#sampleAt += SAMPLE_MS) {
      const before: number = this.#level
      this.#level = LEVEL * demand + (1 - LEVEL) * (before + this.#trend)
      this.#trend = TREND * (this.#level - before) + (1 - TREND) * this.#trend
    }
  }

  /** Demand when a replica that is started now will be ready. */
  #rise(coldStartMs: Ms): number {
    const level = this.#level ?? 0
    const more = (Math.max(0, this.#trend) * coldStartMs) / SAMPLE_MS
    return level + Math.min(more, TREND_MOST * level)
  }
}
