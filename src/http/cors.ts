/** What browsers are told: which pages may call, and which header lines their scripts may read. */
import type { IncomingMessage } from 'node:http'

/** Beyond those that scripts may always read. */
const READABLE = [
  'x-request-id',
  'x-weir-class',
  'x-weir-pool',
  'x-weir-decision',
  'server-timing',
  'retry-after',
  'retry-after-ms',
  'x-should-retry',
].join(', ')

/** How long a browser may go without asking again, in seconds. */
const MAX_AGE = '600'

/**
 * Header lines for an answer, flat.
 * @param origins  as configured; `*` is any
 */
export function corsHead(origins: readonly string[], { headers }: IncomingMessage): string[] {
  const { origin } = headers
  if (origins.length === 0 || origin === undefined) return []
  // A cache must not give one page's answer to another.
  const vary = ['vary', 'origin']
  if (!origins.includes(origin) && !origins.includes('*')) return vary
  return ['access-control-allow-origin', origin, 'access-control-expose-headers', READABLE, ...vary]
}

/** The lines that the answer to a preflight has besides. @param methods  of the path that is asked about */
export function preflightHead(methods: readonly string[], { headers }: IncomingMessage): string[] {
  const asked = headers['access-control-request-headers']
  return [
    'access-control-allow-methods',
    methods.join(', '),
    ...(typeof asked === 'string' ? ['access-control-allow-headers', asked] : []),
    'access-control-max-age',
    MAX_AGE,
  ]
}
