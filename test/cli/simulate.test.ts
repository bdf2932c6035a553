/** `weir simulate`: one cell as an object, the curve of a config, the shipped scenarios, and what is refused. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { simulate } from '../../src/cli/simulate.js'
import { readScenario, readTraces } from '../../src/cli/simulate-scenario.js'
import { Stage } from '../../src/sim/cell.js'
import type { TraceData } from '../../src/sim/mix.js'

async function run(args: string[]) {
  let [out, err] = ['', '']
  const io = {
    out: (text: string) => {
      out += text
    },
    err: (text: string) => {
      err += text
    },
    env: {},
  }
  const code = await simulate.run(args, io)
  return { code, out, err }
}

const SMALL = `
name: small
fleet:
  replicas: [{ engine: llama3-8b, count: 2 }, { engine: llama3-8b, speed: 0.5 }]
classes:
  chat:
    share: 0.7
    slo: { ttft: 500ms, tpot: 40ms }
    lengths: { input: { median: 800, sigma: 1, min: 16, max: 8000 }, output: { median: 60, sigma: 0.8, min: 2, max: 400 } }
  agent:
    share: 0.3
    slo: { deadline: 20s }
    queue: { max: 50, wait: 15s }
    lengths: { input: { median: 4000, sigma: 0.5, min: 16, max: 9000 }, output: { median: 90, sigma: 0.8, min: 2, max: 400 } }
rate: { shape: burst, at: 8s, for: 2s, factor: 2 }
faults:
  - { kind: crash, at: 10s, for: 3s, replica: 0 }
  - { kind: slow, at: 6s, for: 2s, replica: 1, factor: 2 }
  - { kind: foreign, at: 5s, for: 5s, replica: 2, share: 0.3 }
  - { kind: cache-flush, at: 9s }
  - { kind: prompt-shift, at: 12s, for: 2s, factor: 3 }
  - { kind: aborts, share: 0.05, within: 2s }
  - { kind: retries, times: 2, obey: true }
warmup: 4s
length: 12s
`

const scenarioFile = (t: Test, text: string): string => {
  const file = join(t.testdir(), 'scenario.yaml')
  writeFileSync(file, text)
  return file
}

t.test(
  'one cell is one object with the figures of all and of each class, the same for the same seed',
  async t => {
    const file = scenarioFile(t, SMALL)
    const cell = async (seed: number) => {
      const { code, out } = await run(['--scenario', file, '--load', '1.3', '--seed', String(seed), '--json'])
      t.equal(code, 0)
      const { decision_us_p50, decision_us_p99, ...same } = JSON.parse(out)
      t.ok(decision_us_p50 > 0 && decision_us_p99 >= decision_us_p50)
      return same
    }
    const once = await cell(1)
    t.strictSame(await cell(1), once)
    t.notSame(await cell(2), once)
    t.match(once, { scenario: 'small', policy: 'weir', load: 1.3, seed: 1 })
    const { chat, agent } = once.classes
    for (const figures of [once, chat, agent]) {
      t.ok(figures.offered > 20)
      t.equal(figures.good_share, figures.good / figures.offered)
      t.equal(
        figures.offered,
        Object.values(figures.verdicts as Record<string, number>).reduce((a, b) => a + b, 0),
      )
      const shed = figures.verdicts.shed ?? 0
      t.equal(figures.shed_share, shed / figures.offered)
      t.equal(figures.admitted_attainment, figures.good / (figures.offered - shed))
      t.equal(figures.good, figures.verdicts.good)
    }
    t.equal(chat.offered + agent.offered, once.offered)
    t.ok(once.recovery_ms === null || once.recovery_ms % 2000 === 0, 'the burst is over')
    t.ok(once.attempts > 1, 'shed clients came again')
    t.ok(once.excluded > 0, 'clients left')
    t.equal(once.good_by_prompt_quartile.length, 4)
  },
)

t.test('a policy without admission falls apart above capacity, a limit does not', async t => {
  const file = scenarioFile(
    t,
    SMALL.replace(/rate:[\s\S]*warmup: 4s\nlength: 12s/, 'warmup: 20s\nlength: 30s'),
  )
  const good = async (...args: string[]) => {
    const { out } = await run(['--scenario', file, '--load', '2', '--json', ...args])
    return JSON.parse(out).classes.chat.good_share
  }
  const without = await good('--policy', 'least-outstanding')
  const limited = await good('--policy', 'static-cap', '--knob', 'cap=48')
  t.ok(without < 0.1, `${without}`)
  t.ok(limited > 3 * without && limited > 0.2, `${limited}`)
})

t.test('people get a table', async t => {
  const { code, out } = await run(['--scenario', scenarioFile(t, SMALL), '--load', '0.3,0.6'])
  t.equal(code, 0)
  t.match(out, /small: weir at load 0.3, seed 1/)
  t.match(out, /small: weir at load 0.6, seed 1/)
  t.match(out, /class +offered +good +admitted kept +shed/)
  t.match(out, /\nchat .*%\n/)
  t.match(out, /good by prompt length, shortest quarter first: /)
})

t.test('what cannot be simulated is said with its place and how to mend it', async t => {
  const scenario = async (text: string): Promise<string> => {
    const { code, err } = await run(['--scenario', scenarioFile(t, text)])
    t.equal(code, 2)
    return err
  }
  t.match(
    await scenario(SMALL.replace('engine: llama3-8b, count', 'engine: lama, count')),
    /no engine profile "lama"/,
  )
  t.match(
    await scenario(SMALL.replace('share: 0.7', 'sharee: 0.7')),
    /classes.chat.sharee[\s\S]*rename it to share/,
  )
  t.match(await scenario(SMALL.replace('tpot: 40ms', 'tpot: 40')), /write 40ms, or 40s/)
  t.match(await scenario(SMALL.replace(', tpot: 40ms', '')), /ttft and tpot, or a deadline/)
  t.match(await scenario(SMALL.replace('replica: 2,', 'replica: 3,')), /a replica of the fleet, 0 to 2/)
  t.match(await scenario(SMALL.replace(', for: 3s, replica: 0', '')), /crash needs one/)
  t.match(await scenario(SMALL.replace('kind: crash', 'kind: crush')), /did you mean crash\?/)
  t.match(
    await scenario(SMALL.replace('lengths: {', 'trace: nowhere\n    lengths: {')),
    /one of trace, sessions and lengths/,
  )
  t.match(await scenario('fleet: ['), /YAML 1.2/)
  const traced = SMALL.replace(/lengths: \{ input: \{ median: 800.*/, 'trace: nowhere.csv')
  t.match(await scenario(traced), /nowhere.csv: cannot be read/)
  const file = scenarioFile(t, SMALL)
  const refused = async (...args: string[]): Promise<string> => {
    const { code, err } = await run(args)
    t.equal(code, 2)
    return err
  }
  t.match(await refused(), /give either -c, your config, or --scenario/)
  t.match(
    await refused('--scenario', file, '--policy', 'least-outstandin'),
    /did you mean least-outstanding\?/,
  )
  t.match(await refused('--scenario', file, '--load', '1,none'), /--load\n {2}got {6}"none"/)
  t.match(await refused('--scenario', file, '--policy', 'static-cap', '--knob', 'caps=3'), /cap=NUMBER/)
  t.match(
    await refused('--scenario', join(t.testdir(), 'none.yaml')),
    /none.yaml: cannot be read: .*; give the path/,
  )
  t.match(await refused('-c', 'config/weir.yaml', '--replicas', '4..2'), /a range A..B/)
  t.match(await refused('-c', 'config/weir.yaml', '--engine', 'abacus'), /no engine profile "abacus"/)
  t.match(await refused('-c', join(t.testdir(), 'none.yaml')), /a file that Weir may read/)
})

t.test('a config answers how many replicas hold its promise, with a curve and a picture', async t => {
  const dir = t.testdir({ 'trace.csv': '' })
  const rows = Array.from(
    { length: 300 },
    (_, at) => `${at * 400},${600 + (at % 7) * 300},${40 + (at % 11) * 12}`,
  )
  writeFileSync(join(dir, 'trace.csv'), `t_ms,input_tokens,output_tokens\n${rows.join('\n')}\n`)
  mkdirSync(join(dir, 'out'))
  const picture = join(dir, 'out/curve.svg')
  const args = ['-c', 'config/weir.yaml', '--engine', 'llama2-70b', '--trace', join(dir, 'trace.csv')]
  const more = ['--policy', 'simple', '--rate', '5', '--replicas']
  const { code, out } = await run([...args, ...more, '1..6', '--load', '1,4', '--out', picture, '--json'])
  t.equal(code, 0)
  const curve = JSON.parse(out)
  t.match(curve, { policy: 'simple', engine: 'llama2-70b', load_is: '5.00 requests/s' })
  t.strictSame(
    curve.loads.map((point: { load: number }) => point.load),
    [1, 4],
  )
  t.ok(curve.loads[1].offered_rps > 3 * curve.loads[0].offered_rps)
  const { needed } = curve
  t.ok(needed.replicas === null || (needed.replicas >= 1 && needed.replicas <= 6))
  for (const point of curve.points) t.equal(point.holds, point.broke === null)
  t.match(readFileSync(picture, 'utf8'), /^<svg [\s\S]*requests\/s[\s\S]*<\/svg>\n$/)
  const people = await run([...args, ...more, '3..4', '--load', '1'])
  t.match(people.out, /load +replicas +offered\/s/)
  t.match(people.out, /hold|Not even 4 replicas/)
  t.match(people.err, /simulating load 1\n/)
})

t.test(
  'every shipped scenario is one that an idle replica serves as promised, for 98 % at least',
  async t => {
    const folder = fileURLToPath(new URL('../../bench/scenarios/', import.meta.url))
    const traces = new Map<string, TraceData>()
    const known = new Map<string, number>()
    for (const name of readdirSync(folder).filter(one => one.endsWith('.yaml'))) {
      const file = join(folder, name)
      const scenario = await readScenario(file)
      const missing = scenario.classes.some(
        ({ requests }) => 'trace' in requests && !traces.has(requests.trace),
      )
      if (missing) for (const [trace, data] of await readTraces(scenario, file)) traces.set(trace, data)
      // Neither the mix nor the number of replicas is asked about, nor what goes wrong.
      const engines = new Set(scenario.replicas.map(({ engine }) => engine))
      const key = JSON.stringify([[...engines], scenario.classes.map(one => ({ ...one, share: 1 }))])
      const least = known.get(key) ?? Math.min(...new Stage(scenario, traces).idleShare)
      known.set(key, least)
      t.ok(least >= 0.98, `${name}: ${least}`)
    }
    t.ok(known.size > 5)
  },
)
