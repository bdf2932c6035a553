/** The rate of arrivals over time: turns steady time, in which arrivals are even, into time as it is. */
import type { Ms, Rng } from '../time.js'
import type { RateShape } from './scenario.js'

/** Of a day, each with a rate of its own: five minutes. */
const STEPS = 288

/** A factor that holds up to a time. */
interface Stretch {
  readonly factor: number
  readonly untilMs: Ms
}

/** Goes forward only. */
export class RateClock {
  #now: Ms = 0
  readonly #stretches: Iterator<Stretch>
  #stretch: Stretch

  constructor(shape: RateShape, rng: Rng) {
    this.#stretches = stretchesOf(shape, rng)
    this.#stretch = this.#next()
  }

  /** The time when so much more steady time has gone by. */
  after(steadyMs: Ms): Ms {
    let left = steadyMs
    for (;;) {
      const { factor, untilMs } = this.#stretch
      const all = (untilMs - this.#now) * factor
      if (left <= all && factor > 0) {
        this.#now += left / factor
        return this.#now
      }
      if (factor > 0) left -= all
      this.#now = untilMs
      this.#stretch = this.#next()
    }
  }

  #next(): Stretch {
    const { value } = this.#stretches.next()
    return value as Stretch
  }
}

function* stretchesOf(shape: RateShape, rng: Rng): Generator<Stretch> {
  let at = 0
  switch (shape.kind) {
    case 'burst':
      yield { factor: 1, untilMs: shape.atMs }
      yield { factor: shape.factor, untilMs: shape.atMs + shape.forMs }
      break
    case 'square':
      for (let high = true; ; high = !high) {
        at += shape.periodMs / 2
        yield { factor: high ? shape.high : shape.low, untilMs: at }
      }
    case 'daily': {
      const { periodMs, low, high } = shape
      for (let step = 0; ; step++) {
        const turn = (2 * Math.PI * (step + 0.5)) / STEPS
        yield {
          factor: (low + high - (high - low) * Math.cos(turn)) / 2,
          untilMs: ((step + 1) / STEPS) * periodMs,
        }
      }
    }
    case 'two-state':
      for (let high = rng.next() < 0.5; ; high = !high) {
        at -= shape.meanMs * Math.log(1 - rng.next())
        yield { factor: high ? shape.high : shape.low, untilMs: at }
      }
    case 'steps': {
      let factor = 1
      for (const step of shape.steps) {
        yield { factor, untilMs: step.atMs }
        factor = step.factor
      }
      yield { factor, untilMs: Number.POSITIVE_INFINITY }
      break
    }
    case 'steady':
  }
  yield { factor: 1, untilMs: Number.POSITIVE_INFINITY }
}
