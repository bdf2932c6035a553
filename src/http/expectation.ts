/** `Expect: 100-continue`: such a client sends its body when it is told to, and not for an answer that needs none. */
import type { IncomingMessage, Server, ServerResponse } from 'node:http'

export class Expectations {
  readonly #waiting = new WeakMap<IncomingMessage, ServerResponse>()
  readonly #unknown = new WeakSet<IncomingMessage>()

  /** @param route  takes a request as the server's own listener would */
  attach(server: Server, route: (request: IncomingMessage, response: ServerResponse) => void): void {
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      this.#waiting.set(request, response)
      route(request, response)
    })
    server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
      this.#waiting.set(request, response)
      this.#unknown.add(request)
      route(request, response)
    })
  }

  /** It expects something that nobody can do. */
  isUnknown(request: IncomingMessage): boolean {
    return this.#unknown.has(request)
  }

  /** It holds its body back, and has not been told to send it. */
  waits(request: IncomingMessage): boolean {
    return this.#waiting.has(request)
  }

  /** The body is wanted now. */
  proceed(request: IncomingMessage): void {
    this.#waiting.get(request)?.writeContinue()
    this.#waiting.delete(request)
  }
}
