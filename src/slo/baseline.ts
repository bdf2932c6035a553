/** What a pool is like when it is well: by hour of the day, and over all. */
import { mergeWindows, type PoolWindow } from './pool-window.js'

/** Of what an hour's windows of earlier days count, so much is left when a new day's come in: a window is a sixtieth. */
const KEEP_HOUR = 0.983
/** Over all loads the memory is longer: about ten hours. */
const KEEP_ALL = 0.9983
/** Windows from which an hour speaks for itself. */
const ENOUGH = 20

export interface Baseline {
  /** The pool at this hour; until enough of it was seen, at all hours. */
  readonly usual: PoolWindow
  /** At all hours, for what has to be known at every load: the time of steps and of prefill. */
  readonly all: PoolWindow
}

/** All that was learned. */
export interface KnownBaselines {
  readonly all: PoolWindow | undefined
  /** By hour of the day, with the number of windows in each. */
  readonly hours: readonly ({ readonly window: PoolWindow; readonly count: number } | undefined)[]
}

/** Hand it each minute that nothing was wrong in; windows may not overlap. */
export class Baselines {
  #all: PoolWindow | undefined
  #hours: ({ readonly window: PoolWindow; readonly count: number } | undefined)[] = []

  /** @param hour  of the day, 0 to 23 */
  learn(window: PoolWindow, hour: number): void {
    this.#all = this.#all === undefined ? window : mergeWindows(this.#all, window, KEEP_ALL)
    const known = this.#hours[hour]
    this.#hours[hour] =
      known === undefined
        ? { window, count: 1 }
        : { window: mergeWindows(known.window, window, KEEP_HOUR), count: known.count + 1 }
  }

  get known(): KnownBaselines {
    return { all: this.#all, hours: Array.from({ length: 24 }, (_, hour) => this.#hours[hour]) }
  }

  /** Goes on from what was known once; to be called before anything is learned. */
  restore({ all, hours }: KnownBaselines): void {
    this.#all = all
    this.#hours = [...hours]
  }

  /** @returns undefined while nothing was learned */
  at(hour: number): Baseline | undefined {
    if (this.#all === undefined) return undefined
    const known = this.#hours[hour]
    return { usual: known !== undefined && known.count >= ENOUGH ? known.window : this.#all, all: this.#all }
  }
}
