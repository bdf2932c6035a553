/** WebSocket upgrades: handed to the router like any request, and passed to a replica where a pool allows it. */
import {
  type ClientRequest,
  request as httpRequest,
  type IncomingMessage,
  type Server,
  ServerResponse,
} from 'node:http'
import { request as httpsRequest } from 'node:https'
import type { Socket } from 'node:net'
import { urlToHttpOptions } from 'node:url'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ReplicaId } from '../request.js'
import type { Ms } from '../time.js'
import { type Answer, bodyOf, headersOf, soonMs, statusOf } from './answers.js'
import { Refusal, requestId } from './chat.js'
import type { ExchangeContext } from './exchange.js'
import { requestHeaders, responseHeaders } from './headers.js'

/** How long one side may stay open after the other has closed. */
const LINGER_MS: Ms = 500
/** Between probes of a silent connection: a conversation may pause, but not with the dead. */
const PROBE_MS: Ms = 60_000

/** Browsers cannot send headers with an upgrade, so OpenAI's clients put their key among the protocols. */
const KEY_PROTOCOL = /^openai-insecure-api-key\./

export class Realtime {
  readonly #upgrades = new WeakMap<IncomingMessage, Buffer>()
  readonly #open = new Set<Socket>()

  constructor(private readonly context: ExchangeContext) {}

  /** @param route  takes a request as the server's own listener would */
  attach(server: Server, route: (request: IncomingMessage, response: ServerResponse) => void): void {
    server.on('upgrade', (request: IncomingMessage, socket: Socket, head: Buffer) => {
      socket.on('error', () => undefined)
      if (request.headers.upgrade?.toLowerCase() !== 'websocket' || request.method !== 'GET') {
        again(server, request, socket, head)
        return
      }
      this.#upgrades.set(request, head)
      const response = new ServerResponse(request)
      // What comes behind an upgrade is no request any more.
      response.shouldKeepAlive = false
      response.assignSocket(socket)
      response.on('finish', () => socket.destroySoon())
      route(request, response)
    })
  }

  /**
   * Connects the client with a replica.
   * @param path  for the upstream, with its query
   * @throws Refusal for a request that is no upgrade
   */
  connect(request: FastifyRequest, reply: FastifyReply, replica: ReplicaId, path: string): void {
    const head = this.#upgrades.get(request.raw)
    if (head === undefined) {
      throw new Refusal(
        { code: 'weir_bad_request', status: 426, message: 'This path is for WebSockets. Send an upgrade.' },
        ['upgrade', 'websocket'],
      )
    }
    reply.hijack()
    const { config } = this.context
    const { origin, basePath, pool } = config.replicas[replica]!
    const wire = config.pools[pool]!
    const own = [
      'x-request-id',
      requestId(request.headers['x-request-id']),
      'x-weir-pool',
      config.policy.pools[pool]!.name,
    ]
    const target = new URL(origin)
    const headers = ['host', target.host, 'connection', 'Upgrade', 'upgrade', 'websocket', ...own.slice(0, 2)]
    headers.push(
      ...withoutKey(requestHeaders(request.raw.rawHeaders, wire.passAuthorization), wire.passAuthorization),
    )
    if (wire.apiKey !== undefined) headers.push('authorization', `Bearer ${wire.apiKey}`)
    const send = target.protocol === 'https:' ? httpsRequest : httpRequest
    const outgoing = send({
      ...urlToHttpOptions(target),
      path: basePath + path,
      headers: headers as never,
      agent: false,
      maxHeaderSize: config.limits.headers,
    })
    this.answer(outgoing, reply.raw, request.raw.socket, head, own, wire.timeouts.connectMs)
  }

  /** Closes every connection that is passed on. */
  close(): void {
    for (const socket of this.#open) socket.destroy()
  }

  private answer(
    outgoing: ClientRequest,
    response: ServerResponse,
    client: Socket,
    head: Buffer,
    own: readonly string[],
    connectMs: Ms,
  ): void {
    let done = false
    const settle = (): boolean => {
      clearTimeout(timer)
      client.off('close', left)
      const first = !done
      done = true
      return first
    }
    const fail = (answer: Answer): void => {
      outgoing.destroy()
      if (!settle()) return
      const body = bodyOf(answer)
      response.writeHead(statusOf(answer), [
        'content-type',
        'application/json; charset=utf-8',
        'content-length',
        String(Buffer.byteLength(body)),
        ...headersOf(answer),
        ...own,
      ])
      response.end(body)
    }
    const left = (): void => {
      settle()
      outgoing.destroy()
    }
    const timer = setTimeout(() => {
      const message = `No answer to the upgrade within ${connectMs / 1000} s (timeouts.connect).`
      fail({ code: 'weir_connect_timeout', message, retryAfterMs: soonMs() })
    }, connectMs)
    client.once('close', left)
    outgoing.on('error', () => {
      fail({
        code: 'weir_upstream_error',
        message: 'The upstream failed before it took the upgrade.',
        retryAfterMs: soonMs(),
      })
    })
    outgoing.on('response', refusal => {
      const status = refusal.statusCode ?? 502
      if (status < 400 || status === 401 || status === 403) {
        fail({ code: 'weir_upstream_error', message: `The upstream answered ${status} to the upgrade.` })
        return
      }
      if (!settle()) return
      client.once('close', () => outgoing.destroy())
      response.writeHead(status, [...responseHeaders(refusal.rawHeaders, true, own), ...own])
      refusal.on('error', () => response.destroy())
      refusal.pipe(response)
      response.on('finish', () => outgoing.destroy())
    })
    outgoing.on('upgrade', (accepted, upstream, early) => {
      if (!settle()) {
        upstream.destroy()
        return
      }
      response.detachSocket(client)
      const lines = [
        'connection',
        'Upgrade',
        'upgrade',
        'websocket',
        ...responseHeaders(accepted.rawHeaders, false, own),
        ...own,
      ]
      client.write(`HTTP/1.1 101 Switching Protocols\r\n${headText(lines)}\r\n`, 'latin1')
      client.write(early)
      upstream.write(head)
      this.join(client, upstream as Socket)
    })
    outgoing.end()
  }

  /** Both ways, until one side closes: then the other follows. */
  private join(client: Socket, upstream: Socket): void {
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      this.#open.add(from)
      from.setKeepAlive(true, PROBE_MS)
      from.setNoDelay(true)
      from.on('error', () => from.destroy())
      const over = (): void => {
        to.end()
        // A side that does not take the other's end for its own is told in a way that it cannot miss.
        setTimeout(() => {
          for (const side of [from, to]) if (!side.destroyed) side.resetAndDestroy()
        }, LINGER_MS).unref()
      }
      from.once('end', over)
      from.once('close', () => {
        this.#open.delete(from)
        over()
      })
      from.pipe(to)
    }
  }
}

/** Not an upgrade that Weir knows (HTTP/2, mostly): the same request once more, as the plain one it also is. */
function again(server: Server, request: IncomingMessage, socket: Socket, head: Buffer): void {
  const lines: string[] = []
  const raw = request.rawHeaders
  for (let i = 0; i < raw.length; i += 2) {
    const name = raw[i]!
    const value = raw[i + 1]!
    const lower = name.toLowerCase()
    if (lower === 'upgrade') continue
    if (lower !== 'connection') lines.push(name, value)
    else {
      const kept = value.split(',').filter(token => token.trim().toLowerCase() !== 'upgrade')
      if (kept.length > 0) lines.push(name, kept.join(','))
    }
  }
  const line = `${request.method} ${request.url} HTTP/${request.httpVersion}\r\n`
  socket.unshift(Buffer.concat([Buffer.from(`${line}${headText(lines)}\r\n`, 'latin1'), head]))
  server.emit('connection', socket)
}

function headText(lines: readonly string[]): string {
  let text = ''
  for (let i = 0; i < lines.length; i += 2) text += `${lines[i]}: ${lines[i + 1]}\r\n`
  return text
}

function withoutKey(headers: readonly string[], pass: boolean): string[] {
  const kept: string[] = []
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i]!
    let value = headers[i + 1]!
    if (!pass && name.toLowerCase() === 'sec-websocket-protocol') {
      value = value
        .split(',')
        .map(protocol => protocol.trim())
        .filter(protocol => !KEY_PROTOCOL.test(protocol))
        .join(', ')
      if (value === '') continue
    }
    kept.push(name, value)
  }
  return kept
}
