/** Clients that leave, in every phase and in numbers, and that stay though their request is read. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { ask, body } from '../fixtures/client.js'
import { DONE, FIN, ROLE, TOK, USAGE } from '../fixtures/events.js'
import { live, MiB } from '../fixtures/memory.js'
import { stream } from '../fixtures/stage.js'
import { HDR, type Step, startUpstream } from '../fixtures/upstream.js'
import { AGENT, configData, PATIENT, startTestWeir, type TestWeir } from '../fixtures/weir.js'

const ANSWER = ROLE + TOK('a') + TOK('b') + FIN + DONE

const quick = () => stream(ROLE, TOK('a'), TOK('b'), FIN, USAGE(5, 2), DONE)

/** How long `probe` takes to hold, ms. */
async function took(weir: TestWeir, what: string, probe: () => boolean): Promise<number> {
  const start = performance.now()
  await weir.until(what, probe)
  return performance.now() - start
}

/** Fails the test on whatever would have ended the process. */
function noFaults(t: Test, weir: TestWeir): void {
  t.same(
    weir.logs.filter(line => Number(line['level']) >= 50),
    [],
    'no fault of the router’s own',
  )
}

t.test('a client that leaves frees its upstream and its slot at once, in every phase', async t => {
  const phases: Record<string, { script: () => Iterable<Step>; bytes: number; body?: string }> = {
    'before the head': {
      *script() {
        yield 'HOLD'
      },
      bytes: 0,
    },
    'after the head': {
      *script() {
        yield HDR
        yield 'HOLD'
      },
      bytes: 0,
    },
    'before the first token': {
      *script() {
        yield HDR
        for (;;) {
          yield `: ping\n\n${ROLE}`
          yield { wait: 20 }
        }
      },
      bytes: 0,
    },
    'in the stream': {
      *script() {
        yield HDR
        for (;;) {
          yield TOK('x')
          yield { wait: 20 }
        }
      },
      bytes: 2 * TOK('x').length,
    },
    'in an event': {
      *script() {
        yield HDR
        yield TOK('x') + TOK('y').slice(0, 30)
        yield 'HOLD'
      },
      bytes: TOK('x').length,
    },
    'after the marker': {
      *script() {
        yield HDR
        yield ANSWER
        yield 'HOLD'
      },
      bytes: ANSWER.length,
    },
    'before an answer that is no stream': {
      *script() {
        yield 'HOLD'
      },
      bytes: 0,
      body: body({ stream: false }),
    },
    'in an answer that is no stream': {
      *script() {
        yield 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"id":'
        yield 'HOLD'
      },
      bytes: 6,
      body: body({ stream: false }),
    },
  }
  const upstream = await startUpstream(t, ({ headers }) => phases[headers['x-script'] ?? '']!.script())
  const weir = await startTestWeir(t, configData([upstream.url]))
  for (const [phase, { bytes, ...rest }] of Object.entries(phases)) {
    const sent = upstream.requests.length
    const id = phase.replaceAll(' ', '-')
    const asked = ask(weir.url, {
      headers: { 'x-script': phase, 'x-request-id': id },
      ...(rest.body !== undefined && { body: rest.body }),
    })
    await weir.until('the upstream has it', () => upstream.requests.length > sent)
    await asked.received(bytes)
    await sleep(60)
    asked.leave()
    const ms = await took(weir, `${phase}: the upstream’s connection is closed`, () => upstream.sockets === 0)
    t.ok(ms < 500, `${phase}: closed after ${ms.toFixed(0)} ms`)
    const log = await weir.requestLog(id)
    if (phase === 'after the marker') t.match(log, { verdict: 'good', ending: 'complete' }, phase)
    else t.match(log, { verdict: 'client_left', ending: 'clientLeft' }, phase)
    t.equal(await weir.metric('weir_in_flight'), 0, phase)
    t.equal(upstream.requests.length, sent + 1, `${phase}: and nobody else is asked`)
  }
  t.equal(await weir.metric('weir_requests_total', { verdict: 'upstream_error' }), 0, 'nobody’s fault')
  noFaults(t, weir)
  await weir.atRest()
})

t.test('those who leave the queue are never sent, and those behind them do not wait for them', async t => {
  let release: (() => void) | undefined
  const held = new Promise<void>(resolve => {
    release = resolve
  })
  const upstream = await startUpstream(t, async function* ({ index }) {
    if (index === 0) await held
    yield* quick()
  })
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: { agent: AGENT } }, { max_in_flight: 1 }),
  )
  const running = ask(weir.url, { headers: { 'x-request-id': 'running' } })
  await weir.until('one runs', () => upstream.running === 1)
  const waiting = Array.from({ length: 20 }, (_, i) =>
    ask(weir.url, { headers: { 'x-request-id': `wait-${i}` } }),
  )
  await weir.until('20 wait', async () => (await weir.metric('weir_queue_depth')) === 20)
  await sleep(100)
  const leavers = waiting.filter((_, i) => i % 4 !== 0)
  for (const leaver of leavers) leaver.leave()
  const start = performance.now()
  await weir.until('15 are gone', async () => (await weir.metric('weir_queue_depth')) === 5)
  t.ok(performance.now() - start < 500, 'the queue is shorter at once')
  t.equal(upstream.requests.length, 1)
  release?.()
  for (const one of [running, ...waiting.filter((_, i) => i % 4 === 0)]) {
    t.equal((await one.answer).text, ANSWER)
  }
  t.equal(upstream.requests.length, 6)
  const logs = await weir.requestLogs(21)
  const left = logs.filter(log => log['verdict'] === 'client_left')
  t.equal(left.length, 15)
  for (const log of left) t.ok(Number(log['queueMs']) >= 95, `waited ${log['queueMs']} ms`)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'good' }), 6)
  t.equal(await weir.metric('weir_requests_total'), 21)
  await weir.atRest()
})

t.test(
  'a client that stays is served, however small or large its body; if it leaves, that is seen',
  async t => {
    const upstream = await startUpstream(t, function* () {
      yield { wait: 300 }
      yield* quick()
    })
    const weir = await startTestWeir(t, configData([upstream.url], { classes: PATIENT }))
    // The request object of Node closes as soon as a body is read, which is no sign of anybody leaving.
    const bodies = {
      small: '{"model":"m","stream":true}',
      large: body({ messages: [{ role: 'user', content: 'x'.repeat(2 * 1024 * 1024) }] }),
    }
    for (const [name, payload] of Object.entries(bodies)) {
      const answer = await ask(weir.url, { body: payload, headers: { 'x-request-id': `${name}-stays` } })
        .answer
      t.equal(answer.text, ANSWER, name)
      t.ok(answer.headAt >= 295, name)
      t.match(await weir.requestLog(`${name}-stays`), { verdict: 'good', status: 200 }, name)
      t.ok(
        upstream.requests.at(-1)!.body.length > payload.length,
        'all of it arrived, and the question for usage',
      )
    }
    for (const [name, payload] of Object.entries(bodies)) {
      const sent = upstream.requests.length
      const asked = ask(weir.url, { body: payload, headers: { 'x-request-id': `${name}-leaves` } })
      await weir.until('the upstream has it', () => upstream.requests.length > sent)
      await sleep(60)
      const closed = upstream.closes.length
      asked.leave()
      const left = performance.now()
      const log = await weir.requestLog(`${name}-leaves`)
      t.match(log, { verdict: 'client_left', status: undefined, ttftMs: undefined }, name)
      await weir.until('the script noticed', () => upstream.closes.length > closed)
      t.ok(performance.now() - left < 500, name)
    }
    await weir.atRest()
  },
)

t.test('a client that breaks off in its own body is counted, and asks nobody', async t => {
  const upstream = await startUpstream(t, quick)
  const weir = await startTestWeir(t, configData([upstream.url]))
  const socket = connect(weir.port, '127.0.0.1')
  await new Promise(resolve => socket.once('connect', resolve))
  socket.write(
    'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"model"',
  )
  await sleep(60)
  socket.destroy()
  await weir.until('it is counted', async () => (await weir.metric('weir_requests_total')) === 1)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_left' }), 1)
  t.equal(upstream.requests.length, 0)
  t.equal((await ask(weir.url).answer).text, ANSWER)
  await weir.atRest()
})

t.test('300 clients that leave before the upstream answers leave nothing behind', async t => {
  const upstream = await startUpstream(t, function* () {
    yield { wait: 25 }
    yield* quick()
  })
  const weir = await startTestWeir(t, configData([upstream.url], { classes: PATIENT }, { max_in_flight: 4 }))
  const leaveOne = async (i: number): Promise<void> => {
    const asked = ask(weir.url)
    await sleep(1 + (i % 12))
    asked.leave()
  }
  for (let i = 0; i < 30; i++) await leaveOne(i)
  await weir.atRest()
  const before = live()
  let most = 0
  for (let i = 0; i < 300; i++) {
    await leaveOne(i)
    most = Math.max(most, upstream.sockets)
  }
  t.ok(most <= 8, `at most ${most} upstream sockets at a time`)
  const start = performance.now()
  for (let i = 0; i < 10; i++) {
    const answer = await ask(weir.url, { headers: { 'x-request-id': `normal-${i}` } }).answer
    t.equal(answer.text, ANSWER)
  }
  t.ok(performance.now() - start < 10 * 150, 'at normal speed')
  await weir.atRest()
  t.ok(upstream.sockets <= 4, `${upstream.sockets} upstream sockets at rest`)
  const counted = await weir.metric('weir_requests_total')
  t.equal(
    counted,
    (await weir.metric('weir_requests_total', { verdict: 'client_left' })) +
      (await weir.metric('weir_requests_total', { verdict: 'good' })),
  )
  // 300 lines of log are kept by this test itself.
  const grown = live() - before
  t.ok(grown < 3 * MiB, `live memory grew by ${(grown / MiB).toFixed(1)} MiB`)
  noFaults(t, weir)
})
