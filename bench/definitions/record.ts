/** Records streams of the simulated engine: each chunk as the socket gave it, and when, since the request was sent. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { startEngine } from '../../src/sim/server.js'

/** One answer as it came over a socket. Texts are latin1: one character a byte. */
interface Recording {
  readonly name: string
  readonly path: string
  /** What was done to the stream after it was recorded. */
  readonly edited?: string
  /** Time in ms since the request was sent, and the bytes. */
  readonly chunks: readonly (readonly [at: number, bytes: string])[]
}

const OUT = new URL('../../test/fixtures/recorded/', import.meta.url)

async function record(
  url: string,
  name: string,
  headers: Record<string, string>,
  more: object,
  path = '/v1/chat/completions',
): Promise<Recording> {
  const body = path.includes('chat')
    ? { messages: [{ role: 'user', content: 'word '.repeat(400) }] }
    : { prompt: 'word '.repeat(400) }
  const chunks: [number, string][] = []
  await new Promise<void>((resolve, reject) => {
    const sent = performance.now()
    const req = request(`${url}${path}`, { method: 'POST', headers }, res => {
      res.on('data', (bytes: Buffer) => {
        chunks.push([Number((performance.now() - sent).toFixed(3)), bytes.toString('latin1')])
      })
      res.on('end', resolve).on('error', reject)
    })
    req.on('error', reject)
    req.end(JSON.stringify({ stream: true, stream_options: { include_usage: true }, ...body, ...more }))
  })
  return { name, path, chunks }
}

/** The same bytes, each chunk cut into pieces of 7 bytes or more that come 0.2 ms apart. */
function split(whole: Recording): Recording {
  const chunks = whole.chunks.flatMap(([at, bytes]) => {
    const parts = Math.min(5, Math.ceil(bytes.length / 7))
    const size = Math.ceil(bytes.length / parts)
    return Array.from({ length: parts }, (_, part): [number, string] => [
      Number((at + part * 0.2).toFixed(3)),
      bytes.slice(part * size, (part + 1) * size),
    ])
  })
  return { ...whole, name: 'chat-split', edited: 'each chunk cut into 5 that come 0.2 ms apart', chunks }
}

/** The first event, which has a role and no content, comes alone and at once, as gateways send it. */
function roleFirst(whole: Recording): Recording {
  const [[at, bytes], ...rest] = whole.chunks as [[number, string], ...[number, string][]]
  const end = bytes.indexOf('\n\n') + 2
  const chunks: [number, string][] = [[5, bytes.slice(0, end)], [at, bytes.slice(end)], ...rest]
  return { ...whole, name: 'chat-role-first', edited: 'the role comes 5 ms after the request', chunks }
}

/** Comments in chunks of their own, behind the role and between two events, as proxies keep a connection with them. */
function comments(whole: Recording): Recording {
  const [role, ...rest] = roleFirst(whole).chunks as [[number, string], ...[number, string][]]
  const [at] = rest[6] as [number, string]
  rest.splice(7, 0, [at + 0.5, ': keep-alive\n\n'])
  const edited = 'the role comes 5 ms after the request, comments at 10 ms and after the seventh token'
  return { ...whole, name: 'chat-comments', edited, chunks: [role, [10, ': keep-alive\n\n'], ...rest] }
}

/** The first token has no text, as a special token that is skipped. */
function emptyFirst(whole: Recording): Recording {
  const [[at, bytes], ...rest] = whole.chunks as [[number, string], ...[number, string][]]
  const empty = bytes.replace(/"delta":\{"content":"[^"]+"/, '"delta":{"content":""')
  return {
    ...whole,
    name: 'chat-empty-first',
    edited: 'the first token has no text',
    chunks: [[at, empty], ...rest],
  }
}

/** With the name that vLLM has given it since 0.12. */
function renamed(whole: Recording): Recording {
  const chunks = whole.chunks.map(([at, bytes]): [number, string] => [
    at,
    bytes.replaceAll('"reasoning_content"', '"reasoning"'),
  ])
  return { ...whole, name: 'chat-reasoning-short', edited: 'reasoning_content is called reasoning', chunks }
}

/** Two answers in one stream, the second's events each behind the first's, a millisecond later. */
function twoChoices(whole: Recording): Recording {
  const chunks = whole.chunks.map(([at, bytes]): [number, string] => {
    const again = bytes
      .split('\n\n')
      .filter(event => event.includes('"index":0'))
      .map(event => `${event.replace('"index":0', '"index":1')}\n\n`)
      .join('')
    const tokens = /"completion_tokens":(\d+)/
    const doubled = bytes.replace(tokens, (_, count) => `"completion_tokens":${2 * Number(count)}`)
    // Behind the usage it would follow the end.
    const at1 = doubled.indexOf('"choices":[],')
    const cut = at1 < 0 ? doubled.length : doubled.lastIndexOf('data: ', at1)
    return [at, doubled.slice(0, cut) + again + doubled.slice(cut)]
  })
  return { ...whole, name: 'chat-two-choices', edited: 'every choice a second time, as index 1', chunks }
}

function lateFinish(whole: Recording): Recording {
  const chunks = [...whole.chunks]
  const [at, bytes] = chunks.pop() as [number, string]
  const cut = bytes.lastIndexOf('data: ', bytes.indexOf('"finish_reason":"'))
  const edited = 'the finish reason comes 50 ms after the last token'
  return {
    ...whole,
    name: 'chat-late-finish',
    edited,
    chunks: [...chunks, [at, bytes.slice(0, cut)], [at + 50, bytes.slice(cut)]],
  }
}

const engine = await startEngine({ profile: 'worked-example', exact: true })
const tokens = (count: number, more: Record<string, string> = {}): Record<string, string> => ({
  'x-engine-output-tokens': String(count),
  ...more,
})
const tool = {
  tools: [{ type: 'function', function: { name: 'look_up', parameters: {} } }],
  tool_choice: 'required',
}
const { url } = engine
// The first call of all pays for the connection and for compiling.
await record(url, 'warm-up', tokens(8), {})
const chat = await record(url, 'chat', tokens(24), {})
const reasoning = await record(url, 'chat-reasoning', tokens(24, { 'x-engine-reasoning-tokens': '10' }), {})
const recordings = [
  chat,
  split(chat),
  roleFirst(chat),
  comments(chat),
  emptyFirst(chat),
  twoChoices(chat),
  lateFinish(chat),
  await record(url, 'chat-three-tokens', tokens(46, { 'x-engine-tokens-per-event': '3' }), {}),
  reasoning,
  renamed(reasoning),
  await record(url, 'chat-tool', tokens(24), tool),
  await record(url, 'chat-one-token', tokens(1), {}),
  await record(url, 'chat-no-usage', tokens(24), { stream_options: undefined }),
  await record(url, 'completions', tokens(24), {}, '/v1/completions'),
]
await engine.close()
mkdirSync(OUT, { recursive: true })
for (const recording of recordings)
  writeFileSync(new URL(`${recording.name}.json`, OUT), `${JSON.stringify(recording, undefined, 1)}\n`)
