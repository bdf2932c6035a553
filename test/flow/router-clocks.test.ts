/** The five clocks, each of its own and with its own code; and the wall clock, which is none of them. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { ended, startBefore } from '../fixtures/before.js'
import { ask, body, errorOf, lastError, RAW, raw } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD } from '../fixtures/events.js'
import { fullPort } from '../fixtures/full-port.js'
import { HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { AGENT, configData, startTestWeir } from '../fixtures/weir.js'

const PING = ': ping\n\n'
const ANSWER = [ROLE, TOK('a'), TOK('b'), FIN, DONE].join('')

t.test(
  'first token: 504 before the commit, in band after it; comments and role deltas are no tokens',
  async t => {
    async function* chatter(): AsyncGenerator<Step> {
      yield HDR
      yield ROLE
      for (;;) {
        yield PING
        await sleep(20)
      }
    }
    for (const [commit, everywhere, ofPool] of [
      ['never', '300ms', {}],
      ['100ms', 'off', { timeouts: { first_token: '300ms' } }],
    ] as const) {
      const { weir, upstream } = await startBefore(
        t,
        [chatter],
        { commit_after: commit, timeouts: { first_token: everywhere } },
        ofPool,
      )
      const answer = await ask(weir.url).answer
      const told = commit === 'never' ? errorOf(answer) : lastError(answer)
      t.equal(answer.status, commit === 'never' ? 504 : 200)
      t.equal(told.code, 'weir_first_token_timeout')
      t.match(told.message, /within 0.3 s \(timeouts.first_token\)/)
      t.equal(told.type, 'timeout_error')
      await weir.until('the upstream is let go', () => upstream.closes.length === 1)
      t.match(await ended(weir), { verdict: 'timeout', arrivals: 1 })
    }
  },
)

t.test('an upstream that never sends a head runs into the same clock, streamed or not', async t => {
  const { weir, upstream } = await startBefore(t, [() => ['HOLD']], { timeouts: { first_token: '250ms' } })
  for (const stream of [true, false]) {
    const answer = await ask(weir.url, { body: body({ stream }) }).answer
    t.equal(answer.status, 504)
    t.equal(errorOf(answer).code, 'weir_first_token_timeout')
    t.match(answer.headers['retry-after'], /^\d+$/)
  }
  await weir.until('the upstream is let go', () => upstream.closes.length === 2)
  t.match(await ended(weir, 2), { verdict: 'timeout', arrivals: 2 })
})

t.test('stall: silence after a token ends the stream in band, comments notwithstanding', async t => {
  async function* stalls(): AsyncGenerator<Step> {
    yield HDR
    yield TOK('a') + TOK('b') + TOK('c')
    for (;;) {
      yield PING
      await sleep(20)
    }
  }
  const { weir, upstream } = await startBefore(t, [stalls], { timeouts: { stall: '300ms' } })
  const answer = await ask(weir.url).answer
  t.equal(answer.status, 200)
  t.ok(answer.whole)
  t.equal(lastError(answer).code, 'weir_stream_stalled')
  t.match(lastError(answer).message, /within 0.3 s \(timeouts.stall\)/)
  t.notMatch(answer.text, '[DONE]')
  await weir.until('the upstream is let go', () => upstream.closes.length === 1)
  t.match(await ended(weir), { verdict: 'timeout', arrivals: 1 })
})

t.test(
  'no clock is another one: slow streams outlive the first-token clock, long waits the stall clock',
  async t => {
    const { weir } = await startBefore(
      t,
      [
        () => [
          ...[HDR, { wait: 450 }, TOK('a'), { wait: 200 }, TOK('b'), { wait: 200 }, TOK('c'), { wait: 200 }],
          ...[FIN, DONE, 'EOF' as const],
        ],
      ],
      { timeouts: { connect: '300ms', first_token: '600ms', stall: '400ms' } },
    )
    const answer = await ask(weir.url).answer
    t.equal(answer.text, TOK('a') + TOK('b') + TOK('c') + FIN + DONE)
    t.match(await ended(weir), { verdict: 'good', arrivals: 1 })
  },
)

t.test('total: off unless it is set, 504 before the commit, in band after it', async t => {
  const scripts: Step[][] = [
    [HDR, ROLE, 'HOLD'],
    [HDR, TOK('a'), { wait: 150 }, TOK('b'), { wait: 150 }, TOK('c'), 'HOLD'],
    [WHOLE(200, JSON_ANSWER(5, 2)).slice(0, -9), 'HOLD'],
  ]
  let played = 0
  const { weir, upstream } = await startBefore(t, [() => scripts[played++] ?? []], {
    timeouts: { total: '400ms' },
  })
  const before = await ask(weir.url).answer
  t.equal(before.status, 504)
  t.equal(errorOf(before).code, 'weir_total_timeout')
  t.match(errorOf(before).message, /within 0.4 s \(timeouts.total\)/)
  const after = await ask(weir.url).answer
  t.equal(after.status, 200)
  t.ok(after.text.startsWith(TOK('a') + TOK('b') + TOK('c')))
  t.equal(lastError(after).code, 'weir_total_timeout')
  const json = await ask(weir.url, { body: body({ stream: false }) }).answer
  t.equal(json.status, 200)
  t.notOk(json.whole, 'half a JSON answer is broken off, since no event can follow it')
  await weir.until('all are let go', () => upstream.closes.length === 3)
  t.match(await ended(weir, 3), { verdict: 'timeout', arrivals: 3 })
})

t.test('connect: a replica that does not take the connection has a clock of its own', async t => {
  const port = await fullPort(t)
  if (port === undefined) {
    t.pass('no port can be made to hang on this system', { skip: true })
    return
  }
  const hangs = `http://127.0.0.1:${port}`
  const alone = await startTestWeir(t, configData([hangs], { timeouts: { connect: '300ms' } }))
  const answer = await ask(alone.url).answer
  t.equal(answer.status, 504)
  t.equal(errorOf(answer).code, 'weir_connect_timeout')
  t.match(errorOf(answer).message, /within 0.3 s \(timeouts.connect\)/)
  t.notMatch(answer.text, String(port))
  const early = await startTestWeir(
    t,
    configData([hangs], { timeouts: { connect: '400ms' }, commit_after: '100ms' }),
  )
  t.equal(lastError(await ask(early.url).answer).code, 'weir_connect_timeout')

  const other = await startUpstream(t, () => [HDR, ANSWER, 'EOF'])
  const both = await startTestWeir(t, configData([hangs, other.url], { timeouts: { connect: '300ms' } }))
  const answers = await Promise.all(Array.from({ length: 6 }, () => ask(both.url).answer))
  t.ok(answers.every(({ status, text }) => status === 200 && text === ANSWER))
  t.ok((await both.metric('weir_reroute_total', { reason: 'refused' })) >= 1)
  for (const weir of [alone, early, both]) await weir.atRest()
})

t.test(
  'queue: 503 when its class or its library has waited long enough, in band after an early commit',
  async t => {
    const classes = {
      agent: { ...AGENT, queue: { max: 9, wait: '300ms' } },
      early: { ...AGENT, queue: { max: 9, wait: '300ms' }, commit_after: '100ms' },
      long: AGENT,
    }
    const { weir, upstream } = await startBefore(
      t,
      [() => [HDR, TOK('a'), 'HOLD']],
      { classes, routes: [{ class: 'agent' }] },
      { max_in_flight: 1 },
    )
    const first = ask(weir.url)
    await first.received(1)
    const [timeout, early, infeasible, library] = await Promise.all([
      ask(weir.url).answer,
      ask(weir.url, { path: '/early/v1/chat/completions' }).answer,
      ask(weir.url, { path: '/long/v1/chat/completions', headers: { 'x-weir-deadline-ms': '200' } }).answer,
      ask(weir.url, { path: '/long/v1/chat/completions', headers: { 'x-stainless-timeout': '0.2' } }).answer,
    ])
    t.equal(timeout.status, 503)
    t.equal(errorOf(timeout).code, 'weir_queue_timeout')
    t.match(errorOf(timeout).message, /Waited 0\.[3-9] s in the queue of class agent/)
    t.equal(timeout.headers['x-weir-decision'], 'queued')
    t.match(timeout.headers['retry-after'], /^[1-9]\d?$/)
    t.ok(timeout.headAt >= 250)

    t.equal(early.status, 200)
    t.equal(lastError(early).code, 'weir_queue_timeout')
    t.ok(early.whole)

    t.equal(infeasible.status, 503)
    t.equal(errorOf(infeasible).code, 'weir_deadline_infeasible')
    t.equal(infeasible.headers['x-should-retry'], 'false')

    t.equal(library.status, 503, 'before the library gives up by itself')
    t.equal(errorOf(library).code, 'weir_queue_timeout')

    t.equal(upstream.requests.length, 1, 'none of them was sent')
    first.leave()
    await weir.requestLogs(5)
    t.equal(await weir.metric('weir_requests_total', { verdict: 'shed' }), 4)
    t.equal(await weir.metric('weir_shed_total', { reason: 'queue_timeout' }), 3)
    t.equal(await weir.metric('weir_shed_total', { reason: 'infeasible' }), 1)
    await weir.atRest()
  },
)

t.test('whatever ends it, a client sees one status line', async t => {
  const scripts: Step[][] = [
    [HDR, ROLE, 'RST'],
    [HDR, TOK('a'), 'RST'],
    [HDR, TOK('a'), 'CUT'],
    [{ wait: 150 }, WHOLE(500, '{}')],
    [{ wait: 150 }, WHOLE(400, '{}')],
    [{ wait: 150 }, WHOLE(200, '{}')],
    [HDR, TOK('a'), 'HOLD'],
    ['HOLD'],
    [HDR, TOK('a'), { raw: 'garbage' }, 'CUT'],
    ['SSH-2.0-x\r\n', 'HOLD'],
  ]
  let played = 0
  const { weir } = await startBefore(
    t,
    [() => scripts[played++] ?? []],
    { commit_after: '100ms', timeouts: { first_token: '400ms', stall: '300ms' } },
    { ask_usage: false },
  )
  for (const script of scripts) {
    const text = await raw(weir.port, RAW(body(), `connection: close\r\ncontent-length: ${body().length}`))
    t.equal(text.match(/^HTTP\/1\.1 /gm)?.length, 1, script.join(' '))
    t.match(text, /"error"/, 'and is told that it failed')
    t.notMatch(text, '[DONE]')
  }
  await weir.requestLogs(scripts.length)
  t.equal(await weir.metric('weir_requests_total'), scripts.length)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'good' }), 0)
  await weir.atRest()
})

t.test('steps of the wall clock change no duration, no clock and no window', async t => {
  const real = Date.now
  t.teardown(() => {
    Date.now = real
  })
  let shift = 0
  Date.now = () => real() + shift

  // An ejection window: one of two replicas fails until it is out.
  const { weir, upstreams } = await startBefore(t, [
    () => [WHOLE(503, '{}')],
    () => [HDR, { wait: 150 }, TOK('a'), { wait: 150 }, TOK('b'), FIN, DONE, 'EOF'],
  ])
  for (let i = 0; i < 40 && upstreams[0]!.requests.length < 5; i++) await ask(weir.url).answer
  await weir.until('it is out', async () => (await weir.metric('weir_replica_up')) === 1)
  // A queue, and clocks that a step would run out.
  const agents = await startBefore(
    t,
    [() => [HDR, { wait: 400 }, TOLD('a', 'b'), 'EOF']],
    { classes: { agent: AGENT }, timeouts: { first_token: '20s', stall: '20s', total: '20s' } },
    { max_in_flight: 1 },
  )
  const before = weir.logs.length
  const asked = [ask(weir.url), ask(weir.url), ask(agents.weir.url), ask(agents.weir.url)]
  for (const step of [-5000, 3_600_000, -5000, 3_600_000]) {
    shift = step
    await sleep(60)
  }
  for (const { answer } of asked) t.equal((await answer).status, 200)
  t.equal(await weir.metric('weir_replica_up'), 1, 'still out')
  t.equal(upstreams[0]?.requests.length, 5, 'and not tried')

  const own = () => weir.logs.slice(before).filter(({ msg }) => msg === 'request')
  await weir.until('its lines', () => own().length === 2)
  const lines = [...own(), ...(await agents.weir.requestLogs(2))]
  for (const line of lines) {
    t.ok(Number(line['ttftMs']) >= 100, 'no shorter than it was')
    for (const name of ['ttftMs', 'e2eMs', 'queueMs', 'bodyMs', 'ownMs', 'longestGapMs']) {
      t.ok(Number(line[name] ?? 0) >= 0 && Number(line[name] ?? 0) < 20_000, `${name}: ${line[name]}`)
    }
  }
  t.ok(Number(lines.at(-1)?.['queueMs']) >= 350, 'its true wait')
  t.equal(await agents.weir.metric('weir_shed_total'), 0)
  for (const one of [weir, agents.weir]) await one.atRest()
})
