/** `weir sweep`: closed loops of rising concurrency against an engine, and the budget that keeps the promise. */
import type { SweepFile } from '../config/sweep-file.js'
import { TraceError } from '../load/trace.js'
import { virtualPoint } from '../sim/sweep.js'
import type { SweepPoint } from '../slo/sweep.js'
import type { Command, Io } from './command.js'
import { UsageError } from './flags.js'
import { livePoint, reachTarget, SweepError, type Target } from './sweep-live.js'
import { type Against, type Plan, readPlan } from './sweep-plan.js'
import { resultOf, resumable, type Swept, subjectOf, writeSweep } from './sweep-result.js'
import { snippet, sweepText } from './sweep-text.js'

const HELP = `weir sweep: measure what an engine or a pool can promise, by a closed loop at each concurrency

usage: weir sweep (--target URL | --engine PRESET) [options]

  --target URL          base URL of an engine or of a Weir; a key is taken from OPENAI_API_KEY
  --engine PRESET       a simulated engine in virtual time, no GPU: worked-example (with the workload of the SLO
                        essay), llama3-8b, qwen3-32b, llama2-70b, or a fit of the measured engines by its name
  --class NAME -c FILE  promise and workload of this class; its home pool says how many GPUs
  --concurrency LIST    requests in flight, point by point (default 1,2,4,8,12,16,24,32,48,64)
  --point-time 3m       of one point against a target, at most (default 3m; its first fifth, at most 30 s, warms up)
  --requests N          of one point in virtual time, at least (default 20000)
  --input-p50 N --input-p90 N --output-p50 N --output-p90 N   lengths in tokens, instead of a class's
  --cache-hit 0.3       share of the prompts that is found in the prefix cache (beside the four lengths)
  --trace FILE          lengths of a trace's requests, drawn at random; --max-input N leaves out longer ones
  --ttft 500ms --tpot 40ms --percentile 90 --mode joint|clause   another promise than the class's
  --model NAME          default: the first of the target's /v1/models
  --gpus N              behind the target (default: those of the class's home pool, else 1)
  --hardware TEXT       written into the file
  --natural-lengths     answers as long as the model makes them: no max_tokens, no ignore_eos
  --seed N              of lengths (default 1); in virtual time the first of several
  --out FILE            default sweeps/NAME.json. Points that it holds of the same target, workload and promise are
                        kept: a sweep that was interrupted goes on. --fresh measures all of them anew
  --json                one JSON object, the content of the file, instead of the table

Without a class or lengths the workload is that of Azure's conversations of 2023, at p90 500 ms and 40 ms: assumed,
not yours. The knee is the last point at which the promise holds; the picture lies beside the file, as .svg.

Exit codes: 0 a knee was found, 1 the promise is never kept or the target cannot be swept, 2 wrong use.

example:
  weir sweep --engine worked-example
  weir sweep --target http://127.0.0.1:8000 --class chat -c weir.yaml --out sweeps/main.json
`

const INTERRUPTED = 130

async function run(plan: Plan, io: Io): Promise<number> {
  const { against } = plan
  const swept =
    against.kind === 'engine' ? sweepEngine(plan, against, io) : await sweepTarget(plan, against, io)
  const { file, interrupted } = swept
  let picture: string | undefined
  try {
    picture = writeSweep(plan.out, file, plan.slo)
  } catch (error) {
    io.err(`weir sweep: ${plan.out} cannot be written: ${error instanceof Error ? error.message : error}\n`)
  }
  if (plan.json) io.out(`${JSON.stringify(file)}\n`)
  else io.out(`${sweepText(file, plan.slo)}${footer(plan, file, picture)}`)
  if (interrupted) {
    io.err(`weir sweep: interrupted; the same command goes on from ${plan.out}\n`)
    return INTERRUPTED
  }
  // The table ends with it.
  if (file.knee === null && plan.json) io.err(`weir sweep: ${file.conclusion}\n`)
  return file.knee === null || picture === undefined ? 1 : 0
}

function footer(plan: Plan, file: SweepFile, picture: string | undefined): string {
  if (picture === undefined) return ''
  const wrote = `\nwrote ${plan.out} and ${picture}\n`
  if (file.engine.simulated || file.knee === null) return wrote
  const where = plan.config?.file ?? 'a config file; the path of the sweep is relative to it'
  return `${wrote}\nfor ${where}:\n\n${snippet(file, plan.slo, plan.config, plan.out)}`
}

interface Outcome {
  readonly file: SweepFile
  readonly interrupted: boolean
}

function sweepEngine(plan: Plan, against: Against & { kind: 'engine' }, io: Io): Outcome {
  const subject = subjectOf(plan, undefined)
  // Nothing is taken from it, but what is no sweep is not overwritten either.
  resumable(plan.out, subject)
  const users = plan.workload.users(against.profile.maxModelLen)
  const show = progress(io)
  const points = plan.grid.map((concurrency, i) => {
    show(`concurrency ${concurrency} (${i + 1} of ${plan.grid.length})`)
    const how = { seed: plan.seed, requests: against.requests }
    return virtualPoint(against.profile, users, concurrency, plan.slo, how).point
  })
  show('')
  const swept = { points, empty: [], complete: true, warnings: [] }
  return { file: resultOf(plan, subject, undefined, swept), interrupted: false }
}

async function sweepTarget(plan: Plan, against: Against & { kind: 'live' }, io: Io): Promise<Outcome> {
  const key = io.env['OPENAI_API_KEY']
  const headers = {
    ...(key === undefined || key === '' ? {} : { authorization: `Bearer ${key}` }),
    ...(plan.cls === undefined ? {} : { 'x-weir-class': plan.cls }),
  }
  const { target, warnings } = await reachTarget(against.target, against, headers)
  const subject = subjectOf(plan, target)
  const { kept, replaced } = resumable(plan.out, subject)
  if (replaced !== undefined)
    io.err(`${plan.out}: a sweep of another target, workload or promise, of ${replaced.date}, is replaced\n`)
  const old = plan.fresh ? [] : (kept?.points ?? [])
  if (old.length > 0)
    io.err(`${plan.out}: ${old.length} points of ${kept?.date} are kept; --fresh measures them anew\n`)
  return measure(plan, against, io, target, subject, old, warnings)
}

/** Point after point; after each the file holds what there is, so that an end at any time loses one point at most. */
async function measure(
  plan: Plan,
  { pointMs }: Against & { kind: 'live' },
  io: Io,
  target: Target,
  subject: ReturnType<typeof subjectOf>,
  old: readonly SweepPoint[],
  warnings: readonly string[],
): Promise<Outcome> {
  const users = plan.workload.users(target.maxModelLen ?? Number.POSITIVE_INFINITY)
  const points = [...old]
  const empty: number[] = []
  const stop = new AbortController()
  const interrupt = (): void => stop.abort()
  process.once('SIGINT', interrupt)
  const show = progress(io)
  const result = (complete: boolean): SweepFile => {
    const swept: Swept = { points: byLoad(points), empty, complete, warnings }
    return resultOf(plan, subject, target, swept)
  }
  try {
    for (const [i, concurrency] of plan.grid.entries()) {
      if (points.some(point => point.concurrency === concurrency)) continue
      const name = `concurrency ${concurrency} (${i + 1} of ${plan.grid.length})`
      const own = users(plan.seed)
      const { point, failure, stopped } = await livePoint(
        target,
        own,
        concurrency,
        pointMs,
        plan.slo,
        stop.signal,
        ({ elapsedMs, ended }) =>
          show(`${name}: ${seconds(elapsedMs)} of ${seconds(pointMs)}, ${ended} ended`),
      )
      if (stopped) break
      if (point === undefined) empty.push(concurrency)
      else if (point.failed === point.requests && points.length === 0)
        throw new SweepError(
          `${target.url}: all ${point.requests} requests failed at concurrency ${concurrency}: ${failure}`,
        )
      else {
        points.push(point)
        if (point.failed > 0)
          warnings = [
            ...warnings,
            `concurrency ${concurrency}: ${point.failed} requests failed, mostly ${failure}`,
          ]
      }
      if (points.length > 0 && i < plan.grid.length - 1) save(plan, result, show)
    }
  } finally {
    show('')
    process.removeListener('SIGINT', interrupt)
  }
  if (stop.signal.aborted && points.length === 0)
    throw new SweepError('interrupted before the first point was done')
  return { file: result(!stop.signal.aborted), interrupted: stop.signal.aborted }
}

/** A point that cannot be saved is no reason to stop: the end says so. */
function save(plan: Plan, result: (complete: boolean) => SweepFile, show: (line: string) => void): void {
  try {
    writeSweep(plan.out, result(false), plan.slo)
  } catch (error) {
    show(`not saved yet: ${error instanceof Error ? error.message : error}`)
  }
}

const byLoad = (points: readonly SweepPoint[]): SweepPoint[] =>
  points.toSorted((a, b) => a.concurrency - b.concurrency)

const seconds = (ms: number): string => `${Math.round(ms / 1000)} s`

/** One line on a terminal; an empty one takes it away. */
function progress(io: Io): (line: string) => void {
  return line => {
    if (process.stderr.isTTY) io.err(`\r${line}\x1b[K`)
  }
}

export const sweep: Command = {
  name: 'sweep',
  summary: 'measures by rising concurrency what an engine or a pool can promise',
  help: HELP,
  async run(args, io) {
    try {
      return await run(await readPlan(args, io.env), io)
    } catch (error) {
      if (error instanceof UsageError || error instanceof TraceError) {
        io.err(`${error.message}\n`)
        return 2
      }
      if (!(error instanceof SweepError)) throw error
      io.err(`weir sweep: ${error.message}\n`)
      return 1
    }
  },
}
