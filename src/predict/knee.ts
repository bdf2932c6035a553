/** Where the promise breaks on one replica: a closed-loop sweep on the fitted model instead of on the GPU. */
import { type Clauses, type Slo, TPOT_JITTER_MS, TPOT_MIN_TOKENS, type TrafficClass } from '../slo/slo.js'
import { type Ms, type Rng, seededRng } from '../time.js'
import type { RecentRequests } from './recent.js'
import type { StepCost } from './step.js'
import { type VirtualEnd, VirtualReplica } from './virtual.js'

/** What gave way first. */
export type Binding = 'prefill' | 'decode' | 'deadline'

export interface Knee {
  /** Last whole number of requests in flight at which every class kept its promise; 0 where not even one does. */
  readonly concurrency: number
  /** Requests a second there. */
  readonly requestsPerSec: number
  /** The same where the promise breaks, between that number and the next. */
  readonly edgeRequestsPerSec: number
  /** What broke at the next number; undefined where nothing did up to the highest tried. */
  readonly binding: Binding | undefined
}

export interface KneeOptions {
  readonly cost: StepCost
  readonly budget: number
  readonly kvTokens: number | undefined
  readonly recent: RecentRequests
  /** By class id. */
  readonly classes: readonly TrafficClass[]
  /** Where to begin to look; the last knee. */
  readonly near: number
  readonly seed: number
}

/** Requests that one concurrency is tried with, at least; and the share before them that only fills the replica. */
const TRIAL = 4096
const WARMUP_SHARE = 0.1
/** Requests in flight on one replica, at most (vLLM's `max_num_seqs` on large GPUs). */
const CONCURRENCY_MAX = 1024

interface Trial {
  readonly concurrency: number
  readonly requestsPerSec: number
  /** Smallest distance of a class's attainment from its promise, 0 to 1; below 0 it is broken. */
  readonly margin: number
  readonly binding: Binding
}

/**
 * Doubles or halves the concurrency until the promise breaks or holds, then halves the interval. To be called in
 * pieces, so that it never holds up an event loop: about 1 ms for 500 requests.
 */
export class KneeSearch {
  readonly #options: KneeOptions
  readonly #trials: number
  #replica: VirtualReplica
  #concurrency: number
  #tally: Tally
  #pass: Trial | undefined
  #fail: Trial | undefined
  #knee: Knee | undefined

  constructor(options: KneeOptions) {
    if (options.recent.count === 0)
      throw new RangeError('no request was seen: there is no mix to find a knee for')
    this.#options = options
    this.#trials = Math.max(TRIAL, options.recent.count)
    this.#concurrency = Math.min(CONCURRENCY_MAX, Math.max(1, Math.round(options.near)))
    this.#tally = new Tally(options.classes)
    this.#replica = this.#start()
  }

  /** undefined until found. */
  get knee(): Knee | undefined {
    return this.#knee
  }

  /** Goes on for about so many requests. @returns true once the knee is found */
  advance(requests: number): boolean {
    const sink = (end: VirtualEnd): void => this.#tally.add(end, this.#replica.now)
    const until = this.#tally.ends + requests
    while (this.#knee === undefined && this.#tally.ends < until) {
      this.#replica.advance(sink)
      if (this.#tally.counted >= this.#trials) {
        this.#judge()
        return this.#knee !== undefined
      }
    }
    return this.#knee !== undefined
  }

  /** Every trial meets the same requests in the same order: two concurrencies differ by themselves only. */
  #start(): VirtualReplica {
    const { cost, budget, kvTokens, recent, seed } = this.#options
    this.#tally = new Tally(this.#options.classes, Math.round(this.#trials * WARMUP_SHARE))
    const order = shuffled(recent.count, seededRng(seed))
    let at = 0
    const next = () => recent.at(order[at++ % order.length] as number)
    return new VirtualReplica({ cost, budget, kvTokens, concurrency: this.#concurrency, next })
  }

  #judge(): void {
    const trial = this.#tally.trial(this.#concurrency)
    if (trial.margin >= 0) this.#pass = trial
    else this.#fail = trial
    const next = this.#nextConcurrency()
    if (next === undefined) this.#knee = kneeOf(this.#pass, this.#fail)
    else {
      this.#concurrency = next
      this.#replica = this.#start()
    }
  }

  #nextConcurrency(): number | undefined {
    const pass = this.#pass?.concurrency ?? 0
    if (this.#fail === undefined)
      return pass >= CONCURRENCY_MAX ? undefined : Math.min(pass * 2, CONCURRENCY_MAX)
    const fail = this.#fail.concurrency
    if (fail - pass <= 1) return undefined
    return Math.floor((pass + fail) / 2)
  }
}

function kneeOf(pass: Trial | undefined, fail: Trial | undefined): Knee {
  if (pass === undefined || fail === undefined) {
    const rate = pass?.requestsPerSec ?? 0
    const concurrency = pass?.concurrency ?? 0
    return { concurrency, requestsPerSec: rate, edgeRequestsPerSec: rate, binding: fail?.binding }
  }
  const share = pass.margin / (pass.margin - fail.margin)
  return {
    concurrency: pass.concurrency,
    requestsPerSec: pass.requestsPerSec,
    edgeRequestsPerSec: pass.requestsPerSec + share * (fail.requestsPerSec - pass.requestsPerSec),
    binding: fail.binding,
  }
}

function shuffled(count: number, rng: Rng): Uint16Array {
  const order = Uint16Array.from({ length: count }, (_, i) => i)
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(rng.next() * (i + 1))
    const swapped = order[i] as number
    order[i] = order[j] as number
    order[j] = swapped
  }
  return order
}

/** Counts of one class: all, those that met each clause, and those that met both. */
interface Counts {
  all: number
  ttft: number
  tpot: number
  joint: number
}

/** What came of one trial. */
class Tally {
  ends = 0
  readonly #warmup: number
  readonly #classes: readonly TrafficClass[]
  readonly #counts: Counts[]
  #from: Ms = 0
  #to: Ms = 0

  constructor(classes: readonly TrafficClass[], warmup = 0) {
    this.#warmup = warmup
    this.#classes = classes
    this.#counts = classes.map(() => ({ all: 0, ttft: 0, tpot: 0, joint: 0 }))
  }

  /** Ends after the warm-up. */
  get counted(): number {
    return this.ends - this.#warmup
  }

  add(end: VirtualEnd, now: Ms): void {
    this.ends++
    if (this.ends === this.#warmup) this.#from = now
    if (this.ends <= this.#warmup) return
    this.#to = now
    const counts = this.#counts[end.asked.cls]
    const clauses = this.#classes[end.asked.cls]?.target.clauses
    if (counts === undefined || clauses === undefined) return
    counts.all++
    const [ttft, tpot] = met(clauses, end)
    if (ttft) counts.ttft++
    if (tpot) counts.tpot++
    if (ttft && tpot) counts.joint++
  }

  trial(concurrency: number): Trial {
    let margin = 1
    let binding: Binding = 'decode'
    this.#counts.forEach((counts, cls) => {
      const slo = this.#classes[cls]?.target
      if (slo === undefined || counts.all === 0) return
      const own = marginOf(slo, counts)
      if (own >= margin) return
      margin = own
      if (slo.clauses.kind === 'deadline') binding = 'deadline'
      else binding = counts.ttft < counts.tpot ? 'prefill' : 'decode'
    })
    const requestsPerSec = (this.counted / (this.#to - this.#from)) * 1000
    return { concurrency, requestsPerSec, margin, binding }
  }
}

/** Whether each of its two clauses was met; a deadline counts as both. */
function met(clauses: Clauses, end: VirtualEnd): readonly [boolean, boolean] {
  if (clauses.kind === 'deadline') {
    const kept = end.ttftMs + end.decodeMs <= clauses.deadlineMs
    return [kept, kept]
  }
  const tokens = end.asked.outputTokens
  const allowance = tokens < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0
  return [end.ttftMs <= clauses.ttftMs, end.decodeMs <= (tokens - 1) * clauses.tpotMs + allowance]
}

function marginOf(slo: Slo, counts: Counts): number {
  const kept = slo.mode === 'joint' ? counts.joint : Math.min(counts.ttft, counts.tpot)
  return kept / counts.all - slo.percentile / 100
}
