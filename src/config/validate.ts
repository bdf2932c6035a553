/** Holds data against the fields: whatever they do not allow becomes a problem, and is taken out of the data. */
import { Ajv, type ErrorObject } from 'ajv'
import type { Static, TSchema } from 'typebox'
import { adviceFor, type Explained } from './advice.js'
import { listed, nearest, type Path, showValue } from './error.js'
import { NOT_BUILT } from './fields.js'
import type { Source } from './source.js'

/** `T`, any part of which may be missing because it was wrong. */
export type Partly<T> = T extends readonly (infer Item)[]
  ? readonly (Partly<Item> | undefined)[]
  : T extends object
    ? { readonly [Key in keyof T]?: Partly<T[Key]> | undefined }
    : T

const ajv = new Ajv({ allErrors: true, useDefaults: true, verbose: true, strict: false })

/**
 * Validates `source` and fills in defaults. Problems go to `source.problems`.
 * @returns the data without its wrong parts; with no problems it is whole
 */
export function validate<T extends TSchema>(source: Source, schema: T): Partly<Static<T>> {
  const data = source.data()
  if (data === undefined) return {} as Partly<Static<T>>
  if (typeof data !== 'object' || data === null || Array.isArray(data)) {
    source.complain([], {
      got: showValue(data),
      allowed: 'an object with the keys of the documentation',
      fix: 'start from one of the files in config/, or from what weir sweep --target URL prints',
    })
    return {} as Partly<Static<T>>
  }
  const check = ajv.compile(schema)
  const errors = check(data) ? [] : (check.errors ?? [])
  const typed = errors.filter(error => retype(source, data, error))
  const left = typed.length === 0 || check(data) ? [] : (check.errors ?? [])
  const wrong: Path[] = []
  for (const error of typed.length === 0 ? errors : left) wrong.push(complain(source, data, error))
  for (const path of wrong) takeOut(data, path)
  return data as Partly<Static<T>>
}

/** A text from `${ENV}` where a number or a flag belongs becomes one. */
function retype(source: Source, data: object, error: ErrorObject): boolean {
  const path = pathIn(data, error.instancePath)
  if (error.keyword !== 'type' || source.filledFrom(path) === undefined) return false
  const text = String(error.data)
  const type = error.params['type']
  let value: unknown
  if (type === 'boolean' && /^(true|false)$/.test(text)) value = text === 'true'
  else if ((type === 'number' || type === 'integer') && /^-?[0-9]+([.][0-9]+)?$/.test(text))
    value = Number(text)
  else return false
  put(data, path, value)
  return true
}

function complain(source: Source, data: object, error: ErrorObject): Path {
  const path = pathIn(data, error.instancePath)
  const field = (error.parentSchema ?? {}) as Explained & { properties?: Record<string, Explained> }
  if (error.keyword === 'additionalProperties') {
    const key = String(error.params['additionalProperty'])
    unknownKey(source, path, key, Object.keys(field.properties ?? {}))
    return [...path, key]
  }
  if (error.keyword === 'required') {
    const key = String(error.params['missingProperty'])
    const missing: Explained = field.properties?.[key] ?? {}
    source.complain([...path, key], {
      got: 'nothing',
      allowed: missing['x-allowed'] ?? 'a value',
      fix: adviceFor(missing, undefined),
    })
    return [...path, key]
  }
  const from = source.filledFrom(path)
  const got = field['x-unit'] === 'secret' ? 'a value that is not shown' : showValue(error.data)
  const later = notBuilt(path)
  source.complain(path, {
    got: from === undefined ? got : `${got}, from ${from}`,
    allowed: field['x-allowed'] ?? 'something else',
    fix: later === undefined ? adviceFor(field, error.data) : laterFix(later),
  })
  return path
}

function unknownKey(source: Source, parent: Path, key: string, known: readonly string[]): void {
  const later = notBuilt([...parent, key])
  const meant = nearest(key, known)
  const sorted = meant === undefined ? known : [meant, ...known.filter(name => name !== meant)]
  source.complain(
    [...parent, key],
    later === undefined
      ? {
          got: 'a key Weir does not know',
          allowed: listed(sorted),
          fix: meant === undefined ? 'remove it' : `rename it to ${meant}, or remove it`,
        }
      : {
          got: 'a key of the documentation that is not built yet',
          allowed: listed(known),
          fix: laterFix(later),
        },
    'key',
  )
}

function notBuilt(path: Path): string | undefined {
  return NOT_BUILT.find(([pattern]) => {
    const steps = pattern.split('.')
    return steps.length === path.length && steps.every((step, at) => step === '*' || step === path[at])
  })?.[1]
}

const laterFix = (means: string): string => `remove it: not built yet, ${means} in this version`

/** ajv's JSON pointer as steps, with numbers where the data has a list. */
function pathIn(data: unknown, pointer: string): Path {
  let at = data
  return pointer
    .split('/')
    .slice(1)
    .map(raw => {
      const key = raw.replaceAll('~1', '/').replaceAll('~0', '~')
      const step = Array.isArray(at) ? Number(key) : key
      at = member(at, step)
      return step
    })
}

function member(parent: unknown, step: string | number): unknown {
  if (typeof parent !== 'object' || parent === null || !Object.hasOwn(parent, step)) return undefined
  return (parent as Record<string | number, unknown>)[step]
}

function put(data: object, path: Path, value: unknown): void {
  const parent = path.slice(0, -1).reduce<unknown>(member, data)
  const last = path.at(-1)
  if (typeof parent !== 'object' || parent === null || last === undefined) return
  Object.defineProperty(parent, last, { value, writable: true, enumerable: true, configurable: true })
}

/** Names stay, so that nobody is told of a class or pool that it does not exist for being wrong inside. */
function takeOut(data: object, path: Path): void {
  put(data, path, undefined)
}
