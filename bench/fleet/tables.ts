/** Which runs the tables of the fleet benchmark are made of. */
import { POLICIES } from '../../src/baselines/named.js'

export interface Cell {
  /** A file of bench/scenarios, without its ending. */
  readonly scenario: string
  readonly policy: string
  readonly load: number
  readonly seed: number
}

export interface Table {
  readonly name: string
  readonly about: string
  readonly scenarios: readonly string[]
  readonly loads: readonly number[]
  readonly policies: readonly string[]
  readonly seeds: readonly number[]
  /** Measured, and warm-up before, instead of the scenario's own. */
  readonly lengthMs?: number
  readonly warmupMs?: number
}

/** Knobs are chosen on this seed, which no table uses. */
export const TUNING_SEED = 101
/** Loads at which a knob is tried; the best mean of good / offered wins, one setting for all loads of a scenario. */
export const TUNING_LOADS = [1, 1.5]

const all = POLICIES.map(({ name }) => name)
/** The strongest baselines of MAIN, beside Weir. */
const FOUR = ['self-only', 'two-caps', 'static-cap', 'gradient2']
const engines = ['8b', '32b', '70b']

export const TABLES: readonly Table[] = [
  {
    name: 'main',
    about:
      'N = 8, three engines, Azure chat with 20 % and 50 % agents (of the work), 5 minutes after 1 of warm-up',
    scenarios: [20, 50].flatMap(agents => engines.map(engine => `chat-agents${agents}-${engine}`)),
    loads: [0.5, 0.7, 1, 1.2, 1.5, 2],
    policies: all,
    seeds: [1, 2, 3, 4, 5],
  },
  {
    name: 'plain',
    about: 'N = 8, Llama-3-8B, Azure chat without agents',
    scenarios: ['chat-8b'],
    loads: [1, 1.5, 2],
    policies: all,
    seeds: [1, 2, 3],
  },
  {
    name: 'stress',
    about:
      'N = 8, Llama-3-8B, Azure chat with 20 % agents, and something goes wrong after two minutes and a half',
    scenarios: [
      ...['burst', 'square', 'two-state', 'prompt-shift', 'cache-flush', 'crash', 'slow', 'cold-start'],
      ...['foreign', 'aborts', 'retries-obey', 'retries-ignore', 'stale'],
    ].map(name => `stress-${name}`),
    loads: [0.8, 1.5],
    policies: ['weir', 'static-cap'],
    seeds: [1, 2, 3],
  },
  {
    name: 'wide',
    about:
      'mixed speeds 1 : 0.6 : 0.35, N = 16 and 64; Azure chat with 0 and 80 % agents, Azure code, Mooncake',
    scenarios: [16, 64].flatMap(size =>
      ['chat', 'chat-agents80', 'code', 'mooncake'].map(name => `${name}-mixed${size}`),
    ),
    loads: [0.7, 1.2, 2],
    policies: ['weir', ...FOUR],
    seeds: [1, 2, 3],
  },
]

/** For CI: within three minutes on two cores, the knobs as they were chosen for the tables. */
export const QUICK: Table = {
  name: 'quick',
  about: 'N = 8, Llama-3-8B, Azure chat with 20 % agents and Azure code, 40 s after 20 of warm-up',
  scenarios: ['chat-agents20-8b', 'code-8b'],
  loads: [1, 1.5],
  policies: all,
  seeds: [1],
  lengthMs: 40_000,
  warmupMs: 20_000,
}

export function cellsOf({ scenarios, loads, policies, seeds }: Table): Cell[] {
  return scenarios.flatMap(scenario =>
    seeds.flatMap(seed => loads.flatMap(load => policies.map(policy => ({ scenario, policy, load, seed })))),
  )
}
