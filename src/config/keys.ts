/** The keys file: labels, digests and what each key may ask for. */
import { createHash } from 'node:crypto'
import type { ClassId } from '../request.js'
import { checkReferences } from './check.js'
import type { KeysFields } from './fields.js'
import type { KeyEntry } from './resolved.js'
import type { Source } from './source.js'
import type { Partly } from './validate.js'

/** Short keys can be guessed: 16 random characters hold some 80 bits or more. */
const SHORTEST_KEY = 16

/**
 * Tells `source` (the keys file) what its fields alone cannot say.
 * @param classes  `classes` of the config; undefined when it was wrong
 */
export function checkKeys(source: Source, file: Partly<KeysFields>, classes: object | undefined): void {
  const labels = new Map<string, number>()
  const digests = new Map<string, string>()
  for (const [index, key] of (file.keys ?? []).entries()) {
    if (key === undefined) continue
    const at = ['keys', index]
    if (key.label !== undefined && labels.has(key.label)) {
      source.complain([...at, 'label'], {
        got: `"${key.label}" again`,
        allowed: 'each label once',
        fix: 'choose another label: logs tell keys apart by it',
      })
    } else if (key.label !== undefined) labels.set(key.label, index)
    const given = Object.hasOwn(key, 'key')
    if (given === Object.hasOwn(key, 'sha256')) {
      source.complain([...at, 'key'], {
        got: given ? 'key and sha256' : 'nothing',
        allowed: 'either key or sha256',
        fix: given ? 'remove one of the two' : `write key: "\${TEAM_KEY}", or the sha256 of it`,
      })
    }
    if (key.key !== undefined && key.key.length < SHORTEST_KEY) {
      source.complain([...at, 'key'], {
        got: `a key of ${key.key.length} characters`,
        allowed: `${SHORTEST_KEY} characters or more`,
        fix: 'make one with: openssl rand -hex 24',
      })
    }
    const digest = digestHex(key)
    const twin = digest === undefined ? undefined : digests.get(digest)
    if (twin !== undefined) {
      source.complain([...at, key.key === undefined ? 'sha256' : 'key'], {
        got: `the same key as ${twin}`,
        allowed: 'each key once',
        fix: 'give each label a key of its own',
      })
    } else if (digest !== undefined) digests.set(digest, key.label ?? `keys[${index}]`)
    checkReferences(source, [...at, 'classes'], key.classes, classes, 'class')
  }
}

function digestHex({
  key,
  sha256,
}: {
  readonly key?: string | undefined
  readonly sha256?: string | undefined
}) {
  return key === undefined ? sha256?.toLowerCase() : createHash('sha256').update(key).digest('hex')
}

export function resolveKeys(file: KeysFields, classIds: ReadonlyMap<string, ClassId>): readonly KeyEntry[] {
  return file.keys.map(key => ({
    label: key.label,
    digest: Buffer.from(digestHex(key) ?? '', 'hex'),
    classes: key.classes?.map(name => idIn(classIds, name)),
  }))
}

/** @throws Error for a name that the checks should have caught */
export function idIn<Id>(ids: ReadonlyMap<string, Id>, name: string): Id {
  const id = ids.get(name)
  if (id === undefined) throw new Error(`unchecked name: ${name}`)
  return id
}
