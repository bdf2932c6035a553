/** U3, the clairvoyant: a plan for a whole list of requests, made with all that only the future knows and played on the engines. */
import { type Ms, type Rng, seededRng } from '../../src/time.js'
import { needsOf, type Problem } from './bounds-problem.js'
import { Lane } from './u3-lane.js'
import { type Course, courseOf, Replica } from './u3-replica.js'
import { played } from './u3-true.js'

export interface Clairvoyant {
  /** Good requests by class: when each was placed, with the repairs, and as the simulator's engines play it. */
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
/** Refused jobs are tried where they break one other at most on so many replicas. */
const MOST_FORCED = 3

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
    return this.lanes.reduce((sum, lane) => sum + lane.good, 0)
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

  /** Takes the jobs where they spoil nothing and cost least time, the cheapest first, since all of them are known. */
  place(): void {
    const jobs = Array.from(this.#lane, (_, job) => job).sort((a, b) => this.#workOf(a) - this.#workOf(b))
    for (const job of jobs) this.#admit(job, this.#delays(job))
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
  #admit(job: number, times: readonly Ms[]): boolean {
    if (!this.#possible[job]) return false
    for (const ready of times) {
      const open: { at: number; more: Ms }[] = []
      for (const [at, lane] of this.lanes.entries()) {
        const value = lane.weighWith(job, ready)
        if (value.good === 1) open.push({ at, more: value.busy })
      }
      open.sort((a, b) => a.more - b.more)
      for (const { at } of open) {
        const lane = this.lanes[at] as Lane
        lane.insert(job, ready)
        if (this.#commit(at, [job], [])) return true
        lane.remove(job)
        lane.restored()
      }
    }
    return false
  }

  /** Adds it where the dearest of those it breaks leaves for it, if that saves time and all others stay good. */
  #force(job: number): boolean {
    const ready = this.#from[job] as Ms
    const start = Math.floor(this.#rng.next() * this.lanes.length)
    for (let turn = 0; turn < MOST_FORCED && turn < this.lanes.length; turn++) {
      const index = (start + turn) % this.lanes.length
      const lane = this.lanes[index] as Lane
      const broken: number[] = []
      lane.begin(ready)
      lane.insert(job, ready)
      lane.weigh(broken)
      let victim = -1
      for (const each of broken) {
        if (each !== job && (victim < 0 || this.#workOf(each) > this.#workOf(victim))) victim = each
      }
      if (victim < 0 || this.#workOf(victim) <= this.#workOf(job)) {
        lane.remove(job)
        lane.restored()
        continue
      }
      const was = lane.remove(victim)
      const value = lane.weigh()
      if (value.good === 0 && value.busy < 0 && this.#commit(index, [job], [victim])) return true
      lane.remove(job)
      lane.insert(victim, was)
      lane.restored()
    }
    return false
  }

  /** Takes it out for others that were refused near it, if more of them fit, or as many in less time. */
  #refill(job: number): boolean {
    const others = this.#refusedNear(job)
    if (others.length === 0) return false
    const index = this.#lane[job] as number
    const lane = this.lanes[index] as Lane
    lane.begin(this.#from[job] as Ms)
    const ready = lane.remove(job)
    const added: number[] = []
    let value = { good: -1, busy: 0 }
    for (const other of others) {
      lane.insert(other, this.#from[other] as Ms)
      const next = lane.weigh()
      if (next.good === added.length) {
        value = next
        added.push(other)
      } else lane.remove(other)
    }
    const gains = value.good > 0 || (value.good === 0 && value.busy < 0)
    if (gains && this.#commit(index, added, [job])) return true
    for (const other of added) lane.remove(other)
    lane.insert(job, ready)
    lane.restored()
    return false
  }

  /** Refused jobs that cost less and come about when this one is served, the cheapest first. */
  #refusedNear(job: number): number[] {
    const work = this.#workOf(job)
    const at = this.#from[job] as Ms
    const near: number[] = []
    for (let step = -1; step <= 1; step += 2) {
      for (let other = job + step; other >= 0 && other < this.#lane.length; other += step) {
        const gap = (this.#from[other] as Ms) - at
        if (gap > WINDOW_MS / 2 || gap < -WINDOW_MS / 10) break
        if ((this.#lane[other] as number) < 0 && this.#possible[other] && this.#workOf(other) < work) {
          near.push(other)
        }
      }
    }
    return near.sort((a, b) => this.#workOf(a) - this.#workOf(b)).slice(0, MOST_TRIED)
  }

  /** Moves it to another replica, deadline work to another time too, if that saves time in all. */
  #move(job: number): boolean {
    const from = this.#lane[job] as number
    const to = Math.floor(this.#rng.next() * this.lanes.length)
    if (to === from) return false
    const times = this.#delays(job)
    const ready = times[Math.floor(this.#rng.next() * times.length)] as Ms
    const source = this.lanes[from] as Lane
    const target = this.lanes[to] as Lane
    const more = target.weighWith(job, ready)
    if (more.good !== 1) return false
    source.begin(this.#from[job] as Ms)
    const was = source.remove(job)
    const less = source.weigh()
    source.insert(job, was)
    source.restored()
    // Others may need what it computed: it is in their prefix cache.
    if (less.good !== -1 || less.busy + more.busy >= 0) return false
    target.insert(job, ready)
    if (!this.#commit(to, [job], [])) {
      target.remove(job)
      target.restored()
      return false
    }
    // Unless the other replica dropped it at once for what it would spoil there.
    if (this.#lane[job] === to) {
      source.remove(job)
      this.#commit(from, [], [], true)
    } else this.#lane[job] = from
    return true
  }

  /** Keeps a lane's draft, if it is better, and who is where after it. */
  #commit(index: number, added: readonly number[], removed: readonly number[], anyway = false): boolean {
    const dropped = this.lanes[index]?.commit(anyway)
    if (dropped === undefined) return false
    for (const job of added) this.#lane[job] = index
    for (const job of [...removed, ...dropped]) this.#lane[job] = -1
    return true
  }

  #workOf(job: number): Ms {
    return this.#work[job] as Ms
  }
}

/**
 * What a router that knew everything could reach. Each request, the cheapest first, is tried on every replica, deadline
 * work at several times, by running a copy of the replica ahead with all that it is to be sent; then all decisions are
 * looked at again, those of 5 s together, and changed where that makes more requests good, or as many in less time. The
 * plan is played on the simulator's own engines, so the figure is one that a router has reached, if one that knew the
 * future. It is a plan and no optimum: the truth lies between it and U2.
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
  const verdicts = played(
    course,
    problem,
    search.lanes.map(({ orders }) => orders),
  )
  const good = problem.classes.map(() => 0)
  for (const [at, job] of problem.jobs.entries())
    good[job.cls] = (good[job.cls] as number) + (verdicts[at] as number)
  return {
    placed,
    planned: search.byClass(),
    good,
    seconds: (performance.now() - begun) / 1000,
    passes,
    runs: search.runs,
  }
}
