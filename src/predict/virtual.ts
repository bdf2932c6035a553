/** A replica that exists only in the model: the fitted step cost, and requests that keep coming as others end. */
import TinyQueue from 'tinyqueue'
import type { Ms } from '../time.js'
import { promptPairs } from './flight.js'
import type { Asked } from './recent.js'
import { type StepCost, stepMs } from './step.js'

export interface VirtualEnd {
  readonly asked: Asked
  readonly ttftMs: Ms
  /** From first to last token. */
  readonly decodeMs: Ms
}

interface Prompt {
  readonly asked: Asked
  readonly readyAt: Ms
  /** Tokens still to be computed, and those that attention sees before them. */
  left: number
  past: number
}

interface Stream {
  readonly asked: Asked
  readonly ttftMs: Ms
  readonly firstAt: Ms
  /** Number of the step that brings its last token. */
  readonly lastStep: number
}

export interface VirtualOptions {
  readonly cost: StepCost
  /** Prompt tokens in one step, at most. */
  readonly budget: number
  /** Tokens its memory holds; undefined: more than ever asked for. */
  readonly kvTokens: number | undefined
  /** Requests under way at all times. */
  readonly concurrency: number
  readonly next: () => Asked
}

/**
 * Closed loop on one replica: prompts are computed in order of their coming, as many of them in one step as its budget
 * holds, while all streams get a token in each step. Steps in which nothing begins or ends are taken in one go.
 */
export class VirtualReplica {
  now: Ms = 0
  readonly #options: VirtualOptions
  /** In order of `readyAt`, for each is as long on its way as the others. */
  readonly #line: Prompt[] = []
  #lineHead = 0
  readonly #streams = new TinyQueue<Stream>([], (a, b) => a.lastStep - b.lastStep)
  #context = 0
  #step = 0

  constructor(options: VirtualOptions) {
    this.#options = options
    for (let i = 0; i < options.concurrency; i++) this.#send()
  }

  /** Goes on until something ends; what ended is given to `sink`. */
  advance(sink: (end: VirtualEnd) => void): void {
    for (let ended = false; !ended; ) {
      const head = this.#line[this.#lineHead]
      if (head !== undefined && head.readyAt <= this.now && this.#fits(head)) ended = this.#mixedStep(sink)
      else if (this.#streams.length > 0) this.#decodeSteps(head)
      else this.now = Math.max(this.now, head?.readyAt ?? this.now)
      ended = this.#finish(sink) || ended
    }
  }

  #send(): void {
    const asked = this.#options.next()
    const left = Math.max(1, asked.promptTokens - asked.cachedTokens)
    const readyAt = this.now + this.#options.cost.netMs
    this.#line.push({ asked, readyAt, left, past: asked.promptTokens - left })
  }

  /** Always true for the only one: what does not fit anywhere must not stop the line. @param before  in its step */
  #fits(prompt: Prompt, before = 0): boolean {
    const { kvTokens } = this.#options
    const held = this.#context + before
    return kvTokens === undefined || held === 0 || held + prompt.asked.promptTokens <= kvTokens
  }

  /** One step with as much of the waiting prompts as its budget holds. @returns whether an answer of one token ended */
  #mixedStep(sink: (end: VirtualEnd) => void): boolean {
    const { cost, budget } = this.#options
    const streams = this.#streams.length
    const room = Math.max(1, budget - streams)
    let tokens = 0
    let pairs = 0
    let at = this.#lineHead
    let whole = 0
    for (let one = this.#line[at]; one !== undefined && tokens < room; one = this.#line[at]) {
      if (one.readyAt > this.now) break
      if (at > this.#lineHead && !this.#fits(one, whole)) break
      const chunk = Math.min(one.left, room - tokens)
      pairs += promptPairs(one.past + chunk, chunk)
      one.past += chunk
      one.left -= chunk
      tokens += chunk
      if (one.left > 0) break
      whole += one.asked.promptTokens
      at++
    }
    this.now += stepMs(cost, streams, this.#context, tokens) + cost.perPairMs * pairs
    this.#step++
    this.#context += streams
    let ended = false
    for (; this.#lineHead < at; this.#lineHead++)
      ended = this.#begin(this.#line[this.#lineHead] as Prompt, sink) || ended
    if (this.#lineHead > 1024) {
      this.#line.splice(0, this.#lineHead)
      this.#lineHead = 0
    }
    return ended
  }

  /** @returns whether its first token was its last */
  #begin(prompt: Prompt, sink: (end: VirtualEnd) => void): boolean {
    const { asked } = prompt
    const ttftMs = this.now - prompt.readyAt + this.#options.cost.netMs
    if (asked.outputTokens < 2) {
      sink({ asked, ttftMs, decodeMs: 0 })
      this.#send()
      return true
    }
    this.#streams.push({ asked, ttftMs, firstAt: this.now, lastStep: this.#step + asked.outputTokens - 1 })
    this.#context += asked.promptTokens + 1
    return false
  }

  /** Steps that only decode, up to the next end, or until the next prompt is ready. */
  #decodeSteps(head: Prompt | undefined): void {
    const { cost } = this.#options
    const streams = this.#streams.length
    const first = stepMs(cost, streams, this.#context, 0)
    let steps = (this.#streams.peek() as Stream).lastStep - this.#step
    if (head !== undefined && head.readyAt > this.now) {
      steps = Math.min(steps, Math.max(1, Math.ceil((head.readyAt - this.now) / first)))
    }
    // Each step reads the contexts that the one before it grew.
    this.now += steps * first + (cost.perContextMs * streams * steps * (steps - 1)) / 2
    this.#step += steps
    this.#context += streams * steps
  }

  /** Ends the streams whose last token has come; each makes room for a new request. */
  #finish(sink: (end: VirtualEnd) => void): boolean {
    let any = false
    for (let one = this.#streams.peek(); one !== undefined && one.lastStep <= this.#step; ) {
      this.#streams.pop()
      this.#context -= one.asked.promptTokens + one.asked.outputTokens
      sink({ asked: one.asked, ttftMs: one.ttftMs, decodeMs: this.now - one.firstAt })
      this.#send()
      any = true
      one = this.#streams.peek()
    }
    return any
  }
}
