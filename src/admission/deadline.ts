/** By when a request wants its answer, and who said so. */
import type { RequestFacts } from '../request.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'

/** What the official SDKs wait when nobody told them: it says nothing about the client. */
const SDK_DEFAULT_MS: Ms = 600_000

export interface Deadline {
  /** From arrival. Infinity: none, in a class of streams. */
  readonly ms: Ms
  /** client: it sent a deadline; sdk: what its library waits for an answer that does not stream. */
  readonly by: 'client' | 'sdk' | 'class'
}

/** How long the client's library waits for the head, where that means something. */
export function patienceMs(facts: RequestFacts): Ms | undefined {
  return facts.patienceMs === SDK_DEFAULT_MS ? undefined : facts.patienceMs
}

/**
 * The request's own deadline, clamped by its class, else the class's.
 * Without a stream the library's patience is one too, and the shorter of both holds.
 */
export function deadlineOf(traffic: TrafficClass, facts: RequestFacts): Deadline {
  const sent = facts.own.deadlineMs ?? Infinity
  const waits = facts.stream ? Infinity : (patienceMs(facts) ?? Infinity)
  const own = Math.min(sent, waits)
  if (own < Infinity) {
    const { minMs, maxMs } = traffic.ownBounds ?? { minMs: 0, maxMs: Infinity }
    return { ms: Math.min(Math.max(own, minMs), maxMs), by: sent <= waits ? 'client' : 'sdk' }
  }
  const bounds = traffic.target.clauses
  return { ms: bounds.kind === 'deadline' ? bounds.deadlineMs : Infinity, by: 'class' }
}
