/** Finds the command by its name and runs it; says what to do when there is none. */
import { nearest } from '../config/error.js'
import type { Command, Io } from './command.js'
import { version } from './version.js'

/** Loaded when asked for, so that `weir check` does not wait for the sockets of `weir serve`. */
const COMMANDS: ReadonlyMap<string, () => Promise<Command>> = new Map([
  ['demo', async () => (await import('./demo.js')).demo],
  ['serve', async () => (await import('./serve.js')).serve],
  ['explain', async () => (await import('./explain.js')).explain],
  ['check', async () => (await import('./check.js')).check],
  ['rules', async () => (await import('./rules.js')).rules],
  ['sweep', async () => (await import('./sweep.js')).sweep],
  ['simulate', async () => (await import('./simulate.js')).simulate],
  ['report', async () => (await import('./report.js')).report],
  ['replay', async () => (await import('./replay.js')).replay],
])

const NOT_BUILT: ReadonlySet<string> = new Set(['doctor', 'init', 'import', 'top'])

const USAGE_ERROR = 2

async function overview(): Promise<string> {
  const commands = await Promise.all([...COMMANDS.values()].map(load => load()))
  const lines = commands.map(({ name, summary }) => `  ${name.padEnd(8)} ${summary}`)
  return `weir: an SLO-aware streaming router for LLM serving

usage: weir COMMAND [options]

${lines.join('\n')}

weir COMMAND --help   its options, with an example
weir --version        the version
`
}

function unknown(name: string): string {
  const near = nearest(name, [...COMMANDS.keys(), ...NOT_BUILT])
  const hint =
    near === undefined ? `the commands are ${[...COMMANDS.keys()].join(', ')}` : `did you mean ${near}?`
  return `weir: no command "${name}"; ${hint}\n`
}

/** Whether the user asks for help; what stands after `--` is not Weir's. */
function asksHelp(args: readonly string[]): boolean {
  const end = args.indexOf('--')
  return args.slice(0, end < 0 ? args.length : end).some(arg => arg === '--help' || arg === '-h')
}

const isBadOption = (error: unknown): error is Error & { readonly code: string } =>
  error instanceof Error && 'code' in error && String(error.code).startsWith('ERR_PARSE_ARGS_')

/**
 * Runs what the arguments ask for.
 * @param args  what stands after `weir`
 * @returns the exit code: the command's own, 2 for a wrong use
 */
export async function dispatch(args: readonly string[], io: Io): Promise<number> {
  const [name, ...rest] = args
  if (name === undefined) {
    io.err(await overview())
    return USAGE_ERROR
  }
  if (name === '--help' || name === '-h' || name === 'help') {
    io.out(await overview())
    return 0
  }
  if (name === '--version' || name === '-v') {
    io.out(`${version()}\n`)
    return 0
  }
  if (NOT_BUILT.has(name)) {
    io.err(`weir ${name} is not built yet\n`)
    return USAGE_ERROR
  }
  const load = COMMANDS.get(name)
  if (load === undefined) {
    io.err(unknown(name))
    return USAGE_ERROR
  }
  const command = await load()
  if (asksHelp(rest)) {
    io.out(command.help.endsWith('\n') ? command.help : `${command.help}\n`)
    return 0
  }
  try {
    return await command.run(rest, io)
  } catch (error) {
    if (!isBadOption(error)) throw error
    io.err(`weir ${name}: ${error.message}\nweir ${name} --help says what it takes\n`)
    return USAGE_ERROR
  }
}
