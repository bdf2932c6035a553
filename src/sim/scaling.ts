/** Replicas that come and go by the autoscaler, on the demand that a simulated fleet sees. */
import type { ReplicaId } from '../request.js'
import { type AutoscaleOptions, Autoscaler } from '../slo/autoscale.js'
import type { Ms } from '../time.js'
import type { Stage } from './cell.js'
import type { Happening, Traffic } from './fleet.js'
import type { Arrival } from './job.js'

export interface ScaleLimits extends AutoscaleOptions {
  /** Of the replicas that may come and go, in the order in which they come. */
  readonly replicas: readonly ReplicaId[]
  /** Of these, there always. */
  readonly least: number
  /** Work a unit of time that one of them serves within the promise, in replicas of the fluid. Default 1: all of it. */
  readonly perReplica?: number
}

export interface Scaled {
  /** Started replicas, ready or not, times their GPUs, over the run. */
  readonly gpu_hours: number
  readonly least_replicas: number
  readonly most_replicas: number
  /** A step down within ten minutes of a step up, or the other way round. */
  readonly flaps: number
}

const EVERY_MS: Ms = 10_000
/** Demand is a mean over this. */
const MEMORY_MS: Ms = 60_000
const FLAP_MS: Ms = 600_000
const HOUR_MS: Ms = 3_600_000

export class Scaling {
  readonly #stage: Stage
  readonly #limits: ScaleLimits
  readonly #absent: Set<ReplicaId>
  readonly #scaler = new Autoscaler()
  /** Work that arrived, newest last. */
  readonly #arrived: { readonly at: Ms; readonly workMs: Ms }[] = []
  /** Started; those that are pending get ready at their time. */
  #wanted: number
  readonly #readyAt: Ms[]
  #gpuMs = 0
  #least: number
  #most: number
  #flaps = 0
  #step: { readonly at: Ms; readonly up: boolean } | undefined

  /**
   * It begins with what the first arrivals need: nobody's day begins with a cold fleet.
   * @param absent  replicas that are not in their pools: follows what is decided here
   * @param demand  at the start: work a unit of time, 1 fills a replica
   */
  constructor(stage: Stage, limits: ScaleLimits, absent: Set<ReplicaId>, demand: number) {
    const { least, target, replicas, perReplica = 1 } = limits
    const needed = Math.ceil(demand / (target * perReplica))
    const first = Math.min(Math.max(least, needed), replicas.length)
    this.#stage = stage
    this.#limits = limits
    this.#absent = absent
    this.#wanted = first
    this.#least = first
    this.#most = first
    this.#readyAt = replicas.map(() => 0)
    for (const id of replicas.slice(first)) absent.add(id)
  }

  get result(): Scaled {
    return {
      gpu_hours: this.#gpuMs / HOUR_MS,
      least_replicas: this.#least,
      most_replicas: this.#most,
      flaps: this.#flaps,
    }
  }

  /** The same traffic, whose work is counted. */
  counted(traffic: Traffic): Traffic {
    const count = (arrival: Arrival | undefined): Arrival | undefined => {
      if (arrival !== undefined) this.#arrived.push({ at: arrival.at, workMs: this.#workMs(arrival) })
      return arrival
    }
    return {
      next: () => count(traffic.next()),
      after: (job, now) => count(traffic.after?.(job, now)),
    }
  }

  happenings(untilMs: Ms): Happening[] {
    const list: Happening[] = []
    for (let at = EVERY_MS; at <= untilMs; at += EVERY_MS) {
      list.push({
        at,
        run: (fleet, now) => {
          if (this.#look(now)) fleet.reconfigure(this.#stage.spec(this.#absent))
        },
      })
    }
    return list
  }

  #workMs({ cls, promptTokens, outputTokens }: Arrival): Ms {
    return this.#stage.fluids[cls]?.workMs({ promptTokens, cachedTokens: 0, outputTokens }) ?? 0
  }

  /** @returns whether replicas came or went */
  #look(now: Ms): boolean {
    const { least, replicas, target, down, coldStartMs, perReplica = 1 } = this.#limits
    const gpus = this.#stage.profiles[replicas[0] ?? 0]?.gpus ?? 1
    this.#gpuMs += this.#wanted * gpus * EVERY_MS
    const recent = this.#arrived.filter(({ at }) => at > now - MEMORY_MS)
    this.#arrived.splice(0, this.#arrived.length, ...recent)
    // A mean over less is chance, and would be taken for a trend.
    if (now < MEMORY_MS) return false
    const work = recent.reduce((sum, { at, workMs }) => sum + (at <= now ? workMs : 0), 0)
    const ready = this.#readyAt.slice(0, this.#wanted).filter(at => at <= now).length
    const { desired } = this.#scaler.update(
      {
        target,
        down,
        coldStartMs,
        demand: work / MEMORY_MS,
        perReplica,
        ready,
        pending: this.#wanted - ready,
        burn: undefined,
      },
      now,
    )
    this.#want(Math.min(Math.max(desired, least), replicas.length), now)
    const before = this.#absent.size
    for (const [at, id] of replicas.entries()) {
      if (at < this.#wanted && (this.#readyAt[at] ?? 0) <= now) this.#absent.delete(id)
      else this.#absent.add(id)
    }
    return this.#absent.size !== before
  }

  #want(wanted: number, now: Ms): void {
    if (wanted === this.#wanted) return
    const up = wanted > this.#wanted
    if (this.#step !== undefined && this.#step.up !== up && now - this.#step.at < FLAP_MS) this.#flaps++
    this.#step = { at: now, up }
    for (let at = this.#wanted; at < wanted; at++) this.#readyAt[at] = now + this.#limits.coldStartMs
    this.#wanted = wanted
    this.#least = Math.min(this.#least, wanted)
    this.#most = Math.max(this.#most, wanted)
  }
}
