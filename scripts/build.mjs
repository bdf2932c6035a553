/** Compiles src to dist, and makes the program executable: npx runs it by its name, and tsc writes plain files. */
import { spawnSync } from 'node:child_process'
import { chmodSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const tsc = ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json']
// What tsc says is the result of the build, and stdout belongs to what is started after it.
const { status } = spawnSync(process.execPath, tsc, { cwd: root, stdio: ['ignore', 2, 2] })
if (status === 0) chmodSync(`${root}dist/cli/main.js`, 0o755)
else process.exitCode = status ?? 1
