/** Reads what options say, and explains what is wrong with one. */
import { durationMs, PATTERNS } from '../config/units.js'
import type { Ms } from '../time.js'

/** What the user has to correct: said on stderr as it is. */
export class UsageError extends Error {}

export function bad(flag: string, got: string | undefined, allowed: string, fix: string): UsageError {
  return new UsageError(
    `--${flag}\n  got      ${got === undefined ? 'nothing' : JSON.stringify(got)}\n  allowed  ${allowed}\n  fix      ${fix}`,
  )
}

export function number(flag: string, text: string, whole = false): number {
  const value = text.trim() === '' ? Number.NaN : Number(text)
  if (value > 0 && (whole ? Number.isSafeInteger(value) : Number.isFinite(value))) return value
  const allowed = whole ? 'a whole number above 0' : 'a number above 0'
  throw bad(flag, text, allowed, `write --${flag} ${whole ? 16384 : 1.5}, for example`)
}

export function duration(flag: string, text: string): Ms {
  const ms = new RegExp(PATTERNS.duration).test(text) ? durationMs(text) : undefined
  if (ms !== undefined) return ms
  throw bad(
    flag,
    text,
    'a time above 0 with its unit: ms, s, m, h',
    `write --${flag} 500ms or 60s, for example`,
  )
}

export function optional<T>(
  flag: string,
  text: string | undefined,
  read: (flag: string, text: string) => T,
): T | undefined {
  return text === undefined ? undefined : read(flag, text)
}

/** fetch hides the cause: `fetch failed` says nothing. The system's codes say most, a library's its message does. */
export function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { cause } = error
  if (!(cause instanceof Error)) return error.message
  return 'code' in cause && /^E[A-Z]/.test(String(cause.code)) ? String(cause.code) : cause.message
}
