/** A scripted OpenAI upstream on a loopback socket, for the player's tests. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

export interface Received {
  readonly path: string
  readonly headers: IncomingMessage['headers']
  readonly body: string
  /** performance.now() when the body was complete. */
  readonly at: number
}

export interface Scripted {
  readonly url: string
  readonly received: readonly Received[]
  /** Answers that run now, and the most that ever ran at once. */
  readonly open: { now: number; most: number }
  close(): Promise<void>
}

export type Script = (response: ServerResponse, request: Received, index: number) => unknown

/** Starts it on a free port; `GET /v1/models` names `tiny`, all else is up to the script. */
export async function scripted(script: Script): Promise<Scripted> {
  const received: Received[] = []
  const open = { now: 0, most: 0 }
  const server = createServer(async (request, response) => {
    if (request.method === 'GET') {
      response.setHeader('content-type', 'application/json')
      response.end('{"object":"list","data":[{"id":"tiny","object":"model"}]}')
      return
    }
    let body = ''
    request.setEncoding('utf8')
    for await (const part of request) body += part
    const index = received.push({
      path: request.url ?? '',
      headers: request.headers,
      body,
      at: performance.now(),
    })
    open.most = Math.max(open.most, ++open.now)
    response.once('close', () => open.now--)
    await script(response, received[index - 1] as Received, index - 1)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    received,
    open,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

export const delta = (value: object, finish: string | null = null): string =>
  JSON.stringify({
    object: 'chat.completion.chunk',
    choices: [{ index: 0, delta: value, finish_reason: finish }],
  })

export const usage = (tokens: number): string =>
  JSON.stringify({
    object: 'chat.completion.chunk',
    choices: [],
    usage: {
      prompt_tokens: 1,
      completion_tokens: tokens,
      prompt_tokens_details: { cached_tokens: 64 },
    },
  })

/**
 * Sends events as a stream: a number waits that many ms, a text is one event's data. Does not end it.
 * @returns performance.now() as each event was written
 */
export async function events(
  response: ServerResponse,
  steps: readonly (number | string)[],
  headers: Record<string, string> = {},
): Promise<number[]> {
  const written: number[] = []
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', ...headers })
  response.flushHeaders()
  for (const step of steps) {
    if (typeof step === 'number') await sleep(step)
    else {
      written.push(performance.now())
      response.write(`data: ${step}\n\n`)
    }
  }
  return written
}

/** A whole answer of three tokens after `waitMs`. */
export async function answer(response: ServerResponse, waitMs = 0): Promise<void> {
  await events(response, [
    waitMs,
    delta({ content: 'a' }),
    delta({ content: 'b' }),
    delta({ content: 'c' }, 'stop'),
    '[DONE]',
  ])
  response.end()
}
