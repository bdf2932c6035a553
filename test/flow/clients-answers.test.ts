/** Every client gets its answers through Weir as without it: streamed, whole, tools, and usage only where asked. */
import t from 'tap'
import { startEngine } from '../../src/sim/server.js'
import { LAX } from '../fixtures/before.js'
import { CLIENTS, type Client, type Question, type Said } from '../fixtures/clients.js'
import { ANSWERS, cellOf } from '../fixtures/matrix.js'
import { type Api, ARGUMENTS, SHAPES, type Shape, TEXT, TOOL_CALLS } from '../fixtures/shapes.js'
import { HDR, type Step, startUpstream, type UpstreamRequest, WHOLE } from '../fixtures/upstream.js'
import { startTestWeir, type TestWeir } from '../fixtures/weir.js'

const TOKENS = 8
/** Of the engine: it serves the API that the client speaks, or the script does. */
const ENGINE_TEXT = /^( \w{3}){8}$/

const onEngine = ({ api }: Client): boolean => api === 'chat' || api === 'completions'

/** The typed APIs, which the engine does not serve. */
function script({ path, body }: UpstreamRequest): Step[] {
  const api = path.slice('/v1/'.length) as 'responses' | 'messages'
  const { stream, tools } = JSON.parse(body.toString())
  const { begin, first, last, done, whole }: Shape = SHAPES[api]
  if (tools !== undefined) {
    const call = TOOL_CALLS[api]
    return stream ? [HDR, ...call.events, 'EOF'] : [WHOLE(200, call.whole)]
  }
  return stream ? [HDR, begin, first, last, done, 'EOF'] : [WHOLE(200, whole)]
}

async function start(t: Parameters<typeof startTestWeir>[0]): Promise<TestWeir> {
  const engine = await startEngine({ model: 'engine' })
  t.teardown(() => engine.close())
  const upstream = await startUpstream(t, script)
  return startTestWeir(t, {
    classes: { chat: { ...LAX, pools: ['engine', 'script'] } },
    pools: {
      engine: { model: 'engine', replicas: [engine.url] },
      script: { model: 'script', replicas: [upstream.url] },
    },
  })
}

interface Heard {
  readonly said: Said
  readonly pieces: readonly string[]
  /** All that came over the wire, as the SDK was given it. */
  readonly wire: string
  readonly log: Record<string, unknown>
}

async function hear(weir: TestWeir, client: Client, question: Partial<Question>): Promise<Heard> {
  const id = crypto.randomUUID()
  const pieces: string[] = []
  let wire: Promise<string> | undefined
  const said = await client.ask({
    url: weir.url,
    model: onEngine(client) ? 'engine' : 'script',
    stream: true,
    headers: { 'x-request-id': id, 'x-engine-output-tokens': String(TOKENS) },
    onPiece: piece => pieces.push(piece),
    fetch: async (url, init) => {
      const response = await fetch(url, init)
      wire = response.clone().text()
      return response
    },
    ...question,
  })
  return { said, pieces, wire: (await wire) ?? '', log: await weir.requestLog(id) }
}

const USAGE_EVENT: Readonly<Record<Api, RegExp>> = {
  chat: /"choices":\[\],"usage":\{/,
  completions: /"choices":\[\],"usage":\{/,
  responses: /"type":"response\.completed".*"usage":\{/,
  messages: /"type":"message_delta".*"usage":\{/,
}

for (const client of CLIENTS) {
  t.test(client.name, async t => {
    const weir = await start(t)
    const engine = onEngine(client)
    const [text, output] = engine ? [ENGINE_TEXT, TOKENS] : [TEXT, 2]

    for (const stream of [true, false]) {
      const kind = stream ? 'streamed' : 'whole'
      t.equal(cellOf(ANSWERS[`${kind} answer`], client.name), 'yes')
      await t.test(`${kind} answer`, async t => {
        const { said, pieces, log } = await hear(weir, client, { stream })
        t.match(said.text, text)
        t.equal(said.tool, undefined)
        t.equal(pieces.join(''), stream ? said.text : '')
        t.equal(pieces.length, stream ? output : 0, 'a piece a token')
        // Of a whole answer no first token is known.
        t.match(log, { verdict: stream ? 'good' : 'unmeasured', status: 200, outputTokens: output })
        t.equal(log['estimated'], undefined)
      })

      if (cellOf(ANSWERS[`tool call, ${kind}`], client.name) === 'yes') {
        await t.test(`tool call, ${kind}`, async t => {
          const { said, pieces, log } = await hear(weir, client, { stream, tool: true })
          t.equal(said.text, '')
          t.equal(said.tool?.name, 'weather')
          const args = JSON.stringify(said.tool?.arguments)
          t.match(args, engine ? /^\{"text":"( \w{3}){8}"\}$/ : ARGUMENTS)
          t.same(stream ? JSON.parse(pieces.join('')) : said.tool?.arguments, said.tool?.arguments)
          if (stream) t.ok(pieces.length > 1, 'its arguments come in pieces')
          t.match(log, { verdict: stream ? 'good' : 'unmeasured', outputTokens: output })
        })
      }
    }

    await t.test('usage of a stream', async t => {
      for (const asked of [true, false]) {
        const cell = cellOf(ANSWERS[`usage of a stream that ${asked ? 'asked' : 'did not ask'}`], client.name)
        if (cell === '-') continue
        const { said, wire, log } = await hear(weir, client, { usage: asked })
        const events = wire.split('\n\n').filter(event => USAGE_EVENT[client.api].test(event))
        t.equal(events.length, cell === 'told' ? 1 : 0, `${asked ? 'asked' : 'not asked'}: ${cell}`)
        t.same(said.usage?.output, cell === 'told' ? output : undefined)
        t.equal(log['outputTokens'], output, 'and Weir knows it all the same')
        t.equal(log['estimated'], undefined)
      }
    })

    await weir.atRest()
  })
}
