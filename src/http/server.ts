/** The data port: builds fastify from a config and a policy, and walks each request to its exchange. */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import Fastify, { type FastifyInstance, type FastifyRequest } from 'fastify'
import type { Resolved } from '../config/resolved.js'
import type { ClassId } from '../request.js'
import type { Ms } from '../time.js'
import { type Answer, bodyOf, headersOf, statusOf } from './answers.js'
import { keyOf } from './auth.js'
import { wholeBody } from './body-bytes.js'
import { type Caller, MEASURED, notJson, Refusal, requestId, shapeAt, startExchange } from './chat.js'
import { onceClosed } from './closed.js'
import type { Exchange, ExchangeContext } from './exchange.js'
import type { ModelList } from './models.js'
import { idHead } from './own-head.js'

/** Endings that no exchange reports, since none was begun. */
export type EarlyVerdict = 'client_error' | 'client_left' | 'shed'

export interface ServerOptions {
  readonly context: ExchangeContext
  readonly models: ModelList
  /** A request ended before its exchange began. */
  readonly early: (verdict: EarlyVerdict, answer: Answer | undefined, id: string) => void
  /** A fault of Weir's own. */
  readonly fault: (error: unknown, id: string) => void
}

export interface DataServer {
  /** An exchange is closed: nothing of it is left to cut off. */
  ended(exchange: Exchange): void
  listen(): Promise<AddressInfo>
  /** No new requests from now on; resolves when the last answer is with the kernel, or its client left. */
  drain(): Promise<void>
  /** Ends what is still open, told in band. */
  cutOff(): void
  close(): Promise<void>
}

declare module 'fastify' {
  interface FastifyRequest {
    arrivedAt: Ms
    caller: Caller | undefined
    /** The config that `caller` was found under. */
    askedUnder: Resolved | undefined
  }
}

export function dataServer(options: ServerOptions): DataServer {
  const { context, models } = options
  const { listen, limits } = context.config
  const open = new Set<Exchange>()
  /** Requests taken whose answer is not out, those whose body is on its way included, by their connection. */
  const unanswered = new Map<Socket, ServerResponse>()
  /** Connections whose last bytes are not HTTP. */
  const garbled = new WeakSet<Socket>()
  let draining = false
  let emptied: (() => void) | undefined
  const app: FastifyInstance = Fastify({
    logger: false,
    // The five clocks are Weir's own; Node's would cut long streams and slow uploads by surprise.
    requestTimeout: 0,
    connectionTimeout: 0,
    keepAliveTimeout: 75_000,
    return503OnClosing: false,
    forceCloseConnections: true,
    routerOptions: { ignoreTrailingSlash: false, maxParamLength: 200 },
    http: { maxHeaderSize: limits.headers },
    clientErrorHandler(error, socket) {
      const response = unanswered.get(socket)
      // A connection that breaks, or ends in mid-request, is no bad request: its request, if any, knows what that means.
      const garbage = error.code?.startsWith('HPE_') === true && error.code !== 'HPE_INVALID_EOF_STATE'
      if (!garbage || !socket.writable || response?.headersSent) return socket.destroy(error)
      garbled.add(socket)
      const answer: Answer = { code: 'weir_bad_request', message: 'The request is not valid HTTP/1.1.' }
      if (response === undefined) options.early('client_error', answer, requestId(undefined))
      const body = bodyOf(answer)
      const status =
        error.code === 'HPE_HEADER_OVERFLOW' ? '431 Request Header Fields Too Large' : '400 Bad Request'
      socket.end(
        `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
      )
    },
  })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (request: FastifyRequest, payload: IncomingMessage) =>
    wholeBody(request, payload, context.config.limits.body),
  )
  app.decorateRequest('arrivedAt', 0)
  app.decorateRequest('caller', undefined)
  app.decorateRequest('askedUnder', undefined)

  /** Refuses before the body is read whatever needs no body to be refused. */
  app.addHook('onRequest', async (request, reply) => {
    request.arrivedAt = context.clock.now()
    if (draining) {
      const message = 'This router is shutting down and takes no new requests. Retry in 1 s.'
      throw new Refusal({ code: 'weir_draining', message, retryAfterMs: 1000 }, ['connection', 'close'])
    }
    const { socket } = request.raw
    unanswered.set(socket, reply.raw)
    onceClosed(reply.raw, () => {
      if (unanswered.get(socket) === reply.raw) unanswered.delete(socket)
      if (unanswered.size === 0) emptied?.()
    })
    if (request.is404) return
    callerOf(request)
  })

  /** Who asks, and for which class; found out again where the config has changed since. */
  function callerOf(request: FastifyRequest): Caller {
    const { config } = context
    if (request.caller !== undefined && request.askedUnder === config) return request.caller
    const key = config.keys === undefined ? undefined : keyOf(request.headers, config.keys)
    if (config.keys !== undefined && key === undefined) {
      throw new Refusal({
        code: 'weir_unauthorized',
        message: 'No known API key was sent. Send yours as "authorization: Bearer KEY".',
      })
    }
    request.askedUnder = config
    request.caller = { arrivedAt: request.arrivedAt, key, prefixClass: prefixClass(request) }
    return request.caller
  }

  for (const prefix of ['', '/v1', '/:weirClass/v1']) {
    for (const path of Object.keys(MEASURED)) {
      app.post(`${prefix}${path}`, (request, reply) => {
        const exchange = startExchange(context, request, reply, callerOf(request), path)
        open.add(exchange)
        exchange.start()
      })
    }
    app.get(`${prefix}/models`, async () => ({ object: 'list', data: await models.entries() }))
    app.get<{ Params: { '*': string } }>(`${prefix}/models/*`, async request => {
      const entry = (await models.entries()).find(({ id }) => id === request.params['*'])
      if (entry === undefined) {
        throw new Refusal({
          code: 'weir_unknown_route',
          message: 'No pool serves this model. See GET /v1/models.',
        })
      }
      return entry
    })
  }

  app.setNotFoundHandler(request => {
    throw unknownRoute(request)
  })

  app.setErrorHandler((error: Error & { statusCode?: number; code?: string }, request, reply) => {
    const id = requestId(request.headers['x-request-id'])
    const refusal = refusalOf(error, context.config.limits.body)
    if (refusal.answer.code === 'weir_internal') options.fault(error, id)
    // A client that breaks off in mid-body is no longer there to be told.
    const left = request.raw.destroyed && !request.raw.complete && !garbled.has(request.raw.socket)
    if (isMeasured(request)) {
      const { code } = refusal.answer
      options.early(
        left ? 'client_left' : code === 'weir_draining' ? 'shed' : 'client_error',
        refusal.answer,
        id,
      )
    }
    const shape = shapeAt(request.url)
    const headers = [...headersOf(refusal.answer), ...refusal.headers, ...idHead(id, shape)]
    for (let i = 0; i < headers.length; i += 2) reply.header(headers[i]!, headers[i + 1]!)
    reply
      .code(statusOf(refusal.answer))
      .type('application/json; charset=utf-8')
      .send(bodyOf(refusal.answer, shape))
  })

  function prefixClass(request: FastifyRequest): ClassId | undefined {
    const { weirClass } = request.params as { readonly weirClass?: string }
    if (weirClass === undefined) return undefined
    const id = context.config.classIds.get(weirClass)
    if (id === undefined) throw unknownRoute(request)
    return id
  }

  return {
    ended: exchange => open.delete(exchange),
    async listen() {
      await app.listen({ host: listen.host, port: listen.port })
      return app.server.address() as AddressInfo
    },
    drain() {
      draining = true
      if (unanswered.size === 0) return Promise.resolve()
      return new Promise(resolve => {
        emptied = resolve
      })
    },
    cutOff() {
      for (const exchange of [...open]) exchange.cutOff()
    },
    async close() {
      await app.close()
    },
  }
}

function isMeasured(request: FastifyRequest): boolean {
  return request.method === 'POST' && !request.is404
}

function unknownRoute(request: FastifyRequest): Refusal {
  const known = Object.keys(MEASURED).map(path => `POST /v1${path}`)
  return new Refusal({
    code: 'weir_unknown_route',
    message: `This router has no ${request.method} route at that path. It has: ${known.join(', ')}, GET /v1/models; each also as /CLASS/v1/….`,
  })
}

/** The answer to an error that fastify or a handler threw. */
function refusalOf(error: Error & { statusCode?: number; code?: string }, bodyLimit: number): Refusal {
  if (error instanceof Refusal) return error
  if (error.statusCode === 413) {
    const message = `The body is larger than this router takes: ${bodyLimit} bytes (limits.body).`
    return new Refusal({ code: 'weir_too_large', message }, ['connection', 'close'])
  }
  if (error.statusCode === 415) return notJson()
  if (error.statusCode !== undefined && error.statusCode < 500) {
    return new Refusal({
      code: 'weir_bad_request',
      message: 'The request cannot be read. Send one JSON object as its body.',
    })
  }
  return new Refusal({
    code: 'weir_internal',
    message: 'The router failed on this request. Its log has the request id.',
  })
}
