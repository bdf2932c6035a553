/** Each error that Weir answers with is, for every SDK, an error of that SDK's own, with the code and the sentence. */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { streamText } from 'ai'
import t from 'tap'
import { LAX } from '../fixtures/before.js'
import { ask } from '../fixtures/client.js'
import { type Caught, CLIENTS, type Client, type Question } from '../fixtures/clients.js'
import { cellOf, ERRORS } from '../fixtures/matrix.js'
import { SHAPES, UPSTREAM_CODE } from '../fixtures/shapes.js'
import { HDR, type Step, startUpstream, type UpstreamRequest, WHOLE } from '../fixtures/upstream.js'
import { AGENT, configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

const KEY = 'client-key-aaaaaaaa'
const BODY_LIMIT = 64 * 1024
const FULL = 'this replica is full'

/** By the header x-script. */
const scripts = (client: Client): Record<string, (request: UpstreamRequest) => readonly Step[]> => {
  const { begin, first, error, whole } = SHAPES[client.api]
  const busy =
    client.api === 'messages'
      ? {
          type: 'error',
          error: { type: 'rate_limit_error', message: FULL, details: { error_code: UPSTREAM_CODE } },
        }
      : { error: { message: FULL, type: 'rate_limit_error', param: null, code: UPSTREAM_CODE } }
  return {
    busy: () => [WHOLE(429, JSON.stringify(busy))],
    reset: () => ['RST'],
    silent: () => ['HOLD'],
    'error event': () => [HDR, begin, first, error, 'EOF'],
    cut: () => [HDR, begin, first, 'CUT'],
    stalls: () => [HDR, begin, first, 'HOLD'],
    'late silence': () => [HDR, begin, 'HOLD'],
    'half a body': () => [WHOLE(200, whole).slice(0, -20), { wait: 50 }, 'CUT'],
  }
}

async function start(t: Parameters<typeof startTestWeir>[0] & TestDir, client: Client): Promise<TestWeir> {
  const played = scripts(client)
  const upstream = await startUpstream(
    t,
    request => played[request.headers['x-script'] ?? '']?.(request) ?? ['HOLD'],
  )
  const narrow = await startUpstream(t, () => ['HOLD'])
  const folder = t.testdir({
    'keys.yaml': `keys:\n  - { label: a, key: ${KEY}, classes: [chat, early, full, agent] }\n`,
  })
  return startTestWeir(t, {
    auth: { keys: `${folder}/keys.yaml` },
    limits: { body: `${BODY_LIMIT / 1024}KiB` },
    timeouts: { first_token: '250ms', stall: '250ms' },
    classes: {
      chat: { ...LAX, commit_after: 'never' },
      early: { ...LAX, commit_after: '50ms' },
      full: { ...LAX, pools: ['narrow'] },
      agent: { ...AGENT, pools: ['narrow'], queue: { max: 10, wait: '100ms' } },
    },
    pools: {
      main: { model: 'm', replicas: [upstream.url] },
      narrow: { model: 'm', replicas: [narrow.url], max_in_flight: 1, timeouts: { first_token: '60s' } },
    },
    routes: [{ class: 'chat' }],
  })
}
interface TestDir {
  testdir(files: Record<string, string>): string
}

type Case = keyof typeof ERRORS

/** How to bring each error about, and what the application has to find in it. */
const CASES: Readonly<
  Record<
    Case,
    {
      readonly question?: Partial<Question>
      readonly script?: string
      /** Before the commit it is the same for whole answers. */
      readonly also?: 'whole'
      readonly only?: 'whole'
      readonly full?: true
      readonly status?: number
      readonly code: string | undefined
      readonly message: RegExp
    }
  >
> = {
  'no known key': {
    question: { apiKey: 'wrong-key-aaaaaaaa' },
    also: 'whole',
    status: 401,
    code: 'weir_unauthorized',
    message: /No known API key/,
  },
  'unknown model': {
    question: { model: 'gpt-9' },
    also: 'whole',
    status: 404,
    code: 'weir_unknown_route',
    message: /one of: m/,
  },
  'bad request': {
    question: { headers: { 'x-weir-ttft-ms': 'soon' } },
    also: 'whole',
    status: 400,
    code: 'weir_bad_request',
    message: /must be a positive number/,
  },
  'too large a body': {
    question: { prompt: 'x'.repeat(BODY_LIMIT) },
    also: 'whole',
    status: 413,
    code: 'weir_too_large',
    message: /limits\.body/,
  },
  "a replica's own 429": {
    script: 'busy',
    also: 'whole',
    status: 429,
    code: UPSTREAM_CODE,
    message: /this replica is full/,
  },
  'no headroom': {
    question: { headers: { 'x-weir-class': 'full' } },
    full: true,
    also: 'whole',
    status: 503,
    code: 'weir_no_headroom',
    message: /Class full has no headroom/,
  },
  'waited too long in the queue': {
    question: { headers: { 'x-weir-class': 'agent' } },
    full: true,
    also: 'whole',
    status: 503,
    code: 'weir_queue_timeout',
    message: /Waited 0\.\d s/,
  },
  'its own deadline passed in the queue': {
    question: { headers: { 'x-weir-class': 'agent', 'x-weir-deadline-ms': '60' } },
    full: true,
    also: 'whole',
    status: 503,
    code: 'weir_deadline_infeasible',
    message: /deadline you sent has passed/,
  },
  'upstream failed before any output': {
    script: 'reset',
    also: 'whole',
    status: 502,
    code: 'weir_upstream_error',
    message: /failed before it gave any output/,
  },
  'no first token in time': {
    script: 'silent',
    also: 'whole',
    status: 504,
    code: 'weir_first_token_timeout',
    message: /timeouts\.first_token/,
  },
  'no first token in time, after the head': {
    question: { headers: { 'x-weir-class': 'early' } },
    script: 'late silence',
    code: 'weir_first_token_timeout',
    message: /timeouts\.first_token/,
  },
  'stalled in mid-stream': { script: 'stalls', code: 'weir_stream_stalled', message: /timeouts\.stall/ },
  'cut off in mid-stream': { script: 'cut', code: 'weir_upstream_truncated', message: /broke off/ },
  "the upstream's own error event in mid-stream": {
    script: 'error event',
    code: UPSTREAM_CODE,
    message: /the engine failed/,
  },
  'a whole answer cut off': { script: 'half a body', only: 'whole', code: undefined, message: /./ },
}

async function caught(client: Client, question: Question): Promise<Caught> {
  let said: unknown
  try {
    said = await client.ask(question)
  } catch (error) {
    return client.caught(error)
  }
  throw new Error(`it did not fail: ${JSON.stringify(said)}`)
}

for (const client of CLIENTS) {
  t.test(client.name, async t => {
    const weir = await start(t, client)
    for (const [name, one] of Object.entries(CASES) as [Case, (typeof CASES)[Case]][]) {
      const headers = { authorization: `Bearer ${KEY}`, 'x-weir-class': 'full' }
      const blocker = one.full && ask(weir.url, { headers })
      if (blocker) await weir.until('it is full', async () => (await weir.metric('weir_in_flight')) === 1)
      for (const stream of one.only ? [false] : one.also ? [true, false] : [true]) {
        const id = crypto.randomUUID()
        const error = await caught(client, {
          url: weir.url,
          model: 'm',
          stream,
          ...one.question,
          headers: {
            'x-request-id': id,
            ...(one.script && { 'x-script': one.script }),
            ...one.question?.headers,
          },
        })
        const what = `${name}, ${stream ? 'streamed' : 'whole'}: ${error.message}`
        t.equal(error.kind, cellOf(ERRORS[name], client.name), what)
        t.match(error.message, one.message)
        // Of a body that breaks off the SDKs know no more.
        if (one.code === undefined) continue
        t.equal(error.code, one.code)
        t.equal(error.status, one.status)
        if (one.status === undefined) continue
        t.equal(error.header('x-request-id'), id)
        t.equal(
          error.requestId,
          client.name === 'AI SDK' ? undefined : id,
          'with the id to look for in the log',
        )
        if (one.status >= 500) t.match(error.header('retry-after'), /^\d+$/)
      }
      if (blocker) blocker.leave()
      await weir.atRest()
    }
  })
}

t.test('who reads only the text of the AI SDK can still see that it was cut off', async t => {
  const upstream = await startUpstream(t, () => [HDR, SHAPES.chat.begin, SHAPES.chat.first, 'CUT'])
  const weir = await startTestWeir(t, configData([upstream.url], { classes: { chat: LAX } }))
  const told: unknown[] = []
  const stream = streamText({
    model: createOpenAICompatible({ name: 'weir', baseURL: `${weir.url}/v1` })('m'),
    prompt: 'Say hello.',
    onError: ({ error }) => void told.push(error),
  })
  let text = ''
  for await (const piece of stream.textStream) text += piece
  t.equal(text, 'well,', 'its loop just ends')
  t.equal(await stream.finishReason, 'error')
  t.match(told, [{ code: 'weir_upstream_truncated' }])
  await weir.atRest()
})
