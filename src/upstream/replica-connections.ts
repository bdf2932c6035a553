/** The connections to one replica: those that are idle, and which of them may still be used. */
import { performance } from 'node:perf_hooks'
import type { Ms } from '../time.js'
import { Connection, type ConnectionOptions, type ConnectionOwner, type Occupant } from './connection.js'

/** Below the 5 s after which uvicorn (vLLM, SGLang) closes idle connections. */
export const KEEP_ALIVE_MS: Ms = 4000
/** Longest that a hint of the upstream's is believed. */
export const KEEP_ALIVE_MAX_MS: Ms = 60_000
/** Before the time that the upstream names, since its answer was on the way for a while. */
const HINT_MARGIN_MS: Ms = 2000
/** A connection is left after its answer when it is older, so that a name that moved is looked up again. */
const MAX_AGE_MS: Ms = 60_000
const SWEEP_MS: Ms = 1000

interface Idle {
  readonly connection: Connection
  readonly until: Ms
}

export class ReplicaConnections implements ConnectionOwner {
  /** The one that became idle last is at the end, and is taken first. */
  private readonly resting: Idle[] = []
  private readonly all = new Set<Connection>()
  private sweeper: NodeJS.Timeout | undefined
  private retired = false

  constructor(private readonly options: ConnectionOptions) {}

  /** @returns an idle connection, now occupied; undefined where there is none */
  take(occupant: Occupant): Connection | undefined {
    const now = performance.now()
    for (let last = this.resting.pop(); last !== undefined; last = this.resting.pop()) {
      if (last.until > now && last.connection.usable) {
        last.connection.occupy(occupant)
        return last.connection
      }
      last.connection.destroy()
    }
    return undefined
  }

  open(occupant: Occupant): Connection {
    const connection = new Connection(this.options, this, occupant)
    this.all.add(connection)
    return connection
  }

  idle(connection: Connection): void {
    const now = performance.now()
    const { keepAliveMs } = connection
    const ms =
      keepAliveMs === undefined ? KEEP_ALIVE_MS : Math.min(keepAliveMs - HINT_MARGIN_MS, KEEP_ALIVE_MAX_MS)
    if (this.retired || ms <= 0 || now - connection.openedAt > MAX_AGE_MS) {
      connection.destroy()
      return
    }
    this.resting.push({ connection, until: now + ms })
    this.sweeper ??= setInterval(() => this.sweep(), SWEEP_MS).unref()
  }

  gone(connection: Connection): void {
    this.all.delete(connection)
    const at = this.resting.findIndex(idle => idle.connection === connection)
    if (at >= 0) this.resting.splice(at, 1)
  }

  /** Lets idle connections go, and those in use once their answer is whole. */
  retire(): void {
    this.retired = true
    for (const { connection } of this.resting.splice(0)) connection.destroy()
    this.sweep()
  }

  close(): void {
    this.retire()
    for (const connection of this.all) connection.destroy()
  }

  private sweep(): void {
    const now = performance.now()
    for (const { connection } of this.resting.filter(({ until }) => until <= now)) connection.destroy()
    if (this.resting.length > 0) return
    clearInterval(this.sweeper)
    this.sweeper = undefined
  }
}
