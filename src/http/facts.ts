/** A request's head and body become the facts that the policy decides by. */
import type { IncomingHttpHeaders } from 'node:http'
import { crc32 } from 'node:zlib'
import type { KeyEntry } from '../config/resolved.js'
import type { ClassId, OwnBounds, ReplicaId, RequestFacts } from '../request.js'
import type { Ms } from '../time.js'
import type { BodyFacts } from './body.js'

/** A header of Weir's own cannot be used; `message` says what to send. */
export class HeaderFault extends Error {}

export interface FactsInput {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: BodyFacts
  /** The body itself. */
  readonly bytes: Buffer
  readonly prefixClass: ClassId | undefined
  /** Replica that keeps the response which this one goes on from. */
  readonly heldBy?: ReplicaId | undefined
  readonly key: KeyEntry | undefined
  readonly classIds: ReadonlyMap<string, ClassId>
  readonly arrivedAt: Ms
  readonly bodyAt: Ms
}

/** @throws HeaderFault for an `x-weir-…` header that names nothing or is no number */
export function factsOf(input: FactsInput): RequestFacts {
  const { headers, body, key } = input
  const patience = number(headers['x-stainless-timeout'])
  return {
    path: input.path,
    headers,
    model: body.model,
    stream: body.stream,
    tools: body.tools,
    maxTokens: body.maxTokens,
    promptTokens: body.promptTokens,
    askedClass: input.prefixClass ?? askedClass(headers, input.classIds),
    key: key === undefined ? undefined : { label: key.label, classes: key.classes },
    own: ownBounds(headers),
    patienceMs: patience === undefined ? undefined : patience * 1000,
    retry: number(headers['x-stainless-retry-count']) ?? 0,
    retryKey: retryKeyOf(key?.label, input.bytes),
    heldBy: input.heldBy,
    repeatable: !body.stored,
    arrivedAt: input.arrivedAt,
    bodyAt: input.bodyAt,
  }
}

export function askedClass(
  headers: IncomingHttpHeaders,
  classIds: ReadonlyMap<string, ClassId>,
): ClassId | undefined {
  const name = headers['x-weir-class']
  if (name === undefined || name === '') return undefined
  const id = classIds.get(String(name))
  if (id === undefined) {
    throw new HeaderFault(
      `x-weir-class names no class of this router. Allowed: ${[...classIds.keys()].join(', ')}; or leave it out.`,
    )
  }
  return id
}

/** Of a longer body only the two ends are looked at, so many bytes of each: about 10 us. */
const HASHED = 32 * 1024

function retryKeyOf(caller: string | undefined, body: Buffer): string {
  const { length } = body
  const head = crc32(length > HASHED ? body.subarray(0, HASHED) : body)
  const sum = length > HASHED ? crc32(body.subarray(-HASHED), head) : head
  return `${length}.${sum}.${caller ?? ''}`
}

function ownBounds(headers: IncomingHttpHeaders): OwnBounds {
  const deadlineMs = bound(headers, 'x-weir-deadline-ms')
  const ttftMs = bound(headers, 'x-weir-ttft-ms')
  const tpotMs = bound(headers, 'x-weir-tpot-ms')
  return {
    ...(deadlineMs !== undefined && { deadlineMs }),
    ...(ttftMs !== undefined && { ttftMs }),
    ...(tpotMs !== undefined && { tpotMs }),
  }
}

function bound(headers: IncomingHttpHeaders, name: string): Ms | undefined {
  const value = headers[name]
  if (value === undefined) return undefined
  const ms = number(value)
  if (ms === undefined || ms <= 0) {
    throw new HeaderFault(
      `${name} must be a positive number of milliseconds, such as 30000; or leave it out.`,
    )
  }
  return ms
}

/** A header's value as a finite number that is not negative. */
function number(value: string | readonly string[] | undefined): number | undefined {
  if (typeof value !== 'string' || value.trim() === '') return undefined
  const n = Number(value)
  return Number.isFinite(n) && n >= 0 ? n : undefined
}
