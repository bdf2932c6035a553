/**
 * Whether the simulator tells the truth about a live run: engines and router behind real sockets, and the same
 * arrivals in virtual time; good / offered of both, which may differ by 5 %.
 *
 *   node --import @tapjs/typescript/import bench/fleet/parity.ts [seconds] [policy]
 *
 * Engines run in processes of their own, all at realtime priority where that is allowed: on a machine that is busy with
 * other things the live run would be late by itself.
 */
import { type ChildProcess, fork } from 'node:child_process'
import pino from 'pino'
import { policyNamed } from '../../src/baselines/named.js'
import { showProblems } from '../../src/config/error.js'
import { loadData } from '../../src/config/load.js'
import { startWeir } from '../../src/http/weir.js'
import type { PlayRecord } from '../../src/load/call.js'
import { Player } from '../../src/load/player.js'
import { readTrace } from '../../src/load/trace.js'
import { Fleet } from '../../src/sim/fleet.js'
import type { Arrival } from '../../src/sim/job.js'
import { profileNamed } from '../../src/sim/profiles.js'
import { TPOT_JITTER_MS, TPOT_MIN_TOKENS } from '../../src/slo/slo.js'
import { seededRng } from '../../src/time.js'
import { configData } from '../../test/fixtures/weir.js'
import { realtime } from '../realtime.js'

const seconds = Number(process.argv[2] ?? 60)
const named = policyNamed(process.argv[3] ?? 'static-cap')
if (named === undefined) throw new Error(`no policy ${process.argv[3]}`)
const ENGINE = 'qwen3-32b'
const REPLICAS = 2
/** 1.2 times what a fluid fills two of them with. */
const PER_SECOND = 24
const NOISE = 0.02

const trace = await readTrace('bench/data/azure2023-conv.csv.gz', { rng: seededRng(1) })
if (trace.kind !== 'requests') throw new Error('not a trace of requests')

const engines: ChildProcess[] = []
const urls = await Promise.all(
  Array.from({ length: REPLICAS }, (_, i) => {
    const options = JSON.stringify({ profile: ENGINE, model: 'm', seed: i + 1, noise: NOISE })
    const child = fork(new URL('../../src/sim/process.ts', import.meta.url), [options], {
      execArgv: process.execArgv,
    })
    engines.push(child)
    realtime(child.pid)
    return new Promise<string>(ready =>
      child.once('message', message => ready((message as { readonly url: string }).url)),
    )
  }),
)
const loaded = loadData(configData(urls, {}, { max_in_flight: 48 }), 'parity', {
  listen: { port: 0 },
  admin: { port: 0 },
})
if (loaded.ok === undefined) throw new Error(showProblems(loaded.problems))
const spec = loaded.ok.policy
const weir = await startWeir({
  config: loaded.ok,
  policy: named.create(spec, seededRng(7)),
  log: pino({ level: 'silent' }),
  version: '0.0.0-bench',
})
const first = realtime(process.pid)
const records: PlayRecord[] = []
await new Player({
  target: `http://127.0.0.1:${weir.data.port}`,
  traffic: [
    {
      label: 'chat',
      model: 'm',
      drainMs: 30_000,
      arrivals: { kind: 'poisson', perSecond: PER_SECOND, rows: trace.rows },
    },
  ],
  durationMs: seconds * 1000,
  rng: seededRng(3),
  onRecord: record => records.push(record),
}).play()
await weir.close()
for (const engine of engines) engine.kill()

const sent = records.toSorted((a, b) => a.sentAt - b.sentAt)
let at = 0
let good = 0
const ends: string[] = []
new Fleet({
  replicas: Array.from({ length: REPLICAS }, () => profileNamed(ENGINE)),
  policy: named.create(spec, seededRng(7)),
  classes: spec.classes,
  models: ['m'],
  noise: { sigma: NOISE, rng: seededRng(1) },
  traffic: {
    next(): Arrival | undefined {
      const record = sent[at++]
      if (record === undefined) return undefined
      const { inputTokens, wantedTokens } = record
      return { at: record.sentAt, cls: 0, promptTokens: inputTokens, outputTokens: wantedTokens }
    },
  },
  ended: job => {
    if (job.good) good++
    ends.push(job.end ?? '')
  },
}).run()

const { clauses } = spec.classes[0]?.target ?? {}
if (clauses?.kind !== 'stream') throw new Error('the class is one of streams')
/** By the player's own clock, the far side of all that is judged. */
const kept = ({ outcome, ttftMs, lastMs, tokens }: PlayRecord): boolean =>
  outcome === 'complete' &&
  ttftMs !== undefined &&
  ttftMs <= clauses.ttftMs &&
  (lastMs ?? 0) - ttftMs <= (tokens - 1) * clauses.tpotMs + (tokens < TPOT_MIN_TOKENS ? TPOT_JITTER_MS : 0)
const lives = sent.filter(kept).length / sent.length
const shed = (outcomes: readonly string[]): number =>
  outcomes.filter(outcome => outcome === 'shed').length / outcomes.length
const simulated = good / sent.length
const late = records.map(({ lateMs }) => lateMs).sort((a, b) => a - b)
console.log(`policy ${named.name}, ${sent.length} requests, the player late by ${late[Math.floor(late.length * 0.99)]?.toFixed(0)} ms (p99)${first ? ', at realtime priority' : ''}
live      good / offered ${lives.toFixed(4)} shed ${shed(records.map(({ outcome }) => outcome)).toFixed(4)}
simulated good / offered ${simulated.toFixed(4)} shed ${shed(ends).toFixed(4)}
apart by ${((simulated / lives - 1) * 100).toFixed(1)} %`)
process.exitCode = Math.abs(simulated / lives - 1) <= 0.05 ? 0 : 1
