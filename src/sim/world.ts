/** A virtual clock with an event heap, and engines that live in it. */
import TinyQueue from 'tinyqueue'
import type { Clock, Ms } from '../time.js'
import type { Engine, Step } from './engine.js'
import type { EngineRequest, Sequence } from './sequence.js'

interface WorldEvent {
  readonly at: Ms
  /** Order of scheduling, which decides between events of one time. */
  readonly order: number
  readonly run: () => void
}

export class World implements Clock {
  #now: Ms = 0
  #order = 0
  readonly #events = new TinyQueue<WorldEvent>([], (a, b) => a.at - b.at || a.order - b.order)

  now(): Ms {
    return this.#now
  }

  /** Runs `run` at `time`, after what was scheduled before for the same time; a time gone by means now. */
  at(time: Ms, run: () => void): void {
    this.#events.push({ at: Math.max(time, this.#now), order: this.#order++, run })
  }

  /** Runs events in order of time until none is left, the next lies after `until`, or `stopped` says so. */
  run(until: Ms = Number.POSITIVE_INFINITY, stopped: () => boolean = () => false): void {
    for (let next = this.#events.peek(); next !== undefined && next.at <= until && !stopped(); ) {
      this.#events.pop()
      this.#now = next.at
      next.run()
      next = this.#events.peek()
    }
    if (until !== Number.POSITIVE_INFINITY && !stopped()) this.#now = Math.max(this.#now, until)
  }
}

/** An engine in a world: its steps end as events there. */
export class EngineHost<R extends EngineRequest = EngineRequest> {
  readonly engine: Engine<R>
  readonly #world: World
  readonly #sink: (step: Step<R>) => void
  #wakesAt: Ms = Number.POSITIVE_INFINITY
  /** Inside `runTo`, which sees by itself what its sink submits. */
  #awake = false
  readonly #wake = (): void => {
    // A step that was cut short leaves its old event behind.
    if (this.#world.now() !== this.#wakesAt) return
    this.#wakesAt = Number.POSITIVE_INFINITY
    this.#awake = true
    this.engine.runTo(this.#world.now(), this.#sink)
    this.#awake = false
    this.#plan()
  }

  /** @param sink  gets each step at its end; may submit and abort */
  constructor(world: World, engine: Engine<R>, sink: (step: Step<R>) => void) {
    this.#world = world
    this.engine = engine
    this.#sink = sink
  }

  submit(request: R): Sequence<R> {
    const sequence = this.engine.submit(request, this.#world.now())
    this.#plan()
    return sequence
  }

  abort(sequence: Sequence<R>): void {
    this.engine.abort(sequence, this.#world.now())
    this.#plan()
  }

  #plan(): void {
    if (this.#awake) return
    const at = this.engine.nextAt
    if (at === this.#wakesAt || at === Number.POSITIVE_INFINITY) return
    this.#wakesAt = at
    this.#world.at(at, this.#wake)
  }
}
