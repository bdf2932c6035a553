/** U3, the clairvoyant: a plan for a whole list of requests, made with all that only the future knows and played on the engines. */
import { type Rng, seededRng } from '../../src/time.js'
import { needsOf, type Problem } from './bounds-problem.js'
import { type Course, courseOf, type Orders, Replica } from './u3-replica.js'
import { played } from './u3-true.js'

export interface Clairvoyant {
  /** Good requests by class: when each was placed as it came, with the repairs, and as the simulator's engines play it. */
  readonly placed: readonly number[]
  readonly planned: readonly number[]
  readonly good: readonly number[]
  readonly seconds: number
  /** Good requests planned after each pass of repairs. */
  readonly passes: readonly number[]
  /** Runs of one replica that were looked at. */
  readonly runs: number
}

/** Decisions are looked at again together that lie this close in time. */
const WINDOW_MS = 5_000
/** Passes over the whole list at most, and the share of the good requests that one has to add for another to follow. */
const MOST_PASSES = 12
const LEAST_GAIN = 0.001
/** Delays tried for deadline work, as shares of its deadline. */
const DELAYS = [0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7]
/** Refused jobs tried in the place of one that is taken out. */
const MOST_TRIED = 6
/** A replica's state is kept before every so many orders. */
const KEEP_EVERY = 12

/** What a replica's orders come to. */
interface Value {
  readonly good: number
  readonly busy: number
}

const better = (a: Value, b: Value): boolean =>
  a.good > b.good || (a.good === b.good && a.busy < b.busy - 1e-6)

/** One replica's orders, all of them good, with states to go on from. */
class Lane {
  readonly orders: Orders = { jobs: [], ready: [] }
  readonly #course: Course
  readonly #scratch: Replica
  readonly #verdicts: Uint8Array
  readonly #kept: Replica[]
  #keptCount = 1
  value: Value = { good: 0, busy: 0 }
  runs = 0

  constructor(course: Course, scratch: Replica, verdicts: Uint8Array) {
    this.#course = course
    this.#scratch = scratch
    this.#verdicts = verdicts
    this.#kept = [new Replica(course.problem.profile.maxSeqs)]
  }

  /** What it would come to with a job more. */
  with(job: number, ready: number): Value {
    const at = this.#insert(job, ready)
    const value = this.#run(at)
    this.#remove(at)
    return value
  }

  /** What it would come to without the order at a place. */
  without(at: number): Value {
    const { jobs, ready } = this.orders
    const job = jobs[at] as number
    const when = ready[at] as number
    this.#remove(at)
    const value = this.#run(at)
    jobs.splice(at, 0, job)
    ready.splice(at, 0, when)
    return value
  }

  /** Jobs of it that would no longer be good with one more; the last run was `with` that one. */
  brokenBy(job: number, ready: number): number[] {
    const at = this.#insert(job, ready)
    const state = this.#stateBefore(at)
    const from = state.taken
    this.runs++
    this.#scratch.copyFrom(state)
    // Those under way in that state, too: they lie a little before it.
    const first = Math.max(0, from - 1024)
    for (let i = first; i < this.orders.jobs.length; i++) this.#verdicts[this.orders.jobs[i] as number] = 1
    this.#scratch.run(this.#course, this.orders, this.#verdicts)
    const broken: number[] = []
    for (let i = first; i < this.orders.jobs.length; i++) {
      const each = this.orders.jobs[i] as number
      if (each !== job && this.#verdicts[each] === 0) broken.push(each)
    }
    this.#remove(at)
    return broken
  }

  add(job: number, ready: number): void {
    this.#settle(this.#insert(job, ready))
  }

  drop(job: number): void {
    const at = this.orders.jobs.indexOf(job)
    this.#remove(at)
    this.#settle(at)
  }

  #insert(job: number, ready: number): number {
    const { jobs, ready: times } = this.orders
    let low = 0
    let high = times.length
    while (low < high) {
      const middle = (low + high) >> 1
      if ((times[middle] as number) <= ready) low = middle + 1
      else high = middle
    }
    jobs.splice(low, 0, job)
    times.splice(low, 0, ready)
    return low
  }

  #remove(at: number): void {
    this.orders.jobs.splice(at, 1)
    this.orders.ready.splice(at, 1)
  }

  /** The last state kept that a change at a place, at or before what now stands there, leaves as it is. */
  #stateBefore(at: number): Replica {
    const limit = this.orders.ready[at] ?? Number.POSITIVE_INFINITY
    let index = this.#keptCount - 1
    for (; index > 0; index--) {
      const state = this.#kept[index] as Replica
      if (state.taken <= at && state.t <= limit) break
    }
    return this.#kept[index] as Replica
  }

  #run(at: number): Value {
    this.runs++
    this.#scratch.copyFrom(this.#stateBefore(at))
    this.#scratch.run(this.#course, this.orders)
    return { good: this.#scratch.good, busy: this.#scratch.busy }
  }

  /** Runs it with the change at a place, and keeps states on the way. */
  #settle(at: number): void {
    const state = this.#stateBefore(at)
    this.#keptCount = this.#kept.indexOf(state) + 1
    this.#scratch.copyFrom(state)
    let next = state.taken + KEEP_EVERY
    this.#scratch.run(this.#course, this.orders, undefined, replica => {
      if (replica.taken < next) return
      const kept = (this.#kept[this.#keptCount] ??= new Replica(this.#course.problem.profile.maxSeqs))
      kept.copyFrom(replica)
      this.#keptCount++
      next = replica.taken + KEEP_EVERY
    })
    this.value = { good: this.#scratch.good, busy: this.#scratch.busy }
  }
}

class Search {
  readonly lanes: Lane[]
  readonly #problem: Problem
  readonly #rng: Rng
  readonly #work: Float64Array
  readonly #from: Float64Array
  readonly #possible: boolean[]
  /** Where each job is: a lane, or -1. */
  readonly #lane: Int32Array

  constructor(problem: Problem, course: Course, seed: number) {
    const needs = needsOf(problem)
    const scratch = new Replica(problem.profile.maxSeqs)
    const verdicts = new Uint8Array(problem.jobs.length)
    this.#problem = problem
    this.#rng = seededRng(seed)
    this.#work = Float64Array.from(needs, need => need.prefillMs + need.decodeMs)
    this.#from = Float64Array.from(needs, need => need.from)
    this.#possible = needs.map(need => need.possible)
    this.#lane = new Int32Array(problem.jobs.length).fill(-1)
    this.lanes = Array.from({ length: problem.replicas }, () => new Lane(course, scratch, verdicts))
  }

  get good(): number {
    return this.lanes.reduce((sum, lane) => sum + lane.value.good, 0)
  }

  get runs(): number {
    return this.lanes.reduce((sum, lane) => sum + lane.runs, 0)
  }

  byClass(): number[] {
    const counts = this.#problem.classes.map(() => 0)
    for (const [at, job] of this.#problem.jobs.entries()) {
      if ((this.#lane[at] as number) >= 0) counts[job.cls] = (counts[job.cls] as number) + 1
    }
    return counts
  }

  /** Takes each job as it comes, where it spoils nothing and costs least time; refuses it where that is nowhere. */
  place(): void {
    for (let job = 0; job < this.#lane.length; job++) this.#admit(job, this.#delays(job))
  }

  /** Looks again at all decisions, those of 5 s together in random order, a few times. */
  repair(): void {
    const count = this.#lane.length
    for (let from = 0; from < count; ) {
      let to = from
      const until = (this.#from[from] as number) + WINDOW_MS
      while (to < count && (this.#from[to] as number) < until) to++
      for (const job of this.#shuffled(from, to)) this.#look(job)
      from = to
    }
  }

  #shuffled(from: number, to: number): number[] {
    const jobs = Array.from({ length: to - from }, (_, at) => from + at)
    for (let at = jobs.length - 1; at > 0; at--) {
      const other = Math.floor(this.#rng.next() * (at + 1))
      const job = jobs[at] as number
      jobs[at] = jobs[other] as number
      jobs[other] = job
    }
    return jobs
  }

  #look(job: number): void {
    if (!this.#possible[job]) return
    if ((this.#lane[job] as number) < 0) this.#admit(job, this.#delays(job)) || this.#force(job)
    else this.#refill(job) || this.#move(job)
  }

  /** Times at which it may be sent: a stream at once, deadline work later too. */
  #delays(job: number): number[] {
    const clauses = this.#problem.classes[this.#problem.jobs[job]?.cls as number]?.clauses
    const from = this.#from[job] as number
    if (clauses?.kind !== 'deadline') return [from]
    return DELAYS.map(share => from + share * clauses.deadlineMs)
  }

  /** Adds it where all stay good, at the least time. */
  #admit(job: number, times: readonly number[]): boolean {
    if (!this.#possible[job]) return false
    for (const ready of times) {
      let best = -1
      let least = Number.POSITIVE_INFINITY
      for (const [at, lane] of this.lanes.entries()) {
        const value = lane.with(job, ready)
        const more = value.busy - lane.value.busy
        if (value.good === lane.value.good + 1 && more < least) {
          best = at
          least = more
        }
      }
      if (best < 0) continue
      this.#put(job, best, ready)
      return true
    }
    return false
  }

  /** Adds it where it breaks one other at most, the dearest of which leaves, if that saves time. */
  #force(job: number): boolean {
    const ready = this.#from[job] as number
    const start = Math.floor(this.#rng.next() * this.lanes.length)
    for (let turn = 0; turn < 3 && turn < this.lanes.length; turn++) {
      const index = (start + turn) % this.lanes.length
      const lane = this.lanes[index] as Lane
      const before = lane.value
      const broken = lane.brokenBy(job, ready)
      let victim = -1
      for (const each of broken) {
        if (victim < 0 || (this.#work[each] as number) > (this.#work[victim] as number)) victim = each
      }
      if (victim < 0) continue
      const times = this.#timeOf(lane, victim)
      this.#take(victim, index)
      const value = lane.with(job, ready)
      if (better(value, before)) {
        this.#put(job, index, ready)
        return true
      }
      this.#put(victim, index, times)
    }
    return false
  }

  /** Takes it out for others that were refused near it, if more of them fit, or as many in less time. */
  #refill(job: number): boolean {
    const index = this.#lane[job] as number
    const lane = this.lanes[index] as Lane
    const before = lane.value
    const others = this.#refusedNear(job)
    if (others.length === 0) return false
    const ready = this.#timeOf(lane, job)
    this.#take(job, index)
    const added: number[] = []
    for (const other of others) {
      const value = lane.with(other, this.#from[other] as number)
      if (value.good !== lane.value.good + 1) continue
      this.#put(other, index, this.#from[other] as number)
      added.push(other)
    }
    if (better(lane.value, before)) return true
    for (const other of added) this.#take(other, index)
    this.#put(job, index, ready)
    return false
  }

  /** Refused jobs that cost less and come about when this one is served, the cheapest first. */
  #refusedNear(job: number): number[] {
    const work = this.#work[job] as number
    const at = this.#from[job] as number
    const near: number[] = []
    for (let step = -1; step <= 1; step += 2) {
      for (let other = job + step; other >= 0 && other < this.#lane.length; other += step) {
        const gap = (this.#from[other] as number) - at
        if (gap > WINDOW_MS / 2 || gap < -WINDOW_MS / 10) break
        if ((this.#lane[other] as number) < 0 && this.#possible[other] && (this.#work[other] as number) < work) {
          near.push(other)
        }
      }
    }
    return near.sort((a, b) => (this.#work[a] as number) - (this.#work[b] as number)).slice(0, MOST_TRIED)
  }

  /** Moves it to another replica, or deadline work to another time, if that saves time in all. */
  #move(job: number): boolean {
    const index = this.#lane[job] as number
    const lane = this.lanes[index] as Lane
    const place = lane.orders.jobs.indexOf(job)
    const ready = lane.orders.ready[place] as number
    const without = lane.without(place)
    // Others need it: what it computed is in their prefix cache.
    if (without.good < lane.value.good - 1) return false
    const spared = lane.value.busy - without.busy
    const times = this.#delays(job)
    const to = Math.floor(this.#rng.next() * this.lanes.length)
    const when = times[Math.floor(this.#rng.next() * times.length)] as number
    if (to === index) return false
    const target = this.lanes[to] as Lane
    const value = target.with(job, times.length > 1 ? when : ready)
    if (value.good !== target.value.good + 1 || value.busy - target.value.busy >= spared - 1e-6) return false
    this.#take(job, index)
    this.#put(job, to, times.length > 1 ? when : ready)
    return true
  }

  #timeOf(lane: Lane, job: number): number {
    return lane.orders.ready[lane.orders.jobs.indexOf(job)] as number
  }

  #put(job: number, lane: number, ready: number): void {
    this.lanes[lane]?.add(job, ready)
    this.#lane[job] = lane
  }

  #take(job: number, lane: number): void {
    this.lanes[lane]?.drop(job)
    this.#lane[job] = -1
  }
}

/**
 * What a router that knew everything could reach: each request is tried on every replica, deadline work at several
 * times, by running the replica ahead to the end of all that is known; then all decisions are looked at again, those
 * of 5 s together, and changed where that makes more requests good, or as many in less time. The plan is played
 * on the simulator's own engines, so the figure is one that a router has reached, if one that knew the future.
 * @param seed  of the order in which decisions are looked at again; same seed, same plan
 */
export function clairvoyant(problem: Problem, seed: number): Clairvoyant {
  const begun = performance.now()
  const course = courseOf(problem)
  const search = new Search(problem, course, seed)
  search.place()
  const placed = search.byClass()
  const passes: number[] = []
  for (let good = -1; passes.length < MOST_PASSES && search.good > good * (1 + LEAST_GAIN); ) {
    good = search.good
    search.repair()
    passes.push(search.good)
  }
  const verdicts = played(course, problem, search.lanes.map(({ orders }) => orders))
  const good = problem.classes.map(() => 0)
  for (const [at, job] of problem.jobs.entries()) good[job.cls] = (good[job.cls] as number) + (verdicts[at] as number)
  return {
    placed,
    planned: search.byClass(),
    good,
    seconds: (performance.now() - begun) / 1000,
    passes,
    runs: search.runs,
  }
}
