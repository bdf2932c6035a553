/** An SLO by itself: whether its clauses, its guard and its alerts agree. */
import { allowedMisses, burnAlert, MOST_MISSES, WINDOW_PAIRS } from '../slo/alerts.js'
import { type Path, showValue } from './error.js'
import type { ClassFields } from './fields.js'
import type { Complaint, Source } from './source.js'
import { durationMs, showDuration } from './units.js'
import type { Partly } from './validate.js'

const HOUR_MS = 3_600_000

/** ms; endless for `off` and `never`. */
export function spanOf(text: string): number {
  return durationMs(text) ?? Number.POSITIVE_INFINITY
}

export function checkSlo(source: Source, at: Path, slo: Partly<ClassFields['slo']> | undefined): void {
  const target = slo?.target
  if (target === undefined) return
  const wrong = (key: string, complaint: Complaint): void =>
    source.complain([...at, 'target', key], complaint)
  const streamed = target.ttft ?? target.tpot
  if (target.deadline !== undefined && streamed !== undefined) {
    wrong('deadline', {
      got: 'a deadline beside ttft or tpot',
      allowed: 'ttft and tpot (people who read a stream), or deadline (programs)',
      fix: 'remove one kind; traffic of both kinds is two classes',
    })
  } else if (!Object.hasOwn(target, 'deadline')) checkStreamClauses(target, wrong)
  checkAlert(source, [...at, 'target'], target)
  if (slo?.guard !== undefined) {
    checkGuard(source, [...at, 'guard'], target, slo.guard)
    checkAlert(source, [...at, 'guard'], slo.guard)
  }
}

function checkStreamClauses(
  { ttft, tpot, min_tokens_per_second: rate }: Partly<ClassFields['slo']['target']>,
  wrong: (key: string, complaint: Complaint) => void,
): void {
  const missing = ttft === undefined ? 'ttft' : 'tpot'
  if (ttft === undefined && tpot === undefined) {
    wrong('ttft', {
      got: 'nothing',
      allowed: 'ttft and tpot, or a deadline',
      fix: 'write ttft: 500ms and tpot: 40ms for people who read a stream, or deadline: 60s for programs',
    })
  } else if (ttft === undefined || tpot === undefined) {
    wrong(missing, {
      got: 'nothing',
      allowed: 'ttft and tpot together',
      fix: `write ${missing} too: one clause turns the wrong knob, since each is easily kept by breaking the other`,
    })
  }
  if (rate !== undefined && rate > 0) {
    wrong('min_tokens_per_second', {
      got: String(rate),
      allowed: 'beside a deadline only',
      fix: `remove it: tpot: ${Math.round(1000 / rate)}ms says the same of a stream`,
    })
  }
}

function checkGuard(
  source: Source,
  at: Path,
  target: Partly<ClassFields['slo']['target']>,
  guard: Partly<NonNullable<ClassFields['slo']['guard']>>,
): void {
  for (const key of ['ttft', 'tpot', 'deadline'] as const) {
    const [bound, promised] = [guard[key], target[key]]
    if (bound === undefined) continue
    if (promised === undefined) {
      const other = target.deadline === undefined ? 'ttft and tpot' : 'deadline'
      source.complain([...at, key], {
        got: `${key}, which the target has not`,
        allowed: 'clauses of the target',
        fix: `remove it, or guard ${other} instead`,
      })
    } else if (spanOf(bound) <= spanOf(promised)) {
      source.complain([...at, key], {
        got: showValue(bound),
        allowed: `more than the target’s ${promised}: the guard is the looser bound`,
        fix: `write ${showDuration(spanOf(promised) * GUARD_FACTORS[key])}, or remove it for the default`,
      })
    }
  }
  const promised = target.percentile
  if (guard.percentile !== undefined && promised !== undefined && guard.percentile < promised) {
    source.complain([...at, 'percentile'], {
      got: String(guard.percentile),
      allowed: `a number from the target’s ${promised} to 99.9`,
      fix: `write ${Math.max(99, promised)}, or remove it for the default`,
    })
  }
}

/** A default guard's bounds, as multiples of the target's (algorithms: section 4). */
export const GUARD_FACTORS = { ttft: 4, tpot: 2.5, deadline: 2 } as const

/**
 * The quickest alert asks for 2 % of the budget within an hour: at a long window and a low percentile that is more
 * than all requests failing can burn, and the alert stays silent.
 */
function checkAlert(
  source: Source,
  at: Path,
  { percentile, window }: { readonly percentile?: number | undefined; readonly window?: string | undefined },
): void {
  const windowMs = window === undefined ? undefined : spanOf(window)
  if (windowMs === undefined) return
  if (windowMs < 24 * HOUR_MS || windowMs > 90 * 24 * HOUR_MS) {
    source.complain([...at, 'window'], {
      got: showValue(window),
      allowed: 'from 1d to 90d',
      fix: windowMs < 24 * HOUR_MS ? 'write 1d or more: budgets are spent over days' : 'write 90d or less',
    })
    return
  }
  if (percentile === undefined) return
  const [quickest] = WINDOW_PAIRS
  const { factor, missShare, fires } = burnAlert(quickest, percentile, windowMs)
  if (fires !== 'never') return
  const longestMs = (MOST_MISSES * quickest.longMs) / (quickest.budgetShare * allowedMisses(percentile))
  const days = Math.floor(longestMs / (24 * HOUR_MS))
  const enough = Math.ceil((1 - MOST_MISSES / factor) * 1000) / 10
  source.complain([...at, 'percentile'], {
    got: `${percentile} over ${window}: its quickest burn alert (${round(factor)}x) would need ${Math.round(missShare * 100)} % misses`,
    allowed: `an alert that can fire: at most ${MOST_MISSES * 100} %`,
    fix: `write a percentile of ${enough} or more${days >= 1 ? `, or a window of ${days}d or less` : ''}`,
  })
}

const round = (value: number): number => Math.round(value * 100) / 100
