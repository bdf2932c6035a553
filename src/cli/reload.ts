/** Reads the config anew while Weir runs: on SIGHUP, when its file changes, and when the admin port is asked to. */
import { unwatchFile, watchFile } from 'node:fs'
import type { Logger } from 'pino'
import { showProblems } from '../config/error.js'
import type { Loaded } from '../config/load.js'
import type { ReloadResult } from '../http/ops.js'
import type { Weir } from '../http/weir.js'

/** Between looks at the files: by their times, since a mounted config changes by a link that is put elsewhere. */
const LOOK_MS = 1000

export class Reloader {
  #weir: Weir | undefined
  #files: readonly string[]

  /**
   * @param read   reads the config as at the start
   * @param files  what it was read from then
   */
  constructor(
    readonly read: () => Loaded,
    files: readonly string[],
    readonly log: Logger,
  ) {
    this.#files = files
  }

  /** From now on changes reach this Weir. */
  start(weir: Weir): void {
    this.#weir = weir
    process.on('SIGHUP', this.#onSignal)
    this.#watch(this.#files)
  }

  stop(): void {
    process.off('SIGHUP', this.#onSignal)
    this.#watch([])
  }

  /** All or nothing: where something is wrong the config that runs goes on, and `why` says what it is. */
  reload(cause: string): ReloadResult {
    const why = this.#try()
    if (why === undefined) {
      this.log.info({ cause }, 'the new config is in force')
      return { ok: true }
    }
    this.log.error({ cause, why }, 'the config was not reloaded: the one before goes on')
    return { ok: false, why }
  }

  #try(): string | undefined {
    const loaded = this.read()
    if (loaded.ok === undefined) return showProblems(loaded.problems)
    try {
      this.#weir?.reconfigure(loaded.ok)
    } catch (error) {
      return error instanceof Error ? error.message : String(error)
    }
    if (loaded.warnings.length > 0)
      this.log.warn({ warnings: showProblems(loaded.warnings, 'warning') }, 'config')
    this.#watch(loaded.files)
    return undefined
  }

  readonly #onSignal = (): void => {
    this.reload('SIGHUP')
  }

  readonly #onChange = (): void => {
    this.reload('file change')
  }

  #watch(files: readonly string[]): void {
    for (const file of this.#files) unwatchFile(file, this.#onChange)
    for (const file of files) watchFile(file, { interval: LOOK_MS, persistent: false }, this.#onChange)
    this.#files = files
  }
}
