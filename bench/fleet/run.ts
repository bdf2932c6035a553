/**
 * The fleet benchmark: every policy under the same traffic, in virtual time.
 *
 *   npm run bench:fleet                          MAIN, PLAIN and STRESS
 *   npm run bench:fleet -- --only wide,plain     these tables
 *   npm run bench:fleet -- --quick [--json]      within three minutes, for CI
 *   … --policies weir,static-cap --seeds 1,2 --loads 1,1.5 --scenarios chat-8b     parts of them
 *   … --tune       chooses the knobs anew, --any-code takes results of other versions of the code
 *
 * Goes on where it stopped: results lie in bench/results/fleet-cells.jsonl, one line a run.
 */
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { policyNamed } from '../../src/baselines/named.js'
import { Crew, type Line, Results } from './crew.js'
import { reportText } from './report.js'
import { cellsOf, QUICK, TABLES, type Table } from './tables.js'
import { Tuning } from './tuning.js'

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
    only: { type: 'string', default: 'main,plain,stress' },
    policies: { type: 'string' },
    scenarios: { type: 'string' },
    loads: { type: 'string' },
    seeds: { type: 'string' },
    tune: { type: 'boolean', default: false },
    'any-code': { type: 'boolean', default: false },
  },
})

const say = (text: string): void => void process.stderr.write(`${text}\n`)
const list = (text: string): string[] => text.split(',').filter(part => part !== '')

function chosen(table: Table): Table {
  const part = <T>(all: readonly T[], text: string | undefined, of: (text: string) => T): readonly T[] =>
    text === undefined ? all : list(text).map(of)
  const scenarios = values.scenarios === undefined ? undefined : list(values.scenarios)
  return {
    ...table,
    policies: part(table.policies, values.policies, name => name),
    loads: part(table.loads, values.loads, Number),
    seeds: part(table.seeds, values.seeds, Number),
    scenarios: table.scenarios.filter(name => scenarios === undefined || scenarios.includes(name)),
  }
}

const names = list(values.only)
const unknown = names.find(name => !TABLES.some(table => table.name === name))
if (unknown !== undefined) {
  say(`no table ${unknown}; there are ${TABLES.map(({ name }) => name).join(', ')}`)
  process.exit(2)
}
const tables = (values.quick ? [QUICK] : TABLES.filter(({ name }) => names.includes(name))).map(chosen)
const results = new Results('bench/results/fleet-cells.jsonl', values['any-code'])
const tuning = new Tuning('bench/fleet/knobs.json')
const crew = new Crew(results, values.json ? () => {} : say)
const whole = [values.policies, values.scenarios, values.loads, values.seeds].every(
  part => part === undefined,
)
const json: object[] = []

for (const table of tables) {
  const policies = table.policies.map(name => {
    const policy = policyNamed(name)
    if (policy === undefined) throw new Error(`no policy ${name}`)
    return policy
  })
  const tuned: { scenario: string; policy: string; text: string }[] = []
  // One scenario after the other, so that workers read few traces.
  const lines: Line[] = []
  for (const scenario of table.scenarios) {
    const knobs = new Map<string, Readonly<Record<string, number>>>()
    for (const policy of policies) {
      // A stress is met with the knobs of the quiet scenario that it disturbs.
      const quiet = scenario.startsWith('stress-') ? 'chat-agents20-8b' : scenario
      const known = tuning.get(quiet, policy)
      // Weir's numbers are the same everywhere: the mechanism is what is judged.
      const fixed = policy.name === 'weir' || (values.quick && !values.tune)
      const set = fixed ? (known?.knobs ?? {}) : await tuning.choose(quiet, policy, crew, values.tune)
      knobs.set(policy.name, set)
      const choice = tuning.get(quiet, policy)
      if (choice !== undefined) {
        const text = Object.entries(choice.knobs).map(([knob, value]) => `${knob} ${value}`)
        tuned.push({ scenario, policy: policy.name, text: `${text.join(', ')}; ${choice.good.toFixed(3)}` })
      }
    }
    const cells = cellsOf({ ...table, scenarios: [scenario] })
    const ran = await Promise.all(
      cells.map(cell => {
        const { lengthMs, warmupMs } = table
        return crew.run({ ...cell, knobs: knobs.get(cell.policy) ?? {}, lengthMs, warmupMs })
      }),
    )
    lines.push(...ran)
  }
  for (const { job, result } of lines) {
    const { scenario, policy, load, seed, knobs } = job
    json.push({ scenario, policy, load, seed, knobs, ...result })
  }
  const text = reportText({
    table,
    lines,
    tuned,
    command: `npm run bench:fleet -- ${process.argv.slice(2).join(' ') || `--only ${table.name}`}`,
    commit: execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim(),
    machine: `${cpus().length} x ${cpus()[0]?.model ?? 'unknown'}, Node ${process.versions.node}`,
  })
  if (values.json) continue
  process.stdout.write(text)
  // A part is not the table.
  if (whole && !values.quick) writeFileSync(`bench/results/fleet-${table.name}.md`, text)
}
if (values.json) {
  process.stdout.write(
    `${JSON.stringify({ cells: json }, (_, value) => (value === undefined ? null : value))}\n`,
  )
}
crew.stop()
