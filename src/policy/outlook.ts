/** What lies before each pool, from what passes through a policy's door: headroom, replicas to have, what is wrong. */
import type { Asking, Forecast, ReplicaForecast } from '../predict/forecast.js'
import type { PoolId, ReplicaId, Ticket } from '../request.js'
import type { AutoscaleOptions } from '../slo/autoscale.js'
import { workOf } from '../slo/demand.js'
import type { Finding } from '../slo/diagnoser.js'
import type { EngineGauges } from '../slo/engine-gauges.js'
import type { Observed } from '../slo/observed.js'
import type { SweptBudget } from '../slo/sweep.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms } from '../time.js'
import type { Ending } from './decision.js'
import type { PolicySpec, ReplicaState } from './policy.js'
import { type PoolDials, PoolOutlook, type PoolReading } from './pool-outlook.js'
import { restoreOutlook, saveOutlook } from './saved-outlook.js'
import { askingOf, type Watcher } from './watched.js'

/** The parts of the config beside the policy's own. */
export interface OutlookDials {
  /** By pool name. */
  readonly sweeps: ReadonlyMap<string, SweptBudget>
  readonly autoscale: AutoscaleOptions
}

export interface OutlookOptions extends OutlookDials {
  readonly spec: PolicySpec
  readonly forecast: Forecast
  /** All there are now, as the policy has them. */
  readonly replicas: (now: Ms) => readonly ReplicaState[]
  /** Hour of the day, 0 to 23. */
  readonly hour: () => number
  /** Rate at which a class burns the budget of a day; undefined: not known. */
  readonly burn: (pool: PoolId) => number | undefined
  /** Told when a diagnosis comes to stand, changes its cause, or is over (undefined). */
  readonly diagnosed: (pool: PoolId, finding: Finding | undefined) => void
}

/** One request under way. */
interface Tracked {
  readonly asking: Asking
  /** The pool that it counts for: its home, until it is sent to another. */
  pool: PoolOutlook
  observed: Observed
  to: ReplicaForecast | undefined
  replica: ReplicaId | undefined
}

/** Replicas are looked after once a second, all else every 10 s. */
const TICK_MS: Ms = 1000
const LOOK_MS: Ms = 10_000
/**
 * A search for the knee goes on in pieces: of so many virtual requests, with so much time between two. A piece takes 0.04 ms,
 * and 1 ms before the code is compiled.
 */
const PIECE = 100
const PIECE_EVERY_MS: Ms = 10
/** Age of the replicas that were there at the start: nobody knows, but they are not cold. */
const OLD_MS: Ms = 86_400_000
/** After these the client may come again with the same request. */
const FAILED: ReadonlySet<Ending['kind']> = new Set(['upstreamError', 'truncated', 'timeout'])

/**
 * Told by `witnessed` of each request's life, and at `dueAt` of the time. An event costs O(1), and its look-up; what
 * takes longer is cut into pieces.
 *
 * Demand counts where it belongs, at the home pool of its class; a pool that takes what spills counts that as well.
 * Goes wrong where engines serve others besides this router: what those take is in no demand.
 */
export class Outlook implements Watcher {
  dueAt: Ms
  readonly #options: OutlookOptions
  readonly #forecast: Forecast
  /** By pool id. */
  readonly #pools: PoolOutlook[] = []
  readonly #open = new Map<Ticket, Tracked>()
  #spec: PolicySpec
  #dials: OutlookDials
  #tickAt: Ms
  #lookAt: Ms
  #searching: PoolOutlook | undefined
  /** Of the pool whose knee was looked for last. */
  #searched = 0

  constructor(options: OutlookOptions, now: Ms) {
    this.#options = options
    this.#forecast = options.forecast
    this.#dials = options
    this.#spec = options.spec
    this.#follow(now)
    for (const pool of this.#pools) pool.stand(options.replicas(now), now, now - OLD_MS)
    this.dueAt = now + TICK_MS
    this.#tickAt = now + TICK_MS
    this.#lookAt = now + LOOK_MS
  }

  /** Follows what the config says besides the policy's spec; to be called before `reconfigure`. */
  retune(dials: OutlookDials): void {
    this.#dials = dials
  }

  reconfigure(spec: PolicySpec, now: Ms): void {
    // The policy will do so, too; but this comes before.
    this.#forecast.reconfigure(spec)
    this.#spec = spec
    this.#follow(now)
  }

  /** Of the pools in the config. */
  readings(now: Ms): PoolReading[] {
    return this.#running().map(pool => pool.reading(now))
  }

  /** What a replica's own metrics tell. */
  gauges(replica: ReplicaId, gauges: EngineGauges, now: Ms): void {
    const pool = this.#spec.replicas[replica]?.pool
    if (pool !== undefined) this.#pools[pool]?.gauges(replica, gauges, now)
  }

  // ---- the life of requests

  arrived(ticket: Ticket, now: Ms): void {
    const { cls, facts, model } = ticket
    const home = cls === undefined ? undefined : this.#forecast.home(cls, model)
    const pool = home === undefined ? undefined : this.#pools[home]
    if (pool === undefined) return
    const asking = askingOf(ticket)
    this.#asked(pool, asking, facts.retryKey, now)
    const observed = this.#observed(pool, ticket, now)
    this.#open.set(ticket, { asking, pool, observed, to: undefined, replica: undefined })
  }

  dispatched(ticket: Ticket, pool: PoolId, replica: ReplicaId, now: Ms): void {
    const tracked = this.#open.get(ticket)
    if (tracked === undefined) return
    const other = this.#pools[pool]
    if (other !== undefined && other !== tracked.pool) {
      tracked.pool.collector.ended(tracked.observed, { complete: false }, now)
      this.#asked(other, tracked.asking, undefined, now)
      tracked.observed = this.#observed(other, ticket, now)
      tracked.pool = other
    }
    tracked.to = this.#forecast.replica(replica)
    tracked.replica = replica
    // What is not streamed shows no first token: it would stand in the line of prompts to its end.
    if (ticket.facts.stream) tracked.pool.collector.dispatched(tracked.observed, replica, now)
  }

  firstToken(ticket: Ticket, now: Ms): void {
    const tracked = this.#open.get(ticket)
    if (tracked?.to === undefined) return
    tracked.pool.collector.firstToken(tracked.observed, now, tracked.to.tokensPerMark)
  }

  mark(ticket: Ticket, now: Ms, events: number): void {
    const tracked = this.#open.get(ticket)
    if (tracked?.to === undefined) return
    tracked.pool.collector.mark(tracked.observed, now, events * tracked.to.tokensPerMark)
  }

  failed(ticket: Ticket, now: Ms): void {
    const tracked = this.#open.get(ticket)
    if (tracked !== undefined) tracked.pool.collector.failed(tracked.observed, now)
  }

  shed(ticket: Ticket, { offered }: Judgement, now: Ms): void {
    const tracked = this.#close(ticket)
    if (tracked === undefined) return
    tracked.pool.collector.shed(tracked.observed, now)
    tracked.pool.judged(offered, false, undefined)
    this.#refused(ticket, tracked, now)
  }

  ended(ticket: Ticket, { kind, progress }: Ending, judgement: Judgement, now: Ms): void {
    const tracked = this.#close(ticket)
    if (tracked === undefined) return
    const { pool, observed } = tracked
    if (progress?.throttled) observed.throttled = true
    const { outputTokens, inputTokens, cachedTokens, clauses, offered, verdict } = judgement
    const pace = clauses.find(({ slo, clause }) => slo === 'target' && clause === 'tpot')
    pool.collector.ended(
      observed,
      { complete: kind === 'complete', outputTokens, inputTokens, cachedTokens, paceMet: pace?.met },
      now,
    )
    pool.judged(offered, verdict === 'good', tracked.replica)
    if (FAILED.has(kind)) this.#refused(ticket, tracked, now)
  }

  // ---- time

  due(now: Ms): void {
    if (this.#searching?.advance(PIECE)) this.#searching = undefined
    if (this.#searching === undefined) this.#begin(now)
    if (now >= this.#tickAt) this.#tick(now)
    this.dueAt = this.#searching === undefined ? this.#tickAt : Math.min(this.#tickAt, now + PIECE_EVERY_MS)
  }

  // ---- over a restart

  /** In pieces. */
  save(now: Ms): Iterable<unknown> {
    return saveOutlook(this.#running(), now)
  }

  /**
   * To be called before the first request.
   * @param saved  what `save` gave, or anything
   * @param gapMs  since then
   * @returns undefined; or why it cannot, and then nothing has changed
   */
  restore(saved: unknown, gapMs: Ms, now: Ms): string | undefined {
    return restoreOutlook(this.#running(), saved, gapMs, now)
  }

  #tick(now: Ms): void {
    this.#tickAt = now + TICK_MS
    const replicas = this.#options.replicas(now)
    for (const pool of this.#running()) pool.stand(replicas, now)
    if (now < this.#lookAt) return
    this.#lookAt = now + LOOK_MS
    const hour = this.#options.hour()
    for (const pool of this.#running()) {
      const before = pool.finding
      pool.look(now, hour, this.#options.burn(pool.spec.id))
      const { finding } = pool
      if (finding?.cause !== before?.cause || finding?.clause !== before?.clause)
        this.#options.diagnosed(pool.spec.id, finding)
    }
  }

  /** One pool at a time, in turn. */
  #begin(now: Ms): void {
    for (let tried = 0; tried < this.#pools.length; tried++) {
      this.#searched = (this.#searched + 1) % this.#pools.length
      const pool = this.#pools[this.#searched]
      if (pool === undefined || pool.spec.retired || !pool.begin(now)) continue
      this.#searching = pool
      return
    }
  }

  #running(): PoolOutlook[] {
    return this.#pools.filter(pool => pool.spec.retired !== true)
  }

  #follow(now: Ms): void {
    const { classes, pools } = this.#spec
    const { sweeps, autoscale } = this.#dials
    for (const spec of pools) {
      const dials: PoolDials = { spec, classes, swept: sweeps.get(spec.name), autoscale }
      const known = this.#pools[spec.id]
      if (known === undefined) this.#pools[spec.id] = new PoolOutlook(dials, this.#forecast, now)
      else known.reconfigure(dials)
    }
  }

  #asked(pool: PoolOutlook, asking: Asking, retryKey: string | undefined, now: Ms): void {
    const { model, demand } = pool
    const work = workOf(asking.promptTokens, model.cachedTokens(asking), model.lengths.mean(asking))
    demand.offered(asking.cls, work, retryKey, now)
  }

  #observed({ collector }: PoolOutlook, { cls, facts }: Ticket, now: Ms): Observed {
    const clauses = this.#spec.classes[cls ?? 0]?.target.clauses
    const bounds = facts.stream && clauses?.kind === 'stream' ? clauses : undefined
    return collector.arrived(facts.promptTokens, bounds, facts.bodyAt, now)
  }

  #close(ticket: Ticket): Tracked | undefined {
    const tracked = this.#open.get(ticket)
    this.#open.delete(ticket)
    return tracked
  }

  /** It may come again, and is no new demand then. */
  #refused({ facts, cls, model }: Ticket, { pool }: Tracked, now: Ms): void {
    if (facts.retryKey === undefined) return
    const home = cls === undefined ? undefined : this.#forecast.home(cls, model)
    const counted = home === undefined ? pool : (this.#pools[home] ?? pool)
    counted.demand.refused(facts.retryKey, now)
  }
}
