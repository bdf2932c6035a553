/** Peak-EWMA: the latency that a replica had lately, bad news at once, times what it has in flight. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import { Balancer } from './balancer.js'
import { baseline } from './baseline.js'
import { twoOf } from './counts.js'

const DEFAULT_RTT_MS: Ms = 30

interface Estimate {
  rttMs: Ms
  at: Ms
}

/**
 * Of two drawn by lot, the one with the lower estimate * (in flight + 1). The estimate is the time to first output: a
 * longer one than it is taken at once, a shorter one by exp(-time since the last / decay), and between answers it decays
 * to 0 in the same way, so that a replica that was slow is tried again. Starts at 30 ms.
 *
 * Goes wrong where the first output is late for the prompt's own size: the replica that took a long prompt is shunned
 * for 10 s, and its neighbours get the herd. It refuses nobody.
 * Source: Finagle `PeakEwma`, linkerd2-proxy and tower `load::peak_ewma` (decay 10 s, default 30 ms, "pending until
 * first data").
 */
class PeakEwma extends Balancer {
  readonly #decayMs: Ms
  readonly #estimates = new Map<ReplicaId, Estimate>()

  constructor(desk: ConstructorParameters<typeof Balancer>[0], decayMs: Ms) {
    super(desk)
    this.#decayMs = decayMs
  }

  protected choose(_open: Open, among: readonly Replica[], now: Ms): Replica | undefined {
    return this.cheapest(twoOf(among, this.desk.rng), replica => {
      return this.#seen(replica, 0, now) * (replica.inFlight + 1)
    })
  }

  firstToken({ dispatchedAt = 0 }: Open, replica: Replica, now: Ms): void {
    this.#seen(replica, now - dispatchedAt, now)
  }

  #seen({ spec: { id } }: Replica, rttMs: Ms, now: Ms): Ms {
    let estimate = this.#estimates.get(id)
    if (estimate === undefined) {
      estimate = { rttMs: DEFAULT_RTT_MS, at: now }
      this.#estimates.set(id, estimate)
    }
    const kept = Math.exp(-(now - estimate.at) / this.#decayMs)
    estimate.rttMs = rttMs > estimate.rttMs ? rttMs : rttMs + (estimate.rttMs - rttMs) * kept
    estimate.at = now
    return estimate.rttMs
  }
}

export const peakEwma = baseline(
  'peak-ewma',
  'Finagle PeakEwma, linkerd2-proxy; on time to first output',
  { decayMs: [10_000] },
  (desk, { decayMs }) => new PeakEwma(desk, decayMs),
)
