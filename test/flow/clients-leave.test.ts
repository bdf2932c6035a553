/** A client that leaves, in whichever phase and by whichever SDK: its upstream is free at once, and nothing is left. */
import t from 'tap'
import { startEngine } from '../../src/sim/server.js'
import { LAX } from '../fixtures/before.js'
import { ask } from '../fixtures/client.js'
import { CLIENTS, type Client } from '../fixtures/clients.js'
import { cellOf, LEAVES } from '../fixtures/matrix.js'
import { SHAPES, type Shape } from '../fixtures/shapes.js'
import { HDR, type Step, startUpstream, type Upstream } from '../fixtures/upstream.js'
import { AGENT, startTestWeir, type TestWeir } from '../fixtures/weir.js'

type Phase = keyof typeof LEAVES

/** What the upstream has sent when the client leaves. */
const SENT: Readonly<Record<Exclude<Phase, 'in the queue'>, (shape: Shape) => readonly Step[]>> = {
  'before the head': () => [],
  'before the head of a whole answer': () => [],
  'before the first token': ({ begin }) => [HDR, begin],
  'in mid-stream': ({ begin, first }) => [HDR, begin, first],
  'after the last token': ({ begin, first, last }) => [HDR, begin, first, last],
  'after the end of the answer': ({ begin, first, last, done }) => [HDR, begin, first, last + done],
}

interface Stage {
  readonly weir: TestWeir
  readonly upstream: Upstream
  readonly phase: { now: Phase }
}

async function start(t: Parameters<typeof startTestWeir>[0], client: Client): Promise<Stage> {
  const phase: Stage['phase'] = { now: 'in the queue' }
  const upstream = await startUpstream(t, () => {
    const sent = phase.now === 'in the queue' ? [] : SENT[phase.now](SHAPES[client.api])
    return [...sent, 'HOLD']
  })
  const weir = await startTestWeir(t, {
    classes: {
      chat: { ...LAX, commit_after: 'never' },
      // Its head goes out before the first token.
      early: { ...LAX, commit_after: '20ms' },
      agent: AGENT,
    },
    pools: { main: { model: 'm', replicas: [upstream.url], max_in_flight: 1 } },
    routes: [{ class: 'chat' }],
  })
  return { weir, upstream, phase }
}

/** Leaves when all that was sent is with the client. @returns Weir's line, once nothing is left, and whether the SDK threw */
async function leave(client: Client, stage: Stage, phase: Phase): Promise<Record<string, unknown>> {
  const { weir, upstream } = stage
  stage.phase.now = phase
  const id = crypto.randomUUID()
  const before = upstream.requests.length
  const queued = phase === 'in the queue'
  const blocker = queued ? ask(weir.url, { path: '/agent/v1/chat/completions' }) : undefined
  if (queued) await weir.until('the pool is full', () => upstream.running === 1)

  const leaving = new AbortController()
  let pieces = 0
  let headIsHere = false
  const asked = client.ask({
    url: weir.url + (queued ? '/agent' : phase === 'before the first token' ? '/early' : ''),
    model: 'm',
    stream: phase !== 'before the head of a whole answer',
    headers: { 'x-request-id': id },
    signal: leaving.signal,
    onPiece: () => pieces++,
    fetch: async (url, init) => {
      const response = await fetch(url, init)
      headIsHere = true
      return response
    },
  })
  const threw = asked.then(
    () => false,
    () => true,
  )
  await weir.until(`it is ${phase}`, async () => {
    if (queued) return (await weir.metric('weir_queue_depth', { class: 'agent' })) === 1
    if (phase.startsWith('before the head')) return upstream.running === 1
    if (phase === 'before the first token') return headIsHere
    return pieces === (phase === 'in mid-stream' ? 1 : 2)
  })
  leaving.abort()
  const line = await weir.requestLog(id)
  const told = await threw
  if (queued) {
    if (upstream.requests.length !== before + 1) throw new Error('one that waited was sent')
    if ((await weir.metric('weir_queue_depth')) !== 0) throw new Error('it stands in the queue')
    blocker?.leave()
  }
  await weir.until('the upstream is free', () => upstream.running === 0)
  await weir.atRest()
  return { ...line, threw: told }
}

for (const client of CLIENTS) {
  t.test(client.name, async t => {
    const stage = await start(t, client)
    for (const phase of Object.keys(LEAVES) as Phase[]) {
      const closed = stage.upstream.closes.length
      const line = await leave(client, stage, phase)
      t.equal(line['verdict'], cellOf(LEAVES[phase], client.name), phase)
      const endsQuietly = ['openai chat', 'openai completions'].includes(client.name)
      if (phase === 'in mid-stream') t.equal(line['threw'], !endsQuietly, 'as it does without Weir')
      t.equal(stage.upstream.closes.length, closed + 1, 'the connection was closed while the upstream ran')
    }
  })
}

t.test("an engine's sequence ends with the client that asked for it", async t => {
  const engine = await startEngine({ model: 'm' })
  t.teardown(() => engine.close())
  const weir = await startTestWeir(t, {
    classes: { chat: LAX },
    pools: { main: { model: 'm', replicas: [engine.url] } },
  })
  const running = async (): Promise<number> => {
    const text = await (await fetch(`${engine.url}/metrics`)).text()
    return Number(/^vllm:num_requests_running\{.*\} (\d+)/m.exec(text)?.[1])
  }
  for (const client of CLIENTS.filter(({ api }) => api === 'chat' || api === 'completions')) {
    for (const stream of [true, false]) {
      const leaving = new AbortController()
      let pieces = 0
      const asked = client.ask({
        url: weir.url,
        model: 'm',
        stream,
        headers: { 'x-engine-output-tokens': '5000' },
        signal: leaving.signal,
        onPiece: () => pieces++,
      })
      asked.catch(() => undefined)
      await weir.until('it runs', async () => (stream ? pieces > 2 : (await running()) === 1))
      leaving.abort()
      await weir.until('it runs no more', async () => (await running()) === 0)
      await weir.atRest()
      t.pass(`${client.name}, ${stream ? 'streamed' : 'whole'}`)
    }
  }
})
