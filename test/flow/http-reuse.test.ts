/** Idle connections that the upstream closes just as a request goes out on them. */
import { createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { LAX } from '../fixtures/before.js'
import { ask } from '../fixtures/client.js'
import { TOLD } from '../fixtures/events.js'
import { HDR, startUpstream } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

const IDLE_MS = 100

/** Answers, and closes each connection exactly so long after its answer, without a word. */
async function closer(t: { teardown(fn: () => unknown): unknown }, how: (socket: Socket) => void) {
  const counts = { connections: 0, requests: 0 }
  const sockets = new Set<Socket>()
  const server = createServer({ noDelay: true }, socket => {
    sockets.add(socket)
    socket.on('error', () => undefined)
    socket.on('close', () => sockets.delete(socket))
    let timer: NodeJS.Timeout | undefined
    let read = ''
    let asked = false
    socket.on('data', bytes => {
      read += bytes
      const [, length] = /content-length: (\d+)/i.exec(read) ?? []
      const head = read.indexOf('\r\n\r\n')
      if (head < 0 || read.length < head + 4 + Number(length ?? 0)) return
      // Weir asks engines how they are, on connections that are not these.
      if (read.startsWith('GET ')) {
        socket.end('HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
        return
      }
      read = ''
      if (!socket.writable) return
      if (!asked) counts.connections++
      asked = true
      counts.requests++
      clearTimeout(timer)
      const text = TOLD('a')
      socket.write(`${HDR}${text.length.toString(16)}\r\n${text}\r\n0\r\n\r\n`)
      timer = setTimeout(() => how(socket), IDLE_MS)
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return { url: `http://127.0.0.1:${address.port}`, counts }
}

t.test('no client sees that its upstream closes idle connections just then', async t => {
  const ways: Record<string, (socket: Socket) => void> = {
    closed: socket => socket.destroy(),
    ended: socket => socket.end(),
    reset: socket => socket.resetAndDestroy(),
  }
  await Promise.all(
    Object.entries(ways).map(async ([name, how]) => {
      const upstream = await closer(t, how)
      const weir = await startTestWeir(t, configData([upstream.url], { classes: { chat: LAX } }))
      const statuses: number[] = []
      for (let i = 0; i < 60; i++) {
        const answer = await ask(weir.url).answer
        statuses.push(answer.text.endsWith('data: [DONE]\n\n') ? answer.status : 0)
        // A millisecond before, at, and after the moment.
        await sleep(IDLE_MS - 3 + (i % 5))
      }
      t.same([...new Set(statuses)], [200], name)
      const repeated = await weir.metric('weir_reroute_total', { reason: 'reused_socket' })
      t.equal(upstream.counts.requests, 60, `${name}: each was answered once, ${repeated} were sent anew`)
      t.ok(upstream.counts.connections > 1 && upstream.counts.connections <= 60 + repeated)
      t.equal(await weir.metric('weir_requests_total', { verdict: 'good' }), 60)
      await weir.atRest()
    }),
  )
})

t.test('a connection is not used for longer than its upstream says', async t => {
  const start = async (hint: string) => {
    const upstream = await startUpstream(t, () => [
      HDR.replace('\r\n\r\n', `\r\n${hint}\r\n`),
      TOLD('a'),
      'EOF',
    ])
    const weir = await startTestWeir(t, configData([upstream.url], { classes: { chat: LAX } }))
    await ask(weir.url).answer
    await sleep(1500)
    await ask(weir.url).answer
    return upstream.requests.map(({ onSocket }) => onSocket)
  }
  const [silent, brief, over] = await Promise.all([
    start(''),
    start('Keep-Alive: timeout=3\r\n'),
    start('Connection: close\r\n'),
  ])
  t.same(silent, [0, 1], 'without a hint it is used again')
  t.same(brief, [0, 0], 'well before the hint it is given up')
  t.same(over, [0, 0])
})
