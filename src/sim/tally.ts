/** The figures of one run: what was offered, what was good, by class, by weight and by size. */
import type { TrafficClass } from '../slo/slo.js'
import type { Verdict } from '../slo/verdict.js'
import type { Ms } from '../time.js'
import { type Fluid, idleServes } from './fluid.js'
import type { Job } from './job.js'
import type { EngineProfile } from './profiles.js'

/** One class, or all of them. Shares are 0 to 1; undefined: of nothing. */
export interface Figures {
  readonly offered: number
  readonly good: number
  readonly good_share: number | undefined
  /** good / (offered - shed) */
  readonly admitted_attainment: number | undefined
  /** The same of those alone that an idle replica serves as promised. */
  readonly servable_attainment: number | undefined
  readonly shed_share: number | undefined
  readonly good_share_by_prompt_tokens: number | undefined
  readonly good_share_by_output_tokens: number | undefined
  readonly good_share_by_work: number | undefined
  /** By quartiles of the prompt's length, the shortest first. */
  readonly good_by_prompt_quartile: readonly (number | undefined)[]
  /** Of the engine time that requests took, the share of those that were not good. */
  readonly wasted_work_share: number | undefined
  /** What the offered counted as. */
  readonly verdicts: Readonly<Partial<Record<Verdict, number>>>
  readonly ttft_p50_ms: Ms | undefined
  readonly tpot_p50_ms: Ms | undefined
  /** Not in `offered`: clients that left before anything could be said. */
  readonly excluded: number
  /** Attempts a request, those of clients that came again included. */
  readonly attempts: number | undefined
}

interface Entry {
  readonly verdict: Verdict
  readonly good: boolean
  readonly shed: boolean
  readonly servable: boolean
  readonly promptTokens: number
  readonly outputTokens: number
  readonly workMs: Ms
  readonly spentMs: Ms
  readonly ttftMs: Ms | undefined
  readonly tpotMs: Ms | undefined
}

export class Tally {
  readonly #classes: readonly TrafficClass[]
  readonly #fluids: readonly Fluid[]
  readonly #profile: EngineProfile
  readonly #entries: Entry[][]
  readonly #excluded: number[]
  readonly #attempts: number[]

  /**
   * @param fluids   by class id: what a request is reckoned to take
   * @param profile  of the replica whose idleness is the measure of what could be served: the fastest
   */
  constructor(classes: readonly TrafficClass[], fluids: readonly Fluid[], profile: EngineProfile) {
    this.#classes = classes
    this.#fluids = fluids
    this.#profile = profile
    this.#entries = classes.map(() => [])
    this.#excluded = classes.map(() => 0)
    this.#attempts = classes.map(() => 0)
  }

  /** @param again  its client comes again: this was not its end */
  ended(job: Job, verdict: Verdict, again: boolean): void {
    const { cls } = job.arrival
    this.#attempts[cls] = (this.#attempts[cls] ?? 0) + 1
    if (again) return
    if (!job.offered) {
      this.#excluded[cls] = (this.#excluded[cls] ?? 0) + 1
      return
    }
    const { promptTokens, outputTokens, sequence } = job
    const fluid = this.#fluids[cls] as Fluid
    const whole = { promptTokens, cachedTokens: 0, outputTokens }
    const done = sequence?.generated ?? 0
    const cachedTokens = sequence?.cachedTokens ?? 0
    // What had no output yet may be half-way through its prompt.
    const computed = done > 0 ? promptTokens : (sequence?.computed ?? 0)
    const spentMs =
      computed > cachedTokens
        ? fluid.workMs({ promptTokens: computed, cachedTokens, outputTokens: Math.max(1, done) })
        : 0
    this.#entries[cls]?.push({
      verdict,
      good: job.good,
      shed: job.end === 'shed',
      servable: idleServes(this.#profile, whole, this.#classes[cls] as TrafficClass),
      promptTokens,
      outputTokens,
      workMs: fluid.workMs({ ...whole, cachedTokens }),
      spentMs,
      ttftMs: job.ttftMs,
      tpotMs: job.tpotMs,
    })
  }

  /** All classes together. */
  get total(): Figures {
    return figures(this.#entries.flat(), sum(this.#excluded), sum(this.#attempts))
  }

  get byClass(): Readonly<Record<string, Figures>> {
    return Object.fromEntries(
      this.#classes.map(({ name }, cls) => [
        name,
        figures(this.#entries[cls] ?? [], this.#excluded[cls] ?? 0, this.#attempts[cls] ?? 0),
      ]),
    )
  }
}

const sum = (list: readonly number[]): number => list.reduce((a, b) => a + b, 0)

function figures(entries: readonly Entry[], excluded: number, attempts: number): Figures {
  const offered = entries.length
  const good = entries.filter(entry => entry.good)
  const admitted = entries.filter(entry => !entry.shed)
  const servable = admitted.filter(entry => entry.servable)
  const weighted = (weight: (entry: Entry) => number): number | undefined =>
    share(sum(good.map(weight)), sum(entries.map(weight)))
  const spent = sum(entries.map(entry => entry.spentMs))
  return {
    offered,
    good: good.length,
    good_share: share(good.length, offered),
    admitted_attainment: share(good.length, admitted.length),
    servable_attainment: share(servable.filter(entry => entry.good).length, servable.length),
    shed_share: share(offered - admitted.length, offered),
    good_share_by_prompt_tokens: weighted(entry => entry.promptTokens),
    good_share_by_output_tokens: weighted(entry => entry.outputTokens),
    good_share_by_work: weighted(entry => entry.workMs),
    good_by_prompt_quartile: quartiles(entries),
    wasted_work_share: share(sum(entries.map(entry => (entry.good ? 0 : entry.spentMs))), spent),
    verdicts: counts(entries),
    ttft_p50_ms: median(entries.flatMap(entry => entry.ttftMs ?? [])),
    tpot_p50_ms: median(entries.flatMap(entry => entry.tpotMs ?? [])),
    excluded,
    attempts: share(attempts, offered + excluded),
  }
}

const share = (part: number, whole: number): number | undefined => (whole === 0 ? undefined : part / whole)

function counts(entries: readonly Entry[]): Partial<Record<Verdict, number>> {
  const all: Partial<Record<Verdict, number>> = {}
  for (const { verdict } of entries) all[verdict] = (all[verdict] ?? 0) + 1
  return all
}

function quartiles(entries: readonly Entry[]): (number | undefined)[] {
  const sorted = entries.toSorted((a, b) => a.promptTokens - b.promptTokens)
  return [0, 1, 2, 3].map(quarter => {
    const from = Math.round((quarter * sorted.length) / 4)
    const part = sorted.slice(from, Math.round(((quarter + 1) * sorted.length) / 4))
    return share(part.filter(entry => entry.good).length, part.length)
  })
}

function median(values: readonly number[]): number | undefined {
  return nearestRank(values, 0.5)
}

/** The value at this share of the list, by nearest rank; undefined where the list is empty. */
export function nearestRank(values: readonly number[], at: number): number | undefined {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.max(0, Math.ceil(at * sorted.length) - 1)]
}
