/** Every path that is passed on and not measured: which there are, which pools allow them, and who gets a request. */
import httpProxy from '@fastify/http-proxy'
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import type { Group } from '../config/resolved.js'
import type { ReplicaState } from '../policy/policy.js'
import type { ClassId, PoolId, ReplicaId } from '../request.js'
import type { Answer } from './answers.js'
import { badRequest, type Caller, Refusal } from './chat.js'
import type { ExchangeContext } from './exchange.js'
import { askedClass, HeaderFault } from './facts.js'
import { Forward, type Passed } from './forward.js'
import { mediaType } from './headers.js'
import { JsonFault, JsonWalk } from './json.js'
import { checkedPath } from './path.js'

interface PassedRoute {
  readonly group: Group
  readonly methods: readonly string[]
}

const POST = ['POST'] as const
const FILES: PassedRoute = { group: 'files', methods: ['GET', 'HEAD', 'POST', 'DELETE'] }

/** Path behind `/v1`, or without it. All other routes of an engine, those that change it among them, are out of reach. */
const ROUTES: Readonly<Record<string, PassedRoute>> = {
  '/embeddings': { group: 'embeddings', methods: POST },
  '/audio/*': { group: 'audio', methods: POST },
  '/images/*': { group: 'images', methods: POST },
  '/files': FILES,
  '/files/*': FILES,
  '/rerank': { group: 'rerank', methods: POST },
  '/tokenize': { group: 'tokenize', methods: POST },
  '/detokenize': { group: 'tokenize', methods: POST },
  '/messages/count_tokens': { group: 'tokenize', methods: POST },
}

/** Engines have these without `/v1` too, and not all of them with it: they go on as they were sent. */
const AS_SENT = ['/rerank', '/tokenize', '/detokenize']

export interface PassthroughOptions {
  readonly context: ExchangeContext
  readonly prefixes: readonly string[]
  /** Who asks; throws where nobody may. */
  readonly callerOf: (request: FastifyRequest) => Caller
  /** As the policy sees them. */
  readonly replicas: () => readonly ReplicaState[]
  readonly passed: (passed: Passed) => void
}

export interface Passthrough {
  /** Passes a request to this replica, as it is. */
  forwardTo(request: FastifyRequest, reply: FastifyReply, replica: ReplicaId): FastifyReply
  /**
   * The replicas that may take a request, best first.
   * @throws Refusal when no pool allows it
   */
  candidates(request: FastifyRequest, group: Group, body?: Uint8Array): ReplicaId[]
  /** The path that a replica is asked for, with its query. */
  pathFor(request: FastifyRequest, replica: ReplicaId): string
}

/** Adds the routes. */
export function passThrough(app: FastifyInstance, options: PassthroughOptions): Passthrough {
  const { context, prefixes, callerOf } = options
  /** What the next call of reply-from is about: it asks within `reply.from`, and tells only the URL. */
  let next: Forward | undefined
  let turn = 0

  function forward(request: FastifyRequest, reply: FastifyReply, replicas: ReplicaId[]): FastifyReply {
    const path = upstreamPath(request, replicas[0]!, context)
    next = new Forward(context, request, reply, path, replicas, options.passed)
    // The body is the request's own bytes, which `Forward` has.
    return reply.from('/', {
      body: null,
      // reply-from would send GETs that got a 503 again, up to ten times.
      retryDelay: () => null,
      onError: (failed, { error }) => failed.send(error.cause instanceof Refusal ? error.cause : error),
    })
  }

  function candidates(request: FastifyRequest, group: Group, body?: Uint8Array): ReplicaId[] {
    const { config } = context
    const facts = body === undefined ? { model: modelInQuery(request), members: NONE } : bodyFacts(body)
    const pool = poolFor(request, group, facts.model)
    const refused = config.pools[pool]!.refuseMembers.find(name => facts.members.has(name))
    if (refused !== undefined) {
      context.member(pool, 'refused')
      throw badRequest(`This router takes no "${refused}" in a body. Leave it out.`)
    }
    const known = new Map(options.replicas().map(state => [state.id, state]))
    const ids = config.policy.pools[pool]!.replicas.map(({ id }) => id)
    // A file is where it was uploaded to: always the first that is up, never the next in turn.
    const shift = group === 'files' ? 0 : turn++ % ids.length
    const load = (id: ReplicaId): number => {
      const state = known.get(id)
      return (state?.up === false ? 1e9 : 0) + (group === 'files' ? 0 : (state?.inFlight ?? 0))
    }
    return [...ids.slice(shift), ...ids.slice(0, shift)].sort((a, b) => load(a) - load(b))
  }

  /** The asked class's first pool that allows it, else the first of all; where a model is named, one that serves it. */
  function poolFor(request: FastifyRequest, group: Group, model: string | undefined): PoolId {
    const { pools, policy } = context.config
    const { key, prefixClass } = callerOf(request)
    const cls = prefixClass ?? classByHeader(request)
    if (cls !== undefined && key?.classes?.includes(cls) === false) {
      throw new Refusal({
        code: 'weir_unauthorized',
        message: `This key may not ask for class ${policy.classes[cls]!.name}.`,
      })
    }
    const home = cls === undefined ? [] : policy.classes[cls]!.pools
    const rest = policy.pools.filter(({ retired }) => retired !== true).map(({ id }) => id)
    const allowing = [...home, ...rest].filter(id => pools[id]!.allow.has(group))
    if (allowing.length === 0) {
      throw new Refusal({
        code: 'weir_unknown_route',
        message: `No pool of this router passes ${group} on. Its operator can allow it: pools.NAME.allow: [${group}].`,
      })
    }
    if (model === undefined) return allowing[0]!
    const named = allowing.find(id => policy.pools[id]!.model === model)
    const any = named ?? allowing.find(id => policy.pools[id]!.model === undefined)
    if (any !== undefined) return any
    const models = [...new Set(allowing.map(id => policy.pools[id]!.model))]
    throw new Refusal({
      code: 'weir_unknown_route',
      message: `No pool that passes ${group} on serves this model. Set "model" to one of: ${models.join(', ')}.`,
    })
  }

  function classByHeader(request: FastifyRequest): ClassId | undefined {
    try {
      return askedClass(request.headers, context.config.classIds)
    } catch (error) {
      throw error instanceof HeaderFault ? badRequest(error.message) : error
    }
  }

  void app.register(onTheServerItself, {
    // Never asked: `request` below knows the replica.
    upstream: 'http://replica.invalid',
    routes: prefixes.flatMap(prefix => Object.keys(ROUTES).map(path => `${prefix}${path}`)),
    httpMethods: ['GET', 'POST', 'DELETE', 'PUT', 'PATCH', 'OPTIONS'],
    proxyPayloads: false,
    // `upstreamPath` makes the true one.
    preRewrite: () => '/',
    disableCache: true,
    disableRequestLogging: true,
    undici: { request: fetchNext as never },
    handler(request, reply) {
      const route = ROUTES[routePath(request)]!
      if (!route.methods.includes(request.method)) throw notAllowed(route.methods)
      return forward(request, reply, candidates(request, route.group, jsonBody(request)))
    },
  })

  function fetchNext(_options: unknown, taker: Parameters<Forward['send']>[0]): void {
    const forward = next
    next = undefined
    forward?.send(taker)
  }

  return {
    candidates,
    forwardTo: (request, reply, replica) => forward(request, reply, [replica]),
    pathFor: (request, replica) => upstreamPath(request, replica, context),
  }
}

/** http-proxy keeps `reply.from` to its own routes; others are to use it too. */
const onTheServerItself: FastifyPluginCallback<Parameters<typeof httpProxy>[1]> = Object.assign(
  (...args: Parameters<typeof httpProxy>) => httpProxy(...args),
  { [Symbol.for('skip-override')]: true },
)

/** Methods of a route that is passed on; undefined where it is another. */
export function passedMethods(request: FastifyRequest): readonly string[] | undefined {
  return ROUTES[routePath(request)]?.methods
}

export function notAllowed(methods: readonly string[]): Refusal {
  const answer: Answer = {
    code: 'weir_unknown_route',
    status: 405,
    message: `This path takes ${methods.join(', ')}.`,
  }
  return new Refusal(answer, ['allow', methods.join(', ')])
}

function routePath(request: FastifyRequest): string {
  return (request.routeOptions.url ?? '').replace(/^(\/:weirClass)?\/v1(?=\/)/, '')
}

/** The client's path without the class, with `/v1`, and its query without credentials. */
function upstreamPath(request: FastifyRequest, replica: ReplicaId, { config }: ExchangeContext): string {
  const [whole = '', query] = (request.raw.url ?? '').split(/\?(.*)/s, 2)
  const { weirClass } = request.params as { readonly weirClass?: string }
  const path = checkedPath(weirClass === undefined ? whole : whole.slice(whole.indexOf('/', 1)))
  const rooted = path.startsWith('/v1/') || AS_SENT.includes(path) ? path : `/v1${path}`
  const { passAuthorization } = config.pools[config.replicas[replica]!.pool]!
  const kept = passAuthorization ? query : withoutCredentials(query)
  return kept === undefined || kept === '' ? rooted : `${rooted}?${kept}`
}

const CREDENTIAL = /^(api[-_]?key|key|access_token|token)$/i

function withoutCredentials(query: string | undefined): string | undefined {
  return query
    ?.split('&')
    .filter(part => !CREDENTIAL.test(new URLSearchParams(part).keys().next().value ?? ''))
    .join('&')
}

function jsonBody(request: FastifyRequest): Uint8Array | undefined {
  if (!Buffer.isBuffer(request.body) || request.body.length === 0) return undefined
  if (mediaType(request.headers['content-type']) !== 'application/json') return undefined
  const coding = request.headers['content-encoding']
  if (coding !== undefined && coding !== 'identity')
    throw badRequest('Send the body as it is, without content-encoding.')
  return request.body
}

const NONE: ReadonlySet<string> = new Set()

/** @throws Refusal for a body that is no JSON object, or names its model twice */
function bodyFacts(bytes: Uint8Array): {
  readonly model: string | undefined
  readonly members: ReadonlySet<string>
} {
  const members = new Set<string>()
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  let model: unknown
  try {
    new JsonWalk(bytes).members(0, (key, value) => {
      const name: string = JSON.parse(text.toString('utf8', key.start, key.end))
      if (name === 'model' && members.has(name)) {
        throw badRequest(
          'The body has "model" twice. Send it once, so that every reader sees the same value.',
        )
      }
      members.add(name)
      if (name === 'model') model = JSON.parse(text.toString('utf8', value.start, value.end))
    })
  } catch (error) {
    if (!(error instanceof JsonFault)) throw error
    throw badRequest(`The body is not a valid JSON object: ${error.message}. Send one JSON object.`)
  }
  return { model: typeof model === 'string' ? model : undefined, members }
}

function modelInQuery(request: FastifyRequest): string | undefined {
  const { model } = (request.query ?? {}) as { readonly model?: unknown }
  return typeof model === 'string' ? model : undefined
}
