/** A continuous-batching engine in virtual time: vLLM V1's scheduler, KV blocks, preemption and prefix cache. */
import type { Ms, Rng } from '../time.js'
import { normal } from './draw.js'
import { BLOCK_TOKENS, KvCache } from './kv-cache.js'
import type { EngineProfile } from './profiles.js'
import { type EngineRequest, Line, Sequence } from './sequence.js'
import { stepMs } from './step-cost.js'

export interface EngineOptions {
  readonly profile: EngineProfile
  /** Lognormal jitter of the iteration time, mean 1; measured on real engines: sigma 0.01 to 0.03. */
  readonly noise?: { readonly sigma: number; readonly rng: Rng }
  /**
   * Join iterations in which no sequence begins, ends or is cut off into one step: far cheaper, same first tokens
   * and ends. For callers that do not look at single tokens. Gauges then lag by up to one step.
   */
  readonly coarse?: boolean
  /** A coarse step takes no longer than this, but for one iteration; default: no limit. */
  readonly mostJoinedMs?: Ms
}

/** What one step brought. The object and its arrays are reused: read them before the engine goes on. */
export interface Step<R extends EngineRequest> {
  startedAt: Ms
  /** When its tokens came out. */
  endedAt: Ms
  /** Iterations joined in it. */
  iterations: number
  /** Tokens computed: prefill of all chunks, and decode in one iteration. */
  prefillTokens: number
  decodeTokens: number
  /** All that got tokens (`fresh` of them), in batch order. */
  readonly emitted: Sequence<R>[]
  /** Those of them that got their first. */
  readonly begun: Sequence<R>[]
  /** Those of them that got their last. */
  readonly ended: Sequence<R>[]
}

/** Counts since the engine began. */
export interface EngineTotals {
  iterations: number
  /** Time spent in iterations. */
  busyMs: number
  preemptions: number
  /** Prompt tokens of the requests that got a first token. */
  promptTokens: number
  generationTokens: number
  /** Tokens looked up in the prefix cache, and found there, at first schedulings. */
  prefixQueries: number
  prefixHits: number
  /** Prefill tokens computed, those of preempted sequences again. */
  prefillComputed: number
}

/** Iterations that one coarse step joins at most. */
const MOST_JOINED = 512

const blocksFor = (tokens: number): number => Math.ceil(tokens / BLOCK_TOKENS)

/**
 * Drive it with `submit` and `abort` at rising times, and `runTo(now, sink)` at `nextAt` or whenever. An iteration
 * starts when the last one ended, however late `runTo` is called, and sees the requests that were ready by then.
 */
export class Engine<R extends EngineRequest = EngineRequest> {
  readonly profile: EngineProfile
  readonly totals: EngineTotals = {
    iterations: 0,
    busyMs: 0,
    preemptions: 0,
    promptTokens: 0,
    generationTokens: 0,
    prefixQueries: 0,
    prefixHits: 0,
    prefillComputed: 0,
  }
  /** Iterations that begin from now on take so many times as long as their cost says. */
  slowness = 1
  readonly #kv: KvCache
  readonly #noise: EngineOptions['noise']
  readonly #coarse: boolean
  readonly #mostJoinedMs: Ms
  /** Submitted, not yet seen by the scheduler. */
  readonly #arriving = new Line<Sequence<R>>()
  readonly #waiting = new Line<Sequence<R>>()
  /** In order of scheduling. */
  readonly #running: Sequence<R>[] = []
  readonly #step: Step<R> = {
    startedAt: 0,
    endedAt: 0,
    iterations: 0,
    prefillTokens: 0,
    decodeTokens: 0,
    emitted: [],
    begun: [],
    ended: [],
  }
  /** End of each iteration of the step under way. */
  readonly #ends: Float64Array
  #inStep = false

  constructor(options: EngineOptions) {
    this.profile = options.profile
    this.#noise = options.noise
    this.#coarse = options.coarse ?? false
    this.#mostJoinedMs = options.mostJoinedMs ?? Number.POSITIVE_INFINITY
    this.#kv = new KvCache(options.profile.kvTokens)
    this.#ends = new Float64Array(this.#coarse ? MOST_JOINED : 1)
  }

  /** Sequences in the batch. */
  get running(): number {
    return this.#running.length
  }

  /** Sequences that the scheduler has seen and not admitted, preempted ones included. */
  get waiting(): number {
    return this.#waiting.length
  }

  /** Share of the KV blocks in use, 0 to 1. */
  get kvUsage(): number {
    return this.#kv.usage
  }

  get kvBlocks(): number {
    return this.#kv.blocks
  }

  /** When `runTo` has something to do; Infinity while there is no request. */
  get nextAt(): Ms {
    if (this.#inStep) return this.#step.endedAt
    return this.#arriving.first()?.readyAt ?? Number.POSITIVE_INFINITY
  }

  /**
   * Takes a request in.
   * @throws RangeError where the request has no token or more than the model or the KV cache can hold
   */
  submit(request: R, now: Ms): Sequence<R> {
    const { promptTokens, outputTokens } = request
    const most = Math.min(this.profile.maxModelLen, this.#kv.blocks * BLOCK_TOKENS)
    if (!(promptTokens >= 1 && outputTokens >= 1 && promptTokens + outputTokens <= most)) {
      throw new RangeError(
        `${promptTokens} prompt and ${outputTokens} output tokens; each is at least 1, together at most ${most}`,
      )
    }
    const sequence = new Sequence(request, now, now + this.profile.overheadMs)
    this.#arriving.push(sequence)
    this.#cutTo(sequence.readyAt)
    return sequence
  }

  /** Drops a request wherever it is and frees its memory; a request that has ended stays as it is. */
  abort(sequence: Sequence<R>, now: Ms): void {
    if (sequence.state === 'ended' || sequence.state === 'aborted') return
    if (sequence.state === 'running') {
      this.#cutTo(now)
      if (this.#inStep) {
        const { planned } = sequence
        this.#emit(sequence, this.#step.iterations - 1)
        // The iteration under way has taken its blocks, and with them what was findable there.
        const more = blocksFor(sequence.computed + planned) - sequence.blocks
        if (more > 0) this.#kv.grow(sequence, more)
      }
      this.#running.splice(this.#running.indexOf(sequence), 1)
      this.#kv.release(sequence)
    } else {
      this.#arriving.remove(sequence)
      this.#waiting.remove(sequence)
    }
    sequence.state = 'aborted'
  }

  /** Forgets all prefixes; sequences under way keep what they hold. */
  flushCache(): void {
    this.#kv.flush()
  }

  /** Runs all steps that end by `now`, each handed to `sink`, which may submit and abort at the step's end. */
  runTo(now: Ms, sink: (step: Step<R>) => void): void {
    for (;;) {
      let at = this.#step.endedAt
      if (this.#inStep) {
        if (at > now) return
        this.#finish()
        sink(this.#step)
      } else {
        const ready = this.#arriving.first()?.readyAt
        if (ready === undefined || ready > now) return
        at = Math.max(at, ready)
      }
      this.#start(at)
    }
  }

  #start(now: Ms): void {
    for (let next = this.#arriving.first(); next !== undefined && next.readyAt <= now; ) {
      this.#waiting.push(next)
      this.#arriving.shift()
      next = this.#arriving.first()
    }
    if (this.#running.length === 0 && this.#waiting.length === 0) return
    const step = this.#step
    step.startedAt = now
    step.prefillTokens = 0
    step.decodeTokens = 0
    let attention = 0
    let kvTokens = 0
    let sequences = 0
    let budget = this.profile.maxBatchedTokens
    let preempted = false

    const running = this.#running
    for (let at = 0; at < running.length && budget > 0; at++) {
      const sequence = running[at] as Sequence<R>
      const decodes = this.#decodes(sequence)
      const want = decodes
        ? Math.min(sequence.tokensPerStep, sequence.outputTokens - sequence.generated)
        : sequence.promptTokens + sequence.generated - sequence.computed
      const count = Math.min(want, budget)
      const more = blocksFor(sequence.computed + count) - sequence.blocks
      while (more > this.#kv.free && at < running.length) {
        this.#preempt()
        preempted = true
      }
      if (at >= running.length) break
      if (more > 0) this.#kv.grow(sequence, more)
      if (decodes) {
        step.decodeTokens += count
        kvTokens += sequence.computed + 1
      } else {
        step.prefillTokens += count
        attention += count * (sequence.computed + count / 2)
        this.#offer(sequence, sequence.computed + count)
      }
      sequence.planned = count
      budget -= count
      sequences++
    }

    while (!preempted && budget > 0 && running.length < this.profile.maxSeqs) {
      const sequence = this.#waiting.first()
      if (sequence === undefined || !this.#admit(sequence, budget, now)) break
      this.#waiting.shift()
      running.push(sequence)
      const count = sequence.planned
      step.prefillTokens += count
      attention += count * (sequence.computed + count / 2)
      budget -= count
      sequences++
    }

    this.#inStep = true
    const first =
      this.slowness *
      stepMs(this.profile.cost, step.prefillTokens + step.decodeTokens, sequences, attention, kvTokens)
    const most = this.#joinable()
    // Each joined iteration reads the KV that the one before it wrote.
    const slope = (this.slowness * this.profile.cost.dMsPerKkv * step.decodeTokens) / 1000
    // Those that begin before it still belong to it: no dice are rolled for iterations that an arrival cuts off.
    const last = Math.min(
      now + this.#mostJoinedMs,
      this.#arriving.first()?.readyAt ?? Number.POSITIVE_INFINITY,
    )
    let end = now
    let count = 0
    do {
      end += (first + slope * count) * this.#jitter()
      this.#ends[count++] = end
    } while (count < most && end < last)
    step.iterations = count
    step.endedAt = end
  }

  /** Whether its next token needs only the last one computed; else it (again) has prefill to do. */
  #decodes(sequence: Sequence<R>): boolean {
    return sequence.generated > 0 && sequence.computed === sequence.promptTokens + sequence.generated - 1
  }

  /** Takes the head of the waiting line into the batch if it fits, with what the prefix cache has of it. */
  #admit(sequence: Sequence<R>, budget: number, now: Ms): boolean {
    const kv = this.#kv
    const total = sequence.promptTokens + sequence.generated
    const hashes = sequence.blockHashes
    // Hits do not grow while nothing is published: no new look-up in vain.
    const known = sequence.publishedSeen === kv.published
    if (known && blocksFor(total) - sequence.hitsSeen > kv.free) return false
    // At least one token is always computed, and with it its block.
    const hits = kv.match(hashes, Math.min(hashes.length, Math.floor((total - 1) / BLOCK_TOKENS)))
    const past = hits * BLOCK_TOKENS
    const count = Math.min(total - past, budget)
    // The whole prompt has to fit, not only its next chunk (vLLM's scheduler_reserve_full_isl, on by default since
    // its pull request 37307), or long prompts would be admitted to be preempted half-way.
    if (blocksFor(total) - hits + kv.idle(hashes, hits) > kv.free) {
      sequence.hitsSeen = hits
      sequence.publishedSeen = kv.published
      return false
    }
    kv.share(sequence, hashes, hits)
    kv.grow(sequence, blocksFor(past + count) - hits)
    sequence.computed = past
    sequence.offered = hits
    sequence.planned = count
    sequence.state = 'running'
    if (sequence.scheduledAt === undefined) {
      sequence.scheduledAt = now
      sequence.cachedTokens = past
      this.totals.prefixQueries += total
      this.totals.prefixHits += past
    }
    this.#offer(sequence, past + count)
    return true
  }

  /** Makes the prompt's whole blocks up to `tokens` findable. Like vLLM at scheduling, so that one iteration can share. */
  #offer(sequence: Sequence<R>, tokens: number): void {
    const whole = Math.min(Math.floor(tokens / BLOCK_TOKENS), sequence.blockHashes.length)
    for (; sequence.offered < whole; sequence.offered++) {
      this.#kv.publish(sequence, sequence.blockHashes[sequence.offered] as number)
    }
  }

  /** Sends the last of the batch back to the head of the waiting line; it will compute all it had again. */
  #preempt(): void {
    const sequence = this.#running.pop() as Sequence<R>
    this.#kv.release(sequence)
    sequence.computed = 0
    sequence.planned = 0
    sequence.state = 'waiting'
    sequence.preemptions++
    this.totals.preemptions++
    this.#waiting.pushFirst(sequence)
  }

  /** How many iterations like the one just planned follow each other, whatever may come but arrivals and aborts. */
  #joinable(): number {
    if (!this.#coarse || this.#step.prefillTokens > 0 || this.#waiting.length > 0) return 1
    let most = MOST_JOINED
    for (const sequence of this.#running) {
      if (sequence.planned !== sequence.tokensPerStep) return 1
      const left = sequence.outputTokens - sequence.generated
      most = Math.min(most, Math.floor(left / sequence.planned))
    }
    let blocks = 0
    for (const sequence of this.#running) {
      blocks += blocksFor(sequence.computed + most * sequence.planned) - sequence.blocks
    }
    return blocks > this.#kv.free ? 1 : most
  }

  /** Shortens a joined step to the iteration that is under way at `time`. */
  #cutTo(time: Ms): void {
    const step = this.#step
    if (!this.#inStep || step.iterations === 1) return
    let iterations = 1
    while (iterations < step.iterations && (this.#ends[iterations - 1] as number) < time) iterations++
    step.iterations = iterations
    step.endedAt = this.#ends[iterations - 1] as number
  }

  #finish(): void {
    const step = this.#step
    this.#inStep = false
    step.emitted.length = 0
    step.begun.length = 0
    step.ended.length = 0
    const running = this.#running
    let kept = 0
    for (let at = 0; at < running.length; at++) {
      const sequence = running[at] as Sequence<R>
      if (this.#emit(sequence, step.iterations)) {
        step.emitted.push(sequence)
        if (sequence.firstTokenAt === undefined) {
          sequence.firstTokenAt = step.endedAt
          this.totals.promptTokens += sequence.promptTokens
          step.begun.push(sequence)
        }
        if (sequence.generated === sequence.outputTokens) {
          sequence.state = 'ended'
          this.#kv.release(sequence)
          step.ended.push(sequence)
          continue
        }
      }
      running[kept++] = sequence
    }
    running.length = kept
    this.totals.iterations += step.iterations
    this.totals.busyMs += step.endedAt - step.startedAt
    this.totals.prefillComputed += step.prefillTokens
  }

  /** Applies the plan of so many of the step's iterations; says whether the sequence got a token. */
  #emit(sequence: Sequence<R>, iterations: number): boolean {
    const count = sequence.planned * iterations
    sequence.planned = 0
    sequence.fresh = 0
    if (count === 0) return false
    if (this.#decodes(sequence)) {
      sequence.fresh = count
      sequence.computed += count
      const more = blocksFor(sequence.computed) - sequence.blocks
      if (more > 0) this.#kv.grow(sequence, more)
    } else {
      sequence.computed += count
      if (sequence.computed < sequence.promptTokens + sequence.generated) return false
      sequence.fresh = 1
    }
    sequence.generated += sequence.fresh
    sequence.lastTokenAt = this.#ends[iterations - 1]
    this.totals.generationTokens += sequence.fresh
    return true
  }

  #jitter(): number {
    if (this.#noise === undefined) return 1
    const { sigma, rng } = this.#noise
    return Math.exp(sigma * normal(rng) - (sigma * sigma) / 2)
  }
}
