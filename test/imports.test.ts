/** Which way imports point: no edge between rooms goes up, and the pure rooms hold no clock, dice, socket or file. */
import { readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import ts from 'typescript'

interface Room {
  /** Rooms whose values and types it may import. */
  readonly values: readonly string[]
  /** Rooms of which it may import types, and no values. */
  readonly types?: readonly string[]
  /** No Node, no clock, no dice, no timer, and no import of the room's other half, the files in `real`. */
  readonly pure?: true
  /** Files that meet the real clock and real sockets. */
  readonly real?: readonly string[]
}

const base = ['time', 'request']
const learned = ['slo', 'fleet', ...base]
const judged = ['predict', ...learned]
const core = ['policy', 'admission', 'routing', ...judged]
/** What the rooms right of policy may use; policy itself is beside them, not below. */
const lower = core.filter(room => room !== 'policy')
const edge = ['upstream', 'metrics', 'sse']

/** The picture of the rooms as data. A room that is not here may not exist. */
const ROOMS: Readonly<Record<string, Room>> = {
  time: { values: [], pure: true },
  request: { values: ['time'], pure: true },
  slo: { values: base, pure: true },
  fleet: { values: base, pure: true },
  predict: { values: learned, pure: true },
  routing: { values: judged, pure: true },
  admission: { values: judged, pure: true },
  policy: { values: lower, pure: true },
  sse: { values: lower, pure: true },
  config: { values: ['slo'], types: [...core, 'sse'] },
  rules: { values: ['config', ...base, 'slo'] },
  metrics: { values: lower, types: ['policy', 'config'] },
  upstream: { values: lower, types: ['config'] },
  live: { values: [...edge, ...core], types: ['config'] },
  http: { values: ['live', 'config', ...edge, ...core] },
  baselines: { values: core, pure: true },
  sim: {
    values: ['config', 'sse', ...core],
    pure: true,
    real: ['server', 'process', 'pinned', 'answer', 'call'].map(name => `sim/${name}.ts`),
  },
  load: { values: ['config', 'time'] },
  cli: { values: ['http', 'live', 'sim', 'load', 'rules', 'baselines', 'config', ...edge, ...core] },
}

/** Packages that compute and nothing else. */
const PURE_PACKAGES = new Set(['tinyqueue', 'lru-cache'])
/** Globals that tell time, roll dice, wait, or lead to those that do. */
const IMPURE_GLOBALS = new Set([
  ...['Date', 'performance', 'process', 'crypto', 'globalThis', 'global', 'require', 'fetch'],
  ...['setTimeout', 'setInterval', 'setImmediate', 'queueMicrotask'],
])

interface Import {
  readonly from: string
  readonly typeOnly: boolean
}

const nameOf = (node: ts.Node | undefined): string | undefined =>
  node !== undefined && ts.isStringLiteralLike(node) ? node.text : undefined

/** `import { type A }` is type-only too: nothing of it is left when it runs. */
function typeOnly(node: ts.ImportDeclaration): boolean {
  const clause = node.importClause
  if (clause === undefined) return false
  if (clause.isTypeOnly) return true
  const named = clause.namedBindings
  if (clause.name !== undefined || named === undefined || !ts.isNamedImports(named)) return false
  return named.elements.length > 0 && named.elements.every(element => element.isTypeOnly)
}

function importAt(node: ts.Node): Import | undefined {
  let from: string | undefined
  let isType = false
  if (ts.isImportDeclaration(node)) {
    from = nameOf(node.moduleSpecifier)
    isType = typeOnly(node)
  } else if (ts.isExportDeclaration(node)) {
    from = nameOf(node.moduleSpecifier)
    isType = node.isTypeOnly
  } else if (ts.isImportTypeNode(node)) {
    from = ts.isLiteralTypeNode(node.argument) ? nameOf(node.argument.literal) : undefined
    isType = true
  } else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
    from = nameOf(node.arguments[0])
  }
  return from === undefined ? undefined : { from, typeOnly: isType }
}

/** What an impure global is called where the node uses one; names of members and properties do not count. */
function impureAt(node: ts.Node): string | undefined {
  if (!ts.isIdentifier(node)) return undefined
  const { parent } = node
  const isMember =
    (ts.isPropertyAccessExpression(parent) && parent.name === node) ||
    (ts.isQualifiedName(parent) && parent.right === node) ||
    ((ts.isPropertyAssignment(parent) || ts.isTypeElement(parent) || ts.isClassElement(parent)) &&
      parent.name === node)
  if (isMember) return undefined
  if (IMPURE_GLOBALS.has(node.text)) return node.text
  if (node.text !== 'Math') return undefined
  // Math.max is arithmetic; Math.random, and Math handed on so that nobody sees which member is used, are dice.
  return ts.isPropertyAccessExpression(parent) && parent.name.text !== 'random' ? undefined : 'Math.random'
}

/** The room of a file: its folder under src, or its own name for a file that lies in src itself. */
const roomOf = (file: string): string => file.split('/')[0]?.replace(/\.ts$/, '') ?? file

/**
 * Checks files against the table.
 * @param files  text by path below src, such as `slo/window.ts`
 * @returns one sentence a fault, with the two files of an edge; empty when all is well
 */
function faults(files: Readonly<Record<string, string>>): string[] {
  return Object.entries(files).flatMap(([file, text]) => {
    const room = ROOMS[roomOf(file)]
    if (room === undefined) return [`src/${file}: a room that test/imports.test.ts does not know`]
    const pure = room.pure === true && !room.real?.includes(file)
    const found: string[] = []
    const visit = (node: ts.Node): void => {
      const edge = importAt(node)
      if (edge !== undefined) found.push(...faultOfImport(file, room, pure, edge))
      const impure = pure ? impureAt(node) : undefined
      if (impure !== undefined) found.push(`src/${file} is in a PURE room and uses ${impure}`)
      ts.forEachChild(node, visit)
    }
    visit(ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true))
    return [...new Set(found)]
  })
}

function faultOfImport(file: string, room: Room, pure: boolean, { from, typeOnly }: Import): string[] {
  if (!from.startsWith('.')) {
    return pure && !PURE_PACKAGES.has(from) ? [`src/${file} is in a PURE room and imports ${from}`] : []
  }
  const target = posix.join(posix.dirname(file), from).replace(/\.js$/, '.ts')
  if (target.startsWith('..')) return [`src/${file} imports ${from}, which is outside src`]
  const [own, theirs] = [roomOf(file), roomOf(target)]
  if (pure && room.real?.includes(target))
    return [`src/${file} is in a PURE room and imports src/${target}, which is not`]
  if (own === theirs || room.values.includes(theirs) || (typeOnly && room.types?.includes(theirs))) return []
  const rule = room.types?.includes(theirs) ? `only types of ${theirs}` : `nothing of ${theirs}`
  const kind = typeOnly ? ' (an import of types counts as well)' : ''
  return [`src/${file} imports src/${target}: ${own} may import ${rule}${kind}`]
}

t.test('no import in src points up, and the pure rooms are pure', async t => {
  const src = fileURLToPath(new URL('../src/', import.meta.url))
  const names = readdirSync(src, { recursive: true, encoding: 'utf8' })
    .filter(name => name.endsWith('.ts'))
    .map(name => name.replaceAll('\\', '/'))
  t.ok(names.includes('time.ts') && names.includes('policy/policy.ts'), 'the files of src are found')
  t.same(faults(Object.fromEntries(names.map(name => [name, readFileSync(src + name, 'utf8')]))), [])
})

t.test('the table of rooms has no way round in a circle', async t => {
  const circles: string[] = []
  const walk = (room: string, path: readonly string[]): void => {
    if (path.includes(room)) circles.push([...path, room].join(' -> '))
    else
      for (const next of [...(ROOMS[room]?.values ?? []), ...(ROOMS[room]?.types ?? [])])
        walk(next, [...path, room])
  }
  for (const room of Object.keys(ROOMS)) walk(room, [])
  t.same(circles, [])
  for (const { values, types = [] } of Object.values(ROOMS)) {
    for (const room of [...values, ...types]) t.ok(ROOMS[room], `${room} is a room`)
  }
})

t.test('an edge that points up is named by its two files', async t => {
  const edges: readonly (readonly [string, string, string])[] = [
    [
      'slo/window.ts',
      "import { pick } from '../routing/pick.js'",
      'slo/window.ts imports src/routing/pick.ts',
    ],
    [
      'time.ts',
      "import type { Ticket } from './request.js'",
      'time.ts imports src/request.ts: time may import nothing',
    ],
    ['slo/a.ts', "import '../policy/policy.js'", 'slo/a.ts imports src/policy/policy.ts'],
    ['slo/a.ts', "export * from '../fleet/pool.js'", 'slo/a.ts imports src/fleet/pool.ts'],
    [
      'routing/a.ts',
      "export { x } from '../admission/admit.js'",
      'routing/a.ts imports src/admission/admit.ts',
    ],
    ['policy/a.ts', "const x = await import('../http/chat.js')", 'policy/a.ts imports src/http/chat.ts'],
    [
      'policy/a.ts',
      "type R = import('../config/resolved.js').Resolved",
      'policy/a.ts imports src/config/resolved.ts',
    ],
    ['config/load.ts', "import { open } from '../policy/open.js'", 'config may import only types of policy'],
    [
      'config/load.ts',
      "import { type A, b } from '../fleet/pool.js'",
      'config may import only types of fleet',
    ],
    [
      'metrics/a.ts',
      "import { create } from '../policy/policy.js'",
      'metrics may import only types of policy',
    ],
    ['upstream/a.ts', "import { meter } from '../sse/meter.js'", 'upstream may import nothing of sse'],
    [
      'sse/a.ts',
      "import type { Policy } from '../policy/policy.js'",
      'sse may import nothing of policy (an import of types',
    ],
    ['load/a.ts', "import { scan } from '../sse/scan.js'", 'load/a.ts imports src/sse/scan.ts'],
    ['http/a.ts', "import { main } from '../cli/main.js'", 'http/a.ts imports src/cli/main.ts'],
    ['http/a.ts', "import { run } from '../../bench/run.js'", 'which is outside src'],
    [
      'sim/engine.ts',
      "import { startEngine } from './server.js'",
      'PURE room and imports src/sim/server.ts, which is not',
    ],
    ['novel/a.ts', '', 'a room that test/imports.test.ts does not know'],
  ]
  for (const [file, text, fault] of edges) {
    const found = faults({ [file]: text })
    t.equal(found.length, 1, `${file}: ${text}`)
    t.ok(found[0]?.includes(fault), `${found[0]} says: ${fault}`)
  }
})

t.test('a clock, dice, a timer, Node or a socket in a pure room is a fault', async t => {
  const impure: readonly (readonly [string, string])[] = [
    ["import { readFileSync } from 'node:fs'", 'imports node:fs'],
    ["import fs from 'fs'", 'imports fs'],
    ["import type { FastifyRequest } from 'fastify'", 'imports fastify'],
    ["import { Pool } from 'undici'", 'imports undici'],
    ["import client from 'prom-client'", 'imports prom-client'],
    ["import { pino } from 'pino'", 'imports pino'],
    ['export const now = (): number => Date.now()', 'uses Date'],
    ['export const now = new Date()', 'uses Date'],
    ['export const at = performance.now()', 'uses performance'],
    ['export const { now } = performance', 'uses performance'],
    ['export const dice = Math.random()', 'uses Math.random'],
    ['export const { random } = Math', 'uses Math.random'],
    ["export const dice = Math['random']()", 'uses Math.random'],
    ['setTimeout(() => {}, 1)', 'uses setTimeout'],
    ['setInterval(() => {}, 1)', 'uses setInterval'],
    ['setImmediate(() => {})', 'uses setImmediate'],
    ['queueMicrotask(() => {})', 'uses queueMicrotask'],
    ['export const at = globalThis.performance.now()', 'uses globalThis'],
    ['export const at = process.hrtime()', 'uses process'],
  ]
  for (const [text, fault] of impure) {
    for (const file of ['slo/a.ts', 'sim/engine.ts', 'time.ts']) {
      t.same(faults({ [file]: text }), [`src/${file} is in a PURE room and ${fault}`], text)
    }
    for (const file of ['http/a.ts', 'sim/server.ts', 'sim/process.ts'])
      t.same(faults({ [file]: text }), [], text)
  }
})

t.test('what is allowed is no fault', async t => {
  const files = {
    'time.ts': 'export const half = Math.max(1, 2) // Date.now() in a comment, "setTimeout" in a string',
    'policy/policy.ts':
      "import TinyQueue from 'tinyqueue'\nimport { admit } from '../admission/admit.js'\nimport './decision.js'",
    'slo/window.ts':
      'export interface Row { Date: string; performance: number }\nexport const row = (r: Row) => r.Date + r.performance',
    'config/load.ts':
      "import { parse } from 'yaml'\nimport type { A } from '../slo/slo.js'\nimport { type B } from '../policy/policy.js'",
    'metrics/record.ts':
      "import type { Ending } from '../policy/decision.js'\nimport client from 'prom-client'",
    'sim/server.ts': "import { PinnedEngine } from './pinned.js'\nimport { Engine } from './engine.js'",
    'live/driver.ts': "import { createPool } from '../upstream/pools.js'\nsetTimeout(() => {}, 1)",
    'load/player.ts':
      "import { createParser } from 'eventsource-parser'\nimport type { Clock } from '../time.js'",
    'cli/serve.ts': "import { build } from '../http/server.js'\nimport { load } from '../config/load.js'",
  }
  t.same(faults(files), [])
})
