/** The data port: builds fastify from a config and a policy, and walks each request to its exchange. */

import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import type { Resolved } from '../config/resolved.js'
import type { ReplicaState } from '../policy/policy.js'
import type { ClassId, ReplicaId } from '../request.js'
import type { EachRunning } from '../slo/book.js'
import type { Ms } from '../time.js'
import { type Answer, bodyOf, headersOf, statusOf } from './answers.js'
import { keyOf } from './auth.js'
import { wholeBody } from './body-bytes.js'
import {
  badRequest,
  type Caller,
  MEASURED,
  notJson,
  Refusal,
  requestId,
  shapeAt,
  startExchange,
} from './chat.js'
import { onceClosed } from './closed.js'
import { corsHead, preflightHead } from './cors.js'
import type { Exchange, ExchangeContext } from './exchange.js'
import { Expectations } from './expectation.js'
import type { Passed } from './forward.js'
import type { ModelList } from './models.js'
import { idHead } from './own-head.js'
import { notAllowed, passedMethods, passThrough } from './passthrough.js'
import { Realtime } from './realtime.js'

/** Endings that no exchange reports, since none was begun. */
export type EarlyVerdict = 'client_error' | 'client_left' | 'shed'

export interface ServerOptions {
  readonly context: ExchangeContext
  readonly models: ModelList
  /** A request ended before its exchange began. */
  readonly early: (verdict: EarlyVerdict, answer: Answer | undefined, id: string) => void
  /** As the policy sees them, for requests that it does not decide about. */
  readonly replicas: () => readonly ReplicaState[]
  /** A request that was passed on unmeasured is over. */
  readonly passed: (passed: Passed) => void
  /** A fault of Weir's own. */
  readonly fault: (error: unknown, id: string) => void
}

export interface DataServer {
  /** An exchange is closed: nothing of it is left to cut off. */
  ended(exchange: Exchange): void
  /** Shows each request that is open, with how far its answer came. */
  running: EachRunning
  listen(): Promise<AddressInfo>
  /** No new requests from now on; resolves when the last answer is with the kernel, or its client left. */
  drain(): Promise<void>
  /** Ends what is still open, told in band. */
  cutOff(): void
  close(): Promise<void>
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Its requests are arrivals, and each has a verdict. */
    measured?: boolean
    /** Methods that the path takes, where this route refuses the others. */
    methods?: readonly string[]
  }
  interface FastifyRequest {
    arrivedAt: Ms
    caller: Caller | undefined
    /** The config that `caller` was found under. */
    askedUnder: Resolved | undefined
  }
}

/** Of each route: bare, as OpenAI's base URL has it, and under the name of a class. */
const PREFIXES = ['', '/v1', '/:weirClass/v1'] as const
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] as const

/** How often Node looks for requests that take too long to come in. */
const CHECK_EVERY_MS: Ms = 5000

/** What can be done with a response afterwards: by the replica that keeps it. */
const KEPT_RESPONSES = [
  { method: 'GET', path: '/responses/:id' },
  { method: 'DELETE', path: '/responses/:id' },
  { method: 'POST', path: '/responses/:id/cancel' },
  { method: 'GET', path: '/responses/:id/input_items' },
] as const

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
    // The five clocks are Weir's own, and Node's would cut long streams by surprise: only a request's own way in is timed.
    requestTimeout: limits.headMs + limits.bodyMs,
    connectionTimeout: 0,
    keepAliveTimeout: 75_000,
    return503OnClosing: false,
    forceCloseConnections: true,
    routerOptions: { ignoreTrailingSlash: false, maxParamLength: 200 },
    http: {
      maxHeaderSize: limits.headers,
      headersTimeout: limits.headMs,
      connectionsCheckingInterval: Math.min(CHECK_EVERY_MS, limits.headMs / 2, limits.bodyMs / 2),
      insecureHTTPParser: false,
    },
    frameworkErrors(_error, _request, reply) {
      // Fastify's own words for a path that it cannot read, before any hook has run.
      answerError(badRequest('The path cannot be read: a % begins no escape, or a part is too long.'), reply)
    },
    clientErrorHandler(error, socket) {
      const response = unanswered.get(socket)
      const answer = answerToGarbage(error.code, limits)
      if (answer === undefined || !socket.writable || response?.headersSent) return socket.destroy(error)
      garbled.add(socket)
      // A port scan is no arrival.
      const began = response === undefined && socket.bytesRead > 0
      if (began) options.early('client_error', answer, requestId(undefined))
      const body = bodyOf(answer)
      const status = statusOf(answer)
      socket.end(
        `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
        () => socket.destroy(),
      )
    },
  })
  const expectations = new Expectations()
  const realtime = new Realtime(context)
  expectations.attach(app.server, (request, response) => app.routing(request, response))
  realtime.attach(app.server, (request, response) => app.routing(request, response))
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (request: FastifyRequest, payload: IncomingMessage, done) => {
    wholeBody(request, payload, context.config.limits.body, () => expectations.proceed(payload), done)
  })
  app.decorateRequest('arrivedAt', 0)
  app.decorateRequest('caller', undefined)
  app.decorateRequest('askedUnder', undefined)

  /** Refuses before the body is read whatever needs no body to be refused. */
  app.addHook('onRequest', (request, reply, done) => {
    if (!begins(request, reply)) done()
  })

  /** @returns whether it is answered already */
  function begins(request: FastifyRequest, reply: FastifyReply): boolean {
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
    if (request.raw.url?.startsWith('/') !== true) throw badRequest('Send a path, not a whole URL.')
    if (expectations.isUnknown(request.raw)) {
      throw new Refusal({
        code: 'weir_bad_request',
        status: 417,
        message: 'The only expectation that this router meets is 100-continue.',
      })
    }
    const cors = corsHead(context.config.cors, request.raw)
    for (let i = 0; i < cors.length; i += 2) reply.header(cors[i]!, cors[i + 1]!)
    if (request.is404) return false
    if (request.method === 'OPTIONS') {
      // Browsers ask without the key, and before anything else.
      const methods = methodsOf(request)
      const lines = [
        ...(cors.length > 2 ? preflightHead(methods, request.raw) : []),
        'allow',
        methods.join(', '),
      ]
      for (let i = 0; i < lines.length; i += 2) reply.header(lines[i]!, lines[i + 1]!)
      reply.code(204).send()
      return true
    }
    callerOf(request)
    return false
  }

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

  const passing = passThrough(app, {
    context,
    prefixes: PREFIXES,
    callerOf,
    replicas: options.replicas,
    passed: options.passed,
  })

  for (const prefix of PREFIXES) {
    for (const path of Object.keys(MEASURED)) {
      app.post(`${prefix}${path}`, { config: { measured: true } }, (request, reply) => {
        const exchange = startExchange(context, request, reply, callerOf(request), path)
        open.add(exchange)
        exchange.start()
      })
      refuseOthers(`${prefix}${path}`, ['POST'])
    }
    for (const { method, path } of KEPT_RESPONSES) {
      app.route<{ Params: { id: string } }>({
        method,
        url: `${prefix}${path}`,
        handler: (request, reply) => passing.forwardTo(request, reply, keeperOf(request.params.id)),
      })
    }
    app.get(`${prefix}/realtime`, async (request, reply) => {
      const replica = passing.candidates(request, 'realtime')[0]!
      realtime.connect(request, reply, replica, passing.pathFor(request, replica))
    })
    for (const path of ['/models', '/models/*', '/realtime'])
      refuseOthers(`${prefix}${path}`, ['GET', 'HEAD'])
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

  /** A path that is known says which methods it takes. */
  function refuseOthers(url: string, methods: readonly string[]): void {
    app.route({
      method: METHODS.filter(method => !methods.includes(method)),
      url,
      config: { methods },
      exposeHeadRoute: false,
      handler: () => {
        throw notAllowed(methods)
      },
    })
  }

  app.setNotFoundHandler(request => {
    throw unknownRoute(request)
  })

  app.setErrorHandler((error: Error & { statusCode?: number; code?: string }, _request, reply) => {
    answerError(error, reply)
  })

  function answerError(error: Error & { statusCode?: number; code?: string }, reply: FastifyReply): void {
    const { request } = reply
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
    // Whether such a client still sends its body is its own choice: what comes next on its connection is unknown.
    if (expectations.waits(request.raw)) headers.push('connection', 'close')
    for (let i = 0; i < headers.length; i += 2) reply.header(headers[i]!, headers[i + 1]!)
    reply
      .code(statusOf(refusal.answer))
      .type('application/json; charset=utf-8')
      .send(bodyOf(refusal.answer, shape))
  }

  /** The replica that keeps this response. */
  function keeperOf(id: string): ReplicaId {
    const replica = context.responses.get(id)
    if (replica === undefined || context.config.policy.replicas[replica]?.retired) {
      const message = 'This router knows no replica that keeps a response of this id.'
      throw new Refusal({ code: 'weir_unknown_route', message })
    }
    return replica
  }

  function prefixClass(request: FastifyRequest): ClassId | undefined {
    const { weirClass } = request.params as { readonly weirClass?: string }
    if (weirClass === undefined) return undefined
    const id = context.config.classIds.get(weirClass)
    if (id === undefined) throw unknownRoute(request)
    return id
  }

  return {
    ended: exchange => open.delete(exchange),
    running(see) {
      for (const { ticket, attempt } of open) {
        if (ticket !== undefined) see(ticket, attempt?.wire.id, attempt?.progress)
      }
    },
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
      // Those that wait come first: the room of one that is cut off is not for another that is about to be.
      const all = [...open]
      for (const exchange of all.filter(({ attempt }) => attempt === undefined)) exchange.cutOff()
      for (const exchange of all) exchange.cutOff()
      realtime.close()
    },
    async close() {
      realtime.close()
      await app.close()
    },
  }
}

function isMeasured(request: FastifyRequest): boolean {
  return request.routeOptions.config.measured === true
}

function methodsOf(request: FastifyRequest): readonly string[] {
  return [...(request.routeOptions.config.methods ?? passedMethods(request) ?? []), 'OPTIONS']
}

/** What is said to bytes that are no request. undefined: their connection broke, and nobody is there to be told. */
function answerToGarbage(
  code: string | undefined,
  { headers, headMs, bodyMs }: Resolved['limits'],
): Answer | undefined {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    const message = `The request did not come in within ${headMs / 1000} s for its head (limits.head_time) and ${bodyMs / 1000} s for its body (limits.body_time).`
    return { code: 'weir_bad_request', status: 408, message }
  }
  if (code === 'HPE_HEADER_OVERFLOW') {
    const message = `The head of the request is larger than this router takes: ${headers} bytes (limits.headers).`
    return { code: 'weir_bad_request', status: 431, message }
  }
  // A connection that ends in mid-request is no bad request: the request, if any, knows what that means.
  if (code?.startsWith('HPE_') !== true || code === 'HPE_INVALID_EOF_STATE') return undefined
  return { code: 'weir_bad_request', message: 'The request is not valid HTTP/1.1.' }
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
