/** What a fleet could serve if work were a fluid: the capacity that loads are multiples of, and what a request takes of it. */
import type { TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'
import type { EngineProfile } from './profiles.js'
import { stepMs } from './step-cost.js'

/** One request as the fluid sees it. */
export interface Parcel {
  readonly promptTokens: number
  /** Of them, found in a prefix cache. */
  readonly cachedTokens: number
  readonly outputTokens: number
}

/** Step time where no class has a bound on its pace. */
const PACELESS_SLOT_MS: Ms = 100

/** The step time at which a fleet is full: the tightest pace that a class was promised. */
export function slotOf(classes: readonly TrafficClass[]): Ms {
  const paces = classes.flatMap(({ target: { clauses } }) =>
    clauses.kind === 'stream' ? [clauses.tpotMs] : [],
  )
  return paces.length === 0 ? PACELESS_SLOT_MS : Math.min(...paces)
}

/** What requests bring into steps, a mean of each. */
interface Load {
  /** Computed: new prompt tokens, and one a decode. */
  tokens: number
  /** Prefill chunks and decodes. */
  sequences: number
  /** Pairs of prefill attention. */
  attention: number
  /** Tokens of context read, summed over decodes. */
  kvTokens: number
}

function loadOf({ promptTokens, cachedTokens, outputTokens }: Parcel): Load {
  const fresh = Math.max(1, promptTokens - cachedTokens)
  const decodes = outputTokens - 1
  return {
    tokens: fresh + decodes,
    sequences: 1 + decodes,
    attention: fresh * (promptTokens - fresh + fresh / 2),
    kvTokens: decodes * (promptTokens + outputTokens / 2),
  }
}

/**
 * How one replica is filled by a mix. Requests arrive as a fluid, at a steady rate, in the shares of the mix; every step
 * lasts `slotMs`, computes the prompts that came in it, and gives each running stream a token. The rate is capacity
 * where the step's own cost, by the engine's true coefficients, is `slotMs`, or where the streams fill the KV memory.
 * There is no queue and no chance in it, and no step is ever idle or late: it is about what a perfect router would
 * reach at the pace that was promised, and more than any static limit does (bench/results/fleet-capacity.md).
 */
export class Fluid {
  /** Requests a second that fill one replica. */
  readonly rps: number
  readonly #profile: EngineProfile
  /** Matrix multiply of one token in a full step. */
  readonly #tokenMs: Ms

  /** @param mix  requests in the shares in which they come; not empty */
  constructor(profile: EngineProfile, mix: readonly Parcel[], slotMs: Ms) {
    const mean: Load = { tokens: 0, sequences: 0, attention: 0, kvTokens: 0 }
    for (const parcel of mix) {
      const load = loadOf(parcel)
      for (const key of ['tokens', 'sequences', 'attention', 'kvTokens'] as const) {
        mean[key] += load[key] / mix.length
      }
    }
    const full = (perStep: number): boolean =>
      perStep * mean.kvTokens > profile.kvTokens ||
      stepMs(
        profile.cost,
        perStep * mean.tokens,
        perStep * mean.sequences,
        perStep * mean.attention,
        perStep * mean.kvTokens,
      ) > slotMs
    let low = 0
    let high = 1
    while (!full(high)) high *= 2
    for (let halving = 0; halving < 60; halving++) {
      const middle = (low + high) / 2
      if (full(middle)) high = middle
      else low = middle
    }
    this.#profile = profile
    this.rps = (low / slotMs) * 1000
    const { cost } = profile
    const tokens = low * mean.tokens
    this.#tokenMs = tokens === 0 ? 0 : stepMs(cost, tokens, 0, 0, 0) / tokens
  }

  /**
   * What a request takes of a replica's time: its part of full steps, so that capacity is one second a second of it
   * (where the pace, not the memory, is the limit).
   */
  workMs(parcel: Parcel): Ms {
    const { cost } = this.#profile
    const { tokens, sequences, attention, kvTokens } = loadOf(parcel)
    return (
      this.#tokenMs * tokens +
      cost.cMsPerSeq * sequences +
      (cost.aMsPerMtok2 * attention) / 1e6 +
      (cost.dMsPerKkv * kvTokens) / 1000
    )
  }
}

/** Whether a replica that has nothing else to do, and nothing in its cache, serves it as promised. */
export function idleServes(profile: EngineProfile, parcel: Parcel, traffic: TrafficClass): boolean {
  const { cost, maxBatchedTokens, overheadMs } = profile
  let ttftMs = overheadMs
  for (let past = parcel.cachedTokens; past < parcel.promptTokens; past += maxBatchedTokens) {
    const chunk = Math.min(maxBatchedTokens, parcel.promptTokens - past)
    ttftMs += stepMs(cost, chunk, 1, chunk * (past + chunk / 2), 0)
  }
  const { promptTokens, outputTokens } = parcel
  const paceMs = stepMs(cost, 1, 1, 0, promptTokens + outputTokens / 2)
  const { clauses } = traffic.target
  if (clauses.kind === 'stream') return ttftMs <= clauses.ttftMs && paceMs <= clauses.tpotMs
  return ttftMs + (outputTokens - 1) * paceMs <= clauses.deadlineMs
}
