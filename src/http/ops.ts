/** The admin listener: metrics, liveness, readiness and state, on a port of its own beside the data port. */
import { createHash, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { PolicySpec, PolicyState } from '../policy/policy.js'

/** Whether new requests may be sent here, and why not. */
export type Readiness = { readonly ready: true } | { readonly ready: false; readonly why: string }

/** What came of a reload: `why` names what is wrong, and the config that ran goes on. */
export type ReloadResult = { readonly ok: true } | { readonly ok: false; readonly why: string }

export interface OpsOptions {
  /** Where it listens, and the token it asks for. Beyond loopback there has to be one. */
  readonly admin: { readonly host: string; readonly port: number; readonly token: string | undefined }
  readonly version: string
  /** `Recorder` is one. */
  readonly metrics: { readonly contentType: string; text(): Promise<string> }
  ready(): Readiness
  /** What `POST /-/reload` does. */
  reload?(): Promise<ReloadResult>
  /** What `/api/state` shows beside the version; see `namedState`. */
  state(): object
  /** What `/api/report`, `/api/headroom` and `/api/diagnosis` answer. */
  report?(): object
  headroom?(): object
  diagnosis?(): object
}

export interface OpsServer {
  /** Resolves once it accepts connections; rejects with the address when it cannot. */
  listen(): Promise<AddressInfo>
  /** Ends it at once. Call it last: until then `/readyz` tells load balancers that this Weir drains. */
  close(): Promise<void>
}

interface Answer {
  readonly status: number
  readonly body: string
  readonly type?: string
  readonly headers?: Readonly<Record<string, string>>
}

/**
 * Builds the admin listener; `listen` starts it.
 * @throws Error when the host is beyond loopback and there is no token
 */
export function opsServer(options: OpsOptions): OpsServer {
  const { host, port, token } = options.admin
  const loopback = isLoopback(host)
  if (!loopback && token === undefined) {
    throw new Error(
      `admin.host is ${host}, which others can reach, and admin.token is not set. ` +
        'Set admin.token, or listen on 127.0.0.1.',
    )
  }
  const secret = token === undefined ? undefined : digest(Buffer.from(token))
  const hosts = new Set(['localhost', '127.0.0.1', '[::1]', bracketed(host)])

  const routes = new Map<
    string,
    { readonly open: boolean; readonly posted?: true; answer(): Answer | Promise<Answer> }
  >([
    ['/livez', { open: true, answer: () => json(200, { live: true }) }],
    [
      '/readyz',
      {
        open: true,
        answer: () => {
          const readiness = options.ready()
          return json(readiness.ready ? 200 : 503, readiness)
        },
      },
    ],
    [
      '/metrics',
      {
        open: false,
        answer: async () => ({
          status: 200,
          body: await options.metrics.text(),
          type: options.metrics.contentType,
        }),
      },
    ],
    [
      '/api/state',
      { open: false, answer: () => json(200, { version: options.version, ...options.state() }) },
    ],
  ])

  const { reload } = options
  for (const name of ['report', 'headroom', 'diagnosis'] as const) {
    const answer = options[name]
    if (answer !== undefined) {
      routes.set(`/api/${name}`, { open: false, answer: () => json(200, answer.call(options)) })
    }
  }
  if (reload !== undefined) {
    routes.set('/-/reload', {
      open: false,
      posted: true,
      answer: async () => {
        const result = await reload()
        return json(result.ok ? 200 : 422, result)
      },
    })
  }

  /** In this order: nobody without the token learns which paths there are. */
  const answer = async (request: IncomingMessage): Promise<Answer> => {
    const asked = request.headers.host ?? ''
    // A page of another site that has its name resolve to this machine still sends that name as Host.
    if (loopback && !hosts.has(withoutPort(asked))) {
      return refusal(403, 'The Host header is not this listener. Ask for it as localhost or 127.0.0.1.')
    }
    const path = (request.url ?? '').split('?', 1)[0] ?? ''
    const route = routes.get(path)
    if (secret !== undefined && route?.open !== true && !isBearer(request.headers.authorization, secret)) {
      return refusal(401, 'Send the admin token: "authorization: Bearer TOKEN".', {
        'www-authenticate': 'Bearer',
      })
    }
    const reads = request.method === 'GET' || request.method === 'HEAD'
    const { origin } = request.headers
    if (!reads && origin !== undefined && origin !== `http://${asked}` && origin !== `https://${asked}`) {
      return refusal(403, 'The Origin header is another site: its pages may not change anything here.')
    }
    if (route === undefined) {
      return refusal(404, `Nothing here. There is ${[...routes.keys()].join(', ')}.`)
    }
    if (route.posted) return reads ? refusal(405, 'Send a POST.', { allow: 'POST' }) : route.answer()
    return reads ? route.answer() : refusal(405, 'This path is only read.', { allow: 'GET, HEAD' })
  }

  const server = createServer((request, response) => {
    answer(request).then(
      found => send(request, response, found),
      (cause: unknown) =>
        send(
          request,
          response,
          refusal(500, `This page failed: ${cause instanceof Error ? cause.message : cause}`),
        ),
    )
  })

  return {
    listen: () =>
      new Promise((resolve, reject) => {
        server.once('error', cause =>
          reject(
            new Error(`the admin listener cannot start on ${host}:${port}: ${cause.message}`, { cause }),
          ),
        )
        server.listen(port, host, () => resolve(server.address() as AddressInfo))
      }),
    close: () =>
      new Promise((resolve, reject) => {
        server.close(error => (error === undefined ? resolve() : reject(error)))
        server.closeAllConnections()
      }),
  }
}

/** Not what is no longer in the config. */
const isShown = (one: { readonly retired?: true }): boolean => one.retired !== true

/** The policy's state with names in place of ids, for `/api/state`. */
export function namedState(
  spec: Pick<PolicySpec, 'classes' | 'pools' | 'replicas'>,
  state: PolicyState,
): object {
  const depths = new Map(state.queues.map(queue => [queue.cls, queue.depth]))
  const totals = new Map(state.totals.map(row => [row.cls, row]))
  return {
    open: state.open,
    classes: spec.classes.filter(isShown).map(cls => ({
      name: cls.name,
      pools: cls.pools.map(id => spec.pools[id]?.name),
      queue_depth: depths.get(cls.id) ?? 0,
      arrivals: totals.get(cls.id)?.arrivals,
      offered: totals.get(cls.id)?.offered,
      verdicts: totals.get(cls.id)?.verdicts,
    })),
    pools: spec.pools.filter(isShown).map(pool => ({
      name: pool.name,
      model: pool.model ?? '*',
      replicas: state.replicas
        .filter(replica => replica.pool === pool.id)
        .map(replica => ({
          name: spec.replicas[replica.id]?.name,
          up: replica.up,
          in_flight: replica.inFlight,
          max_in_flight: pool.maxInFlight,
          outstanding_prefill_tokens: replica.outstandingPrefillTokens,
        })),
    })),
  }
}

function send(request: IncomingMessage, response: ServerResponse, answer: Answer): void {
  const body = Buffer.from(answer.body)
  response.writeHead(answer.status, {
    'content-type': answer.type ?? 'application/json; charset=utf-8',
    'content-length': body.length,
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    // Whatever body came along is not read, so the connection is of no more use.
    ...(request.method === 'GET' || request.method === 'HEAD' ? {} : { connection: 'close' }),
    ...answer.headers,
  })
  response.end(request.method === 'HEAD' ? undefined : body)
}

function json(status: number, body: object): Answer {
  return { status, body: `${JSON.stringify(body)}\n` }
}

function refusal(status: number, message: string, headers: Readonly<Record<string, string>> = {}): Answer {
  return { ...json(status, { error: { message } }), headers }
}

function isBearer(header: string | undefined, secret: Buffer): boolean {
  const given = /^bearer +(.+)$/i.exec(header ?? '')?.[1]
  // Node hands header bytes over as latin1. Digests, since only equal lengths compare in constant time.
  return given !== undefined && timingSafeEqual(digest(Buffer.from(given, 'latin1')), secret)
}

function digest(bytes: Buffer): Buffer {
  return createHash('sha256').update(bytes).digest()
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host)
}

/** As it stands in a Host header. */
function bracketed(host: string): string {
  return host.includes(':') ? `[${host}]` : host.toLowerCase()
}

function withoutPort(host: string): string {
  return host.toLowerCase().replace(/:\d+$/, '')
}
