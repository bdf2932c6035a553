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
  /** Mean time of a step, without and with it. */
  before: Ms = 0
  after: Ms = 0
  /** Prefill that stalls those who decode: what waits now, and the newcomer's. */
  queued: Ms = 0
  delay: Ms = 0
  /**
   * Part of the newcomer's that comes in the last chunk of those who wait. It would last from `lastFrom` to `lastEnd`, and
   * has those in it that were sent after `lateFrom` and have their first token in that time.
   */
  shared: Ms = 0
  lateFrom: Ms = 0
  lastFrom: Ms = 0
  lastEnd: Ms = 0
  /** Variance of what prefill adds, by ms of time. */
  jolt: Ms = 0

  /** Those who share that chunk would have their prompts beside the newcomer's in less than both take: a loss below 0. */
  get mayHelp(): boolean {
    return this.delay < this.shared
  }
}

/**
 * Counts the gain of one newcomer on one replica: `foresee`, and the whole loss. O(requests on it), and allocates
 * nothing.
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
  foresee(load, one, cachedTokens, spread, scale, now, into)
  into.loss = lost(running, into, weights, spread, now, Number.POSITIVE_INFINITY)
}

/** All of a gain but its loss: O(1). */
export function foresee(
  load: Load,
  one: Newcomer,
  cachedTokens: number,
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
  into.before = before
  into.after = after
  into.queued = queued
  into.delay = delay
  into.shared = pace * (cost.perPrefillMs * shared + (cost.perPairMs * pairs * shared) / fresh)
  into.lateFrom = ahead ? Number.NEGATIVE_INFINITY : load.prefillFrom
  into.lastEnd = now + Math.max(0, ttft - delay)
  into.lastFrom = into.lastEnd - (delay * inLast) / fresh - before
  const late = spread.ttftMs + spread.ttftShare * ttft
  const jolt = load.jolt(now)
  into.jolt = jolt
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
}

/**
 * Weighted chances to be good that requests under way lose to the newcomer of `gain`.
 * @param enough  at so much it stops: nobody asks how much more it is
 */
export function lost(
  running: Running,
  gain: Gain,
  weights: Float64Array,
  spread: Spread,
  now: Ms,
  enough: number,
): number {
  const { bound, from, firstAt, sentAt, dueAt, begun, tokens, group, lengths, count } = running
  const { before, after, shared, delay, jolt, lastEnd } = gain
  const most = gain.mayHelp ? Number.POSITIVE_INFINITY : enough * THIRDS
  // Four standard deviations of a time are at most this much, and so much of the time.
  const { paceShare } = spread
  const offShare = 4 * paceShare
  const offMs = 4 * Math.max(1, jolt / (2 * paceShare))
  const reserve = gain.queued + delay + offShare * gain.queued + offMs + now
  const slower = after + offShare * before
  let sum = 0
  for (let i = 0; i < count; i++) {
    const sofar = tokens[i] as number
    const each = bound[i] as number
    const at = i * THIRDS
    const waits = begun[i] === 0
    if (each > 0 && !waits) {
      // What it has in hand is linear in its length: safe at its shortest and its longest, it is safe at all.
      const margin = each - slower
      const left = Math.max(1, (lengths[margin > 0 ? at : at + THIRDS - 1] as number) - sofar)
      if (each * (sofar - 1) + (from[i] as number) - reserve + left * margin > 0) continue
    }
    // Prefill still to come before and after its first token, and what the newcomer adds to the latter.
    let wait = 0
    let { queued } = gain
    let stall = delay
    let inTime = 1
    let inTimeStill = 1
    if (waits) {
      const shares =
        shared > 0 && (sentAt[i] as number) > gain.lateFrom && (firstAt[i] as number) > gain.lastFrom
      const first = Math.max(now, shares ? lastEnd : (firstAt[i] as number))
      wait = first - now
      queued = Math.min(queued, Math.max(0, lastEnd - first))
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
      const left = Math.max(1, (lengths[at + k] as number) - sofar)
      const whole = sofar + left
      let room: number
      if (each > 0) {
        room = each * (whole - 1) + (whole < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0)
        if (!waits) room -= now - (from[i] as number)
      } else room = (from[i] as number) - now - wait
      const then = left * before + queued
      const off = paceShare * then
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
    if (sum > most) break
  }
  return sum / THIRDS
}

/** Tokens that requests under way are expected to grow by, half of what is left of each: they end in turn. */
export function growthOf({ tokens, lengths, count }: Running): number {
  let growth = 0
  for (let i = 0; i < count; i++)
    growth += Math.max(1, (lengths[i * THIRDS + 1] as number) - (tokens[i] as number))
  return growth / 2
}
