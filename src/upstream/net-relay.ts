/** The fast relay, for replicas that are spoken to in plain HTTP: own sockets, one static read buffer, a strict reader. */
import type { AnswerHandler, Call, CallFailure, CallRequest, Endpoint, Relay } from './call.js'
import type { Connection, Occupant } from './connection.js'
import { PlainAnswer, plainly } from './plain-answer.js'
import { ReplicaConnections } from './replica-connections.js'
import { requestHead } from './request-head.js'
import { undiciRelay } from './undici-relay.js'

interface Target {
  readonly endpoint: Endpoint
  /** As the origin has it, for the `host` line. */
  readonly host: string
  /** undefined: not plain HTTP. */
  readonly connections: ReplicaConnections | undefined
  /** What it answered once is HTTP to a lenient reader at best: later calls are not read by the strict one. */
  lenient: boolean
}

/**
 * A relay that leaves to undici what is not plain HTTP/1.1: TLS, and replicas whose answers the strict reader refuses. Such an
 * answer is a failed call; the next ones are undici's.
 * @param endpoints  by replica id
 * @param headLimit  bytes of an answer's head, at most
 */
export function netRelay(endpoints: readonly Endpoint[], headLimit: number): Relay {
  const targets: Target[] = []
  const rest = undiciRelay(endpoints, headLimit)
  const relay: Relay = {
    call(replica, request, handler) {
      const target = targets[replica]
      if (target?.connections === undefined || target.lenient) return rest.call(replica, request, handler)
      return new NetCall(target, target.connections, request, handler)
    },
    reconfigure(next) {
      for (const endpoint of next) {
        const target = targets[endpoint.id]
        const { connectMs, retired } = endpoint
        if (target?.endpoint.connectMs === connectMs && target.endpoint.retired === retired) continue
        target?.connections?.retire()
        targets[endpoint.id] = targetOf(endpoint, headLimit)
      }
      rest.reconfigure(next)
    },
    async close() {
      for (const { connections } of targets) connections?.close()
      await rest.close()
    },
  }
  relay.reconfigure(endpoints)
  return relay
}

function targetOf(endpoint: Endpoint, headLimit: number): Target {
  const url = new URL(endpoint.origin)
  const options = {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port || 80),
    connectMs: endpoint.connectMs,
    headLimit,
  }
  const plain = url.protocol === 'http:'
  return {
    endpoint,
    host: url.host,
    connections: plain ? new ReplicaConnections(options) : undefined,
    lenient: false,
  }
}

class NetCall implements Call, Occupant {
  private connection: Connection | undefined
  /** Who takes the answer: the handler, or what unpacks it for the handler. */
  private taker: AnswerHandler | PlainAnswer
  private over = false

  constructor(
    private readonly target: Target,
    private readonly connections: ReplicaConnections,
    private readonly request: CallRequest,
    private readonly handler: AnswerHandler,
  ) {
    this.taker = handler
    const { endpoint } = target
    if (endpoint.retired) {
      this.fails({ kind: 'refused', detail: 'no connection: the replica is retired' })
      return
    }
    this.connection = connections.take(this)
    if (this.connection === undefined) this.connection = connections.open(this)
    else this.send(this.connection)
  }

  abort(): void {
    if (this.over) return
    this.over = true
    this.connection?.destroy()
    this.connection = undefined
    if (this.taker instanceof PlainAnswer) this.taker.stop()
  }

  resume(): void {
    if (this.taker instanceof PlainAnswer) this.taker.resume()
    else this.flow()
  }

  // ---- Source

  flow(): void {
    this.connection?.flow()
  }

  // ---- Occupant

  opened(): void {
    if (this.connection !== undefined) this.send(this.connection)
  }

  head(status: number, headers: readonly string[]): void {
    this.taker = plainly(status, headers, this.handler, this)
  }

  data(chunk: Buffer): boolean {
    return this.taker.data(chunk)
  }

  end(): void {
    this.connection = undefined
    if (!this.over) this.taker.end()
  }

  broke(failure: CallFailure, bad: boolean, dead: boolean): void {
    this.connection = undefined
    if (bad) this.target.lenient = true
    if (dead && this.request.repeatable) {
      this.handler.repeated()
      this.connection = this.connections.open(this)
      return
    }
    this.taker.broke(failure)
  }

  private send(connection: Connection): void {
    const { request, target } = this
    const body = request.body ?? NO_BODY
    let bytes = 0
    for (const piece of body) bytes += piece.length
    const head = requestHead(request, target.host, target.endpoint.basePath + request.path, bytes)
    if (head !== undefined) connection.send(head, body, bytes, request.method === 'HEAD')
    else this.fails({ kind: 'refused', detail: 'a header line of the request cannot be sent' })
  }

  /** Without having sent anything: tells so once the caller has this call. */
  private fails(failure: CallFailure): void {
    queueMicrotask(() => {
      if (this.over) return
      this.abort()
      this.handler.broke(failure)
    })
  }
}

const NO_BODY: readonly Uint8Array[] = []
