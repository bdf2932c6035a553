/** How much more a pool can take: one less demand over capacity, and the same as requests a second of each class. */
import type { ClassId } from '../request.js'
import type { Ms } from '../time.js'
import type { Capacity } from './capacity.js'

/** What a class asks for now, in work at the cost that the capacity is stated in. */
export interface ClassDemand {
  readonly cls: ClassId
  /** GPU seconds a second, shed and queued requests in it, a retry once. */
  readonly workPerSec: number
  /** Of a mean request; undefined where none came. */
  readonly workPerRequest: number | undefined
}

/** What gives way first when more comes. */
export type Resource = 'prefill' | 'decode' | 'kv' | 'deadline'

export interface Headroom {
  /** Demand over capacity: 0.7 is the line to scale at. */
  readonly demandRatio: number
  /** 1 - `demandRatio`; below 0 more is asked for than can be served. */
  readonly ratio: number
  /** What `ratio` may be off by, to either side. */
  readonly uncertainty: number
  /** Requests a second that could come on top, of each class if it alone grew; undefined where its work is unknown. */
  readonly requestsPerSec: readonly { readonly cls: ClassId; readonly value: number | undefined }[]
  readonly source: Capacity['source']
}

/**
 * @param replicas  ready ones, each by the share of its full weight it has (`rampWeight`)
 * @returns undefined where nothing can serve: then there is no ratio, and no headroom either
 */
export function headroom(
  demand: readonly ClassDemand[],
  capacity: Capacity,
  replicas: number,
): Headroom | undefined {
  const whole = replicas * capacity.workPerSec
  if (!(whole > 0)) return undefined
  const asked = demand.reduce((sum, one) => sum + one.workPerSec, 0)
  const left = whole - asked
  return {
    demandRatio: asked / whole,
    ratio: left / whole,
    uncertainty: (asked / whole) * capacity.uncertainty,
    requestsPerSec: demand.map(({ cls, workPerRequest }) => ({
      cls,
      value: workPerRequest ? Math.max(0, left) / workPerRequest : undefined,
    })),
    source: capacity.source,
  }
}

/** A cold replica counts 0.3 at first, and all after 10 s and 30 requests. Source: algorithms 6.9, 8. */
const RAMP_FROM = 0.3
const RAMP_MS: Ms = 10_000
const RAMP_REQUESTS = 30

/** Share of its capacity that a replica has, by its age since it was ready and the requests it has ended. */
export function rampWeight(ageMs: Ms, requests: number): number {
  const along = Math.min(ageMs / RAMP_MS, requests / RAMP_REQUESTS, 1)
  return RAMP_FROM + (1 - RAMP_FROM) * Math.max(0, along)
}

/** How far each resource is used, 0 to 1 and above; what is not known is left out. */
export interface Pressures {
  /** Share of time that prefill takes, over the share it may take; likewise expected TTFT over its bound. */
  readonly prefill: number | undefined
  /** Expected TPOT over its bound. */
  readonly decode: number | undefined
  /** KV usage as scraped, over 0.92, where engines begin to preempt (algorithms 6.4). */
  readonly kv: number | undefined
}

/** The resource that is used furthest; undefined where none is known. */
export function bindingNow(pressures: Pressures): Resource | undefined {
  let binding: Resource | undefined
  let most = Number.NEGATIVE_INFINITY
  for (const name of ['prefill', 'decode', 'kv'] as const) {
    const value = pressures[name]
    if (value === undefined || value <= most) continue
    binding = name
    most = value
  }
  return binding
}

/** Requests that one replica is asked about, at most. Source: algorithms 6.9. */
const INSTANT_MAX = 64

/**
 * How many typical requests could be sent now, all at once, over the replicas.
 * @param fits  whether a replica would still serve one more within its promise, after so many sent before it
 */
export function instantHeadroom(
  replicas: number,
  fits: (replica: number, sentBefore: number) => boolean,
): number {
  let sum = 0
  for (let replica = 0; replica < replicas; replica++) {
    let sent = 0
    while (sent < INSTANT_MAX && fits(replica, sent)) sent++
    sum += sent
  }
  return sum
}
