/** Headroom and diagnosis of a whole Weir before simulated engines, as operators read them. */
import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { showProblems } from '../../src/config/error.js'
import { loadData } from '../../src/config/load.js'
import { startEngine } from '../../src/sim/server.js'
import { CAUSES, type Cause } from '../../src/slo/causes.js'
import { ask, body } from '../fixtures/client.js'
import { fastClock } from '../fixtures/fast-clock.js'
import { SWEEP } from '../fixtures/sweep.js'
import { CHAT, configData, startTestWeir, type TestWeir } from '../fixtures/weir.js'

/** Bounds that only a fault breaks. */
const SLO = { target: { percentile: 90, ttft: '3s', tpot: '10s' } }
const LATE_MS = 4000

async function engines(t: Test): Promise<string[]> {
  const started = await Promise.all(
    [1, 2].map(seed =>
      startEngine({ model: 'm', seed, outputTokens: { median: 8, sigma: 0.4, min: 3, max: 20 } }),
    ),
  )
  for (const engine of started) t.teardown(() => engine.close())
  return started.map(({ url }) => url)
}

/** So many streams, some at once. */
async function play(weir: TestWeir, count: number, fault?: string): Promise<void> {
  let left = count
  const one = async (): Promise<void> => {
    while (left-- > 0) {
      const content = `${left} ${'word '.repeat(100)}`
      const { status } = await ask(weir.url, {
        body: body({ messages: [{ role: 'user', content }] }),
        headers: fault === undefined ? {} : { 'x-engine-fault': fault },
      }).answer
      if (status !== 200) throw new Error(`answered ${status}`)
    }
  }
  await Promise.all(Array.from({ length: fault === undefined ? 8 : count }, one))
}

interface Headroom {
  readonly pools: readonly {
    readonly name: string
    readonly replicas: { readonly ready: number; readonly desired: number | null }
    readonly demand_ratio: number | null
    readonly headroom_ratio: number | null
    readonly capacity: { readonly source: string; readonly work_per_second: number } | null
    readonly classes: readonly {
      readonly name: string
      readonly demand_rps: number
      readonly headroom_rps: number
    }[]
  }[]
}

interface Diagnosis {
  readonly pools: readonly {
    readonly name: string
    readonly clause: string
    readonly cause: string
    readonly since: string
    readonly sentence: string
    readonly action: string
  }[]
}

async function api<T>(weir: TestWeir, name: string): Promise<T> {
  return (await fetch(`${weir.admin}/api/${name}`)).json() as Promise<T>
}

t.test('headroom is told in shares, requests and replicas, by the sweep that the pool names', async t => {
  const dir = t.testdir({})
  const workload = { ...SWEEP.workload, model: 'm' }
  writeFileSync(join(dir, 'sweep.json'), JSON.stringify({ ...SWEEP, workload }))
  const clock = fastClock()
  const data = configData(
    await engines(t),
    { classes: { chat: { ...CHAT, slo: SLO } } },
    {
      sweep: join(dir, 'sweep.json'),
      engine: 'vllm',
    },
  )
  const weir = await startTestWeir(t, data, { clock })
  t.match((await api<Headroom>(weir, 'headroom')).pools, [
    { name: 'main', replicas: { ready: 2, desired: null }, demand_ratio: 0, headroom_ratio: 1, classes: [] },
  ])

  await play(weir, 40)
  clock.skip(10_000)
  await weir.until('a number of replicas', async () => {
    return (await api<Headroom>(weir, 'headroom')).pools[0]?.replicas.desired !== null
  })
  const [pool] = (await api<Headroom>(weir, 'headroom')).pools
  t.equal(pool?.capacity?.source, 'sweep')
  const [chat] = pool?.classes ?? []
  t.ok((chat?.demand_rps ?? 0) > 1 && (chat?.demand_rps ?? 0) < 20, `${chat?.demand_rps} a second`)
  // A request here has a tenth of the declared work: two replicas of 2.4 a second are some 50.
  const most = (chat?.demand_rps ?? 0) + (chat?.headroom_rps ?? 0)
  t.ok(most > 10 && most < 200, `${most} requests a second at most`)
  t.ok(Math.abs((chat?.demand_rps ?? 0) / most - (pool?.demand_ratio ?? 0)) < 0.05)

  const [ratio, demand] = [pool?.headroom_ratio ?? 0, pool?.demand_ratio ?? 0]
  t.ok(Math.abs(ratio + demand - 1) < 1e-9)
  const labels = { pool: 'main' }
  t.ok(Math.abs((await weir.metric('weir_headroom_ratio', labels)) - ratio) < 0.05)
  t.ok(Math.abs((await weir.metric('weir_demand_ratio', labels)) - demand) < 0.05)
  t.ok((await weir.metric('weir_headroom_requests_per_second', { class: 'chat', ...labels })) > 5)
  t.ok((await weir.metric('weir_capacity_work_per_second', { source: 'sweep', ...labels })) > 0)
  t.equal(await weir.metric('weir_desired_replicas', labels), pool?.replicas.desired)

  const report = await api<{ headroom: readonly object[] }>(weir, 'report')
  t.match(report.headroom, [{ name: 'main', source: 'sweep', classes: [{ name: 'chat' }] }])
})

t.test('a fault is diagnosed, a reload keeps that, and a restart what was learned', async t => {
  const state_dir = t.testdir({})
  const clock = fastClock()
  const replicas = await engines(t)
  const over = { state_dir, classes: { chat: { ...CHAT, slo: SLO } } }
  const data = configData(replicas, over, { max_in_flight: 500, engine: 'vllm' })
  const weir = await startTestWeir(t, data, { clock })
  t.same(await api(weir, 'diagnosis'), { pools: [] })

  // A minute in which all is well, to hold the next against; it is over some time after the play.
  clock.skip(30_000)
  await play(weir, 160)
  clock.skip(35_000)
  await sleep(2500)
  clock.skip(60_000)
  await play(weir, 160, `slow-head=${LATE_MS}`)
  const diagnosed = async () => (await api<Diagnosis>(weir, 'diagnosis')).pools
  await weir.until(
    'a diagnosis',
    async () => {
      clock.skip(2000)
      await sleep(300)
      return (await diagnosed()).length > 0
    },
    30_000,
  )
  const [found] = await diagnosed()
  // Which of them it is called depends on how busy the machine was before.
  const { clause, cause } = found ?? assert.fail('nothing found')
  t.equal(clause, 'ttft')
  t.ok(cause in CAUSES, cause)
  t.match(found?.sentence, /^Pool main: first tokens are late for \d+ %, since \d+ s ago, because /)
  t.equal(found?.action, CAUSES[cause as Cause].action)
  t.ok(Math.abs(Date.parse(found?.since ?? '') - Date.now()) < 120_000, `since ${found?.since}`)
  t.match(await weir.metrics(), `weir_diagnosis{pool="main",clause="ttft",cause="${cause}"} `)
  t.match(
    weir.logs.find(line => line['cause'] === cause),
    { level: 40, pool: 'main', clause: 'ttft', msg: found?.sentence.split(',')[0] },
  )

  const spare = { model: 'other', replicas: ['http://127.0.0.1:9'], engine: 'openai' }
  const next = loadData({ ...data, pools: { ...data.pools, spare } }, 'test', {
    listen: { port: 0 },
    admin: { port: 0 },
  })
  if (next.ok === undefined) throw new Error(showProblems(next.problems))
  weir.weir.reconfigure(next.ok)
  t.match(await diagnosed(), [{ name: 'main', clause, cause }])
  t.match(
    (await api<Headroom>(weir, 'headroom')).pools.map(({ name }) => name),
    ['main', 'spare'],
  )

  await weir.weir.close()
  interface Row {
    readonly pool?: string
    readonly cost?: { readonly netMs: number }
    readonly capacity?: object
    readonly usual?: { readonly window: { readonly counts: readonly number[] } }
    readonly asked?: readonly number[]
  }
  const kept = (): { model: Row[]; outlook: Row[] } => {
    const { parts } = JSON.parse(readFileSync(join(state_dir, 'weir-state.json'), 'utf8'))
    // The reload brought another pool, which the next Weir has not.
    return { model: parts.model.filter(({ pool }: Row) => pool === 'main'), outlook: parts.outlook }
  }
  const before = kept()
  t.match(before.model[0], { pool: 'main', cost: { netMs: Number } })
  t.not(before.model[0]?.cost?.netMs, 1, 'it has learned what is no step')
  t.ok((before.model.find(({ asked }) => asked)?.asked?.length ?? 0) >= 4 * 320, 'the mix that came')
  t.ok((before.outlook.find(({ usual }) => usual)?.usual?.window.counts.length ?? 0) > 10)
  const again = await startTestWeir(t, data)
  await again.weir.close()
  t.same(kept().model, before.model)
  const usual = ({ outlook }: { outlook: Row[] }) => outlook.filter(row => row.usual)
  t.same(usual(kept()), usual(before))
})
