/** The tables of docs/clients.md are the ones that the matrix makes, with the versions that it was played with. */
import { readFileSync, writeFileSync } from 'node:fs'
import t from 'tap'
import { ANSWERS, CLIENT_PACKAGES, ERRORS, LEAVES, RETRIES, table } from '../fixtures/matrix.js'

const DOCS = 'docs/clients.md'
const { devDependencies } = JSON.parse(readFileSync('package.json', 'utf8')) as {
  readonly devDependencies: Readonly<Record<string, string>>
}

const versions = [
  '| client | package and version |',
  '| --- | --- |',
  ...Object.entries(CLIENT_PACKAGES).map(([client, names]) => {
    return `| ${client} | ${names.map(name => `\`${name}\` ${devDependencies[name]}`).join(', ')} |`
  }),
].join('\n')

const TABLES: Readonly<Record<string, string>> = {
  versions,
  answers: table('what', ANSWERS),
  leaves: table('the client leaves', LEAVES),
  errors: table('error', ERRORS),
  retries: table('retry', RETRIES),
}

const tableAt = (name: string): RegExp => new RegExp(`(<!-- matrix: ${name} -->\\n)[^]*?(<!-- /matrix -->)`)

function withTables(docs: string): string {
  let text = docs
  for (const [name, rows] of Object.entries(TABLES)) {
    text = text.replace(tableAt(name), (_all, open: string, close: string) => `${open}\n${rows}\n\n${close}`)
  }
  return text
}

// `npx tap --snapshot test/flow/clients-page.test.ts` writes them anew.
if (process.env['TAP_SNAPSHOT'] === '1') writeFileSync(DOCS, withTables(readFileSync(DOCS, 'utf8')))

t.test('the tables in the docs are the ones that the tests play', async t => {
  const docs = readFileSync(DOCS, 'utf8')
  for (const name of Object.keys(TABLES)) t.match(docs, tableAt(name))
  t.equal(docs, withTables(docs))
  t.notMatch(versions, 'undefined')
})
