/**
 * How fast the fleet simulator is: requests a minute of one core's own time, 64 replicas, Azure chat.
 *
 *   node --import @tapjs/typescript/import bench/fleet/speed.ts [requests]
 *
 * `engine alone` is round robin without a router's bookkeeping; the others are policies behind the real door.
 */

import { policyNamed } from '../../src/baselines/named.js'
import { readTrace } from '../../src/load/trace.js'
import type { Policy } from '../../src/policy/policy.js'
import { createPolicy } from '../../src/policy/simple.js'
import type { RequestFacts } from '../../src/request.js'
import { Fleet, type Traffic } from '../../src/sim/fleet.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { Judgement } from '../../src/slo/verdict.js'
import { seededRng } from '../../src/time.js'
import { chat, specOf } from '../../test/policy/world.js'

const requests = Number(process.argv[2] ?? 200_000)
const replicas = 64
/** Requests a second and replica: 0.85 of what a fluid fills an 8B engine with, of Azure chat within 500 / 40 ms. */
const rps = 20
const trace = await readTrace('bench/data/azure2023-conv.csv.gz', { rng: seededRng(1) })
if (trace.kind !== 'requests') throw new Error('not a trace of requests')
const { rows } = trace

function traffic(): Traffic {
  const rng = seededRng(7)
  let at = 0
  let left = requests
  return {
    next: () => {
      if (left-- === 0) return undefined
      at -= (Math.log(1 - rng.next()) / (rps * replicas)) * 1000
      const row = rows[Math.floor(rng.next() * rows.length)] as (typeof rows)[number]
      return { at, cls: 0, promptTokens: row.inputTokens, outputTokens: row.outputTokens }
    },
  }
}

/** Sends in turn and keeps no books. */
class Turns implements Policy {
  readonly wakeAt = undefined
  #id = 0
  arrive(facts: RequestFacts) {
    const ticket = { id: this.#id++, facts, cls: 0, model: 'm', route: -1 }
    const replica = ticket.id % replicas
    return { ticket, decisions: [{ kind: 'dispatch', ticket, pool: 0, replica, why: 'home' } as const] }
  }
  firstToken = () => []
  mark = () => {}
  failed = () => ({ again: undefined, decisions: [] })
  finish = () => ({ judgement: NOTHING as Judgement, decisions: [] })
  wake = () => []
  reconfigure = () => []
  state = () => ({ replicas: [], queues: [], open: 0, totals: [] })
}
const NOTHING = {}

function weir(): Policy {
  const named = policyNamed('weir')
  if (named === undefined) throw new Error('no policy weir')
  return named.create(specOf([replicas], 32), seededRng(3))
}

const policies: Readonly<Record<string, () => Policy>> = {
  'engine alone': () => new Turns(),
  'limits and queues': () => createPolicy(specOf([replicas], 32), seededRng(3)),
  weir: () => weir(),
}
for (const [name, create] of Object.entries(policies)) {
  let good = 0
  const fleet = new Fleet({
    replicas: Array.from({ length: replicas }, () => profileNamed('llama3-8b')),
    policy: create(),
    classes: [chat],
    models: ['m', 'm'],
    traffic: traffic(),
    ended: job => {
      if (job.good) good++
    },
  })
  // Not the wall's time: other processes may want the core.
  const from = process.cpuUsage()
  fleet.run()
  const { user, system } = process.cpuUsage(from)
  const seconds = (user + system) / 1e6
  const perMinute = Math.round((requests / seconds) * 60)
  console.log(
    `${name}: ${perMinute} requests a minute, ${((seconds / requests) * 1e6).toFixed(1)} us each, ${(good / requests).toFixed(3)} good`,
  )
}
