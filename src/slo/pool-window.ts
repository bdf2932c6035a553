/** What one pool did in one stretch of time, as plain numbers that anyone outside of its engines can count. */
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'

/**
 * Counts of one replica; they add up over replicas and over windows. "Judged" are requests of classes with bounds on
 * TTFT and TPOT; others only load the engines. A long prompt has more than 6,000 tokens, a big one more than 2,000.
 */
export const COUNTS = [
  // Requests sent to it, and their prompt tokens; all classes.
  'dispatched',
  'dispatchedTokens',
  'dispatchedLong',
  // Judged first tokens, those later than their bound, and of these the sums of prompt tokens, of prompt tokens that
  // were to be computed before and with them, and of times.
  'firsts',
  'late',
  'promptTokens',
  'lineTokens',
  'queueMs',
  'upstreamMs',
  // Prompts that are not long, sent while a long one was not through.
  'behindLong',
  'behindLongMs',
  'lateBehindLong',
  // Judged paces: ended streams, and streams that run.
  'paced',
  'slow',
  // Output tokens by what their gap fell together with: nothing, prefill; or stalls: over a second, or while the
  // replica's other streams went on for many steps.
  'quietTokens',
  'quietMs',
  'mixedTokens',
  'mixedMs',
  'stalls',
  'stallTokens',
  'stallMs',
  // Gaps of three times the usual and more; beside big prompts, and not.
  'besideBig',
  'spikesBesideBig',
  'besideNone',
  'spikesBesideNone',
  // Streams and their context, summed over the quiet tokens; and over time (ms).
  'quietStreams',
  'quietContext',
  'streamMs',
  // Answers that ended whole, and were throttled by a client that read slowly; their tokens, by the engine's usage.
  'ended',
  'throttled',
  'outputTokens',
  'cacheTold',
  'cached',
  // From the engine's own metrics. Readings come with how many of them told it; none is unknown.
  'kvReadings',
  'kvUsage',
  'kvFull',
  'waitingReadings',
  'waiting',
  'preemptionSpanMs',
  'preemptions',
  // Sums for the line of a quiet step over streams and context (in 1,000 tokens), one row a quarter of a second.
  'rows',
  'rowD',
  'rowX',
  'rowS',
  'rowDD',
  'rowDX',
  'rowXX',
  'rowDS',
  'rowXS',
  // And for the line of the upstream's TTFT over `lineTokens` (in 1,000), where the prompt was not beside a long one.
  'lines',
  'lineT',
  'lineW',
  'lineWW',
  'lineWT',
] as const
export type Count = (typeof COUNTS)[number]
export type Counts = Readonly<Record<Count, number>>

export interface ReplicaWindow {
  readonly replica: ReplicaId
  /** For how long it has been up. */
  readonly ageMs: Ms
  readonly counts: Counts
}

export interface PoolWindow {
  readonly spanMs: Ms
  /** Requests whose body was complete, all classes; those shed. */
  readonly arrivals: number
  readonly shed: number
  /** Mean of the replicas that took requests. */
  readonly replicasInUse: number
  /** Prompt tokens of judged requests; undefined where none came. */
  readonly promptP50: number | undefined
  readonly promptP90: number | undefined
  /** Judged requests that wait for a replica and are late already. */
  readonly lateInQueue: number
  readonly counts: Counts
  readonly replicas: readonly ReplicaWindow[]
}

/** What a diagnosis looks at. */
export interface Look {
  /** Tells whether a clause moved. */
  readonly minute: PoolWindow
  /** The end of it, which a fault that has just begun fills sooner: tells the cause. */
  readonly recent: PoolWindow
}

export function addCounts(all: readonly Counts[]): Counts {
  return countsBy(name => all.reduce((sum, counts) => sum + counts[name], 0))
}

export function countsBy(value: (name: Count, index: number) => number): Counts {
  return Object.fromEntries(COUNTS.map((name, index) => [name, value(name, index)])) as Record<Count, number>
}

/** Two windows of one pool as one; of the older one only so much counts. @param keep  0 to 1 */
export function mergeWindows(older: PoolWindow, newer: PoolWindow, keep: number): PoolWindow {
  const scaled = (counts: Counts): Counts => countsBy(name => counts[name] * keep)
  const [from, to] = [older.spanMs * keep, newer.spanMs]
  const mean = (a: number, b: number): number => (a * from + b * to) / (from + to)
  const known = (a: number | undefined, b: number | undefined): number | undefined =>
    a === undefined || b === undefined ? (b ?? a) : mean(a, b)
  const replicas = newer.replicas.map(one => {
    const before = older.replicas.find(({ replica }) => replica === one.replica)
    return before === undefined ? one : { ...one, counts: addCounts([scaled(before.counts), one.counts]) }
  })
  return {
    spanMs: from + to,
    arrivals: older.arrivals * keep + newer.arrivals,
    shed: older.shed * keep + newer.shed,
    replicasInUse: mean(older.replicasInUse, newer.replicasInUse),
    promptP50: known(older.promptP50, newer.promptP50),
    promptP90: known(older.promptP90, newer.promptP90),
    lateInQueue: older.lateInQueue * keep + newer.lateInQueue,
    counts: addCounts([scaled(older.counts), newer.counts]),
    replicas,
  }
}

/** A quiet step: ms, and what a stream and 1,000 tokens of context add. */
export interface StepLine {
  readonly floorMs: Ms
  readonly perStreamMs: Ms
  readonly perContextMs: Ms
}

/** Rows below which a line says nothing. */
const LINE_ROWS = 40

/**
 * Least squares of the quiet step time, no coefficient below 0. Streams and context rise and fall together, so a weak
 * pull to 0 keeps one from taking all.
 * @returns undefined where too little was seen
 */
export function stepLine(c: Counts): StepLine | undefined {
  if (c.rows < LINE_ROWS) return undefined
  const pull = 0.01 * c.rows
  let [floorMs, perStreamMs, perContextMs] = [c.rowS / c.rows, 0, 0]
  for (let round = 0; round < 400; round++) {
    floorMs = Math.max(0, (c.rowS - perStreamMs * c.rowD - perContextMs * c.rowX) / c.rows)
    perStreamMs = Math.max(0, (c.rowDS - floorMs * c.rowD - perContextMs * c.rowDX) / (c.rowDD + pull))
    perContextMs = Math.max(0, (c.rowXS - floorMs * c.rowX - perStreamMs * c.rowDX) / (c.rowXX + pull))
  }
  return { floorMs, perStreamMs, perContextMs }
}

/**
 * Least squares of the upstream's TTFT over the prompt tokens in line: ms, and ms per 1,000 tokens.
 * @returns undefined where too little was seen, or all lines were as long
 */
export function prefillLine(c: Counts): { readonly floorMs: Ms; readonly perTokensMs: Ms } | undefined {
  if (c.lines < LINE_ROWS) return undefined
  const [w, t] = [c.lineW / c.lines, c.lineT / c.lines]
  const spread = c.lineWW / c.lines - w * w
  if (!(spread > 0)) return undefined
  const perTokensMs = Math.max(0, (c.lineWT / c.lines - w * t) / spread)
  return { floorMs: Math.max(0, t - perTokensMs * w), perTokensMs }
}
