/** The relay on undici: one pool of connections a replica, and its dispatch interface, which has no promise a chunk. */
import diagnostics from 'node:diagnostics_channel'
import type { Socket } from 'node:net'
import { buildConnector, Client, type Dispatcher, Pool } from 'undici'
import type { Ms } from '../time.js'
import type { AnswerHandler, Call, CallFailure, CallRequest, Endpoint, Relay } from './call.js'
import { PlainAnswer, plainly } from './plain-answer.js'
import { KEEP_ALIVE_MAX_MS, KEEP_ALIVE_MS } from './replica-connections.js'

/** undici's own header and body clocks would cut healthy streams: all clocks are the caller's. */
const NO_CLOCKS = { headersTimeout: 0, bodyTimeout: 0 }

/** Set on an error by the socket it happened on: it had carried an answer before, and none of this request's. */
const DEAD_REUSED = Symbol('dead reused socket')

/** Bytes each socket had read when its latest request was sent. */
const readBefore = new WeakMap<Socket, number>()
/** The call whose request undici writes next: it does so in the same breath as `onRequestStart`. */
let starting: UndiciCall | undefined
diagnostics.subscribe('undici:client:sendHeaders', message => {
  const { socket } = message as { readonly socket: Socket }
  readBefore.set(socket, socket.bytesRead)
  starting?.goesOutOn(socket)
  starting = undefined
})

interface Target {
  readonly endpoint: Endpoint
  readonly options: Client.Options
  readonly pool: Pool
}

/**
 * @param endpoints  by replica id
 * @param headLimit  bytes of an answer's head, at most
 */
export function undiciRelay(endpoints: readonly Endpoint[], headLimit: number): Relay {
  const targets: Target[] = []
  const relay: Relay = {
    call(replica, request, handler) {
      const target = targets[replica]
      if (target === undefined) throw new Error(`no replica ${replica}`)
      return new UndiciCall(target, request, handler)
    },
    reconfigure(next) {
      for (const endpoint of next) {
        const target = targets[endpoint.id]
        const { connectMs, retired } = endpoint
        if (target?.endpoint.connectMs === connectMs && target.endpoint.retired === retired) continue
        // Both wait for what runs on them; a call to one that is retired is refused.
        target?.pool.close().catch(() => undefined)
        const replacing = targetOf(endpoint, headLimit)
        if (retired) replacing.pool.close().catch(() => undefined)
        targets[endpoint.id] = replacing
      }
    },
    async close() {
      await Promise.all(targets.map(target => target.pool.destroy()))
    },
  }
  relay.reconfigure(endpoints)
  return relay
}

function targetOf(endpoint: Endpoint, headLimit: number): Target {
  const options = {
    ...NO_CLOCKS,
    maxHeaderSize: headLimit,
    pipelining: 1,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MAX_MS,
    connect: markingConnector(endpoint.connectMs),
  }
  return { endpoint, options, pool: new Pool(endpoint.origin, { ...options, connections: null }) }
}

/** A connector whose sockets tell on their errors whether they were dead when the request was sent on them. */
function markingConnector(timeout: Ms): buildConnector.connector {
  const connect = buildConnector({ timeout })
  return (options, callback) => {
    connect(options, (error, socket) => {
      if (error !== null || socket === null) {
        callback(error ?? new Error('no socket'), null)
        return
      }
      // Before undici's own listener, so that it passes on a marked error.
      socket.prependListener('error', failure => {
        const before = readBefore.get(socket) ?? 0
        if (before > 0 && socket.bytesRead === before) Object.assign(failure, { [DEAD_REUSED]: true })
      })
      callback(null, socket)
    })
  }
}

class UndiciCall implements Call, Dispatcher.DispatchHandler {
  private controller: Dispatcher.DispatchController | undefined
  private aborted = false
  private sent = false
  private answered = false
  private within = false
  private fresh: Client | undefined
  /** Who takes the answer: the handler, or what unpacks it for the handler. */
  private taker: AnswerHandler | PlainAnswer
  /** While the request is on it. */
  private socket: Socket | undefined

  constructor(
    private readonly target: Target,
    private readonly request: CallRequest,
    private readonly handler: AnswerHandler,
  ) {
    this.taker = handler
    this.dispatch(target.pool)
  }

  abort(): void {
    if (this.aborted) return
    this.aborted = true
    // After an abort by its controller undici connects anew, for nobody: with some engines that takes a worker.
    if (this.socket === undefined) this.controller?.abort(new Error('aborted'))
    else this.socket.destroy(new Error('aborted'))
    if (this.taker instanceof PlainAnswer) this.taker.stop()
    this.ended()
  }

  /** undici sends the request on this socket. */
  goesOutOn(socket: Socket): void {
    this.socket = socket
  }

  resume(): void {
    if (this.taker instanceof PlainAnswer) this.taker.resume()
    else this.flow()
  }

  /** Of `Source`. */
  flow(): void {
    this.controller?.resume()
  }

  private dispatch(dispatcher: Dispatcher): void {
    const { request, target } = this
    // undici reports a request that it does not like at once, from within.
    this.within = true
    dispatcher.dispatch(
      {
        method: request.method ?? 'POST',
        path: target.endpoint.basePath + request.path,
        headers: request.headers as string[],
        body: bodyOf(request),
      },
      this,
    )
    this.within = false
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.controller = controller
    if (this.aborted) {
      controller.abort(new Error('aborted'))
      return
    }
    this.sent = true
    starting = this
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    if (this.aborted || status < 200) return
    this.answered = true
    const raw = controller.rawHeaders
    const headers: string[] = []
    if (Array.isArray(raw))
      for (const part of raw) headers.push(typeof part === 'string' ? part : part.toString('latin1'))
    this.taker = plainly(status, headers, this.handler, this)
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.aborted) return
    if (!this.taker.data(chunk)) controller.pause()
  }

  onResponseEnd(): void {
    this.ended()
    this.controller = undefined
    if (!this.aborted) this.taker.end()
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.socket = undefined
    if (this.aborted) return
    if (this.within) {
      queueMicrotask(() => this.onResponseError(_controller, error))
      return
    }
    if (
      this.sent &&
      !this.answered &&
      this.fresh === undefined &&
      this.request.repeatable &&
      DEAD_REUSED in error
    ) {
      this.sent = false
      this.controller = undefined
      this.handler.repeated()
      this.fresh = new Client(this.target.endpoint.origin, this.target.options)
      this.dispatch(this.fresh)
      return
    }
    this.ended()
    this.controller = undefined
    this.taker.broke(this.failureOf(error))
  }

  /** The pool's socket is its next request's from now on; one of its own is closed. */
  private ended(): void {
    this.socket = undefined
    this.fresh?.destroy().catch(() => undefined)
  }

  private failureOf(error: Error): CallFailure {
    const code = codeOf(error)
    if (code === 'UND_ERR_HEADERS_OVERFLOW') {
      const limit = this.target.options.maxHeaderSize
      return {
        kind: 'head_too_large',
        detail: `the head of its answer is over ${limit} bytes (limits.headers)`,
      }
    }
    if (this.sent) return { kind: 'reset', detail: `broke: ${code}` }
    if (code === 'UND_ERR_CONNECT_TIMEOUT')
      return { kind: 'connect_timeout', detail: 'no connection in time' }
    return { kind: 'refused', detail: `no connection: ${code}` }
  }
}

const codeOf = (error: Error): string =>
  'code' in error && typeof error.code === 'string' ? error.code : error.name

function bodyOf({ body }: CallRequest): Buffer | Uint8Array | null {
  if (body === undefined) return null
  return body.length === 1 ? body[0]! : Buffer.concat(body)
}
