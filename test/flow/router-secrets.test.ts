/** Where credentials may go: a client's to nobody, Weir's own to its own pool, and neither into any text. */
import t from 'tap'
import { type Ask, ask, body, RAW, raw } from '../fixtures/client.js'
import { ROLE, TOLD } from '../fixtures/events.js'
import { deadPort, HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { CHAT, configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

const CLIENT = 'CLIENT-KEY-1-secret'
const UP = 'UP-A-secret-of-the-pool'
const ECHO = `{"error":{"message":"bad key ${CLIENT}"}}`
const GOOD: readonly Step[] = [HDR, TOLD('a'), 'EOF']

/** Every way to send a key. */
const SENT: readonly Ask[] = [
  { headers: { authorization: `Bearer ${CLIENT}` } },
  { headers: { 'x-api-key': CLIENT } },
  { headers: { 'api-key': CLIENT } },
  { headers: { 'Proxy-Authorization': `Basic ${CLIENT}`, cookie: `session=${CLIENT}` } },
  { path: `/v1/chat/completions?key=${CLIENT}` },
  { headers: { authorization: `Bearer ${CLIENT}`, 'x-api-key': CLIENT, 'api-key': CLIENT } },
]

async function texts(weir: TestWeir): Promise<string> {
  const state = await (await fetch(`${weir.admin}/api/state`)).text()
  return weir.logText() + (await weir.metrics()) + state
}

t.test(
  'a pool with a key sees that key only, one without sees none, and a reroute carries none over',
  async t => {
    const seen = { a: '', b: '' }
    let failing = false
    const a = await startUpstream(t, ({ rawHead, path }) => {
      seen.a += `${rawHead}\n${path}\n`
      return failing ? [WHOLE(503, '{}')] : GOOD
    })
    const b = await startUpstream(t, ({ rawHead, path }) => {
      seen.b += `${rawHead}\n${path}\n`
      return GOOD
    })
    const weir = await startTestWeir(
      t,
      {
        classes: { chat: { ...CHAT, pools: ['a', 'b'] }, plain: { ...CHAT, pools: ['b'] } },
        pools: {
          a: { model: 'm', replicas: [a.url], api_key: UP },
          b: { model: 'm', replicas: [b.url] },
        },
        routes: [{ class: 'chat' }],
        retries: { share: 1, floor: 99 },
      },
      { level: 'debug' },
    )
    for (failing of [false, true]) {
      for (const request of SENT) {
        const answer = await ask(weir.url, request).answer
        t.equal(answer.status, 200)
        t.equal(answer.headers['x-weir-pool'], failing ? 'b' : 'a')
        const { path = '/v1/chat/completions' } = request
        t.equal((await ask(weir.url, { ...request, path: `/plain${path}` }).answer).status, 200)
      }
    }
    t.equal(seen.a.match(new RegExp(`authorization: Bearer ${UP}\\r`, 'gi'))?.length, 2 * SENT.length)
    t.equal(seen.a.match(/authorization/gi)?.length, 2 * SENT.length, 'one credential each')
    t.notMatch(seen.a, CLIENT)
    t.equal(b.requests.length, 3 * SENT.length)
    t.notMatch(seen.b, /CLIENT-KEY|UP-A|authorization|api-key|cookie|key=/i)
    t.notMatch(await texts(weir), /CLIENT-KEY|UP-A/i)
    await weir.atRest()
  },
)

t.test('only a pool that is told to passes the credential of a client on', async t => {
  const upstream = await startUpstream(t, () => GOOD)
  const weir = await startTestWeir(t, configData([upstream.url], {}, { pass_authorization: true }))
  for (const request of SENT) t.equal((await ask(weir.url, request).answer).status, 200)
  const [bearer, key, other, proxy, query] = upstream.requests.map(({ rawHead }) => rawHead)
  t.match(bearer, `authorization: Bearer ${CLIENT}`)
  t.match(key, `x-api-key: ${CLIENT}`)
  t.match(other, `api-key: ${CLIENT}`)
  t.notMatch(proxy, CLIENT)
  t.notMatch(query, CLIENT)
  t.notMatch(await texts(weir), 'CLIENT-KEY')
  await weir.atRest()
})

t.test('a refusal of the credential that a client brought is for the client', async t => {
  const upstream = await startUpstream(t, () => [WHOLE(401, ECHO)])
  const weir = await startTestWeir(t, configData([upstream.url], {}, { pass_authorization: true }))
  const answer = await ask(weir.url, { headers: { authorization: `Bearer ${CLIENT}` } }).answer
  t.equal(answer.status, 401)
  t.equal(answer.text, ECHO, 'as the upstream said it')
  t.notMatch(await texts(weir), 'CLIENT-KEY')
  await weir.atRest()
})

t.test('no failure prints a credential, a prompt or a header', async t => {
  const PROMPT = 'a very private prompt'
  const folder = t.testdir({ 'keys.yaml': `keys:\n  - { label: team-a, key: ${CLIENT} }\n` })
  const plays: readonly (readonly Step[])[] = [
    [WHOLE(500, ECHO)],
    [WHOLE(400, `{"error":{"message":"${PROMPT}"}}`)],
    [WHOLE(401, `{"error":{"message":"bad key ${UP}"}}`)],
    [HDR, ROLE, `data: {"error":{"message":"bad key ${UP}","code":500}}\n\n`, 'EOF'],
    [HDR, TOLD('a').slice(0, -20), 'RST'],
    ['RST'],
    [`HTTP/1.1 200 OK\r\nX-Bad: ${UP}\r\nno colon ${UP}\r\n\r\n`, 'HOLD'],
    [WHOLE(200, UP, 'text/html')],
  ]
  let played = 0
  const upstream = await startUpstream(t, () => plays[played++ % plays.length] ?? [])
  const weir = await startTestWeir(
    t,
    {
      auth: { keys: `${folder}/keys.yaml` },
      classes: { chat: CHAT, gone: { ...CHAT, pools: ['gone'] } },
      pools: {
        main: { model: 'm', replicas: [upstream.url], api_key: UP },
        gone: { model: 'm', replicas: [`http://127.0.0.1:${await deadPort()}`], api_key: UP },
      },
      routes: [{ class: 'chat' }],
    },
    { level: 'debug' },
  )
  const messages = [{ role: 'user', content: PROMPT }]
  const headers = { 'x-api-key': CLIENT }
  let answers = ''
  for (let i = 0; i < plays.length; i++) {
    const answer = await ask(weir.url, { headers, body: body({ messages }) }).answer
    // The engine's own words are the client's to read; ours are not to quote a key.
    if (answer.status >= 500) answers += answer.text + JSON.stringify(answer.headers)
  }
  const wrong: readonly Ask[] = [
    { headers: { 'x-api-key': `${CLIENT}x` } },
    { headers: { authorization: `Bearer ${CLIENT}x` } },
    { path: `/v1/chat/completions?key=${CLIENT}` },
    { path: `/v1/nothing?key=${CLIENT}`, headers },
    { path: `/nope-${CLIENT}/v1/chat/completions`, headers },
    { headers: { ...headers, 'x-weir-class': CLIENT } },
    { headers: { ...headers, 'x-weir-deadline-ms': CLIENT } },
    { headers, body: `{"model":"${CLIENT}"}` },
    { headers, body: `{"${PROMPT}` },
    { headers, path: '/gone/v1/chat/completions' },
  ]
  for (const request of wrong) {
    const answer = await ask(weir.url, request).answer
    t.ok(answer.status >= 400)
    answers += answer.text + JSON.stringify(answer.headers)
  }
  answers += await raw(weir.port, RAW('{}', `authorization: Bearer ${CLIENT}\r\ncontent-length: x${CLIENT}`))
  const all = answers + (await texts(weir))
  t.notMatch(all, /CLIENT-KEY/i)
  t.notMatch(all, /UP-A/i)
  t.notMatch(all, PROMPT)
  t.match(weir.logText(), '"key":"team-a"', 'the label is what the log knows')
  await weir.atRest()
})
