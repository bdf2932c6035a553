/** The picture of a sweep, as SVG: latencies with their bounds, goodput beside raw throughput, and the knee. */
import type { SweepFile } from '../config/sweep-file.js'
import { showDuration } from '../config/units.js'
import type { Slo } from '../slo/slo.js'
import type { SweepPoint } from '../slo/sweep.js'
import { promiseText, whole } from './sweep-text.js'

const WIDTH = 820
const LEFT = 70
const RIGHT = 150
const TOP = 102
const PANEL = 170
const GAP = 44
const PLOT = WIDTH - LEFT - RIGHT
const FOOT = 76

const INK = '#1f2933'
const FAINT = '#d9dee3'
const MUTED = '#5f6b76'
const BLUE = '#1769aa'
const LIGHT_BLUE = '#7fb2d9'
const GREEN = '#1b7f4b'
const RED = '#c22f2f'

interface Line {
  readonly label: string
  readonly color: string
  readonly dashed?: true
  readonly of: (point: SweepPoint) => number | null
}

interface Level {
  readonly label: string
  readonly color: string
  readonly at: number
}

interface Panel {
  readonly title: string
  readonly log: boolean
  readonly lines: readonly Line[]
  readonly levels: readonly Level[]
}

export function sweepPicture(file: SweepFile, slo: Slo): string {
  const panels = panelsOf(file, slo)
  const height = TOP + panels.length * (PANEL + GAP) + FOOT - GAP
  const x = loadScale(file.points)
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="${INK}">`,
    `<title>${escaped(file.conclusion)}</title>`,
    `<rect width="${WIDTH}" height="${height}" fill="#fff"/>`,
    text(LEFT, 26, titleOf(file), { size: 17, weight: 600 }),
    text(LEFT, 46, `promise: ${promiseText(slo)}`, { color: MUTED }),
    text(LEFT, 63, workloadText(file), { color: MUTED }),
    ...panels.flatMap((panel, i) => panelParts(panel, file, x, TOP + i * (PANEL + GAP))),
    ...loadAxis(file, x, TOP + panels.length * (PANEL + GAP) - GAP),
    '</svg>',
  ]
  return `${parts.join('\n')}\n`
}

function titleOf({ engine, target, workload }: SweepFile): string {
  return target === null ? `Sweep of ${engine.name} (simulated)` : `Sweep of ${workload.model} at ${target}`
}

function workloadText({ workload, gpus, hardware }: SweepFile): string {
  const { input_tokens: input, output_tokens: output } = workload
  const cached = workload.cache_hit > 0 ? `, ${Math.round(workload.cache_hit * 100)} % cached` : ''
  const on = hardware ?? `${gpus} ${gpus === 1 ? 'GPU' : 'GPUs'}`
  return `workload: ${whole(input.p50)}/${whole(input.p90)} tokens in, ${whole(output.p50)}/${whole(output.p90)} out (p50/p90)${cached}; ${on}`
}

function panelsOf(file: SweepFile, slo: Slo): readonly Panel[] {
  const { percentile, clauses } = slo
  const pair = (of: 'ttft_ms' | 'tpot_ms' | 'e2e_ms'): Line[] => [
    { label: `p${percentile}`, color: BLUE, of: point => point[of].promised },
    ...(percentile === 50
      ? []
      : [{ label: 'p50', color: LIGHT_BLUE, of: (point: SweepPoint) => point[of].p50 }]),
  ]
  const bound = (ms: number): Level[] => [{ label: `bound ${showDuration(ms)}`, color: RED, at: ms }]
  const latency: readonly Panel[] =
    clauses.kind === 'stream'
      ? [
          { title: 'TTFT, ms (log)', log: true, lines: pair('ttft_ms'), levels: bound(clauses.ttftMs) },
          { title: 'TPOT, ms', log: false, lines: pair('tpot_ms'), levels: bound(clauses.tpotMs) },
        ]
      : [
          {
            title: 'end to end, ms (log)',
            log: true,
            lines: pair('e2e_ms'),
            levels: bound(clauses.deadlineMs),
          },
          { title: 'TTFT, ms (log)', log: true, lines: pair('ttft_ms'), levels: [] },
          { title: 'TPOT, ms', log: false, lines: pair('tpot_ms'), levels: [] },
        ]
  const { scale_out_at: scaleOut, gpus } = file
  const rates: Panel = {
    title: 'output tokens/s per GPU',
    log: false,
    lines: [
      { label: 'raw throughput', color: MUTED, dashed: true, of: point => point.output_tok_s / gpus },
      { label: 'goodput', color: GREEN, of: point => point.goodput_tok_s / gpus },
    ],
    levels: scaleOut === null ? [] : [{ label: `scale out ${whole(scaleOut)}`, color: GREEN, at: scaleOut }],
  }
  return [...latency, rates]
}

type Scale = (value: number) => number

/** Loads double more often than they grow by one: a log axis, with a margin at both ends. */
function loadScale(points: readonly SweepPoint[]): Scale {
  const loads = points.map(point => Math.log2(point.concurrency))
  const [low, high] = [Math.min(...loads) - 0.2, Math.max(...loads) + 0.2]
  return concurrency => LEFT + (PLOT * (Math.log2(concurrency) - low)) / (high - low)
}

function panelParts(panel: Panel, file: SweepFile, x: Scale, top: number): string[] {
  const values = [
    ...file.points.flatMap(point => panel.lines.flatMap(line => line.of(point) ?? [])),
    ...panel.levels.map(level => level.at),
  ]
  const ticks = panel.log ? logTicks(values) : linearTicks(values)
  const y = valueScale(ticks, panel.log, top)
  const ends = apart([
    ...panel.lines.map(line => ({
      ...line,
      y: y(line.of(file.points.at(-1) as SweepPoint) ?? ticks[0] ?? 0),
    })),
    ...panel.levels.map(level => ({ ...level, y: y(level.at) })),
  ])
  return [
    ...backdrop(file, x, top),
    ...ticks.flatMap(tick => [
      `<line x1="${LEFT}" x2="${LEFT + PLOT}" y1="${px(y(tick))}" y2="${px(y(tick))}" stroke="${FAINT}"/>`,
      text(LEFT - 8, y(tick) + 4, whole(tick), { anchor: 'end', color: MUTED }),
    ]),
    ...kneeLine(file, x, top),
    text(LEFT, top - 8, panel.title, { weight: 600 }),
    ...panel.levels.map(
      level =>
        `<line x1="${LEFT}" x2="${LEFT + PLOT}" y1="${px(y(level.at))}" y2="${px(y(level.at))}" stroke="${level.color}" stroke-width="1.5" stroke-dasharray="6 4"/>`,
    ),
    ...panel.lines.flatMap(line => curve(line, file, x, y)),
    ...ends.map(end => text(LEFT + PLOT + 8, end.y + 4, end.label, { color: end.color })),
  ]
}

/** The steady band, and what lies past the knee. */
function backdrop({ knee, steady }: SweepFile, x: Scale, top: number): string[] {
  if (knee === null || steady === null) return []
  const rect = (from: number, to: number, fill: string): string =>
    `<rect x="${px(from)}" y="${top}" width="${px(Math.max(0, to - from))}" height="${PANEL}" fill="${fill}"/>`
  const left = (value: number): number => Math.max(LEFT, value)
  return [rect(left(x(steady.low)), left(x(steady.high)), '#e3f3ea'), rect(x(knee), LEFT + PLOT, '#f4f4f5')]
}

function kneeLine({ knee }: SweepFile, x: Scale, top: number): string[] {
  if (knee === null) return []
  return [
    `<line x1="${px(x(knee))}" x2="${px(x(knee))}" y1="${top}" y2="${top + PANEL}" stroke="${INK}" stroke-width="1.5"/>`,
  ]
}

function curve(line: Line, { points, knee }: SweepFile, x: Scale, y: Scale): string[] {
  const at = points.flatMap(point => {
    const value = line.of(point)
    return value === null ? [] : [{ x: x(point.concurrency), y: y(value), knee: point.concurrency === knee }]
  })
  const path = at.map((spot, i) => `${i === 0 ? 'M' : 'L'}${px(spot.x)} ${px(spot.y)}`).join('')
  const dash = line.dashed ? ' stroke-dasharray="2 3"' : ''
  return [
    `<path d="${path}" fill="none" stroke="${line.color}" stroke-width="2"${dash}/>`,
    ...at.map(
      spot =>
        `<circle cx="${px(spot.x)}" cy="${px(spot.y)}" r="${spot.knee ? 4.5 : 2.5}" fill="${line.color}"/>`,
    ),
  ]
}

function loadAxis(
  { points, knee, steady, budget_tok_s_per_gpu: budget }: SweepFile,
  x: Scale,
  y: number,
): string[] {
  let free = Number.NEGATIVE_INFINITY
  // The knee's own label is never the one that is left out.
  const kneeX = knee === null ? undefined : x(knee)
  const labels = points.flatMap(({ concurrency }) => {
    const at = x(concurrency)
    const crowded = at < free || (kneeX !== undefined && at !== kneeX && Math.abs(at - kneeX) < 18)
    if (crowded) return []
    free = at + 18
    const weight = concurrency === knee ? 700 : 400
    return [text(at, y + 18, String(concurrency), { anchor: 'middle', weight })]
  })
  const legend =
    knee === null || steady === null
      ? 'no point keeps the promise'
      : `knee at ${knee} (line): ${whole(budget ?? 0)} tok/s per GPU. Run at ${steady.low} to ${steady.high} (green). Past the knee (grey) throughput is no capacity.`
  return [
    ...labels,
    text(LEFT + PLOT / 2, y + 38, 'concurrency: requests in flight (log)', {
      anchor: 'middle',
      color: MUTED,
    }),
    text(LEFT, y + 60, legend),
  ]
}

function valueScale(ticks: readonly number[], log: boolean, top: number): Scale {
  const [low, high] = [ticks[0] ?? 0, ticks.at(-1) ?? 1]
  const on = (value: number): number => (log ? Math.log(Math.max(value, low)) : value)
  return value => top + PANEL - (PANEL * (on(value) - on(low))) / (on(high) - on(low))
}

/** 1, 2, 5, 10, … around the values. */
function logTicks(values: readonly number[]): number[] {
  const positive = values.filter(value => value > 0)
  const [low, high] = [Math.min(...positive), Math.max(...positive)]
  const ticks = Array.from({ length: 36 }, (_, i) => ([1, 2, 5][i % 3] ?? 1) * 10 ** (Math.floor(i / 3) - 3))
  const from = ticks.findLastIndex(tick => tick <= low)
  const to = ticks.findIndex(tick => tick > high)
  return ticks.slice(Math.max(0, from), to + 1)
}

export function linearTicks(values: readonly number[]): number[] {
  const high = Math.max(...values, 1)
  const rough = high / 4
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = ([1, 2, 5, 10].find(factor => factor * power >= rough) ?? 10) * power
  return Array.from({ length: Math.ceil(high / step) + 1 }, (_, i) => i * step)
}

/** Moves labels down until none covers another. */
function apart<T extends { readonly y: number }>(labels: readonly T[]): T[] {
  let below = Number.NEGATIVE_INFINITY
  return labels
    .toSorted((a, b) => a.y - b.y)
    .map(label => {
      const y = Math.max(label.y, below)
      below = y + 14
      return { ...label, y }
    })
}

interface TextStyle {
  readonly size?: number
  readonly weight?: number
  readonly color?: string
  readonly anchor?: 'middle' | 'end'
}

export function text(
  x: number,
  y: number,
  words: string,
  { size, weight, color, anchor }: TextStyle = {},
): string {
  const style = [
    size === undefined ? '' : ` font-size="${size}"`,
    weight === undefined ? '' : ` font-weight="${weight}"`,
    color === undefined ? '' : ` fill="${color}"`,
    anchor === undefined ? '' : ` text-anchor="${anchor}"`,
  ]
  return `<text x="${px(x)}" y="${px(y)}"${style.join('')}>${escaped(words)}</text>`
}

export const px = (value: number): string => String(Math.round(value * 10) / 10)

export const escaped = (words: string): string =>
  words.replace(/[&<>"]/g, sign => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign] ?? sign)
