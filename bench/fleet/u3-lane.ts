/** One replica's orders in a plan, each of them good, with states on the way that runs can go on from. */
import type { Ms } from '../../src/time.js'
import { type Course, type Orders, Replica } from './u3-replica.js'

/** What orders come to: jobs that end good, and time in iterations. */
export interface Value {
  readonly good: number
  readonly busy: Ms
}

/** Orders so long after a change are left out when it is weighed. */
const HORIZON_MS: Ms = 12_000
/** How many orders are looked at is rounded up to a multiple of this, so that values can be used again. */
const CUT_EVERY = 32
/** Less time is no saving. */
const LEAST_MS: Ms = 1e-6
/** A state is kept before every so many orders. */
const KEEP_EVERY = 12

/**
 * A change is drafted: `begin`, then `insert` and `remove`, `weigh` in between, and at the end `commit`, or the opposite
 * changes and `restored`. It is weighed without the orders that lie far behind it; `commit` looks at all.
 */
export class Lane {
  readonly orders: Orders = { jobs: [], ready: [] }
  /** Of what is committed. */
  good = 0
  busy: Ms = 0
  /** Runs so far. */
  runs = 0
  readonly #course: Course
  readonly #scratch: Replica
  readonly #verdicts: Uint8Array
  readonly #kept: Replica[]
  /** Of the first so many orders that are committed, and no others after them. */
  readonly #values = new Map<number, Value>()
  // The draft: how many committed orders it is weighed with, what they come to, and the first place and time it changes.
  #count = 0
  #value: Value = { good: 0, busy: 0 }
  #added = 0
  #place = Number.POSITIVE_INFINITY
  #from = Number.POSITIVE_INFINITY

  /** @param scratch  lanes may share it, and the verdicts, one for each job of the course */
  constructor(course: Course, scratch: Replica, verdicts: Uint8Array) {
    this.#course = course
    this.#scratch = scratch
    this.#verdicts = verdicts
    this.#kept = [new Replica(course.problem.profile.maxSeqs)]
  }

  /** A draft begins, of changes around a time. */
  begin(time: Ms): void {
    this.restored()
    const { length } = this.orders.jobs
    this.#count = Math.min(length, Math.ceil(this.#behind(time + HORIZON_MS) / CUT_EVERY) * CUT_EVERY)
    this.#value = this.#valueOf(this.#count)
  }

  /** The draft was taken back. */
  restored(): void {
    this.#added = 0
    this.#place = Number.POSITIVE_INFINITY
    this.#from = Number.POSITIVE_INFINITY
  }

  /** Drafts an order; it comes after those of the same time. */
  insert(job: number, ready: Ms): void {
    const at = this.#behind(ready)
    this.orders.jobs.splice(at, 0, job)
    this.orders.ready.splice(at, 0, ready)
    this.#added++
    this.#changed(at, ready)
  }

  /** Drafts that a job is not sent. @returns when it was to be */
  remove(job: number): Ms {
    const at = this.orders.jobs.indexOf(job)
    const ready = this.orders.ready[at] as number
    this.orders.jobs.splice(at, 1)
    this.orders.ready.splice(at, 1)
    this.#added--
    this.#changed(at, ready)
    return ready
  }

  /**
   * What the draft adds.
   * @param broken  gets the jobs of it that are not good
   */
  weigh(broken?: number[]): Value {
    const state = this.#stateBefore(this.#place, this.#from)
    const until = this.#count + this.#added
    const { jobs } = this.orders
    // What was under way in that state is among the orders shortly before it.
    const first = Math.max(0, state.taken - this.#course.problem.profile.maxSeqs)
    if (broken !== undefined) for (let at = first; at < until; at++) this.#verdicts[jobs[at] as number] = 1
    this.#run(state, until, broken === undefined ? undefined : this.#verdicts)
    for (let at = first; broken !== undefined && at < until; at++) {
      const job = jobs[at] as number
      if (this.#verdicts[job] === 0) broken.push(job)
    }
    return { good: this.#scratch.good - this.#value.good, busy: this.#scratch.busy - this.#value.busy }
  }

  /** What one job more would add. */
  weighWith(job: number, ready: Ms): Value {
    this.begin(ready)
    this.insert(job, ready)
    const value = this.weigh()
    this.remove(job)
    this.restored()
    return value
  }

  /**
   * Keeps the draft if it is better to the last order: more good ones, or as many in less time. Orders far behind that
   * it spoils are dropped.
   * @param anyway  better or not
   * @returns the jobs dropped; undefined: it stays a draft
   */
  commit(anyway = false): readonly number[] | undefined {
    const { jobs, ready } = this.orders
    const draft = [jobs.slice(), ready.slice()] as const
    const dropped: number[] = []
    for (;;) {
      const state = this.#stateBefore(this.#place, this.#from)
      const kept: Replica[] = []
      let next = state.taken + KEEP_EVERY
      this.#verdicts.fill(1)
      this.#run(state, jobs.length, this.#verdicts, replica => {
        if (replica.taken < next) return
        const copy = new Replica(this.#course.problem.profile.maxSeqs)
        copy.copyFrom(replica)
        kept.push(copy)
        next = replica.taken + KEEP_EVERY
      })
      const { good, busy } = this.#scratch
      const isBetter = good > this.good || (good === this.good && busy < this.busy - LEAST_MS)
      if (!isBetter && !anyway) {
        jobs.splice(0, Number.POSITIVE_INFINITY, ...draft[0])
        ready.splice(0, Number.POSITIVE_INFINITY, ...draft[1])
        return undefined
      }
      if (good === jobs.length) {
        this.#kept.splice(this.#kept.indexOf(state) + 1, Number.POSITIVE_INFINITY, ...kept)
        this.good = good
        this.busy = busy
        this.#values.clear()
        this.restored()
        return dropped
      }
      for (let at = jobs.length - 1; at >= 0; at--) {
        const job = jobs[at] as number
        if (this.#verdicts[job] === 1) continue
        this.#changed(at, ready[at] as number)
        jobs.splice(at, 1)
        ready.splice(at, 1)
        dropped.push(job)
      }
    }
  }

  #changed(at: number, ready: Ms): void {
    this.#place = Math.min(this.#place, at)
    this.#from = Math.min(this.#from, ready)
  }

  /** Place behind all orders up to a time. */
  #behind(time: Ms): number {
    const times = this.orders.ready
    let low = 0
    let high = times.length
    while (low < high) {
      const middle = (low + high) >> 1
      if ((times[middle] as number) <= time) low = middle + 1
      else high = middle
    }
    return low
  }

  #valueOf(count: number): Value {
    if (count === this.orders.jobs.length) return this
    const known = this.#values.get(count)
    if (known !== undefined) return known
    this.#run(this.#stateBefore(count, Number.POSITIVE_INFINITY), count)
    const value = { good: this.#scratch.good, busy: this.#scratch.busy }
    this.#values.set(count, value)
    return value
  }

  /** The last state kept that no change from a place and a time on can touch. */
  #stateBefore(place: number, time: Ms): Replica {
    let index = this.#kept.length - 1
    for (; index > 0; index--) {
      const state = this.#kept[index] as Replica
      if (state.taken <= place && state.t <= time) break
    }
    return this.#kept[index] as Replica
  }

  #run(state: Replica, count: number, verdicts?: Uint8Array, before?: (replica: Replica) => void): void {
    this.runs++
    this.#scratch.copyFrom(state)
    this.#scratch.run(this.#course, this.orders, count, verdicts, before)
  }
}
