import { readFileSync, writeFileSync } from 'node:fs'
import t from 'tap'
import { NOT_BUILT } from '../../src/config/fields.js'
import { fieldTable, schemaText } from '../../src/config/schema.js'

const SCHEMA = 'config/weir.schema.json'
const DOCS = 'docs/config.md'
const TABLE = /(<!-- fields: [^>]*-->\n)[\s\S]*?(<!-- \/fields -->)/

const withTable = (docs: string): string =>
  docs.replace(TABLE, (_all, open: string, close: string) => `${open}${fieldTable()}\n${close}`)

// `npx tap --snapshot test/config/generated.test.ts` writes both anew.
if (process.env['TAP_SNAPSHOT'] === '1') {
  writeFileSync(SCHEMA, schemaText())
  writeFileSync(DOCS, withTable(readFileSync(DOCS, 'utf8')))
}

t.test('the schema beside the config files is the one that the fields make', async t => {
  t.equal(readFileSync(SCHEMA, 'utf8'), schemaText())
})

t.test('the table in the docs is the one that the fields make', async t => {
  const docs = readFileSync(DOCS, 'utf8')
  t.match(docs, TABLE)
  t.equal(docs, withTable(docs))
})

t.test('the docs name every key of the schema', async t => {
  const docs = readFileSync(DOCS, 'utf8')
  const keys = new Set<string>()
  const collect = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return
    for (const [key, value] of Object.entries(node)) {
      if (key === 'properties') for (const name of Object.keys(value)) keys.add(name)
      collect(value)
    }
  }
  collect(JSON.parse(schemaText()))
  t.ok(keys.size > 40, 'the walk found the keys')
  t.same(
    [...keys].filter(key => !new RegExp(`[\`.]${key}\``).test(docs)),
    [],
  )
})

t.test('the docs name every key that is not built yet', async t => {
  const docs = readFileSync(DOCS, 'utf8')
  const last = docs.slice(docs.indexOf('## Not built yet'))
  t.same(
    NOT_BUILT.map(([path]) => path.split('.').at(-1) ?? '').filter(key => !last.includes(key)),
    [],
  )
})

t.test('every field explains itself in a sentence', async t => {
  const rows = fieldTable().split('\n').slice(2)
  t.ok(rows.length > 60)
  t.same(
    rows.filter(row => !/\| [^|]*[.] \|$/.test(row)),
    [],
  )
})
