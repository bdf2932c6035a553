/** Clients that do not read: the upstream waits, memory is bounded, and the stall limit ends it. */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { ask, body } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, USAGE } from '../fixtures/events.js'
import { live, MiB } from '../fixtures/memory.js'
import { HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

/** Fails the test on whatever would have ended the process. */
function noFaults(t: Test, weir: TestWeir): void {
  t.same(
    weir.logs.filter(line => Number(line['level']) >= 50),
    [],
    'no fault of the router’s own',
  )
}

/** Sends a request for a stream, and then never reads. */
async function askAndNeverRead(t: Test, port: number, id: string): Promise<Socket> {
  const payload = body()
  const socket = connect({ port, host: '127.0.0.1' })
  socket.on('error', () => undefined)
  t.teardown(() => socket.destroy())
  await new Promise(resolve => socket.once('connect', resolve))
  socket.pause()
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nx-script: flood\r\nx-request-id: ${id}\r\nContent-Length: ${payload.length}\r\n\r\n${payload}`,
  )
  return socket
}

/** One upstream that floods whom it is told to, and streams at 20 ms a token otherwise; bytes each flood got rid of. */
async function flooding(t: Test) {
  const piece = Buffer.from(TOK('x'.repeat(1000)).repeat(64))
  const flooded = new Map<number, number>()
  const upstream = await startUpstream(t, async function* ({ headers, index }): AsyncIterable<Step> {
    yield HDR
    if (headers['x-script'] !== 'flood') {
      yield ROLE
      for (let i = 0; i < 40; i++) {
        yield { wait: 20 }
        yield TOK('x')
      }
      yield FIN + USAGE(5, 40) + DONE
      yield 'EOF'
      return
    }
    // 200 MiB, as fast as they are taken.
    for (let sent = 0; sent < 200 * MiB; sent += piece.length) {
      flooded.set(index, sent)
      yield piece
    }
  })
  return { upstream, flooded, piece }
}

t.test('who never reads makes the upstream wait, and is let go after the stall limit', async t => {
  const { upstream, flooded } = await flooding(t)
  const weir = await startTestWeir(t, configData([upstream.url], { timeouts: { stall: '1500ms' } }))
  await askAndNeverRead(t, weir.port, 'idle')
  await weir.until('the flood begins', () => (flooded.get(0) ?? 0) > 0)
  let sent = -1
  while (flooded.get(0) !== sent) {
    sent = flooded.get(0) ?? 0
    await sleep(200)
  }
  t.equal(upstream.running, 1, 'the upstream has to wait')
  t.ok(sent < 40 * MiB, `${(sent / MiB).toFixed(1)} MiB of 200 were taken, by the system’s own buffers`)

  const log = await weir.requestLog('idle')
  t.match(log, { verdict: 'good', ending: 'clientLeft', detail: 'the client stopped reading' })
  await weir.until('the upstream is let go', () => upstream.sockets === 0)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'upstream_error' }), 0)
  t.equal(await weir.metric('weir_replica_up'), 1)
  noFaults(t, weir)
  await weir.atRest()
})

t.test('who does not read the end of its answer is let go too', async t => {
  const { upstream } = await flooding(t)
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { timeouts: { stall: '700ms', total: '500ms' } }),
  )
  const socket = await askAndNeverRead(t, weir.port, 'idle')
  t.match(await weir.requestLog('idle'), { verdict: 'timeout', code: 'weir_total_timeout' })
  const start = performance.now()
  // Resolves when the last answer is out or its connection is closed.
  await weir.weir.drain(10_000)
  const ms = performance.now() - start
  t.ok(ms < 5000, `let go ${ms.toFixed(0)} ms after Weir had written the end`)
  t.notOk(socket.destroyed, 'by Weir')
  await weir.atRest()
})

t.test(
  'who reads again after a pause gets all of it, and the pause is not taken for the server’s',
  async t => {
    const piece = TOK('x'.repeat(1000)).repeat(64)
    const pieces = 300
    const upstream = await startUpstream(t, function* () {
      yield HDR
      for (let i = 0; i < pieces; i++) yield piece
      yield FIN + USAGE(5, 64 * pieces) + DONE
      yield 'EOF'
    })
    const weir = await startTestWeir(t, configData([upstream.url], { timeouts: { stall: '5s' } }))
    const socket = await askAndNeverRead(t, weir.port, 'slow')
    await sleep(700)
    let bytes = 0
    let end = ''
    socket.on('data', read => {
      bytes += read.length
      end = (end + read.toString('latin1')).slice(-200)
    })
    socket.resume()
    const log = await weir.requestLog('slow')
    await weir.until('the end is here', () => end.endsWith('0\r\n\r\n'))
    t.ok(bytes > pieces * piece.length, `${bytes} bytes`)
    t.ok(end.includes('data: [DONE]'))
    t.match(log, {
      ending: 'complete',
      outputTokens: 64 * pieces,
      tpotMs: undefined,
      longestGapMs: undefined,
    })
    t.equal(await weir.metric('weir_tpot_seconds_count'), 0)
    await weir.atRest()
  },
)

t.test('50 clients that never read cost little, and 20 that do keep their pace', async t => {
  const { upstream, flooded } = await flooding(t)
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { timeouts: { stall: '4s' } }, { max_in_flight: 1000 }),
  )
  /** 20 streams at once: the median of their paces, ms per token. */
  const pace = async (round: string): Promise<number> => {
    const paces = Array.from({ length: 20 }, async (_, i) => {
      const id = `${round}-${i}`
      const answer = await ask(weir.url, { headers: { 'x-request-id': id } }).answer
      t.equal(answer.text, ROLE + TOK('x').repeat(40) + FIN + DONE)
      return Number((await weir.requestLog(id))['tpotMs'])
    })
    return (await Promise.all(paces)).sort((a, b) => a - b)[10] ?? Number.NaN
  }
  const alone = await pace('alone')
  const before = live()
  await Promise.all(Array.from({ length: 50 }, (_, i) => askAndNeverRead(t, weir.port, `idle-${i}`)))
  let sent = -1
  const total = () => [...flooded.values()].reduce((sum, bytes) => sum + bytes, 0)
  while (flooded.size < 50 || total() !== sent) {
    sent = total()
    await sleep(100)
  }
  const beside = await pace('beside')
  const grown = live() - before
  t.ok(
    grown < 50 * MiB,
    `live memory grew by ${(grown / MiB).toFixed(1)} MiB, of Weir, the upstream and the clients`,
  )
  t.ok(beside < 2 * alone + 50, `TPOT ${beside} ms, and ${alone} ms without them`)
  for (let i = 0; i < 50; i++) t.equal((await weir.requestLog(`idle-${i}`))['ending'], 'clientLeft')
  await weir.until('all upstreams are let go', () => upstream.running === 0)
  noFaults(t, weir)
  await weir.atRest()
})

t.test('an answer that is no stream waits for its reader too', async t => {
  const answer = JSON_ANSWER(5, 7).replace('hello', 'x'.repeat(24 * MiB))
  const upstream = await startUpstream(t, function* () {
    yield WHOLE(200, answer)
  })
  const weir = await startTestWeir(t, configData([upstream.url], { timeouts: { stall: '300ms' } }))
  const payload = body({ stream: false })
  const socket = connect(weir.port, '127.0.0.1')
  socket.on('error', () => undefined)
  await new Promise(resolve => socket.once('connect', resolve))
  socket.pause()
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nx-request-id: idle\r\nContent-Length: ${payload.length}\r\n\r\n${payload}`,
  )
  t.match(await weir.requestLog('idle'), { ending: 'clientLeft', verdict: 'client_left' })
  await weir.until('the upstream is let go', () => upstream.sockets === 0)
  socket.destroy()
  const whole = await ask(weir.url, { body: payload }).answer
  t.ok(whole.whole)
  t.equal(whole.text.length, answer.length)
  await weir.atRest()
})
