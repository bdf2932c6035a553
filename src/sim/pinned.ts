/** An engine pinned to the real clock: what virtual time says is done when real time gets there. */
import type { Clock, Ms } from '../time.js'
import type { Engine, Step } from './engine.js'
import type { EngineRequest, Sequence } from './sequence.js'

/** Timers fire up to 1 ms early or late of what was asked for; from here on an exact engine waits without one. */
const TURNS_MS: Ms = 2

/**
 * Timers fire late, but an iteration starts when the one before was planned to end: events come late by what the
 * timer was late (about 1 ms) and the engine loses no throughput by it.
 */
export class PinnedEngine<R extends EngineRequest> {
  readonly engine: Engine<R>
  readonly #clock: Clock
  readonly #sink: (step: Step<R>) => void
  readonly #exact: boolean
  #cancel: (() => void) | undefined
  #closed = false
  readonly #run = (): void => {
    this.engine.runTo(this.#clock.now(), this.#sink)
    this.#plan()
  }

  /**
   * @param exact  turn the event loop over while a step's end is near: events come within 0.1 ms, and that costs up to
   *               a quarter of a core
   */
  constructor(engine: Engine<R>, clock: Clock, sink: (step: Step<R>) => void, exact = false) {
    this.engine = engine
    this.#clock = clock
    this.#sink = sink
    this.#exact = exact
  }

  /** @throws RangeError as `Engine.submit` */
  submit(request: R): Sequence<R> {
    const sequence = this.engine.submit(request, this.#clock.now())
    if (this.#cancel === undefined) this.#run()
    return sequence
  }

  abort(sequence: Sequence<R>): void {
    this.engine.abort(sequence, this.#clock.now())
  }

  /** Nothing runs any more, and no timer keeps the process. */
  close(): void {
    this.#closed = true
    this.#cancel?.()
  }

  #plan(): void {
    const at = this.engine.nextAt
    if (this.#closed || at === Number.POSITIVE_INFINITY) {
      this.#cancel = undefined
      return
    }
    const ms = at - this.#clock.now()
    if (this.#exact && ms < TURNS_MS) {
      const turn = setImmediate(this.#run)
      this.#cancel = () => clearImmediate(turn)
    } else {
      const timer = setTimeout(this.#run, this.#exact ? ms - TURNS_MS / 2 : Math.max(0, Math.ceil(ms)))
      this.#cancel = () => clearTimeout(timer)
    }
  }
}
