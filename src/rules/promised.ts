/** The SLOs of a config as the rule formats need them: who promised what, and which alerts watch over it. */
import type { Resolved } from '../config/resolved.js'
import { showDuration } from '../config/units.js'
import { allowedMisses, type BurnAlert, burnAlert, WINDOW_PAIRS } from '../slo/alerts.js'
import type { Slo, SloName } from '../slo/slo.js'
import type { Ms } from '../time.js'

export interface Promised {
  /** Name of the class. */
  readonly cls: string
  readonly slo: SloName
  readonly kind: Slo['clauses']['kind']
  readonly mode: Slo['mode']
  readonly percentile: number
  /** Share of requests that may miss. */
  readonly allowed: number
  readonly periodMs: Ms
  /** The promise in words: `p90 ttft 500ms tpot 40ms`. */
  readonly words: string
  /** Names of the pools that its requests may go to. */
  readonly pools: readonly string[]
  /** One for each pair of windows, those that are left out too, with the reason in `fires`. */
  readonly alerts: readonly BurnAlert[]
}

/** What to call an SLO where a format has one name for it: `chat-guard`. Kubernetes takes no `_` in names. */
export const nameOf = ({ cls, slo }: Promised): string => `${cls.replaceAll('_', '-')}-${slo}`

/**
 * Target and guard of every class, in the order of the config.
 * @param words  says an SLO in one line
 */
export function promisesOf({ policy }: Resolved, words: (slo: Slo) => string): readonly Promised[] {
  return policy.classes
    .filter(cls => cls.retired !== true)
    .flatMap(cls =>
      (['target', 'guard'] as const).map(name => {
        const slo = cls[name]
        return {
          cls: cls.name,
          slo: name,
          kind: slo.clauses.kind,
          mode: slo.mode,
          percentile: slo.percentile,
          allowed: allowedMisses(slo.percentile),
          periodMs: slo.windowMs,
          words: words(slo),
          pools: cls.pools.map(pool => policy.pools[pool]?.name ?? ''),
          alerts: WINDOW_PAIRS.map(pair => {
            const alert = burnAlert(pair, slo.percentile, slo.windowMs)
            // The target says how good the service should be; people are woken by the guard alone.
            return name === 'guard' ? alert : { ...alert, severity: 'ticket' as const }
          }),
        }
      }),
    )
}

/** Why alerts of an SLO are left out; empty where none is. */
export function leftOut(promised: Promised): readonly string[] {
  return promised.alerts
    .filter(({ fires }) => fires !== 'yes')
    .map(({ longMs, shortMs, factor, missShare, fires }) => {
      const over = `${showDuration(longMs)} & ${showDuration(shortMs)}`
      const times = `${Number(factor.toPrecision(3))}x`
      return fires === 'never'
        ? `no alert over ${over}: ${times} would need ${Math.round(missShare * 100)} % misses, so it could hardly fire`
        : `no alert over ${over}: at ${times} the budget of ${showDuration(promised.periodMs)} is kept`
    })
}
