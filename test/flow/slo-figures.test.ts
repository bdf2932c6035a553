/** Live figures: what /metrics says of promises, goodput and budgets while requests come and go. */
import t from 'tap'
import { ask, body } from '../fixtures/client.js'
import { DONE, FIN, TOLD } from '../fixtures/events.js'
import { HDR, type Step, startUpstream } from '../fixtures/upstream.js'
import { CHAT, configData, startTestWeir } from '../fixtures/weir.js'

/** A clock that runs as fast as the test wants. */
function fastClock() {
  let ahead = 0
  return { now: () => performance.now() + ahead, skip: (ms: number) => (ahead += ms) }
}

const GOOD: Step[] = [HDR, TOLD('a', 'b'), 'EOF']

t.test('goodput and attainment are told once a minute has been seen, and shown by clause', async t => {
  const clock = fastClock()
  const upstream = await startUpstream(t, ({ body }) => (body.includes('bad') ? [HDR, 'RST'] : GOOD))
  const weir = await startTestWeir(t, configData([upstream.url], {}, { max_in_flight: 500 }), { clock })
  const labels = { class: 'chat', window: '60s' }
  const play = (content: string, count: number) =>
    Promise.all(
      Array.from({ length: count }, () => ask(weir.url, { body: body({ messages: [content] }) }).answer),
    )

  await play('ok', 10)
  t.notMatch(await weir.metrics(), /^weir_attainment_ratio\{/m, 'unknown is no sample')
  clock.skip(60_000)
  await play('ok', 90)
  await play('bad', 30)
  const joint = await weir.metric('weir_attainment_ratio', { ...labels, slo: 'target', clause: 'joint' })
  t.ok(Math.abs(joint - 0.75) < 0.02, `${joint} of the requests of the last minute kept both`)
  const ttft = await weir.metric('weir_attainment_ratio', { ...labels, slo: 'target', clause: 'ttft' })
  t.notOk(ttft > 1)
  const goodput = await weir.metric('weir_goodput_requests_per_second', { class: 'chat', pool: 'main' })
  t.ok(goodput > 1 && goodput < 2, `${goodput} good requests a second over a minute`)
  await weir.atRest()
})

t.test('figures survive a restart, and what cannot be read is set aside', async t => {
  const upstream = await startUpstream(t, () => GOOD)
  const state_dir = t.testdir({})
  const data = configData([upstream.url], { state_dir, classes: { chat: CHAT } })
  const clock = fastClock()
  const first = await startTestWeir(t, data, { clock })
  clock.skip(61_000)
  await Promise.all(Array.from({ length: 120 }, () => ask(first.url).answer))
  const labels = { class: 'chat', window: '60s', slo: 'target', clause: 'joint' }
  t.equal(await first.metric('weir_attainment_ratio', labels), 1)
  await first.weir.close()

  const second = await startTestWeir(t, data)
  t.equal(await second.metric('weir_attainment_ratio', labels), 1, 'known at once, without a request')
  await second.weir.close()
})

t.test('a stream that has lost its promise counts as missed while it still runs', async t => {
  let end: () => void = () => undefined
  const ended = new Promise<void>(resolve => {
    end = resolve
  })
  const upstream = await startUpstream(t, async function* ({ body }) {
    if (!body.includes('hang')) {
      yield* GOOD
      return
    }
    yield HDR
    await ended
    yield TOLD('late')
    yield FIN + DONE
    yield 'EOF'
  })
  const clock = fastClock()
  const weir = await startTestWeir(t, configData([upstream.url], {}, { max_in_flight: 500 }), { clock })
  clock.skip(61_000)
  const asks = Array.from({ length: 120 }, () => ask(weir.url, { body: body({ messages: ['hang'] }) }))
  await weir.until('all are sent', () => upstream.requests.length === 120)
  clock.skip(600)
  const labels = { class: 'chat', window: '60s', slo: 'target', clause: 'ttft' }
  await weir.until('overload shows while nothing completes', async () => {
    const text = await weir.metrics()
    return (
      text.includes('weir_attainment_ratio') && (await weir.metric('weir_attainment_ratio', labels)) === 0
    )
  })
  t.equal(await weir.metric('weir_requests_total'), 0, 'nothing has ended')
  end()
  await Promise.all(asks.map(({ answer }) => answer))
  await weir.atRest()
})
