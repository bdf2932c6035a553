/** A scraper for each replica whose engine may tell of itself, as the config has them. */
import type { Resolved } from '../config/resolved.js'
import type { ReplicaId } from '../request.js'
import type { EngineGauges } from '../slo/engine-gauges.js'
import type { Clock, Ms } from '../time.js'
import { EngineScraper, type EngineScraperOptions } from '../upstream/engine-gauges.js'

export interface EngineScrapesOptions {
  readonly clock: Clock
  readonly read: (replica: ReplicaId, gauges: EngineGauges, now: Ms) => void
  /** @param sure  the config says which engine it is, so its metrics should be there */
  readonly failed: (replica: ReplicaId, why: string, sure: boolean) => void
}

/** KV usage, and requests in the engine's own queue, from which it is asked twice as often. */
const PRESSED_KV = 0.8

export class EngineScrapes {
  readonly #options: EngineScrapesOptions
  /** By replica id, with what it was made for. */
  readonly #running = new Map<ReplicaId, { readonly made: string; readonly scraper: EngineScraper }>()

  constructor(options: EngineScrapesOptions) {
    this.#options = options
  }

  /** Starts and stops what the config has changed; the others go on. */
  follow(config: Resolved): void {
    for (const { id, pool, origin, basePath } of config.replicas) {
      const engine = config.pools[pool]?.engine ?? 'auto'
      const gone = config.policy.replicas[id]?.retired === true || engine === 'openai'
      // trtllm-serve keeps them below a path of its own.
      const url = `${origin}${basePath}${engine === 'trtllm' ? '/prometheus' : ''}/metrics`
      const options = { url, engine, apiKey: config.pools[pool]?.apiKey }
      const made = gone ? undefined : JSON.stringify(options)
      const running = this.#running.get(id)
      if (running?.made === made) continue
      this.#running.delete(id)
      void running?.scraper.stop()
      if (made !== undefined && engine !== 'openai') this.#start(id, made, options)
    }
  }

  /** When it resolves nothing is left, and nothing is told any more. */
  async stop(): Promise<void> {
    const running = [...this.#running.values()]
    this.#running.clear()
    await Promise.all(running.map(({ scraper }) => scraper.stop()))
  }

  #start(
    id: ReplicaId,
    made: string,
    options: Pick<EngineScraperOptions, 'url' | 'engine' | 'apiKey'>,
  ): void {
    const { clock, read, failed } = this.#options
    const scraper = new EngineScraper({
      ...options,
      clock,
      read(gauges, now) {
        scraper.pressed = (gauges.waiting ?? 0) > 0 || (gauges.kvUsage ?? 0) > PRESSED_KV
        read(id, gauges, now)
      },
      failed: why => failed(id, why, options.engine !== 'auto'),
    })
    this.#running.set(id, { made, scraper })
    scraper.start()
  }
}
