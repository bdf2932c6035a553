/** The SLOs in Sloth's format, prometheus/v1. */
import { showDuration } from '../config/units.js'
import type { Ms } from '../time.js'
import { type Counted, countersOf } from './counters.js'
import type { Promised } from './promised.js'

/** Sloth knows these periods without being told. */
const BUILT_IN_MS: Ms = 30 * 86_400_000

/**
 * One document, for the SLOs of one period: Sloth takes the period for a whole run.
 * @param promises  of one period
 */
export function slothSpec(promises: readonly Promised[], runbook: string) {
  return {
    version: 'prometheus/v1',
    service: 'weir',
    slos: promises.flatMap(promised =>
      countersOf(promised).map(counted => slothSlo(promised, counted, runbook)),
    ),
  }
}

function slothSlo(promised: Promised, { name, clause, bad, total }: Counted, runbook: string) {
  const { cls, slo, percentile, words } = promised
  const windows = slothWindows(promised)
  return {
    name,
    objective: percentile,
    description: `Class ${cls}, ${slo}: ${words}`,
    labels: { class: cls, slo, clause },
    sli: { events: { error_query: rate(bad), total_query: rate(total) } },
    alerting: {
      name: `Weir${slo === 'guard' ? 'Guard' : 'Target'}Burn`,
      // Sloth puts the labels above on what it records, and not on alerts.
      labels: { class: cls, slo, clause },
      annotations: { runbook_url: `${runbook}#clause-${clause}` },
      page_alert: slo === 'guard' ? { labels: { severity: 'page' } } : { disable: true },
      ticket_alert: windows === undefined ? { disable: true } : { labels: { severity: 'ticket' } },
    },
  }
}

const rate = (selector: string): string => `sum(rate(${selector}[{{.window}}]))`

/**
 * Windows that Sloth is to use for SLOs of this period and percentile; undefined where none could fire. Sloth wants
 * two pairs for pages and two for tickets: where fewer can fire, the slower ones stand twice.
 */
export function slothWindows({ periodMs, alerts }: Promised) {
  const [quick, slow = quick, third = quick, fourth = slow] = alerts
    .filter(({ fires }) => fires === 'yes')
    .map(({ longMs, shortMs, budgetShare }) => ({
      errorBudgetPercent: budgetShare * 100,
      shortWindow: showDuration(shortMs),
      longWindow: showDuration(longMs),
    }))
  if (quick === undefined) return undefined
  return {
    apiVersion: 'sloth.slok.dev/v1',
    kind: 'AlertWindows',
    spec: {
      sloPeriod: showDuration(periodMs),
      page: { quick, slow },
      ticket: { quick: third, slow: fourth },
    },
  }
}

/** Whether Sloth's own windows for the period are the same. */
export const slothKnows = (periodMs: Ms): boolean => periodMs === BUILT_IN_MS
