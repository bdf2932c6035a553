/** Durations and sizes as people write them, and the patterns that say which texts are one. */
import type { Ms } from '../time.js'

const MS_OF: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }
const BYTES_OF: Readonly<Record<string, number>> = { B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 }

const NOT_ZERO = '(?![0.]+[a-zA-Z]+$)'
const DURATION = '[0-9]+([.][0-9]+)?(ms|s|m|h|d)'

/** Regular expressions, as JSON Schema wants them. All but `orNever` refuse zero. */
export const PATTERNS = {
  duration: `^${NOT_ZERO}${DURATION}$`,
  orOff: `^(off|${NOT_ZERO}${DURATION})$`,
  orNever: `^(never|${DURATION})$`,
  size: `^${NOT_ZERO}[0-9]+([.][0-9]+)?(B|KiB|MiB|GiB)$`,
} as const

/** Node's timers hold 2^31 - 1 ms; a longer one would fire at once. In whole days: 24. */
export const LONGEST_TIMER_MS: Ms = 24 * 86_400_000

function measure(text: string, units: Readonly<Record<string, number>>): number {
  const [, amount, unit] = /^([0-9.]+)([a-zA-Z]+)$/.exec(text) ?? []
  const scale = unit === undefined ? undefined : units[unit]
  if (amount === undefined || scale === undefined) throw new TypeError(`not a measure: ${text}`)
  return Number(amount) * scale
}

/**
 * `500ms`, `2s`, `5m`, `1h`, `7d`, fractions too.
 * @returns ms; `undefined` for `off` and `never`
 * @throws TypeError for a text that no pattern above takes
 */
export function durationMs(text: string): Ms | undefined {
  return text === 'off' || text === 'never' ? undefined : measure(text, MS_OF)
}

/**
 * `16KiB`, `32MiB`, `1GiB`, `512B`.
 * @returns whole bytes, rounded
 * @throws TypeError for a text that the pattern does not take
 */
export function sizeBytes(text: string): number {
  return Math.round(measure(text, BYTES_OF))
}

/** The duration in the largest unit that keeps it whole: 604800000 gives `7d`. */
export function showDuration(ms: Ms): string {
  const [unit, scale] = Object.entries(MS_OF).findLast(([, scale]) => ms >= scale && ms % scale === 0) ?? [
    'ms',
    1,
  ]
  return `${ms / scale}${unit}`
}
