/** The picture of a simulated curve, as SVG: offered and good requests over load, and where the promise breaks. */
import type { Curve, CurvePoint } from './simulate-curve.js'
import { escaped, linearTicks, px, text } from './sweep-picture.js'

const WIDTH = 820
const LEFT = 70
const RIGHT = 130
const TOP = 84
const PANEL = 300
const PLOT = WIDTH - LEFT - RIGHT
const HEIGHT = TOP + PANEL + 80

const MUTED = '#5f6b76'
const FAINT = '#d9dee3'
const GREEN = '#1b7f4b'
const RED = '#c22f2f'

export function curvePicture(curve: Curve): string {
  const { loads } = curve
  const most = Math.max(...loads.map(({ load }) => load))
  const ticks = linearTicks(loads.map(point => point.offered_rps))
  const top = ticks.at(-1) ?? 1
  const x = (load: number): number => LEFT + (PLOT * load) / (most * 1.05)
  const y = (rate: number): number => TOP + PANEL - (PANEL * rate) / top
  const line = (of: (point: CurvePoint) => number, color: string, dash: string): string => {
    const path = loads.map((point, at) => `${at === 0 ? 'M' : 'L'}${px(x(point.load))} ${px(y(of(point)))}`)
    return `<path d="${path.join('')}" fill="none" stroke="${color}" stroke-width="2"${dash}/>`
  }
  const last = loads.at(-1)
  const broken = loads.find(point => !point.holds)
  const title = `${curve.config}: ${curve.policy} before ${curve.engine} engines (simulated)`
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" width="${WIDTH}" height="${HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#1f2933">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>`,
    text(LEFT, 26, title, { size: 17, weight: 600 }),
    text(LEFT, 46, `load 1 is ${curve.load_is}`, { color: MUTED }),
    text(LEFT, TOP - 10, 'requests/s', { weight: 600 }),
    ...ticks.flatMap(tick => [
      `<line x1="${LEFT}" x2="${LEFT + PLOT}" y1="${px(y(tick))}" y2="${px(y(tick))}" stroke="${FAINT}"/>`,
      text(LEFT - 8, y(tick) + 4, String(tick), { anchor: 'end', color: MUTED }),
    ]),
    ...(broken === undefined ? [] : breakLine(broken, x(broken.load))),
    line(point => point.offered_rps, MUTED, ' stroke-dasharray="2 3"'),
    line(point => point.goodput_rps, GREEN, ''),
    ...loads.map(
      point =>
        `<circle cx="${px(x(point.load))}" cy="${px(y(point.goodput_rps))}" r="3.5" fill="${point.holds ? GREEN : RED}"/>`,
    ),
    ...(last === undefined ? [] : endLabels(last, y)),
    ...loads.map(point => text(x(point.load), TOP + PANEL + 18, String(point.load), { anchor: 'middle' })),
    text(LEFT + PLOT / 2, TOP + PANEL + 38, 'load', { anchor: 'middle', color: MUTED }),
    text(LEFT, TOP + PANEL + 62, legend(curve, broken)),
    '</svg>',
  ]
  return `${parts.join('\n')}\n`
}

function breakLine(broken: CurvePoint, x: number): string[] {
  return [
    `<line x1="${px(x)}" x2="${px(x)}" y1="${TOP}" y2="${TOP + PANEL}" stroke="${RED}" stroke-dasharray="6 4"/>`,
    text(x + 6, TOP + 14, `breaks by ${broken.broke}`, { color: RED }),
  ]
}

/** Labels of the two lines, never one over the other. */
function endLabels(last: CurvePoint, y: (rate: number) => number): string[] {
  const [offered, good] = [y(last.offered_rps), y(last.goodput_rps)]
  return [
    text(LEFT + PLOT + 8, offered + 4, 'offered', { color: MUTED }),
    text(LEFT + PLOT + 8, Math.max(good, offered + 14) + 4, 'good', { color: GREEN }),
  ]
}

function legend({ needed, pool }: Curve, broken: CurvePoint | undefined): string {
  if (needed !== null && needed.replicas !== null) {
    return `${needed.replicas} replicas of ${pool} hold the promise at load ${needed.load}.`
  }
  if (broken === undefined) return 'The promise holds at every load that was tried.'
  return `Green: the promise holds. Red: it does not, from load ${broken.load} on.`
}
