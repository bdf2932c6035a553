/** The cells of the core's bench: engines, traffic and promises, by name. */
import { readTrace, type Trace } from '../../src/load/trace.js'
import type { Scenario, ScenarioClass } from '../../src/sim/scenario.js'
import { seededRng } from '../../src/time.js'

const CONV = 'azure2023-conv'
const CODE = 'azure2023-code'
const MOONCAKE = 'mooncake-conversation'
const AGENTS = 'agent-claudecode-sessions'

/** Traces by the names that scenarios use. */
export async function readTraces(): Promise<Map<string, Trace>> {
  const files = { [CONV]: 'csv.gz', [CODE]: 'csv.gz', [MOONCAKE]: 'jsonl.gz', [AGENTS]: 'jsonl.gz' }
  const traces = new Map<string, Trace>()
  for (const [name, ending] of Object.entries(files))
    traces.set(name, await readTrace(`bench/data/${name}.${ending}`, { rng: seededRng(1) }))
  return traces
}

function chat(
  trace: string,
  arrivals: 'recorded' | 'poisson',
  ttftMs = 500,
  tpotMs = 40,
  share = 1,
): ScenarioClass {
  return {
    name: 'chat',
    share,
    percentile: 90,
    promise: { kind: 'stream', ttftMs, tpotMs },
    requests: { kind: 'trace', trace, arrivals, maxInputTokens: 100_000 },
  }
}

const DEADLINE = { kind: 'deadline', deadlineMs: 60_000, minTokensPerSecond: 0 } as const

function jobs(share: number): ScenarioClass {
  return {
    name: 'job',
    share,
    percentile: 95,
    promise: DEADLINE,
    queue: { max: 2000, waitMs: 55_000 },
    requests: {
      kind: 'lengths',
      input: { median: 4000, sigma: 0.8, min: 64, max: 30_000 },
      output: { median: 400, sigma: 0.7, min: 8, max: 3000 },
    },
  }
}

function agents(share: number): ScenarioClass {
  return {
    name: 'agent',
    share,
    percentile: 95,
    promise: DEADLINE,
    queue: { max: 2000, waitMs: 55_000 },
    requests: { kind: 'sessions', trace: AGENTS, maxInputTokens: 100_000, maxThinkMs: 30_000, maxCalls: 40 },
  }
}

function scenario(
  name: string,
  engine: string,
  classes: ScenarioClass[],
  more: Partial<Scenario> = {},
): Scenario {
  return {
    name,
    replicas: [{ engine, count: 8, speed: 1 }],
    noise: 0.02,
    prefixCache: true,
    maxInFlight: 32,
    classes,
    rate: { kind: 'steady' },
    faults: [],
    warmupMs: 60_000,
    lengthMs: 120_000,
    ...more,
  }
}

export const SCENARIOS: readonly Scenario[] = [
  scenario('chat8', 'llama3-8b', [chat(CONV, 'recorded')]),
  scenario('burst8', 'llama3-8b', [chat(CONV, 'poisson')], {
    rate: { kind: 'burst', atMs: 90_000, forMs: 30_000, factor: 3 },
    lengthMs: 90_000,
  }),
  scenario('chat32', 'qwen3-32b', [chat(CONV, 'recorded')]),
  scenario('chat70', 'llama2-70b', [chat(CONV, 'recorded', 1000, 80)]),
  scenario('code8', 'llama3-8b', [chat(CODE, 'poisson')]),
  scenario('codeb8', 'llama3-8b', [chat(CODE, 'recorded')]),
  scenario('moon8', 'llama3-8b', [chat(MOONCAKE, 'recorded', 2000)]),
  scenario('jobs8', 'llama3-8b', [chat(CONV, 'recorded', 500, 40, 0.6), jobs(0.4)]),
  scenario('agents8', 'llama3-8b', [chat(CONV, 'recorded', 500, 40, 0.8), agents(0.2)]),
  scenario('agents8h', 'llama3-8b', [chat(CONV, 'recorded', 500, 40, 0.5), agents(0.5)]),
  scenario('agents32', 'qwen3-32b', [chat(CONV, 'recorded', 500, 40, 0.5), agents(0.5)]),
]
