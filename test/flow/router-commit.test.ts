/** When the status line goes out, and what happens before and after it. */
import t from 'tap'
import { startBalancer } from '../fixtures/balancer.js'
import { ended, LAX, startBefore } from '../fixtures/before.js'
import { ask, body, lastError } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD } from '../fixtures/events.js'
import { HDR, type Step, WHOLE } from '../fixtures/upstream.js'
import { AGENT } from '../fixtures/weir.js'

const PING = ': ping\n\n'
const COMMENT = ': weir\n\n'
const ANSWER = [ROLE, TOK('a'), TOK('b'), FIN, DONE].join('')

t.test(
  'until the first output nothing goes out; then all that was held does, in order and unchanged',
  async t => {
    const { weir } = await startBefore(t, [
      () => [HDR, PING, ROLE, { wait: 300 }, PING, TOK('a'), TOK('b'), FIN, DONE, 'EOF'],
    ])
    const answer = await ask(weir.url).answer
    t.ok(answer.headAt >= 250, 'the status line waits too')
    t.equal(answer.text, PING + ROLE + PING + TOK('a') + TOK('b') + FIN + DONE)
    t.ok(Number((await ended(weir))['ttftMs']) >= 250)
  },
)

t.test('a finish, a [DONE] and too many held bytes commit without output', async t => {
  const scripts: Step[][] = [
    [HDR, ROLE, FIN, 'HOLD'],
    [HDR, ROLE, DONE, 'HOLD'],
    [HDR, ROLE, `: ${'x'.repeat(64 << 10)}\n\n`, 'HOLD'],
  ]
  let played = 0
  const { weir } = await startBefore(t, [() => scripts[played++] ?? []])
  for (const script of scripts) {
    const one = ask(weir.url)
    await one.received(Buffer.byteLength(script.slice(1, -1).join('')))
    one.leave()
    t.equal((await one.answer).status, 200)
  }
  await weir.requestLogs(3)
  await weir.atRest()
})

t.test('what is held goes to nobody when the attempt fails: the next replica answers alone', async t => {
  let first = true
  const script = (): Step[] => {
    const fails = first
    first = false
    return fails ? [HDR, ROLE, `: ${'x'.repeat(60_000)}\n\n`, { wait: 100 }, 'RST'] : [HDR, ANSWER, 'EOF']
  }
  const { weir, upstreams } = await startBefore(t, [script, script])
  const answer = await ask(weir.url).answer
  t.equal(answer.status, 200)
  t.equal(answer.text, ANSWER)
  t.equal(answer.headers['x-weir-decision'], 'reroute')
  t.same(
    upstreams.map(({ requests }) => requests.length),
    [1, 1],
  )
  t.equal(await weir.metric('weir_reroute_total', { pool: 'main', reason: 'reset' }), 1)
  t.ok(Number((await ended(weir))['ttftMs']) >= 80, 'TTFT includes the lost attempt')
})

t.test(
  'commit_after sends the head, what is held and comments, which no clock takes for a token',
  async t => {
    const { weir } = await startBefore(
      t,
      [() => [HDR, ROLE, { wait: 800 }, TOK('a'), PING, { wait: 250 }, TOK('b'), FIN, DONE, 'EOF']],
      { commit_after: '200ms' },
    )
    const answer = await ask(weir.url).answer
    t.equal(answer.status, 200)
    t.ok(answer.headAt >= 150 && answer.headAt < 700, `after commit_after, before output: ${answer.headAt}`)
    t.equal(answer.headers['content-type'], 'text/event-stream')
    t.equal(answer.headers['x-weir-pool'], 'main')
    t.equal(answer.headers['x-weir-decision'], 'home')
    const comments = answer.text.split(COMMENT).length - 1
    t.ok(comments >= 2, `${comments} comments`)
    t.equal(answer.text, ROLE + COMMENT.repeat(comments) + TOK('a') + PING + TOK('b') + FIN + DONE)
    t.ok(Number((await ended(weir))['ttftMs']) >= 750)
  },
)

t.test('a stream may commit before its upstream has a head; that of a queued one names no pool', async t => {
  const { weir } = await startBefore(
    t,
    [() => [{ wait: 500 }, HDR, TOLD('a', 'b'), 'EOF']],
    { classes: { agent: { ...AGENT, commit_after: '150ms' } } },
    { max_in_flight: 1 },
  )
  const [running, queued] = await Promise.all([ask(weir.url).answer, ask(weir.url).answer])
  for (const answer of [running, queued]) {
    t.equal(answer.status, 200)
    t.match(answer.headers['content-type'], /^text\/event-stream/)
    t.equal(answer.text.replaceAll(COMMENT, ''), ANSWER)
    t.ok(answer.text.startsWith(COMMENT))
    t.ok(answer.whole)
  }
  const [first, second] = [running, queued].sort((a, b) =>
    String(a.headers['x-weir-decision']).localeCompare(String(b.headers['x-weir-decision'])),
  )
  t.equal(first?.headers['x-weir-decision'], 'home')
  t.equal(first?.headers['x-weir-pool'], 'main')
  t.equal(second?.headers['x-weir-decision'], 'queued')
  t.notOk(second?.headers['x-weir-pool'])
  t.match(await ended(weir, 2), { verdict: 'good', arrivals: 2 })
})

t.test('0s sends the head and every comment at once, never waits for output', async t => {
  const script = (): Step[] => [HDR, PING, { wait: 400 }, TOK('a'), FIN, DONE, 'EOF']
  const { weir } = await startBefore(t, [script], {
    classes: { chat: { ...LAX, commit_after: '0s' }, slow: LAX },
    routes: [{ class: 'chat' }],
  })
  const now = ask(weir.url)
  const later = ask(weir.url, { path: '/slow/v1/chat/completions' })
  const [first, second] = await Promise.all([now.answer, later.answer])
  t.ok(first.headAt < 300)
  t.ok((first.reads.find(read => read.bytes.includes(PING))?.at ?? Infinity) < 350)
  t.ok(second.headAt >= 350)
  t.equal(second.text, PING + TOK('a') + FIN + DONE)
  t.match(await ended(weir, 2), { verdict: 'good', arrivals: 2 })
})

t.test('no comment lands inside an event', async t => {
  const big = TOK('x'.repeat(150_000))
  const { weir } = await startBefore(
    t,
    [
      () => [
        ...[HDR, ROLE, { wait: 250 }, big.slice(0, 100_000), { wait: 400 }, big.slice(100_000)],
        ...[FIN, DONE, 'EOF' as const],
      ],
    ],
    { commit_after: '100ms' },
  )
  const answer = await ask(weir.url).answer
  t.equal(answer.text.replaceAll(COMMENT, ''), ROLE + big + FIN + DONE)
  t.ok(answer.text.includes(big))
  t.ok(answer.text.startsWith(ROLE + COMMENT))
  t.match(await ended(weir), { verdict: 'good', arrivals: 1 })
})

t.test('a long silence survives a balancer that cuts shorter ones', async t => {
  // 90 s of silence before the first token, 60 s of patience and commit_after 30 s, all divided by 100.
  const script = (): Step[] => [{ wait: 900 }, HDR, TOLD('a', 'b'), 'EOF']
  const { weir } = await startBefore(t, [script], {
    classes: { chat: { ...LAX, commit_after: '300ms' }, never: LAX },
    routes: [{ class: 'chat' }],
  })
  const url = await startBalancer(t, weir.port, 600)
  const lost = ask(url, { path: '/never/v1/chat/completions' })
  const answer = await ask(url).answer
  t.equal(answer.status, 200)
  t.ok(answer.whole)
  t.equal(answer.text.replaceAll(COMMENT, ''), ANSWER)
  await t.rejects(lost.answer, /socket hang up/, 'without a commit it is cut')
  await weir.requestLogs(2)
  t.equal(await weir.metric('weir_requests_total', { class: 'chat', verdict: 'good' }), 1)
  t.equal(await weir.metric('weir_requests_total', { class: 'never' }), 1)
  await weir.atRest()
})

t.test('an answer that is no stream commits with its first bytes, however long that takes', async t => {
  const { weir } = await startBefore(t, [() => [{ wait: 400 }, WHOLE(200, JSON_ANSWER(5, 2))]], {
    commit_after: '100ms',
  })
  const answer = await ask(weir.url, { body: body({ stream: false }) }).answer
  t.equal(answer.text, JSON_ANSWER(5, 2))
  t.equal(answer.headers['content-type'], 'application/json')
  t.equal(answer.headers['content-length'], String(JSON_ANSWER(5, 2).length))
  t.ok(answer.headAt >= 350)
  t.match(await ended(weir), { verdict: 'unmeasured', arrivals: 1 })
})

t.test('after an early commit a refusal of the upstream comes in band, in its own words', async t => {
  const refusal = '{"error":{"message":"too long",\n"code":"context_length_exceeded"}}'
  const { weir, upstreams } = await startBefore(
    t,
    [() => [{ wait: 300 }, WHOLE(400, refusal)], () => [{ wait: 300 }, WHOLE(400, refusal)]],
    { commit_after: '100ms' },
    { ask_usage: false },
  )
  const answer = await ask(weir.url).answer
  t.equal(answer.status, 200)
  t.ok(answer.whole)
  const event = answer.text.slice(answer.text.lastIndexOf(COMMENT) + COMMENT.length)
  t.equal(event, 'data: {"error":{"message":"too long",\ndata: "code":"context_length_exceeded"}}\n\n')
  t.equal(upstreams.flatMap(({ requests }) => requests).length, 1)
  t.match(await ended(weir), { verdict: 'client_error', arrivals: 1 })
})

t.test('after an early commit every failure comes in band, and none is sent to another replica', async t => {
  const cases: readonly (readonly [string, readonly Step[], RegExp])[] = [
    ['upstream_error', [WHOLE(500, '{}')], /answered 500/],
    ['upstream_error', [WHOLE(429, 'busy', 'text/plain')], /answered 429/],
    ['client_error', [WHOLE(404, '<html>', 'text/html')], /answered 404/],
    ['upstream_error', [WHOLE(200, JSON_ANSWER(5, 2))], /one JSON body/],
    ['upstream_error', [WHOLE(200, '<html>', 'text/html')], /text\/html/],
    ['upstream_error', ['RST'], /broke/],
    ['upstream_error', [WHOLE(401, '{}')], /own credential/],
  ]
  let played = 0
  const script = (): Step[] => [{ wait: 250 }, ...(cases[played++]?.[1] ?? [])]
  const { weir, upstreams } = await startBefore(t, [script, script], { commit_after: '100ms' })
  let requests = 0
  for (const [verdict, , says] of cases) {
    const answer = await ask(weir.url).answer
    t.equal(answer.status, 200)
    t.ok(answer.whole)
    t.equal(lastError(answer).code, 'weir_upstream_error')
    t.match(lastError(answer).message, says)
    t.notMatch(answer.text, '[DONE]')
    t.match(await ended(weir, ++requests), { verdict: verdict, arrivals: requests })
  }
  t.equal(upstreams.flatMap(({ requests }) => requests).length, cases.length)
  t.equal(await weir.metric('weir_reroute_total'), 0)
})

t.test('an error event that comes first after an early commit goes out as it is', async t => {
  const event = 'data: {"error":{"message":"x","code":504}}\n\n'
  const { weir } = await startBefore(t, [() => [HDR, ROLE, { wait: 250 }, event, DONE, 'EOF']], {
    commit_after: '100ms',
  })
  const answer = await ask(weir.url).answer
  t.equal(answer.text.replaceAll(COMMENT, ''), ROLE + event + DONE)
  t.match(await ended(weir), { verdict: 'upstream_error', arrivals: 1 })
})
