/** The book of verdicts with names in place of ids: what `/api/report` answers, and `weir report` prints. */

import type { PolicySpec, PolicyState } from '../policy/policy.js'
import type { Drift, Reading, Spread } from '../slo/reading.js'
import type { Slo, SloName, TrafficClass } from '../slo/slo.js'
import { windowName } from '../slo/windows.js'
import type { Ms } from '../time.js'
import type { PoolHeadroom } from './outlook-figures.js'

export interface Quantiles {
  readonly p50: number
  readonly p90: number
  readonly p99: number
}

/** Of one class. Shares are from 0 to 1, times in ms; null is unknown: too little was seen. */
export interface ClassFigures {
  readonly name: string
  readonly promise: Readonly<Record<SloName, Slo>>
  readonly workload: TrafficClass['workload']
  /** Over the last minute. */
  readonly offered_rps: number | null
  readonly goodput_rps: number | null
  readonly good_share: number | null
  readonly admitted_good_share: number | null
  readonly shed_share: number | null
  /** By SLO, clause and window (`60s`, `1h`). */
  readonly attainment: readonly {
    readonly slo: SloName
    readonly clause: string
    readonly window: string
    readonly share: number | null
    readonly low: number | null
    readonly high: number | null
    /** That it is a share of; null where only the share was told. */
    readonly requests: number | null
  }[]
  readonly burn: readonly { readonly slo: SloName; readonly window: string; readonly rate: number | null }[]
  readonly budget: readonly {
    readonly slo: SloName
    readonly period: string
    /** Share of the period that has been seen, 0 to 1: no budget is known before the whole. */
    readonly seen_share: number
    readonly left: number | null
    readonly exhausted_in_s: number | null
  }[]
  /** By measure (ttft, tpot, e2e, input, output) and window. */
  readonly spread: Readonly<Record<string, Readonly<Record<string, Quantiles>>>>
  readonly drift: { readonly off_workload: boolean; readonly ratios: Drift['ratios'] }
}

export interface Figures {
  readonly version: string
  readonly classes: readonly ClassFigures[]
  readonly goodput: readonly {
    readonly class: string
    readonly pool: string
    readonly requests_per_second: number | null
    readonly output_tokens_per_second_per_gpu: number | null
  }[]
  readonly headroom: readonly HeadroomFigures[]
}

/** Of one pool, as much as metrics tell, too. */
export interface HeadroomFigures extends Pick<PoolHeadroom, 'name' | 'demand_ratio' | 'headroom_ratio'> {
  readonly replicas: Pick<PoolHeadroom['replicas'], 'desired'>
  /** Where its capacity is known from: sweep, learned or model. */
  readonly source: string | null
  readonly classes: readonly { readonly name: string; readonly headroom_rps: number | null }[]
}

export function figuresOf(
  version: string,
  spec: PolicySpec,
  state: PolicyState,
  reading: Reading,
  headroom: readonly PoolHeadroom[],
): Figures {
  const attainment = reading.attainment()
  const burn = reading.burn()
  const budgets = reading.budgets()
  const offered = reading.offered()
  const spreads = reading.spreads()
  const drifts = reading.drift()
  return {
    version,
    classes: spec.classes
      .filter(cls => cls.retired !== true)
      .map(cls => {
        const now = offered.find(row => row.cls === cls.id)
        const drift = drifts.find(row => row.cls === cls.id)
        return {
          name: cls.name,
          promise: { target: cls.target, guard: cls.guard },
          workload: cls.workload,
          offered_rps: now?.offeredPerSecond ?? null,
          goodput_rps: now?.goodPerSecond ?? null,
          good_share: now?.goodShare ?? null,
          admitted_good_share: now?.admittedGoodShare ?? null,
          shed_share: now?.shedShare ?? null,
          attainment: attainment
            .filter(row => row.cls === cls.id)
            .map(row => ({
              slo: row.slo,
              clause: row.clause,
              window: windowName(row.windowMs),
              share: row.share ?? null,
              low: row.interval?.low ?? null,
              high: row.interval?.high ?? null,
              requests: row.met + row.missed,
            })),
          burn: burn
            .filter(row => row.cls === cls.id)
            .map(row => ({ slo: row.slo, window: windowName(row.windowMs), rate: row.rate ?? null })),
          budget: budgets
            .filter(row => row.cls === cls.id)
            .map(row => ({
              slo: row.slo,
              period: windowName(row.periodMs),
              seen_share: Math.min(1, row.seenMs / row.periodMs),
              left: row.left ?? null,
              exhausted_in_s: finite(row.exhaustedInMs, 1000),
            })),
          spread: spreadOf(spreads.filter(row => row.cls === cls.id)),
          drift: { off_workload: drift?.offWorkload ?? false, ratios: drift?.ratios ?? {} },
        }
      }),
    goodput: reading.goodput(state.replicas).map(row => ({
      class: spec.classes[row.cls]!.name,
      pool: spec.pools[row.pool]!.name,
      requests_per_second: row.requestsPerSecond ?? null,
      output_tokens_per_second_per_gpu: row.tokensPerSecondPerGpu ?? null,
    })),
    headroom: headroom.map(({ name, demand_ratio, headroom_ratio, replicas, capacity, classes }) => ({
      name,
      demand_ratio,
      headroom_ratio,
      replicas: { desired: replicas.desired },
      source: capacity?.source ?? null,
      classes: classes.map(cls => ({ name: cls.name, headroom_rps: cls.headroom_rps })),
    })),
  }
}

function spreadOf(rows: readonly Spread[]): ClassFigures['spread'] {
  const spread: Record<string, Record<string, Quantiles>> = {}
  for (const { measure, windowMs, p50, p90, p99 } of rows) {
    spread[measure] = { ...spread[measure], [windowName(windowMs)]: { p50, p90, p99 } }
  }
  return spread
}

/** JSON has no infinity: nothing is spent, so nothing is said. */
function finite(ms: Ms | undefined, per: number): number | null {
  return ms === undefined || !Number.isFinite(ms) ? null : ms / per
}
