/** Offered, shed and good requests by class and pool, over minutes: what goodput is made of. */
import type { ClassId, PoolId } from '../request.js'
import type { Ms } from '../time.js'
import { saneCount } from './sane.js'
import type { SavedFlow } from './saved-book.js'
import type { TrafficClass } from './slo.js'
import type { Judgement } from './verdict.js'
import { LEVELS, Windows } from './windows.js'

/** What ended in one window. */
export interface Flow {
  /** For how long the class has been counted in this pool. */
  readonly seenMs: Ms
  /** How long the window really is. */
  readonly spanMs: Ms
  readonly offered: number
  /** Of those offered. */
  readonly shed: number
  readonly good: number
  /** Output tokens of the good ones. */
  readonly goodTokens: number
}

const OFFERED = 0
const SHED = 1
const GOOD = 2
const GOOD_TOKENS = 3
const PER_FLOW = 4

export class Flows {
  #classes: readonly TrafficClass[] = []
  #pools: readonly { readonly name: string }[] = []
  /** Windows of up to two hours. */
  readonly #windows: Windows
  /** By class id and pool id + 1; 0 is for requests that were sent nowhere. */
  readonly #flows: { readonly first: number; since: Ms }[][] = []

  constructor(at: Ms) {
    this.#windows = new Windows(0, LEVELS.slice(0, 3), at)
  }

  advance(at: Ms): void {
    this.#windows.advance(at)
  }

  follow(classes: readonly TrafficClass[], pools: readonly { readonly name: string }[]): void {
    this.#classes = classes
    this.#pools = pools
    for (const cls of classes) for (const pool of [undefined, ...cls.pools]) this.#flow(cls.id, pool)
  }

  /** One that is `offered`, at its end. */
  judged({ pool, verdict, outputTokens }: Judgement, cls: ClassId): void {
    const { first } = this.#flow(cls, pool)
    this.#windows.add(first + OFFERED)
    if (verdict === 'shed') this.#windows.add(first + SHED)
    if (verdict !== 'good') return
    this.#windows.add(first + GOOD)
    this.#windows.add(first + GOOD_TOKENS, saneCount(outputTokens) ?? 0)
  }

  in(cls: ClassId, pool: PoolId | undefined, windowMs: Ms): Flow {
    const { first, since } = this.#flow(cls, pool)
    return {
      seenMs: this.#windows.at - since,
      spanMs: this.#windows.spanMs(windowMs),
      offered: this.#windows.sum(first + OFFERED, windowMs),
      shed: this.#windows.sum(first + SHED, windowMs),
      good: this.#windows.sum(first + GOOD, windowMs),
      goodTokens: this.#windows.sum(first + GOOD_TOKENS, windowMs),
    }
  }

  /** As `Promises.save`. */
  *save(): Generator<SavedFlow> {
    for (const cls of this.#classes) {
      if (cls.retired) continue
      for (const id of [undefined, ...cls.pools]) {
        const { first, since } = this.#flow(cls.id, id)
        const pool = id === undefined ? null : this.#pools[id]!.name
        const counts = this.#windows.slicesFrom(first, PER_FLOW)
        yield { kind: 'flow', at: this.#windows.at, class: cls.name, pool, since, counts }
      }
    }
  }

  /** As `Promises.load`. */
  load(rows: readonly SavedFlow[], begin: Ms): boolean {
    for (const flow of this.#flows.flat()) flow.since = begin
    return rows.every(row => {
      const cls = this.#classes.find(({ name }) => name === row.class)
      const pool = this.#pools.findIndex(({ name }) => name === row.pool)
      if (cls === undefined || (pool < 0 && row.pool !== null)) return true
      const flow = this.#flow(cls.id, pool < 0 ? undefined : pool)
      flow.since = Math.min(row.since, begin)
      return this.#windows.fillFrom(flow.first, PER_FLOW, row.counts, row.at)
    })
  }

  /** A pool that the class does not use any more still ends what it has. */
  #flow(cls: ClassId, pool: PoolId | undefined): { readonly first: number; since: Ms } {
    this.#flows[cls] ??= []
    const flows = this.#flows[cls]
    const at = pool === undefined ? 0 : pool + 1
    const known = flows[at]
    if (known !== undefined) return known
    const flow = { first: this.#windows.series, since: this.#windows.at }
    this.#windows.grow(flow.first + PER_FLOW)
    flows[at] = flow
    return flow
  }
}
