/** The meter on the streams of the bug cases: what it stamps, counts, sends on and keeps back. */
import t from 'tap'
import { tpotMs } from '../../src/slo/latency.js'
import {
  bytesOf,
  choice,
  concat,
  counts,
  cutAt,
  DONE,
  data,
  FIN,
  newMeter,
  play,
  ROLE,
  summary,
  textOf,
  tok,
  usage,
  withLineEnds,
} from './streams.js'

const KIB = 1024

const lengthOf = (parts: readonly Uint8Array[]): number => parts.reduce((sum, part) => sum + part.length, 0)

t.test(
  'S01: an event that is cut anywhere, also inside a character, is stamped when its last byte came',
  async t => {
    const escaped = 'data: {"choices":[{"index":0,"delta":{"content":"\\u4f60"}}]}\n\n'
    const body = bytesOf(ROLE + tok('你好🙂é') + escaped + FIN + DONE)
    const firstEnd = bytesOf(ROLE + tok('你好🙂é')).length
    const lastEnd = firstEnd + escaped.length
    const wrong: number[] = []
    for (let k = 0; k <= body.length; k++) {
      const { meter, sent } = play(
        [
          [0, body.subarray(0, k)],
          [5, body.subarray(k)],
        ],
        9,
      )
      const right =
        textOf(sent) === textOf(body) &&
        meter.firstOutput === (k >= firstEnd ? 0 : 5) &&
        meter.lastOutput === (k >= lastEnd ? 0 : 5) &&
        meter.marks === 2 &&
        meter.unparsed === 0 &&
        meter.done &&
        meter.finished
      if (!right) wrong.push(k)
    }
    t.same(wrong, [], 'cut at every offset')
    const single = play(
      Array.from(body, (_, i) => [i, body.subarray(i, i + 1)] as const),
      9999,
    )
    t.equal(textOf(single.sent), textOf(body), 'one byte per write')
    t.match(summary(single.meter), {
      firstOutput: firstEnd - 1,
      lastOutput: lastEnd - 1,
      marks: 2,
      unparsed: 0,
      done: true,
      partial: false,
    })
  },
)

t.test('S02: line ends and the space after the colon change nothing', async t => {
  const tokens = Array.from({ length: 40 }, (_, i) => tok(`t${i}`))
  const run = (change: (text: string) => string) => {
    const parts = [ROLE, ...tokens, FIN, usage(5, 40), DONE].map(change)
    const played = play(
      parts.map((part, i) => [i * 10, part]),
      999,
    )
    t.equal(textOf(played.sent), parts.join(''))
    return summary(played.meter)
  }
  const plain = run(text => text)
  t.match(plain, {
    firstEvent: 0,
    firstOutput: 10,
    lastOutput: 400,
    longestGap: 10,
    marks: 40,
    finished: true,
  })
  t.same(
    run(text => withLineEnds(text, '\r\n')),
    plain,
    'CRLF',
  )
  t.same(
    run(text => withLineEnds(text, '\r')),
    plain,
    'CR',
  )
  t.same(
    run(text => text.replaceAll('data: ', 'data:')),
    plain,
    'no space',
  )
})

t.test('S02: a CR-only event does not wait for the next one, a CRLF event waits for its LF', async t => {
  const cr = play([[10, withLineEnds(tok('a'), '\r')]])
  t.equal(cr.meter.firstOutput, 10)
  const crlf = withLineEnds(tok('a'), '\r\n')
  const cut = play([
    [10, crlf.slice(0, -1)],
    [20, '\n'],
  ])
  t.equal(cut.meter.firstOutput, 20)
  t.equal(textOf(cut.sent), crlf)
  const ended = play([[10, crlf.slice(0, -1)]], 30)
  t.match(
    summary(ended.meter),
    { firstOutput: 30, partial: false },
    'an end instead of the LF ends the event too',
  )
  t.ok(ended.meter.between)
})

t.test('S02: a byte order mark before the first line is no part of it', async t => {
  const bom = Uint8Array.of(0xef, 0xbb, 0xbf)
  const body = concat([bom, bytesOf(tok('a'))])
  for (let k = 0; k < body.length; k++) {
    const { meter, sent } = play([
      [1, body.subarray(0, k)],
      [2, body.subarray(k)],
    ])
    if (meter.firstOutput !== 2 || textOf(sent) !== textOf(body)) t.fail(`cut at ${k}`)
  }
  const half = play([[1, concat([bom.subarray(0, 2), bytesOf(tok('a'))])]])
  t.equal(half.meter.firstEvent, undefined, 'half a mark makes another field name of it')
  const late = play([[1, concat([bytesOf(': x\n'), bom, bytesOf(tok('a'))])]])
  t.equal(late.meter.firstEvent, undefined, 'a mark that is not at the head is no mark')
})

t.test('S02: megabytes of CRLF events pass without piling up, in time that is linear', async t => {
  const event = bytesOf(withLineEnds(tok('x'.repeat(200)), '\r\n'))
  const stream = concat(Array.from({ length: 1000 }, () => event))
  const meter = newMeter()
  const started = performance.now()
  let pushed = 0
  let sent = 0
  let mostHeld = 0
  for (let round = 0; round < 30; round++) {
    for (let at = 0; at < stream.length; at += 1000) {
      const chunk = stream.subarray(at, at + 1000)
      meter.push(chunk, round)
      pushed += chunk.length
      sent += lengthOf(meter.out)
      mostHeld = Math.max(mostHeld, pushed - sent)
    }
  }
  t.equal(meter.marks, 30_000)
  t.equal(sent, pushed)
  t.ok(mostHeld < event.length, `never holds a whole event, held ${mostHeld}`)
  t.ok(performance.now() - started < 5000, 'about 0.1 s')
})

t.test('S03: comments are no events, and pass at once, also one by one', async t => {
  const meter = newMeter()
  for (const at of [500, 1000, 1500]) {
    meter.push(bytesOf(':\n\n'), at)
    t.equal(textOf(concat(meter.out)), ':\n\n')
    t.ok(meter.between)
  }
  meter.push(bytesOf(': PROCESSING\n'), 2000)
  t.equal(textOf(concat(meter.out)), ': PROCESSING\n', 'the comment line is whole without a blank one')
  t.equal(meter.firstEvent, undefined)
  meter.push(bytesOf(`\n${ROLE}`), 2200)
  meter.push(bytesOf(tok('a')), 2500)
  meter.push(bytesOf(FIN + DONE), 2600)
  t.match(summary(meter), { firstEvent: 2200, firstOutput: 2500, marks: 1, finished: true, done: true })
})

t.test(
  'S03: a stream of comments only has no output, and a comment inside an event is not a boundary',
  async t => {
    const { meter } = play([[0, ': a\n\n: b\n\n']], 3000)
    t.match(summary(meter), {
      firstEvent: undefined,
      firstOutput: undefined,
      marks: 0,
      finished: false,
      partial: false,
    })
    const inside = newMeter()
    inside.push(bytesOf('event: x\n: inside\n'), 1)
    t.equal(inside.out.length, 0)
    t.ok(inside.partial)
    inside.push(bytesOf(': and more\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n'), 2)
    t.equal(inside.firstOutput, 2)
  },
)

t.test('S04: a role, an empty or a null delta is an event but no output', async t => {
  const tokens = Array.from({ length: 19 }, (_, i) => [1230 + 30 * i, tok('x')] as const)
  const { meter } = play([[40, ROLE], [1200, tok('Hi')], ...tokens, [1800, FIN + usage(5, 20) + DONE]], 1810)
  t.match(summary(meter), {
    firstEvent: 40,
    firstOutput: 1200,
    firstVisible: 1200,
    lastOutput: 1770,
    marks: 20,
  })
  t.same(meter.usage, {
    promptTokens: 5,
    completionTokens: 20,
    cachedTokens: undefined,
    reasoningTokens: undefined,
  })
  const empty = play([[40, ROLE + FIN + DONE]], 50)
  t.match(summary(empty.meter), { firstEvent: 40, firstOutput: undefined, lastOutput: undefined, marks: 0 })
  t.ok(empty.meter.finished)
  const nulls = play([
    [40, choice({ role: 'assistant', content: null, reasoning_content: null, tool_calls: null })],
    [1200, tok('Hi')],
  ])
  t.equal(nulls.meter.firstOutput, 1200)
})

t.test('S05: reasoning and tool calls are output, but not visible', async t => {
  const thinking = play([
    [50, ROLE],
    [400, choice({ reasoning_content: 'hm' })],
    [450, choice({ reasoning: 'hm', content: null })],
    [5050, tok('a')],
    [5100, FIN],
  ])
  t.match(summary(thinking.meter), {
    firstOutput: 400,
    firstVisible: 5050,
    lastOutput: 5050,
    longestGap: 4600,
    marks: 3,
  })
  const call = (fn: unknown) =>
    choice({ tool_calls: [{ index: 0, id: 't1', type: 'function', function: fn }] })
  const tools = play([
    [50, ROLE],
    [600, call({ name: 'f', arguments: '' })],
    [610, call({ arguments: '' })],
    [630, call({ arguments: '{"a' })],
    [660, choice({}, 'tool_calls')],
  ])
  t.match(summary(tools.meter), {
    firstOutput: 600,
    firstVisible: undefined,
    lastOutput: 630,
    marks: 2,
    finished: true,
  })
  const cutOff = play([[9, choice({ reasoning_content: 'hm' }) + choice({}, 'length')]])
  t.match(summary(cutOff.meter), { firstOutput: 9, firstVisible: undefined, finished: true, aborted: false })
})

t.test('S06: marks are events; TPOT comes from the tokens that usage tells', async t => {
  const steps = Array.from({ length: 10 }, (_, i) => [200 + 90 * i, tok('three little tokens')] as const)
  const { meter } = play([...steps, [1100, FIN + usage(10, 30) + DONE]], 1100)
  t.match(summary(meter), { marks: 10, firstOutput: 200, lastOutput: 1010, longestGap: 90 })
  const tpot = tpotMs(
    meter.firstOutput ?? Number.NaN,
    meter.lastOutput ?? Number.NaN,
    meter.usage?.completionTokens ?? 0,
  )
  t.equal(tpot?.toFixed(1), '27.9')
  t.equal(play([...steps], 1100).meter.usage, undefined)
})

t.test('S07: the usage-only event is read, and taken out only where Weir asked for it', async t => {
  const noChoices = data({ id: 'c1', usage: { prompt_tokens: 5, completion_tokens: 20 } })
  const nullChoices = data({ choices: null, usage: { prompt_tokens: 5, completion_tokens: 20 } })
  for (const last of [usage(5, 20), noChoices, nullChoices]) {
    for (const lineEnd of ['\n', '\r\n', '\r']) {
      const [before, own, after] = [ROLE + tok('a') + FIN, last, `: ping\n\n${DONE}`].map(part =>
        withLineEnds(part, lineEnd),
      ) as [string, string, string]
      const body = bytesOf(before + own + after)
      const wrong: number[] = []
      for (let k = 0; k <= body.length; k++) {
        const steps = [[1, body.subarray(0, k)] as const, [2, body.subarray(k)] as const]
        const taken = play(steps, 3, { takeUsage: true })
        const left = play(steps, 3)
        const right =
          textOf(taken.sent) === before + after &&
          textOf(left.sent) === before + own + after &&
          taken.meter.usage?.completionTokens === 20 &&
          left.meter.usage?.completionTokens === 20
        if (!right) wrong.push(k)
      }
      t.same(wrong, [], JSON.stringify(last + lineEnd))
    }
  }
})

t.test('S07: usage beside choices or an error stays, and the last usage wins', async t => {
  const running = data({
    choices: [{ index: 0, delta: { content: 'a' } }],
    usage: {
      prompt_tokens: 7,
      completion_tokens: 1,
      prompt_tokens_details: { cached_tokens: 4 },
      completion_tokens_details: { reasoning_tokens: 0, other: null },
    },
  })
  const none = data({ choices: [], usage: null })
  const failed = data({ error: { message: 'x' }, usage: { prompt_tokens: 1, completion_tokens: 1 } })
  const { meter, sent } = play([[1, running + none + failed]], 2, { takeUsage: true })
  t.equal(textOf(sent), running + none + failed)
  t.same(meter.usage, { promptTokens: 7, completionTokens: 1, cachedTokens: 4, reasoningTokens: 0 })
  const later = play([[1, running + usage(7, 9) + running]], 2, { takeUsage: true })
  t.equal(textOf(later.sent), running + running)
  t.equal(later.meter.usage?.completionTokens, 1)
  const early = play([[1, usage(7, 9) + usage(7, 10)]], 2, { takeUsage: true })
  t.same(early.sent.length, 0)
  t.equal(early.meter.usage?.completionTokens, 10)
})

t.test('S07: the LF of a CRLF that was cut goes with the event that was taken out', async t => {
  const cr = withLineEnds(usage(1, 2), '\r')
  const cut = play(
    [
      [1, cr],
      [2, `\n${DONE}`],
    ],
    3,
    { takeUsage: true },
  )
  t.equal(textOf(cut.sent), DONE)
  t.equal(textOf(play([[1, `${cr}\n${DONE}`]], 3, { takeUsage: true }).sent), DONE, 'as uncut')
  const stray = play([[1, `${usage(1, 2)}\n${DONE}`]], 3, { takeUsage: true })
  t.equal(textOf(stray.sent), `\n${DONE}`, 'a further blank line is not part of it')
})

t.test('S08: the end marker may be missing, doubled, unspaced, or without a blank line', async t => {
  const answer = ROLE + tok('a') + FIN
  t.match(summary(play([[1, answer + usage(5, 1)]], 2).meter), {
    done: false,
    finished: true,
    partial: false,
  })
  t.match(summary(play([[1, answer + DONE + DONE]], 2).meter), {
    done: true,
    finished: true,
    marks: 1,
    unparsed: 0,
  })
  t.match(summary(play([[1, ROLE + tok('a')]], 2).meter), { done: false, finished: false, partial: false })
  t.match(summary(play([[1, 'data:[DONE]\n\n']], 2).meter), { done: true, unparsed: 0 })
  const bare = play([[1, `${answer}data: [DONE]`]], 2)
  t.match(summary(bare.meter), { done: true, partial: false, unparsed: 0 })
  t.equal(textOf(bare.sent), `${answer}data: [DONE]`)
  t.notOk(bare.meter.between, 'what went out does not end on a blank line')
})

t.test('S08: a last event without its blank line counts, one that was cut does not', async t => {
  const whole = play([[1, tok('a').trimEnd()]], 7)
  t.match(summary(whole.meter), { firstOutput: 7, marks: 1, partial: false })
  const taken = play([[1, tok('a') + usage(1, 1).trimEnd()]], 7, { takeUsage: true })
  t.equal(textOf(taken.sent), tok('a'))
  t.ok(taken.meter.between)
  const cut = play([[1, tok('a') + tok('b').slice(0, 40)]], 7)
  t.match(summary(cut.meter), { marks: 1, partial: true, unparsed: 1 })
  t.equal(textOf(cut.sent), tok('a') + tok('b').slice(0, 40))
  t.notOk(cut.meter.between)
  const named = play([[1, 'event: err']], 7)
  t.match(summary(named.meter), { partial: true, unparsed: 0, error: undefined })
  const dead = play([[1, tok('a') + tok('b').slice(0, 40)]])
  t.ok(dead.meter.partial, 'also known where the body broke off without an end')
  t.ok(dead.meter.between)
})

t.test('S09: an error event is told with its status, and is no output', async t => {
  const errors: [string, number | undefined][] = [
    [data({ error: { message: 'x', type: 'GatewayTimeout', code: 504 } }), 504],
    [`event: error\n${data({ error: { message: 'x', code: 504 } })}`, 504],
    [`event:error\n${data({ message: 'x', code: 503 })}`, 503],
    [data({ error: { message: 'x', code: null } }), undefined],
    [data({ error: { message: 'x', code: '429' } }), 429],
    [data({ error: { code: 'overloaded', status: 529 } }), 529],
    [data({ error: { code: 1301, status: '429' } }), 429],
    [data({ error: {} }), undefined],
    [data({ error: 'boom' }), undefined],
    [data({ error: 'boom', code: 500 }), 500],
    [data({ object: 'error', message: 'x', code: 400 }), 400],
  ]
  for (const [event, status] of errors) {
    const { meter, sent } = play([[1, event + DONE]], 2, { takeUsage: true })
    const body = event.slice(event.indexOf('data: ') + 6, -2)
    t.same(meter.error, { status, body }, event)
    t.match(summary(meter), { firstEvent: 1, firstOutput: undefined, marks: 0, unparsed: 0 })
    t.equal(textOf(sent), event + DONE)
  }
  const late = play([[1, ROLE + tok('a').repeat(5) + errors[0]?.[0] + data({ error: { code: 400 } })]])
  t.match(summary(late.meter), { marks: 5, error: { status: 504 } }, 'the first error is the cause')
})

t.test('S09: what only looks like an error is none', async t => {
  const events = [
    data({ error: null, choices: [{ delta: { content: 'a' } }] }),
    data({ error: '' }),
    data({ error: false }),
    data({ choices: [{ delta: { content: '{"error":{}}', error: { code: 500 } } }] }),
    `event: errors\n${data({})}`,
    'event: error\n\n',
    `event: error\nevent: message\n${data({})}`,
  ]
  for (const event of events) t.equal(play([[1, event]]).meter.error, undefined, event)
})

t.test('S09: an error event that is not JSON still tells its message as JSON', async t => {
  const { meter } = play([[1, 'event: error\ndata: out of "memory"\ndata: at step 3\n\n']])
  t.same(meter.error, { status: undefined, body: '{"error":{"message":"out of \\"memory\\"\\nat step 3"}}' })
  t.equal(meter.unparsed, 1)
})

t.test(
  'S23: with n above 1 every choice needs its finish reason, and marks are counted by choice',
  async t => {
    const meter = newMeter()
    const push = (at: number, text: string) => meter.push(bytesOf(text), at)
    for (let i = 0; i < 10; i++) {
      push(40 * i, tok('a', 0))
      push(40 * i + 20, tok('b', 1))
    }
    push(400, choice({}, 'stop', 0))
    t.notOk(meter.finished)
    for (let i = 0; i < 30; i++) push(420 + 20 * i, tok('b', 1))
    push(1020, choice({}, 'length', 1) + usage(5, 50) + DONE)
    t.match(summary(meter), { firstOutput: 0, marks: 50, longestChoiceMarks: 40, finished: true })
  },
)

t.test('S23: choices may share an event, lack an index, or have a mad one', async t => {
  const delta = { content: 'a' }
  const both = play([
    [
      1,
      data({
        choices: [
          { delta, index: 1 },
          { delta, index: 0, finish_reason: 'stop' },
        ],
      }),
    ],
  ])
  t.match(summary(both.meter), { marks: 1, longestChoiceMarks: 1, finished: false })
  const bare = play([[1, data({ choices: [{ delta }, { delta, finish_reason: 'stop' }] }).repeat(3)]])
  t.match(
    summary(bare.meter),
    { marks: 3, longestChoiceMarks: 3, finished: false },
    'the place stands for the index',
  )
  const mad = [128, 129, -1, 0.5, 1e300].map(index => tok('a', index)).join('')
  t.match(
    summary(play([[1, mad]]).meter),
    { marks: 5, longestChoiceMarks: 5 },
    'all of these share one place',
  )
})

t.test('an abort is told apart from an end', async t => {
  for (const reason of ['abort', 'error']) {
    t.match(summary(play([[1, tok('a') + choice({}, reason)]]).meter), { aborted: true, finished: true })
  }
  for (const reason of ['stop', 'length', 'aborted', ''])
    t.notOk(play([[1, choice({}, reason)]]).meter.aborted)
  t.notOk(play([[1, choice({}, '')]]).meter.finished, 'an empty reason is none')
})

t.test('completions: text is output, a chat delta is not', async t => {
  const text = (value: string) =>
    data({ object: 'text_completion', choices: [{ index: 0, text: value, logprobs: null }] })
  const steps = [[1, text('')] as const, [2, tok('a')] as const, [3, text('x')] as const]
  t.match(summary(play(steps, 4, { shape: 'completions' }).meter), {
    firstEvent: 1,
    firstOutput: 3,
    firstVisible: 3,
    marks: 1,
  })
  t.match(summary(play(steps, 4).meter), { firstOutput: 2, marks: 1 }, 'and the other way round for chat')
})

t.test('several data lines in one event are joined by LF, and other fields are not in the way', async t => {
  for (const lineEnd of ['\n', '\r\n', '\r']) {
    const event = withLineEnds(
      'id: 7\ndata: {"choices":[{"index":0,\ndata:"delta":\n: note\nretry: 10\ndata: {"content":"a"}}]}\nevent: message\n\n',
      lineEnd,
    )
    const { meter, sent } = play(cutAt(bytesOf(event), [9, 30, 50]).map((chunk, i) => [i, chunk]))
    t.match(summary(meter), { marks: 1, firstOutput: 3, unparsed: 0 })
    t.equal(textOf(sent), event)
  }
  const split = play([[1, 'data: {"choices":[{"delta":{"content":"a\ndata: b"}}]}\n\n']])
  t.match(summary(split.meter), { marks: 0, unparsed: 1 }, 'an LF inside a string is not JSON')
})

t.test('data that is not JSON is counted and passed on, and is never output', async t => {
  const bad = [
    'data: {"choices":[{"delta":{"content":"a"}}]\n\n',
    'data: {"choices":[{"delta":{"content":"a"}}]}}\n\n',
    'data: hello\n\n',
    'data: [DONE\n\n',
    'data: {"choices":[{"delta":{"content":"a"},}]}\n\n',
    'data: {"choices":[{"delta":{"content":"\\x"}}]}\n\n',
    `data: {"choices":[{"delta":{"content":"a"}}],"x":${'['.repeat(100_000)}\n\n`,
  ]
  const { meter, sent } = play([[1, bad.join('')]], 2)
  t.equal(textOf(sent), bad.join(''))
  t.match(summary(meter), { firstEvent: 1, marks: 0, unparsed: bad.length, partial: false })
  const harmless = 'data\n\ndata:\n\ndata: 1\n\ndata: null\n\ndata: "x"\n\ndata: []\n\nfoo: bar\n\n\n\n'
  t.match(summary(play([[1, harmless]], 2).meter), { firstEvent: 1, marks: 0, unparsed: 0 })
})

t.test('a chunk of whole events goes on as it is', async t => {
  const meter = newMeter({ takeUsage: true })
  const chunk = bytesOf(ROLE + tok('a') + tok('b'))
  for (let i = 0; i < 3; i++) {
    meter.push(chunk, i)
    t.equal(meter.out.length, 1)
    t.equal(meter.out[0], chunk, 'the very same array')
  }
  meter.push(new Uint8Array(0), 4)
  t.same(meter.out, [])
})

t.test('S14: an incomplete event is kept back up to 64 KiB, then it goes on as it comes', async t => {
  const meter = newMeter({ takeUsage: true })
  const long = bytesOf(tok('x'.repeat(100 * KIB)))
  meter.push(concat([bytesOf(ROLE), long.subarray(0, 60 * KIB)]), 1)
  t.equal(textOf(concat(meter.out)), ROLE)
  t.ok(meter.between)
  meter.push(long.subarray(60 * KIB, 65 * KIB), 2)
  t.equal(concat(meter.out).length, 65 * KIB)
  t.notOk(meter.between)
  meter.push(long.subarray(65 * KIB, 80 * KIB), 3)
  t.equal(concat(meter.out).length, 15 * KIB)
  t.equal(meter.firstOutput, undefined)
  meter.push(long.subarray(80 * KIB), 4)
  t.equal(concat(meter.out).length, long.length - 80 * KIB)
  t.match(summary(meter), { firstOutput: 4, marks: 1, unparsed: 0 })
  t.ok(meter.between)
})

t.test('a usage event longer than 64 KiB is read but never taken out, cut or not', async t => {
  const long = data({
    pad: 'x'.repeat(70 * KIB),
    choices: [],
    usage: { prompt_tokens: 1, completion_tokens: 2 },
  })
  const whole = play([[1, long]], 2, { takeUsage: true })
  const cut = play(
    cutAt(bytesOf(long), [100, 68 * KIB]).map((chunk, i) => [i, chunk]),
    9,
    { takeUsage: true },
  )
  for (const { meter, sent } of [whole, cut]) {
    t.equal(textOf(sent), long)
    t.equal(meter.usage?.completionTokens, 2)
  }
})

t.test(
  'S44: a single data line of 5 MB in pieces of 16 KiB is read and passed on, in linear time',
  async t => {
    const body = bytesOf(ROLE + tok('x'.repeat(5 * KIB * KIB)) + FIN)
    const places = Array.from({ length: Math.ceil(body.length / (16 * KIB)) }, (_, i) => i * 16 * KIB)
    const started = performance.now()
    const { meter, sent } = play(
      cutAt(body, places).map((chunk, i) => [i, chunk]),
      9999,
      { eventLimit: 8 * KIB * KIB },
    )
    t.ok(performance.now() - started < 3000, 'about 0.05 s')
    t.ok(Buffer.from(sent).equals(body))
    t.match(summary(meter), { marks: 1, firstOutput: places.length - 1, unparsed: 0, finished: true })
  },
)

t.test('S44: an event longer than the limit goes through unread, and the next one is read again', async t => {
  const long = tok('x'.repeat(3000))
  const body = bytesOf(tok('a') + long + tok('b') + FIN)
  const whole = play([[1, body]], 2, { eventLimit: 1000 })
  t.match(counts(whole.meter), { marks: 2, unparsed: 1, finished: true, partial: false })
  for (const size of [1, 7, 100, 999, 1000, 1001, 2500]) {
    const places = Array.from({ length: Math.ceil(body.length / size) }, (_, i) => i * size)
    const cut = play(
      cutAt(body, places).map((chunk, i) => [i, chunk]),
      9999,
      { eventLimit: 1000 },
    )
    t.same(counts(cut.meter), counts(whole.meter), `pieces of ${size}`)
    t.equal(textOf(cut.sent), textOf(body))
  }
  const comment = play([[1, `: ${'x'.repeat(2000)}\n${tok('a')}`]], 2, { eventLimit: 1000 })
  t.match(counts(comment.meter), { marks: 1, unparsed: 0 }, 'a long comment is nothing to read')
})

t.test('S44: 20 MB without a newline go through in bounded memory and count as unparsed', async t => {
  const meter = newMeter()
  const chunk = new Uint8Array(16 * KIB).fill(0x78)
  const before = process.memoryUsage().arrayBuffers
  let sent = 0
  let mostHeld = 0
  for (let i = 1; i <= 1280; i++) {
    meter.push(chunk, i)
    sent += lengthOf(meter.out)
    mostHeld = Math.max(mostHeld, i * chunk.length - sent)
  }
  t.ok(mostHeld <= 64 * KIB, `held back ${mostHeld}`)
  t.match(summary(meter), { unparsed: 1, marks: 0, partial: true })
  meter.push(bytesOf(`\n\n${tok('a')}`), 2000)
  t.match(summary(meter), { unparsed: 1, firstOutput: 2000, partial: false })
  t.ok(
    process.memoryUsage().arrayBuffers - before < 8 * KIB * KIB,
    'the copy grew to the limit of 1 MiB, not to 20',
  )
})

t.test('S44: an endless comment is passed on too, and its stream can be ended inside it', async t => {
  const meter = newMeter()
  const chunk = bytesOf(`:${'x'.repeat(40 * KIB)}`)
  let sent = 0
  for (let i = 0; i < 5; i++) {
    meter.push(chunk, i)
    sent += concat(meter.out).length
  }
  t.equal(sent, 5 * chunk.length)
  t.notOk(meter.between)
  meter.end(9)
  t.match(summary(meter), { unparsed: 0, partial: false, firstEvent: undefined })
  t.notOk(meter.between)
})
