/** Is the model right: step time, TTFT and TPOT by a fit from live traffic, and the knee by it beside a real sweep. */
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { fileURLToPath } from 'node:url'
import { KneeSearch } from '../src/predict/knee.js'
import { ReplicaObserver } from '../src/predict/observe.js'
import { StepFit } from '../src/predict/step.js'
import { profileNamed } from '../src/sim/profiles.js'
import { type Live, live, REPLICAS } from './headroom/live.js'
import { type Swept, sweep } from './headroom/sweep.js'
import { type Call, type Workload, workloads } from './headroom/workloads.js'

const SEEDS = [1, 2, 3]
const SWEEP_SEEDS = [11, 12, 13]
const SWEEP_REQUESTS = 8000
const OWN_REQUESTS = 8000
const SECONDS = 900
const [LOW, HIGH] = [0.2, 0.7]
/** Goals: M13 of the algorithms, and issue 4. */
const GOALS = { ttft: 0.1, tpot: 0.05, knee: 0.1 }
const PROFILES = ['llama3-8b', 'qwen3-32b', 'llama2-70b']

const WHY = `
Why. TPOT is told at dispatch, and prompts that come later slow it: in hindsight the same model is off by less than 1 %, so
no better step model brings the 5 % of M13; short answers (code: 13 tokens) meet one prompt more or less. Long answers fill
the engine's memory long before their pace breaks; a model that was not told its size (\`kvTokens\`) cannot know, and told
it, it is still 6 to 10 % too high, for it has no preemption. The worked example and Mooncake spread by seed since 4,000 to 7,000 requests
place their 90th percentile no better; the column beside it, a sweep on the very requests, shows the model without that.
With agents' prompts up to 65,536 tokens in four sessions at random (an earlier run, not repeated) the knee was up to 11 % low,
and up to 17 % with the memory told, for the model has each call hold its whole context and shares no prefix in memory.
`

const write = process.argv.includes('--write')
const began = performance.now()
const lines: string[] = []
const say = (line = ''): void => {
  lines.push(line)
  console.log(line)
}
const percent = (share: number | undefined, digits = 1): string =>
  share === undefined ? '-' : `${(share * 100).toFixed(digits)} %`
const signed = (share: number): string => `${share < 0 ? '' : '+'}${(share * 100).toFixed(1)} %`
const span = (values: readonly number[], show: (value: number) => string): string =>
  `${show(values.reduce((sum, one) => sum + one, 0) / values.length)} (${show(Math.min(...values))} to ${show(Math.max(...values))})`

function ramp(load: Workload, truth: Swept, seed: number): Live {
  const rate = truth.edgeRequestsPerSec
  return live(load, { from: LOW * rate, to: HIGH * rate, seconds: SECONDS, seed })
}

function kneeOf(load: Workload, seen: Live, kvTokens: number | undefined) {
  const { cost, budget } = seen.fit
  const search = new KneeSearch({
    cost,
    budget,
    kvTokens,
    recent: seen.recent,
    classes: load.classes,
    near: 8,
    seed: 5,
  })
  while (!search.advance(1000));
  if (search.knee === undefined) throw new Error('no knee')
  return search.knee
}

/** The very requests of a live run, over and over: a sweep on them has the model's errors against it, and no others. */
function replayOf(load: Workload, calls: readonly Call[]): Workload {
  return {
    ...load,
    source: seed => {
      let at = Math.floor((seed * calls.length) / 3)
      return () => calls[at++ % calls.length] as Call
    },
  }
}

const errors: number[] = []
const own: number[] = []
const told: number[] = []
const missed: string[] = []

const all = await workloads()
const chatLoad = all.find(load => load.name === 'Azure chat')
if (chatLoad === undefined) throw new Error('no chat workload')

say('## Step time, TTFT and TPOT')
say()
say(
  '| engine | load at the end, requests/s a replica | step error, mean | TTFT error, median | p90 | bias | TPOT error, median | p90 | bias | TPOT in hindsight, median |',
)
say('|---|---|---|---|---|---|---|---|---|---|')
for (const profile of PROFILES) {
  const load = { ...chatLoad, profile }
  const truth = sweep(load, SWEEP_REQUESTS / 2, SWEEP_SEEDS)
  const runs = SEEDS.map(seed => ramp(load, truth, seed))
  const of = (get: (run: Live) => number | undefined): number[] => runs.map(run => get(run) ?? Number.NaN)
  const ttft = of(run => run.ttft.medianAbsolute)
  const tpot = of(run => run.tpot.medianAbsolute)
  say(
    `| ${[
      profile,
      (HIGH * truth.edgeRequestsPerSec).toFixed(1),
      span(
        of(run => run.fit.relativeError),
        percent,
      ),
      span(ttft, percent),
      span(
        of(run => run.ttft.p90Absolute),
        percent,
      ),
      span(
        of(run => run.ttft.bias),
        signed,
      ),
      span(tpot, percent),
      span(
        of(run => run.tpot.p90Absolute),
        percent,
      ),
      span(
        of(run => run.tpot.bias),
        signed,
      ),
      span(
        of(run => run.hindsight.medianAbsolute),
        percent,
      ),
    ].join(' | ')} |`,
  )
  if (Math.max(...ttft) > GOALS.ttft) missed.push(`TTFT on ${profile}: ${percent(Math.max(...ttft))}`)
  if (Math.max(...tpot) > GOALS.tpot) missed.push(`TPOT on ${profile}: ${percent(Math.max(...tpot))}`)
}
say()
say('## The knee')
say()
say(
  '| workload | engine | sweep: in flight, requests/s | seed | by the model: in flight, requests/s | binds | off | off a sweep on the requests it saw | memory told: off | TTFT, TPOT error, median | requests seen |',
)
say('|---|---|---|---|---|---|---|---|---|---|---|')
for (const load of all) {
  const truth = sweep(load, SWEEP_REQUESTS, SWEEP_SEEDS)
  for (const seed of SEEDS) {
    const seen = ramp(load, truth, seed)
    const knee = kneeOf(load, seen, undefined)
    const withKv = kneeOf(load, seen, profileNamed(load.profile).kvTokens)
    const mine = sweep(
      replayOf(load, seen.calls.flat()),
      Math.min(OWN_REQUESTS, seen.calls.flat().length),
      [0],
    )
    const off = (rate: number, from: number): number => rate / from - 1
    const error = off(knee.edgeRequestsPerSec, truth.edgeRequestsPerSec)
    const kvError = off(withKv.edgeRequestsPerSec, truth.edgeRequestsPerSec)
    const ownError = off(withKv.edgeRequestsPerSec, mine.edgeRequestsPerSec)
    errors.push(error)
    told.push(kvError)
    own.push(ownError)
    if (Math.abs(error) > GOALS.knee) missed.push(`knee of ${load.name}, seed ${seed}: ${signed(error)}`)
    if (Math.abs(kvError) > GOALS.knee)
      missed.push(`knee of ${load.name}, seed ${seed}, memory told: ${signed(kvError)}`)
    say(
      `| ${[
        load.name,
        load.profile,
        `${truth.concurrency}, ${truth.edgeRequestsPerSec.toFixed(2)}`,
        seed,
        `${knee.concurrency}, ${knee.edgeRequestsPerSec.toFixed(2)}`,
        withKv.binding ?? '-',
        signed(error),
        signed(ownError),
        signed(kvError),
        `${percent(seen.ttft.medianAbsolute, 0)}, ${percent(seen.tpot.medianAbsolute, 0)}`,
        seen.calls.flat().length,
      ].join(' | ')} |`,
    )
  }
}
say()
const within = (values: readonly number[]): string =>
  `${values.filter(value => Math.abs(value) <= GOALS.knee).length} of ${values.length}`
say(
  `Knees within 10 %: ${within(errors)}; with the engine's memory told ${within(told)}; of the latter against a sweep on the same requests ${within(own)}.`,
)
say()
say(`Missed: ${missed.length === 0 ? 'nothing' : ''}`)
for (const one of missed) say(`- ${one}`)

/** Median over rounds, for one core is shared with others. */
function markMicros(): number {
  const rounds = Array.from({ length: 15 }, () => {
    const observer = new ReplicaObserver(new StepFit(), 0)
    const flights = Array.from({ length: 40 }, () => {
      const flight = observer.dispatched(1000, 0, 0)
      observer.firstToken(flight, 0, 1)
      return flight
    })
    const from = performance.now()
    for (let step = 1; step <= 5000; step++) for (const flight of flights) observer.mark(flight, step * 10, 1)
    return ((performance.now() - from) * 1000) / (5000 * 40)
  })
  return rounds.sort((a, b) => a - b)[7] ?? Number.NaN
}

const micros = markMicros()
say()
say(`One mark costs the observer ${micros.toFixed(3)} us (40 streams, rows and fit in it; bound 0.2).`)

const git = (...args: string[]): string => execFileSync('git', args, { encoding: 'utf8' }).trim()
const changed = git(
  'status',
  '--porcelain',
  '--',
  'src/predict',
  'src/sim',
  'bench/headroom',
  'bench/headroom.ts',
)
if (write) {
  const head = `# Headroom: the model beside the engine

Command: \`node --import @tapjs/typescript/import bench/headroom.ts --write\`
Commit ${git('rev-parse', '--short', 'HEAD')}${changed === '' ? '' : ', changed'}, Node ${process.version}, ${cpus()[0]?.model ?? 'unknown CPU'}, ${((performance.now() - began) / 1000).toFixed(0)} s.

All in virtual time. ${REPLICAS} replicas, each with requests of its own, Poisson, rising from ${percent(LOW, 0)} to ${percent(HIGH, 0)} of the swept knee over
${SECONDS / 60} min; jitter of an iteration 2 %; fit from the cold prior. Seeds ${SEEDS.join(', ')}; spans are from the lowest to the highest of them.
The engine's cost is a p-norm of weights and matrix work, with quadratic attention, chunked prefill, KV blocks, preemption
and a prefix cache; the model's is linear with two floors. The router sees dispatches, first tokens, marks, ends and
\`usage\`, nothing else. Errors are counted over the last 512 requests, at 0.6 to 0.7 of the knee, where they are largest.

Chat promises 500 ms and 40 ms (Mooncake 2,000 and 40), p90, jointly; agents 60 s, p95, a fifth of the requests, prompts
up to 32,768 tokens. Long answers: input median 500 sigma 0.8, output median 2,500 sigma 0.6 up to 16,000. The sweep is a closed loop without think time on one engine, ${SWEEP_REQUESTS} requests a
point, three seeds taken together, every whole concurrency near the knee; requests/s are where the promise breaks, between the
last concurrency that holds and the next. "In hindsight": the model's pace for what then really was in each step, so that what
is left is the model's own error, and the rest is what nobody knew at dispatch. "Memory told": with the KV size, which
a router knows from the engine's metrics or not at all.

`
  writeFileSync(
    fileURLToPath(new URL('results/headroom.md', import.meta.url)),
    `${head}${lines.join('\n')}\n${WHY}`,
  )
}
if (micros > 0.2 || missed.some(one => one.startsWith('TTFT') || one.includes('memory told')))
  process.exitCode = 1
