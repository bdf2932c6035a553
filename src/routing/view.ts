/** A replica with all that is known of it, as a load that gains are counted against. */
import type { Replica } from '../fleet/replica.js'
import type { ReplicaForecast } from '../predict/forecast.js'
import type { Load } from '../predict/latency.js'
import type { Ms } from '../time.js'
import { type Promised, Running } from './running.js'

/**
 * What the observer sees of this router's own streams, and what it cannot see: answers that are not streamed, and (not
 * shared yet) the requests of other routers. The latter are addends that a gossip of loads would set.
 */
export class View implements Load {
  readonly replica: Replica
  readonly forecast: ReplicaForecast
  readonly running = new Running()
  /** Sent by others, as they last told. Source: algorithms 6.11. */
  readonly others = { streams: 0, contextTokens: 0, waiting: 0, waitingTokens: 0, waitingPairs: 0 }
  /** First outputs since it joined or came back; what was there from the start is warm. */
  answered: number
  /** Own requests that are not streamed, and their contexts. */
  unseen = 0
  unseenTokens = 0

  constructor(replica: Replica, forecast: ReplicaForecast, warm: boolean) {
    this.replica = replica
    this.forecast = forecast
    this.answered = warm ? Number.POSITIVE_INFINITY : 0
  }

  /** @param lengths  likely lengths of its answer; copied */
  sent(
    one: Promised & { readonly asking: { readonly promptTokens: number } },
    streamed: boolean,
    now: Ms,
    firstAt: Ms,
    lengths: Float64Array,
  ): void {
    this.running.add(one, now, firstAt, lengths)
    if (streamed) return
    this.unseen++
    this.unseenTokens += one.asking.promptTokens
  }

  firstToken(one: Promised, now: Ms): void {
    this.answered++
    this.running.firstToken(one, now)
  }

  ended(one: Promised, asking: { readonly stream: boolean; readonly promptTokens: number }): void {
    this.running.remove(one)
    if (asking.stream) return
    this.unseen--
    this.unseenTokens -= asking.promptTokens
  }

  get fit(): Load['fit'] {
    return this.forecast.observer.fit
  }

  get factor(): number {
    return this.forecast.observer.factor
  }

  get streams(): number {
    return this.forecast.observer.streams + this.unseen + this.others.streams
  }

  get contextTokens(): number {
    return this.forecast.observer.contextTokens + this.unseenTokens + this.others.contextTokens
  }

  get waiting(): number {
    return this.forecast.observer.waiting + this.others.waiting
  }

  get waitingTokens(): number {
    return this.forecast.observer.waitingTokens + this.others.waitingTokens
  }

  get waitingPairs(): number {
    return this.forecast.observer.waitingPairs + this.others.waitingPairs
  }

  get prefillFrom(): Ms {
    return this.forecast.observer.prefillFrom
  }

  get lateTokens(): number {
    return this.forecast.observer.lateTokens
  }

  get stepEndsAt(): Ms {
    return this.forecast.observer.stepEndsAt
  }

  prefillShare(now: Ms): number {
    return this.forecast.observer.prefillShare(now)
  }

  jolt(now: Ms): Ms {
    return this.forecast.observer.jolt(now)
  }
}

/** A replica that has nothing to do: what a request would meet there is no fault of the load. */
export class Idle implements Load {
  readonly factor = 1
  readonly streams = 0
  readonly contextTokens = 0
  readonly waiting = 0
  readonly waitingTokens = 0
  readonly waitingPairs = 0
  readonly prefillFrom = Number.NEGATIVE_INFINITY
  readonly lateTokens = 0
  readonly stepEndsAt = Number.NEGATIVE_INFINITY
  readonly running = new Running()
  readonly fit: Load['fit']

  constructor(fit: Load['fit']) {
    this.fit = fit
  }

  prefillShare(): number {
    return 0
  }

  jolt(): number {
    return 0
  }
}
