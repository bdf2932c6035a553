/** Shutting down: nothing new, what is open ends whole, and nobody is dropped without a word. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { ask, body } from '../fixtures/client.js'
import { DONE, FIN, ROLE, TOK, TOLD } from '../fixtures/events.js'
import { HDR, type Step, startUpstream } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir } from '../fixtures/weir.js'

/** Tokens of one stream that takes this long, and what a client is to get of it. */
const LONG = { classes: { agent: AGENT } }

async function* slowly(ms: number): AsyncGenerator<Step> {
  yield HDR
  yield ROLE
  for (let i = 0; i < 10; i++) {
    yield TOK(`${i}`)
    await sleep(ms / 10)
  }
  yield FIN
  yield DONE
  yield 'EOF'
}
const SLOWLY = [ROLE, ...Array.from({ length: 10 }, (_, i) => TOK(`${i}`)), FIN, DONE].join('')

const statusOf = async (url: string): Promise<number> => (await fetch(url)).status

t.test('readiness turns red, new requests are refused, and the open streams end whole', async t => {
  const upstream = await startUpstream(t, () => slowly(500))
  const weir = await startTestWeir(t, configData([upstream.url]))
  const open = Array.from({ length: 20 }, () => ask(weir.url))
  await Promise.all(open.map(one => one.received(1)))
  t.equal(await statusOf(`${weir.admin}/readyz`), 200)

  const drained = weir.weir.drain(30_000)
  t.equal(await statusOf(`${weir.admin}/readyz`), 503)
  t.equal(await statusOf(`${weir.admin}/livez`), 200)
  const refused = await ask(weir.url).answer
  t.equal(refused.status, 503)
  t.match(JSON.parse(refused.text), { error: { code: 'weir_draining', message: /shutting down/ } })
  t.match(refused.headers['retry-after'], /^[1-9]\d*$/)
  t.equal(refused.headers.connection, 'close', 'the client is told to come back on another connection')

  const answers = await Promise.all(open.map(one => one.answer))
  await drained
  t.ok(answers.every(answer => answer.whole && answer.text === SLOWLY))
  t.equal(upstream.requests.length, 20, 'the refused one never reached the upstream')
  t.equal(await weir.metric('weir_requests_total', { verdict: 'shed' }), 1)
  await weir.atRest()
})

t.test('a stream whose upstream keeps its socket open after [DONE] still ends whole', async t => {
  const upstream = await startUpstream(t, () => [HDR, TOLD('a', 'b'), 'HOLD'])
  const weir = await startTestWeir(t, configData([upstream.url]))
  const one = ask(weir.url)
  await one.received(1)
  await weir.requestLogs(1)
  await weir.weir.drain(30_000)
  await weir.weir.close()
  const answer = await one.answer
  t.ok(answer.whole, 'the chunked body has its end')
  t.ok(answer.text.endsWith(DONE))
})

t.test('an answer that its client has not read yet is written out before the ports close', async t => {
  const big = 'x'.repeat(4 << 20)
  const upstream = await startUpstream(t, () => [HDR, TOLD('a', big), 'EOF'])
  const weir = await startTestWeir(t, configData([upstream.url]))
  const socket = connect(weir.port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  const payload = body()
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: ${payload.length}\r\n\r\n${payload}`,
  )
  await new Promise<void>(resolve => socket.once('data', () => resolve()))
  socket.pause()
  await sleep(100)
  const stopped = weir.weir.drain(10_000).then(() => weir.weir.close())
  await sleep(100)
  let got = ''
  socket.on('data', bytes => {
    got += bytes.toString('latin1')
  })
  socket.resume()
  await stopped
  await new Promise<void>(resolve => (socket.closed ? resolve() : socket.once('close', () => resolve())))
  t.ok(got.endsWith('0\r\n\r\n'), 'with the last chunk')
})

t.test('a stream past the grace is told so in band, and ends', async t => {
  const upstream = await startUpstream(t, () => [HDR, ROLE, TOK('a'), 'HOLD'])
  const weir = await startTestWeir(t, configData([upstream.url]))
  const one = ask(weir.url)
  await one.received(ROLE.length + TOK('a').length)
  const begin = performance.now()
  await weir.weir.drain(200)
  t.ok(performance.now() - begin >= 150, 'it had its grace')
  const answer = await one.answer
  t.equal(answer.status, 200)
  t.ok(answer.whole)
  const rest = answer.text.slice((ROLE + TOK('a')).length)
  t.match(JSON.parse(rest.replace(/^data: /, '')), {
    error: { code: 'weir_draining', message: /shutting down/ },
  })
  t.notMatch(answer.text, '[DONE]')
  await weir.until('the upstream is let go', () => upstream.running === 0)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'truncated' }), 1)
  await weir.atRest()
})

t.test('one that waits for its first token past the grace gets a true status', async t => {
  const upstream = await startUpstream(t, () => [HDR, ROLE, 'HOLD'])
  const weir = await startTestWeir(t, configData([upstream.url]))
  const one = ask(weir.url)
  await weir.until('it is dispatched', () => upstream.running === 1)
  await weir.weir.drain(100)
  const answer = await one.answer
  t.equal(answer.status, 503)
  t.match(JSON.parse(answer.text), { error: { code: 'weir_draining' } })
  t.match(answer.headers['retry-after'], /^[1-9]\d*$/)
  await weir.atRest()
})

t.test('a client that does not read cannot hold the process beyond the grace', async t => {
  const upstream = await startUpstream(t, function* () {
    yield HDR
    for (;;) yield TOK('x'.repeat(64 << 10))
  })
  const weir = await startTestWeir(t, configData([upstream.url]))
  const socket = connect(weir.port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  const payload = body()
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: ${payload.length}\r\n\r\n${payload}`,
  )
  await new Promise<void>(resolve => socket.once('data', () => resolve()))
  socket.pause()
  await sleep(200)
  await weir.weir.drain(100)
  t.pass('it ended')
  await weir.weir.close()
})

t.test('the queued are served while the grace lasts, and refused when it ends', async t => {
  const upstream = await startUpstream(t, request =>
    request.index < 2 ? slowly(200) : [HDR, ROLE, TOK('a'), 'HOLD'],
  )
  const weir = await startTestWeir(t, configData([upstream.url], LONG, { max_in_flight: 1 }))
  const asked = []
  for (let i = 0; i < 5; i++) {
    asked.push(ask(weir.url))
    await weir.until('in order', async () => (await weir.metric('weir_queue_depth')) === i)
  }
  await weir.weir.drain(1200)
  const [first, second, third, ...rest] = await Promise.all(asked.map(one => one.answer))
  t.equal(first?.text, SLOWLY)
  t.equal(second?.text, SLOWLY, 'served from the queue, in the grace')
  t.equal(second?.headers['x-weir-decision'], 'queued')
  t.match(third?.text, /"code":"weir_draining"/, 'was running at its end')
  for (const answer of rest) {
    t.equal(answer.status, 503)
    t.match(JSON.parse(answer.text), { error: { code: 'weir_draining' } })
  }
  t.equal(upstream.requests.length, 3)
  t.equal(await weir.metric('weir_requests_total'), 5)
  await weir.atRest()
})

t.test('a body that is still on its way when the drain begins gets its answer', async t => {
  const upstream = await startUpstream(t, () => [HDR, TOLD('a'), 'EOF'])
  const weir = await startTestWeir(t, configData([upstream.url], { classes: { chat: CHAT } }))
  const socket = connect(weir.port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  const payload = body()
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: ${payload.length}\r\n\r\n${payload.slice(0, 9)}`,
  )
  await sleep(100)
  const stopped = weir.weir.drain(5000).then(() => weir.weir.close())
  await sleep(100)
  socket.write(payload.slice(9))
  let got = ''
  for await (const bytes of socket) got += bytes
  await stopped
  t.match(got, /^HTTP\/1.1 200 OK/)
  t.ok(got.includes(DONE))
})
