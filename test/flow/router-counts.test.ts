/** Counts that decide: in flight never leaks, a burst never passes its limit, and every arrival has one verdict. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { seededRng } from '../../src/time.js'
import { type Answer, type Asked, ask, body, errorOf, RAW } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD } from '../fixtures/events.js'
import { HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { AGENT, CHAT, configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'
import { samples } from '../metrics/scraped.js'

/** A quick stream with every phase a client can leave in. */
function* quick(): Generator<Step> {
  yield { wait: 10 }
  yield HDR
  yield ROLE
  yield { wait: 10 }
  for (const text of ['a', 'b', 'c']) {
    yield TOK(text)
    yield { wait: 5 }
  }
  yield FIN + DONE
  yield 'EOF'
}

async function openTickets(weir: TestWeir): Promise<unknown> {
  const state: unknown = await (await fetch(`${weir.admin}/api/state`)).json()
  return typeof state === 'object' && state !== null && 'open' in state ? state.open : undefined
}

async function settled(asked: readonly Asked[]): Promise<void> {
  await Promise.allSettled(asked.map(({ answer }) => answer))
}

t.test(
  'clients that leave at any moment give every count back, and the replicas share evenly after',
  async t => {
    const rng = seededRng(29)
    const upstreams = await Promise.all([startUpstream(t, quick), startUpstream(t, quick)])
    const weir = await startTestWeir(
      t,
      configData(
        upstreams.map(({ url }) => url),
        { classes: { chat: CHAT, agent: AGENT }, routes: [{ class: 'chat' }] },
        { max_in_flight: 12 },
      ),
      { level: 'warn' },
    )
    // 20 at a time against 24 places for streams and a queue: some are refused, some wait, most run.
    const left: Asked[] = []
    const leave = async (path: string, count: number): Promise<void> => {
      for (let i = 0; i < count; i++) {
        const one = ask(weir.url, { path })
        left.push(one)
        await sleep(rng.next() * 60)
        one.leave()
      }
    }
    const reset = async (count: number): Promise<void> => {
      for (let i = 0; i < count; i++) {
        const socket = connect(weir.port, '127.0.0.1')
        socket.on('error', () => undefined)
        socket.write(RAW(body()))
        await sleep(rng.next() * 50)
        socket.resetAndDestroy()
      }
    }
    const workers = Array.from({ length: 40 }, (_, i) => {
      return leave(i % 2 === 0 ? '/chat/v1/chat/completions' : '/agent/v1/chat/completions', 10)
    })
    const peak = (async () => {
      let most = 0
      for (let i = 0; i < 8; i++) {
        await sleep(50)
        for (const { name, value } of samples(await weir.metrics())) {
          if (name === 'weir_in_flight') most = Math.max(most, value)
          if (/^weir_(in_flight|queue_depth|replica_outstanding_prefill_tokens)$/.test(name)) {
            t.ok(value >= 0, `${name} is ${value}`)
          }
        }
      }
      return most
    })()
    await Promise.all([...workers, reset(25), reset(25)])
    t.ok((await peak) > 0, 'the gauges moved')
    await settled(left)
    await weir.atRest()
    // A request may be gone before Weir has read it: it is no arrival then, and has no verdict. Others are read late.
    let arrivals = -1
    await weir.until('all are counted', async () => {
      const before = arrivals
      await sleep(200)
      arrivals = await weir.metric('weir_requests_total')
      return arrivals === before
    })
    await weir.atRest()
    t.ok(arrivals > 300 && arrivals <= 450, `${arrivals} arrivals`)
    t.equal(await openTickets(weir), 0)

    const before = upstreams.map(({ requests }) => requests.length)
    const normal = async (): Promise<void> => {
      for (let i = 0; i < 20; i++) {
        const answer = await ask(weir.url).answer
        if (answer.status !== 200 || !answer.text.endsWith(DONE)) throw new Error(answer.text)
      }
    }
    await Promise.all(Array.from({ length: 10 }, normal))
    const shares = upstreams.map(({ requests }, i) => requests.length - (before[i] ?? 0))
    t.equal(
      shares.reduce((a, b) => a + b),
      200,
    )
    for (const share of shares) t.ok(share >= 80 && share <= 120, `${share} of 200`)
    await weir.atRest()
    t.equal(await weir.metric('weir_requests_total'), arrivals + 200)
    await weir.until('no upstream works for nobody', () => upstreams.every(({ running }) => running === 0))
  },
)

t.test(
  'a client that leaves while its connection is made, or while it is queued, is gone at once',
  async t => {
    const upstream = await startUpstream(t, () => [HDR, TOK('a'), 'HOLD'])
    const weir = await startTestWeir(
      t,
      configData([upstream.url], { classes: { agent: AGENT } }, { max_in_flight: 1 }),
    )
    const running = ask(weir.url)
    await running.received(1)
    const queued = Array.from({ length: 20 }, () => ask(weir.url))
    await weir.until('all wait', async () => (await weir.metric('weir_queue_depth')) === 20)
    for (const one of queued.slice(0, 15)) one.leave()
    await weir.until('15 are gone', async () => (await weir.metric('weir_queue_depth')) === 5)
    t.equal(upstream.requests.length, 1)
    await weir.until('each has a line', async () => (await weir.metric('weir_requests_total')) === 15)
    t.equal(await weir.metric('weir_requests_total', { verdict: 'client_left' }), 15)
    const waiting = new Set([running, ...queued.slice(15)])
    for (let served = 1; served <= 6; served++) {
      const next = await Promise.any([...waiting].map(one => one.received(1).then(() => one)))
      t.equal(upstream.requests.length, served)
      waiting.delete(next)
      next.leave()
    }
    await settled([running, ...queued])
    t.equal(upstream.requests.length, 6, 'nobody was sent after having left')
    await weir.atRest()
  },
)

t.test('requests pipelined behind a stream are freed too when their client leaves', async t => {
  const upstream = await startUpstream(t, () => [HDR, TOK('a'), 'HOLD'])
  const weir = await startTestWeir(t, configData([upstream.url]))
  const socket = connect(weir.port, '127.0.0.1')
  socket.write(RAW(body()) + RAW(body()))
  await weir.until('both run', () => upstream.running === 2)
  socket.destroy()
  await weir.until('both are let go', () => upstream.running === 0)
  await weir.atRest()
  t.equal(await weir.metric('weir_requests_total', { verdict: 'client_left' }), 2)
})

t.test('a burst never passes its limit, and all it is refused says when to come again', async t => {
  const upstream = await startUpstream(t, () => [HDR, { wait: 1500 }, TOLD('a', 'b'), 'EOF'])
  const weir = await startTestWeir(t, configData([upstream.url], {}, { max_in_flight: 10 }))
  // On connections that stand, so that all arrive in one tick or two.
  const sockets = await Promise.all(
    Array.from({ length: 200 }, async () => {
      const socket = connect(weir.port, '127.0.0.1')
      await new Promise<void>(resolve => socket.once('connect', () => resolve()))
      return socket
    }),
  )
  const texts = await Promise.all(
    sockets.map(async socket => {
      let text = ''
      socket.write(RAW(body(), `connection: close\r\ncontent-length: ${body().length}`))
      for await (const bytes of socket) text += bytes
      return text
    }),
  )
  const served = texts.filter(text => text.startsWith('HTTP/1.1 200 '))
  const refused = texts.filter(text => text.startsWith('HTTP/1.1 503 '))
  t.equal(served.length, 10)
  t.equal(refused.length, 190)
  t.equal(upstream.most, 10)
  t.equal(upstream.requests.length, 10)
  const header = (text: string, name: string): number =>
    Number(RegExp(`^${name}: (\\S+)\\r$`, 'm').exec(text)?.[1])
  for (const text of refused) {
    t.ok(text.includes('"code":"weir_no_headroom"') || text, 'its code')
    const seconds = header(text, 'retry-after')
    if (!Number.isInteger(seconds) || seconds < 1 || seconds > 59) t.fail(`retry-after: ${seconds}`)
    if (!(header(text, 'retry-after-ms') >= 1000)) t.fail(text)
    if (!text.includes(`Retry in ${seconds} s.`)) t.fail(text)
  }
  const waits = refused.map(text => header(text, 'retry-after-ms')).sort((a, b) => a - b)
  t.ok(new Set(waits).size > 100, 'they come back one by one')
  t.ok((waits.at(-1) ?? 0) > 5 * (waits[0] ?? 0), `spread from ${waits[0]} to ${waits.at(-1)} ms`)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'shed' }), 190)
  t.equal(await weir.metric('weir_shed_total', { class: 'chat', reason: 'no_headroom' }), 190)
  await weir.atRest()
})

t.test('overload_status speaks 429 to meshes that eject on 5xx', async t => {
  const upstream = await startUpstream(t, () => [HDR, TOK('a'), 'HOLD'])
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { overload_status: 429 }, { max_in_flight: 1 }),
  )
  const first = ask(weir.url)
  await first.received(1)
  const answer = await ask(weir.url).answer
  t.equal(answer.status, 429)
  t.equal(errorOf(answer).code, 'weir_no_headroom')
  first.leave()
  await weir.atRest()
})

t.test('every arrival has one verdict: sums, goodput and attainment are exact', async t => {
  const LATE = 400
  const plays: Record<string, readonly Step[]> = {
    good: [HDR, TOLD('a', 'b', 'c'), 'EOF'],
    late: [HDR, ROLE, { wait: LATE + 200 }, TOLD('a', 'b', 'c'), 'EOF'],
    fails: [WHOLE(500, '{}')],
    broken: [HDR, TOK('a'), 'RST'],
    hangs: [HDR, ROLE, 'HOLD'],
    refused: [WHOLE(400, '{"error":{"message":"too long"}}')],
  }
  const upstream = await startUpstream(t, ({ body }) => {
    const play = JSON.parse(body.toString()).user
    return plays[play] ?? ['RST']
  })
  const full = await startUpstream(t, () => [HDR, TOK('a'), 'HOLD'])
  const slo = { target: { percentile: 90, ttft: `${LATE}ms`, tpot: '2s' } }
  const weir = await startTestWeir(t, {
    classes: {
      chat: { ...CHAT, slo },
      tight: { ...CHAT, slo, pools: ['tight'] },
    },
    pools: {
      main: { model: 'm', replicas: [upstream.url], max_in_flight: 500, ask_usage: false },
      tight: { model: 'm', replicas: [full.url], max_in_flight: 1 },
    },
    routes: [{ class: 'chat' }],
  })
  const many = (count: number, user: string): Asked[] =>
    Array.from({ length: count }, () => ask(weir.url, { body: body({ user }) }))

  // One at a time where time is judged, so that a busy machine makes none of them late.
  for (let i = 0; i < 30; i++) await Promise.all(many(2, 'good').map(({ answer }) => answer))
  const others: Answer[] = []
  for (const [count, play] of [
    [10, 'late'],
    [10, 'fails'],
    [5, 'broken'],
    [7, 'refused'],
  ] as const) {
    others.push(...(await Promise.all(many(count, play).map(({ answer }) => answer))))
  }
  t.same(
    [200, 400, 502].map(status => others.filter(answer => answer.status === status).length),
    [15, 7, 10],
  )
  // The bound passes for five that leave after it; five more leave before.
  const late = many(5, 'hangs')
  await sleep(LATE + 150)
  t.equal(await weir.metric('weir_clause_total', { slo: 'target', clause: 'ttft', result: 'missed' }), 15)
  for (const one of late) one.leave()
  await weir.until('they are gone', () => upstream.running === 0)
  const early = many(5, 'hangs')
  await weir.until('they run', () => upstream.running === 5)
  for (const one of early) one.leave()
  // Five sheds beside one that holds the only place, which leaves at once when they are done.
  const holder = ask(weir.url, { path: '/tight/v1/chat/completions' })
  await holder.received(1)
  for (let i = 0; i < 5; i++) {
    t.equal((await ask(weir.url, { path: '/tight/v1/chat/completions' }).answer).status, 503)
  }
  holder.leave()
  const bad = await ask(weir.url, { body: '{' }).answer
  t.equal(bad.status, 400)

  const total = 60 + 10 + 10 + 5 + 7 + 5 + 5 + 5 + 1 + 1
  await weir.requestLogs(total)
  await weir.atRest()
  const verdict = (name: string): Promise<number> => weir.metric('weir_requests_total', { verdict: name })
  t.equal(await verdict('good'), 60)
  t.equal(await verdict('upstream_error'), 10)
  t.equal(await verdict('truncated'), 5)
  t.equal(await verdict('shed'), 5)
  t.equal(await verdict('ttft_miss'), 15, 'late ones, and those that left after their bound had passed')
  t.equal(await verdict('client_left'), 6, 'those that left before, the holder among them')
  t.equal(await verdict('client_error'), 8)
  t.equal(await weir.metric('weir_requests_total'), total, 'they sum to the arrivals')
  // good / offered: 60 / 95. Without sheds: 60 / 90.
  const joint = (result: string, pool = {}): Promise<number> =>
    weir.metric('weir_clause_total', { slo: 'target', clause: 'joint', result, ...pool })
  t.equal(await joint('met'), 60)
  t.equal(await joint('missed'), 35)
  t.equal((await joint('missed')) - (await weir.metric('weir_shed_total')), 30)
  t.equal(await weir.metric('weir_tokens_total', { kind: 'output_good' }), 180)
  t.equal(
    await weir.metric('weir_ttft_seconds_count'),
    60 + 10 + 5 + 1,
    'one sample for each that had output',
  )
  t.equal(await openTickets(weir), 0)
})

t.test(
  'an answer that is no stream counts as unmeasured in a class of streams, as judged in a deadline class',
  async t => {
    const upstream = await startUpstream(t, () => [WHOLE(200, JSON_ANSWER(5, 2))])
    const weir = await startTestWeir(
      t,
      configData([upstream.url], {
        classes: { chat: CHAT, agent: AGENT },
        routes: [{ class: 'chat' }],
      }),
    )
    const stream = false
    await ask(weir.url, { body: body({ stream }) }).answer
    await ask(weir.url, { body: body({ stream }), path: '/agent/v1/chat/completions' }).answer
    await weir.requestLogs(2)
    t.equal(await weir.metric('weir_requests_total', { class: 'chat', verdict: 'unmeasured' }), 1)
    t.equal(await weir.metric('weir_requests_total', { class: 'agent', verdict: 'good' }), 1)
    t.equal(await weir.metric('weir_ttft_seconds_count'), 0)
    t.equal(await weir.metric('weir_tokens_total', { class: 'agent', kind: 'output' }), 2)
    await weir.atRest()
  },
)
