/** Sweep files, `sweeps/NAME.json`: what one holds, and whether a file is one. */
import { readFileSync } from 'node:fs'
import { Ajv } from 'ajv'
import Type, { type Static, type TSchema } from 'typebox'

/** Grows when a reader of the former would misread the file. */
export const SWEEP_VERSION = 1

const orNull = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])
const positive = Type.Number({ exclusiveMinimum: 0 })
const amount = Type.Number({ minimum: 0 })
const share = Type.Number({ minimum: 0, maximum: 1 })
const spread = { p50: orNull(amount), p90: orNull(amount), promised: orNull(amount) }
const percentiles = Type.Object({ p50: positive, p90: positive })
const clause = Type.Enum(['ttft', 'tpot', 'deadline'])

/** Times in ms or s as their names say, lengths in tokens, rates of the whole pool. */
const point = Type.Object({
  concurrency: Type.Integer({ minimum: 1 }),
  requests: Type.Integer({ minimum: 1 }),
  failed: Type.Integer({ minimum: 0 }),
  span_s: positive,
  ttft_ms: Type.Object(spread),
  tpot_ms: Type.Object(spread),
  e2e_ms: Type.Object({ ...spread, mean: amount }),
  requests_per_s: amount,
  input_tok_s: amount,
  output_tok_s: amount,
  goodput_tok_s: amount,
  good_share: share,
  met_share: Type.Object({
    ttft: Type.Optional(share),
    tpot: Type.Optional(share),
    joint: Type.Optional(share),
    deadline: Type.Optional(share),
  }),
  holds: Type.Boolean(),
  decided: Type.Boolean(),
  decided_after_s: orNull(amount),
})

const slo = Type.Object({
  percentile: Type.Number({ minimum: 50, maximum: 99.9 }),
  mode: Type.Enum(['joint', 'clause']),
  ttft_ms: Type.Optional(positive),
  tpot_ms: Type.Optional(positive),
  deadline_ms: Type.Optional(positive),
  min_tokens_per_second: Type.Optional(amount),
})

const SweepFields = Type.Object({
  weir_sweep: Type.Literal(SWEEP_VERSION),
  name: Type.String(),
  /** Every point of the grid was measured. */
  complete: Type.Boolean(),
  date: Type.String(),
  /** The program that swept. */
  weir: Type.Object({ version: Type.String(), commit: orNull(Type.String()) }),
  engine: Type.Object({
    name: orNull(Type.String()),
    version: orNull(Type.String()),
    simulated: Type.Boolean(),
  }),
  hardware: orNull(Type.String()),
  gpus: positive,
  target: orNull(Type.String()),
  class: orNull(Type.String()),
  slo,
  workload: Type.Object({
    source: Type.String(),
    model: Type.String(),
    precision: orNull(Type.String()),
    input_tokens: percentiles,
    output_tokens: percentiles,
    cache_hit: share,
  }),
  /** How it was measured: seeds, requests, times. */
  method: Type.Object({}),
  points: Type.Array(point, { minItems: 1 }),
  rejected: Type.Array(Type.Object({ concurrency: Type.Integer({ minimum: 1 }), reason: Type.String() })),
  knee: orNull(Type.Integer({ minimum: 1 })),
  knee_interpolated: orNull(amount),
  binding: clause,
  budget_tok_s_per_gpu: orNull(amount),
  steady: orNull(Type.Object({ low: Type.Integer({ minimum: 1 }), high: Type.Integer({ minimum: 1 }) })),
  scale_out_at: orNull(amount),
  /** Points past the knee, whose throughput is no capacity. */
  not_capacity: Type.Array(Type.Object({ concurrency: Type.Integer(), output_tok_s_per_gpu: amount })),
  conclusion: Type.String(),
  warnings: Type.Array(Type.String()),
})
export type SweepFile = Static<typeof SweepFields>

const isSweep = new Ajv({ allErrors: false, strict: false }).compile<SweepFile>(SweepFields)

export type ReadSweep =
  | { readonly ok: SweepFile }
  /** Why it is none, as it stands behind the name of the file. `missing`: there is no such file. */
  | { readonly ok?: undefined; readonly why: string; readonly missing: boolean }

/** Reads a sweep file. Never throws for what is, or is not, in it. */
export function readSweep(file: string): ReadSweep {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
    return {
      why: code === 'ENOENT' ? 'no such file' : `cannot be read (${code})`,
      missing: code === 'ENOENT',
    }
  }
  const refuse = (why: string): ReadSweep => ({ why, missing: false })
  let data: unknown
  try {
    data = JSON.parse(text)
  } catch {
    return refuse('not JSON')
  }
  const version =
    typeof data === 'object' && data !== null && 'weir_sweep' in data ? data.weir_sweep : undefined
  if (version === undefined) return refuse('no sweep of Weir’s: it has no weir_sweep')
  if (version !== SWEEP_VERSION)
    return refuse(`a sweep of format ${JSON.stringify(version)}; this Weir reads ${SWEEP_VERSION}`)
  if (isSweep(data)) {
    const known = data.knee === null || data.points.some(({ concurrency }) => concurrency === data.knee)
    return known ? { ok: data } : refuse(`damaged: its knee of ${data.knee} is none of its points`)
  }
  const [error] = isSweep.errors ?? []
  const place = error?.instancePath
    .replace(/\/(\d+)/g, '[$1]')
    .replaceAll('/', '.')
    .slice(1)
  return refuse(
    `damaged: ${place === undefined || place === '' ? 'it' : place} ${error?.message ?? 'is wrong'}`,
  )
}
