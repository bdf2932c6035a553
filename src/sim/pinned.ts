/** An engine pinned to the real clock: what virtual time says is done when real time gets there. */
import type { Clock } from '../time.js'
import type { Engine, Step } from './engine.js'
import type { EngineRequest, Sequence } from './sequence.js'

/**
 * Timers fire late, but an iteration starts when the one before was planned to end: events come late by what the
 * timer was late (about 1 ms) and the engine loses no throughput by it.
 */
export class PinnedEngine<R extends EngineRequest> {
  readonly engine: Engine<R>
  readonly #clock: Clock
  readonly #sink: (step: Step<R>) => void
  #timer: NodeJS.Timeout | undefined
  #closed = false
  readonly #run = (): void => {
    this.engine.runTo(this.#clock.now(), this.#sink)
    this.#plan()
  }

  constructor(engine: Engine<R>, clock: Clock, sink: (step: Step<R>) => void) {
    this.engine = engine
    this.#clock = clock
    this.#sink = sink
  }

  /** @throws RangeError as `Engine.submit` */
  submit(request: R): Sequence<R> {
    const sequence = this.engine.submit(request, this.#clock.now())
    if (this.#timer === undefined) this.#run()
    return sequence
  }

  abort(sequence: Sequence<R>): void {
    this.engine.abort(sequence, this.#clock.now())
  }

  /** Nothing runs any more, and no timer keeps the process. */
  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
  }

  #plan(): void {
    const at = this.engine.nextAt
    if (this.#closed || at === Number.POSITIVE_INFINITY) {
      this.#timer = undefined
      return
    }
    this.#timer = setTimeout(this.#run, Math.max(0, Math.ceil(at - this.#clock.now())))
  }
}
