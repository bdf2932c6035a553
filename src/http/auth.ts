/** Tells which configured key a request was sent with, in a time that does not depend on the key. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import type { KeyEntry } from '../config/resolved.js'

/** The key a client sent: `Authorization: Bearer`, `x-api-key` or `api-key`. */
function presented(headers: IncomingHttpHeaders): string | undefined {
  const bearer = /^bearer +(.+)$/i.exec(headers.authorization ?? '')?.[1]
  for (const value of [bearer, headers['x-api-key'], headers['api-key']]) {
    if (typeof value === 'string' && value !== '') return value.trim()
  }
  return undefined
}

/** The entry of the key that was sent; undefined when none or an unknown one was. Compares with every entry. */
export function keyOf(headers: IncomingHttpHeaders, keys: readonly KeyEntry[]): KeyEntry | undefined {
  const key = presented(headers)
  if (key === undefined) return undefined
  const digest = createHash('sha256').update(key).digest()
  let found: KeyEntry | undefined
  for (const entry of keys) if (timingSafeEqual(digest, entry.digest)) found = entry
  return found
}
