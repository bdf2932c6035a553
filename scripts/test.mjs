/** Runs tap on all tests, or on the files and options given, and ends with the plain line `N passed, N failed`. */
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { Parser } from 'tap-parser'

const bin = fileURLToPath(new URL('run.mjs', import.meta.resolve('tap')))
const child = spawn(process.execPath, [bin, '--reporter=tap', ...process.argv.slice(2)], {
  stdio: ['ignore', 'pipe', 'inherit'],
})
// The signal reaches tap too, from the terminal or from ready.mjs; the counts are still printed.
process.on('SIGINT', () => {})
process.on('SIGTERM', () => child.kill('SIGTERM'))

// tap's own reporters count what was skipped as failed, so the counts come from its plain output.
const count = { passed: 0, failed: 0, skipped: 0 }
const failed = []
const parser = new Parser()
parser.on('result', result => {
  if (result.skip || result.todo) count.skipped++
  else if (result.ok) count.passed++
  else {
    count.failed++
    failed.push(result.fullname)
  }
})
child.stdout.on('data', data => {
  process.stdout.write(data)
  parser.write(data)
})
const code = await new Promise(resolve => {
  child.once('close', (exit, signal) => resolve(signal ? 1 : (exit ?? 1)))
})
parser.end()

const names = failed.map(name => `failed: ${name}\n`).join('')
const closing = `${names}${count.skipped} skipped\n${count.passed} passed, ${count.failed} failed\n`
await new Promise(resolve => process.stdout.write(closing, resolve))
process.exitCode = code !== 0 ? code : count.passed + count.failed === 0 ? 1 : 0
