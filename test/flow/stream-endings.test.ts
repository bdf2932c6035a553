/** How a stream ends: the usage that Weir asked for, the marker, error events, and upstreams that break off. */
import { Agent } from 'node:http'
import t from 'tap'
import { ask, body } from '../fixtures/client.js'
import { DELTA, DONE, FIN, JSON_ANSWER, ROLE, TOK, USAGE } from '../fixtures/events.js'
import { type Played, player, type Script, stage, stream } from '../fixtures/stage.js'
import { deadPort, HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

/** Only events, and then the proper end. */
const events =
  (...parts: string[]): Script =>
  () =>
    stream(...parts)

const errorOf = (text: string) => JSON.parse(text).error

/** The last event of a stream, as an error of Weir's. */
function inBand(text: string): { readonly code: string; readonly message: string } {
  const last = text.trimEnd().split('\n\n').at(-1) ?? ''
  if (!last.startsWith('data: ')) throw new Error(`not an event: ${last}`)
  return errorOf(last.slice('data: '.length))
}

const THREE = ROLE + TOK('a') + TOK('b') + TOK('c')

t.test('a usage event that the client did not ask for is read and taken out', async t => {
  const bare = `data: ${JSON.stringify({ id: 'c1', usage: { prompt_tokens: 5, completion_tokens: 20, total_tokens: 25 } })}\n\n`
  const along = TOK('c').replace('}\n\n', ',"usage":{"prompt_tokens":5,"completion_tokens":20}}\n\n')
  const scripts = {
    'empty choices': events(THREE, FIN, USAGE(5, 20), DONE),
    'no choices': events(THREE, FIN, bare, DONE),
    'null choices': events(THREE, FIN, bare.replace('{"id"', '{"choices":null,"id"'), DONE),
    'after the marker': events(THREE, FIN, DONE, USAGE(5, 20)),
  }
  const { weir, upstream, play } = await stage(t, { ...scripts, along: events(ROLE, along, FIN, DONE) })
  for (const name of ['empty choices', 'no choices', 'null choices']) {
    const answer = await play(name)
    t.equal(answer.text, THREE + FIN + DONE, name)
    t.match(answer.log, { verdict: 'good', inputTokens: 5, outputTokens: 20, estimated: undefined })
  }
  const along_ = await play('along')
  t.equal(along_.text, ROLE + along + FIN + DONE, 'usage beside a choice stays with it')
  t.match(along_.log, { verdict: 'good', outputTokens: 20 })
  t.equal((await play('after the marker')).text, THREE + FIN + DONE)
  for (const { body } of upstream.requests) {
    t.same(JSON.parse(body.toString()).stream_options, { include_usage: true })
  }
  const asked = await play('no choices', { body: body({ stream_options: { include_usage: true } }) }, 'asked')
  t.equal(asked.text, THREE + FIN + bare + DONE, 'who asks for it gets it')
  await weir.atRest()
})

t.test('to ask for usage, bytes are put in and all others stay as the client wrote them', async t => {
  const { weir, upstream, play } = await stage(t, { ok: events(ROLE, TOK('a'), FIN, USAGE(5, 1), DONE) })
  const pairs: [sent: string, got: string][] = [
    // Big integers, odd spacing, escapes, an unknown member, and keys in their order.
    [
      '{ "seed":123456789012345678901234567890, "x_unknown":{"b":1e400,"a":[1.0,-0]},\t"stream" : true,\r\n"model":"m" ,"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude42 é"}] }\n',
      '{ "seed":123456789012345678901234567890, "x_unknown":{"b":1e400,"a":[1.0,-0]},\t"stream" : true,\r\n"model":"m" ,"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude42 é"}] ,"stream_options":{"include_usage":true}}\n',
    ],
    [
      '{"stream_options":{"include_usage":false,"x":1},"model":"m","stream":true}',
      '{"stream_options":{"include_usage":true,"x":1},"model":"m","stream":true}',
    ],
    [
      '{"model":"m","stream":true,"stream_options": { "x" : 1 } }',
      '{"model":"m","stream":true,"stream_options": {"include_usage":true, "x" : 1 } }',
    ],
    [
      '{"model":"m","stream":true,"stream_options":{ }}',
      '{"model":"m","stream":true,"stream_options":{"include_usage":true }}',
    ],
    [
      '{"model":"m","stream":true,"stream_options":null}',
      '{"model":"m","stream":true,"stream_options":{"include_usage":true}}',
    ],
    [
      '{"model":"m","stream":true,"stream_options":{"include\\u005fusage":null}}',
      '{"model":"m","stream":true,"stream_options":{"include\\u005fusage":true}}',
    ],
    // Its own business: asked already, or nothing that could be asked this way.
    ...[
      '{"model":"m","stream":true,"stream_options":{"include_usage":true}}',
      '{"model":"m","stream":true,"stream_options":[]}',
    ].map((same): [string, string] => [same, same]),
  ]
  for (const [i, [sent, got]] of pairs.entries()) {
    await play('ok', { body: sent }, `pair-${i}`)
    t.equal(upstream.requests.at(-1)?.body.toString(), got)
  }
  await weir.atRest()
})

t.test('a rewritten model is the only other change to a body', async t => {
  const upstream = await startUpstream(t, events(ROLE, TOK('a'), FIN, USAGE(5, 1), DONE))
  const data = configData([upstream.url])
  const weir = await startTestWeir(t, {
    ...data,
    routes: [{ when: { model: '*-agent' }, class: 'chat', rewrite: { model: 'm' } }, { class: 'chat' }],
  })
  const sent = '{"big":18446744073709551616,"mod\\u0065l" : "m\\u002dagent" ,"stream":true,"messages":[]}'
  await ask(weir.url, { body: sent }).answer
  t.equal(
    upstream.requests[0]?.body.toString(),
    '{"big":18446744073709551616,"mod\\u0065l" : "m" ,"stream":true,"messages":[],"stream_options":{"include_usage":true}}',
  )
  t.match((await weir.requestLogs(1))[0], { model: 'm', verdict: 'good' })
  await weir.atRest()
})

t.test('an upstream that refuses stream_options is asked without, at once and from then on', async t => {
  const refusal = '{"error":{"message":"unknown field stream_options","code":400}}'
  const { weir, upstream, play } = await stage(t, {
    *picky({ body }) {
      if (body.includes('stream_options')) yield WHOLE(400, refusal)
      else yield* stream(THREE, FIN, DONE)
    },
    *wrong() {
      yield WHOLE(400, '{"error":{"message":"messages: too few"}}')
    },
  })
  const wrong = await play('wrong')
  t.equal(wrong.status, 400)
  t.equal(wrong.text, '{"error":{"message":"messages: too few"}}', 'a 400 for another reason is the client’s')
  t.equal(wrong.log['verdict'], 'client_error')
  t.equal(upstream.requests.length, 2)

  const first = await play('picky', {}, 'first')
  t.equal(first.status, 200)
  t.equal(first.text, THREE + FIN + DONE)
  t.match(first.log, { verdict: 'good', estimated: true })
  t.equal(upstream.requests.length, 4, 'asked with and without')
  const second = await play('picky', {}, 'second')
  t.equal(second.text, THREE + FIN + DONE)
  t.equal(upstream.requests.length, 5, 'and then without')
  t.equal(weir.logs.filter(line => String(line['msg']).includes('stream_options')).length, 1, 'told once')
  t.equal(await weir.metric('weir_requests_total'), 3, 'each counted once')
  await weir.atRest()
})

t.test('an upstream that takes stream_options is not asked twice for a 400 of the client’s', async t => {
  const { weir, upstream, play } = await stage(t, {
    good: events(THREE, FIN, USAGE(1, 3), DONE),
    *wrong() {
      yield WHOLE(400, '{"error":{}}')
    },
  })
  await play('good')
  const before = upstream.requests.length
  t.equal((await play('wrong')).status, 400)
  t.equal(upstream.requests.length, before + 1)
  await weir.atRest()
})

t.test(
  'with or without its marker, once or twice, a finished answer is complete and counted once',
  async t => {
    const scripts: Record<string, { script: Script; text: string }> = {
      missing: { script: events(THREE, FIN, USAGE(5, 3)), text: THREE + FIN },
      doubled: { script: events(THREE, FIN, DONE, DONE), text: THREE + FIN + DONE + DONE },
      unspaced: { script: events(THREE, FIN, 'data:[DONE]\n\n'), text: `${THREE}${FIN}data:[DONE]\n\n` },
      'without blank line': {
        script: events(THREE, FIN, 'data: [DONE]\n'),
        text: `${THREE}${FIN}data: [DONE]\n`,
      },
      'crlf marker': {
        script: events(THREE, FIN, 'data: [DONE]\r\n\r\n'),
        text: `${THREE}${FIN}data: [DONE]\r\n\r\n`,
      },
      'no finish but a marker': { script: events(THREE, DONE), text: THREE + DONE },
      'something after it': {
        script: events(THREE, FIN, DONE, ': bye\n\n'),
        text: `${THREE + FIN + DONE}: bye\n\n`,
      },
      'closed by the connection': {
        *script() {
          yield 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n'
          yield THREE + FIN + DONE
          yield 'CUT'
        },
        text: THREE + FIN + DONE,
      },
      'cut behind the marker': {
        *script() {
          yield HDR
          yield THREE + FIN + DONE
          yield 'CUT'
        },
        text: THREE + FIN + DONE,
      },
      'reset behind the marker': {
        *script() {
          yield HDR
          yield THREE + FIN + DONE
          yield { wait: 30 }
          yield 'RST'
        },
        text: THREE + FIN + DONE,
      },
    }
    const { weir, play } = await stage(
      t,
      Object.fromEntries(Object.entries(scripts).map(([name, { script }]) => [name, script])),
    )
    for (const [name, { text }] of Object.entries(scripts)) {
      const answer = await play(name)
      t.equal(answer.text, text, name)
      t.ok(answer.whole, `${name}: ends as it should`)
      t.match(answer.log, { verdict: 'good', ending: 'complete', outputTokens: 3 }, name)
    }
    t.equal(await weir.metric('weir_requests_total'), Object.keys(scripts).length)
    await weir.atRest()
  },
)

t.test(
  'the marker ends an answer: the slot is free at once, though the upstream holds its socket',
  async t => {
    const { weir, upstream, play } = await stage(
      t,
      {
        *held({ index }) {
          yield HDR
          yield { wait: 100 }
          yield THREE + FIN + USAGE(5, 3) + DONE
          if (index === 0) yield 'HOLD'
          yield 'EOF'
        },
      },
      {},
      { max_in_flight: 1 },
    )
    const start = performance.now()
    const first = ask(weir.url, { headers: { 'x-script': 'held', 'x-request-id': 'first' } })
    await first.received(Buffer.byteLength(THREE + FIN + DONE))
    t.match(await weir.requestLog('first'), { verdict: 'good', ending: 'complete' })
    t.equal(await weir.metric('weir_in_flight'), 0)
    const second = await play('held', {}, 'second')
    t.equal(second.status, 200, 'the one slot is free')
    t.equal(upstream.requests.length, 2)
    t.ok(performance.now() - start < 1000, 'and that did not wait for the first upstream')

    const answer = await first.answer
    t.equal(answer.text, THREE + FIN + DONE)
    t.ok(answer.whole, 'the client gets its end')
    const e2e = Number((await weir.requestLog('first'))['e2eMs'])
    t.ok(e2e >= 95 && e2e < 300, `e2e ${e2e} ms`)
    await weir.until('the held socket is let go', () => upstream.running === 0)
    await weir.atRest()
  },
)

t.test(
  'without a finish reason or a marker an answer is truncated, and gets no marker from Weir',
  async t => {
    const { weir, play } = await stage(t, {
      'no finish': events(THREE),
      'one of two choices': events(ROLE, TOK('a'), TOK('b', 1), FIN),
      'half an event': events(THREE, TOK('d').slice(0, 40)),
      aborted: events(THREE, DELTA({}, 'abort'), DONE),
    })
    for (const name of ['no finish', 'one of two choices', 'half an event']) {
      const answer = await play(name)
      t.notMatch(answer.text, '[DONE]', name)
      t.match(inBand(answer.text), { code: 'weir_upstream_truncated', message: /broke off/ }, name)
      t.match(answer.log, { verdict: 'truncated', code: 'weir_upstream_truncated', status: 200 }, name)
    }
    t.match(
      (await play('aborted')).log,
      { verdict: 'truncated' },
      'finish reason abort is no end of an answer',
    )
    await weir.atRest()
  },
)

const GATEWAY = '{"error":{"message":"x","type":"GatewayTimeout","code":504}}'

t.test('an error event before any output is a failed attempt: another replica, or a true status', async t => {
  const errors: Record<string, string> = {
    'a 504': `data: ${GATEWAY}\n\n`,
    named: `event: error\ndata: ${GATEWAY}\n\n`,
    'no code': 'data: {"error":{"message":"x","code":null}}\n\n',
    text: 'data: {"error":"out of memory"}\n\n',
    'its own object': 'data: {"object":"error","message":"x","code":500}\n\n',
    'not json': 'event: error\ndata: out of memory\n\n',
    'after a role': `${ROLE}: ping\n\ndata: ${GATEWAY}\n\n`,
    'with output in the same write': `${ROLE}${TOK('a')}data: ${GATEWAY}\n\n`,
  }
  const scripts = Object.fromEntries(
    Object.entries(errors).map(([name, error]) => [name, events(error, DONE)]),
  )
  const { weir, play, upstream } = await stage(t, scripts)
  for (const name of Object.keys(errors)) {
    const answer = await play(name)
    t.equal(answer.status, 502, name)
    t.match(answer.headers, { 'content-type': /^application\/json/, 'retry-after': /^\d+$/ })
    t.match(errorOf(answer.text), { code: 'weir_upstream_error', type: 'upstream_error', param: null }, name)
    t.match(answer.log, { verdict: 'upstream_error', ending: 'upstreamError', tpotMs: undefined }, name)
  }
  t.equal(await weir.metric('weir_ttft_seconds_count'), 0)
  t.equal(await weir.metric('weir_tpot_seconds_count'), 0)
  t.equal(upstream.requests.length, Object.keys(errors).length, 'one replica is not asked twice')
  await weir.atRest()

  const good = await startUpstream(t, events(THREE, FIN, DONE))
  const pair = await startTestWeir(
    t,
    configData([upstream.url, good.url], { retries: { share: 1, floor: 50 } }),
  )
  for (const name of Object.keys(errors)) {
    for (let i = 0; i < 3; i++) {
      const answer = await player(pair)(name, {}, `${name.replaceAll(' ', '-')}-${i}`)
      t.equal(answer.text, THREE + FIN + DONE, `${name}: the other replica’s answer, and nothing of this one`)
    }
  }
  t.ok((await pair.metric('weir_reroute_total', { reason: 'stream_error' })) > 0)
  t.equal(
    await pair.metric('weir_replica_up', { replica: `127.0.0.1:${upstream.port}` }),
    0,
    'and it counts against its health',
  )
  t.equal(await pair.metric('weir_replica_up', { replica: `127.0.0.1:${good.port}` }), 1)
  await pair.atRest()
})

t.test('an error event that is the request’s own fault becomes the status it should have been', async t => {
  const error = '{"error":{"message":"context too long","type":"invalid_request_error","code":400}}'
  const { weir, upstream, play } = await stage(t, { fault: events(ROLE, `data: ${error}\n\n`, DONE) })
  const answer = await play('fault')
  t.equal(answer.status, 400)
  t.equal(answer.text, error)
  t.match(answer.log, { verdict: 'client_error', ttftMs: undefined })
  t.equal(upstream.requests.length, 1)
  await weir.atRest()
})

t.test('an error event after output goes on to the client, and the request is not sent again', async t => {
  const text = `${ROLE}${TOK('x').repeat(5)}data: ${GATEWAY}\n\n`
  const script: Script = function* () {
    yield HDR
    yield ROLE + TOK('x').repeat(5)
    yield { wait: 30 }
    yield `data: ${GATEWAY}\n\n`
    yield DONE
    yield 'EOF'
  }
  const first = await startUpstream(t, script)
  const second = await startUpstream(t, script)
  const weir = await startTestWeir(t, configData([first.url, second.url]))
  const answer = await ask(weir.url).answer
  t.equal(answer.text, text + DONE)
  const [log] = await weir.requestLogs(1)
  t.match(log, { verdict: 'upstream_error', status: 200 })
  t.equal(first.requests.length + second.requests.length, 1)
  t.equal(
    await weir.metric('weir_clause_total', { slo: 'target', clause: 'joint', result: 'missed' }),
    1,
    'offered, and not good',
  )
  await weir.atRest()
})

const PLAIN = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n'

/** Three tokens, and then the connection breaks, in each of these ways. */
const BREAKS: Record<string, Script> = {
  *cut() {
    yield HDR
    yield THREE
    yield 'CUT'
  },
  *reset() {
    yield HDR
    yield THREE
    yield { wait: 30 }
    yield 'RST'
  },
  *'closed without framing'() {
    yield `${PLAIN}Connection: close\r\n\r\n`
    yield THREE
    yield 'CUT'
  },
  *'reset without framing'() {
    yield `${PLAIN}Connection: close\r\n\r\n`
    yield THREE
    yield { wait: 30 }
    yield 'RST'
  },
  *'short of its length'() {
    yield `${PLAIN}Content-Length: 9999\r\n\r\n`
    yield THREE
    yield 'CUT'
  },
  *'a bad chunk'() {
    yield HDR
    yield THREE
    yield { raw: 'zz\r\nnonsense' }
    yield 'HOLD'
  },
  *'in mid-event'() {
    yield HDR
    yield THREE + TOK('d').slice(0, 50)
    yield 'CUT'
  },
  *'in a long event'() {
    yield HDR
    yield THREE + TOK('d'.repeat(200_000)).slice(0, 150_000)
    yield { wait: 30 }
    yield 'CUT'
  },
}

t.test(
  'an upstream that breaks off in mid-stream is told in band, never ended like a complete answer',
  async t => {
    const steady: Script = function* () {
      yield HDR
      yield ROLE
      for (let i = 0; i < 40; i++) {
        yield TOK('s')
        yield { wait: 15 }
      }
      yield FIN + USAGE(5, 40) + DONE
      yield 'EOF'
    }
    const { weir, play } = await stage(t, { ...BREAKS, steady })
    const others = Array.from({ length: 20 }, (_, i) => play('steady', {}, `steady-${i}`))
    for (const name of Object.keys(BREAKS)) {
      const answer = await play(name)
      t.equal(answer.status, 200, name)
      t.ok(answer.text.startsWith(THREE), `${name}: what came is passed on`)
      t.match(inBand(answer.text), { code: 'weir_upstream_truncated' }, name)
      t.notMatch(answer.text, '[DONE]', name)
      t.notMatch(answer.text, '"finish_reason":"stop"', name)
      t.match(answer.log, { verdict: 'truncated', ending: 'truncated', outputTokens: 3 }, name)
    }
    for (const answer of await Promise.all(others)) {
      t.equal(answer.text, ROLE + TOK('s').repeat(40) + FIN + DONE, 'other streams go on')
      t.equal(answer.log['ending'], 'complete')
    }
    t.equal(await weir.metric('weir_requests_total', { verdict: 'truncated' }), Object.keys(BREAKS).length)
    await weir.atRest()
  },
)

t.test('an answer that is no stream and breaks off breaks off for the client too', async t => {
  const whole = JSON_ANSWER(5, 7)
  const head = (length: number) =>
    `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n`
  const { weir, play } = await stage(t, {
    *cut() {
      yield head(whole.length) + whole.slice(0, 30)
      yield { wait: 30 }
      yield 'CUT'
    },
    *reset() {
      yield head(whole.length) + whole.slice(0, 30)
      yield { wait: 30 }
      yield 'RST'
    },
    *whole() {
      yield head(whole.length) + whole.slice(0, 30)
      yield { wait: 30 }
      yield whole.slice(30)
    },
    *'before the body'() {
      yield head(whole.length)
      yield { wait: 30 }
      yield 'RST'
    },
  })
  const json = { body: body({ stream: false }) }
  for (const name of ['cut', 'reset']) {
    const answer = await play(name, json)
    t.notOk(answer.whole, `${name}: nobody can take it for whole`)
    t.equal(answer.text, whole.slice(0, 30), 'and nothing is put behind it')
    t.equal(answer.log['verdict'], 'truncated', name)
  }
  const before = await play('before the body', json)
  t.equal(before.status, 502, 'nothing was sent yet: a true status')
  t.equal(before.log['verdict'], 'upstream_error')
  const good = await play('whole', json)
  t.ok(good.whole)
  t.equal(good.text, whole)
  t.match(good.log, { verdict: 'unmeasured', ending: 'complete', inputTokens: 5, outputTokens: 7 })
  await weir.atRest()
})

t.test('50 requests to a port where nobody listens are 50 answers in OpenAI’s shape', async t => {
  const port = await deadPort()
  const weir = await startTestWeir(t, configData([`http://127.0.0.1:${port}`], {}, { max_in_flight: 1000 }))
  const answers = await Promise.all(Array.from({ length: 50 }, () => ask(weir.url).answer))
  for (const answer of answers) {
    t.equal(answer.status, 502)
    t.match(errorOf(answer.text), {
      code: 'weir_upstream_error',
      type: 'upstream_error',
      param: null,
      message: /before it gave any output/,
    })
    t.notMatch(
      answer.text + JSON.stringify(answer.headers),
      String(port),
      'no address of a replica leaves Weir',
    )
  }
  t.equal(await weir.metric('weir_requests_total', { verdict: 'upstream_error' }), 50)
  t.equal(await weir.metric('weir_ttft_seconds_count'), 0)
  await weir.atRest()
})

t.test(
  'a replica that fails before the commit is left once, for another one, and never asked again',
  async t => {
    const failures: Record<string, Script> = {
      *'status 500'() {
        yield WHOLE(500, '{"error":{"message":"boom"}}')
      },
      *'status 503'() {
        yield WHOLE(503, '')
      },
      *busy() {
        yield WHOLE(429, '{"error":{"message":"full"}}')
      },
      *'reset after the head'() {
        yield HDR
        yield ROLE
        yield { wait: 30 }
        yield 'RST'
      },
      *'cut before a head'() {
        yield 'CUT'
      },
      *'not http'() {
        yield 'SSH-2.0-OpenSSH_9.6\r\n'
        yield 'HOLD'
      },
      *html() {
        yield WHOLE(200, '<html>login</html>', 'text/html')
      },
      *redirect() {
        yield WHOLE(302, '', 'text/html', 'Location: /elsewhere\r\n')
      },
    }
    const byScript: Script = request => failures[request.headers['x-script'] ?? '']!(request)
    const bad = await Promise.all(Array.from({ length: 3 }, () => startUpstream(t, byScript)))
    const over = { retries: { share: 1, floor: 100 } }
    const weir = await startTestWeir(
      t,
      configData(
        bad.map(({ url }) => url),
        over,
      ),
    )
    for (const name of Object.keys(failures)) {
      for (const upstream of bad) upstream.requests.length = 0
      const answer = await player(weir)(name)
      t.equal(answer.status, name === 'busy' ? 429 : 502, name)
      t.same(bad.map(({ requests }) => requests.length).sort(), [0, 1, 1], `${name}: two replicas, once each`)
      // Otherwise all three would soon be out.
      await weir.until('room', async () => (await weir.metric('weir_in_flight')) === 0)
    }
    await weir.atRest()

    const good = await startUpstream(t, events(THREE, FIN, USAGE(1, 3), DONE))
    for (const name of Object.keys(failures)) {
      const pair = await startTestWeir(t, configData([bad[0]!.url, good.url], over))
      bad[0]!.requests.length = 0
      const answers: Played[] = []
      for (let i = 0; i < 4; i++) answers.push(await player(pair)(name, {}, `try-${i}`))
      for (const { text, headers } of answers) {
        t.equal(text, THREE + FIN + DONE, `${name}: answered by the other one`)
        t.match(headers['x-weir-decision'], /^(home|reroute)$/)
      }
      const rerouted = answers.filter(({ headers }) => headers['x-weir-decision'] === 'reroute').length
      t.equal(rerouted, bad[0]!.requests.length, 'the decision is told')
      t.equal(await pair.metric('weir_reroute_total'), rerouted)
      await pair.atRest()
    }
  },
)

t.test('what must not be repeated is not: a stored answer, and more than the budget allows', async t => {
  const fail: Script = function* () {
    yield WHOLE(500, '{}')
  }
  const bad = await Promise.all([startUpstream(t, fail), startUpstream(t, fail)])
  const sent = () => bad.reduce((sum, { requests }) => sum + requests.length, 0)
  const weir = await startTestWeir(
    t,
    configData(
      bad.map(({ url }) => url),
      { retries: { share: 0.1, floor: 3 } },
    ),
  )
  for (const over of [{ store: true }, { background: true }]) {
    const before = sent()
    t.equal((await ask(weir.url, { body: body(over) }).answer).status, 502)
    t.equal(sent(), before + 1, JSON.stringify(over))
  }
  const before = sent()
  for (let i = 0; i < 6; i++) t.equal((await ask(weir.url).answer).status, 502)
  t.equal(sent(), before + 6 + 3, 'six requests, and the three repeats of the floor')
  await weir.atRest()
})

t.test('connections are used again after complete answers, and after other clients left', async t => {
  const { weir, upstream } = await stage(t, {
    quick: events(THREE, FIN, USAGE(1, 3), DONE),
    *slow() {
      yield HDR
      yield THREE
      yield 'HOLD'
    },
  })
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.teardown(() => agent.destroy())
  let onePort: number | undefined
  for (let i = 0; i < 5; i++) {
    const leaver = ask(weir.url, { headers: { 'x-script': 'slow' } })
    await leaver.received(1)
    const quick = ask(weir.url, { agent, headers: { 'x-script': 'quick' } })
    t.equal((await quick.answer).text, THREE + FIN + DONE)
    leaver.leave()
    await weir.until('the upstream of who left is closed', () => upstream.running === 0)
    const [socket] = Object.values(agent.freeSockets).flat()
    onePort ??= socket?.localPort
    t.equal(socket?.localPort, onePort, 'the client’s connection is kept')
  }
  t.ok(
    upstream.requests.some(({ onSocket }) => onSocket > 0),
    'and so are those to the upstream',
  )
  t.ok(upstream.sockets <= 2, `${upstream.sockets} sockets`)
  await weir.atRest()
})

t.test('a reused connection that turns out dead is replaced once by a fresh one', async t => {
  const endings: Record<string, Step> = { closed: 'CUT', reset: 'RST' }
  for (const [name, ending] of Object.entries(endings)) {
    const upstream = await startUpstream(t, function* ({ onSocket }) {
      // The second request on a connection finds that it was closed just now.
      if (onSocket > 0) {
        yield ending
        return
      }
      yield* stream(THREE, FIN, USAGE(1, 3), DONE)
    })
    const weir = await startTestWeir(t, configData([upstream.url]))
    for (let i = 0; i < 4; i++) {
      const answer = await ask(weir.url).answer
      t.equal(answer.status, 200, name)
      t.equal(answer.text, THREE + FIN + DONE, name)
      t.equal(answer.headers['x-weir-decision'], 'home', 'which is no reroute')
    }
    t.ok((await weir.metric('weir_reroute_total', { reason: 'reused_socket' })) >= 1, name)
    t.equal(await weir.metric('weir_requests_total', { verdict: 'good' }), 4, name)

    const before = upstream.requests.length
    const stored = await ask(weir.url, { body: body({ store: true }) }).answer
    t.equal(upstream.requests.length, before + 1, 'a stored answer is not repeated even then')
    t.ok([200, 502].includes(stored.status))
    await weir.atRest()
  }

  // A fresh connection that breaks is a failure, not a dead one: it is not repeated there.
  const upstream = await startUpstream(t, function* () {
    yield 'RST'
  })
  const weir = await startTestWeir(t, configData([upstream.url]))
  t.equal((await ask(weir.url).answer).status, 502)
  t.equal(upstream.requests.length, 1)
  await weir.atRest()
})

t.test('hop-by-hop lines, credentials and Weir’s own headers stay where they are', async t => {
  const tails: Record<string, string> = {
    'with its trailer': '0\r\nx-sum: 1\r\n\r\n',
    'without it': '0\r\n\r\n',
  }
  for (const [name, tail] of Object.entries(tails)) {
    const upstream = await startUpstream(t, function* () {
      yield 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: x-up\r\nX-Up: 1\r\nKeep-Alive: timeout=1\r\nTrailer: x-sum\r\nX-Weir-Pool: forged\r\nX-Kept: yes\r\nTransfer-Encoding: chunked\r\n\r\n'
      yield THREE + FIN + USAGE(1, 3) + DONE
      yield { raw: tail }
    })
    const weir = await startTestWeir(t, configData([upstream.url]))
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    t.teardown(() => agent.destroy())
    const answer = await ask(weir.url, {
      agent,
      headers: {
        connection: 'x-hop, keep-alive',
        'x-hop': '1',
        'keep-alive': 'timeout=9',
        'proxy-authorization': 'Basic eA==',
        te: 'trailers',
        authorization: 'Bearer secret',
        'x-api-key': 'secret',
        'api-key': 'secret',
        cookie: 'a=secret',
        'x-weir-class': 'chat',
        'x-weir-session': 's1',
        'x-weir-ttft-ms': '400',
        'accept-encoding': 'gzip',
        traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
        'x-custom': 'kept',
      },
    }).answer
    const request = upstream.requests[0]
    const names = Object.keys(request?.headers ?? {})
    for (const gone of [
      'x-hop',
      'keep-alive',
      'proxy-authorization',
      'te',
      'upgrade',
      'authorization',
      'x-api-key',
      'api-key',
      'cookie',
    ])
      t.notOk(names.includes(gone), `${gone} does not go to the upstream`)
    t.same(
      names.filter(header => header.startsWith('x-weir-')),
      [],
    )
    t.notMatch(request?.rawHead ?? '', 'secret')
    t.match(request?.headers, {
      'x-custom': 'kept',
      traceparent: /^00-0af7651916cd43dd8448eb211c80319c-/,
      'accept-encoding': 'identity',
      'content-length': String(request?.body.length),
      host: `127.0.0.1:${upstream.port}`,
    })

    t.equal(answer.text, THREE + FIN + DONE, `${name}: the whole body, and no trailer in it`)
    t.ok(answer.whole)
    for (const gone of ['x-up', 'trailer'])
      t.notOk(gone in answer.headers, `${gone} does not go to the client`)
    t.not(answer.headers['keep-alive'], 'timeout=1')
    t.match(answer.headers, { 'x-kept': 'yes', 'x-weir-pool': 'main', 'x-weir-class': 'chat' })
    const again = await ask(weir.url, { agent }).answer
    t.equal(again.text, THREE + FIN + DONE, 'a second request on the same connection')
    t.same(
      (await weir.requestLogs(2)).map(log => log['verdict']),
      ['good', 'good'],
      name,
    )
    await weir.atRest()
  }
})
