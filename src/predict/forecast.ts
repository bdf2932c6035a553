/** What a router believes of its engines: a model of each pool, and what every replica has under way now. */
import type { PoolSpec, ReplicaSpec } from '../fleet/pool.js'
import type { ClassId, PoolId, ReplicaId } from '../request.js'
import type { Progress } from '../slo/latency.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'
import { RelativeErrors } from './errors.js'
import type { Flight } from './flight.js'
import { expectedTpot, expectedTtft } from './latency.js'
import { type LengthQuery, OutputLengths } from './lengths.js'
import { ReplicaObserver } from './observe.js'
import { RecentRequests } from './recent.js'
import { readSavedForecast, type SavedRow, VERSION } from './saved-forecast.js'
import { StepFit } from './step.js'

/** The part of a policy's spec that a forecast needs. Ids are indexes, and keep their meaning. */
export interface ForecastSpec {
  readonly classes: readonly Pick<TrafficClass, 'id' | 'name' | 'pools'>[]
  readonly pools: readonly Pick<PoolSpec, 'id' | 'name' | 'model'>[]
  readonly replicas: readonly Pick<ReplicaSpec, 'id' | 'pool'>[]
}

/** A request as a model sees it before its answer. */
export interface Asking extends LengthQuery {
  /** Only the tokens of a stream are seen coming. */
  readonly stream: boolean
}

/** What was learned of the replicas of one pool, which are of one kind. */
export class PoolForecast {
  readonly name: string
  readonly fit = new StepFit()
  readonly lengths = new OutputLengths()
  readonly recent = new RecentRequests()
  /** Of the time from dispatch to first output and of the pace, as told at dispatch, once the fit is calibrated. */
  readonly ttftErrors = new RelativeErrors()
  readonly tpotErrors = new RelativeErrors()

  constructor(name: string) {
    this.name = name
  }

  /** Prompt tokens that a replica's prefix cache may be expected to have, by what the class found there lately. */
  cachedTokens({ cls, promptTokens }: Asking): number {
    return promptTokens * this.recent.cachedShare(cls)
  }
}

/** One replica as it stands, and how it packs tokens into events. */
export interface ReplicaForecast {
  readonly pool: PoolForecast
  readonly observer: ReplicaObserver
  /** Output tokens in one output event, a mean over answers that came with usage. */
  tokensPerMark: number
}

/** One request on one replica; whoever sent it keeps this and hands it back with each event. */
export interface Sent {
  readonly asking: Asking
  readonly to: ReplicaForecast
  /** undefined: not streamed, so nothing is seen of it before its end. */
  readonly flight: Flight | undefined
  /** As told at dispatch: from there to its first output, and its mean time per token. */
  readonly ttftMs: Ms
  readonly tpotMs: Ms
}

/** How an attempt on a replica ended. */
export interface SentEnding {
  /** The answer came whole: only then it teaches lengths and paces. */
  readonly complete: boolean
  readonly progress: Progress | undefined
  /** As judged: undefined where the answer has no pace, or its client made it. */
  readonly tpotMs?: Ms | undefined
}

/** Share of the newest answer in the mean of tokens per event. */
const NEWEST = 0.1
/** Requests of the mix that a restart keeps, some 20 bytes each: its share of long prompts is known to 0.7 points. */
const RECENT_SAVED = 2048
/** A pace is compared where it spans so many tokens, at least. */
const PACED_TOKENS = 8

/**
 * Told of each request's life at rising times: `dispatched`, `firstToken`, `mark` and `ended` once for every attempt
 * on a replica, `shed` for what none was given. O(1) per event; a mark allocates nothing.
 *
 * Goes wrong where engines serve others besides this router, or requests that are not streamed: their load is in no
 * count, and shows as slower steps.
 */
export class Forecast {
  /** By pool id and by replica id. */
  readonly #pools: PoolForecast[] = []
  readonly #replicas: ReplicaForecast[] = []
  #spec: ForecastSpec = { classes: [], pools: [], replicas: [] }

  constructor(spec: ForecastSpec) {
    this.reconfigure(spec)
  }

  /** Follows a new config: what was there goes on, what is new begins cold. */
  reconfigure(spec: ForecastSpec): void {
    this.#spec = spec
    for (const { id, name } of spec.pools) this.#pools[id] ??= new PoolForecast(name)
    for (const { id, pool } of spec.replicas) {
      if (this.#replicas[id] !== undefined) continue
      const of = this.pool(pool)
      this.#replicas[id] = { pool: of, observer: new ReplicaObserver(of.fit, id), tokensPerMark: 1 }
    }
  }

  /** @throws RangeError for an id that no spec had */
  pool(id: PoolId): PoolForecast {
    const pool = this.#pools[id]
    if (pool === undefined) throw new RangeError(`there is no pool ${id}`)
    return pool
  }

  /** The first pool of a class that serves the model: where its demand belongs; undefined where none does. */
  home(cls: ClassId, model: string): PoolId | undefined {
    return this.#spec.classes[cls]?.pools.find(id => {
      const pool = this.#spec.pools[id]
      return pool !== undefined && (pool.model === undefined || pool.model === model)
    })
  }

  /** @throws RangeError for an id that no spec had */
  replica(id: ReplicaId): ReplicaForecast {
    const replica = this.#replicas[id]
    if (replica === undefined) throw new RangeError(`there is no replica ${id}`)
    return replica
  }

  /**
   * A request is sent to a replica.
   * @param cachedTokens  of its prompt, expected in the replica's prefix cache; unless known, its class's usual share
   */
  dispatched(id: ReplicaId, asking: Asking, now: Ms, cachedTokens?: number): Sent {
    const to = this.replica(id)
    const { observer, pool } = to
    const cached = cachedTokens ?? pool.cachedTokens(asking)
    const ttftMs = expectedTtft(observer, asking.promptTokens, cached, now)
    const tpotMs = expectedTpot(observer, asking.promptTokens, pool.lengths.mean(asking), now)
    const flight = asking.stream ? observer.dispatched(asking.promptTokens, cached, now) : undefined
    return { asking, to, flight, ttftMs, tpotMs }
  }

  /** Its first output event came. */
  firstToken({ to, flight, ttftMs }: Sent, now: Ms): void {
    if (flight === undefined || flight.firstTokenAt !== undefined) return
    to.observer.firstToken(flight, now, to.tokensPerMark)
    if (to.pool.fit.calibrated) to.pool.ttftErrors.add(ttftMs, now - flight.dispatchedAt)
  }

  /** Later output events of it came. */
  mark({ to, flight }: Sent, now: Ms, events: number): void {
    if (flight?.firstTokenAt === undefined) return
    to.observer.mark(flight, now, events * to.tokensPerMark)
  }

  /** It left the replica, once, however it ended. */
  ended(sent: Sent, { complete, progress, tpotMs }: SentEnding, now: Ms): void {
    const { asking, to, flight } = sent
    const usage = progress?.usage
    if (flight !== undefined) to.observer.ended(flight, now, usage)
    if (!complete || progress === undefined) return
    const { streamed, marks } = progress
    const tokens = usage?.completionTokens ?? (streamed ? marks * to.tokensPerMark : 0)
    if (!(tokens >= 1)) return
    if (usage !== undefined && streamed && marks > 0)
      to.tokensPerMark += NEWEST * (tokens / marks - to.tokensPerMark)
    to.pool.lengths.add(asking.cls, asking.model, asking.promptTokens, tokens)
    to.pool.recent.add({
      cls: asking.cls,
      promptTokens: usage?.promptTokens ?? asking.promptTokens,
      cachedTokens: usage?.cachedTokens ?? to.pool.cachedTokens(asking),
      outputTokens: tokens,
    })
    if (flight === undefined || tpotMs === undefined || tokens < PACED_TOKENS || !to.pool.fit.calibrated)
      return
    to.pool.tpotErrors.add(sent.tpotMs, tpotMs)
  }

  /** It was refused for load: the mix that is asked for has it as well, with the answer expected of it. */
  shed(asking: Asking): void {
    const home = this.home(asking.cls, asking.model)
    if (home === undefined) return
    const pool = this.pool(home)
    pool.recent.add({
      cls: asking.cls,
      promptTokens: asking.promptTokens,
      cachedTokens: pool.cachedTokens(asking),
      outputTokens: pool.lengths.mean(asking),
    })
  }

  /** In pieces of a millisecond at most. */
  *save(): Generator<SavedRow> {
    const nameOf = (cls: ClassId): string | undefined => this.#spec.classes[cls]?.name
    for (const { name: pool, fit, lengths, recent } of this.#pools) {
      const row = { version: VERSION, pool } as const
      yield { ...row, kind: 'cost', cost: fit.cost, budget: fit.budget }
      for (const saved of lengths.save(nameOf)) yield { ...row, kind: 'lengths', ...saved }
      const classes = this.#spec.classes.map(({ name }) => name)
      const asked = [...recent.newest(RECENT_SAVED)].flatMap(one => [
        one.cls,
        one.promptTokens,
        one.cachedTokens,
        one.outputTokens,
      ])
      yield { ...row, kind: 'recent', classes, asked }
    }
  }

  /**
   * Begins from the models that `save` gave once, by the names of pools and classes; to be called before the first
   * request. A fit is not calibrated by that: an engine may have changed meanwhile, and proves itself anew.
   * @returns undefined; or why it cannot, and then nothing has changed
   */
  restore(saved: unknown): string | undefined {
    const read = readSavedForecast(saved)
    if (typeof read === 'string') return read
    const idOf = (name: string | undefined): ClassId | undefined =>
      this.#spec.classes.find(cls => cls.name === name)?.id
    for (const row of read) {
      const pool = this.#pools.find(one => one.name === row.pool)
      if (pool === undefined) continue
      if (row.kind === 'cost') pool.fit.beginFrom(row.cost, row.budget)
      else if (row.kind === 'lengths') {
        const cls = row.class === null ? undefined : idOf(row.class)
        if (row.class === null || cls !== undefined) pool.lengths.restore(cls, row)
      } else {
        for (let i = 0; i < row.asked.length; i += 4) {
          const [at = 0, promptTokens = 0, cachedTokens = 0, outputTokens = 1] = row.asked.slice(i, i + 4)
          const cls = idOf(row.classes[at])
          if (cls !== undefined) pool.recent.add({ cls, promptTokens, cachedTokens, outputTokens })
        }
      }
    }
    return undefined
  }
}
