/** Replicas that fail: who gets their requests, what clients are told, who is taken out, and what operators read. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { ended, LAX, startBefore } from '../fixtures/before.js'
import { type Answer, ask, body, errorOf } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD } from '../fixtures/events.js'
import { deadPort, HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

const ANSWER = [ROLE, TOK('a'), TOK('b'), FIN, DONE].join('')
const GOOD: readonly Step[] = [HDR, TOLD('a', 'b'), 'EOF']
const ERROR = '{"error":{"message":"of the engine","code":"own"}}'

/** The lines that tell operators what to do. */
const warnings = (weir: TestWeir) => weir.logs.filter(({ level }) => level === 40)

/**
 * 10 requests a second for 20 s, ten times as fast; the first ones slower, so that a busy machine, too, has the answer
 * to one before it sends the next.
 */
async function traffic(weir: TestWeir): Promise<readonly Answer[]> {
  const answers: Promise<Answer>[] = []
  for (let i = 0; i < 200; i++) {
    answers.push(ask(weir.url).answer)
    await sleep(i < 15 ? 100 : 10)
  }
  return Promise.all(answers)
}

for (const { how, script } of [
  { how: 'answers 503 at once', script: (): Step[] => [WHOLE(503, '{}')] },
  { how: 'refuses connections', script: undefined },
  { how: 'accepts, then resets', script: (): Step[] => ['RST'] },
]) {
  t.test(
    `a replica that ${how} attracts nothing: it is out after 5 failures, and its peer serves`,
    async t => {
      const fine = await startUpstream(t, () => [HDR, { wait: 200 }, TOLD('a', 'b'), 'EOF'])
      const hole = script === undefined ? undefined : await startUpstream(t, script)
      const port = hole?.port ?? (await deadPort())
      const weir = await startTestWeir(
        t,
        configData(
          [fine.url, `http://127.0.0.1:${port}`],
          { classes: { chat: LAX } },
          { max_in_flight: 100 },
        ),
      )
      const begin = performance.now()
      const answers = await traffic(weir)
      const trials = Math.floor((performance.now() - begin) / 5000)
      const good = answers.filter(({ status, text }) => status === 200 && text === ANSWER)
      t.ok(good.length >= 198, `${good.length} of 200 are answered`)
      for (const answer of answers) {
        if (answer.status !== 200) t.equal(errorOf(answer).code, 'weir_upstream_error')
      }
      if (hole !== undefined) {
        t.ok(
          hole.requests.length >= 5 && hole.requests.length <= 5 + trials,
          'out of rotation after 5 failures',
        )
      }
      await weir.atRest()
      const replica = `127.0.0.1:${port}`
      t.equal(await weir.metric('weir_replica_up', { pool: 'main', replica }), 0)
      t.equal(await weir.metric('weir_replica_up', { pool: 'main', replica: `127.0.0.1:${fine.port}` }), 1)
      const rerouted = await weir.metric('weir_reroute_total')
      t.ok(rerouted >= 3 && rerouted <= 5 + trials, `${rerouted} rerouted`)
      const [line] = warnings(weir)
      t.ok(warnings(weir).length <= 1 + trials)
      t.match(line, { msg: /^replica ejected/, pool: 'main', replica, why: /503|no connection|broke/ })
      t.equal(await weir.metric('weir_requests_total'), 200)
      const addresses = answers.map(({ text, headers }) => text + JSON.stringify(headers)).join()
      t.notMatch(addresses, String(port), 'no address of a replica leaves')
    },
  )
}

t.test('a lone replica is never taken out: it may be back with the next request', async t => {
  let broken = true
  const { weir, upstream } = await startBefore(t, [() => (broken ? [WHOLE(500, ERROR)] : GOOD)])
  for (let i = 0; i < 8; i++) t.equal((await ask(weir.url).answer).status, 502)
  t.equal(await weir.metric('weir_replica_up'), 1)
  broken = false
  t.equal((await ask(weir.url).answer).text, ANSWER)
  t.equal(upstream.requests.length, 9, 'and no request went to it twice')
  await ended(weir, 9)
})

t.test('a failure before the commit goes to another replica once, and the header says so', async t => {
  const failures: readonly (readonly [string, readonly Step[], string])[] = [
    ['a 500', [WHOLE(500, ERROR)], 'status'],
    ['a 503', [WHOLE(503, ERROR)], 'status'],
    ['a reset without a head', ['RST'], 'reset'],
    ['a reset after the head', [HDR, ROLE, 'RST'], 'reset'],
    ['an end without an answer', [HDR, ROLE, 'EOF'], 'reset'],
    ['a cut', [HDR, ROLE, 'CUT'], 'reset'],
    ['an error event', [HDR, ROLE, `data: ${ERROR}\n\n`, DONE, 'EOF'], 'stream_error'],
    ['a page', [WHOLE(200, '<html>Sign in</html>', 'text/html')], 'not_an_answer'],
    ['a redirect', [WHOLE(302, '', 'text/plain', 'Location: /login\r\n')], 'not_an_answer'],
    ['what is no HTTP', ['SSH-2.0-x\r\n', 'HOLD'], 'reset'],
  ]
  for (const [what, steps, reason] of failures) {
    const sent: string[] = []
    const script = (): Step[] => {
      sent.push(what)
      return sent.length === 1 ? [...steps] : [...GOOD]
    }
    const { weir } = await startBefore(t, [script, script])
    const answer = await ask(weir.url).answer
    t.equal(answer.status, 200, what)
    t.equal(answer.text, ANSWER, what)
    t.equal(answer.headers['x-weir-decision'], 'reroute', what)
    t.equal(await weir.metric('weir_reroute_total', { pool: 'main', reason }), 1, what)
    t.match(await ended(weir), { verdict: 'good', decision: 'reroute', arrivals: 1 }, what)

    // Where every replica does the same: one other is tried, and then it is a true 502.
    const all = await startBefore(t, [() => [...steps], () => [...steps], () => [...steps]])
    const failed = await ask(all.weir.url).answer
    t.equal(failed.status, 502, what)
    t.equal(errorOf(failed).code, 'weir_upstream_error', what)
    t.match(errorOf(failed).message, /no other replica could take the request/, what)
    t.equal(all.upstreams.flatMap(({ requests }) => requests).length, 2, `${what}: twice at most`)
    t.match(await ended(all.weir), { verdict: 'upstream_error', arrivals: 1 }, what)
  }
})

t.test('what asks to be stored is not repeated once sent, but is where nothing was', async t => {
  for (const flag of ['store', 'background']) {
    const resets = await startBefore(t, [() => ['RST'], () => ['RST']])
    const answer = await ask(resets.weir.url, { body: body({ [flag]: true }) }).answer
    t.equal(answer.status, 502)
    t.equal(resets.upstreams.flatMap(({ requests }) => requests).length, 1)
    const fine = await startUpstream(t, () => GOOD)
    const weir = await startTestWeir(t, configData([`http://127.0.0.1:${await deadPort()}`, fine.url]))
    for (let i = 0; i < 3; i++) {
      t.equal((await ask(weir.url, { body: body({ [flag]: true }) }).answer).status, 200)
    }
    await weir.atRest()
  }
})

t.test('reroutes stay within their budget: an outage is not made worse', async t => {
  const { weir, upstreams } = await startBefore(t, [() => [WHOLE(503, ERROR)], () => [WHOLE(503, ERROR)]])
  const answers = []
  for (let i = 0; i < 50; i++) answers.push(await ask(weir.url).answer)
  t.ok(answers.every(({ status }) => status === 502 || status === 503))
  const sent = upstreams.flatMap(({ requests }) => requests).length
  t.ok(sent <= 55, `${sent} sent for 50`)
  t.equal(await weir.metric('weir_reroute_total'), sent - 50)
  await ended(weir, 50)
})

t.test("a 429 goes to another replica, else to the client as it is, and is nobody's fault", async t => {
  const busy = (): Step[] => [WHOLE(429, ERROR, 'application/json', 'Retry-After: 30\r\nX-RateLimit: 0\r\n')]
  const { weir, upstreams } = await startBefore(t, [busy, busy])
  const answered = await ask(weir.url).answer
  t.equal(answered.status, 429)
  t.equal(answered.text, ERROR)
  t.equal(answered.headers['retry-after'], '30')
  t.equal(answered.headers['x-ratelimit'], '0')
  t.equal(answered.headers['content-length'], String(ERROR.length))
  t.equal(await weir.metric('weir_reroute_total', { reason: 'busy' }), 1)
  for (let i = 0; i < 5; i++) {
    const refused = await ask(weir.url).answer
    t.equal(refused.status, 503, 'both are left alone for the time they asked for')
    t.equal(errorOf(refused).code, 'weir_no_headroom')
    const wait = Number(refused.headers['retry-after'])
    t.ok(wait > 10 && wait <= 30, `${wait} s: until then`)
  }
  t.equal(await weir.metric('weir_replica_up'), 2, 'nobody is taken out for being full')
  t.equal(upstreams.flatMap(({ requests }) => requests).length, 2)
  await weir.atRest()

  let first = true
  const once = (): Step[] => {
    const full = first
    first = false
    return full ? busy() : [...GOOD]
  }
  const other = await startBefore(t, [once, once])
  const answer = await ask(other.weir.url).answer
  t.equal(answer.text, ANSWER)
  t.equal(answer.headers['x-weir-decision'], 'reroute')
  await ended(other.weir)
})

t.test(
  "a 4xx of the engine is the request's own: it passes with its body, and no replica is blamed",
  async t => {
    const play: Record<string, readonly Step[]> = {
      400: [WHOLE(400, ERROR, 'application/json', 'X-Own: 1\r\n')],
      404: [WHOLE(404, '{"detail":"Not Found"}')],
      413: [WHOLE(413, 'too large', 'text/plain')],
      422: [
        'HTTP/1.1 422 X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n',
        ERROR,
        'EOF',
      ],
    }
    const scripted = ({ body }: { readonly body: Buffer }): readonly Step[] =>
      play[JSON.parse(body.toString()).user] ?? GOOD
    const upstreams = [await startUpstream(t, scripted), await startUpstream(t, scripted)]
    const weir = await startTestWeir(
      t,
      configData(
        upstreams.map(({ url }) => url),
        {},
        { ask_usage: false },
      ),
    )
    let requests = 0
    for (const [user, bodyOf] of [
      ['400', ERROR],
      ['404', '{"detail":"Not Found"}'],
      ['413', 'too large'],
      ['422', ERROR],
    ] as const) {
      for (const stream of [true, false]) {
        for (let i = 0; i < 6; i++) {
          const answer = await ask(weir.url, { body: body({ user, stream }) }).answer
          requests++
          t.equal(answer.status, Number(user))
          t.equal(answer.text, bodyOf)
          t.ok(answer.whole)
          if (user === '400') t.equal(answer.headers['x-own'], '1')
          t.equal(answer.headers['x-weir-pool'], 'main')
        }
      }
    }
    t.equal(upstreams.flatMap(({ requests }) => requests).length, requests, 'each was sent once')
    t.equal(await weir.metric('weir_replica_up'), 2)
    t.match(await ended(weir, requests), { verdict: 'client_error', arrivals: requests })
    t.equal((await ask(weir.url).answer).status, 200)
    t.equal(await weir.metric('weir_usage_missing_total'), 0, 'no answer, no usage to miss')
  },
)

t.test(
  "a refusal of Weir's own credential is no answer for the client: 502, and a line with pool and fix",
  async t => {
    for (const status of [401, 403]) {
      const { weir, upstreams } = await startBefore(
        t,
        [() => [WHOLE(status, '{"error":"bad key UP-KEY-1"}')], () => [WHOLE(status, '{}')]],
        {},
        { api_key: 'UP-KEY-1' },
      )
      const answer = await ask(weir.url).answer
      t.equal(answer.status, 502)
      t.equal(errorOf(answer).code, 'weir_upstream_error')
      t.match(errorOf(answer).message, /pool main refuses this router's own credential.*pools\.main\.api_key/)
      t.equal(answer.headers['x-should-retry'], 'false', 'a retry would get the same')
      t.equal(upstreams.flatMap(({ requests }) => requests).length, 1)
      t.match(warnings(weir), [{ pool: 'main', status, msg: /set pools\.main\.api_key to a key it accepts/ }])
      t.notMatch(weir.logText() + answer.text, 'UP-KEY-1')
      t.match(await ended(weir), { verdict: 'upstream_error', arrivals: 1 })
    }
  },
)

t.test(
  'a replica that does not know stream_options still serves, and operators learn of it once',
  async t => {
    const picky = ({ body }: { readonly body: Buffer }): Step[] =>
      body.includes('stream_options') ? [WHOLE(400, ERROR)] : [HDR, ANSWER, 'EOF']
    const upstream = await startUpstream(t, picky)
    const weir = await startTestWeir(t, configData([upstream.url]))
    for (let i = 0; i < 3; i++) {
      const answer = await ask(weir.url).answer
      t.equal(answer.status, 200)
      t.equal(answer.text, ANSWER)
    }
    t.equal(upstream.requests.length, 4, 'asked once, then no more')
    t.match(warnings(weir), [{ pool: 'main', msg: /refuses stream_options.*ask_usage: false/ }])
    t.equal(await weir.metric('weir_usage_missing_total', { pool: 'main' }), 3)
    t.match(await ended(weir, 3), { estimated: true, arrivals: 3 })
  },
)

t.test('a pool whose replicas are all gone keeps half of them in, and says what it found', async t => {
  const upstreams = [await deadPort(), await deadPort(), await deadPort(), await deadPort()]
  const weir = await startTestWeir(t, configData(upstreams.map(port => `http://127.0.0.1:${port}`)))
  const answers = []
  for (let i = 0; i < 20; i++) answers.push(await ask(weir.url).answer)
  t.ok(
    answers.every(({ status }) => status === 502),
    'half of a pool is never taken out',
  )
  t.equal(await weir.metric('weir_replica_up'), 2)
  t.match(errorOf(answers[0]!).message, /no connection: ECONNREFUSED/)
  t.notMatch(answers.map(({ text }) => text).join(), /127\.0\.0\.1/)
  await ended(weir, 20)
})

t.test('an answer of another kind than was asked for passes as what it is', async t => {
  const { weir } = await startBefore(t, [() => [WHOLE(200, JSON_ANSWER(5, 2))]])
  const json = await ask(weir.url).answer
  t.equal(json.text, JSON_ANSWER(5, 2))
  t.equal(json.headers['content-type'], 'application/json')
  t.match(await ended(weir), { verdict: 'unmeasured', outputTokens: 2, arrivals: 1 })
  t.equal(await weir.metric('weir_ttft_seconds_count'), 0)
  const events = await startBefore(t, [() => [HDR, ANSWER, 'EOF']])
  const stream = await ask(events.weir.url, { body: body({ stream: false }) }).answer
  t.equal(stream.text, ANSWER)
  t.match(await ended(events.weir), { verdict: 'unmeasured', arrivals: 1 })
})
