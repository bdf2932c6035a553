/** What a command of the `weir` program is, and all it may touch of the process. */

/** The process as a command sees it. A closed stdout or stderr swallows what is written; it never throws. */
export interface Io {
  /** Writes to stdout as it is; the line end is the caller's. */
  out(text: string): void
  /** Writes to stderr as it is. */
  err(text: string): void
  readonly env: Readonly<Record<string, string | undefined>>
}

export interface Command {
  /** The word after `weir`. */
  readonly name: string
  /** One line for the list in `weir --help`. */
  readonly summary: string
  /** What `weir NAME --help` prints, an example included. */
  readonly help: string
  /**
   * Runs until the command is done.
   * @param args  what stands after the command's name
   * @returns the exit code. An option that `util.parseArgs` refuses may be thrown as it comes: it ends as code 2
   */
  run(args: readonly string[], io: Io): Promise<number>
}
