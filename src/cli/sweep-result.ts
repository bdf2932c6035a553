/** The sweep file: made of swept points, taken up again where it was left, written with its picture. */
import { execFileSync } from 'node:child_process'
import { mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readSweep, SWEEP_VERSION, type SweepFile } from '../config/sweep-file.js'
import type { Slo } from '../slo/slo.js'
import { findings, LITTLE_LIMIT, littleError, type SweepPoint } from '../slo/sweep.js'
import { SweepError, type Target } from './sweep-live.js'
import { sweepPicture } from './sweep-picture.js'
import type { Plan } from './sweep-plan.js'
import { capacityText, noKneeText } from './sweep-text.js'
import { version } from './version.js'

/** What a sweep is of; points of another are none of it. */
type Subject = Pick<SweepFile, 'target' | 'class' | 'gpus' | 'slo' | 'workload' | 'method'>

export function subjectOf(plan: Plan, target: Target | undefined): Subject {
  const { against, workload, seed } = plan
  return {
    target: target?.url ?? null,
    class: plan.cls ?? null,
    gpus: plan.gpus,
    slo: sloFields(plan.slo),
    workload: {
      source: workload.source,
      model: target?.model ?? workload.model ?? plan.name,
      precision: workload.precision ?? null,
      input_tokens: workload.inputTokens,
      output_tokens: workload.outputTokens,
      cache_hit: workload.cacheHit,
      ...(workload.lengths === undefined ? {} : { lengths: workload.lengths }),
    },
    method:
      against.kind === 'engine'
        ? { seed, requests: against.requests }
        : { seed, point_time_s: against.pointMs / 1000, exact_lengths: against.exactLengths },
  }
}

function sloFields({ percentile, mode, clauses }: Slo): SweepFile['slo'] {
  return clauses.kind === 'stream'
    ? { percentile, mode, ttft_ms: clauses.ttftMs, tpot_ms: clauses.tpotMs }
    : {
        percentile,
        mode,
        deadline_ms: clauses.deadlineMs,
        min_tokens_per_second: clauses.minTokensPerSecond,
      }
}

/**
 * Points that the file holds of the same subject.
 * @returns what may be gone on with; or what is of another subject, and will be replaced
 * @throws SweepError for a file that is no sweep: it is not overwritten
 */
export function resumable(
  out: string,
  subject: Subject,
): { readonly kept?: SweepFile; readonly replaced?: SweepFile } {
  const read = readSweep(out)
  if (read.ok === undefined) {
    if (read.missing) return {}
    throw new SweepError(`${out}: ${read.why}\n  fix      name another with --out, or move it away`)
  }
  const { target, class: cls, gpus, slo, workload, method } = read.ok
  const same = JSON.stringify({ target, class: cls, gpus, slo, workload, method }) === JSON.stringify(subject)
  return same ? { kept: read.ok } : { replaced: read.ok }
}

export interface Swept {
  /** By rising concurrency. */
  readonly points: readonly SweepPoint[]
  /** Without an end in their time. */
  readonly empty: readonly number[]
  readonly complete: boolean
  readonly warnings: readonly string[]
}

/** @throws SweepError where no point is left to tell anything from */
export function resultOf(
  plan: Plan,
  subject: Subject,
  target: Target | undefined,
  { points, empty, complete, warnings }: Swept,
): SweepFile {
  const kept = points.filter(point => littleError(point) <= LITTLE_LIMIT)
  const first = kept[0]
  const rejected = [
    ...points.filter(point => !kept.includes(point)).map(rejection),
    ...empty.map(concurrency => ({
      concurrency,
      reason: 'no request ended in its time: raise --point-time',
    })),
  ].toSorted((a, b) => a.concurrency - b.concurrency)
  if (first === undefined)
    throw new SweepError(
      `no point could be measured\n${rejected.map(({ concurrency, reason }) => `  ${concurrency}: ${reason}`).join('\n')}`,
    )
  const found = findings(kept, plan.slo, plan.gpus)
  const knee = kept.find(point => point.concurrency === found.knee)
  const past = kept
    .filter(point => knee !== undefined && point.concurrency > knee.concurrency)
    .map(point => ({
      concurrency: point.concurrency,
      output_tok_s_per_gpu: Math.round((point.output_tok_s / plan.gpus) * 10) / 10,
    }))
  const { against } = plan
  return {
    weir_sweep: SWEEP_VERSION,
    name: plan.name,
    complete,
    date: new Date().toISOString(),
    weir: { version: version(), commit: commit() },
    engine:
      against.kind === 'engine'
        ? { name: against.profile.name, version: null, simulated: true }
        : { name: target?.engine ?? null, version: target?.version ?? null, simulated: false },
    hardware: plan.hardware ?? null,
    ...subject,
    points: [...kept],
    rejected,
    ...found,
    not_capacity: past,
    conclusion:
      knee === undefined
        ? noKneeText(first, plan.slo)
        : capacityText(knee, found.budget_tok_s_per_gpu ?? 0, past),
    warnings: [
      ...(plan.workload.assumed ? ['the workload is assumed, not yours: see weir sweep --help'] : []),
      ...warnings,
      ...kept.filter(point => !point.decided).map(undecided),
      ...rejected.map(({ concurrency, reason }) => `concurrency ${concurrency} is left out: ${reason}`),
      ...(knee !== undefined && knee === kept.at(-1) && complete
        ? [`the promise still holds at ${knee.concurrency}, the last point: sweep on with --concurrency`]
        : []),
    ],
  }
}

function rejection(point: SweepPoint) {
  const inFlight = (point.requests_per_s * point.e2e_ms.mean) / 1000
  return {
    concurrency: point.concurrency,
    reason: `${point.requests_per_s.toFixed(2)} requests/s of ${(point.e2e_ms.mean / 1000).toFixed(2)} s are ${inFlight.toFixed(1)} in flight, which is not ${point.concurrency} (Little's law)`,
  }
}

function undecided({ concurrency, requests, holds, decided_after_s: seconds }: SweepPoint): string {
  const more = seconds === null ? 'no time would decide it' : `about ${time(seconds)} of it would decide`
  return `concurrency ${concurrency} is undecided after ${requests} requests (${holds ? 'holds' : 'broken'} so far): ${more}`
}

function time(seconds: number): string {
  if (seconds < 120) return `${Math.ceil(seconds)} s`
  return seconds < 7200 ? `${Math.ceil(seconds / 60)} min` : `${Math.ceil(seconds / 3600)} h`
}

/** Weir's own commit, where it runs from a clone. */
function commit(): string | null {
  const cwd = fileURLToPath(new URL('../..', import.meta.url))
  try {
    const said = execFileSync('git', ['rev-parse', '--show-toplevel', 'HEAD'], {
      cwd,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    const [top, head] = said.split('\n')
    // Installed below somebody's repository: that one's commit says nothing of Weir.
    return head !== undefined && `${top}/` === cwd ? head : null
  } catch {
    return null
  }
}

/** Writes the file, whole or not at all, and its picture beside it. @returns the picture's path */
export function writeSweep(out: string, file: SweepFile, slo: Slo): string {
  const picture = `${out.replace(/\.json$/, '')}.svg`
  mkdirSync(dirname(out), { recursive: true })
  writeFileSync(`${out}.new`, `${JSON.stringify(file, undefined, 2)}\n`)
  renameSync(`${out}.new`, out)
  writeFileSync(picture, sweepPicture(file, slo))
  return picture
}
