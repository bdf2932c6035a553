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
 * @throws TooLarge as soon as the length is known: what was announced, or what came
 */
export function wholeBody(
  request: FastifyRequest,
  payload: IncomingMessage,
  limit: number,
  wanted: () => void,
): Promise<Buffer> {
  const announced = Number(request.headers['content-length'] ?? 0)
  return new Promise((resolve, reject) => {
    if (announced > limit) {
      reject(new TooLarge(`announced ${announced} bytes`))
      return
    }
    wanted()
    const chunks: Buffer[] = []
    let length = 0
    const done = (): void => {
      payload.off('data', data)
      payload.off('end', end)
      payload.off('close', close)
    }
    const data = (chunk: Buffer): void => {
      length += chunk.length
      chunks.push(chunk)
      if (length <= limit) return
      done()
      payload.pause()
      reject(new TooLarge(`${length} bytes and more`))
    }
    const end = (): void => {
      done()
      resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks))
    }
    const close = (): void => {
      done()
      reject(new BrokenOff(`after ${length} bytes`))
    }
    payload.on('data', data)
    payload.on('end', end)
    payload.on('close', close)
    payload.on('error', close)
  })
}
