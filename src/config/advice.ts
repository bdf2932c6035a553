/** What to write instead of a value that its field does not allow. */
import { nearest } from './error.js'
import type { Unit } from './kinds.js'

/** The parts of a field's schema that explain it. */
export interface Explained {
  readonly type?: string | readonly string[]
  readonly enum?: readonly unknown[]
  readonly 'x-unit'?: Unit
  readonly 'x-allowed'?: string
  readonly 'x-missing'?: string
}

/** One sentence that says how to fix `got`, where `field` does not allow it. */
export function adviceFor(field: Explained, got: unknown): string {
  if (got === null || got === undefined) return field['x-missing'] ?? 'give it a value, or remove the key'
  const meant = field['x-unit'] === undefined ? undefined : ADVICE[field['x-unit']]?.(got, field)
  return meant ?? `write ${field['x-allowed'] ?? 'what is allowed'}, or remove the key`
}

type Adviser = (got: unknown, field: Explained) => string | undefined

const ADVICE: Partial<Record<Unit, Adviser>> = {
  duration: got => {
    if (typeof got === 'number') return `write ${got}ms, or ${got}s: a duration says its unit`
    const [, amount, word] = /^\s*([0-9.]+)\s*([a-zA-Z]*)\s*$/.exec(String(got)) ?? []
    if (amount === undefined || word === undefined) return undefined
    if (Number(amount) === 0) return 'write more than 0'
    if (word === '') return `write ${amount}ms, or ${amount}s: a duration says its unit`
    const unit = TIME_WORDS.find(([words]) => words.test(word))?.[1]
    return unit === undefined ? undefined : `write ${amount}${unit}`
  },
  size: got => {
    if (typeof got === 'number') return `write ${got}B: a size says its unit`
    const [, amount, word] = /^\s*([0-9.]+)\s*([kmg]?)i?b?\s*$/i.exec(String(got)) ?? []
    if (amount === undefined || word === undefined) return undefined
    if (Number(amount) === 0) return 'write more than 0'
    return `write ${amount}${word === '' ? '' : `${word === 'k' ? 'K' : word.toUpperCase()}i`}B`
  },
  percentile: got => {
    const number = typeof got === 'number' ? got : Number(String(got).replace(/^p|%$/gi, ''))
    if (number > 0 && number < 1) return percentileOf(number * 100)
    if (number >= 50 && number <= 99.9) return percentileOf(number)
    if (number > 99.9) return 'write 99.9 at most: at 100 one miss would break the promise for good'
    if (number < 50) return 'write 50 or more: a promise that most may miss is none'
    return undefined
  },
  share: got => {
    const number = typeof got === 'number' ? got : Number(String(got).replace(/%$/, ''))
    return number > 1 && number <= 100 ? `write ${number / 100} for ${number} %` : undefined
  },
  flag: got => {
    if (/^(yes|on|y)$/i.test(String(got))) return 'write true'
    return /^(no|off|n)$/i.test(String(got)) ? 'write false' : undefined
  },
  name: (got, field) => {
    const meant = nearest(String(got), (field.enum ?? []).map(String))
    if (meant !== undefined) return `did you mean ${meant}?`
    return typeof got === 'number' || typeof got === 'boolean' ? `write it in quotes: "${got}"` : undefined
  },
  secret: got => (typeof got === 'number' ? 'write it in quotes' : undefined),
  list: (got, field) => {
    if (typeof got === 'string') return `write it as a list: [${got}]`
    const later = Object.keys(got ?? {}).find(key => ['dns', 'file', 'kubernetes'].includes(key))
    return later === undefined || Array.isArray(got)
      ? undefined
      : `write ${field['x-allowed']}; ${later} is not built yet`
  },
  count: quoted,
  tokens: quoted,
  port: quoted,
  GPUs: quoted,
  number: quoted,
  status: quoted,
}

function quoted(got: unknown): string | undefined {
  return typeof got === 'string' && /^-?[0-9.]+$/.test(got) ? `write ${got} without quotes` : undefined
}

function percentileOf(number: number): string {
  const shown = String(Math.round(number * 1000) / 1000)
  const ending = /(^|[^1])1$/.test(shown)
    ? 'st'
    : /(^|[^1])2$/.test(shown)
      ? 'nd'
      : /(^|[^1])3$/.test(shown)
        ? 'rd'
        : 'th'
  return `write ${shown} for the ${shown}${ending} percentile`
}

const TIME_WORDS: readonly (readonly [RegExp, string])[] = [
  [/^(ms|msec|millis|milliseconds?)$/i, 'ms'],
  [/^(s|secs?|seconds?)$/i, 's'],
  [/^(m|mins?|minutes?)$/i, 'm'],
  [/^(h|hrs?|hours?)$/i, 'h'],
  [/^(d|days?)$/i, 'd'],
]
