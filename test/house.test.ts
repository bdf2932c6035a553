/** The house around the rooms: what a fresh clone does, what the program's name answers, what the pages promise. */
import { spawn } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { parse } from 'yaml'
import { dispatch } from '../src/cli/dispatch.js'
import { load } from '../src/config/load.js'

const root = fileURLToPath(new URL('..', import.meta.url))
const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const json = (path: string) => JSON.parse(read(path))

interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly out: string
  readonly err: string
}

const node = (args: readonly string[], options: Parameters<typeof run>[2]) =>
  run(process.execPath, args, options)

/**
 * Runs a program until it and all that writes to its stdout have ended. `PATH` holds only what the test put there.
 * `signalAt`: a signal for the program, once stdout has the text.
 */
function run(
  program: string,
  args: readonly string[],
  options: { cwd: string; env?: Record<string, string>; signalAt?: readonly [string, NodeJS.Signals] },
): Promise<Ended> {
  const child = spawn(program, args, {
    cwd: options.cwd,
    env: { HOME: options.cwd, PATH: '', ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let [out, err, signalled] = ['', '', false]
  child.stdout.setEncoding('utf8').on('data', (data: string) => {
    out += data
    if (options.signalAt === undefined || signalled || !out.includes(options.signalAt[0])) return
    signalled = true
    child.kill(options.signalAt[1])
  })
  child.stderr.setEncoding('utf8').on('data', (data: string) => {
    err += data
  })
  return new Promise(resolve => child.once('close', (code, signal) => resolve({ code, signal, out, err })))
}

// The npm of the made-up project writes down how it was called, and installs a tsc that does likewise.
const FAKE_NPM = `#!${process.execPath}
const fs = require('node:fs')
fs.appendFileSync('calls', 'npm ' + process.argv.slice(2).join(' ') + '\\n')
console.log('noise of npm')
if (process.env.FAIL === 'npm') process.exit(3)
fs.mkdirSync('node_modules/typescript/bin', { recursive: true })
fs.writeFileSync('node_modules/typescript/bin/tsc', fs.readFileSync('tsc.txt'))
fs.copyFileSync('package-lock.json', 'node_modules/.package-lock.json')
`
const FAKE_TSC = `const fs = require('node:fs')
fs.appendFileSync('calls', 'tsc ' + process.argv.slice(2).join(' ') + '\\n')
if (process.env.FAIL === 'tsc') process.exit(2)
fs.mkdirSync('dist/cli', { recursive: true })
fs.copyFileSync('src/main.txt', 'dist/cli/main.js')
fs.utimesSync('dist/cli/main.js', new Date(), new Date())
`
const PROGRAM = `if (process.env.STAY) {
  setInterval(() => {}, 1000)
  for (const signal of ['SIGINT', 'SIGTERM'])
    process.once(signal, () => setTimeout(() => (console.log('ended by', signal), process.exit(5)), 50))
} else process.exitCode = 7
console.log('program', ...process.argv.slice(2))
if (process.env.DIE) process.kill(process.pid, 'SIGKILL')
`
const lock = (version: string): string =>
  JSON.stringify({
    packages: {
      '': { name: 'made-up' },
      'node_modules/a': { version, integrity: `sha512-${version}` },
    },
  })

const TREE = {
  'package.json': JSON.stringify({ type: 'commonjs', engines: { node: '>=20.19.0' } }),
  'package-lock.json': lock('1.0.0'),
  'tsconfig.json': '{}',
  'tsconfig.build.json': '{}',
  'tsc.txt': FAKE_TSC,
  bin: {},
  scripts: { 'test.mjs': "console.log('tests', ...process.argv.slice(2))" },
  src: { 'main.txt': PROGRAM, 'other.txt': '' },
}

/** Makes `dir`, which holds TREE, a project with the real ready.mjs and nothing else that is real. */
function project(dir: string) {
  writeFileSync(join(dir, 'bin/npm'), FAKE_NPM, { mode: 0o755 })
  for (const script of ['scripts/ready.mjs', 'scripts/build.mjs'])
    copyFileSync(join(root, script), join(dir, script))
  const calls = () => {
    const path = join(dir, 'calls')
    const text = existsSync(path) ? readFileSync(path, 'utf8') : ''
    rmSync(path, { force: true })
    return text.split('\n').filter(line => line !== '')
  }
  const ready = (
    args: string[],
    env: Record<string, string> = {},
    signalAt?: readonly [string, NodeJS.Signals],
  ) =>
    node(['scripts/ready.mjs', ...args], {
      cwd: dir,
      env: { PATH: join(dir, 'bin'), ...env },
      ...(signalAt === undefined ? {} : { signalAt }),
    })
  return { dir, calls, ready }
}

const INSTALL = 'npm ci --include=dev --prefer-offline'
const BUILD = 'tsc -p tsconfig.build.json'

t.test('ready.mjs installs and builds what is missing, once, and starts the demo', async t => {
  const { dir, calls, ready } = project(t.testdir(TREE))
  const first = await ready(['start', '--load', '0.3', '--json'])
  t.equal(first.out, 'program demo --load 0.3 --json\n', 'stdout belongs to the program')
  t.match(first.err, 'weir: node_modules is missing: installing packages (npm ci)\n')
  t.match(first.err, 'noise of npm')
  t.match(first.err, 'weir: dist is missing: building (tsc)\n')
  t.equal(first.code, 7, 'with the exit code of the program')
  t.ok(statSync(join(dir, 'dist/cli/main.js')).mode & 0o100, 'which npx can run by its name')
  t.same(calls(), [INSTALL, BUILD])

  const second = await ready(['start'], { PATH: '' })
  t.same(
    [second.out, second.err, second.code],
    ['program demo\n', '', 7],
    'then it needs no npm and says nothing',
  )
  t.same(calls(), [])

  const tests = await ready(['test', 'test/sse', '--bail'])
  t.same([tests.out, tests.code], ['tests test/sse --bail\n', 0])

  const later = new Date(Date.now() + 60_000)
  utimesSync(join(dir, 'package-lock.json'), later, later)
  await ready(['test'])
  t.same(calls(), [], 'a lock that was only touched costs no install')
  writeFileSync(join(dir, 'package-lock.json'), lock('1.0.1'))
  t.match((await ready(['test'])).err, 'weir: node_modules is older than package-lock.json: installing')
  t.same(calls(), [INSTALL])

  const before = new Date(Date.now() - 60_000)
  utimesSync(join(dir, 'dist/cli/main.js'), before, before)
  t.match((await ready(['test'])).err, 'weir: dist is older than src: building (tsc)')
  t.same(calls(), [BUILD])
  utimesSync(join(dir, 'src'), later, later)
  await ready(['test'])
  t.same(calls(), [BUILD], 'a file that is gone counts as a change')
})

t.test('ready.mjs says what failed and starts nothing', async t => {
  const { calls, ready } = project(t.testdir(TREE))
  const npm = await ready(['start'], { FAIL: 'npm' })
  t.same([npm.out, npm.code], ['', 3])
  t.match(npm.err, 'weir: npm ci failed (exit 3), see above. The first install needs the network')
  const none = await ready(['start'], { PATH: '' })
  t.same([none.out, none.code], ['', 1])
  t.match(none.err, 'npm ci failed (spawn npm ENOENT)')
  calls()
  const tsc = await ready(['test'], { FAIL: 'tsc' })
  t.same([tsc.out, tsc.code], ['', 2])
  t.match(tsc.err, 'weir: the build failed (exit 2), see above.')
  t.same(calls(), [INSTALL, BUILD])
  await ready(['test'], { FAIL: 'tsc' })
  t.same(calls(), [BUILD], 'a failed build is tried again')
  const wrong = await ready(['stop'])
  t.same([wrong.err, wrong.code], ['weir: usage: node scripts/ready.mjs start|test [arguments]\n', 2])
})

t.test('ready.mjs refuses a Node that is too old, before anything else', async t => {
  const { dir, calls, ready } = project(t.testdir(TREE))
  const as = async (version: string) => {
    const text = `Object.defineProperty(process.versions, 'node', { value: '${version}' })`
    writeFileSync(join(dir, 'as.cjs'), text)
    return ready(['test'], { NODE_OPTIONS: '--require ./as.cjs' })
  }
  for (const version of ['18.19.0', '20.18.9', '20.9.0', '8.20.0']) {
    const old = await as(version)
    t.equal(
      old.err,
      `weir: Node ${version} is too old: Weir needs Node >=20.19.0. Install a newer one and run this again.\n`,
    )
    t.same([old.out, old.code, calls()], ['', 1, []])
  }
  for (const version of ['20.19.0', '20.20.2', '22.0.0', '24.21.0'])
    t.equal((await as(version)).code, 0, version)
})

t.test('signals go through ready.mjs, and it waits for the end', async t => {
  const { dir, ready } = project(t.testdir(TREE))
  await ready(['test'])
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    const ended = await ready(['start'], { STAY: '1' }, ['program', signal])
    t.same([ended.out, ended.code], [`program demo\nended by ${signal}\n`, 5])
  }
  const npm = await run('/bin/sh', ['-c', `${process.execPath} scripts/ready.mjs start; true`], {
    cwd: dir,
    env: { STAY: '1', npm_lifecycle_event: 'start' },
    signalAt: ['program', 'SIGTERM'],
  })
  t.equal(
    npm.out,
    'program demo\nended by SIGTERM\n',
    'a shell of npm that died of its signal leaves nothing behind',
  )
  t.equal(
    (await ready(['start'], { DIE: '1' })).signal,
    'SIGKILL',
    'it ends by the signal that ended the program',
  )
})

t.test('test.mjs closes with the counts, names what failed, and exits by them', async t => {
  const tap = (name: string, body: string) => ({
    [name]: `import t from ${JSON.stringify(import.meta.resolve('tap'))}\n${body}`,
  })
  const dir = t.testdir({
    'package.json': '{"type":"module"}',
    test: {
      ...tap('good.test.mjs', "t.pass('fine'); t.skip('not here')"),
      ...tap('bad.test.mjs', "t.test('the sum', t => { t.equal(1, 2, 'is right'); t.end() })"),
    },
  })
  const tests = (...args: string[]) =>
    node([join(root, 'scripts/test.mjs'), '--disable-coverage', '--jobs=1', ...args], {
      cwd: dir,
      env: { PATH: process.env['PATH'] ?? '' },
    })
  const good = await tests('test/good.test.mjs')
  t.match(good.out, /\n1 skipped\n1 passed, 0 failed\n$/)
  t.equal(good.code, 0)
  const both = await tests('test/good.test.mjs', 'test/bad.test.mjs')
  t.match(both.out, /\nfailed: .*the sum > is right\n1 skipped\n1 passed, 1 failed\n$/)
  t.equal(both.code, 1)
  const none = await tests('test/none.test.mjs')
  t.match(none.out, /\n0 passed, 0 failed\n$/)
  t.equal(none.code, 1, 'no test at all is a failure')
})

/** What `weir ARGS` would say. */
async function weir(...args: string[]) {
  let [out, err] = ['', '']
  const code = await dispatch(args, {
    out: text => {
      out += text
    },
    err: text => {
      err += text
    },
    env: {},
  })
  return { code, out, err }
}

t.test('the program answers to its name', async t => {
  t.same(await weir('--version'), { code: 0, out: `${json('package.json').version}\n`, err: '' })
  t.same(await weir('doctor', '-c', 'x'), { code: 2, out: '', err: 'weir doctor is not built yet\n' })
  t.equal((await weir('serv')).err, 'weir: no command "serv"; did you mean serve?\n')
  t.equal((await weir('chekc')).err, 'weir: no command "chekc"; did you mean check?\n')
  t.same(await weir('frobnicate'), {
    code: 2,
    out: '',
    err: 'weir: no command "frobnicate"; the commands are demo, serve, explain, check, rules, sweep, simulate, report, replay\n',
  })
  const overview = await weir('--help')
  t.equal(overview.code, 0)
  t.same(await weir(), { code: 2, out: '', err: overview.out }, 'without a command the same, as an error')
  for (const name of ['demo', 'serve', 'check', 'rules', 'sweep', 'replay']) {
    t.match(overview.out, new RegExp(`^  ${name} +\\S.*$`, 'm'))
    const help = await weir(name, '--help')
    t.equal(help.code, 0)
    t.match(help.out, new RegExp(`weir ${name} [\\s\\S]*\\n$`), `weir ${name} --help has an example`)
    const wrong = await weir(name, '--frobnicate')
    t.match(wrong.err, /--frobnicate/, `weir ${name} names the option that it does not know`)
    t.not(wrong.code, 0)
  }
})

t.test('a reader who leaves early is no error', async t => {
  // The same loader that runs this test lets Node run the program from its source.
  const script = `const { spawn } = require('node:child_process')
    const child = spawn(process.execPath, [...JSON.parse(process.env.ARGV), '--version'], { stdio: ['ignore', 'pipe', 'inherit'] })
    child.stdout.destroy()
    child.once('close', code => console.log('code', code))`
  const argv = JSON.stringify([...process.execArgv, join(root, 'src/cli/main.ts')])
  const ended = await node(['-e', script], {
    cwd: root,
    env: { ...(process.env as Record<string, string>), ARGV: argv },
  })
  t.same([ended.out, ended.err], ['code 0\n', ''])
})

t.test('package.json names the least Node and the program', async t => {
  const { engines, bin, scripts, license } = json('package.json')
  t.equal(engines.node, '>=20.19.0')
  t.same(bin, { weir: 'dist/cli/main.js' })
  t.match(read('src/cli/main.ts'), /^#!\/usr\/bin\/env node\n/)
  t.equal(scripts.start, 'node scripts/ready.mjs start')
  t.equal(scripts.test, 'node scripts/ready.mjs test')
  t.equal(license, 'Apache-2.0')
  t.match(read('LICENSE'), /Apache License\s+Version 2\.0[\s\S]*END OF TERMS AND CONDITIONS/)
  t.notMatch(read('package-lock.json'), '"resolved"', 'the lock names no download host')
  t.match(read('CHANGELOG.md'), /^## Unreleased\n\n- /m)
})

const pages = [
  'README.md',
  'SECURITY.md',
  'CHANGELOG.md',
  ...readdirSync(join(root, 'docs')).map(name => `docs/${name}`),
].filter(name => name.endsWith('.md'))

t.test('what src imports is installed without the development packages', async t => {
  const { dependencies } = json('package.json')
  const imported = new Set<string>()
  for (const name of readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })) {
    if (!name.endsWith('.ts')) continue
    for (const [, from = ''] of read(`src/${name}`).matchAll(/(?:from|import) '([^.'][^']*)'/g)) {
      const parts = from.split('/')
      if (!from.startsWith('node:')) imported.add(parts.slice(0, from.startsWith('@') ? 2 : 1).join('/'))
    }
  }
  t.ok(imported.has('undici'), 'imports were found')
  for (const name of imported) t.ok(name in dependencies, `${name} is under dependencies`)
})

t.test('every file that a page links to or names is there', async t => {
  let links = 0
  for (const page of pages) {
    for (const [, target = ''] of read(page).matchAll(/\]\(([^)\s#]+)[^)]*\)/g)) {
      if (/^[a-z]+:/.test(target)) continue
      links++
      t.ok(existsSync(join(root, dirname(page), target)), `${page} links to ${target}`)
    }
    for (const [named] of read(page).matchAll(
      /(?<![\w/])(?:src|config|docs|bench|scripts|test)\/[\w./-]+\.\w+/g,
    )) {
      t.ok(existsSync(join(root, named)), `${page} names ${named}`)
    }
  }
  t.ok(links > 8, `${links} links were found`)
})

t.test('every command that a page shows is one of the program', async t => {
  const shown = new Set<string>()
  for (const page of pages) {
    for (const [, name = ''] of read(page).matchAll(/(?:`|--no-install )weir ([a-z]+)\b/g)) shown.add(name)
  }
  t.ok(shown.has('serve') && shown.has('check'), 'commands were found')
  for (const name of shown) t.equal((await weir(name, '--help')).code, 0, `weir ${name}`)
  t.notMatch(
    pages.map(read).join('\n').replace('a bare `npx weir`', ''),
    /npx weir/,
    'the npm name weir is not ours',
  )
  const later = /^Not built yet: ([^.]*?), the dashboard/m.exec(read('README.md'))?.[1] ?? ''
  const names = [...later.matchAll(/`(\w+)`/g)].map(([, name = '']) => name)
  t.ok(names.length > 0, 'README names what is not built')
  for (const name of names) t.equal((await weir(name)).err, `weir ${name} is not built yet\n`)
})

t.test('the configs that README and the operations page print are right', async t => {
  const secret = 'long enough to be a key of '
  const env = {
    WEIR_ADMIN_TOKEN: `${secret}ops`,
    TEAM_SEARCH_KEY: `${secret}search`,
    TEAM_SUPPORT_KEY: `${secret}support`,
  }
  for (const [page, names] of [
    ['README.md', ['my.yaml']],
    ['docs/operations.md', ['weir.yaml', 'keys.yaml', 'compose.yaml']],
  ] as const) {
    const blocks = [...read(page).matchAll(/`([\w.]+)`[^\n]*:\n\n```yaml\n([\s\S]*?)```/g)]
    t.same(
      blocks.map(([, name]) => name),
      names,
      `${page} names its files`,
    )
    const dir = t.testdir(Object.fromEntries(blocks.map(([, name = '', text = '']) => [name, text])))
    for (const [, name = '', text = ''] of blocks) {
      if (!text.includes('classes:\n')) continue
      const loaded = load(join(dir, name), env)
      t.same(loaded.ok === undefined ? loaded.problems : loaded.warnings, [], `${page}: ${name}`)
    }
    if (page !== 'docs/operations.md') continue
    t.equal(load(join(dir, 'weir.yaml'), env).ok?.keys?.length, 2, 'and the keys are read')
    const compose = parse(blocks[2]?.[2] ?? '') as { services: { weir: { environment: string[] } } }
    t.same(
      compose.services.weir.environment,
      Object.keys(env),
      'compose.yaml hands on what the config asks for',
    )
  }
})

t.test('the Dockerfile copies what is there, runs as nobody special, and checks its health', async t => {
  const text = read('Dockerfile')
  const allowed = read('.dockerignore')
    .split('\n')
    .filter(line => line.startsWith('!'))
    .map(line => line.slice(1))
  const copied = [...text.matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, sources = '']) =>
    sources.split(' '),
  )
  t.ok(copied.includes('src') && copied.includes('package-lock.json'))
  for (const path of copied) {
    t.ok(existsSync(join(root, path)), `${path} exists`)
    t.ok(allowed.includes(path), `${path} is not held back by .dockerignore`)
  }
  const last = text.slice(text.lastIndexOf('\nFROM '))
  t.match(last, /npm ci --omit=dev/)
  t.match(last, /\nUSER node\n/)
  t.match(last, /\nHEALTHCHECK .*:8081\/livez/)
  t.match(
    last,
    /\nENTRYPOINT \["node", "dist\/cli\/main\.js"\]\nCMD \["serve", "-c", "\/etc\/weir\/weir\.yaml"\]\n/,
  )
  // JSON in the health check is only as good as its quotes.
  const check = /^HEALTHCHECK .*? CMD (\[.*\])$/m.exec(text)?.[1] ?? ''
  const [program, flag, code] = JSON.parse(check) as string[]
  t.same([program, flag], ['node', '-e'])
  t.doesNotThrow(() => new Function(code ?? 'no code;)'))
})
