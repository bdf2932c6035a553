/** `weir replay`: plays a trace file against any OpenAI base URL and reports goodput by the player's own clock. */
import { randomInt } from 'node:crypto'
import { parseArgs } from 'node:util'
import { showDuration } from '../config/units.js'
import type { PlayRecord } from '../load/call.js'
import { type Arrivals, Player, splitTarget } from '../load/player.js'
import { type Bounds, summarise, summaryTable } from '../load/report.js'
import { readTrace, type Trace, TraceError } from '../load/trace.js'
import { type Ms, seededRng } from '../time.js'
import type { Command, Io } from './command.js'
import { bad, duration, number, optional, reason, UsageError } from './flags.js'

const OPTIONS = {
  trace: { type: 'string' },
  target: { type: 'string' },
  speed: { type: 'string', default: '1' },
  model: { type: 'string' },
  class: { type: 'string' },
  ttft: { type: 'string' },
  tpot: { type: 'string' },
  deadline: { type: 'string' },
  duration: { type: 'string' },
  'max-input': { type: 'string' },
  'session-rate': { type: 'string' },
  'think-divisor': { type: 'string', default: '20' },
  'exact-lengths': { type: 'boolean', default: false },
  seed: { type: 'string' },
  json: { type: 'boolean', default: false },
} as const

const HELP = `weir replay: play a trace against an OpenAI base URL, and report goodput

usage: weir replay --trace FILE --target URL [options]

  --trace FILE         t_ms,input_tokens,output_tokens as .csv, or Mooncake or agent sessions as .jsonl; .gz too
  --target URL         base URL, with or without /v1; a key is taken from OPENAI_API_KEY
  --speed N            arrivals N times as fast as in the trace (default 1)
  --model NAME         default: the first of the target's /v1/models
  --class NAME         sent as x-weir-class, and the name in the report (default: not sent, "chat")
  --ttft 500ms --tpot 40ms   bounds of a good answer: these are the defaults
  --deadline 60s       instead of them: a bound on the time to the last token
  --duration 60s       arrivals stop then (default: the whole trace)
  --max-input N        leave out requests of more input tokens
  --session-rate N     agent sessions only, which carry no start times: sessions begun per second, at random
  --think-divisor N    agent sessions only: think time is divided by this (default 20)
  --exact-lengths      for real engines: max_tokens and ignore_eos in the body give each answer its length;
                       without it the length goes in a header that only the simulated engine obeys
  --seed N             of prompt texts and random draws (default: a new one, printed). A second play of one seed
                       finds its prompts in the engines' prefix caches
  --json               one JSON object instead of the table

The trace is played open-loop: a request is sent at its time, however the answers fare. An agent session is closed
in itself: it is entered at a random call, and a call follows the end of the one before. Answers that still run at
the end have as long as --deadline, or 60 s.

example:
  weir replay --trace bench/data/azure2023-conv.csv.gz --target http://127.0.0.1:8080 --speed 1.5 --duration 60s
`

/** What answers may still take after the last arrival, where there is no deadline. */
const STREAM_DRAIN_MS: Ms = 60_000
const REACH_TIMEOUT_MS: Ms = 10_000
const INTERRUPTED = 130

interface Plan {
  readonly trace: string
  readonly target: string
  readonly speed: number
  readonly model: string | undefined
  readonly cls: string | undefined
  readonly bounds: Bounds
  readonly durationMs: Ms | undefined
  readonly maxInput: number | undefined
  readonly sessionRate: number | undefined
  readonly thinkDivisor: number
  readonly exactLengths: boolean
  readonly seed: number
  readonly json: boolean
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: OPTIONS }).values
  } catch (error) {
    const allowed = Object.keys(OPTIONS)
      .map(flag => `--${flag}`)
      .join(' ')
    throw new UsageError(
      `weir replay: ${error instanceof Error ? error.message : String(error)}\n  allowed  ${allowed}\n  fix      see weir replay --help`,
    )
  }
}

function readPlan(args: readonly string[]): Plan {
  const values = parse(args)
  const { trace, target, deadline } = values
  if (trace === undefined) throw bad('trace', trace, 'a trace file', 'add --trace FILE')
  if (target === undefined || !/^https?:/.test(target) || !URL.canParse(target))
    throw bad('target', target, 'a base URL', 'write --target http://127.0.0.1:8080, for example')
  if (deadline !== undefined && (values.ttft !== undefined || values.tpot !== undefined))
    throw bad('deadline', deadline, 'either --deadline, or --ttft and --tpot', 'remove one kind of bound')
  return {
    trace,
    target,
    speed: number('speed', values.speed),
    model: values.model,
    cls: values.class,
    bounds:
      deadline === undefined
        ? {
            ttftMs: duration('ttft', values.ttft ?? '500ms'),
            tpotMs: duration('tpot', values.tpot ?? '40ms'),
          }
        : { deadlineMs: duration('deadline', deadline) },
    durationMs: optional('duration', values.duration, duration),
    maxInput: optional('max-input', values['max-input'], (flag, text) => number(flag, text, true)),
    sessionRate: optional('session-rate', values['session-rate'], number),
    thinkDivisor: number('think-divisor', values['think-divisor']),
    exactLengths: values['exact-lengths'],
    seed: optional('seed', values.seed, (flag, text) => number(flag, text, true)) ?? randomInt(1, 2 ** 31),
    json: values.json,
  }
}

function arrivalsOf(trace: Trace, plan: Plan): Arrivals {
  if (trace.kind === 'requests') {
    if (plan.sessionRate !== undefined)
      throw bad(
        'session-rate',
        String(plan.sessionRate),
        'only with agent sessions',
        'remove it: this trace has times',
      )
    return { kind: 'trace', speed: plan.speed, rows: trace.rows }
  }
  if (plan.sessionRate === undefined)
    throw bad(
      'session-rate',
      undefined,
      'sessions begun per second',
      'add --session-rate 0.2: this trace has no times',
    )
  if (plan.durationMs === undefined)
    throw bad('duration', undefined, 'a time', 'add --duration 60s: sessions are drawn without end')
  return {
    kind: 'sessions',
    startsPerSecond: plan.sessionRate,
    thinkDivisor: plan.thinkDivisor,
    sessions: trace.sessions,
  }
}

/** Asks the target for its models: the first is the default, and the target is there. */
async function reach(plan: Plan, headers: Record<string, string>): Promise<string> {
  const { origin, basePath } = splitTarget(plan.target)
  const url = `${origin}${basePath}/v1/models`
  const answer = await fetch(url, { headers, signal: AbortSignal.timeout(REACH_TIMEOUT_MS) }).catch(error => {
    throw new UsageError(
      `weir replay: ${plan.target} cannot be reached: ${reason(error)}\n  fix      start it, or correct --target`,
    )
  })
  const body: unknown = await answer.json().catch(() => undefined)
  const model = plan.model ?? firstModel(body)
  if (model !== undefined) return model
  throw new UsageError(
    `weir replay: ${url} names no model (status ${answer.status})\n  fix      add --model NAME${answer.status === 401 ? ', and set OPENAI_API_KEY' : ''}`,
  )
}

function firstModel(body: unknown): string | undefined {
  const data = typeof body === 'object' && body !== null && 'data' in body ? body.data : undefined
  const first: unknown = Array.isArray(data) ? data[0] : undefined
  const id = typeof first === 'object' && first !== null && 'id' in first ? first.id : undefined
  return typeof id === 'string' ? id : undefined
}

async function play(plan: Plan, io: Io): Promise<number> {
  const rng = seededRng(plan.seed)
  const trace = await readTrace(plan.trace, {
    rng,
    ...(plan.maxInput === undefined ? {} : { maxInputTokens: plan.maxInput }),
  })
  const arrivals = arrivalsOf(trace, plan)
  const key = io.env['OPENAI_API_KEY']
  const auth: Record<string, string> =
    key === undefined || key === '' ? {} : { authorization: `Bearer ${key}` }
  const model = await reach(plan, auth)
  const label = plan.cls ?? 'chat'
  const records: PlayRecord[] = []
  const player = new Player({
    target: plan.target,
    traffic: [
      {
        label,
        arrivals,
        model,
        headers: { ...auth, ...(plan.cls === undefined ? {} : { 'x-weir-class': plan.cls }) },
        sessionHeader: 'x-weir-session',
        drainMs: 'deadlineMs' in plan.bounds ? plan.bounds.deadlineMs : STREAM_DRAIN_MS,
      },
    ],
    ...(plan.durationMs === undefined ? {} : { durationMs: plan.durationMs }),
    rng,
    exactBody: plan.exactLengths,
    onRecord: record => records.push(record),
  })
  let interrupted = false
  const interrupt = (): void => {
    interrupted = true
    player.stop()
  }
  process.once('SIGINT', interrupt)
  const stopProgress = showProgress(player, records, io)
  const windowMs = await player.play()
  stopProgress()
  process.removeListener('SIGINT', interrupt)
  const summary = summarise(records, new Map([[label, plan.bounds]]), windowMs)
  const { leftOut } = trace
  if (plan.json) {
    const { trace: file, target, speed, seed, bounds } = plan
    io.out(
      `${JSON.stringify({ trace: file, target, model, speed, seed, bounds, left_out: leftOut, ...summary })}\n`,
    )
  } else {
    io.out(`${heading(plan, model, leftOut)}\n\n${summaryTable(summary)}`)
  }
  return interrupted ? INTERRUPTED : 0
}

function heading(plan: Plan, model: string, leftOut: number): string {
  const bounds =
    'deadlineMs' in plan.bounds
      ? `last token within ${showDuration(plan.bounds.deadlineMs)}`
      : `TTFT within ${showDuration(plan.bounds.ttftMs)} and TPOT within ${showDuration(plan.bounds.tpotMs)}`
  return [
    `${plan.trace} at ${plan.speed}x against ${plan.target}, model ${model}, seed ${plan.seed}`,
    `good: ${bounds}`,
    ...(plan.sessionRate === undefined
      ? []
      : [`${plan.sessionRate} sessions/s begun, each at a random call; think time / ${plan.thinkDivisor}`]),
    ...(leftOut > 0 ? [`${leftOut} rows above ${plan.maxInput} input tokens are left out`] : []),
  ].join('\n')
}

/** One line on a terminal, once a second. Returns what takes it away. */
function showProgress(player: Player, records: readonly PlayRecord[], io: Io): () => void {
  if (!process.stderr.isTTY) return () => {}
  const begin = performance.now()
  const timer = setInterval(() => {
    const seconds = ((performance.now() - begin) / 1000).toFixed(0)
    io.err(
      `\r${seconds} s: sent ${player.sent}, in flight ${player.inFlight()}, ended ${records.length}\x1b[K`,
    )
  }, 1000)
  return () => {
    clearInterval(timer)
    io.err('\r\x1b[K')
  }
}

export const replay: Command = {
  name: 'replay',
  summary: 'plays a trace against a base URL and reports goodput',
  help: HELP,
  async run(args, io) {
    try {
      return await play(readPlan(args), io)
    } catch (error) {
      if (!(error instanceof UsageError || error instanceof TraceError)) throw error
      io.err(`${error.message}\n`)
      return 1
    }
  },
}
