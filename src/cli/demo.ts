/** `weir demo`: simulated GPU pools, Weir before them, public traffic through it, and what comes of it. */
import { createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { POLICIES, policyNamed } from '../baselines/named.js'
import { durationMs as durationOf } from '../config/units.js'
import type { PlayRecord } from '../load/call.js'
import { Player } from '../load/player.js'
import { type Bounds, summarise } from '../load/report.js'
import { type AgentSession, readTrace, type TraceRow } from '../load/trace.js'
import { profileNamed } from '../sim/profiles.js'
import { type Ms, seededRng } from '../time.js'
import type { Command, Io } from './command.js'
import { type Fleet, startFleet } from './demo-fleet.js'
import { demoRates } from './demo-load.js'
import { type DemoResult, demoResult, demoTable, unaccounted, type WeirClass } from './demo-result.js'

const PROFILE = 'qwen3-32b'
const POOLS = { main: 2, spare: 1 }
const NAMES = inLines(
  POLICIES.map(({ name }) => name),
  90,
)
/** The promises of config/demo.yaml, by which the player judges for itself. */
const BOUNDS: ReadonlyMap<string, Bounds> = new Map<string, Bounds>([
  ['chat', { ttftMs: 500, tpotMs: 40 }],
  ['agent', { deadlineMs: 60_000 }],
])
/** What runs at the end of the arrivals may go on as long as anyone would wait for it. */
const DRAIN_MS = { chat: 30_000, agent: 60_000 }
const THINK_DIVISOR = 20
const MAX_AGENT_TOKENS = 16_000
const SEED = 1

/** Names, comma-separated, in lines of at most `width`. */
function inLines(names: readonly string[], width: number): string[] {
  const lines = ['']
  for (const name of names) {
    const line = lines.at(-1) ?? ''
    const longer = line === '' ? name : `${line}, ${name}`
    if (longer.length <= width) lines[lines.length - 1] = longer
    else lines.push(name)
  }
  return lines
}

const root = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))

export const demo: Command = {
  name: 'demo',
  summary: 'simulated GPU pools, Weir before them, public traffic through it',
  help: `weir demo [--load 1.0] [--duration 60s] [--policy NAME] [--json]

Starts three simulated ${PROFILE} engines in two pools behind real sockets, Weir before them, and plays public traces
through it: Azure conversations (chat: p90 TTFT 500 ms, p90 TPOT 40 ms) and Claude Code sessions (agent: done within
60 s). Shows what was offered, what was good, and what was shed.

  --load X        multiple of what the pools can serve within the SLO; by default 1.0
  --duration T    arrivals stop then, and what runs is let finish; by default 60s
  --policy NAME   who decides, by default weir; to compare:
                  ${NAMES.join(',\n                  ')}
  --json          one object at the end, nothing else

Example: weir demo --load 0.6 --duration 30s
`,
  async run(args, io) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        load: { type: 'string' },
        duration: { type: 'string' },
        policy: { type: 'string' },
        json: { type: 'boolean' },
      },
    })
    const load = Number(values.load ?? '1')
    if (!(load > 0 && load <= 10))
      return refused(io, '--load', values.load, 'a number above 0, up to 10, such as 0.6')
    const durationMs = spanOf(values.duration ?? '60s')
    if (durationMs === undefined || durationMs < 1000) {
      return refused(io, '--duration', values.duration, 'a time of at least 1s, such as 30s or 5m')
    }
    const policy = values.policy ?? 'weir'
    if (policyNamed(policy) === undefined)
      return refused(io, '--policy', policy, NAMES.join(',\n           '))
    return play(load, durationMs, policy, values.json === true, io)
  },
}

function refused(io: Io, flag: string, got: string | undefined, allowed: string): number {
  io.err(`${flag}\n  got      ${got}\n  allowed  ${allowed}\n`)
  return 1
}

function spanOf(text: string): Ms | undefined {
  try {
    return durationOf(text)
  } catch {
    return undefined
  }
}

async function play(
  load: number,
  durationMs: number,
  policy: string,
  json: boolean,
  io: Io,
): Promise<number> {
  const say = json ? () => undefined : io.out
  const rng = seededRng(SEED)
  const chat = await readTrace(root('bench/data/azure2023-conv.csv.gz'), { rng })
  const agents = await readTrace(root('bench/data/agent-claudecode-sessions.jsonl.gz'), {
    rng,
    maxInputTokens: MAX_AGENT_TOKENS,
  })
  if (chat.kind !== 'requests' || agents.kind !== 'sessions')
    throw new Error('the shipped traces are not what they were')

  say('Starting three simulated engines in two pools, and Weir before them.\n')
  const ports = json || !(await areFree([8080, 8081])) ? { data: 0, admin: 0 } : { data: 8080, admin: 8081 }
  const fleet = await startFleet(
    root('config/demo.yaml'),
    POOLS,
    { profile: PROFILE, noise: 0.02 },
    ports,
    policy,
  )
  try {
    say(introduction(load, fleet))
    const records: PlayRecord[] = []
    const player = playerOf(load, durationMs, fleet, chat.rows, agents.sessions, record =>
      records.push(record),
    )
    let interrupted = false
    const interrupt = (): void => {
      interrupted = true
      player.stop()
    }
    // Kept until the end: a shell may send the signal more than once, and the engines have to be stopped.
    process.on('SIGINT', interrupt)
    process.on('SIGTERM', interrupt)
    const started = performance.now()
    const show = async (windowMs: number): Promise<DemoResult> =>
      demoResult(load, summarise(records, BOUNDS, windowMs), await weirClasses(fleet))
    const screen = json ? undefined : liveScreen(io, () => show(performance.now() - started), player)
    const ending = await Promise.race([player.play(), fleet.broken])
    await screen?.stop()
    if (typeof ending === 'string') {
      io.err(`\n${ending}\n`)
      return 1
    }
    const result = await settled(() => show(ending))
    if (json) io.out(`${JSON.stringify(result)}\n`)
    else io.out(conclusion(result, fleet))
    const missing = unaccounted(result)
    if (missing !== 0) {
      io.err(
        `weir gave ${missing} verdicts too few for ${result.arrivals} arrivals: this is a fault, please report it\n`,
      )
      return 1
    }
    return interrupted ? 130 : 0
  } finally {
    await fleet.stop()
  }
}

function playerOf(
  load: number,
  durationMs: number,
  fleet: Fleet,
  chat: readonly TraceRow[],
  sessions: readonly AgentSession[],
  onRecord: (record: PlayRecord) => void,
): Player {
  const replicas = POOLS.main + POOLS.spare
  const rates = demoRates(load, replicas, profileNamed(PROFILE), chat, sessions, THINK_DIVISOR)
  return new Player({
    target: fleet.data,
    durationMs,
    rng: seededRng(SEED),
    traffic: [
      {
        label: 'chat',
        model: PROFILE,
        drainMs: DRAIN_MS.chat,
        arrivals: { kind: 'poisson', perSecond: rates.chatPerSecond, rows: chat },
      },
      {
        label: 'agent',
        model: PROFILE,
        drainMs: DRAIN_MS.agent,
        headers: { 'x-weir-class': 'agent' },
        sessionHeader: 'x-weir-session',
        arrivals: {
          kind: 'sessions',
          startsPerSecond: rates.sessionStartsPerSecond,
          atStart: rates.sessionsAtStart,
          thinkDivisor: THINK_DIVISOR,
          sessions,
        },
      },
    ],
    onRecord,
  })
}

async function weirClasses(fleet: Fleet): Promise<readonly WeirClass[]> {
  const response = await fetch(`${fleet.admin}/api/state`)
  return ((await response.json()) as { readonly classes: readonly WeirClass[] }).classes
}

/** The player hears the end of an answer a moment before Weir has counted it, or the other way round. */
async function settled(show: () => Promise<DemoResult>): Promise<DemoResult> {
  let result = await show()
  for (let tries = 0; unaccounted(result) !== 0 && tries < 20; tries++) {
    await new Promise(resolve => setTimeout(resolve, 50))
    result = await show()
  }
  return result
}

async function areFree(ports: readonly number[]): Promise<boolean> {
  for (const port of ports) {
    const free = await new Promise<boolean>(resolve => {
      const server = createServer()
      server.once('error', () => resolve(false))
      server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
    })
    if (!free) return false
  }
  return true
}

/** Redraws the table each second on a terminal; elsewhere a table every 10 s. */
function liveScreen(io: Io, show: () => Promise<DemoResult>, player: Player) {
  const live = process.stdout.isTTY === true
  let drawn = 0
  let drawing: Promise<void> = Promise.resolve()
  const draw = async (): Promise<void> => {
    const result = await show()
    const table = demoTable(result, name => player.inFlight(name))
    const text = `\n  after ${result.duration_s.toFixed(0)} s\n\n${table}`
    io.out(live && drawn > 0 ? `\x1b[${drawn}A\x1b[J${text}` : text)
    drawn = text.split('\n').length - 1
  }
  const timer = setInterval(
    () => {
      // Weir may be on its way out when the demo is interrupted.
      drawing = drawing.then(draw).catch(() => undefined)
    },
    live ? 1000 : 10_000,
  )
  return {
    async stop() {
      clearInterval(timer)
      await drawing
      if (live && drawn > 0) io.out(`\x1b[${drawn}A\x1b[J`)
    },
  }
}

function introduction(load: number, fleet: Fleet): string {
  return `
  engines   3 x ${PROFILE}, simulated from measured step times: pool main (2), pool spare (1)
  chat      Azure conversations, Poisson; promised p90 TTFT 500 ms and p90 TPOT 40 ms; at home on main
  agent     Claude Code sessions with think time / ${THINK_DIVISOR}, calls of at most 16k tokens, entered mid-way;
            promised p95 within 60 s; at home on spare; about 20 % of the work
  load      ${load} of what the pools can serve within the SLO
  metrics   ${fleet.admin}/metrics
  try       curl -N ${fleet.data}/v1/chat/completions -H 'content-type: application/json' \\
              -d '{"model":"${PROFILE}","stream":true,"messages":[{"role":"user","content":"hello"}]}'

  Ctrl-C ends it all.
`
}

function conclusion(result: DemoResult, fleet: Fleet): string {
  const verdicts = Object.entries(result.verdicts).map(([name, count]) => `${name} ${count}`)
  const next =
    result.load < 0.9
      ? 'npm start -- --load 1.5     more than the pools can serve: what is shed, and does the rest keep its promise?'
      : 'npm start -- --load 0.6     within what the pools can serve'
  return `
${demoTable(result, () => 0)}
  ${result.arrivals} requests in ${result.duration_s.toFixed(1)} s: ${verdicts.join(', ')}
  goodput ${result.goodput_rps.toFixed(2)} requests/s

  Try next
    ${next}
    npx --no-install weir serve --upstream http://127.0.0.1:8000     before your own vLLM
  (${fleet.admin} ends with this command.)
`
}
