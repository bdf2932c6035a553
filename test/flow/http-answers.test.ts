/** Answers that are not what they seem: mislabelled, interleaved, lost half way, or sent by the overloaded. */
import t from 'tap'
import { ended, LAX, startBefore } from '../fixtures/before.js'
import { ask, body, errorOf, lastError } from '../fixtures/client.js'
import { DELTA, DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD, USAGE } from '../fixtures/events.js'
import { stage } from '../fixtures/stage.js'
import { HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

const PLAIN = { body: body({ stream: false }) }

t.test('only streams have a first token: whole answers among them are timed as a whole', async t => {
  const { weir, play } = await stage(
    t,
    {
      *stream() {
        yield HDR
        yield ROLE + TOK('a') + TOK('b')
        yield FIN + USAGE(5, 2) + DONE
        yield 'EOF'
      },
      *slow() {
        yield { wait: 300 }
        yield WHOLE(200, JSON_ANSWER(5, 7))
      },
    },
    { classes: { chat: LAX } },
  )
  const streams = Array.from({ length: 141 }, (_, i) => play('stream', {}, `s${i}`))
  const whole = Array.from({ length: 24 }, (_, i) => play('slow', PLAIN, `w${i}`))
  await Promise.all([...streams, ...whole])
  t.equal(await weir.metric('weir_ttft_seconds_count'), 141)
  t.equal(await weir.metric('weir_upstream_ttft_seconds_count'), 141)
  t.equal(await weir.metric('weir_tpot_seconds_count'), 141)
  t.equal(await weir.metric('weir_e2e_seconds_count'), 165, 'which all have')
  t.equal(await weir.metric('weir_requests_total', { verdict: 'good' }), 141)
  t.equal(await weir.metric('weir_requests_total', { verdict: 'unmeasured' }), 24)
  await weir.atRest()
})

t.test('an answer whose type is not what was asked for is taken for what it is, or not at all', async t => {
  const untyped = HDR.replace('Content-Type: text/event-stream\r\n', '')
  const { weir, upstream, play } = await stage(
    t,
    {
      'json to a stream': () => [WHOLE(200, JSON_ANSWER(5, 2))],
      'events without a type': () => [untyped, TOLD('a', 'b'), 'EOF'],
      'events with parameters': () => [
        HDR.replace('text/event-stream', 'Text/Event-Stream; charset=UTF-8'),
        TOLD('a', 'b'),
        'EOF',
      ],
      'events to no stream': () => [HDR, TOLD('a', 'b'), 'EOF'],
      html: () => [WHOLE(200, '<html>sign in</html>', 'text/html')],
      'html to no stream': () => [WHOLE(200, '<html>sign in</html>', 'text/html')],
      'no body at all': () => ['HTTP/1.1 204 No Content\r\n\r\n'],
    },
    { classes: { chat: LAX } },
  )
  const json = await play('json to a stream')
  t.equal(json.text, JSON_ANSWER(5, 2))
  t.match(json.headers, { 'content-type': 'application/json' })
  t.match(json.log, { verdict: 'unmeasured', outputTokens: 2 })
  for (const name of ['events without a type', 'events with parameters']) {
    const events = await play(name)
    t.ok(events.text.endsWith(DONE), name)
    t.match(events.log, { verdict: 'good', outputTokens: 2 }, name)
  }
  const unasked = await play('events to no stream', PLAIN)
  t.equal(unasked.text, TOLD('a', 'b'))
  t.match(unasked.log, { verdict: 'unmeasured', stream: false })
  t.equal(await weir.metric('weir_ttft_seconds_count'), 2)
  for (const [name, options] of [
    ['html', {}],
    ['html to no stream', PLAIN],
  ] as const) {
    const html = await play(name, options)
    t.equal(html.status, 502, name)
    t.match(errorOf(html).message, 'answered 200 with text/html', name)
    t.equal(html.log['verdict'], 'upstream_error', name)
    t.notMatch(html.text, 'sign in', name)
  }
  t.not((await play('no body at all')).log['verdict'], 'good')
  const before = upstream.requests.length
  const text = await ask(weir.url, { body: body({ stream: 'true' }) }).answer
  t.equal(text.status, 400)
  t.equal(upstream.requests.length, before)

  // Where there is another replica, HTML is a failed attempt.
  let first = true
  const either = (): Step[] => {
    const html = first
    first = false
    return html ? [WHOLE(200, '<html>', 'text/html')] : [HDR, TOLD('a'), 'EOF']
  }
  const two = await startBefore(t, [either, either])
  const answer = await ask(two.weir.url).answer
  t.match(answer, { status: 200, headers: { 'x-weir-decision': 'reroute' } })
  t.equal(await two.weir.metric('weir_reroute_total', { reason: 'not_an_answer' }), 1)
  await ended(two.weir)
})

t.test('answers that are woven into one stream are one request, complete with the last of them', async t => {
  const end = (index: number): string => DELTA({}, 'stop', index)
  const { weir, play } = await stage(
    t,
    {
      *woven() {
        yield HDR
        yield ROLE + DELTA({ role: 'assistant', content: '' }, null, 1)
        for (let i = 0; i < 10; i++) {
          yield TOK(`a${i}`)
          yield { wait: 20 }
          yield TOK(`b${i}`, 1)
          yield { wait: 20 }
        }
        yield end(0)
        for (let i = 10; i < 40; i++) {
          yield TOK(`b${i}`, 1)
          yield { wait: 20 }
        }
        yield end(1) + USAGE(5, 50) + DONE
        yield 'EOF'
      },
      *'cut after the first'() {
        yield HDR
        yield TOK('a') + TOK('b', 1) + end(0) + TOK('c', 1)
        yield 'EOF'
      },
    },
    { classes: { chat: LAX } },
  )
  const two = { body: body({ n: 2 }) }
  const woven = await play('woven', two)
  t.match(woven.log, { verdict: 'good', outputTokens: 50, ending: 'complete' })
  t.equal(await weir.metric('weir_requests_total'), 1)
  t.equal(await weir.metric('weir_ttft_seconds_count'), 1)
  const [first] = woven.reads
  const last = woven.reads.findLast(({ bytes }) => bytes.includes('b39'))
  const tpot = Number(woven.log['tpotMs'])
  const span = (last?.at ?? 0) - (first?.at ?? 0)
  t.ok(Math.abs(tpot - span / 39) < 3, `TPOT ${tpot} ms over the longest of the two: ${span / 39}`)
  const cut = await play('cut after the first', two)
  t.equal(cut.log['verdict'], 'truncated')
  t.equal(lastError(cut).code, 'weir_upstream_truncated')
  await weir.atRest()
})

t.test(
  'after the first token no other replica is asked, before it one is, and is alone to be heard',
  async t => {
    const failing: Record<string, readonly Step[]> = {
      'after two tokens': [HDR, ROLE + TOK('1') + TOK('2'), 'RST'],
      'after its head': [HDR, 'RST'],
      'after a comment': [HDR, ': ping\n\n', 'RST'],
      'after the role': [HDR, ROLE, 'RST'],
    }
    for (const [name, steps] of Object.entries(failing)) {
      let failed = false
      const script = async function* (): AsyncIterable<Step> {
        if (failed) {
          yield HDR
          yield TOLD('other')
          yield 'EOF'
          return
        }
        failed = true
        yield { wait: 100 }
        yield* steps
      }
      const { weir, upstreams } = await startBefore(t, [script, script])
      const answer = await ask(weir.url).answer
      const sent = upstreams.flatMap(({ requests }) => requests).length
      const lines = await ended(weir)
      if (name === 'after two tokens') {
        t.equal(sent, 1, name)
        t.ok(answer.text.startsWith(ROLE + TOK('1') + TOK('2')), name)
        t.notMatch(answer.text, 'other', `${name}: never text of another answer`)
        t.equal(lastError(answer).code, 'weir_upstream_truncated')
        t.notMatch(answer.text, '[DONE]')
        t.equal(await weir.metric('weir_reroute_total'), 0)
      } else {
        t.equal(sent, 2, name)
        t.ok(answer.text.startsWith(ROLE + TOK('other')), `${name}: one opening, and nothing before it`)
        t.equal(answer.text.match(/"role"/g)?.length, 1, name)
        t.equal(await weir.metric('weir_reroute_total', { reason: 'reset' }), 1, name)
        t.ok(
          Number(lines['ttftMs']) > 95,
          `${name}: the lost attempt is part of the wait: ${lines['ttftMs']} ms`,
        )
        t.ok(Number(lines['upstreamTtftMs']) < Number(lines['ttftMs']) - 50, name)
      }
    }
  },
)

t.test('clients that retry into an outage are not multiplied', async t => {
  const broken = async function* (): AsyncIterable<Step> {
    yield { wait: 5 }
    yield WHOLE(503, '{"error":{"message":"down"}}')
  }
  const upstreams = await Promise.all([startUpstream(t, broken), startUpstream(t, broken)])
  const weir = await startTestWeir(
    t,
    configData(
      upstreams.map(({ url }) => url),
      { classes: { chat: LAX } },
    ),
  )
  let attempts = 0
  const waits = new Set<string>()
  const statuses = new Set<number>()
  await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      for (let retry = 0; retry < 3; retry++) {
        attempts++
        const answer = await ask(weir.url, { headers: { 'x-stainless-retry-count': String(retry) } }).answer
        statuses.add(answer.status)
        t.ok(Number(answer.headers['retry-after']) >= 1, `client ${i}: it is told when to come again`)
        waits.add(String(answer.headers['retry-after-ms']))
        t.match(errorOf(answer).code, /^weir_/)
      }
    }),
  )
  const sent = upstreams.flatMap(({ requests }) => requests).length
  t.ok(sent <= 1.2 * attempts, `${sent} sent for ${attempts}`)
  t.ok([...statuses].every(status => status === 502 || status === 503))
  t.comment(`${waits.size} different waits, ${sent} sent for ${attempts}`)
  await weir.atRest()
})
