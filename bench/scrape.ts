/** What a scrape costs: CPU, and the longest time that it holds the event loop, by how many series there are. */
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { Registry } from 'prom-client'
import type { Labelled } from '../src/metrics/labels.js'
import { Recorder } from '../src/metrics/record.js'
import { SloBook } from '../src/slo/book.js'
import type { Slo, TrafficClass } from '../src/slo/slo.js'
import { judge } from '../src/slo/verdict.js'
import { seededRng } from '../src/time.js'
import { longestPiece } from './longest-piece.js'

const HOUR = 3_600_000
const CPU_MS = 250
const PIECE_MS = 10
const SCRAPES = 20
const rng = seededRng(1)
const between = (from: number, to: number): number => Math.floor(from + (to - from) * rng.next())

/** Each class may go to each pool; a pool has four replicas. */
function specOf(classes: number, pools: number): Labelled {
  const slo = (percentile: number, scale: number): Slo => ({
    percentile,
    mode: 'joint',
    windowMs: 168 * HOUR,
    clauses: { kind: 'stream', ttftMs: 500 * scale, tpotMs: 40 * scale },
  })
  const ids = Array.from({ length: pools }, (_, id) => id)
  const model = 'llama-3.1-8b'
  return {
    classes: Array.from({ length: classes }, (_, id) => ({
      id,
      name: `class-${id}`,
      target: slo(90, 1),
      guard: slo(99, 3),
      workload: {
        model,
        precision: undefined,
        inputTokens: { p50: 1000, p90: 3000 },
        outputTokens: { p50: 100, p90: 400 },
        cacheHit: 0,
      },
      priority: 0,
      pools: ids,
      queue: undefined,
      ownBounds: undefined,
    })),
    pools: ids.map(id => ({ id, name: `pool-${id}`, model, gpusPerReplica: 1 })),
    replicas: ids.flatMap(pool =>
      Array.from({ length: 4 }, (_, i) => ({ id: 4 * pool + i, pool, name: `10.0.${pool}.${i}:8000` })),
    ),
    routes: [],
  } as unknown as Labelled
}

/** A recorder and a book after an hour of traffic of every class in every pool. */
function afterAnHour(spec: Labelled): Recorder {
  const book = new SloBook(spec, 0)
  let now = 0
  const state = {
    replicas: spec.replicas.map(({ id, pool }) => ({
      id,
      pool,
      inFlight: 3,
      up: true,
      outstandingPrefillTokens: 9,
    })),
    queues: spec.classes.map(({ id }) => ({ cls: id, depth: 0 })),
  }
  const recorder = new Recorder(
    new Registry(),
    spec,
    { version: '1.0.0', node: process.version },
    () => state as never,
    () => book.reading(now),
  )
  for (; now < 1.1 * HOUR; now += 30_000) {
    for (const traffic of spec.classes) {
      for (const pool of traffic.pools) {
        const judgement = judgementOf(traffic, pool, now)
        book.judged(judgement, traffic.workload.model, now)
        recorder.judged(judgement, traffic.workload.model)
      }
    }
  }
  return recorder
}

function judgementOf(traffic: TrafficClass, pool: number, now: number) {
  const tokens = between(20, 900)
  const begin = now - 9000
  const first = begin + between(50, 900)
  const last = first + tokens * between(5, 50)
  const asked = {
    arrivedAt: begin,
    bodyAt: begin,
    dispatchedAt: begin + 1,
    deadlineMs: Infinity,
    reported: 0,
  }
  const progress = {
    streamed: true,
    throttled: false,
    marks: tokens,
    longestChoiceMarks: tokens,
    longestGap: 50,
    firstEvent: first,
    firstOutput: first,
    firstVisible: first,
    lastOutput: last,
    usage: {
      promptTokens: between(10, 9000),
      completionTokens: tokens,
      cachedTokens: 5,
      reasoningTokens: undefined,
    },
  }
  return judge({ traffic, pool, stream: true, promptTokens: 0, ...asked }, 'complete', progress, 1, last)
}

const rows: string[] = []
let broken = false
for (const [classes, pools] of [
  [2, 2],
  [8, 4],
  [20, 5],
] as const) {
  const recorder = afterAnHour(specOf(classes, pools))
  const text = await recorder.text()
  const series = text.split('\n').filter(line => line !== '' && !line.startsWith('#')).length
  for (let i = 0; i < 5; i++) await recorder.text()
  const pieces: number[] = []
  const cpu: number[] = []
  for (let i = 0; i < SCRAPES; i++) {
    const before = process.cpuUsage()
    const begin = performance.now()
    pieces.push(await longestPiece(Promise.resolve().then(() => recorder.text())))
    const { user, system } = process.cpuUsage(before)
    // The bench's own turns are cheap: they are in it.
    cpu.push(Math.min((user + system) / 1000, performance.now() - begin))
  }
  const sorted = (list: number[]): number[] => list.toSorted((a, b) => a - b)
  const [ms, piece, worst] = [
    sorted(cpu)[SCRAPES / 2] ?? 0,
    sorted(pieces)[SCRAPES / 2] ?? 0,
    sorted(pieces).at(-1) ?? 0,
  ]
  const scale = Math.max(1, series / 20_000)
  broken ||= ms > CPU_MS * scale || piece > PIECE_MS
  rows.push(
    `| ${classes} x ${pools} | ${series.toLocaleString('en')} | ${(text.length / 1e6).toFixed(2)} MB | ${ms.toFixed(0)} ms | ${piece.toFixed(1)} ms | ${worst.toFixed(1)} ms |`,
  )
}

const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
const report = `# A scrape

Command: \`node --import @tapjs/typescript/import bench/scrape.ts\`
Commit ${commit}, Node ${process.version}, ${availableParallelism()} cores.

A recorder and a book of verdicts after an hour of traffic of every class in every pool, four replicas a pool, are scraped
${SCRAPES} times (goal: 20,000 series for ${CPU_MS} ms of CPU, no piece of the event loop's time longer than ${PIECE_MS} ms).

| classes x pools | series | text | CPU, median | longest piece, median | worst |
|---|---|---|---|---|---|
${rows.join('\n')}
`
writeFileSync(fileURLToPath(new URL('results/scrape.md', import.meta.url)), report)
process.stdout.write(report)
if (broken) process.exitCode = 1
