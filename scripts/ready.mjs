/**
 * Gets a fresh clone ready, then starts it: `ready.mjs start …` is `weir demo …`, `ready.mjs test …` runs the tests.
 * Node's own modules only, and syntax that Node 14 can read, so that an old Node gets a sentence and not a stack.
 * All it says goes to stderr: stdout belongs to what it starts.
 */
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const PROGRAMS = { start: ['dist/cli/main.js', 'demo'], test: ['scripts/test.mjs'] }

function say(text) {
  process.stderr.write(`weir: ${text}\n`)
}

function readJson(path) {
  try {
    return JSON.parse(readFileSync(join(root, path), 'utf8'))
  } catch {
    return undefined
  }
}

/** Why this Node cannot run Weir; undefined when it can. `engines.node` is a plain `>=x.y.z`. */
function oldNode() {
  const wanted = readJson('package.json').engines.node
  const least = wanted.replace('>=', '').split('.').map(Number)
  const have = process.versions.node.split('.').map(Number)
  const differs = least.findIndex((part, i) => part !== have[i])
  if (differs < 0 || have[differs] > least[differs]) return undefined
  return `Node ${process.versions.node} is too old: Weir needs Node ${wanted}. Install a newer one and run this again.`
}

/**
 * Why packages must be installed; undefined when nothing is missing. Compares what npm wrote at the end of its last
 * install with the lock, not file times: a lock merely touched must not cost a reinstall where there is no network.
 */
function notInstalled() {
  const have = readJson('node_modules/.package-lock.json')
  if (!have) return 'node_modules is missing'
  const lock = readJson('package-lock.json')
  if (!lock) return 'package-lock.json cannot be read'
  // Optional packages are for one platform each, so most of them are rightly absent.
  const old = Object.entries(lock.packages).some(([path, wanted]) => {
    const found = have.packages[path]
    if (!found) return path !== '' && !wanted.optional && !wanted.devOptional
    return found.version !== wanted.version || found.integrity !== wanted.integrity
  })
  return old ? 'node_modules is older than package-lock.json' : undefined
}

/** When the newest file or directory under `path` changed; a deleted file changes its directory. */
function newest(path) {
  const stat = statSync(path)
  if (!stat.isDirectory()) return stat.mtimeMs
  return Math.max(stat.mtimeMs, ...readdirSync(path).map(name => newest(join(path, name))))
}

/** Why dist must be built; undefined when it is newer than all it is made from. */
function notBuilt() {
  let built
  try {
    built = statSync(join(root, 'dist/cli/main.js')).mtimeMs
  } catch {
    return 'dist is missing'
  }
  const sources = ['src', 'tsconfig.json', 'tsconfig.build.json']
  return sources.some(path => newest(join(root, path)) > built) ? 'dist is older than src' : undefined
}

/** The npm that started this script, else the one on PATH; `--include=dev` since NODE_ENV=production leaves out tsc. */
function npmCi(stdio) {
  const args = ['ci', '--include=dev', '--prefer-offline']
  const own = process.env['npm_execpath']
  const options = { cwd: root, stdio }
  if (own && basename(own) === 'npm-cli.js') return spawn(process.execPath, [own, ...args], options)
  return spawn('npm', args, { ...options, shell: process.platform === 'win32' })
}

/**
 * Waits for a child, passing on the signals that it would not get by itself. In a terminal Ctrl-C reaches every
 * process of the foreground, so SIGINT is passed on only where there is no terminal. npm gives a SIGTERM to the shell
 * between it and this process, which dies of it and tells nobody: then this process has another parent.
 * @returns its exit code and signal, one of them null; `error` when it could not be started
 */
function ended(child) {
  const forward = signal => {
    if (signal !== 'SIGINT' || !process.stdin.isTTY) child.kill(signal)
  }
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP']
  for (const signal of signals) process.on(signal, forward)
  const parent = process.ppid
  const orphaned = setInterval(() => {
    if (process.ppid === parent || !process.env['npm_lifecycle_event']) return
    clearInterval(orphaned)
    child.kill('SIGTERM')
  }, 500)
  return new Promise(resolve => {
    child.once('error', error => resolve({ code: null, signal: null, error }))
    child.once('exit', (code, signal) => resolve({ code, signal }))
  }).then(result => {
    clearInterval(orphaned)
    for (const signal of signals) process.off(signal, forward)
    return result
  })
}

/** Ends this process the way a child ended. */
function endLike({ code, signal }) {
  if (signal) process.kill(process.pid, signal)
  else process.exitCode = code === null ? 1 : code
}

/** Runs one preparing step with its output on stderr. @returns whether it went well; if not, the exit code is set */
async function step(child, failed) {
  const result = await ended(child)
  if (result.code === 0) return true
  endLike(result)
  if (!result.signal) say(failed(result.error ? result.error.message : `exit ${result.code}`))
  return false
}

async function main([what, ...args]) {
  const program = PROGRAMS[what]
  if (!program) {
    say('usage: node scripts/ready.mjs start|test [arguments]')
    process.exitCode = 2
    return
  }
  const tooOld = oldNode()
  if (tooOld) {
    say(tooOld)
    process.exitCode = 1
    return
  }
  const onStderr = ['ignore', 2, 2]
  const missing = notInstalled()
  if (missing) {
    say(`${missing}: installing packages (npm ci)`)
    const failed = why =>
      `npm ci failed (${why}), see above. The first install needs the network; later runs do not.`
    if (!(await step(npmCi(onStderr), failed))) return
  }
  const stale = notBuilt()
  if (stale) {
    say(`${stale}: building (tsc)`)
    const child = spawn(process.execPath, ['scripts/build.mjs'], { cwd: root, stdio: onStderr })
    if (!(await step(child, why => `the build failed (${why}), see above.`))) return
  }
  endLike(await ended(spawn(process.execPath, [...program, ...args], { cwd: root, stdio: 'inherit' })))
}

main(process.argv.slice(2))
