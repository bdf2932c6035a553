/**
 * What "capacity" means: the best static limit on Azure chat at loads 1, 1.5 and 2, beside an independent study's .70,
 * .48 and .35 on the 8B engine (algorithms 0b).
 *
 *   node --import @tapjs/typescript/import bench/fleet/capacity.ts
 */
import { readTrace } from '../../src/load/trace.js'
import { createPolicy } from '../../src/policy/simple.js'
import { runCell, Stage } from '../../src/sim/cell.js'
import type { Scenario } from '../../src/sim/scenario.js'
import { seededRng } from '../../src/time.js'

const trace = await readTrace('bench/data/azure2023-conv.csv.gz', { rng: seededRng(1) })
const traces = new Map([['azure2023-conv', trace]])
const caps = [16, 24, 32, 48, 64, 80, 96, 128]

for (const [engine, arrivals] of [
  ['llama3-8b', 'recorded'],

  ['qwen3-32b', 'recorded'],
] as const) {
  const scenario: Scenario = {
    name: `chat on ${engine}`,
    replicas: [{ engine, count: 8, speed: 1 }],
    noise: 0.02,
    prefixCache: true,
    maxInFlight: 32,
    classes: [
      {
        name: 'chat',
        share: 1,
        percentile: 90,
        promise: { kind: 'stream', ttftMs: 500, tpotMs: 40 },
        requests: { kind: 'trace', trace: 'azure2023-conv', arrivals, maxInputTokens: 16_000 },
      },
    ],
    rate: { kind: 'steady' },
    faults: [],
    warmupMs: 30_000,
    lengthMs: 60_000,
  }
  const from = process.hrtime.bigint()
  let requests = 0
  const stage = new Stage(scenario, traces)
  console.log(
    `\n${engine}, ${arrivals}: ${stage.capacityRps[0]?.toFixed(1)} rps, idle share ${stage.idleShare[0]?.toFixed(4)}`,
  )
  for (const load of [1, 1.5, 2]) {
    const row = caps.map(cap => {
      const capped = new Stage({ ...scenario, maxInFlight: cap }, traces)
      const result = runCell({ stage: capped, create: createPolicy, load, seed: 3 })
      requests += result.offered * 1.6
      return result.good_share ?? 0
    })
    console.log(
      `${load}: best ${Math.max(...row).toFixed(3)} at ${caps[row.indexOf(Math.max(...row))]};`,
      row.map(x => x.toFixed(2)).join(' '),
    )
  }
  console.log(`${(Number(process.hrtime.bigint() - from) / 1e3 / requests).toFixed(1)} us a request`)
}
