/** SLO admission that asks only about the request itself: would it be good on some replica, by Weir's own model. */
import type { Replica } from '../fleet/replica.js'
import type { Ending } from '../policy/decision.js'
import type { Open } from '../policy/open.js'
import type { PolicySpec } from '../policy/policy.js'
import type { Desk } from '../policy/rule.js'
import { askingOf } from '../policy/watched.js'
import { Forecast, type PoolForecast, type Sent } from '../predict/forecast.js'
import { expectedTpot, expectedTtft } from '../predict/latency.js'
import { normalCdf } from '../predict/normal.js'
import type { Judgement } from '../slo/verdict.js'
import type { Ms } from '../time.js'
import { baseline } from './baseline.js'
import { Queueing } from './queueing.js'

/** Time to look again at those who wait. */
const SCAN_MS: Ms = 25
/** Of those who wait, so many are asked about in one look, by deadline. */
const HEADS = 20
/** Two chances that differ by less are alike: then the earlier first output wins. */
const ALIKE = 0.001

/**
 * P(good) of the request on each replica, from the expected times and their spread (60 ms + 12 % of TTFT, 10 % of TPOT;
 * 0.3 s + 25 % of the time that a deadline class decodes). It goes where P is highest, if that is at least `threshold`;
 * else it waits where its class waits, else it is refused. Until the model of a pool is calibrated, Weir's limit on
 * requests in flight holds there, by fewest prompt tokens to prefill.
 *
 * Goes wrong since it charges nobody for what his coming does to those who are there: with room for one, it lets one in
 * after the other, until all of them are late together. A threshold near 1 is a margin in disguise: on plain chat the
 * best lies above 0.99, where the expected pace is a quarter to a third below its bound.
 * Source: llm-d `latency-slo-admitter` with `slo-headroom-tier-filter`, on Weir's predictor instead of XGBoost, so that
 * only the rule differs; P as algorithms 6.3, without 6.4.
 */
class SelfOnly extends Queueing {
  readonly forecast: Forecast
  readonly #threshold: number
  #waiting = 0
  #wakeAt: Ms | undefined
  /** Questions left in this look. */
  #asks = 0

  constructor(desk: Desk, spec: PolicySpec, threshold: number) {
    super(desk)
    this.forecast = new Forecast(spec)
    this.#threshold = threshold
  }

  override freed(now: Ms): void {
    if (this.#waiting === 0) return
    this.#asks = HEADS
    super.freed(now)
    this.#wakeAt = this.#waiting === 0 ? undefined : now + SCAN_MS
  }

  get wakeAt(): Ms | undefined {
    return this.#wakeAt
  }

  wake(now: Ms): void {
    this.#wakeAt = undefined
    this.freed(now)
  }

  override waits(open: Open, now: Ms): void {
    this.#waiting++
    this.#wakeAt ??= now + SCAN_MS
    super.waits(open, now)
  }

  override left(open: Open, now: Ms): void {
    this.#waiting--
    super.left(open, now)
  }

  override reconfigure(spec: PolicySpec, now: Ms): void {
    this.forecast.reconfigure(spec)
    this.#waiting = 0
    super.reconfigure(spec, now)
  }

  firstToken(open: Open, _replica: Replica, now: Ms): void {
    this.forecast.firstToken(open.data as Sent, now)
  }

  mark(open: Open, _replica: Replica, now: Ms, events: number): void {
    this.forecast.mark(open.data as Sent, now, events)
  }

  failed(open: Open, _replica: Replica, _failure: unknown, now: Ms): void {
    this.forecast.ended(open.data as Sent, { complete: false, progress: undefined }, now)
  }

  ended(open: Open, replica: Replica | undefined, ending: Ending, { tpotMs }: Judgement, now: Ms): void {
    if (replica === undefined) return
    const { kind, progress } = ending
    this.forecast.ended(open.data as Sent, { complete: kind === 'complete', progress, tpotMs }, now)
  }

  protected override send(open: Open, replica: Replica, now: Ms): void {
    const cached = open.facts.prefix === undefined ? undefined : this.hits(open)(replica)
    if (open.place.at === 'queue') this.#waiting--
    open.data = this.forecast.dispatched(replica.spec.id, askingOf(open), now, cached)
    super.send(open, replica, now)
  }

  protected override refuse(open: Open, now: Ms): void {
    this.forecast.shed(askingOf(open))
    super.refuse(open, now)
  }

  /** The chance depends on the time, not on a count. */
  protected hasRoom(): boolean {
    return true
  }

  protected override pickWaiting(open: Open, now: Ms): Replica | undefined {
    return this.#asks-- > 0 ? super.pickWaiting(open, now) : undefined
  }

  protected choose(open: Open, among: readonly Replica[], now: Ms): Replica | undefined {
    const asking = askingOf(open)
    const hit = this.hits(open)
    const known = open.facts.prefix !== undefined
    let best: Replica | undefined
    let [bestP, bestTtft] = [this.#threshold, Infinity]
    let [of, tokens]: [PoolForecast | undefined, number] = [undefined, 0]
    for (const replica of among) {
      const { pool, observer } = this.forecast.replica(replica.spec.id)
      if (!pool.fit.calibrated) return this.#byCount(among)
      const cached = known ? hit(replica) : pool.cachedTokens(asking)
      const ttft = expectedTtft(observer, open.promptTokens, cached, now)
      if (pool !== of) tokens = pool.lengths.mean(asking)
      of = pool
      const tpot = expectedTpot(observer, open.promptTokens, tokens, now)
      const p = chance(open, ttft, tpot, tokens, now)
      if (p < this.#threshold || p < bestP - ALIKE || (p <= bestP + ALIKE && ttft >= bestTtft)) continue
      best = replica
      bestP = p
      bestTtft = ttft
    }
    return best
  }

  #byCount(among: readonly Replica[]): Replica | undefined {
    return this.cheapest(among, ({ inFlight, limit, outstandingPrefillTokens }) => {
      return inFlight < limit ? outstandingPrefillTokens + inFlight / 1e6 : Infinity
    })
  }
}

/** That the request meets its promise. Source: algorithms 6.3. */
function chance(open: Open, ttftMs: Ms, tpotMs: Ms, tokens: number, now: Ms): number {
  const bounds = open.traffic.target.clauses
  if (bounds.kind === 'deadline') {
    const decodes = tokens * tpotMs
    return normalCdf((open.deadlineAt - now - ttftMs - decodes) / (300 + 0.25 * decodes))
  }
  const left = bounds.ttftMs - (now - open.bodyAt) - ttftMs
  return normalCdf(left / (60 + 0.12 * ttftMs)) * normalCdf((bounds.tpotMs - tpotMs) / (0.1 * tpotMs))
}

export const selfOnly = baseline(
  'self-only',
  "llm-d's SLO admission, re-stated on Weir's predictor; threshold set per scenario",
  { threshold: [0.995, 0.05, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998, 0.9995, 0.9999] },
  (desk, { threshold }, spec) => new SelfOnly(desk, spec, threshold),
)
