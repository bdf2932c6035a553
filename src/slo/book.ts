/** The book of verdicts: takes in what became of each request, and gives readings of it. */
import type { PoolId, Ticket } from '../request.js'
import type { Clock, Ms } from '../time.js'
import { lateStart, slowPace } from './early.js'
import { Flows } from './flows.js'
import type { Progress } from './latency.js'
import { Promises, SLOS } from './promises.js'
import { type BookPool, type Lost, Reading } from './reading.js'
import type { SavedBook } from './saved-book.js'
import { Shapes } from './shapes.js'
import type { TrafficClass } from './slo.js'
import type { ClauseResult, Judgement } from './verdict.js'

/** The part of a policy's spec that the book needs. Ids are indexes, and keep their meaning. */
export interface BookSpec {
  readonly classes: readonly TrafficClass[]
  readonly pools: readonly BookPool[]
}

/** Calls back for each request that was dispatched and has not been judged. */
export type EachRunning = (
  see: (ticket: Ticket, pool: PoolId | undefined, progress: Progress | undefined) => void,
) => void

/** The decisions of a policy, as far as the book reads them. */
export type BookNews =
  | { readonly kind: 'clause'; readonly result: ClauseResult }
  | { readonly kind: 'shed' | 'refuse'; readonly ticket: Ticket; readonly judgement: Judgement }
  | { readonly kind: 'dispatch' | 'queue' | 'ejected' | 'restored' }

/** Share of the newest answer in what a mark of its pool holds. */
const NEWEST = 0.05

/**
 * Every arrival comes in once, by `judged` or by `news` (a shed, a refusal), and enters a ratio's numerator and
 * denominator together, when it is judged. Two things are known earlier. A bound that passed comes by `news` and is
 * final. That a stream which still runs has lost TPOT, or the two together, is looked up at each reading and written
 * nowhere: so nothing has to be taken back, and at its end the request counts as what it was.
 *
 * An event costs some additions; once a second all counters are copied. Nothing is allocated.
 */
export class SloBook {
  #spec: BookSpec = { classes: [], pools: [] }
  readonly #running: EachRunning
  /** The book's own clock is the policy's plus this: it begins at 0 and goes on over restarts. */
  #offset: Ms
  #at: Ms = 0
  #promises = new Promises(0)
  #flows = new Flows(0)
  #shapes = new Shapes(0)
  /** By pool id: output tokens of one mark. */
  readonly #tokensPerMark: number[] = []

  /**
   * @param now      on the policy's clock
   * @param running  what is under way, asked at each reading of a clause
   */
  constructor(spec: BookSpec, now: Ms, running: EachRunning = () => {}) {
    this.#running = running
    this.#offset = -now
    this.#follow(spec)
  }

  /** Follows a new config. A promise whose bounds changed is another one: it is counted from now. */
  reconfigure(spec: BookSpec, now: Ms): void {
    this.#advance(now)
    this.#follow(spec)
  }

  /**
   * A request that ended by `Policy.finish`.
   * @param model  that it was sent for
   */
  judged(judgement: Judgement, model: string, now: Ms): void {
    const { cls, offered } = judgement
    this.#advance(now)
    this.#promises.judged(judgement)
    if (cls === undefined) return
    this.#shapes.judged(judgement, cls, model)
    if (offered) this.#flows.judged(judgement, cls)
    this.#learn(judgement)
  }

  /** Each decision of the policy, once. `shed` and `refuse` end their request here. */
  news(decision: BookNews, now: Ms): void {
    if (decision.kind === 'clause') {
      this.#advance(now)
      this.#promises.decided(decision.result)
    } else if (decision.kind === 'shed' || decision.kind === 'refuse') {
      this.judged(decision.judgement, decision.ticket.model, now)
    }
  }

  /** All figures as they are at `now`; to be read before the book is told anything else. */
  reading(now: Ms): Reading {
    this.#advance(now)
    return new Reading(this.#spec, this.#promises, this.#flows, this.#shapes, () => this.#lost(now))
  }

  /**
   * What a restart needs, a row at a time: each takes well below a millisecond and is as the book is when it is asked
   * for, so others may have their turn between two.
   */
  *save(clock: Clock): Generator<SavedBook[number]> {
    this.#advance(clock.now())
    for (const part of [this.#promises, this.#flows, this.#shapes]) {
      for (const row of part.save()) {
        yield row
        this.#advance(clock.now())
      }
    }
  }

  /**
   * Goes on from what was saved; to be called before anything is counted. What the config does not have any more is
   * dropped, what it has anew begins now.
   * @param gapMs  from the last row of `save` until now, by the wall clock
   * @returns undefined; or why it cannot, and then the book is as before
   */
  restore(saved: SavedBook, gapMs: Ms, now: Ms): string | undefined {
    const { classes, pools } = this.#spec
    const at = saved.reduce((latest, row) => Math.max(latest, row.at), 0)
    const begin = at + Math.max(0, gapMs)
    const [promises, flows, shapes] = [new Promises(at), new Flows(at), new Shapes(at)]
    promises.follow(classes)
    flows.follow(classes, pools)
    shapes.follow(classes)
    const ofPromises = saved.filter(row => row.kind === 'promise')
    const ofFlows = saved.filter(row => row.kind === 'flow')
    const ofShapes = saved.filter(row => row.kind === 'shape')
    const fits =
      promises.load(ofPromises, begin) && flows.load(ofFlows, begin) && shapes.load(ofShapes, begin)
    if (!fits) return 'its counts do not fit the windows of this version'
    this.#promises = promises
    this.#flows = flows
    this.#shapes = shapes
    this.#offset = begin - now
    this.#at = at
    this.#advance(now)
    return undefined
  }

  #follow(spec: BookSpec): void {
    this.#spec = spec
    this.#promises.follow(spec.classes)
    this.#flows.follow(spec.classes, spec.pools)
    this.#shapes.follow(spec.classes)
  }

  #advance(now: Ms): void {
    this.#at = Math.max(this.#at, now + this.#offset)
    this.#promises.advance(this.#at)
    this.#flows.advance(this.#at)
    this.#shapes.advance(this.#at)
  }

  #learn({ pool, outputTokens, marks, estimated }: Judgement): void {
    if (pool === undefined || estimated || outputTokens === undefined || marks === undefined || marks === 0)
      return
    const mean = this.#tokensPerMark[pool] ?? 1
    this.#tokensPerMark[pool] = mean + NEWEST * (outputTokens / marks - mean)
  }

  /** The streams that run and have lost a clause already. */
  #lost(now: Ms): Lost {
    const lost: Record<'tpot' | 'joint', Record<(typeof SLOS)[number], number[]>> = {
      tpot: { target: [], guard: [] },
      joint: { target: [], guard: [] },
    }
    this.#running(({ cls, facts }, pool, progress) => {
      const traffic = cls === undefined ? undefined : this.#spec.classes[cls]
      if (traffic === undefined || !facts.stream || progress?.streamed === false) return
      const perMark = (pool === undefined ? undefined : this.#tokensPerMark[pool]) ?? 1
      for (const slo of SLOS) {
        const { clauses } = traffic[slo]
        if (clauses.kind !== 'stream') return
        const slow =
          progress !== undefined && slowPace(progress, perMark, facts.maxTokens, clauses.tpotMs, now)
        if (slow) increase(lost.tpot[slo], traffic.id)
        if (slow || lateStart(progress, facts.bodyAt, clauses.ttftMs, now))
          increase(lost.joint[slo], traffic.id)
      }
    })
    return lost
  }
}

function increase(counts: number[], id: number): void {
  counts[id] = (counts[id] ?? 0) + 1
}
