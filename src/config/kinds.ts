/** The kinds of fields: how each is typed, checked and explained. */
import Type from 'typebox'
import { PATTERNS } from './units.js'

/** What a field says of itself. `unit` also chooses how a wrong value is explained (`advice.ts`). */
interface About {
  readonly unit: Unit
  readonly allowed: string
  /** For people, with one worked number. */
  readonly doc: string
  /** Why a missing one is an error, and what to write. */
  readonly missing?: string
}

export type Unit =
  | 'duration'
  | 'size'
  | 'percentile'
  | 'share'
  | 'port'
  | 'count'
  | 'tokens'
  | 'tokens/s'
  | 'GPUs'
  | 'number'
  | 'flag'
  | 'name'
  | 'text'
  | 'secret'
  | 'URL'
  | 'glob'
  | 'file'
  | 'status'
  | 'list'
  | 'object'

export function about({ unit, allowed, doc, missing }: About) {
  return {
    description: doc,
    'x-unit': unit,
    'x-allowed': allowed,
    ...(missing === undefined ? {} : { 'x-missing': missing }),
  }
}

export const CLOSED = { additionalProperties: false }

/** An object all of whose members have defaults. */
export const group = <T extends Parameters<typeof Type.Object>[0]>(members: T, doc: string) =>
  Type.Object(members, {
    ...CLOSED,
    ...about({ unit: 'object', allowed: keysOf(members), doc }),
    default: {},
  })

export const object = <T extends Parameters<typeof Type.Object>[0]>(
  members: T,
  doc: string,
  missing?: string,
) =>
  Type.Object(members, {
    ...CLOSED,
    ...about({
      unit: 'object',
      allowed: keysOf(members),
      doc,
      ...(missing === undefined ? {} : { missing }),
    }),
  })

const keysOf = (members: object): string => `an object with ${Object.keys(members).join(', ')}`

const TIME_UNITS = 'ms, s, m, h or d'

export const duration = (doc: string, given: { default?: string; missing?: string } = {}) =>
  Type.String({
    pattern: PATTERNS.duration,
    ...about({ unit: 'duration', allowed: `a duration above 0 with ${TIME_UNITS}`, doc, ...given }),
    ...defaulted(given.default),
  })

export const durationOrOff = (doc: string, byDefault?: string) =>
  Type.String({
    pattern: PATTERNS.orOff,
    ...about({ unit: 'duration', allowed: `a duration above 0 with ${TIME_UNITS}, or off`, doc }),
    ...defaulted(byDefault),
  })

export const commitAfter = (doc: string, byDefault?: string) =>
  Type.String({
    pattern: PATTERNS.orNever,
    ...about({ unit: 'duration', allowed: `a duration with ${TIME_UNITS} (0s too), or never`, doc }),
    ...defaulted(byDefault),
  })

export const size = (doc: string, byDefault: string) =>
  Type.String({
    pattern: PATTERNS.size,
    ...about({ unit: 'size', allowed: 'a size above 0 with B, KiB, MiB or GiB', doc }),
    default: byDefault,
  })

export const flag = (doc: string, byDefault?: boolean) =>
  Type.Boolean({ ...about({ unit: 'flag', allowed: 'true or false', doc }), ...defaulted(byDefault) })

export const defaulted = <T>(value: T | undefined) => (value === undefined ? {} : { default: value })

export const whole = (unit: Unit, min: number, doc: string, given: { default?: number; max?: number } = {}) =>
  Type.Integer({
    minimum: min,
    ...(given.max === undefined ? {} : { maximum: given.max }),
    ...about({
      unit,
      allowed:
        given.max === undefined
          ? `a whole number, ${min} or more`
          : `a whole number from ${min} to ${given.max}`,
      doc,
    }),
    ...defaulted(given.default),
  })

export const share = (doc: string, byDefault: number) =>
  Type.Number({
    minimum: 0,
    maximum: 1,
    ...about({ unit: 'share', allowed: 'a number from 0 to 1', doc }),
    default: byDefault,
  })

export const text = (
  unit: Unit,
  allowed: string,
  doc: string,
  given: { default?: string; missing?: string } = {},
) =>
  Type.String({
    ...(given.default === undefined ? { minLength: 1 } : {}),
    ...about({ unit, allowed, doc, ...given }),
    ...defaulted(given.default),
  })

export const names = (allowed: string, doc: string, missing?: string) =>
  Type.Array(Type.String({ minLength: 1, 'x-allowed': allowed, 'x-unit': 'name' }), {
    minItems: 1,
    ...about({
      unit: 'list',
      allowed: `a list of ${allowed}`,
      doc,
      ...(missing === undefined ? {} : { missing }),
    }),
  })

/** Names that may be few or none: without the key it is empty. */
export const namesOrNone = (allowed: string, doc: string, pattern?: string) =>
  Type.Array(
    Type.String({
      minLength: 1,
      ...(pattern === undefined ? {} : { pattern }),
      'x-allowed': allowed,
      'x-unit': 'name',
    }),
    { ...about({ unit: 'list', allowed: `a list of ${allowed}`, doc }), default: [] },
  )

export const port = (byDefault: number) =>
  whole('port', 0, 'Port. 0 takes a free one, which the log names.', {
    default: byDefault,
    max: 65535,
  })

export const host = (doc: string) =>
  Type.String({
    minLength: 1,
    ...about({ unit: 'name', allowed: 'an address or host name of this machine', doc }),
    default: '127.0.0.1',
  })
