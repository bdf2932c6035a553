/**
 * The bounds' table of MAIN's 20 %: lists of 2,000 on as many replicas as the scenario has, and of 4,000 on two.
 *
 *   node --import @tapjs/typescript/import bench/fleet/bounds-table.ts [--loads 0.7,1,1.5,2] [--seeds 1,2]
 *     [--policies weir,two-caps] [--scenario bench/scenarios/chat-agents20-8b.yaml] [--print]
 *
 * Goes on where it stopped: results lie in bench/results/fleet-cells-bounds.jsonl, one line a list; `--print` shows those
 * that are there. Writes bench/results/fleet-bounds.md. Knobs are those of bench/fleet/knobs.json.
 */
import { execFileSync } from 'node:child_process'
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { basename } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { policyNamed } from '../../src/baselines/named.js'
import type { Bounds } from './bounds.js'
import { Tuning } from './tuning.js'

const { values } = parseArgs({
  options: {
    scenario: { type: 'string', default: 'bench/scenarios/chat-agents20-8b.yaml' },
    loads: { type: 'string', default: '0.7,1,1.5,2' },
    seeds: { type: 'string', default: '1,2' },
    policies: { type: 'string', default: 'weir,two-caps,self-only,static-cap' },
    print: { type: 'boolean', default: false },
  },
})
const FILE = 'bench/results/fleet-cells-bounds.jsonl'
const SIZES = [
  { replicas: undefined, requests: 2000 },
  { replicas: 2, requests: 4000 },
] as const

interface Line {
  readonly key: string
  readonly commit: string
  readonly bounds: Bounds
}

const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
const tuning = new Tuning('bench/fleet/knobs.json')
const lines = new Map<string, Line>()
if (existsSync(FILE)) {
  for (const text of readFileSync(FILE, 'utf8').split('\n')) {
    // A run that was killed leaves half a line.
    if (!text.endsWith('}')) continue
    const line = JSON.parse(text) as Line
    lines.set(line.key, line)
  }
}

const asked = values.policies.split(',').map(name => {
  const policy = policyNamed(name)
  if (policy === undefined) throw new Error(`no policy ${name}`)
  const knobs = name === 'weir' ? {} : (tuning.get(basename(values.scenario, '.yaml'), policy)?.knobs ?? {})
  const set = Object.entries(knobs).map(([knob, value]) => `${knob}=${value}`)
  return set.length === 0 ? name : `${name}:${set.join(',')}`
})

function ran(load: string, seed: string, { replicas, requests }: (typeof SIZES)[number]): Line | undefined {
  const args = ['--scenario', values.scenario, '--load', load, '--seed', seed, '--requests', String(requests)]
  if (replicas !== undefined) args.push('--replicas', String(replicas))
  args.push(...asked.flatMap(policy => ['--policy', policy]))
  const key = args.join(' ')
  const known = lines.get(key)
  if (known !== undefined || values.print) return known
  const program = fileURLToPath(new URL('./bounds.ts', import.meta.url))
  const out = execFileSync(process.execPath, [...process.execArgv, program, ...args, '--json'], {
    encoding: 'utf8',
    maxBuffer: 1e8,
  })
  const line = { key, commit, bounds: JSON.parse(out) as Bounds }
  appendFileSync(FILE, `${JSON.stringify(line)}\n`)
  process.stderr.write(`${key}: U3 ${line.bounds.u3.good_share.toFixed(3)}\n`)
  return line
}

const figure = (share: number | undefined): string => (share === undefined ? '–' : share.toFixed(3))
const names = asked.map(policy => policy.split(':')[0] as string)
const parts = SIZES.map(size => {
  const rows = values.loads.split(',').flatMap(load =>
    values.seeds.split(',').flatMap(seed => {
      const line = ran(load, seed, size)
      if (line === undefined) return []
      const { u1, u2, u1_long, u2_long, u3, policies, span_s } = line.bounds
      const bounds = [u1, u2, u1_long, u2_long, u3].map(one => figure(one?.good_share))
      const reached = names.map(name => {
        const good = policies[name]?.good_share
        return good === undefined ? '–' : `${figure(good)} (${figure(good / u3.good_share)})`
      })
      const cells = [load, seed, span_s.toFixed(1), ...bounds, ...reached, line.commit]
      return [`| ${cells.join(' | ')} |`]
    }),
  )
  const titles = ['load', 'seed', 'list s', 'U1', 'U2', 'U1 long', 'U2 long', 'U3', ...names, 'commit']
  const fleet = size.replicas === undefined ? 'all replicas' : `${size.replicas} replicas`
  return `## Lists of ${size.requests}, ${fleet}

| ${titles.join(' | ')} |
|${'---|'.repeat(titles.length)}
${rows.join('\n')}
`
})
const text = `# Fleet: policies beside the bounds

\`${values.scenario}\`. Shares of offered requests; of policies, in brackets, as a share of U3, a plan made with the whole future
known. What the bounds mean, and why short lists on eight replicas say little, is in [bounds.md](bounds.md).
Knobs at their tuned values: ${asked.join('; ')}.

Command: \`node --import @tapjs/typescript/import bench/fleet/bounds-table.ts ${process.argv.slice(2).join(' ')}\`.

${parts.join('\n')}`
process.stdout.write(text)
writeFileSync('bench/results/fleet-bounds.md', text)
