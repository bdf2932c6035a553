/**
 * What a decision of the core takes, by number of replicas.
 *
 *   node --import @tapjs/typescript/import bench/core/cost.ts [8,64,1000,10000]
 */
import { createWeir } from '../../src/policy/weir.js'
import { runCell, Stage } from '../../src/sim/cell.js'
import { readTraces, SCENARIOS } from './scenarios.js'

const sizes = (process.argv[2] ?? '8,64').split(',').map(Number)
const traces = await readTraces()
for (const count of sizes) {
  const chat = SCENARIOS.find(({ name }) => name === 'chat8')
  if (chat === undefined) throw new Error('no scenario chat8')
  // Warm for 20,000 requests, then 10,000 decisions: all of them are timed.
  const lengthMs = (8 / count) * 60_000
  const stage = new Stage(
    { ...chat, replicas: [{ engine: 'llama3-8b', count, speed: 1 }], warmupMs: 2 * lengthMs, lengthMs },
    traces,
  )
  const { decision_us_p50, decision_us_p99, offered, good_share } = runCell({
    stage,
    create: createWeir,
    load: 1.2,
    seed: 1,
    clock: performance,
  })
  console.log(
    `${count} replicas: p50 ${decision_us_p50?.toFixed(0)} us, p99 ${decision_us_p99?.toFixed(0)} us; ${offered} measured, ${good_share?.toFixed(3)} good`,
  )
}
