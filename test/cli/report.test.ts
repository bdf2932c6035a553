import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { report } from '../../src/cli/report.js'
import { ask } from '../fixtures/client.js'
import { TOLD } from '../fixtures/events.js'
import { HDR, startUpstream } from '../fixtures/upstream.js'
import { configData, PATIENT, startTestWeir } from '../fixtures/weir.js'

async function run(...args: string[]) {
  let out = ''
  let err = ''
  const io = { out: (text: string) => (out += text), err: (text: string) => (err += text), env: {} }
  return { code: await report.run(args, io), out, err }
}

t.test('a Weir that runs: what was promised, what was kept, and what is not known yet', async t => {
  let ahead = 0
  const clock = { now: () => performance.now() + ahead }
  const upstream = await startUpstream(t, () => [HDR, TOLD('a', 'b'), 'EOF'])
  const weir = await startTestWeir(
    t,
    configData([upstream.url], { classes: PATIENT }, { max_in_flight: 500 }),
    { clock },
  )
  const early = await run('--from', weir.admin)
  t.equal(early.code, 0)
  t.match(early.out, /kept +not known yet: fewer than 100 requests/)
  t.match(early.out, /error budget, guard +not known before 30d are seen \(0.0 % so far\)/)

  ahead = 61_000
  await Promise.all(Array.from({ length: 120 }, () => ask(weir.url).answer))
  const { out } = await run('--from', weir.admin)
  t.match(out, /^class chat$/m)
  t.match(out, /promised +p90 ttft 20s tpot 5s$/m)
  t.match(out, /for +m, input p50\/p90 1000\/2700 tokens, output 130\/420/)
  t.match(out, /end to end +[\d.]+ s for 130 output tokens, at p90 of TTFT and of TPOT \(60s\)/)
  t.match(out, /kept +100.0 % of 120 requests over 60s, promised 90 % \(95 % interval 9\d\.\d % to 100.0 %\)/)
  t.match(out, /goodput on main +[\d.]+ requests\/s/)

  const page = await run('--from', weir.admin, '--format', 'markdown')
  t.match(page.out, /^# Weir/)
  t.match(page.out, /^\| kept \| 100.0 % of 120 requests/m)
  const figures = JSON.parse((await run('--from', `${weir.admin}/`, '--json')).out)
  t.match(figures, { classes: [{ name: 'chat', good_share: 1, shed_share: 0, budget: [{ left: null }] }] })
})

t.test('a Prometheus: the same page, with what was promised from the config', async t => {
  const asked: string[] = []
  const vector = (query: string): object[] => {
    const sample = (metric: Record<string, string>, value: number) => ({ metric, value: [0, String(value)] })
    if (query === 'weir_attainment_ratio') {
      return [sample({ class: 'chat', slo: 'target', clause: 'joint', window: '1h' }, 0.93)]
    }
    if (query.includes('weir_requests_total')) {
      return [sample({ class: 'chat', verdict: 'good' }, 60), sample({ class: 'chat', verdict: 'shed' }, 20)]
    }
    if (query.startsWith('histogram_quantile(0.9,') && query.includes('ttft'))
      return [sample({ class: 'chat' }, 0.4)]
    if (query.startsWith('histogram_quantile(') && query.includes('ttft'))
      return [sample({ class: 'chat' }, 0.2)]
    if (query.startsWith('histogram_quantile(') && query.includes('tpot'))
      return [sample({ class: 'chat' }, 0.02)]
    if (query === 'weir_error_budget_remaining_ratio') return [sample({ class: 'chat', slo: 'guard' }, 0.4)]
    return []
  }
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://a')
    if (url.pathname !== '/api/v1/query') {
      response.writeHead(404).end('404 page not found')
      return
    }
    const query = url.searchParams.get('query') ?? ''
    asked.push(query)
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify({ status: 'success', data: { resultType: 'vector', result: vector(query) } }))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const from = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const { code, out, err } = await run('--from', from, '-c', 'config/weir.yaml')
  t.equal(code, 0, err)
  t.match(out, /promised +p90 ttft 500ms tpot 40ms$/m)
  t.match(out, /end to end +2.98 s for 130 output tokens/)
  t.match(out, /kept +93.0 % over 1h, promised 90 %$/m)
  t.match(out, /last minute +good 75.0 % of what was offered; 100.0 % of what was admitted, with 25.0 % shed/)
  t.match(out, /error budget, guard +40.0 % left/)
  t.ok(asked.length > 7)
})

t.test('what is not there, and what is no Weir, is said', async t => {
  const dead = await run('--from', 'http://127.0.0.1:1')
  t.equal(dead.code, 1)
  t.match(dead.err, /--from http:\/\/127.0.0.1:1: no answer: .*Is Weir running/)
  const server = createServer((_request, response) => response.end('<html>'))
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const other = await run(
    '--from',
    `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    '-c',
    'config/weir.yaml',
  )
  t.equal(other.code, 1)
  t.match(other.err, /neither the admin port of a Weir nor a Prometheus/)
  t.match(await run('--format', 'pdf'), { code: 1, err: /allowed {2}text, json, markdown/ })
})
