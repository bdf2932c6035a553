/** The fields as a JSON Schema for editors, and as the table in the docs. */
import { ConfigFields } from './fields.js'

/** As much of a JSON Schema as the fields use. */
interface Field {
  readonly type?: string | readonly string[]
  readonly const?: unknown
  readonly enum?: readonly unknown[]
  readonly default?: unknown
  readonly description?: string
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, Field>>
  readonly patternProperties?: Readonly<Record<string, Field>>
  readonly items?: Field
  readonly 'x-unit'?: string
  readonly 'x-allowed'?: string
}

/** Without what TypeBox hides in its types. */
const FIELDS: Field = JSON.parse(JSON.stringify(ConfigFields))

/** The text of `config/weir.schema.json`. */
export function schemaText(): string {
  const schema = {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Weir',
    definitions: { env: { type: 'string', pattern: '\\$\\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\\}' } },
    ...forEditors(FIELDS),
  }
  return `${JSON.stringify(schema, undefined, 2)}\n`
}

/** What has a default may be left out, and wherever a scalar stands `${ENV}` may stand. */
function forEditors(field: Field): object {
  const { properties, patternProperties, items, required, description, ...rest } = field
  const plain = Object.fromEntries(Object.entries(rest).filter(([key]) => !key.startsWith('x-')))
  const needed = required?.filter(name => properties?.[name]?.default === undefined) ?? []
  const full = {
    ...plain,
    ...(needed.length === 0 ? {} : { required: needed }),
    ...(properties === undefined ? {} : { properties: eachOf(properties) }),
    ...(patternProperties === undefined ? {} : { patternProperties: eachOf(patternProperties) }),
    ...(items === undefined ? {} : { items: forEditors(items) }),
  }
  const about = description === undefined ? {} : { description }
  const open =
    (properties ?? patternProperties ?? items) !== undefined ||
    (field.type === 'string' && !('pattern' in rest))
  return open ? { ...about, ...full } : { ...about, anyOf: [full, { $ref: '#/definitions/env' }] }
}

function eachOf(fields: Readonly<Record<string, Field>>): object {
  return Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, forEditors(field)]))
}

/** One row a field, for `docs/config.md`. */
export function fieldTable(): string {
  const rows = rowsOf(FIELDS, '', true)
  return ['| key | unit | default | allowed | what it is |', '|---|---|---|---|---|', ...rows].join('\n')
}

function rowsOf(field: Field, path: string, needed: boolean): string[] {
  const rows = path === '' ? [] : [rowOf(field, path, needed)]
  for (const [name, member] of Object.entries(field.properties ?? {})) {
    const has = field.required?.includes(name) ?? false
    rows.push(...rowsOf(member, path === '' ? name : `${path}.${name}`, has))
  }
  for (const member of Object.values(field.patternProperties ?? {})) {
    if (member.properties !== undefined) rows.push(...rowsOf(member, `${path}.NAME`, false))
  }
  if (field.items?.properties !== undefined) rows.push(...rowsOf(field.items, `${path}[]`, false))
  return rows
}

function rowOf(field: Field, path: string, needed: boolean): string {
  const unit = field['x-unit'] === 'object' ? '' : (field['x-unit'] ?? '')
  const allowed =
    field['x-unit'] === 'object' && field.properties !== undefined ? '' : (field['x-allowed'] ?? '')
  const cells = [`\`${path}\``, unit, defaultOf(field, needed), allowed, field.description ?? '']
  return `| ${cells.map(cell => cell.replaceAll('|', '\\|')).join(' | ')} |`
}

function defaultOf(field: Field, needed: boolean): string {
  if (field.default === undefined) return needed ? '**required**' : ''
  if (field.default === '' || Array.isArray(field.default)) return 'none'
  return typeof field.default === 'object' ? '' : `\`${field.default}\``
}
