/** The outlook with names in place of ids: what `/api/headroom` and `/api/diagnosis` answer. */

import type { PolicySpec } from '../policy/policy.js'
import type { PoolReading } from '../policy/pool-outlook.js'
import type { RelativeErrors } from '../predict/errors.js'
import type { Ms } from '../time.js'

/** Of one pool. Shares are from 0 to 1; null is unknown: too little was seen. */
export interface PoolHeadroom {
  readonly name: string
  readonly replicas: {
    readonly ready: number
    /** The same, each that is still cold by the share of a warm one it has. */
    readonly effective: number
    readonly desired: number | null
    readonly why: string | null
  }
  readonly demand_ratio: number | null
  readonly headroom_ratio: number | null
  /** What both may be off by. */
  readonly uncertainty: number | null
  /** GPU seconds of work a second, of all effective replicas; and where it is known from. */
  readonly capacity: {
    readonly work_per_second: number
    readonly source: string
    readonly uncertainty: number
  } | null
  readonly demand_work_per_second: number
  /** What gives way first: now, and at the modelled knee. */
  readonly binding: string | null
  readonly knee: {
    readonly concurrency: number
    readonly requests_per_second: number
    readonly binding: string | null
  } | null
  readonly classes: readonly {
    readonly name: string
    /** Asked for now, and what could come on top if it alone grew. */
    readonly demand_rps: number
    readonly headroom_rps: number | null
  }[]
  readonly model: {
    /** Enough was seen to predict by. */
    readonly calibrated: boolean
    readonly step_error: number
    readonly ttft_error: PredictionError | null
    readonly tpot_error: PredictionError | null
  }
}

interface PredictionError {
  readonly median: number
  readonly p90: number
  /** Above 0: told too long. */
  readonly bias: number
}

export function headroomOf(
  spec: PolicySpec,
  readings: readonly PoolReading[],
): { readonly pools: PoolHeadroom[] } {
  const classOf = (id: number): string => spec.classes[id]?.name ?? ''
  return {
    pools: readings.map(
      ({ pool, ready, weight, demands, capacity, headroom, scale, knee, binding, model }) => ({
        name: spec.pools[pool]?.name ?? '',
        replicas: {
          ready,
          effective: weight,
          desired: scale === undefined || scale.why === 'unknown capacity' ? null : scale.desired,
          why: scale?.why ?? null,
        },
        demand_ratio: headroom?.demandRatio ?? null,
        headroom_ratio: headroom?.ratio ?? null,
        uncertainty: headroom?.uncertainty ?? null,
        capacity:
          capacity === undefined
            ? null
            : {
                work_per_second: weight * capacity.workPerSec,
                source: capacity.source,
                uncertainty: capacity.uncertainty,
              },
        demand_work_per_second: demands.reduce((sum, { workPerSec }) => sum + workPerSec, 0),
        binding: binding ?? null,
        knee:
          knee === undefined
            ? null
            : {
                concurrency: knee.concurrency,
                requests_per_second: knee.edgeRequestsPerSec,
                binding: knee.binding ?? null,
              },
        classes: demands.map(({ cls, requestsPerSec }) => ({
          name: classOf(cls),
          demand_rps: requestsPerSec,
          headroom_rps: headroom?.requestsPerSec.find(one => one.cls === cls)?.value ?? null,
        })),
        model: {
          calibrated: model.fit.calibrated,
          step_error: model.fit.relativeError,
          ttft_error: errorOf(model.ttftErrors),
          tpot_error: errorOf(model.tpotErrors),
        },
      }),
    ),
  }
}

function errorOf({ medianAbsolute, p90Absolute, bias }: RelativeErrors): PredictionError | null {
  if (medianAbsolute === undefined || p90Absolute === undefined || bias === undefined) return null
  return { median: medianAbsolute, p90: p90Absolute, bias }
}

/**
 * What is wrong, and with which pool; pools that are well are not in it.
 * @param wallAt  the system's time of a moment on the policy's clock, ms since 1970
 */
export function diagnosisOf(
  spec: PolicySpec,
  readings: readonly PoolReading[],
  wallAt: (at: Ms) => number,
): { readonly pools: readonly object[] } {
  return {
    pools: readings.flatMap(({ pool, finding }) => {
      if (finding === undefined) return []
      const { clause, cause, confidence, evidence, since, sentence, action } = finding
      const replica = evidence['replica']
      return [
        {
          name: spec.pools[pool]?.name ?? '',
          clause,
          cause,
          /** Share of the excess that the cause explains. */
          explains: confidence,
          since: new Date(wallAt(since)).toISOString(),
          sentence,
          action,
          evidence: replica === undefined ? evidence : { ...evidence, replica: spec.replicas[replica]?.name },
        },
      ]
    }),
  }
}
