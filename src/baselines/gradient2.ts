/** Netflix's gradient2 limiter, on the time to first output per prompt token instead of the whole answer's time. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { Desk } from '../policy/rule.js'
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import { Balancer } from './balancer.js'
import { baseline } from './baseline.js'

const SMOOTHING = 0.2
const START = 20
const MAX = 200
/** Of the long average, in samples: the newest has 2 / (window + 1). It begins as the mean of the first ten. */
const LONG_WINDOW = 600
const WARMUP = 10
/** A sample is what came in at least this long, and at least so many first outputs (`WindowedLimit`). */
const WINDOW_MS: Ms = 1_000
const WINDOW_SAMPLES = 10

interface Settings {
  readonly tolerance: number
  readonly queue: number
  readonly min: number
}

/**
 * L' = 0.8 L + 0.2 (L g + queue), g = clamp(tolerance * long / short, 0.5, 1), L within [min, 200]. `long` is a mean over
 * 600 samples; where it is more than twice `short` it is taken down by 5 % a sample. L stays where less than half of it
 * is in flight.
 */
export class Gradient2 {
  readonly #set: Settings
  #limit = START
  #long = 0
  #samples = 0

  constructor(settings: Settings) {
    this.#set = settings
  }

  get limit(): number {
    return this.#limit
  }

  /** @param short  the new sample, in any unit that is the same for all */
  sample(short: number, inFlight: number): void {
    this.#samples++
    const newest = this.#samples <= WARMUP ? 1 / this.#samples : 2 / (LONG_WINDOW + 1)
    this.#long += newest * (short - this.#long)
    if (this.#long / short > 2) this.#long *= 0.95
    if (inFlight < this.#limit / 2) return
    const { tolerance, queue, min } = this.#set
    const gradient = Math.min(Math.max((tolerance * this.#long) / short, 0.5), 1)
    const next = (1 - SMOOTHING) * this.#limit + SMOOTHING * (this.#limit * gradient + queue)
    this.#limit = Math.min(Math.max(next, min), MAX)
  }
}

interface Limited {
  readonly limiter: Gradient2
  from: Ms
  samples: number
  waitedMs: Ms
  tokens: number
}

/**
 * A limit a replica. Among those below it the fewest prompt tokens to prefill; without one the request is refused,
 * whatever its class. A sample is the time to first output of a second's requests over their prompt tokens.
 *
 * Goes wrong since it learns what is usual, not what was promised: a replica that is always twice too slow looks well,
 * and between 20 and 200 (Netflix's bounds) there is no telling where TPOT breaks. Prompts of another size look like
 * another speed.
 * Source: Netflix/concurrency-limits `Gradient2Limit` and `WindowedLimit`; algorithms 3.
 */
class Gradient2Rule extends Balancer {
  readonly #set: Settings
  readonly #limited = new Map<ReplicaId, Limited>()

  constructor(desk: Desk, settings: Settings) {
    super(desk)
    this.#set = settings
  }

  protected choose(_open: Open, among: readonly Replica[]): Replica | undefined {
    return this.cheapest(among, replica => {
      const { limit } = this.#of(replica).limiter
      return replica.inFlight < Math.floor(limit)
        ? replica.outstandingPrefillTokens + replica.inFlight / 1e6
        : Infinity
    })
  }

  firstToken({ dispatchedAt = 0, promptTokens }: Open, replica: Replica, now: Ms): void {
    const limited = this.#of(replica)
    if (limited.samples === 0) limited.from = now
    limited.samples++
    limited.waitedMs += now - dispatchedAt
    limited.tokens += promptTokens
    if (now - limited.from < WINDOW_MS || limited.samples < WINDOW_SAMPLES) return
    limited.limiter.sample(limited.waitedMs / limited.tokens, replica.inFlight)
    limited.samples = 0
    limited.waitedMs = 0
    limited.tokens = 0
  }

  #of({ spec: { id } }: Replica): Limited {
    let limited = this.#limited.get(id)
    if (limited === undefined) {
      limited = { limiter: new Gradient2(this.#set), from: 0, samples: 0, waitedMs: 0, tokens: 0 }
      this.#limited.set(id, limited)
    }
    return limited
  }
}

export const gradient2 = baseline(
  'gradient2',
  'Netflix concurrency-limits Gradient2, on TTFT per prompt token',
  { tolerance: [1.5, 1, 1.2, 2, 3], queue: [4, 1, 2], min: [20, 4, 8] },
  (desk, set) => new Gradient2Rule(desk, set),
)
