/** What the demo shows: Weir's own verdicts beside the times that the traffic player took with its own clock. */
import type { Quantiles, Summary } from '../load/report.js'

/** Of `/api/state`: what Weir has counted for one class. */
export interface WeirClass {
  readonly name: string
  readonly arrivals: number
  readonly offered: number
  readonly verdicts: Readonly<Record<string, number>>
}

export interface DemoClass {
  readonly offered: number
  readonly good: number
  /** good / offered. */
  readonly attainment: number | null
  /** good / (offered - shed): never to be shown without the shed share. */
  readonly admitted_attainment: number | null
  readonly shed_share: number | null
  readonly ttft_ms: Quantiles
  readonly tpot_ms: Quantiles
}

/** The object that `--json` prints. */
export interface DemoResult {
  /** The arrival window; rates divide by it. */
  readonly duration_s: number
  readonly load: number
  /** Sent by the player. */
  readonly arrivals: number
  readonly offered: number
  /** Weir's; they sum to arrivals. */
  readonly verdicts: Readonly<Record<string, number>>
  readonly goodput_rps: number
  readonly classes: Readonly<Record<string, DemoClass>>
  /** The player's own judgement of the same requests, by its own clock. */
  readonly player: { readonly verdicts: Readonly<Record<string, number>>; readonly late_ms: Quantiles }
}

export function demoResult(load: number, summary: Summary, classes: readonly WeirClass[]): DemoResult {
  const verdicts: Record<string, number> = {}
  const byClass: Record<string, DemoClass> = {}
  let offered = 0
  let good = 0
  for (const cls of classes) {
    for (const [name, count] of Object.entries(cls.verdicts)) {
      if (count > 0) verdicts[name] = (verdicts[name] ?? 0) + count
    }
    const ownGood = cls.verdicts['good'] ?? 0
    const shed = cls.verdicts['shed'] ?? 0
    const seen = summary.classes[cls.name]
    byClass[cls.name] = {
      offered: cls.offered,
      good: ownGood,
      attainment: ratio(ownGood, cls.offered),
      admitted_attainment: ratio(ownGood, cls.offered - shed),
      shed_share: ratio(shed, cls.offered),
      ttft_ms: seen?.ttft_ms ?? NO_VALUES,
      tpot_ms: seen?.tpot_ms ?? NO_VALUES,
    }
    offered += cls.offered
    good += ownGood
  }
  return {
    duration_s: summary.duration_s,
    load,
    arrivals: summary.arrivals,
    offered,
    verdicts,
    goodput_rps: summary.duration_s > 0 ? good / summary.duration_s : 0,
    classes: byClass,
    player: { verdicts: summary.verdicts, late_ms: summary.late_ms },
  }
}

/** Requests that Weir has given no verdict, or one too many: 0 unless Weir is wrong. */
export function unaccounted(result: DemoResult): number {
  return result.arrivals - Object.values(result.verdicts).reduce((sum, count) => sum + count, 0)
}

const NO_VALUES: Quantiles = { p50: null, p90: null, p99: null }

function ratio(part: number, whole: number): number | null {
  return whole > 0 ? part / whole : null
}

/**
 * The live table.
 * @param inFlight  requests under way, by class
 */
export function demoTable(result: DemoResult, inFlight: (name: string) => number): string {
  const head = [
    'class',
    'offered',
    'good',
    'good/offered',
    'of admitted',
    'shed',
    'TTFT p50/p90',
    'TPOT p50/p90',
  ]
  const rows = Object.entries(result.classes).map(([name, cls]) => [
    name,
    String(cls.offered),
    String(cls.good),
    percent(cls.attainment),
    percent(cls.admitted_attainment),
    percent(cls.shed_share),
    pair(cls.ttft_ms, 0),
    pair(cls.tpot_ms, 1),
    String(inFlight(name)),
  ])
  const table = [[...head, 'in flight'], ...rows]
  const widths = table[0]!.map((_, i) => Math.max(...table.map(row => row[i]!.length)))
  const lines = table.map(row =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!))),
  )
  return `${lines.map(line => `  ${line.join('   ')}`).join('\n')}\n`
}

function percent(share: number | null): string {
  return share === null ? '-' : `${(share * 100).toFixed(1)} %`
}

function pair(values: Quantiles, digits: number): string {
  const show = (value: number | null): string => (value === null ? '-' : value.toFixed(digits))
  return `${show(values.p50)}/${show(values.p90)} ms`
}
