/** One HTTP/1.1 connection to a replica: one request at a time, and its answer as it is read. */
import { connect, type Socket } from 'node:net'
import { performance } from 'node:perf_hooks'
import type { Ms } from '../time.js'
import type { CallFailure } from './call.js'
import { type AnswerFault, type AnswerSink, ResponseParser } from './response-parser.js'

/** All connections read into these bytes: they are true only until the read that brought them has been handled. */
const slab = Buffer.allocUnsafeSlow(64 * 1024)

/** Up to this size a request's body is copied behind its head, so that both go out in one plain write. */
const SMALL_BODY = 16 * 1024

/** For which a silent connection that is in use is not probed. */
const PROBE_AFTER_MS: Ms = 60_000

/** Whose request is on a connection. */
export interface Occupant {
  /** A new connection is open: `Connection.send` may be called. */
  opened(): void
  head(status: number, headers: readonly string[]): void
  /** The chunk is true only until this returns. Returns false to pause until `Connection.flow`. */
  data(chunk: Buffer): boolean
  end(): void
  /**
   * @param bad  what came is not HTTP as this reader takes it
   * @param dead  the connection had been used before, and brought nothing of an answer to this request
   */
  broke(failure: CallFailure, bad: boolean, dead: boolean): void
}

export interface ConnectionOwner {
  /** An answer is whole, and another request may follow. */
  idle(connection: Connection): void
  gone(connection: Connection): void
}

export interface ConnectionOptions {
  readonly host: string
  readonly port: number
  readonly connectMs: Ms
  /** Bytes of an answer's head, at most. */
  readonly headLimit: number
}

export class Connection implements AnswerSink {
  readonly openedAt = performance.now()
  /** How long the upstream says that it keeps an idle connection; undefined: it says nothing. */
  get keepAliveMs(): Ms | undefined {
    return this.parser.keepAliveMs
  }
  private readonly parser: ResponseParser
  private readonly socket: Socket
  private connectTimer: NodeJS.Timeout | undefined
  private timedOut = false
  private open = false
  private used = false
  /** Something came since the request went out. */
  private heard = false
  private flows = true
  private error: Error | undefined

  /** @param occupant  whose request it is opened for */
  constructor(
    options: ConnectionOptions,
    private readonly owner: ConnectionOwner,
    private occupant: Occupant | undefined,
  ) {
    const { host, port, connectMs, headLimit } = options
    this.parser = new ResponseParser(this, headLimit)
    this.socket = connect({
      host,
      port,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: PROBE_AFTER_MS,
      autoSelectFamily: true,
      onread: { buffer: slab, callback: length => this.read(length) },
    })
    this.connectTimer = setTimeout(() => {
      this.timedOut = true
      this.socket.destroy()
    }, connectMs)
    this.socket.once('connect', () => {
      clearTimeout(this.connectTimer)
      this.open = true
      this.occupant?.opened()
    })
    this.socket.on('error', error => {
      this.error = error
    })
    this.socket.on('end', () => this.ended())
    this.socket.on('close', () => this.closed())
  }

  /** It can be given a request, as far as this side knows. */
  get usable(): boolean {
    return this.socket.writable && !this.socket.destroyed
  }

  /** Takes another request, whose answer goes to `occupant`. */
  occupy(occupant: Occupant): void {
    this.occupant = occupant
    this.used = true
    this.heard = false
  }

  send(head: string, body: readonly Uint8Array[], bytes: number, headOnly: boolean): void {
    const { socket } = this
    this.parser.expect(headOnly)
    if (bytes <= SMALL_BODY) {
      const whole = Buffer.allocUnsafe(head.length + bytes)
      let at = whole.write(head, 'latin1')
      for (const piece of body) {
        whole.set(piece, at)
        at += piece.length
      }
      socket.write(whole)
      return
    }
    socket.cork()
    socket.write(head, 'latin1')
    for (const piece of body) socket.write(piece)
    socket.uncork()
  }

  /** Reads on, after `Occupant.data` returned false. */
  flow(): void {
    if (this.flows) return
    this.flows = true
    this.socket.resume()
  }

  /** Closes it at once; its occupant hears no more. */
  destroy(): void {
    this.occupant = undefined
    this.parser.stop()
    clearTimeout(this.connectTimer)
    this.socket.destroy()
  }

  // ---- AnswerSink

  head(status: number, headers: readonly string[]): void {
    this.occupant?.head(status, headers)
  }

  body(bytes: Buffer, from: number, to: number): void {
    if (this.occupant?.data(bytes.subarray(from, to)) === false) this.flows = false
  }

  end(): void {
    const { occupant } = this
    this.occupant = undefined
    // An answer that came before the whole request was sent ends the use of the connection.
    if (this.parser.reusable && this.usable && this.socket.writableLength === 0) {
      this.flow()
      this.owner.idle(this)
    } else this.destroy()
    occupant?.end()
  }

  bad({ kind, detail }: AnswerFault): void {
    this.break({ kind: kind === 'large' ? 'head_too_large' : 'reset', detail }, kind === 'bad')
  }

  // ---- the socket

  private read(length: number): boolean {
    this.heard = true
    this.parser.push(slab, length)
    return this.flows
  }

  /** The upstream will send no more. */
  private ended(): void {
    if (!this.parser.close()) this.break({ kind: 'reset', detail: 'broke: it closed the connection' }, false)
  }

  private closed(): void {
    clearTimeout(this.connectTimer)
    this.owner.gone(this)
    if (this.occupant === undefined) return
    const code = this.error === undefined ? 'closed' : codeOf(this.error)
    if (this.open) this.break({ kind: 'reset', detail: `broke: ${code}` }, false)
    else if (this.timedOut) this.break({ kind: 'connect_timeout', detail: 'no connection in time' }, false)
    else this.break({ kind: 'refused', detail: `no connection: ${code}` }, false)
  }

  private break(failure: CallFailure, bad: boolean): void {
    const { occupant } = this
    const dead = this.used && !this.heard
    this.destroy()
    occupant?.broke(failure, bad, dead)
  }
}

const codeOf = (error: Error): string =>
  'code' in error && typeof error.code === 'string' ? error.code : error.name
