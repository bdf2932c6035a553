/** llm-d's inference scheduler: scores over scraped gauges, and two ways of refusing what may be refused. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import type { Ms } from '../time.js'
import { baseline } from './baseline.js'
import { Counted } from './counted.js'

const QUEUE_WEIGHT = 2
const KV_WEIGHT = 2
const PREFIX_WEIGHT = 3
/** Prompt tokens that an engine computes in one step (vLLM on a large GPU): requests beyond them wait in its queue. */
const STEP_TOKENS = 8192

interface Engines {
  /** Age of the gauges, at most. */
  readonly staleMs: Ms
}

/** Gauges of one replica as last scraped. */
interface Gauges {
  waiting: number
  kv: number
}

/**
 * The highest of 2 * queue + 2 * KV + 3 * prefix wins, ties by lot. queue: (max - waiting) / (max - min) among the
 * candidates, 1 where all wait alike; KV: share of the cache that is free; prefix: share of the prompt's blocks that the
 * replica was sent before.
 *
 * llm-d scrapes the engines; here the router's own counts stand in, as they were at the last multiple of `staleMs`:
 * waiting is the share of the requests without output that does not fit into one step of 8,192 prompt tokens, KV the
 * contexts in flight over what the pool's replicas hold (0 where that is not known).
 * Goes wrong in the time between two scrapes, when everybody goes to the one that looked idle; and it refuses nobody.
 * Source: llm-d/llm-d-inference-scheduler, default plugins queue-scorer, kv-cache-utilization-scorer and
 * prefix-cache-scorer (weights 2, 2, 3), metrics every 50 ms.
 */
class LlmD extends Counted {
  readonly #engines: Engines
  /** By replica id. */
  readonly #gauges: Gauges[] = []
  #scrapeAt: Ms = -Infinity

  constructor(desk: Desk, engines: Engines) {
    super(desk)
    this.#engines = engines
  }

  protected choose(open: Open, among: readonly Replica[], now: Ms): Replica | undefined {
    this.changes(now)
    let [least, most] = [Infinity, -Infinity]
    for (const replica of among) {
      const { waiting } = this.gauges(replica)
      least = Math.min(least, waiting)
      most = Math.max(most, waiting)
    }
    const hit = this.hits(open)
    return this.cheapest(among, replica => {
      const { waiting, kv } = this.gauges(replica)
      const queue = most === least ? 1 : (most - waiting) / (most - least)
      return -(
        QUEUE_WEIGHT * queue +
        KV_WEIGHT * (1 - kv) +
        (PREFIX_WEIGHT * hit(replica)) / open.promptTokens
      )
    })
  }

  protected gauges({ spec: { id } }: Replica): Gauges {
    let gauges = this.#gauges[id]
    if (gauges === undefined) {
      gauges = { waiting: 0, kv: 0 }
      this.#gauges[id] = gauges
    }
    return gauges
  }

  /** Nothing has changed since the last event, so what is counted now is what a scrape in between would have seen. */
  protected override changes(now: Ms): void {
    if (now < this.#scrapeAt) return
    const { staleMs } = this.#engines
    this.#scrapeAt = (Math.floor(now / staleMs) + 1) * staleMs
    for (const replica of this.desk.replicas) {
      const { waiting, prefillTokens, contextTokens } = this.loads.of(replica.spec.id)
      const gauges = this.gauges(replica)
      gauges.waiting =
        prefillTokens <= STEP_TOKENS ? 0 : Math.floor(waiting * (1 - STEP_TOKENS / prefillTokens))
      gauges.kv = Math.min(1, contextTokens / this.kvTokens(replica))
    }
  }
}

/**
 * Saturation: the mean over the replicas of max(waiting / 5, KV / 0.8). What is sheddable (a class that is not of the
 * highest priority; llm-d: priority below 0) may be refused by it, nothing else ever is.
 */
abstract class Gated extends LlmD {
  readonly #full: { readonly waiting: number; readonly kv: number }

  constructor(desk: Desk, engines: Engines, full: { readonly waiting: number; readonly kv: number }) {
    super(desk, engines)
    this.#full = full
  }

  protected abstract refuses(saturation: number): boolean

  protected override choose(open: Open, among: readonly Replica[], now: Ms): Replica | undefined {
    this.changes(now)
    if (this.#isSheddable(open) && this.refuses(this.#saturation(among))) return undefined
    return super.choose(open, among, now)
  }

  #saturation(among: readonly Replica[]): number {
    let sum = 0
    for (const replica of among) {
      const { waiting, kv } = this.gauges(replica)
      sum += Math.max(waiting / this.#full.waiting, kv / this.#full.kv)
    }
    return sum / among.length
  }

  #isSheddable({ traffic }: Open): boolean {
    return this.desk.classes.some(({ priority, retired }) => !retired && priority < traffic.priority)
  }
}

/**
 * Refuses all that is sheddable while saturation is 1 or more.
 * Goes wrong since it looks at a queue that is there already: agents inside do the damage, and chat is always let in.
 * Source: llm-d saturation detector, queue depth 5, KV 0.8; it takes gauges of up to 200 ms for fresh.
 */
class Gate extends Gated {
  protected refuses(saturation: number): boolean {
    return saturation >= 1
  }
}

/**
 * Refuses what is sheddable with probability min(1, k * saturation^power): 300 and 5 begin at a third of saturation.
 * Goes wrong as the gate does, a little earlier; costs throughput where queues are short by nature.
 * Source: llm-d probabilistic admitter.
 */
class Probabilistic extends Gated {
  readonly #k: number
  readonly #power: number

  constructor(desk: Desk, engines: Engines, { k, power }: { readonly k: number; readonly power: number }) {
    super(desk, engines, { waiting: 5, kv: 0.8 })
    this.#k = k
    this.#power = power
  }

  protected refuses(saturation: number): boolean {
    return this.desk.rng.next() < this.#k * saturation ** this.#power
  }
}

export const llmDs = [
  baseline(
    'llm-d',
    'llm-d default scorers, queue 2, KV 2, prefix 3',
    { staleMs: [50, 200] },
    (desk, set) => new LlmD(desk, set),
  ),
  baseline(
    'llm-d-gate',
    'llm-d default scorers behind its saturation gate, 5 and 0.8',
    { waiting: [5, 1, 2, 10], kv: [0.8, 0.4, 0.6], staleMs: [50, 200] },
    (desk, set) => new Gate(desk, set, set),
  ),
  baseline(
    'llm-d-probabilistic',
    'llm-d default scorers behind its probabilistic admitter, 300 and 5',
    { k: [300, 30, 3000], power: [5], staleMs: [50, 200] },
    (desk, set) => new Probabilistic(desk, set, set),
  ),
]
