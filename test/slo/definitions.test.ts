/** Recorded streams, by Weir's definitions and by what AIPerf's and vLLM's own code made of them. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { judge } from '../../src/slo/verdict.js'
import { Meter } from '../../src/sse/meter.js'
import { chat } from '../policy/world.js'

interface Figures {
  /** To the first output. */
  readonly ttft_ms: number
  readonly first_visible_ms?: number
  readonly tpot_ms: number | null
  /** To the last output. */
  readonly last_ms: number
  readonly tokens: number | null
  /** TTFT within 40 ms and TPOT within 5 ms. */
  readonly good: boolean
}

interface Weirs extends Figures {
  /** To the first event that is no comment. */
  readonly first_event_ms: number
}

type Tool = 'aiperf' | 'vllm 0.11.0' | 'vllm 0.33.0'
const TOOLS: readonly Tool[] = ['aiperf', 'vllm 0.11.0', 'vllm 0.33.0']

/** A difference: which figure of whom, and what Weir's would be by the other definition. undefined: it has none. */
type Difference = readonly [
  tools: readonly Tool[],
  figure: keyof Figures,
  theirs: (weirs: Weirs) => number | boolean | null,
]

const [, old, recent] = TOOLS as [Tool, Tool, Tool]
const vllm = [old, recent]
/** 23 gaps of 24 tokens, from a first event that Weir does not count. */
const from = (first: keyof Weirs) => (w: Weirs) => (w.last_ms - Number(w[first])) / 23

/** Every difference there is; docs/definitions.md explains each. */
const DIFFERENCES: Readonly<Record<string, readonly Difference[]>> = {
  'chat-role-first': [
    [[old], 'ttft_ms', w => w.first_event_ms],
    [[old], 'tpot_ms', from('first_event_ms')],
  ],
  'chat-comments': [
    [[old], 'ttft_ms', w => w.first_event_ms],
    [[old], 'tpot_ms', from('first_event_ms')],
  ],
  'chat-empty-first': [
    [vllm, 'ttft_ms', w => w.first_event_ms],
    [vllm, 'tpot_ms', from('first_event_ms')],
  ],
  'chat-late-finish': [
    [[old], 'last_ms', w => w.last_ms + 50],
    [[old], 'tpot_ms', w => (w.tpot_ms ?? 0) + 50 / 23],
  ],
  'chat-reasoning': [
    [[recent], 'ttft_ms', w => w.first_visible_ms ?? 0],
    [[recent], 'tpot_ms', from('first_visible_ms')],
  ],
  'chat-two-choices': [
    [TOOLS, 'tpot_ms', w => ((w.tpot_ms ?? 0) * 23) / 47],
    [TOOLS, 'good', () => true],
  ],
  'chat-one-token': [[['aiperf'], 'good', () => false]],
  'chat-no-usage': [
    [TOOLS, 'tokens', () => null],
    [TOOLS, 'tpot_ms', () => null],
    [vllm, 'good', () => true],
  ],
}

const recorded = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../fixtures/recorded/${name}.json`, import.meta.url), 'utf8'))

function weirs(name: string): Weirs {
  const { path, chunks } = recorded(name) as { path: string; chunks: [number, string][] }
  const shape = path.includes('chat') ? 'chat' : 'completions'
  const meter = new Meter({ shape, takeUsage: false, eventLimit: 1 << 20 })
  let now = 0
  for (const [at, text] of chunks) {
    now = at
    meter.push(Buffer.from(text, 'latin1'), now)
  }
  meter.end(now)
  const target = { ...chat.target, clauses: { kind: 'stream', ttftMs: 40, tpotMs: 5 } } as const
  const served = {
    traffic: { ...chat, target },
    pool: undefined,
    stream: true,
    promptTokens: 500,
    arrivedAt: 0,
    bodyAt: 0,
    dispatchedAt: 0,
    deadlineMs: 1000,
    reported: 0,
  }
  const judged = judge(served, 'complete', meter, 1, now)
  return {
    ttft_ms: judged.ttftMs ?? Number.NaN,
    first_visible_ms: meter.firstVisible ?? Number.NaN,
    first_event_ms: meter.firstEvent ?? Number.NaN,
    tpot_ms: judged.tpotMs ?? null,
    last_ms: judged.e2eMs ?? Number.NaN,
    tokens: judged.outputTokens ?? null,
    good: judged.verdict === 'good',
  }
}

/** Within 1 ms. TPOT is 1 ms over the answer's tokens; tokens are alike. */
const TOLERANCE = { ttft_ms: 1, first_visible_ms: 1, last_ms: 1, tpot_ms: 0.05, tokens: 0 } as const

t.test(
  'figures of a stream are those of AIPerf and of vllm bench serve, but where the docs say so',
  async t => {
    const outside = recorded('outside') as Readonly<Record<string, Readonly<Record<Tool, Figures>>>>
    const names = Object.keys(outside)
    t.ok(names.length >= 14, 'the recordings are there')
    t.same(
      Object.keys(DIFFERENCES).filter(name => !names.includes(name)),
      [],
    )
    for (const name of names) {
      const own = weirs(name)
      for (const tool of TOOLS) {
        for (const [figure, value] of Object.entries(outside[name]?.[tool] ?? {}) as [
          keyof Figures,
          unknown,
        ][]) {
          // Without text of its own a tool call is no visible output to Weir; to AIPerf it is.
          if (name === 'chat-tool' && figure === 'first_visible_ms') continue
          const differs = DIFFERENCES[name]?.find(([tools, what]) => tools.includes(tool) && what === figure)
          const wanted = differs === undefined ? own[figure] : differs[2](own)
          const what = `${name}: ${figure} of ${tool} is ${value}, by Weir ${wanted}`
          if (typeof wanted !== 'number' || figure === 'good') t.equal(value, wanted, what)
          else t.ok(Math.abs(Number(value) - wanted) <= TOLERANCE[figure] && value !== null, what)
          if (differs === undefined) continue
          const off =
            typeof value === 'number' ? Math.abs(value - Number(own[figure])) : Number(value !== own[figure])
          t.ok(off > 0.2, `${name}: that ${figure} of ${tool} is another than Weir's is true`)
        }
      }
    }
  },
)
