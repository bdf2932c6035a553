import t from 'tap'
import { explain } from '../../src/cli/explain.js'

/** What the command prints for the shipped config and these arguments. */
async function run(args: readonly string[], config = 'config/weir.yaml') {
  let out = ''
  let err = ''
  const io = { out: (text: string) => (out += text), err: (text: string) => (err += text), env: {} }
  const code = await explain.run(['-c', config, ...args], io)
  return { code, out, err }
}

const json = async (args: readonly string[], config?: string) => {
  const { out } = await run([...args, '--json'], config)
  return JSON.parse(out) as Record<string, unknown>
}

t.test('a request is told its route, class, pools, promise and decision', async t => {
  const { code, out } = await run(['--model', 'llama-3.1-8b', '--stream'])
  t.equal(code, 0)
  t.match(out, /^route {5}routes\[\d\]: any request$/m)
  t.match(out, /^class {5}chat, since the first route that matches says so$/m)
  t.match(out, /^pools {5}main \(home\)/m)
  t.match(out, /^target {4}p90 ttft 500ms tpot 40ms$/m)
  t.match(out, /^decision {2}home/m)
})

t.test('a class is asked for by header or by path, and a deadline is clamped', async t => {
  const byHeader = await json(['--model', 'llama-3.1-8b', '--header', 'X-Weir-Class: agent'])
  t.match(byHeader, { class: 'agent', because: /asked for it/, decision: 'home' })
  const byPath = await json([
    ...['--path', '/agent/v1/chat/completions', '--model', 'llama-3.1-8b'],
    ...['--header', 'x-weir-deadline-ms: 1'],
  ])
  t.match(byPath, { class: 'agent', deadline: '5s: the request asked for it' })
})

t.test('what the router would refuse is refused with the same words', async t => {
  const { code, out } = await run(['--model', 'nope'])
  t.equal(code, 1)
  t.match(out, /404 weir_unknown_route: No pool of class agent serves this model/)
  t.match(await json([]), { answer: { status: 400, code: 'weir_bad_request' } })
  t.match(await json(['--model', 'llama-3.1-8b', '--header', 'x-weir-class: nope']), {
    answer: { status: 400, message: /x-weir-class names no class of this router. Allowed: chat, agent/ },
  })
})

t.test('a request comes from a file, as a body or as a whole HTTP request', async t => {
  const body = JSON.stringify({
    model: 'llama-3.1-8b',
    stream: true,
    messages: [{ content: 'x'.repeat(400) }],
  })
  const dir = t.testdir({
    'body.json': body,
    'request.http': `POST /agent/v1/chat/completions HTTP/1.1\r\nX-Weir-Deadline-Ms: 30000\r\n\r\n${body}`,
  })
  t.match(await json(['--request', `${dir}/body.json`]), {
    class: 'chat',
    estimates: { prompt_tokens: 103, stream: true },
  })
  t.match(await json(['--request', `${dir}/request.http`]), { class: 'agent', deadline: /^30s/ })
  const missing = await run(['--request', `${dir}/no`])
  t.equal(missing.code, 2)
  t.match(missing.err, /cannot read/)
})

t.test('a bad config is said as weir check says it', async t => {
  const dir = t.testdir({ 'weir.yaml': 'classes: 1\n' })
  const { code, err } = await run(['--model', 'm'], `${dir}/weir.yaml`)
  t.equal(code, 1)
  t.match(err, /classes +\(line 1\)/)
})
