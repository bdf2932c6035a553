/** One replica that can be copied and run ahead cheaply: `Engine` without noise and preemption, a session's cache at a time. */
import { BLOCK_TOKENS } from '../../src/sim/kv-cache.js'
import type { Ms } from '../../src/time.js'
import { type Problem, spanMs, withinMs } from './bounds-problem.js'

/** What runs need of a problem's jobs, by their number, in flat arrays. */
export interface Course {
  readonly problem: Problem
  readonly prompt: Float64Array
  readonly output: Float64Array
  /** Latest first token; Infinity for deadline work. */
  readonly firstBy: Float64Array
  /** First to last token at most; Infinity for deadline work. */
  readonly span: Float64Array
  /** Latest last token; Infinity for streams. */
  readonly lastBy: Float64Array
  /** Jobs of one group share the first block of their prompt; -1: shares nothing. */
  readonly group: Int32Array
  /** Matrix time of an iteration, by its tokens. */
  readonly roofline: Float64Array
  /** Tokens, in whole blocks, that two jobs of one group have in common. */
  readonly common: (a: number, b: number) => number
}

export function courseOf(problem: Problem): Course {
  const { jobs, classes, profile } = problem
  const { wMs, gMsPerKtok, p } = profile.cost
  const columns = () => new Float64Array(jobs.length)
  const [prompt, output, firstBy, span, lastBy] = [columns(), columns(), columns(), columns(), columns()]
  const group = new Int32Array(jobs.length).fill(-1)
  const groups = new Map<number, number>()
  for (const [at, job] of jobs.entries()) {
    prompt[at] = job.promptTokens
    output[at] = job.outputTokens
    const clauses = classes[job.cls]?.clauses
    const stream = clauses?.kind === 'stream'
    firstBy[at] = stream ? job.arrivalMs + clauses.ttftMs : Number.POSITIVE_INFINITY
    span[at] = stream ? spanMs(job.outputTokens, clauses.tpotMs) : Number.POSITIVE_INFINITY
    lastBy[at] =
      clauses?.kind === 'deadline'
        ? job.arrivalMs + withinMs(job.outputTokens, clauses)
        : Number.POSITIVE_INFINITY
    const first = job.blockHashes[0]
    if (first === undefined) continue
    const known = groups.get(first) ?? groups.size
    groups.set(first, known)
    group[at] = known
  }
  const roofline = Float64Array.from({ length: profile.maxBatchedTokens + 1 }, (_, tokens) => {
    const matrix = (gMsPerKtok * tokens) / 1000
    return (wMs ** p + matrix ** p) ** (1 / p)
  })
  const commons = new Map<number, number>()
  const common = (a: number, b: number): number => {
    const key = Math.min(a, b) * jobs.length + Math.max(a, b)
    const known = commons.get(key)
    if (known !== undefined) return known
    const one = jobs[a]?.blockHashes ?? []
    const two = jobs[b]?.blockHashes ?? []
    let blocks = 0
    while (blocks < one.length && blocks < two.length && one[blocks] === two[blocks]) blocks++
    commons.set(key, blocks * BLOCK_TOKENS)
    return blocks * BLOCK_TOKENS
  }
  return { problem, prompt, output, firstBy, span, lastBy, group, roofline, common }
}

/** What a replica is to be sent: jobs with the times at which the engine sees them, in order of time. */
export interface Orders {
  readonly jobs: number[]
  readonly ready: Ms[]
}

/** The prompt of the last job of a group that ran here, as far as the cache still has it. */
interface Kept {
  readonly group: number
  readonly job: number
  readonly tokens: number
  /** Jobs under way that hold it. */
  readonly holders: number
  /** Once nobody holds it: count of taken tokens from which on it is its own that are taken, the last first. */
  readonly dueAt: number
}

/** A replica between two iterations. */
export class Replica {
  /** End of the last iteration. */
  t: Ms = 0
  /** Time spent in iterations. */
  busy: Ms = 0
  /** Jobs that ended good. */
  good = 0
  /** Orders that were taken into the batch. */
  taken = 0
  /** Iterations so far. */
  #iteration = 0
  /** A prefill that needs more iterations, or -1; at most one is cut by the token budget at a time. */
  #part = -1
  #partComputed = 0
  /** Decoding jobs: a heap by the iteration that brings the last token, and each one's first token. */
  #decoding = 0
  #ends: Int32Array
  #ids: Int32Array
  #firsts: Float64Array
  /** KV tokens that one iteration of all of them reads. */
  #read = 0
  /** KV tokens that jobs under way hold, prompts in whole blocks. */
  #held = 0
  /** KV tokens taken from the free ones since the start: in turn, those that were freed first. */
  #given = 0
  #kept: readonly Kept[] = []

  constructor(maxSeqs: number) {
    this.#ends = new Int32Array(maxSeqs)
    this.#ids = new Int32Array(maxSeqs)
    this.#firsts = new Float64Array(maxSeqs)
  }

  copyFrom(other: Replica): void {
    this.t = other.t
    this.busy = other.busy
    this.good = other.good
    this.taken = other.taken
    this.#iteration = other.#iteration
    this.#part = other.#part
    this.#partComputed = other.#partComputed
    const count = other.#decoding
    this.#decoding = count
    for (let at = 0; at < count; at++) {
      this.#ends[at] = other.#ends[at] as number
      this.#ids[at] = other.#ids[at] as number
      this.#firsts[at] = other.#firsts[at] as number
    }
    this.#read = other.#read
    this.#held = other.#held
    this.#given = other.#given
    this.#kept = other.#kept
  }

  /**
   * Runs until the first `count` orders have ended; the others never come.
   * @param verdicts  gets 1 for each good job and 0 for each that is not
   * @param before    called before each iteration that takes orders in
   */
  run(
    course: Course,
    orders: Orders,
    count: number,
    verdicts?: Uint8Array,
    before?: (replica: Replica) => void,
  ): void {
    const { profile } = course.problem
    const { cMsPerSeq, aMsPerMtok2, dMsPerKkv } = profile.cost
    const { roofline, prompt } = course
    const { jobs, ready } = orders
    const completed: number[] = []
    for (;;) {
      let next = this.taken < count ? (ready[this.taken] as number) : Number.POSITIVE_INFINITY
      if (this.#decoding === 0 && this.#part < 0) {
        if (next === Number.POSITIVE_INFINITY) return
        if (next > this.t) this.t = next
      }
      const sees = next <= this.t
      if (sees && before !== undefined) before(this)
      let budget = profile.maxBatchedTokens - this.#decoding
      let prefill = 0
      let attention = 0
      let chunks = 0
      if (this.#part >= 0) {
        const left = (prompt[this.#part] as number) - this.#partComputed
        const chunk = Math.min(left, budget)
        attention += chunk * (this.#partComputed + chunk / 2)
        prefill += chunk
        budget -= chunk
        chunks++
        if (chunk === left) {
          completed.push(this.#part)
          this.#part = -1
        } else this.#partComputed += chunk
      }
      while (next <= this.t && budget > 0 && this.#decoding + chunks < profile.maxSeqs) {
        const job = jobs[this.taken] as number
        const past = this.#admit(course, job)
        if (past < 0) break
        this.taken++
        const left = (prompt[job] as number) - past
        const chunk = Math.min(left, budget)
        attention += chunk * (past + chunk / 2)
        prefill += chunk
        budget -= chunk
        chunks++
        if (chunk === left) completed.push(job)
        else {
          this.#part = job
          this.#partComputed = past + chunk
        }
        next = this.taken < count ? (ready[this.taken] as number) : Number.POSITIVE_INFINITY
      }
      const decoding = this.#decoding
      const first =
        (roofline[prefill + decoding] as number) +
        cMsPerSeq * (chunks + decoding) +
        (aMsPerMtok2 * attention) / 1e6 +
        (dMsPerKkv * this.#read) / 1000
      if (chunks > 0) {
        this.#pass(1, first, decoding)
        this.#endDue(course, verdicts)
        for (const job of completed) this.#begin(course, job, verdicts)
        completed.length = 0
        continue
      }
      // Nothing but decodes: iterations up to the next end, or the one under way when the next order is seen.
      const slope = (dMsPerKkv * decoding) / 1000
      let many = (this.#ends[0] as number) - this.#iteration
      if (next > this.t && next !== Number.POSITIVE_INFINITY) {
        many = Math.min(many, iterationsTo(next - this.t, first, slope))
      }
      this.#pass(many, many * first + (slope * many * (many - 1)) / 2, decoding)
      this.#endDue(course, verdicts)
    }
  }

  #pass(iterations: number, ms: Ms, decoding: number): void {
    this.t += ms
    this.busy += ms
    this.#iteration += iterations
    this.#read += iterations * decoding
    this.#held += iterations * decoding
    this.#given += iterations * decoding
  }

  /** Tokens of it that the cache has, or -1 where its prompt does not fit into memory now. */
  #admit(course: Course, job: number): number {
    const prompt = course.prompt[job] as number
    const total = inBlocks(prompt)
    const free = course.problem.profile.kvTokens - this.#held
    const group = course.group[job] as number
    if (group < 0) {
      if (total > free) return -1
      this.#held += total
      this.#given += total
      return 0
    }
    const at = this.#kept.findIndex(kept => kept.group === group)
    const known = this.#kept[at]
    const hit = known === undefined ? 0 : this.#hit(course, job, known, prompt)
    const others = known?.holders ?? 0
    const more = others > 0 ? total - hit : total
    if (more > free) return -1
    this.#held += more
    this.#given += total - hit
    const kept = this.#kept.filter(each => each !== known)
    if (known !== undefined && others === 0 && hit > 0) {
      // What was freed after it now has so much less before it.
      for (const [place, each] of kept.entries()) {
        if (each.holders === 0 && each.dueAt > known.dueAt) kept[place] = { ...each, dueAt: each.dueAt - hit }
      }
    }
    const blocks = Math.min(
      course.problem.jobs[job]?.blockHashes.length ?? 0,
      Math.floor(prompt / BLOCK_TOKENS),
    )
    kept.push({ group, job, tokens: blocks * BLOCK_TOKENS, holders: others + 1, dueAt: 0 })
    this.#kept = kept
    return hit
  }

  #hit(course: Course, job: number, known: Kept, prompt: number): number {
    const lost = known.holders > 0 ? 0 : inBlocks(Math.max(0, this.#given - known.dueAt))
    const whole = Math.floor((prompt - 1) / BLOCK_TOKENS) * BLOCK_TOKENS
    return Math.max(0, Math.min(known.tokens - lost, course.common(job, known.job), whole))
  }

  /** Its first token came. */
  #begin(course: Course, job: number, verdicts: Uint8Array | undefined): void {
    const steps = (course.output[job] as number) - 1
    if (steps === 0) {
      this.#end(course, job, this.t, verdicts)
      return
    }
    this.#read += (course.prompt[job] as number) + 1
    this.#push(this.#iteration + steps, job, this.t)
  }

  #endDue(course: Course, verdicts: Uint8Array | undefined): void {
    while (this.#decoding > 0 && (this.#ends[0] as number) <= this.#iteration) {
      const job = this.#ids[0] as number
      const first = this.#firsts[0] as number
      this.#pop()
      this.#read -= (course.prompt[job] as number) + (course.output[job] as number)
      this.#end(course, job, first, verdicts)
    }
  }

  #end(course: Course, job: number, first: Ms, verdicts: Uint8Array | undefined): void {
    const good =
      first <= (course.firstBy[job] as number) &&
      this.t - first <= (course.span[job] as number) &&
      this.t <= (course.lastBy[job] as number)
    if (good) this.good++
    if (verdicts !== undefined) verdicts[job] = good ? 1 : 0
    const held = inBlocks(course.prompt[job] as number) + (course.output[job] as number) - 1
    const group = course.group[job] as number
    if (group < 0) {
      this.#held -= held
      return
    }
    const known = this.#kept.find(kept => kept.group === group) as Kept
    const holders = known.holders - 1
    const own = held - known.tokens
    const freed = holders > 0 ? own : held
    const dueAt = this.#given + course.problem.profile.kvTokens - this.#held + own
    this.#held -= freed
    this.#kept = this.#kept.map(each => (each === known ? { ...known, holders, dueAt } : each))
  }

  #push(end: number, id: number, first: Ms): void {
    let at = this.#decoding++
    while (at > 0) {
      const up = (at - 1) >> 1
      if ((this.#ends[up] as number) <= end) break
      this.#move(up, at)
      at = up
    }
    this.#set(at, end, id, first)
  }

  #pop(): void {
    const last = --this.#decoding
    const end = this.#ends[last] as number
    const id = this.#ids[last] as number
    const first = this.#firsts[last] as number
    let at = 0
    for (;;) {
      let down = 2 * at + 1
      if (down >= last) break
      if (down + 1 < last && (this.#ends[down + 1] as number) < (this.#ends[down] as number)) down++
      if ((this.#ends[down] as number) >= end) break
      this.#move(down, at)
      at = down
    }
    this.#set(at, end, id, first)
  }

  #move(from: number, to: number): void {
    this.#set(to, this.#ends[from] as number, this.#ids[from] as number, this.#firsts[from] as number)
  }

  #set(at: number, end: number, id: number, first: Ms): void {
    this.#ends[at] = end
    this.#ids[at] = id
    this.#firsts[at] = first
  }
}

const inBlocks = (tokens: number): number => Math.ceil(tokens / BLOCK_TOKENS) * BLOCK_TOKENS

/** How many iterations, the first of `first` ms and each `slope` longer than the last, it takes to reach `span`. */
function iterationsTo(span: Ms, first: Ms, slope: Ms): number {
  const linear = first - slope / 2
  const root = slope < 1e-12 ? span / first : (Math.sqrt(linear * linear + 2 * slope * span) - linear) / slope
  return Math.max(1, Math.ceil(root - 1e-9))
}
