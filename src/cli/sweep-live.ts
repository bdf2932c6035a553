/** Sweeps a live target: is it there, does it stream, and one closed-loop point after the other on its own clock. */
import { randomInt } from 'node:crypto'
import type { PlayRecord } from '../load/call.js'
import { type Lengths, Player, splitTarget } from '../load/player.js'
import { recordTpotMs } from '../load/report.js'
import type { Users } from '../sim/workload.js'
import type { Slo } from '../slo/slo.js'
import { type Answered, type SweepPoint, settled, sweepPoint } from '../slo/sweep.js'
import { type Ms, seededRng } from '../time.js'
import { reason } from './flags.js'

/** The sweep cannot be made, and why; said on stderr as it is. */
export class SweepError extends Error {}

export interface Target {
  readonly url: string
  readonly model: string
  /** As the target says it. */
  readonly engine: string | undefined
  readonly version: string | undefined
  readonly maxModelLen: number | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly exactLengths: boolean
}

const REACH_MS: Ms = 10_000
const PROBE_MS: Ms = 60_000
/** Answers of who does not know the path or the method. */
const NO_API: ReadonlySet<number> = new Set([404, 405, 501])
const PROBE = { inputTokens: 32, outputTokens: 16, prefix: undefined } as const
/** No engine makes a token in less: an answer that is faster was held back and came in one piece. */
const FASTEST_TOKEN_MS: Ms = 0.1

/**
 * Asks the target for its models and for one short stream.
 * @returns what it is, and a warning where its streams come in one piece
 * @throws SweepError where it is not there, is no OpenAI API, or does not stream
 */
export async function reachTarget(
  url: string,
  asked: { readonly model: string | undefined; readonly exactLengths: boolean },
  headers: Readonly<Record<string, string>>,
): Promise<{ readonly target: Target; readonly warnings: readonly string[] }> {
  const { origin, basePath } = splitTarget(url)
  const listed = await askModels(url, `${origin}${basePath}/v1/models`, headers)
  const entry =
    asked.model === undefined ? listed.models[0] : listed.models.find(one => one.id === asked.model)
  const model = asked.model ?? entry?.id
  if (model === undefined) {
    const [what, fix] = listed.refused
      ? ['refuses', 'set OPENAI_API_KEY to a key that it takes']
      : ['is no OpenAI API', 'correct --target, or add --model NAME']
    throw new SweepError(`${url} ${what}: GET /v1/models ${listed.said}\n  fix      ${fix}`)
  }
  const target: Target = {
    url,
    model,
    engine: entry?.owner,
    version: await askVersion(`${origin}${basePath}/version`, headers),
    maxModelLen: entry?.maxModelLen,
    headers,
    exactLengths: asked.exactLengths,
  }
  return { target, warnings: await probe(target, listed.models.length > 0) }
}

interface Listed {
  readonly models: readonly { id: string; owner: string | undefined; maxModelLen: number | undefined }[]
  /** It answered 401 or 403. */
  readonly refused: boolean
  /** What it answered, for an error. */
  readonly said: string
}

async function askModels(
  url: string,
  from: string,
  headers: Readonly<Record<string, string>>,
): Promise<Listed> {
  const answer = await fetch(from, { headers, signal: AbortSignal.timeout(REACH_MS) }).catch(error => {
    const late = error instanceof Error && error.name === 'TimeoutError'
    const why = late ? `no answer to GET /v1/models within ${REACH_MS / 1000} s` : reason(error)
    throw new SweepError(`${url} cannot be reached: ${why}\n  fix      start it, or correct --target`)
  })
  const body: unknown = await answer.json().catch(() => undefined)
  const data = member(body, 'data')
  const said = `answered ${answer.status} with ${data === undefined ? (answer.headers.get('content-type') ?? 'no type') : 'no model'}`
  const models = (Array.isArray(data) ? data : []).flatMap((one: unknown) => {
    const [id, owner, max] = [member(one, 'id'), member(one, 'owned_by'), member(one, 'max_model_len')]
    return typeof id === 'string'
      ? [
          {
            id,
            owner: typeof owner === 'string' ? owner : undefined,
            maxModelLen: typeof max === 'number' ? max : undefined,
          },
        ]
      : []
  })
  return { models, refused: answer.status === 401 || answer.status === 403, said }
}

function member(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[name] : undefined
}

/** vLLM and its like say their version at /version; others do not, which is no fault. */
async function askVersion(
  url: string,
  headers: Readonly<Record<string, string>>,
): Promise<string | undefined> {
  try {
    const answer = await fetch(url, { headers, signal: AbortSignal.timeout(REACH_MS) })
    const version = member(await answer.json(), 'version')
    return typeof version === 'string' ? version : undefined
  } catch {
    return undefined
  }
}

/** @param listed  its /v1/models named models */
async function probe(target: Target, listed: boolean): Promise<string[]> {
  const records: PlayRecord[] = []
  const player = playerOf(target, {
    arrivals: { kind: 'trace', speed: 1, rows: [{ atMs: 0, ...PROBE }] },
    drainMs: PROBE_MS,
    onRecord: record => records.push(record),
  })
  await player.play()
  const [record] = records
  if (record === undefined) throw new Error('the probe left no record')
  const { outcome, code, status, tokens } = record
  if (!listed && (NO_API.has(status ?? 0) || code === 'not_a_stream'))
    throw new SweepError(
      `${target.url} is no OpenAI API: POST /v1/chat/completions answered ${status} without a stream\n  fix      correct --target`,
    )
  if (code === 'not_a_stream')
    throw new SweepError(
      `${target.url} does not stream: a request with "stream": true was answered in one piece\n  fix      sweep the engine itself, or switch streaming on: without it there is no first token to time`,
    )
  if (outcome === 'left')
    throw new SweepError(`${target.url} gave no whole answer to a short request within ${PROBE_MS / 1000} s`)
  if (outcome !== 'complete') throw refused(target, status, code)
  if (record.ttftMs === undefined)
    throw new SweepError(`${target.url} streamed an answer without a token for model ${target.model}`)
  const tookMs = (record.lastMs ?? 0) - record.ttftMs
  return tokens >= PROBE.outputTokens / 2 && tookMs < tokens * FASTEST_TOKEN_MS
    ? [
        `${tokens} tokens came within ${tookMs.toFixed(1)} ms: something holds the stream back, TPOT says nothing`,
      ]
    : []
}

function refused({ url, model, exactLengths }: Target, status: number | undefined, code: string | undefined) {
  const what = [status === undefined || status === 200 ? undefined : `status ${status}`, code]
  const said = what.filter(part => part !== undefined).join(', ') || 'no reason given'
  const lengths = status === 400 && exactLengths ? ', or --natural-lengths: it may not know ignore_eos' : ''
  return new SweepError(
    `${url} failed a short request for model ${model}: ${said}\n  fix      see its log; --model and OPENAI_API_KEY may help${lengths}`,
  )
}

/** Warm-up at the start of a point: a fifth of it, at most. */
const WARM = { share: 0.2, mostMs: 30_000 } as const
/** A point ends before its time when so many requests leave no doubt, at 99.9 % since it is looked at every second. */
const ENOUGH = { requests: 1000, z: 3.29, everyMs: 1000 } as const

export interface LiveProgress {
  readonly elapsedMs: Ms
  readonly ended: number
}

export interface LivePoint {
  /** undefined: no request ended in the time. */
  readonly point: SweepPoint | undefined
  /** What most of the failed ones said. */
  readonly failure: string | undefined
  /** It was stopped from outside: what was measured is not kept. */
  readonly stopped: boolean
}

/**
 * Keeps `concurrency` requests in flight for `pointMs`, and judges those that end after the warm-up. What still runs
 * at the end is hung up on and counts nowhere, as little as what ran at its begin.
 * @param stop  ends it early
 */
export async function livePoint(
  target: Target,
  users: Users,
  concurrency: number,
  pointMs: Ms,
  slo: Slo,
  stop: AbortSignal,
  onProgress: (progress: LiveProgress) => void,
): Promise<LivePoint> {
  const warmMs = Math.min(pointMs * WARM.share, WARM.mostMs)
  const records: PlayRecord[] = []
  const player = playerOf(target, {
    arrivals: { kind: 'closed', concurrency, thinkMs: 0, rows: user => lengthsOf(users(user)) },
    drainMs: 0,
    durationMs: pointMs,
    onRecord: record => {
      if (record.outcome !== 'left' && record.sentAt + record.e2eMs >= warmMs) records.push(record)
    },
  })
  const begin = performance.now()
  const look = setInterval(() => {
    onProgress({ elapsedMs: performance.now() - begin, ended: records.length })
    if (records.length >= ENOUGH.requests && settled(records.map(answered), slo, ENOUGH.z)) player.stop()
  }, ENOUGH.everyMs)
  const onStop = (): void => player.stop()
  stop.addEventListener('abort', onStop)
  const windowMs = await player.play()
  stop.removeEventListener('abort', onStop)
  clearInterval(look)
  return {
    point:
      records.length === 0
        ? undefined
        : sweepPoint(concurrency, records.map(answered), windowMs - warmMs, slo),
    failure: commonFailure(records),
    stopped: stop.aborted,
  }
}

interface Play {
  readonly arrivals: ConstructorParameters<typeof Player>[0]['traffic'][number]['arrivals']
  readonly drainMs: Ms
  readonly durationMs?: Ms
  readonly onRecord: (record: PlayRecord) => void
}

function playerOf(target: Target, { arrivals, drainMs, ...options }: Play): Player {
  const { url, model, headers, exactLengths } = target
  return new Player({
    target: url,
    traffic: [{ label: 'sweep', arrivals, model, headers, drainMs }],
    // Of texts alone; a text that was played before would be found in the prefix cache.
    rng: seededRng(randomInt(2 ** 31)),
    exactBody: exactLengths,
    ...options,
  })
}

function lengthsOf({ prefix, ...lengths }: ReturnType<Users>): Lengths {
  return { ...lengths, prefix: prefix === undefined ? undefined : { scope: 'sweep', ...prefix } }
}

function answered(record: PlayRecord): Answered {
  return {
    complete: record.outcome === 'complete',
    ttftMs: record.ttftMs,
    tpotMs: recordTpotMs(record),
    e2eMs: record.e2eMs,
    inputTokens: record.inputTokens,
    outputTokens: record.tokens,
  }
}

function commonFailure(records: readonly PlayRecord[]): string | undefined {
  const counts = new Map<string, number>()
  for (const { outcome, status, code } of records) {
    if (outcome === 'complete') continue
    const said = [outcome, status === undefined || status === 200 ? undefined : `status ${status}`, code]
    const what = said.filter(part => part !== undefined).join(', ')
    counts.set(what, (counts.get(what) ?? 0) + 1)
  }
  return [...counts].toSorted(([, a], [, b]) => b - a)[0]?.[0]
}
