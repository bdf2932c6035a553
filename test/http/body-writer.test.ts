/** Bodies written to clients' sockets, by descriptor and not: in order, to the byte, and to nobody else. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { BodyWriter } from '../../src/http/body-writer.js'

type Handler = (response: ServerResponse, request: IncomingMessage) => void

async function serve(t: Test, handler: Handler): Promise<number> {
  const server = createServer((request, response) => handler(response, request))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return (server.address() as AddressInfo).port
}

async function client(t: Test, port: number, version = '1.1', requests = 1): Promise<Socket> {
  const socket = connect(port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  socket.on('error', () => undefined)
  await once(socket, 'connect')
  socket.write(`GET / HTTP/${version}\r\nHost: a\r\n\r\n`.repeat(requests))
  return socket
}

/** Everything that comes until the other side ends, or until `end` has come. */
async function all(socket: Socket, end = '0\r\n\r\n'): Promise<string> {
  let text = ''
  socket.setEncoding('latin1')
  for await (const part of socket) {
    text += part
    if (text.endsWith(end)) break
  }
  return text
}

/** The body of a chunked answer, and how many chunks it came in. */
function unframed(answer: string): { readonly body: string; readonly chunks: number } {
  let at = answer.indexOf('\r\n\r\n') + 4
  let body = ''
  for (let chunks = 0; ; chunks++) {
    const line = answer.indexOf('\r\n', at)
    const size = Number.parseInt(answer.slice(at, line), 16)
    if (size === 0) return { body, chunks }
    body += answer.slice(line + 2, line + 2 + size)
    if (answer.slice(line + 2 + size, line + 4 + size) !== '\r\n') throw new Error(`a bad frame at ${at}`)
    at = line + 4 + size
  }
}

function fdOf(response: ServerResponse): number {
  return (response.socket as unknown as { readonly _handle: { readonly fd: number } })._handle.fd
}

const letters = (length: number, seed: number): Buffer =>
  Buffer.from(Array.from({ length }, (_, i) => 0x61 + ((i * 7 + seed * 13 + (i >> 8)) % 26)))

for (const directly of [true, false]) {
  const way = directly ? 'by descriptor' : 'by socket'
  for (const version of ['1.1', '1.0']) {
    t.test(`${way}: a slow HTTP/${version} client gets every byte once, in order`, async t => {
      const pieces = Array.from({ length: 300 }, (_, i) =>
        letters([1, 9, 200, 5000, 70_000, 200_000][i % 6]!, i),
      )
      let waited = 0
      const port = await serve(t, response => {
        let next = 0
        const go = (): void => {
          while (next < pieces.length) {
            const piece = pieces[next++]!
            const middle = piece.length >> 1
            const slab = Buffer.from(piece)
            const flows = writer.write([slab.subarray(0, middle), slab.subarray(middle)])
            // The bytes are somebody else's at once.
            slab.fill(0x21)
            if (!flows) {
              waited++
              return
            }
          }
          response.end()
        }
        response.writeHead(200)
        response.flushHeaders()
        const writer = new BodyWriter(response, directly, go)
        go()
      })
      const socket = await client(t, port, version)
      socket.pause()
      await sleep(100)
      const answer = await all(socket, version === '1.1' ? '\r\n0\r\n\r\n' : undefined)
      const body = version === '1.1' ? unframed(answer).body : answer.slice(answer.indexOf('\r\n\r\n') + 4)
      t.ok(body === Buffer.concat(pieces).toString(), `${body.length} bytes, as they were written`)
      t.ok(waited > 0, `the writer had to wait ${waited} times`)
    })
  }

  t.test(`${way}: an answer whose turn has not come waits for the one before it`, async t => {
    const responses: ServerResponse[] = []
    const port = await serve(t, response => {
      responses.push(response)
      response.writeHead(200)
      response.flushHeaders()
      if (responses.length < 2) return
      const [first, second] = responses.map(one => new BodyWriter(one, directly, () => undefined))
      second?.write([Buffer.from('second')])
      first?.write([Buffer.from('first')])
      responses[0]?.end()
      setImmediate(() => {
        second?.write([Buffer.from(', later')])
        responses[1]?.end()
      })
    })
    const socket = await client(t, port, '1.1', 2)
    const answer = await all(socket, 'later\r\n0\r\n\r\n')
    const second = answer.lastIndexOf('HTTP/1.1 200')
    t.equal(unframed(answer.slice(0, second)).body, 'first')
    t.equal(unframed(answer.slice(second)).body, 'second, later')
  })

  t.test(
    `${way}: nobody gets the bytes of a client that left, not on the same descriptor either`,
    async t => {
      let reused = 0
      let left: { readonly writer: BodyWriter; readonly fd: number } | undefined
      const closed: Promise<unknown>[] = []
      const port = await serve(t, response => {
        response.writeHead(200)
        response.flushHeaders()
        const fd = fdOf(response)
        const writer = new BodyWriter(response, directly, () => undefined)
        if (left === undefined) {
          left = { writer, fd }
          closed.push(once(response, 'close'))
          return
        }
        if (left.fd === fd) reused++
        left.writer.write([Buffer.from('foreign')])
        writer.write([Buffer.from('own')])
        left.writer.write([Buffer.from('foreign')])
        left = undefined
        response.end()
      })
      for (let round = 0; round < 20; round++) {
        const gone = await client(t, port)
        await once(gone, 'readable')
        if (round % 2 === 0) gone.destroy()
        else gone.resetAndDestroy()
        await closed.pop()
        t.equal(unframed(await all(await client(t, port))).body, 'own')
      }
      t.ok(reused > 0, `the descriptor was the same ${reused} times of 20`)
    },
  )

  t.test(`${way}: a connection that is no plain socket is written to by Node`, async t => {
    let got = ''
    const ended = new Promise<void>(resolve => {
      const duplex = new Duplex({
        read() {},
        write(chunk, _, done) {
          got += String(chunk)
          if (got.endsWith('0\r\n\r\n')) resolve()
          done()
        },
      })
      const server = createServer((_, response) => {
        response.writeHead(200)
        response.flushHeaders()
        const writer = new BodyWriter(response, directly, () => undefined)
        writer.write([Buffer.from('a'), Buffer.from('b')])
        response.end()
      })
      server.emit('connection', duplex)
      duplex.push('GET / HTTP/1.1\r\nHost: a\r\n\r\n')
    })
    await ended
    t.equal(unframed(got).body, 'ab')
  })
}
