/** The requests of one class for one set of pools: any of them may have the next slot of any of these. */
import { Reservations } from '../admission/retry-after.js'
import type { Pool } from '../fleet/pool.js'
import type { ClassId } from '../request.js'
import type { TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'

export class Lane {
  readonly traffic: TrafficClass
  /** Pools of the class that serve the model, home first. At least one. */
  readonly pools: readonly Pool[]
  readonly reservations = new Reservations()
  /** Requests that wait. */
  waiting = 0

  constructor(traffic: TrafficClass, pools: readonly Pool[]) {
    this.traffic = traffic
    this.pools = pools
  }

  /** How long from `now` until the first replica that asked to be left alone may be sent to; 0: one may be already. */
  aloneForMs(now: Ms): Ms {
    const until = this.pools.flatMap(({ replicas }) => replicas.map(replica => replica.aloneUntil))
    return until.length === 0 ? 0 : Math.max(0, Math.min(...until) - now)
  }

  /** Some replica of it is healthy. */
  get up(): boolean {
    return this.pools.some(pool => pool.up > 0)
  }

  get slotsPerMs(): number {
    return this.pools.reduce((sum, pool) => sum + pool.slotsPerMs, 0)
  }
}

interface ClassLanes {
  readonly byModel: ReadonlyMap<string, Lane>
  /** For models that no pool of the class names. */
  readonly rest: Lane | undefined
  readonly all: readonly Lane[]
}

/** All lanes of a config. */
export class Lanes {
  /** By class id. */
  readonly #classes: readonly ClassLanes[]

  /** @param pools  by pool id */
  constructor(classes: readonly TrafficClass[], pools: readonly Pool[]) {
    this.#classes = classes.map(traffic => lanesOf(traffic, pools))
  }

  /** @returns undefined where no pool of the class serves the model, or there is no such class */
  of(cls: ClassId | undefined, model: string): Lane | undefined {
    const lanes = cls === undefined ? undefined : this.#classes[cls]
    return lanes?.byModel.get(model) ?? lanes?.rest
  }

  /** Requests of the class that wait. */
  waiting(cls: ClassId): number {
    return this.#classes[cls]?.all.reduce((sum, lane) => sum + lane.waiting, 0) ?? 0
  }

  /** Classes whose requests may wait, and how many do. */
  queues(): { readonly cls: ClassId; readonly depth: number }[] {
    return this.#classes.flatMap(({ all: [lane] }, cls) => {
      return lane?.traffic.queue === undefined ? [] : [{ cls, depth: this.waiting(cls) }]
    })
  }
}

function lanesOf(traffic: TrafficClass, pools: readonly Pool[]): ClassLanes {
  if (traffic.retired) return { byModel: new Map(), rest: undefined, all: [] }
  const own = traffic.pools.flatMap(id => pools[id] ?? [])
  const named = new Set(own.flatMap(({ spec }) => spec.model ?? []))
  const byModel = new Map<string, Lane>()
  for (const model of named) {
    const serving = own.filter(pool => pool.serves(model))
    byModel.set(model, new Lane(traffic, serving))
  }
  const any = own.filter(({ spec }) => spec.model === undefined)
  const rest = any.length === 0 ? undefined : new Lane(traffic, any)
  return { byModel, rest, all: rest === undefined ? [...byModel.values()] : [...byModel.values(), rest] }
}
