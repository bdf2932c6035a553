/** How many chat requests a second one simulated replica serves within the demo's SLO: the unit of `--load`. */
import { readTrace } from '../src/load/trace.js'
import { Engine } from '../src/sim/engine.js'
import { profileNamed } from '../src/sim/profiles.js'
import { EngineHost, World } from '../src/sim/world.js'
import { seededRng } from '../src/time.js'

const TTFT_MS = 500
const TPOT_MS = 40
const SEEDS = [1, 2, 3]
const SECONDS = 600

const trace = await readTrace('bench/data/azure2023-conv.csv.gz', { rng: seededRng(0) })
if (trace.kind !== 'requests') throw new Error('not a trace of requests')
const { rows } = trace
const name = process.argv[2] ?? 'llama3-8b'
const profile = profileNamed(name)

console.log(
  `${name}: Azure conversations 2023, Poisson, one replica, ${SECONDS} s, seeds ${SEEDS.join(', ')}`,
)
console.log('| requests/s | good within 500 ms and 40 ms | TTFT p90 ms | TPOT p90 ms | tokens/s |')
console.log('|---|---|---|---|---|')
for (const rate of (process.argv[3] ?? '4,6,8,10,12,14,16,18,20').split(',').map(Number)) {
  const points = SEEDS.map(seed => run(rate, seed))
  const mean = (of: (point: (typeof points)[number]) => number) =>
    points.reduce((sum, point) => sum + of(point), 0) / points.length
  console.log(
    `| ${rate} | ${(mean(p => p.good) * 100).toFixed(1)} % | ${mean(p => p.ttft).toFixed(0)} | ${mean(p => p.tpot).toFixed(1)} | ${mean(p => p.tokens).toFixed(0)} |`,
  )
}

function run(rate: number, seed: number) {
  const rng = seededRng(seed)
  const world = new World()
  const ttft: number[] = []
  const tpot: number[] = []
  let good = 0
  let tokens = 0
  const host = new EngineHost(world, new Engine({ profile }), step => {
    for (const one of step.ended) {
      const first = (one.firstTokenAt ?? Number.NaN) - one.arrivedAt
      const pace =
        one.generated < 2 ? 0 : ((one.lastTokenAt ?? 0) - (one.firstTokenAt ?? 0)) / (one.generated - 1)
      ttft.push(first)
      tpot.push(pace)
      tokens += one.generated
      if (first <= TTFT_MS && pace <= TPOT_MS) good++
    }
  })
  let sent = 0
  for (let at = 0; at < SECONDS * 1000; at += (-Math.log(1 - rng.next()) / rate) * 1000) {
    const row = rows[Math.floor(rng.next() * rows.length)]!
    sent++
    world.at(at, () => host.submit({ promptTokens: row.inputTokens, outputTokens: row.outputTokens }))
  }
  world.run()
  const p90 = (values: number[]) =>
    values.sort((a, b) => a - b)[Math.floor(values.length * 0.9)] ?? Number.NaN
  return { good: good / sent, ttft: p90(ttft), tpot: p90(tpot), tokens: tokens / SECONDS }
}
