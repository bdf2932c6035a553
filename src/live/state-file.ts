/** What survives a restart: one small file, read at the start, written every minute and at the end. */
import { mkdir, open, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Ms } from '../time.js'

/** Something that keeps what it has learned. */
export interface Kept {
  /** Its key in the file. */
  readonly name: string
  /**
   * Plain data, no prompts, in pieces: each is asked for on its own, and the event loop turns between two, so that none
   * should take more than a millisecond or two.
   */
  save(): Iterable<unknown>
  /**
   * Takes over what `save` gave once, as an array; what it gets may be anything.
   * @param gapMs  since then, by the wall clock
   * @returns undefined, or in a few words why it cannot
   */
  restore(saved: unknown, gapMs: Ms): string | undefined
}

export interface StateOptions {
  /** Made if it is not there. */
  readonly dir: string
  readonly kept: readonly Kept[]
  /** Told of a file that cannot be used, and of the first write in a row that fails. */
  readonly warn: (fields: object, message: string) => void
  /** Milliseconds since 1970; the system's clock unless given. */
  readonly wall?: () => number
  /** Between two writes; a minute unless given. */
  readonly everyMs?: Ms
}

const FILE = 'weir-state.json'
const VERSION = 1
const EVERY_MS: Ms = 60_000

/**
 * Restores what the directory has, then goes on saving. Nothing in the directory, and nothing about it, is an error:
 * a router that cannot keep its state still routes.
 */
export async function openState(options: StateOptions): Promise<StateFile> {
  const state = new StateFile(options)
  await state.restore()
  state.start()
  return state
}

export class StateFile {
  readonly #file: string
  readonly #dir: string
  readonly #kept: readonly Kept[]
  readonly #warn: StateOptions['warn']
  readonly #wall: () => number
  readonly #everyMs: Ms
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<void> | undefined
  #failing = false

  constructor({ dir, kept, warn, wall = Date.now, everyMs = EVERY_MS }: StateOptions) {
    this.#dir = dir
    this.#file = join(dir, FILE)
    this.#kept = kept
    this.#warn = warn
    this.#wall = wall
    this.#everyMs = everyMs
  }

  async restore(): Promise<void> {
    let text: string
    try {
      text = await readFile(this.#file, 'utf8')
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return
      this.#warn({ err: error, file: this.#file }, 'the kept state cannot be read: figures begin anew')
      return
    }
    const why = this.#take(text)
    if (why !== undefined) await this.#setAside(why)
  }

  start(): void {
    this.#timer = setInterval(() => void this.save(), this.#everyMs)
    this.#timer.unref()
  }

  /** Writes all of it now, whole or not at all; while a write is under way, that one. */
  save(): Promise<void> {
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined
    })
    return this.#writing
  }

  /** Saves for the last time. */
  async close(): Promise<void> {
    clearInterval(this.#timer)
    await this.#writing
    await this.save()
  }

  /** @returns why the text is not used, or not all of it */
  #take(text: string): string | undefined {
    let found: unknown
    try {
      found = JSON.parse(text)
    } catch {
      return 'it is torn: no whole JSON'
    }
    if (!isObject(found) || !isObject(found['parts'])) return 'it is no state of Weir'
    if (found['version'] !== VERSION) {
      return `it is of version ${JSON.stringify(found['version'])}, and this Weir reads ${VERSION}`
    }
    const savedAt = Date.parse(String(found['saved_at']))
    if (Number.isNaN(savedAt)) return 'it does not say when it was saved'
    const gapMs = Math.max(0, this.#wall() - savedAt)
    const parts = found['parts']
    const refused = this.#kept.flatMap(kept => {
      const saved = parts[kept.name]
      const why = saved === undefined ? undefined : kept.restore(saved, gapMs)
      return why === undefined ? [] : [`${kept.name}: ${why}`]
    })
    return refused.length === 0 ? undefined : refused.join('; ')
  }

  async #setAside(why: string): Promise<void> {
    const aside = `${this.#file}.aside-${new Date(this.#wall()).toISOString().replaceAll(':', '-')}`
    try {
      await rename(this.#file, aside)
      this.#warn({ file: this.#file, aside, why }, 'the kept state was set aside: its figures begin anew')
    } catch (error) {
      this.#warn(
        { err: error, file: this.#file, why },
        'the kept state cannot be used: its figures begin anew',
      )
    }
  }

  /** The file, a piece at a time. Its time is that of the begin; it is written in a fraction of a second. */
  *#text(): Generator<string> {
    yield `{"version":${VERSION},"saved_at":"${new Date(this.#wall()).toISOString()}","parts":{`
    let begin = ''
    for (const kept of this.#kept) {
      yield `${begin}${JSON.stringify(kept.name)}:[`
      let comma = ''
      for (const piece of kept.save()) {
        yield comma + JSON.stringify(piece)
        comma = ','
      }
      yield ']'
      begin = ','
    }
    yield '}}\n'
  }

  async #write(): Promise<void> {
    // Of this process alone, should two share a directory by mistake.
    const draft = `${this.#file}.${process.pid}.tmp`
    try {
      await mkdir(this.#dir, { recursive: true })
      const handle = await open(draft, 'w', 0o600)
      try {
        await writeFile(handle, this.#text())
        await handle.sync()
      } finally {
        await handle.close()
      }
      await rename(draft, this.#file)
      this.#failing = false
    } catch (error) {
      if (!this.#failing) {
        this.#warn(
          { err: error, file: this.#file },
          'the state cannot be kept: figures will not survive a restart',
        )
      }
      this.#failing = true
    }
  }
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
