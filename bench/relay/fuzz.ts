/** Answers of upstreams, whole and damaged, against the strict reader for as long as is asked: `--minutes 5 [--seed N]`. */
import { parseArgs } from 'node:util'
import fc from 'fast-check'
import {
  answers,
  asMeant,
  asNodeReads,
  cuts,
  damaged,
  nodeOracle,
  sameHoweverCut,
} from '../../test/fixtures/answer-bytes.js'

const { values } = parseArgs({
  options: { minutes: { type: 'string', default: '1' }, seed: { type: 'string' } },
})
const RUNS = 1000
const end = performance.now() + Number(values.minutes) * 60_000
let seed = Number(values.seed ?? Date.now() % 2 ** 31)
let answersRead = 0
const oracle = await nodeOracle()
try {
  do {
    const run = { seed, numRuns: RUNS }
    fc.assert(fc.property(answers, cuts, asMeant), run)
    fc.assert(fc.property(damaged, cuts, sameHoweverCut), run)
    await fc.assert(
      fc.asyncProperty(damaged, bytes => asNodeReads(bytes, oracle)),
      run,
    )
    answersRead += 3 * RUNS
    seed++
  } while (performance.now() < end)
  process.stdout.write(`${answersRead} answers, nothing wrong\n`)
} catch (error) {
  process.stdout.write(`seed ${seed}: ${error instanceof Error ? error.message : String(error)}\n`)
  process.exitCode = 1
} finally {
  oracle.close()
}
