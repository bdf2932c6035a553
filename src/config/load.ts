/** From a file, or from data, to a resolved config: or to all of its problems at once. */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, isAbsolute, join, relative } from 'node:path'
import { checkConfig } from './check.js'
import { type Problem, showValue } from './error.js'
import { ConfigFields, KeysFields } from './fields.js'
import { checkKeys } from './keys.js'
import { resolve } from './resolve.js'
import type { Resolved } from './resolved.js'
import { type Env, Source } from './source.js'
import { readSweeps, sweepWarnings } from './sweeps.js'
import { type Partly, validate } from './validate.js'
import { warningsOf } from './warn.js'

/** Values from the command line, which win over the file's. */
export interface Overrides {
  readonly listen?: { readonly host?: string; readonly port?: number }
  readonly admin?: { readonly host?: string; readonly port?: number }
  /** By pool: its replicas instead of those in the file. */
  readonly replicas?: Readonly<Record<string, readonly string[]>>
  /** Sweep files are not looked at: for the command that makes them. */
  readonly sweeps?: 'unread'
}

export type Loaded =
  | {
      readonly ok: Resolved
      readonly warnings: readonly Problem[]
      /** What it was read from: the config file, and the keys file and the sweeps if there are any. */
      readonly files: readonly string[]
    }
  | {
      readonly ok?: undefined
      /** Never empty; by line. */
      readonly problems: readonly Problem[]
      /** The config file itself could not be read. */
      readonly unreadable: boolean
    }

/** Where `weir` looks without `-c`. */
export const DEFAULT_FILES = ['config/weir.yaml', 'weir.yaml'] as const

/** The first of `DEFAULT_FILES` that exists below the working directory; the first of all if none does. */
export function defaultFile(): string {
  return DEFAULT_FILES.find(file => existsSync(file)) ?? DEFAULT_FILES[0]
}

/**
 * Reads and resolves a config file. Never throws for what is in it.
 * @param file  its path, as it shall stand in messages
 * @param env   what `${NAME}` is filled from
 */
export function load(file: string, env: Env, overrides: Overrides = {}): Loaded {
  const text = readText(file)
  if (typeof text !== 'string') {
    const problem = {
      file,
      path: '',
      line: undefined,
      column: undefined,
      got: text.why,
      allowed: 'a file that Weir may read',
      fix: 'name another with -c, or copy config/weir.yaml from the repository',
    }
    return { problems: [problem], unreadable: true }
  }
  return loadText(text, env, { file, ...overrides })
}

/** As `load`, for a text. `file` says how messages call it, and what the keys file is relative to. */
export function loadText(text: string, env: Env, options: Overrides & { readonly file: string }): Loaded {
  const source = Source.fromText(options.file, text)
  return source.broken ? failed(source) : finish(source, env, options)
}

/** As `load`, for plain data in the shape of the file. Nothing is filled in from an environment. */
export function loadData(data: unknown, name: string, overrides: Overrides = {}): Loaded {
  return finish(Source.fromData(name, data), undefined, overrides)
}

function finish(source: Source, env: Env | undefined, overrides: Overrides): Loaded {
  override(source, overrides)
  if (env !== undefined) source.fill(env)
  const config = validate(source, ConfigFields)
  const keysSource = readKeys(source, config, env ?? {})
  const keys = keysSource === undefined || keysSource.broken ? undefined : validate(keysSource, KeysFields)
  checkConfig(source, config, keys)
  if (keysSource !== undefined && keys !== undefined) checkKeys(keysSource, keys, config.classes)
  const sweeps = overrides.sweeps === 'unread' ? new Map() : readSweeps(source, config)
  if (source.problems.length > 0 || (keysSource?.problems.length ?? 0) > 0) return failed(source, keysSource)
  // Without a problem nothing was taken out, so the parts are whole.
  const whole = config as ConfigFields
  const wholeKeys = keys as KeysFields | undefined
  const warnings = [...warningsOf(source, whole, wholeKeys), ...sweepWarnings(source, whole, sweeps)]
  const others = [...(keysSource === undefined ? [] : [keysSource]), ...sweeps.values()]
  return {
    ok: resolve(whole, wholeKeys, source.file, sweeps),
    warnings: byLine(warnings),
    files: [source.file, ...others.map(({ file }) => file)],
  }
}

function failed(...sources: readonly (Source | undefined)[]): Loaded {
  return { problems: sources.flatMap(source => byLine(source?.problems ?? [])), unreadable: false }
}

/** Problems without a line come first: they are about what is not there. */
function byLine(problems: readonly Problem[]): readonly Problem[] {
  return problems.toSorted((a, b) => (a.line ?? 0) - (b.line ?? 0) || (a.column ?? 0) - (b.column ?? 0))
}

function override(source: Source, { listen, admin, replicas }: Overrides): void {
  for (const [key, value] of Object.entries({ listen, admin })) {
    for (const [member, of] of Object.entries(value ?? {})) source.set([key, member], of)
  }
  for (const [pool, urls] of Object.entries(replicas ?? {}))
    source.set(['pools', pool, 'replicas'], [...urls])
}

function readKeys(source: Source, { auth }: Partly<ConfigFields>, env: Env): Source | undefined {
  const name = typeof auth === 'object' ? auth.keys : undefined
  if (name === undefined) return undefined
  const file = isAbsolute(name) ? name : join(dirname(source.file), name)
  const text = readText(file)
  if (typeof text === 'string') {
    const keys = Source.fromText(file, text)
    if (!keys.broken) keys.fill(env)
    return keys
  }
  source.complain(['auth', 'keys'], {
    got: `${showValue(name)}: ${text.why}`,
    allowed: 'a file that Weir may read, relative to this one',
    fix: `put the keys into ${relative('.', file) || file}, or correct the name`,
  })
  return undefined
}

function readText(file: string): string | { readonly why: string } {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    if (code === 'ENOENT') return { why: 'no such file' }
    if (code === 'EACCES') return { why: 'no permission to read it' }
    if (code === 'EISDIR') return { why: 'a directory' }
    return { why: error instanceof Error ? error.message : String(error) }
  }
}
