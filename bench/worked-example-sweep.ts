/** `weir sweep` of the worked example in virtual time, and beside it the same requests over a real socket. */
import { execFileSync, fork } from 'node:child_process'
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { sweep } from '../src/cli/sweep.js'
import { livePoint, reachTarget } from '../src/cli/sweep-live.js'
import type { SweepFile } from '../src/config/sweep-file.js'
import { profileNamed } from '../src/sim/profiles.js'
import { presetOf } from '../src/sim/sweep.js'
import { drawnUsers, runClosedLoop, workedExampleMix } from '../src/sim/workload.js'
import { type SweepPoint, sweepPoint } from '../src/slo/sweep.js'
import { realtime } from './realtime.js'

const NAME = 'worked-example'
const SEED = 1
/** The warm-up of a live point is a fifth of it. */
const POINT_MS = 60_000
const WARM_MS = POINT_MS / 5
const TOLERANCE = 0.05
/** There and back on loopback, measured: 0.9 and 0.5 ms. */
const WAY_MS = 1.4

const results = (name: string): string => fileURLToPath(new URL(`results/${name}`, import.meta.url))
const slo = presetOf(NAME)?.slo
if (slo === undefined) throw new Error('the worked example has no promise')

const dir = mkdtempSync(join(tmpdir(), 'weir-sweep-'))
const out = join(dir, `${NAME}.json`)
let text = ''
const began = performance.now()
const code = await sweep.run(['--engine', NAME, '--out', out], {
  out: part => {
    text += part
  },
  err: part => process.stderr.write(part),
  env: {},
})
const seconds = (performance.now() - began) / 1000
if (code !== 0) throw new Error(`weir sweep ended with ${code}`)
const file = JSON.parse(readFileSync(out, 'utf8')) as SweepFile
copyFileSync(join(dir, `${NAME}.svg`), results('worked-example-sweep.svg'))
rmSync(dir, { recursive: true })

/** The requests of one seed that end between warm-up and end, in virtual time. */
function virtual(concurrency: number): SweepPoint {
  const { outcomes } = runClosedLoop({
    profile: profileNamed(NAME),
    users: drawnUsers(workedExampleMix, 0, SEED),
    concurrency,
    requests: Number.POSITIVE_INFINITY,
    warmup: 0,
    untilMs: POINT_MS,
  })
  const measured = outcomes.filter(outcome => outcome.endedAt >= WARM_MS)
  const answers = measured.map(outcome => ({ complete: true, ...outcome }))
  return sweepPoint(concurrency, answers, POINT_MS - WARM_MS, slo!)
}

const first = realtime(process.pid)

async function live(concurrency: number): Promise<SweepPoint> {
  const engine = fork(fileURLToPath(new URL('../src/sim/process.ts', import.meta.url)), [
    JSON.stringify({ profile: NAME, exact: true, wayMs: WAY_MS }),
  ])
  const url = await new Promise<string>((resolve, reject) => {
    engine.once('message', message => resolve((message as { readonly url: string }).url))
    engine.once('exit', code => reject(new Error(`the engine ended with ${code}`)))
  })
  realtime(engine.pid)
  const { target } = await reachTarget(url, { model: undefined, exactLengths: true }, {})
  const users = drawnUsers(workedExampleMix, 0, SEED)
  const stop = new AbortController()
  const { point } = await livePoint(target, users, concurrency, POINT_MS, slo!, stop.signal, () => {})
  engine.kill()
  if (point === undefined) throw new Error(`nothing ended at concurrency ${concurrency}`)
  return point
}

const checks: (readonly [what: string, got: string, wanted: string, ok: boolean])[] = []
const check = (what: string, got: number | null, wanted: number, share: number): void => {
  const ok = got !== null && Math.abs(got / wanted - 1) <= share
  checks.push([what, String(got), share === 0 ? String(wanted) : `${wanted} ± ${share * 100} %`, ok])
}
const at = (concurrency: number): SweepPoint | undefined =>
  file.points.find(point => point.concurrency === concurrency)
check('knee', file.knee, 12, 0)
checks.push(['binding clause', file.binding, 'ttft', file.binding === 'ttft'])
check('budget, tok/s per GPU', file.budget_tok_s_per_gpu, 913, 0.04)
checks.push([
  'steady band',
  `${file.steady?.low} to ${file.steady?.high}`,
  '8 to 10',
  file.steady?.low === 8 && file.steady.high === 10,
])
check('scale-out line, tok/s per GPU', file.scale_out_at, 639, 0.04)
check('output at 48, tok/s', at(48)?.output_tok_s ?? null, 1799, 0.02)
checks.push([
  'throughput at 48',
  file.conclusion.includes(' at 48') ? 'does not count' : 'counts',
  'does not count',
  file.not_capacity.some(point => point.concurrency === 48) && file.conclusion.endsWith('does not count'),
])

const rows: string[] = []
const busy = loadavg()[0]?.toFixed(1)
for (const concurrency of [4, 12]) {
  const [planned, measured] = [virtual(concurrency), await live(concurrency)]
  const pairs: readonly (readonly [string, number, number])[] = [
    ['TTFT p50, ms', measured.ttft_ms.p50 ?? 0, planned.ttft_ms.p50 ?? 0],
    ['TPOT p50, ms', measured.tpot_ms.p50 ?? 0, planned.tpot_ms.p50 ?? 0],
    ['output tok/s', measured.output_tok_s, planned.output_tok_s],
    ['requests', measured.requests, planned.requests],
  ]
  for (const [what, got, wanted] of pairs) {
    const off = got / wanted - 1
    const shown = `${off < 0 ? '' : '+'}${(off * 100).toFixed(1)} %`
    rows.push(`| ${concurrency} | ${what} | ${got.toFixed(1)} | ${wanted.toFixed(1)} | ${shown} |`)
    if (what !== 'requests')
      checks.push([`${what} over the socket at ${concurrency}`, shown, '± 5 %', Math.abs(off) <= TOLERANCE])
  }
}

const git = (...args: string[]): string => execFileSync('git', args, { encoding: 'utf8' }).trim()
const changed =
  git(
    'status',
    '--porcelain',
    '--',
    'src/sim',
    'src/slo',
    'src/cli',
    'src/load',
    'bench/worked-example-sweep.ts',
  ) === ''
    ? ''
    : ', changed'
const report = `# \`weir sweep\` of the worked example

Command: \`node --import @tapjs/typescript/import bench/worked-example-sweep.ts\`
Commit ${git('rev-parse', '--short', 'HEAD')}${changed}, Node ${process.version}.

## In virtual time

\`weir sweep --engine worked-example\`, ${seconds.toFixed(1)} s on one core. A point is 4,000 requests of each of the seeds
from ${SEED} on, after 300 of warm-up: five seeds, more where the interval straddles the percentile.

\`\`\`
${text.replace(/\nwrote .*\n$/, '').trimEnd()}
\`\`\`

![TTFT, TPOT, goodput and throughput over concurrency](worked-example-sweep.svg)

## Over a real socket

The same engine behind a socket in a process of its own, the same users (seed ${SEED}) played by the sweep's closed loop for
${POINT_MS / 1000} s; measured is what ends after the first ${WARM_MS / 1000} s, in both.
${availableParallelism()} cores, load average ${busy} at the start; ${first ? 'both processes at realtime priority (`chrt`)' : 'no right to realtime priority: who else computes on the cores delays first tokens'}.
The ${WAY_MS} ms that a request takes there and a token takes back count as part of the profile's fixed overhead of 10 ms, as they would
where that was measured by a client: else a request that takes its turn just before an iteration begins in virtual time
would miss it over the socket, and wait 10 ms for the next.

| concurrency | figure | socket | virtual time | difference |
|---|---|---|---|---|
${rows.join('\n')}

## Checks

| check | got | wanted | |
|---|---|---|---|
${checks.map(([what, got, wanted, ok]) => `| ${what} | ${got} | ${wanted} | ${ok ? 'holds' : 'BROKEN'} |`).join('\n')}

913 tok/s, 639 and 1,799 are those of an independent simulator with the same coefficients and workload; the essay rounds
them to 900, 630 and 1,800.
`
writeFileSync(results('worked-example-sweep.md'), report)
process.stdout.write(report)
if (checks.some(([, , , ok]) => !ok)) process.exitCode = 1
