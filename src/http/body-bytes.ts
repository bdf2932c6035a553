/** Reads a request's body whole, up to a limit that may change while the server runs. */
import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'

/** `limits.body` was passed: fastify's own way of saying so. */
class TooLarge extends Error {
  readonly statusCode = 413
}

/** The client broke off before its body was whole. */
class BrokenOff extends Error {
  readonly statusCode = 400
}

/**
 * @param limit  bytes
 * @param wanted  called when it is about to be read
 * @param done    called once: with `TooLarge` as soon as the length is known, be it announced or come, with `BrokenOff`
 *   when its connection closes, else with the whole of it
 */
export function wholeBody(
  request: FastifyRequest,
  payload: IncomingMessage,
  limit: number,
  wanted: () => void,
  done: (error: Error | null, body?: Buffer) => void,
): void {
  const announced = Number(request.headers['content-length'] ?? 0)
  if (announced > limit) {
    done(new TooLarge(`announced ${announced} bytes`))
    return
  }
  wanted()
  const chunks: Buffer[] = []
  let length = 0
  let over = false
  const ends = (error: Error | null, body?: Buffer): void => {
    payload.off('data', data)
    payload.off('end', end)
    payload.off('close', close)
    if (over) return
    over = true
    done(error, body)
  }
  const data = (chunk: Buffer): void => {
    length += chunk.length
    chunks.push(chunk)
    if (length <= limit) return
    payload.pause()
    ends(new TooLarge(`${length} bytes and more`))
  }
  const end = (): void => ends(null, chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks))
  const close = (): void => ends(new BrokenOff(`after ${length} bytes`))
  payload.on('data', data)
  payload.on('end', end)
  payload.on('close', close)
  payload.on('error', close)
}
