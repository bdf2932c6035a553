/** What keeping the state costs: a save's CPU, and the longest piece of it that holds the event loop. */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { StateFile } from '../src/live/state-file.js'
import { SloBook } from '../src/slo/book.js'
import type { Slo, TrafficClass } from '../src/slo/slo.js'
import { judge } from '../src/slo/verdict.js'
import { seededRng } from '../src/time.js'
import { longestPiece } from './longest-piece.js'

const SECOND = 1000
const HOUR = 3600 * SECOND
const DAY = 24 * HOUR
const LIMIT_MS = 10
const SAVES = 20
const rng = seededRng(1)
const between = (from: number, to: number): number => Math.floor(from + (to - from) * rng.next())

function classOf(id: number): TrafficClass {
  const slo = (percentile: number, ttftMs: number): Slo => ({
    percentile,
    mode: 'joint',
    windowMs: 30 * DAY,
    clauses: { kind: 'stream', ttftMs, tpotMs: 40 },
  })
  const lengths = { p50: 1000, p90: 3000 }
  return {
    id,
    name: `class-${id}`,
    target: slo(90, 500),
    guard: slo(99, 2000),
    workload: {
      model: 'm',
      precision: undefined,
      inputTokens: lengths,
      outputTokens: lengths,
      cacheHit: 0,
    },
    priority: 0,
    pools: [0, 1],
    queue: undefined,
    ownBounds: undefined,
  }
}

/** A book of so many classes after 90 days of traffic, so that every slice of every window holds something. */
function fullBook(classes: number): { readonly book: SloBook; readonly now: number } {
  const traffic = Array.from({ length: classes }, (_, id) => classOf(id))
  const pools = [0, 1].map(id => ({ id, name: `pool-${id}`, model: 'm', gpusPerReplica: 1 }))
  const book = new SloBook({ classes: traffic, pools }, 0)
  let now = 0
  const play = (until: number, everyMs: number): void => {
    for (; now < until; now += everyMs)
      for (const cls of traffic) book.judged(judgementOf(cls, now), 'm', now)
  }
  play(87 * DAY, 3 * HOUR)
  play(90 * DAY - 2 * HOUR, HOUR / 6)
  play(90 * DAY - 60 * SECOND, 20 * SECOND)
  play(90 * DAY, SECOND)
  return { book, now }
}

function judgementOf(traffic: TrafficClass, now: number) {
  const tokens = between(20, 900)
  const first = now - 9000
  const last = first + tokens * between(5, 50)
  const asked = { arrivedAt: first, bodyAt: first, dispatchedAt: first, deadlineMs: Infinity, reported: 0 }
  const served = { traffic, pool: between(0, 2), stream: true, promptTokens: 0, ...asked }
  const promptTokens = between(10, 9000)
  const progress = {
    streamed: true,
    throttled: false,
    marks: tokens,
    longestChoiceMarks: tokens,
    longestGap: 50,
    firstEvent: first + between(50, 3000),
    firstOutput: first + between(50, 3000),
    firstVisible: undefined,
    lastOutput: last,
    usage: { promptTokens, completionTokens: tokens, cachedTokens: 5, reasoningTokens: undefined },
  }
  return judge(served, 'complete', progress, 1, last)
}

const dir = mkdtempSync(join(tmpdir(), 'weir-state-'))
const rows: string[] = []
let broken = false
for (const classes of [2, 20, 50, 100]) {
  const { book, now } = fullBook(classes)
  const kept = { name: 'slo', save: () => book.save({ now: () => now }), restore: () => undefined }
  const warn = (fields: object): never => {
    throw new Error(JSON.stringify(fields))
  }
  const state = new StateFile({ dir, kept: [kept], warn })
  // The first ones pay for compiling.
  for (let i = 0; i < 3; i++) await state.save()
  const longest: number[] = []
  const cpu = process.cpuUsage()
  for (let i = 0; i < SAVES; i++) longest.push(await longestPiece(state.save()))
  const { user, system } = process.cpuUsage(cpu)
  longest.sort((a, b) => a - b)
  const [median, worst] = [longest[SAVES / 2] ?? 0, longest[SAVES - 1] ?? 0]
  const size = statSync(join(dir, 'weir-state.json')).size / 1e6
  const ms = (user + system) / 1000 / SAVES
  broken ||= median > LIMIT_MS
  rows.push(
    `| ${classes} | ${size.toFixed(2)} MB | ${ms.toFixed(0)} ms | ${median.toFixed(1)} ms | ${worst.toFixed(1)} ms |`,
  )
}
rmSync(dir, { recursive: true })

const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
const report = `# Saving the state

Command: \`node --import @tapjs/typescript/import bench/state-file.ts\`
Commit ${commit}, Node ${process.version}, ${availableParallelism()} cores.

A book of verdicts after 90 days of traffic in every class, two pools each, is saved ${SAVES} times, as it is once a minute.
It is written in rows, and the event loop turns between two; the longest piece is the longest time between two turns
(goal: below ${LIMIT_MS} ms). CPU counts all threads, and the bench's own turning.

| classes | file | CPU a save | longest piece, median | worst |
|---|---|---|---|---|
${rows.join('\n')}
`
writeFileSync(fileURLToPath(new URL('results/state-file.md', import.meta.url)), report)
process.stdout.write(report)
if (broken) process.exitCode = 1
