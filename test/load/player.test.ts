import t, { type Test } from 'tap'
import type { PlayRecord } from '../../src/load/call.js'
import { Player, type PlayOptions, type Traffic } from '../../src/load/player.js'
import type { TraceRow } from '../../src/load/trace.js'
import { seededRng } from '../../src/time.js'
import { answer, delta, events, type Script, type Scripted, scripted, usage } from './scripted.js'

const ROW: TraceRow = { atMs: 0, inputTokens: 100, outputTokens: 3, prefix: undefined }

const once = (rows: readonly TraceRow[] = [ROW]): Traffic => ({
  label: 'chat',
  model: 'tiny',
  drainMs: 5000,
  arrivals: { kind: 'trace', speed: 1, rows },
})

interface Played {
  readonly records: PlayRecord[]
  readonly windowMs: number
  readonly upstream: Scripted
}

async function play(
  t: Test,
  script: Script,
  traffic: Traffic | readonly Traffic[],
  options: Partial<PlayOptions> = {},
): Promise<Played> {
  const upstream = await scripted(script)
  t.teardown(() => upstream.close())
  const records: PlayRecord[] = []
  const player = new Player({
    target: upstream.url,
    traffic: [traffic].flat() as Traffic[],
    rng: seededRng(1),
    onRecord: record => records.push(record),
    ...options,
  })
  const windowMs = await player.play()
  return { records, windowMs, upstream }
}

/** The record of one call to that script. */
async function one(t: Test, script: Script, traffic = once()): Promise<PlayRecord> {
  const { records } = await play(t, script, traffic)
  t.equal(records.length, 1)
  return records[0] as PlayRecord
}

/** Compared with what the upstream did on the same clock, so that a busy machine's late timers do not count. */
const near = (t: Test, got: number | undefined, wanted: number, what: string): void => {
  t.ok(
    got !== undefined && Math.abs(got - wanted) < 50,
    `${what} is ${got?.toFixed(1)} ms, near ${wanted.toFixed(1)}`,
  )
}

t.test('TTFT, last token and end are timed, and a role-only delta is no token', async t => {
  const stamps: number[] = []
  const record = await one(t, async (response, request) => {
    const steps = [delta({ role: 'assistant', content: '' }), 300, delta({ content: 'a' }), 200]
    const rest = [delta({ content: 'b' }), delta({}, 'stop'), usage(7), 200, '[DONE]']
    const written = await events(response, [...steps, ...rest], {
      'x-weir-decision': 'home',
      'x-weir-pool': 'main',
      'x-weir-class': 'chat',
    })
    response.end()
    stamps.push(...written.map(at => at - request.at))
  })
  const [role = 0, first = 0, last = 0] = stamps
  t.ok(first - role > 250, 'the role came long before')
  near(t, record.ttftMs, first, 'TTFT')
  near(t, record.lastMs, last, 'last token')
  near(t, record.e2eMs, stamps.at(-1) ?? 0, 'end')
  t.match(record, { outcome: 'complete', status: 200, tokens: 7, tokensFrom: 'usage', cachedTokens: 64 })
  t.match(record, { decision: 'home', pool: 'main', weirClass: 'chat', inputTokens: 100, wantedTokens: 3 })
})

for (const [name, output] of Object.entries({
  'a tool call name': { tool_calls: [{ index: 0, id: 'x', function: { name: 'ls', arguments: '' } }] },
  'tool call arguments': { tool_calls: [{ index: 0, function: { arguments: '{"a' } }] },
  'a function call': { function_call: { arguments: '{' } },
  reasoning_content: { reasoning_content: 'hm' },
  reasoning: { reasoning: 'hm' },
  'a refusal': { refusal: 'no' },
}))
  t.test(`${name} is output`, async t => {
    let written: number[] = []
    const record = await one(t, async (response, request) => {
      const noOutput = [delta({ content: null, tool_calls: [] }), delta({ tool_calls: [{ id: 'x' }] })]
      const steps = [...noOutput, 200, delta(output), delta({}, 'tool_calls'), '[DONE]']
      written = (await events(response, steps)).map(at => at - request.at)
      response.end()
    })
    near(t, record.ttftMs, written[2] ?? 0, 'TTFT')
    t.match(record, { outcome: 'complete', tokens: 1, tokensFrom: 'events' })
  })

t.test('the request carries a prompt of 4 bytes a token, and its answer length only in a header', async t => {
  const { upstream } = await play(t, response => answer(response), {
    ...once(),
    headers: { 'x-weir-class': 'chat' },
  })
  const [request] = upstream.received
  const body = JSON.parse(request?.body ?? '{}')
  t.equal(request?.path, '/v1/chat/completions')
  t.match(request?.headers, { 'x-engine-output-tokens': '3', 'x-weir-class': 'chat' })
  t.equal(body.messages[0].content.length, 400)
  t.match(body, { model: 'tiny', stream: true, stream_options: { include_usage: true } })
  t.notOk('max_tokens' in body)
})

t.test('for a real engine the body fixes the answer length', async t => {
  const { upstream } = await play(t, response => answer(response), once(), {
    exactBody: true,
    askUsage: false,
  })
  const body = JSON.parse(upstream.received[0]?.body ?? '{}')
  t.match(body, { max_tokens: 3, ignore_eos: true })
  t.notOk('stream_options' in body)
})

t.test('a base URL with a class prefix and /v1 keeps its prefix once', async t => {
  const upstream = await scripted(response => answer(response))
  t.teardown(() => upstream.close())
  const options = { traffic: [once()], rng: seededRng(1), onRecord: () => {} }
  await new Player({ ...options, target: `${upstream.url}/agent/v1/` }).play()
  t.equal(upstream.received[0]?.path, '/agent/v1/chat/completions')
})

t.test('a refusal with a code of Weir is shed, with its retry-after', async t => {
  const record = await one(t, response => {
    response.writeHead(503, {
      'content-type': 'application/json',
      'retry-after': '2',
      'retry-after-ms': '1500',
    })
    response.end('{"error":{"message":"no room","code":"weir_no_headroom"}}')
  })
  t.match(record, { outcome: 'shed', status: 503, code: 'weir_no_headroom', retryAfterMs: 1500, tokens: 0 })
})

t.test('whole seconds of retry-after count where there are no milliseconds', async t => {
  const record = await one(t, response => {
    response.writeHead(429, { 'content-type': 'application/json', 'retry-after': '3' })
    response.end('{"error":{"code":"weir_quota"}}')
  })
  t.match(record, { outcome: 'shed', status: 429, retryAfterMs: 3000 })
})

const failures: Record<string, { script: Script; wanted: Partial<PlayRecord> }> = {
  'a 503 that is not by Weir is an error': {
    script: response => {
      response.writeHead(503, { 'content-type': 'text/html' })
      response.end('<h1>busy</h1>')
    },
    wanted: { outcome: 'error', status: 503, code: undefined },
  },
  'a 404 is an error with the code of its body': {
    script: response => {
      response.writeHead(404, { 'content-type': 'application/json' })
      response.end('{"error":{"message":"no such model","type":"NotFoundError","code":404}}')
    },
    wanted: { outcome: 'error', status: 404, code: '404' },
  },
  'a 200 that is no event stream is an error': {
    script: response => {
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end('{"choices":[]}')
    },
    wanted: { outcome: 'error', status: 200, code: 'not_a_stream' },
  },
  'a stream that ends unfinished is truncated': {
    script: async response => {
      await events(response, [delta({ content: 'a' })])
      response.end()
    },
    wanted: { outcome: 'truncated', status: 200, tokens: 1 },
  },
  'a stream that breaks is truncated': {
    script: async response => {
      await events(response, [delta({ content: 'a' }), 50])
      response.destroy()
    },
    wanted: { outcome: 'truncated', status: 200, tokens: 1, code: 'UND_ERR_SOCKET' },
  },
  'a stream that says it was truncated is truncated': {
    script: async response => {
      const error = '{"error":{"message":"cut","code":"weir_upstream_truncated"}}'
      await events(response, [delta({ content: 'a' }), error, '[DONE]'])
      response.end()
    },
    wanted: { outcome: 'truncated', code: 'weir_upstream_truncated' },
  },
  'an error event is an error': {
    script: async response => {
      await events(response, [delta({ content: 'a' }), '{"error":{"message":"out of memory","type":"oom"}}'])
      response.end()
    },
    wanted: { outcome: 'error', status: 200, code: 'oom' },
  },
  'an event that is no JSON is an error': {
    script: async response => {
      await events(response, ['{"choices":[{"del', '[DONE]'])
      response.end()
    },
    wanted: { outcome: 'error', code: 'unparsable_event' },
  },
  'an event of the wrong shape is an error, and the player goes on': {
    script: async response => {
      await events(response, ['{"choices":7}', '[DONE]'])
      response.end()
    },
    wanted: { outcome: 'error', code: 'unparsable_event' },
  },
  'an answer that the engine aborted is no complete one': {
    script: async response => {
      await events(response, [delta({ content: 'a' }, 'abort'), '[DONE]'])
      response.end()
    },
    wanted: { outcome: 'error', code: 'finish_abort' },
  },
  'a stream that finished but has no [DONE] is complete': {
    script: async response => {
      await events(response, [delta({ content: 'a' }, 'stop')])
      response.end()
    },
    wanted: { outcome: 'complete', tokens: 1 },
  },
  'a connection that breaks after [DONE] spoils nothing': {
    script: async response => {
      await events(response, [delta({ content: 'a' }, 'stop'), '[DONE]', 50])
      response.destroy()
    },
    wanted: { outcome: 'complete', tokens: 1 },
  },
}
for (const [name, { script, wanted }] of Object.entries(failures))
  t.test(name, async t => {
    t.match(await one(t, script), wanted)
  })

t.test('a target that is not there is an error of each call', async t => {
  const upstream = await scripted(() => {})
  await upstream.close()
  const records: PlayRecord[] = []
  const options = { traffic: [once()], rng: seededRng(1), onRecord: (r: PlayRecord) => records.push(r) }
  await new Player({ ...options, target: upstream.url }).play()
  t.match(records, [{ outcome: 'error', status: undefined, code: 'ECONNREFUSED' }])
})

t.test('an open loop sends at its times, however late the answers are', async t => {
  const rows = [0, 400, 800, 1200].map(atMs => ({ ...ROW, atMs }))
  const traffic: Traffic = { ...once(), arrivals: { kind: 'trace', speed: 2, rows } }
  const { records, windowMs, upstream } = await play(t, response => answer(response, 1500), traffic)
  t.equal(upstream.open.most, 4, 'all four run at once')
  const inOrder = records.toSorted((a, b) => a.sentAt - b.sentAt)
  for (const [i, record] of inOrder.entries()) {
    t.ok(record.lateMs >= 0)
    near(t, record.sentAt, i * 200 + record.lateMs, `arrival ${i}, planned for ${i * 200},`)
  }
  const last = inOrder.at(-1)?.sentAt ?? 0
  t.ok(last < 1500, 'the last is sent before the first is answered')
  near(t, windowMs, last, 'the arrival window')
  t.ok(records.every(record => record.outcome === 'complete'))
})

t.test('poisson arrivals have their rate, and one seed plays the same requests', async t => {
  const rows = [10, 20, 30, 40].map(inputTokens => ({ ...ROW, inputTokens }))
  const traffic: Traffic = { ...once(), arrivals: { kind: 'poisson', perSecond: 100, rows } }
  const bodies: string[][] = []
  for (const waitMs of [0, 100]) {
    const { records, upstream } = await play(t, response => answer(response, waitMs), traffic, {
      durationMs: 1000,
    })
    t.ok(records.length > 60 && records.length < 140, `${records.length} arrivals, near 100`)
    bodies.push(upstream.received.map(request => request.body))
  }
  const shared = Math.min(...bodies.map(list => list.length)) - 10
  const second = new Set(bodies[1])
  t.ok(
    bodies[0]?.slice(0, shared).every(body => second.has(body)),
    'the same prompts, though answers took longer',
  )
  t.equal(new Set(bodies[0]).size, bodies[0]?.length, 'no two prompts are equal')
})

t.test('a rate of 0 sends nothing', async t => {
  const traffic: Traffic = { ...once(), arrivals: { kind: 'poisson', perSecond: 0, rows: [ROW] } }
  const { records } = await play(t, response => answer(response), traffic, { durationMs: 100 })
  t.same(records, [])
})

t.test('a closed loop keeps its users busy and never exceeds them', async t => {
  const traffic: Traffic = {
    ...once(),
    arrivals: { kind: 'closed', concurrency: 3, thinkMs: 0, rows: [ROW] },
  }
  const { records, upstream } = await play(t, response => answer(response, 50), traffic, { durationMs: 600 })
  t.equal(upstream.open.most, 3)
  t.ok(records.length > 9 && records.length <= 39, `${records.length} calls, near 36`)
})

t.test('a closed loop that is refused waits as long as it was told', async t => {
  const traffic: Traffic = {
    ...once(),
    arrivals: { kind: 'closed', concurrency: 1, thinkMs: 0, rows: [ROW] },
  }
  const { upstream } = await play(
    t,
    response => {
      response.writeHead(503, { 'content-type': 'application/json', 'retry-after-ms': '400' })
      response.end('{"error":{"code":"weir_no_headroom"}}')
    },
    traffic,
    { durationMs: 600 },
  )
  t.equal(upstream.received.length, 2)
})

t.test(
  'calls of a session follow one another with think time, share their prefix and name the session',
  async t => {
    const calls = [1, 2, 3].map(blocks => ({
      inputTokens: 64 * blocks + 10,
      outputTokens: 3,
      thinkMs: 4000,
      ids: Array.from({ length: blocks }, (_, i) => i),
    }))
    const traffic: Traffic = {
      ...once(),
      label: 'agent',
      sessionHeader: 'x-weir-session',
      arrivals: { kind: 'sessions', startsPerSecond: 6, thinkDivisor: 20, sessions: [{ id: 's', calls }] },
    }
    const { records, upstream } = await play(t, response => answer(response, 100), traffic, {
      durationMs: 2500,
    })
    const bySession = new Map<string, { at: number; content: string }[]>()
    for (const { headers, at, body } of upstream.received) {
      const name = String(headers['x-weir-session'])
      const content: string = JSON.parse(body).messages[0].content
      bySession.set(name, [...(bySession.get(name) ?? []), { at, content }])
    }
    t.same(new Set(records.map(record => record.session)), new Set(bySession.keys()))
    let pairs = 0
    for (const list of bySession.values())
      for (const [i, call] of list.entries()) {
        const before = list[i - 1]
        if (before === undefined) continue
        pairs++
        t.ok(call.at - before.at > 250, `100 ms of answer and 200 ms of thinking: ${call.at - before.at} ms`)
        const kept = before.content.length - 40
        t.equal(call.content.slice(0, kept), before.content.slice(0, kept), 'whole blocks are kept')
        t.not(call.content.slice(kept, kept + 40), before.content.slice(kept), 'the rest is new')
      }
    t.ok(pairs >= 3, `${pairs} pairs of calls seen`)
    const firsts = [...bySession.values()].map(list => list[0]?.content.slice(0, 256))
    t.equal(new Set(firsts).size, firsts.length, 'two plays of one session share no text')
    t.equal(
      new Set([...bySession.values()].map(list => list[0]?.content.length)).size > 1,
      true,
      'sessions are entered at different calls',
    )
  },
)

t.test('an abort share of 1 hangs up on every call, and the upstream sees it', async t => {
  const rows = [0, 10, 20].map(atMs => ({ ...ROW, atMs }))
  const traffic: Traffic = { ...once(rows), abortShare: 1, abortWithinMs: 200 }
  const { records, upstream } = await play(
    t,
    response => events(response, [delta({ content: 'a' })]),
    traffic,
  )
  t.same(
    records.map(record => record.outcome),
    ['left', 'left', 'left'],
  )
  await new Promise(resolve => setTimeout(resolve, 50))
  t.equal(upstream.open.now, 0)
})

t.test('after the drain what still runs is hung up on, by its own traffic', async t => {
  const slow: Traffic = { ...once(), label: 'slow', drainMs: 2000 }
  const fast: Traffic = { ...once(), label: 'fast', drainMs: 200 }
  const { records } = await play(t, response => answer(response, 600), [fast, slow], { durationMs: 100 })
  t.match(records, [
    { label: 'fast', outcome: 'left', ttftMs: undefined },
    { label: 'slow', outcome: 'complete' },
  ])
  const took = records[0]?.e2eMs ?? 0
  t.ok(took > 150 && took < 600, `the fast drain took ${took} ms`)
})

t.test('stop ends arrivals and calls at once', async t => {
  const upstream = await scripted(response => events(response, [delta({ content: 'a' })]))
  t.teardown(() => upstream.close())
  const records: PlayRecord[] = []
  const player = new Player({
    target: upstream.url,
    traffic: [{ ...once(), arrivals: { kind: 'closed', concurrency: 2, thinkMs: 0, rows: [ROW] } }],
    rng: seededRng(1),
    onRecord: record => records.push(record),
  })
  const begin = performance.now()
  const played = player.play()
  await new Promise(resolve => setTimeout(resolve, 200))
  t.equal(player.inFlight('chat'), 2)
  t.equal(player.sent, 2)
  player.stop()
  near(t, await played, performance.now() - begin, 'the arrival window')
  t.match(records, [
    { outcome: 'left', tokens: 1 },
    { outcome: 'left', tokens: 1 },
  ])
  t.equal(player.inFlight(), 0)
})

t.test('a player stopped before it plays sends nothing', async t => {
  const player = new Player({
    target: 'http://127.0.0.1:9',
    traffic: [once()],
    rng: seededRng(1),
    onRecord: () => t.fail('nothing was to be sent'),
  })
  player.stop()
  await player.play()
  t.equal(player.sent, 0)
})

t.test('sessions that were under way send their next calls within the first seconds', async t => {
  const calls = [{ inputTokens: 10, outputTokens: 1, thinkMs: 0, ids: [] }]
  const sessions = [{ id: 's', calls }]
  const traffic: Traffic = {
    ...once(),
    arrivals: { kind: 'sessions', startsPerSecond: 0, atStart: 5, thinkDivisor: 20, sessions },
  }
  const { records } = await play(t, response => answer(response, 1), traffic, { durationMs: 5100 })
  t.equal(records.length, 5)
})
