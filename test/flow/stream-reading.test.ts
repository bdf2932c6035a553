/** What Weir reads of a stream: events however they are cut, the first token and no earlier sign of life, the pace. */
import { Agent } from 'node:http'
import t from 'tap'
import { ask, body } from '../fixtures/client.js'
import { DELTA, DONE, FIN, ROLE, TOK, USAGE } from '../fixtures/events.js'
import { live, MiB } from '../fixtures/memory.js'
import { stage } from '../fixtures/stage.js'
import { HDR, type Step, startUpstream } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

type Log = Record<string, unknown>

/** Asks for usage itself, so that every byte of the upstream's is for it. */
const ALL_BYTES = body({ stream_options: { include_usage: true } })

const num = (log: Log, name: string): number => {
  const value = log[name]
  if (typeof value !== 'number') throw new Error(`${name} is ${value} in ${JSON.stringify(log)}`)
  return value
}

t.test('however an upstream cuts its bytes, the same ones go on and the same tokens are counted', async t => {
  const first = TOK('你好🙂é')
  const events = [ROLE, first, TOK('x').replace('"x"', '"\\u4f60"'), FIN, USAGE(5, 7), DONE]
  const whole = Buffer.from(events.join(''))
  const kept = Buffer.from(events.filter(event => event !== events[4]).join(''))

  const upstream = await startUpstream(t, function* ({ headers }) {
    yield HDR
    if (headers['x-cut'] === 'bytes') {
      for (let i = 0; i < whole.length; i++) yield whole.subarray(i, i + 1)
    } else {
      const cut = Number(headers['x-cut'])
      if (cut > 0) yield whole.subarray(0, cut)
      yield { wait: Number(headers['x-pause'] ?? 2) }
      if (cut < whole.length) yield whole.subarray(cut)
    }
    yield 'EOF'
  })
  const weir = await startTestWeir(t, configData([upstream.url], {}, { max_in_flight: 1000 }))
  const agent = new Agent({ keepAlive: true, maxSockets: 100 })
  t.teardown(() => agent.destroy())
  const play = (cut: string, usage: boolean, pause = '2', id = 'none') =>
    ask(weir.url, {
      agent,
      headers: { 'x-cut': cut, 'x-pause': pause, 'x-request-id': id },
      ...(usage && { body: ALL_BYTES }),
    }).answer

  const cuts = [...Array(whole.length + 1).keys()].map(String)
  const wrong: string[] = []
  const check = async (cut: string, usage: boolean): Promise<void> => {
    const answer = await play(cut, usage)
    if (!answer.whole || !answer.body.equals(usage ? whole : kept)) wrong.push(`${cut}, usage ${usage}`)
  }
  for (let i = 0; i < cuts.length; i += 100) {
    const batch = cuts.slice(i, i + 100)
    // Every offset for a client that did not ask for usage, every tenth for one that did.
    await Promise.all(
      batch.flatMap((cut, k) => [check(cut, false), ...(k % 10 === 0 ? [check(cut, true)] : [])]),
    )
  }
  await Promise.all([check('bytes', false), check('bytes', true)])
  t.same(wrong, [], 'every answer is the upstream’s, less the usage event that Weir asked for')

  const requests = upstream.requests.length
  const logs = await weir.requestLogs(requests)
  t.equal(await weir.metric('weir_ttft_seconds_count'), requests, 'one first token each')
  t.same([...new Set(logs.map(log => log['outputTokens']))], [7], 'one count of tokens')
  t.same([...new Set(logs.map(log => log['ending']))], ['complete'])
  t.equal(await weir.metric('weir_tokens_total', { kind: 'output' }), 7 * requests)
  t.equal(await weir.metric('weir_unparsed_events_total'), 0)
  t.equal(await weir.metric('weir_usage_missing_total'), 0)

  // An event is there when its last byte is: inside a character, between the two line ends, and just behind it.
  const at = Buffer.byteLength(ROLE)
  const end = at + Buffer.byteLength(first)
  const inside = at + first.indexOf('你') + 1
  await Promise.all([
    play(String(inside), false, '200', 'inside'),
    play(String(end - 1), false, '200', 'between'),
    play(String(end), false, '200', 'behind'),
  ])
  t.ok(num(await weir.requestLog('inside'), 'ttftMs') >= 195)
  t.ok(num(await weir.requestLog('between'), 'ttftMs') >= 195)
  t.ok(num(await weir.requestLog('behind'), 'ttftMs') < 150)
  await weir.atRest()
})

t.test('whatever ends the lines of a stream, it is read alike and goes on unchanged', async t => {
  const events = [ROLE, ...Array.from({ length: 40 }, (_, i) => TOK(`t${i} `)), FIN, USAGE(5, 40), DONE]
  const ends: Record<string, (event: string) => string> = {
    lf: event => event,
    crlf: event => event.replaceAll('\n', '\r\n'),
    cr: event => event.replaceAll('\n', '\r'),
    'no space': event => event.replace('data: ', 'data:'),
  }
  const scripts = Object.entries(ends).map(([name, end]) => [
    name,
    function* (): Iterable<Step> {
      yield HDR
      yield { wait: 100 }
      for (const event of events) yield end(event)
      yield 'EOF'
    },
  ])
  const { weir, play } = await stage(t, Object.fromEntries(scripts))
  for (const [name, end] of Object.entries(ends)) {
    await t.test(name, async t => {
      const { log, body, whole } = await play(name)
      const kept = events.filter(event => event !== USAGE(5, 40)).map(end)
      t.equal(body.toString(), kept.join(''), 'less the event that Weir asked for')
      t.ok(whole)
      t.match(log, { verdict: 'good', ending: 'complete', outputTokens: 40, inputTokens: 5 })
      t.ok(num(log, 'ttftMs') >= 95 && num(log, 'ttftMs') < 250, `TTFT ${num(log, 'ttftMs')} ms`)
      t.ok(num(log, 'tpotMs') > 0)

      const asked = await ask(weir.url, { headers: { 'x-script': name }, body: ALL_BYTES }).answer
      t.equal(asked.body.toString(), events.map(end).join(''), 'all of it, for who asked for usage')
    })
  }
  t.equal(await weir.metric('weir_unparsed_events_total'), 0)
  await weir.atRest()
})

t.test('a long stream with CRLF ends piles up nowhere, and its cost grows with its length only', async t => {
  const crlf = (event: string): string => event.replaceAll('\n', '\r\n')
  const token = Buffer.from(crlf(TOK('some words of an answer ')))
  // Cuts fall anywhere in an event, as they do on a network.
  const piece = Buffer.concat(Array.from({ length: 1 + Math.ceil(MiB / 4 / token.length) }, () => token))
  const script = (pieces: number) =>
    function* (): Iterable<Step> {
      yield HDR
      for (let i = 0; i < pieces; i++) yield piece
      yield crlf(FIN + DONE)
      yield 'EOF'
    }
  const { weir, play } = await stage(t, { warm: script(8), short: script(16), long: script(64) })
  await play('warm')
  const run = async (name: string) => {
    const before = live()
    const cpu = process.cpuUsage()
    let bytes = 0
    let next = 4 * MiB
    let most = 0
    const { log } = await play(name, {
      onRead(read) {
        bytes += read.length
        if (bytes < next) return
        next += 4 * MiB
        most = Math.max(most, live() - before)
      },
    })
    const { user, system } = process.cpuUsage(cpu)
    return { bytes, most, cpu: user + system, log }
  }
  const short = await run('short')
  const long = await run('long')
  t.equal(long.bytes, 64 * piece.length + Buffer.byteLength(crlf(FIN + DONE)))
  t.match(long.log, { verdict: 'good', outputTokens: (64 * piece.length) / token.length })
  t.ok(long.most < 8 * MiB, `live memory grew by ${(long.most / MiB).toFixed(1)} MiB at most`)
  t.ok(long.cpu < 8 * short.cpu, `4 times the bytes took ${(long.cpu / short.cpu).toFixed(1)} times the CPU`)
  await weir.atRest()
})

t.test('comments are held for the first token, and are not taken for it', async t => {
  const script = function* (): Iterable<Step> {
    yield HDR
    for (let i = 0; i < 3; i++) {
      yield { wait: 50 }
      yield ':\n\n'
    }
    yield { wait: 50 }
    yield ': PROCESSING\n\n'
    yield { wait: 20 }
    yield ROLE
    yield { wait: 80 }
    yield TOK('a')
    yield FIN + DONE
    yield 'EOF'
  }
  const silent = function* (): Iterable<Step> {
    yield HDR
    for (let i = 0; i < 5; i++) {
      yield ': ping\n\n'
      yield { wait: 20 }
    }
    yield 'EOF'
  }
  const { weir, play } = await stage(t, { prefill: script, silent })
  const answer = await play('prefill')
  t.equal(
    answer.text,
    `:\n\n:\n\n:\n\n: PROCESSING\n\n${ROLE}${TOK('a')}${FIN}${DONE}`,
    'unchanged and in order',
  )
  t.ok(answer.headAt >= 290, `the head waited for the token: ${answer.headAt} ms`)
  const ttft = num(answer.log, 'ttftMs')
  t.ok(ttft >= 290 && ttft < 450, `TTFT ${ttft} ms`)
  t.equal(answer.log['verdict'], 'good')

  const nothing = await play('silent')
  t.equal(nothing.status, 502)
  t.equal(JSON.parse(nothing.text).error.code, 'weir_upstream_error')
  t.match(nothing.log, { verdict: 'upstream_error', ttftMs: undefined, tpotMs: undefined })
  t.equal(await weir.metric('weir_ttft_seconds_count'), 1, 'comments alone are no first token')
  await weir.atRest()
})

t.test('with commit_after 0s a comment reaches the client before any token exists', async t => {
  let release: (() => void) | undefined
  const held = new Promise<void>(resolve => {
    release = resolve
  })
  const script = async function* (): AsyncIterable<Step> {
    yield HDR
    yield ': one\n\n'
    yield { wait: 60 }
    yield ': two\n\n'
    // The token is made when the client says that it has the comments: a held comment would wait for ever.
    await held
    yield ROLE + TOK('a') + FIN + DONE
    yield 'EOF'
  }
  const { weir } = await stage(t, { script }, { commit_after: '0s' })
  const start = performance.now()
  const asked = ask(weir.url, { headers: { 'x-script': 'script', 'x-request-id': 'script' } })
  await asked.received(Buffer.byteLength(': weir\n\n: one\n\n: two\n\n'))
  const waited = performance.now() - start
  release?.()
  const answer = await asked.answer
  t.ok(answer.headAt < waited, 'the head is out before the token')
  t.equal(answer.text.replaceAll(': weir\n\n', ''), `: one\n\n: two\n\n${ROLE}${TOK('a')}${FIN}${DONE}`)
  t.match(answer.text, ': weir\n\n', 'a comment of Weir’s own keeps the connection')
  const log = await weir.requestLog('script')
  t.ok(num(log, 'ttftMs') >= 55, 'the commit is not the first token')
  t.equal(log['verdict'], 'good')
  await weir.atRest()
})

t.test(
  'comments and roles keep neither the first-token clock nor the stall clock from running out',
  async t => {
    const pings = function* (): Iterable<Step> {
      for (let i = 0; i < 100; i++) {
        yield { wait: 30 }
        yield i % 2 === 0 ? ': ping\n\n' : ROLE
      }
    }
    const scripts = {
      *before(): Iterable<Step> {
        yield HDR
        yield* pings()
      },
      *after(): Iterable<Step> {
        yield HDR
        yield ROLE + TOK('a')
        yield* pings()
      },
    }
    const { weir, upstream, play } = await stage(t, scripts, {
      timeouts: { first_token: '250ms', stall: '200ms' },
    })
    const [before, after] = await Promise.all([play('before'), play('after')])
    t.equal(before.status, 504)
    t.equal(JSON.parse(before.text).error.code, 'weir_first_token_timeout')
    t.ok(before.headAt >= 245, `answered after ${before.headAt} ms`)
    t.match(before.log, { verdict: 'timeout', ttftMs: undefined })
    t.equal(after.status, 200)
    t.match(after.text, '"code":"weir_stream_stalled"')
    t.notMatch(after.text, '[DONE]')
    t.match(after.log, { verdict: 'timeout', code: 'weir_stream_stalled' })
    await weir.until('both upstream sockets are closed', () => upstream.sockets === 0)
    await weir.atRest()
  },
)

t.test('the first token is the first output, not the role that opens the stream and not the end', async t => {
  const script = (opening: string) =>
    function* (): Iterable<Step> {
      yield HDR
      yield { wait: 40 }
      yield opening
      yield { wait: 200 }
      yield TOK('Hi')
      for (let i = 0; i < 19; i++) {
        yield { wait: 15 }
        yield TOK(' x')
      }
      yield FIN + USAGE(5, 20) + DONE
      yield 'EOF'
    }
  const { weir, play } = await stage(t, {
    empty: script(ROLE),
    null: script(DELTA({ role: 'assistant', content: null })),
    'only role': script(DELTA({ role: 'assistant' })),
    *nothing() {
      yield HDR
      yield ROLE + FIN + DONE
      yield 'EOF'
    },
  })
  for (const answer of await Promise.all(['empty', 'null', 'only role'].map(name => play(name)))) {
    const ttft = num(answer.log, 'ttftMs')
    t.ok(ttft >= 235 && ttft < 400, `TTFT ${ttft} ms`)
    const tpot = num(answer.log, 'tpotMs')
    t.ok(tpot >= 14.5 && tpot < 30, `TPOT ${tpot} ms`)
    t.match(answer.log, { verdict: 'good', outputTokens: 20 })
  }
  const nothing = await play('nothing')
  t.equal(nothing.text, ROLE + FIN + DONE)
  t.match(nothing.log, { verdict: 'unmeasured', ending: 'complete', ttftMs: undefined, tpotMs: undefined })
  t.equal(await weir.metric('weir_ttft_seconds_count'), 3)
  t.equal(await weir.metric('weir_tpot_seconds_count'), 3)
  t.equal(
    await weir.metric('weir_requests_total', { verdict: 'unmeasured' }),
    1,
    'counted as an answer without output',
  )
  await weir.atRest()
})

t.test('thinking, tool calls, refusals and audio are output like content', async t => {
  const call = (fn: object) => DELTA({ tool_calls: [{ index: 0, ...fn }] })
  const named = { id: 't1', type: 'function', function: { name: 'f', arguments: '' } }
  const piece = call({ function: { arguments: '{"a' } })
  const kinds: Record<string, { first: string; more: string; finish: string }> = {
    reasoning_content: {
      first: DELTA({ reasoning_content: 'hm' }),
      more: DELTA({ reasoning_content: ' so' }) + TOK('a'),
      finish: FIN,
    },
    reasoning: {
      first: DELTA({ reasoning: 'hm' }),
      more: DELTA({ reasoning: ' so' }),
      finish: DELTA({}, 'length'),
    },
    'tool call by name': { first: call(named), more: piece, finish: DELTA({}, 'tool_calls') },
    'tool call by arguments': { first: piece, more: piece, finish: DELTA({}, 'tool_calls') },
    function_call: {
      first: DELTA({ function_call: { name: 'f', arguments: '' } }),
      more: DELTA({ function_call: { arguments: '{}' } }),
      finish: DELTA({}, 'function_call'),
    },
    refusal: { first: DELTA({ refusal: 'I' }), more: DELTA({ refusal: ' will not' }), finish: FIN },
    audio: {
      first: DELTA({ audio: { data: 'AAAA' } }),
      more: DELTA({ audio: { data: 'BBBB' } }),
      finish: FIN,
    },
    'second choice': { first: TOK('b', 1), more: TOK('b', 1), finish: DELTA({}, 'stop', 1) + FIN },
  }
  /** Nothing of this is output. */
  const silence = [
    ROLE,
    DELTA({ role: 'assistant', content: null, reasoning_content: null, tool_calls: [] }),
    call({ id: 't1', type: 'function', function: { name: '', arguments: '' } }),
    DELTA({ reasoning_content: '', refusal: '' }),
  ].join('')
  const scripts = Object.entries(kinds).map(([name, { first, more, finish }]) => [
    name,
    function* (): Iterable<Step> {
      yield HDR
      yield silence
      yield { wait: 150 }
      yield first
      for (let i = 0; i < 10; i++) {
        yield { wait: 10 }
        yield more
      }
      yield finish + USAGE(5, 21) + DONE
      yield 'EOF'
    },
  ])
  const { weir, play } = await stage(t, Object.fromEntries(scripts))
  await Promise.all(
    Object.entries(kinds).map(async ([name, { first, more, finish }]) => {
      const answer = await play(name)
      t.equal(answer.text, silence + first + more.repeat(10) + finish + DONE, name)
      const ttft = num(answer.log, 'ttftMs')
      t.ok(ttft >= 145 && ttft < 300, `${name}: TTFT ${ttft} ms`)
      t.match(answer.log, { verdict: 'good', ending: 'complete', outputTokens: 21 })
      t.ok(num(answer.log, 'tpotMs') > 0, `${name}: TPOT over all that was generated`)
    }),
  )
  t.equal(await weir.metric('weir_ttft_seconds_count'), Object.keys(kinds).length)
  await weir.atRest()
})

t.test('text completions are timed by their text', async t => {
  const text = (piece: string, finish: string | null = null): string =>
    `data: ${JSON.stringify({ id: 'c', object: 'text_completion', choices: [{ index: 0, text: piece, finish_reason: finish }] })}\n\n`
  const { weir, play, upstream } = await stage(t, {
    *text() {
      yield HDR
      yield text('')
      yield { wait: 150 }
      yield text('a')
      yield { wait: 30 }
      yield text('b') + text('', 'stop') + USAGE(3, 2) + DONE
      yield 'EOF'
    },
  })
  const answer = await play('text', {
    path: '/v1/completions',
    body: JSON.stringify({ model: 'm', stream: true, prompt: 'hi' }),
  })
  t.equal(upstream.requests[0]?.path, '/v1/completions')
  t.equal(answer.text, text('') + text('a') + text('b') + text('', 'stop') + DONE)
  t.ok(num(answer.log, 'ttftMs') >= 145)
  t.match(answer.log, { verdict: 'good', outputTokens: 2, inputTokens: 3 })
  await weir.atRest()
})

t.test(
  'several tokens in one event do not slow the pace; without usage it is told as an estimate',
  async t => {
    const script = (tail: string) =>
      function* (): Iterable<Step> {
        yield HDR
        yield { wait: 50 }
        yield ROLE + TOK('one two three ')
        for (let i = 0; i < 9; i++) {
          yield { wait: 30 }
          yield TOK('four five six ')
        }
        yield FIN + tail + DONE
        yield 'EOF'
      }
    const { weir, play } = await stage(t, {
      told: script(USAGE(10, 30)),
      untold: script(''),
      *one() {
        yield HDR
        yield ROLE + TOK('a')
        yield { wait: 30 }
        yield FIN + USAGE(10, 1) + DONE
        yield 'EOF'
      },
    })
    // Nothing is known of this upstream's events yet.
    const untold = await play('untold')
    t.equal(untold.log['estimated'], true)
    t.equal(await weir.metric('weir_usage_missing_total', { pool: 'main' }), 1)

    const told = await play('told')
    const tpot = num(told.log, 'tpotMs')
    t.ok(tpot >= 270 / 29 - 0.2 && tpot < 20, `TPOT ${tpot} ms, of gaps of 30 ms`)
    t.ok(num(told.log, 'longestGapMs') >= 29, 'the gap has a name of its own')
    t.match(told.log, { outputTokens: 30, estimated: undefined })

    const samples = await weir.metric('weir_tpot_seconds_count')
    const one = await play('one')
    t.match(one.log, { verdict: 'good', outputTokens: 1, tpotMs: undefined })
    t.equal(await weir.metric('weir_tpot_seconds_count'), samples, 'one token has no pace')

    // Having seen what this upstream puts in an event, Weir estimates by that.
    for (let i = 0; i < 3; i++) {
      const ids = Array.from({ length: 12 }, (_, k) => `told-${i}-${k}`)
      await Promise.all(ids.map(id => play('told', {}, id)))
    }
    const learned = await play('untold', {}, 'learned')
    t.equal(learned.log['estimated'], true)
    t.ok(num(learned.log, 'outputTokens') >= 27, `estimated ${num(learned.log, 'outputTokens')} of 30 tokens`)
    t.equal(await weir.metric('weir_usage_missing_total', { pool: 'main' }), 2)
    await weir.atRest()
  },
)

t.test(
  'of an event stream that is over-long, not JSON or empty, every byte goes on and nothing breaks',
  async t => {
    const long = TOK('x'.repeat(100_000))
    const odd = [
      'data: {"choices":[{\n\n',
      'data:\n\n',
      'event: ping\ndata: {}\n\n',
      'id: 1\n\n',
      '\n\n',
      'nonsense\n\n',
    ]
    const { weir, play } = await stage(
      t,
      {
        *odd() {
          yield HDR
          yield ROLE + odd.join('')
          yield long
          yield TOK('a')
          yield { wait: 5 }
          yield odd.join('') + FIN + USAGE(1, 2) + DONE
          yield 'EOF'
        },
      },
      { limits: { event: '32KiB' } },
    )
    const answer = await play('odd')
    t.equal(answer.text, ROLE + odd.join('') + long + TOK('a') + odd.join('') + FIN + DONE)
    t.match(answer.log, { verdict: 'good', ending: 'complete', outputTokens: 2 })
    t.equal(
      await weir.metric('weir_unparsed_events_total', { pool: 'main' }),
      3,
      'two broken ones, one too long',
    )
    await weir.atRest()
  },
)

t.test('the log tells the first event, the first output and the first text apart', async t => {
  const { weir, play } = await stage(t, {
    *thinks(): Iterable<Step> {
      yield HDR
      yield ROLE
      yield { wait: 120 }
      yield DELTA({ reasoning_content: 'hm' })
      yield { wait: 120 }
      yield TOK('a')
      yield FIN + DONE
      yield 'EOF'
    },
  })
  const { log } = await play('thinks')
  t.equal(log['route'], 'routes[0]')
  const [event, output, text] = [num(log, 'firstEventMs'), num(log, 'ttftMs'), num(log, 'firstVisibleMs')]
  t.ok(output - event >= 110, `${event} ${output}`)
  t.ok(text - output >= 110, `${output} ${text}`)
  await weir.atRest()
})
