/** The measured routes: reads a request whole, as bytes, and starts its exchange. */
import { randomUUID } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { KeyEntry } from '../config/resolved.js'
import type { ClassId } from '../request.js'
import type { StreamShape } from '../sse/meter.js'
import type { Ms } from '../time.js'
import type { Answer } from './answers.js'
import { BodyFault, readBody } from './body.js'
import { Exchange, type ExchangeContext } from './exchange.js'
import { factsOf, HeaderFault } from './facts.js'
import { mediaType } from './headers.js'

/** Path behind `/v1` to the shape of its stream. */
export const MEASURED: Readonly<Record<string, StreamShape>> = {
  '/chat/completions': 'chat',
  '/completions': 'completions',
  '/responses': 'responses',
  '/messages': 'messages',
}

/** The shape that the client of this path expects errors in. */
export function shapeAt(url: string): StreamShape {
  const path = pathOf(url)
  return MEASURED[Object.keys(MEASURED).find(end => path.endsWith(end)) ?? ''] ?? 'chat'
}

/** What was found out before the body was read. */
export interface Caller {
  readonly arrivedAt: Ms
  readonly key: KeyEntry | undefined
  readonly prefixClass: ClassId | undefined
}

/** Thrown by handlers: the answer to send. */
export class Refusal extends Error {
  constructor(
    readonly answer: Answer,
    readonly headers: readonly string[] = [],
  ) {
    super(answer.message)
  }
}

/**
 * Takes one measured request over from fastify.
 * @returns the exchange, started
 * @throws Refusal when the request cannot be read
 */
export function startExchange(
  context: ExchangeContext,
  request: FastifyRequest,
  reply: FastifyReply,
  caller: Caller,
  path: keyof typeof MEASURED & string,
): Exchange {
  const bodyAt = context.clock.now()
  const { headers } = request
  if (mediaType(headers['content-type']) !== 'application/json') {
    throw notJson()
  }
  if (headers['content-encoding'] !== undefined && headers['content-encoding'] !== 'identity') {
    throw badRequest('Send the body as it is, without content-encoding.')
  }
  const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0)
  try {
    const shape = MEASURED[path] ?? 'chat'
    const bodyFacts = readBody(body, shape)
    const { previousResponse } = bodyFacts
    const facts = factsOf({
      heldBy: previousResponse === undefined ? undefined : context.responses.get(previousResponse),
      path: pathOf(request.raw.url),
      headers,
      body: bodyFacts,
      bytes: body,
      prefixClass: caller.prefixClass,
      key: caller.key,
      classIds: context.config.classIds,
      arrivedAt: caller.arrivedAt,
      bodyAt,
    })
    reply.hijack()
    const exchange = new Exchange(context, {
      id: requestId(headers['x-request-id']),
      request: request.raw,
      response: reply.raw,
      facts,
      body,
      bodyFacts,
      shape,
      upstreamPath: `/v1${path}`,
    })
    return exchange
  } catch (error) {
    if (error instanceof BodyFault || error instanceof HeaderFault) throw badRequest(error.message)
    throw error
  }
}

function pathOf(url: string | undefined): string {
  return (url ?? '/').split('?', 1)[0] ?? '/'
}

/** The client's own id where it can stand in a log line, else a new one. */
export function requestId(given: string | readonly string[] | undefined): string {
  return typeof given === 'string' && /^[\w.:-]{1,128}$/.test(given) ? given : randomUUID()
}

/** The answer to a body of another media type, or of none. */
export function notJson(): Refusal {
  return badRequest('Send the body as JSON, with the header "content-type: application/json".')
}

export function badRequest(message: string): Refusal {
  return new Refusal({ code: 'weir_bad_request', message })
}
