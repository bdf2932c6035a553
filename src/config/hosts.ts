/** Addresses: which are this machine's own, and what a replica's URL may be. */
import { nearest, showValue } from './error.js'
import type { Complaint } from './source.js'

/** Only this machine reaches it. Names are not looked up. */
export function isLoopback(host: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)$/i.test(host)
}

/** All addresses of this machine, so also each single one. */
export function isWildcard(host: string): boolean {
  return /^(0\.0\.0\.0|\[?::\]?)$/.test(host)
}

export interface ReplicaUrl {
  readonly origin: string
  readonly basePath: string
  /** host:port, with the base path where there is one. */
  readonly name: string
}

const ALLOWED = 'http:// or https://, host, port, and a base path if there is one'

/** A `/v1` at the end is dropped: Weir adds it. Credentials, queries and other schemes are complaints. */
export function parseReplica(text: string): ReplicaUrl | Complaint {
  const got = showValue(text)
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^https?:\/\//i.test(text)) {
    return { got, allowed: ALLOWED, fix: schemeAdvice(text) }
  }
  if (url.username !== '' || url.password !== '') {
    return { got, allowed: ALLOWED, fix: 'take the credentials out; the pool’s api_key is the place for one' }
  }
  if (text.includes('?') || text.includes('#')) {
    return { got, allowed: ALLOWED, fix: 'take out all from the ? or # on' }
  }
  const basePath = url.pathname.replace(/\/+$/, '').replace(/\/v1$/, '')
  if (/\/v1(\/|$)/.test(basePath)) {
    return { got, allowed: ALLOWED, fix: 'end it before /v1: Weir adds /v1/chat/completions and the like' }
  }
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  return { origin: url.origin, basePath, name: `${url.hostname}:${port}${basePath}` }
}

function schemeAdvice(text: string): string {
  if (/^[\w.-]+(:\d+)?(\/.*)?$/.test(text)) return `write http://${text}`
  const scheme = /^(\w+):\/\//.exec(text)?.[1]
  return scheme !== undefined && nearest(scheme, ['http', 'https']) === undefined
    ? 'give the http:// address of the engine’s OpenAI API'
    : 'write it as http://10.0.0.1:8000'
}
