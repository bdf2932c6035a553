/** The outlook on the real clock: fed by the policy's door and by the engines' own metrics, kept, and told to the log. */
import type { Resolved } from '../config/resolved.js'
import { Outlook } from '../policy/outlook.js'
import type { Policy } from '../policy/policy.js'
import { watched, witnessed } from '../policy/watched.js'
import { Forecast } from '../predict/forecast.js'
import type { PoolId } from '../request.js'
import type { Clock } from '../time.js'
import { EngineScrapes } from './engine-scrapes.js'
import type { Kept } from './state-file.js'

export interface LiveOutlookOptions {
  readonly config: Resolved
  /** One with a forecast of its own, or one that a forecast is kept beside. */
  readonly policy: Policy
  readonly clock: Clock
  readonly log: Record<'debug' | 'info' | 'warn', (fields: object, message: string) => void>
  /** Rate at which a pool's classes burn the budget of a day; undefined: not known. */
  readonly burn: (pool: PoolId) => number | undefined
}

export class LiveOutlook {
  /** The policy with the outlook at its door: what the driver is to drive. */
  readonly policy: Policy
  readonly outlook: Outlook
  /** What a restart keeps. */
  readonly kept: readonly Kept[]
  readonly #scrapes: EngineScrapes
  #config: Resolved

  constructor({ config, policy, clock, log, burn }: LiveOutlookOptions) {
    this.#config = config
    const forecast = policy.forecast ?? new Forecast(config.policy)
    const seen = policy.forecast === undefined ? watched(policy, forecast) : policy
    const nameOf = (pool: PoolId): string | undefined => this.#config.policy.pools[pool]?.name
    this.outlook = new Outlook(
      {
        spec: config.policy,
        sweeps: config.sweeps,
        autoscale: config.autoscale,
        forecast,
        replicas: now => policy.state(now).replicas,
        hour: () => new Date().getHours(),
        burn,
        diagnosed(pool, finding) {
          if (finding === undefined) log.info({ pool: nameOf(pool) }, 'what was wrong with the pool is over')
          else {
            const { clause, cause, confidence, evidence, sentence } = finding
            log.warn({ pool: nameOf(pool), clause, cause, confidence, evidence }, sentence)
          }
        },
      },
      clock.now(),
    )
    this.policy = witnessed(seen, this.outlook)
    this.kept = [
      {
        name: 'model',
        save: () => forecast.save(),
        restore: saved => forecast.restore(saved),
      },
      {
        name: 'outlook',
        save: () => this.outlook.save(clock.now()),
        restore: (saved, gapMs) => this.outlook.restore(saved, gapMs, clock.now()),
      },
    ]
    this.#scrapes = new EngineScrapes({
      clock,
      read: (replica, gauges, now) => this.outlook.gauges(replica, gauges, now),
      failed: (replica, why, sure) => {
        const fields = { replica: this.#config.policy.replicas[replica]?.name, why }
        log[sure ? 'warn' : 'debug'](fields, 'the engine does not tell of itself: diagnosis goes without it')
      },
    })
  }

  /** Begins to ask the engines. */
  start(): void {
    this.#scrapes.follow(this.#config)
  }

  /** Follows a new config; to be called before the driver's policy does. */
  reconfigure(config: Resolved): void {
    this.#config = config
    this.outlook.retune(config)
    this.#scrapes.follow(config)
  }

  stop(): Promise<void> {
    return this.#scrapes.stop()
  }
}
