/** Who waits for how long: the clocks of the config, and none that a library brings along. 1 s here stands for 200. */

import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { request } from 'undici'
import { LAX } from '../fixtures/before.js'
import { ask, body, errorOf, lastError } from '../fixtures/client.js'
import { DONE, FIN, JSON_ANSWER, ROLE, TOK, TOLD, USAGE } from '../fixtures/events.js'
import { fastClock, SPEED } from '../fixtures/fast-timers.js'
import { HDR, type Step, startUpstream, type UpstreamRequest, WHOLE } from '../fixtures/upstream.js'
import { configData, startTestWeir } from '../fixtures/weir.js'

/** A pause of so many seconds, as the router sees it. */
const seconds = (count: number): Step => ({ wait: (count * 1000) / SPEED })

const scripts: Record<string, () => Iterable<Step>> = {
  *'silent before its head'() {
    yield seconds(400)
    yield WHOLE(200, JSON_ANSWER(5, 7))
  },
  *'silent after its head'() {
    yield HDR
    yield seconds(310)
    yield TOLD('late')
    yield 'EOF'
  },
  *'a token every 20 s'() {
    yield HDR
    yield ROLE
    for (let i = 0; i < 60; i++) {
      yield TOK(`${i} `)
      yield seconds(20)
    }
    yield FIN + USAGE(5, 60) + DONE
    yield 'EOF'
  },
  *'three tokens'() {
    yield HDR
    yield ROLE + TOK('a') + TOK('b') + TOK('c')
    yield 'HOLD'
  },
  *never() {
    yield 'HOLD'
  },
  *'a long file'() {
    yield 'HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nTransfer-Encoding: chunked\r\n\r\n'
    for (let i = 0; i < 8; i++) {
      yield 'piece'
      yield seconds(100)
    }
    yield 'EOF'
  },
}
const script = ({ headers }: UpstreamRequest): Iterable<Step> => scripts[headers['x-script'] ?? '']?.() ?? []

t.test('with the clocks as they are by default, slow answers come through and silent ones end', async t => {
  const upstream = await startUpstream(t, script)
  // Connections are made at the speed of the machine.
  const timeouts = { connect: '5m' }
  const data = configData(
    [upstream.url],
    { classes: { chat: LAX }, timeouts },
    { allow: ['embeddings', 'files'] },
  )
  const weir = await startTestWeir(t, data, { clock: fastClock })
  const play = (name: string, options: Parameters<typeof ask>[1] = {}) =>
    ask(weir.url, { ...options, headers: { 'x-script': name, 'x-request-id': name.replaceAll(' ', '-') } })
      .answer
  const json = { body: body({ stream: false }) }
  const [head, events, slow, silent, never, embedding, file, library] = await Promise.all([
    play('silent before its head', json),
    play('silent after its head'),
    play('a token every 20 s'),
    play('three tokens'),
    play('never', json),
    play('silent before its head', { path: '/v1/embeddings', body: '{}' }),
    play('a long file', { path: '/v1/files/f', method: 'GET', body: '' }),
    request(upstream.url, { method: 'POST', headers: { 'x-script': 'silent before its head' } }).catch(
      error => error,
    ),
  ])
  t.equal(library.code, 'UND_ERR_HEADERS_TIMEOUT', 'a library left to itself would have given up')
  t.equal(head.status, 200)
  t.equal(head.text, JSON_ANSWER(5, 7))
  t.equal(embedding.text, JSON_ANSWER(5, 7))
  t.equal(events.status, 200)
  t.ok(events.text.endsWith(DONE) && events.text.includes('late'))
  t.equal(slow.text.match(/"content":"\d+ "/g)?.length, 60)
  t.ok(slow.whole)
  t.equal(file.text, 'piece'.repeat(8))
  t.ok(file.whole)

  t.equal(silent.status, 200)
  t.equal(lastError(silent).code, 'weir_stream_stalled')
  t.match(lastError(silent).message, 'within 120 s (timeouts.stall)')
  t.equal(never.status, 504)
  t.equal(errorOf(never).code, 'weir_first_token_timeout')
  t.match(errorOf(never).message, 'within 600 s (timeouts.first_token)')
  await weir.until('both upstreams are let go', () => upstream.running === 0)
  const verdicts = (await weir.requestLogs(5)).map(line => [line['id'], line['ending']])
  t.match(Object.fromEntries(verdicts), {
    'silent-before-its-head': 'complete',
    'silent-after-its-head': 'complete',
    'a-token-every-20-s': 'complete',
    'three-tokens': 'timeout',
    never: 'timeout',
  })
  await sleep(50)
  await weir.atRest()
})

t.test('total is off unless it is set, and then ends what is still running, by its name', async t => {
  const upstream = await startUpstream(t, script)
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: { chat: LAX }, timeouts: { connect: '5m', total: '300s' } }),
    { clock: fastClock },
  )
  const answer = await ask(weir.url, { headers: { 'x-script': 'a token every 20 s' } }).answer
  t.equal(lastError(answer).code, 'weir_total_timeout')
  t.match(lastError(answer).message, 'within 300 s (timeouts.total)')
  const tokens = answer.text.match(/"content":"\d+ "/g)?.length ?? 0
  t.ok(tokens > 4 && tokens < 40, `${tokens} tokens of the 60`)
  await weir.until('the upstream is let go', () => upstream.running === 0)
})
