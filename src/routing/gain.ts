/** Marginal goodput: what a newcomer's chance to be good is worth, less what its coming costs those who are there. */
import { promptPairs } from '../predict/flight.js'
import { expectedTtft, type Load } from '../predict/latency.js'
import { normalCdf } from '../predict/normal.js'
import { prefillMs, stepMs } from '../predict/step.js'
import { TPOT_JITTER_MS, TPOT_MIN_TOKENS } from '../slo/slo.js'
import type { Ms } from '../time.js'
import { type Running, THIRDS } from './running.js'

/** A request that asks for a place. Reused from one to the next. */
export interface Newcomer {
  promptTokens: number
  /** With a pace: when its first token is due. With a deadline: that moment. */
  dueAt: Ms
  /** Ms a token; 0: a deadline. */
  bound: Ms
  /** Its likely lengths. */
  readonly lengths: Float64Array
}

/** How far predictions are believed. */
export interface Spread {
  /** Of a time to first token: a constant, and a share of it. */
  ttftMs: Ms
  ttftShare: number
  /** Of a pace. */
  paceShare: number
}

/** Prefill can slow decoding so much, at most, that a prediction still says something. Source: algorithms 6.3. */
const PREFILL_SHARE_MAX = 0.85
/** Of the end of a whole answer, beside what its pace and its first token may be off. Source: algorithms 6.3. */
const END_MS: Ms = 300

/** What a replica would mean to a newcomer, and the newcomer to it. Written by `weigh`; reused. */
export class Gain {
  /** Its chance to be good, 0 to 1. */
  good = 0
  /** Weighted chances to be good that the others lose. */
  loss = 0
  ttftMs: Ms = 0
  /** Tokens that the others are expected to grow by, half of what is left of each: they end in turn. */
  growth = 0
}

/**
 * Counts the gain of one newcomer on one replica. O(requests on it), and allocates nothing.
 *
 * Each answer under way is taken at three likely lengths. What is left of its promise (its pace times all its tokens,
 * less the time since its first; or the time to its deadline) is compared with what is left to do, before and with the
 * newcomer: its prompt delays all that are there once, its stream makes every later step longer. What is lost already,
 * or safe either way, costs nothing.
 *
 * Goes wrong where the engine serves in another order than that of arrival, or serves others besides this router.
 * @param cachedTokens  of its prompt, expected in the replica's prefix cache
 * @param weights       by group: what a lost answer counts
 * @param scale         of predicted times, 0.5 to 1: undoes pessimism
 * Source: algorithms 6.3, 6.4.
 */
export function weigh(
  load: Load,
  running: Running,
  one: Newcomer,
  cachedTokens: number,
  weights: Float64Array,
  spread: Spread,
  scale: number,
  now: Ms,
  into: Gain,
): void {
  const { cost, budget } = load.fit
  const pace = scale * load.factor
  const fresh = Math.max(1, one.promptTokens - cachedTokens)
  const pairs = promptPairs(one.promptTokens, fresh)
  const share = Math.min(PREFILL_SHARE_MAX, scale * load.prefillShare(now))
  const streams = load.streams + load.waiting
  const context = load.contextTokens + load.waitingTokens
  const before = (pace * stepMs(cost, streams, context, 0)) / (1 - share)
  const after = (pace * stepMs(cost, streams + 1, context + one.promptTokens, 0)) / (1 - share)
  const delay =
    pace * Math.max(0, prefillMs(cost, 0, 0, fresh, pairs, budget) - cost.floorMs * Math.ceil(fresh / budget))
  const ttft = scale * expectedTtft(load, one.promptTokens, cachedTokens, now)
  into.ttftMs = ttft
  const { waitingTokens } = load
  // What waits stalls those who decode; of the batch under way a part is done.
  const queued =
    waitingTokens === 0
      ? 0
      : Math.min(
          Math.max(0, ttft - delay),
          pace *
            Math.max(
              0,
              prefillMs(cost, 0, 0, waitingTokens, load.waitingPairs, budget) -
                cost.floorMs * Math.ceil(waitingTokens / budget),
            ),
        )
  // Prompts that wait are computed in chunks, in order; those in the last one share it with the newcomer's beginning.
  const ahead = now + cost.netMs <= load.prefillFrom
  const chunk = Math.max(1, budget - streams)
  const inLast = load.waiting === 0 ? 0 : (ahead ? waitingTokens : load.lateTokens) % chunk
  const shared = inLast === 0 ? 0 : Math.min(fresh, chunk - inLast)
  others.before = before
  others.after = after
  others.queued = queued
  others.delay = delay
  others.shared = pace * (cost.perPrefillMs * shared + (cost.perPairMs * pairs * shared) / fresh)
  others.lateFrom = ahead ? Number.NEGATIVE_INFINITY : load.prefillFrom
  others.lastEnd = now + Math.max(0, ttft - delay)
  others.lastFrom = others.lastEnd - (delay * inLast) / fresh - before
  const late = spread.ttftMs + spread.ttftShare * ttft
  const jolt = load.jolt(now)
  let good = 0
  for (let k = 0; k < THIRDS; k++) {
    const length = one.lengths[k] as number
    const decode = (length - 1) * after
    const off = spread.paceShare * decode
    if (one.bound > 0) {
      const room = one.bound * (length - 1) + (length < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0)
      good += normalCdf((room - decode) / Math.sqrt(off * off + jolt * decode + 1))
    } else {
      const sigma = Math.sqrt(off * off + jolt * decode + late * late + END_MS * END_MS)
      good += normalCdf((one.dueAt - now - ttft - decode) / sigma)
    }
  }
  good /= THIRDS
  if (one.bound > 0) good *= normalCdf((one.dueAt - now - ttft) / late)
  into.good = good
  into.loss = lost(running, others, weights, spread, jolt, now)
  into.growth = others.growth
}

/** What the newcomer would change for the others. One for all, so that nothing is allocated. */
const others = {
  /** Mean time of a step, without and with it. */
  before: 0,
  after: 0,
  /** Prefill that stalls those who decode: what waits now, and the newcomer's. */
  queued: 0,
  delay: 0,
  /**
   * Part of the newcomer's that comes in the last chunk of those who wait. It would last from `lastFrom` to `lastEnd`, and
   * has those in it that were sent after `lateFrom` and have their first token in that time.
   */
  shared: 0,
  lateFrom: 0,
  lastFrom: 0,
  lastEnd: 0,
  growth: 0,
}

/** Weighted chances to be good that requests under way lose. */
function lost(
  running: Running,
  change: typeof others,
  weights: Float64Array,
  spread: Spread,
  jolt: number,
  now: Ms,
): number {
  const { bound, from, firstAt, sentAt, dueAt, begun, tokens, group, lengths, count } = running
  const { before, after, shared } = change
  let sum = 0
  let growth = 0
  for (let i = 0; i < count; i++) {
    const sofar = tokens[i] as number
    growth += Math.max(1, (lengths[i * THIRDS + 1] as number) - sofar)
    const each = bound[i] as number
    // Prefill still to come before and after its first token, and what the newcomer adds to the latter.
    let wait = 0
    let queued = change.queued
    let stall = change.delay
    let inTime = 1
    let inTimeStill = 1
    if (begun[i] === 0) {
      const shares =
        shared > 0 && (sentAt[i] as number) > change.lateFrom && (firstAt[i] as number) > change.lastFrom
      const first = Math.max(now, shares ? change.lastEnd : (firstAt[i] as number))
      wait = first - now
      queued = Math.min(queued, Math.max(0, change.lastEnd - first))
      if (shares && each > 0) {
        stall -= shared
        const sigma = spread.ttftMs + spread.ttftShare * wait
        const late = (dueAt[i] as number) - now - wait
        inTime = normalCdf(late / sigma)
        inTimeStill = normalCdf((late - shared) / sigma)
      }
    }
    let own = 0
    for (let k = 0; k < THIRDS; k++) {
      const left = Math.max(1, (lengths[i * THIRDS + k] as number) - sofar)
      const whole = sofar + left
      let room: number
      if (each > 0) {
        room = each * (whole - 1) + (whole < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0)
        if (begun[i] === 1) room -= now - (from[i] as number)
      } else room = (from[i] as number) - now - wait
      const then = left * before + queued
      const off = spread.paceShare * then
      const variance = off * off + jolt * then + 1
      const spare = room - then
      const spares = room - left * after - queued - stall
      // Lost either way, or safe either way: so are most, and a square is cheaper than its root.
      if (spare < 0 && spare * spare > 16 * variance) continue
      if (spares > 0 && spares * spares > 16 * variance && inTime === inTimeStill) continue
      const sigma = Math.sqrt(variance)
      own += inTime * normalCdf(spare / sigma) - inTimeStill * normalCdf(spares / sigma)
    }
    sum += own * (weights[group[i] as number] as number)
  }
  change.growth = growth / 2
  return sum / THIRDS
}
