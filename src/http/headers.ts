/** Which header lines cross Weir, in each direction. */

/** RFC 9110 7.6.1, and those that belong to one connection by use. */
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

/** Weir writes these itself: framing, the target, and an encoding that it can read. `origin` it answers to itself. */
const OWN_REQUEST = new Set([
  'host',
  'content-length',
  'expect',
  'accept-encoding',
  'x-request-id',
  'http2-settings',
  'origin',
])

/** A client's credentials are for Weir, not for whoever is behind it. */
const CREDENTIALS = new Set(['authorization', 'x-api-key', 'api-key', 'cookie'])

/** Node writes its own date. Which pages may read an answer is Weir's to say (`cors.ts`), not an engine's. */
const isOwnResponse = (lower: string): boolean => lower === 'date' || lower.startsWith('access-control-')

/** Header names that `connection:` lists belong to that connection too. */
function connectionNames(raw: readonly string[]): Set<string> | undefined {
  let names: Set<string> | undefined
  for (let i = 0; i < raw.length; i += 2) {
    if (raw[i]?.toLowerCase() !== 'connection') continue
    names ??= new Set()
    for (const name of raw[i + 1]?.split(',') ?? []) names.add(name.trim().toLowerCase())
  }
  return names
}

/**
 * Header lines for the upstream, from the client's, as a flat list of names and values.
 * @param raw  `IncomingMessage.rawHeaders`
 * @param passCredentials  hand on `authorization`, `x-api-key` and `api-key`
 */
export function requestHeaders(raw: readonly string[], passCredentials: boolean): string[] {
  const listed = connectionNames(raw)
  const out: string[] = []
  for (let i = 0; i < raw.length; i += 2) {
    const name = raw[i] ?? ''
    const lower = name.toLowerCase()
    if (HOP_BY_HOP.has(lower) || OWN_REQUEST.has(lower) || listed?.has(lower) || lower.startsWith('x-weir-'))
      continue
    if (CREDENTIALS.has(lower) && (!passCredentials || lower === 'cookie')) continue
    out.push(name, raw[i + 1] ?? '')
  }
  return out
}

/**
 * Header lines for the client, from the upstream's.
 * @param keepLength  the body goes on byte for byte and whole: its length still holds
 * @param own  Weir's own lines, flat: they stand in place of the upstream's of the same name
 */
export function responseHeaders(
  raw: readonly string[],
  keepLength: boolean,
  own: readonly string[],
): string[] {
  const listed = connectionNames(raw)
  const replaced = new Set(own.filter((_, i) => i % 2 === 0))
  const out: string[] = []
  for (let i = 0; i < raw.length; i += 2) {
    const name = raw[i] ?? ''
    const lower = name.toLowerCase()
    if (HOP_BY_HOP.has(lower) || isOwnResponse(lower) || listed?.has(lower) || lower.startsWith('x-weir-'))
      continue
    if (replaced.has(lower) || (lower === 'content-length' && !keepLength)) continue
    out.push(name, raw[i + 1] ?? '')
  }
  return out
}

/** First value of a header in a flat list; `name` in lower case. */
export function headerOf(raw: readonly string[], name: string): string | undefined {
  for (let i = 0; i < raw.length; i += 2) if (raw[i]?.toLowerCase() === name) return raw[i + 1]
  return undefined
}

/** The media type of a content-type value, without parameters, in lower case. */
export function mediaType(contentType: string | undefined): string | undefined {
  return contentType?.split(';', 1)[0]?.trim().toLowerCase()
}
