import t, { type Test } from 'tap'
import { carryOver } from '../../src/config/carry.js'
import { loadData } from '../../src/config/load.js'
import type { Resolved } from '../../src/config/resolved.js'

const WORKLOAD = { model: 'm', input_tokens: { p50: 1000, p90: 2700 }, output_tokens: { p50: 130, p90: 420 } }

/** @param pools  replicas by pool; @param classes  pools by class */
function config(
  pools: Record<string, string[]>,
  classes: Record<string, string[]>,
  ttft = '500ms',
): Resolved {
  const loaded = loadData(
    {
      classes: Object.fromEntries(
        Object.entries(classes).map(([name, own]) => [
          name,
          { slo: { target: { percentile: 90, ttft, tpot: '40ms' } }, workload: WORKLOAD, pools: own },
        ]),
      ),
      pools: Object.fromEntries(
        Object.entries(pools).map(([name, replicas]) => [name, { model: 'm', replicas }]),
      ),
      routes: [{ class: Object.keys(classes)[0] }],
    },
    'test',
  )
  if (loaded.ok === undefined) throw new Error(JSON.stringify(loaded.problems))
  return loaded.ok
}

/** The tables in short, and that every id is the index of its row. */
function shape(t: Test, { policy, pools, replicas, commitAfterMs, classIds }: Resolved) {
  for (const table of [policy.classes, policy.pools, policy.replicas, pools, replicas]) {
    t.same(
      table.map(({ id }) => id),
      table.map((_, index) => index),
    )
  }
  t.equal(commitAfterMs.length, policy.classes.length)
  t.equal(pools.length, policy.pools.length)
  t.equal(replicas.length, policy.replicas.length)
  const gone = (one: { retired?: true }): string => (one.retired ? '-' : '')
  return {
    classes: policy.classes.map(
      cls => `${gone(cls)}${cls.name}:${cls.pools.map(id => policy.pools[id]?.name)}`,
    ),
    pools: policy.pools.map(pool => `${gone(pool)}${pool.name}:${pool.replicas.map(({ id }) => id)}`),
    replicas: policy.replicas.map(
      one => `${gone(one)}${policy.pools[one.pool]?.name} ${replicas[one.id]?.origin}`,
    ),
    classIds: Object.fromEntries(classIds),
    route: policy.routes[0]?.cls,
  }
}

const A = 'http://127.0.0.1:1001'
const B = 'http://127.0.0.1:1002'
const C = 'http://127.0.0.1:1003'

t.test('what stays keeps its id, what is new gets one of its own, what is gone stays as retired', async t => {
  const running = config({ main: [A, B], spare: [C] }, { chat: ['main'], agent: ['spare'] })
  const next = config({ extra: [C], main: [B] }, { batch: ['extra'], chat: ['main', 'extra'] }, '900ms')
  const carried = carryOver(next, running)
  t.same(shape(t, carried), {
    classes: ['chat:main,extra', '-agent:spare', 'batch:extra'],
    pools: ['main:1', '-spare:', 'extra:3'],
    replicas: [`-main ${A}`, `main ${B}`, `-spare ${C}`, `extra ${C}`],
    classIds: { batch: 2, chat: 0 },
    route: 2,
  })
  t.match(carried.policy.classes[0]?.target.clauses, { ttftMs: 900 }, 'with the new promise')
  t.match(carried.policy.classes[1]?.target.clauses, { ttftMs: 500 }, 'what is gone keeps the old one')
})

t.test('the same config again changes nothing', async t => {
  const running = config({ main: [A, B], spare: [C] }, { chat: ['main'], agent: ['spare'] })
  const again = config({ main: [A, B], spare: [C] }, { chat: ['main'], agent: ['spare'] })
  t.same(shape(t, carryOver(again, running)), shape(t, running))
})

t.test('what comes back has the id it had', async t => {
  const first = config({ main: [A, B] }, { chat: ['main'] })
  const second = carryOver(config({ main: [A] }, { chat: ['main'] }), first)
  const third = carryOver(config({ main: [B, A] }, { chat: ['main'] }), second)
  t.same(shape(t, third).replicas, [`main ${A}`, `main ${B}`])
  t.same(shape(t, third).pools, ['main:1,0'])
})
