/** What being watched costs: the policy's door with and without a forecast and an outlook, in CPU of this thread. */
import { crc32 } from 'node:zlib'
import { Outlook } from '../src/policy/outlook.js'
import type { Policy, PolicySpec } from '../src/policy/policy.js'
import { createPolicy } from '../src/policy/simple.js'
import { watched, witnessed } from '../src/policy/watched.js'
import { Forecast } from '../src/predict/forecast.js'
import type { Ticket } from '../src/request.js'
import { seededRng } from '../src/time.js'
import { ask, complete, specOf, stream } from '../test/policy/world.js'

const STREAMS = 200
const EVENTS = 100
const ROUNDS = 9

const spec: PolicySpec = specOf([8], 1000)

function outlookOf(): Policy {
  const policy = watched(createPolicy(spec, seededRng(1)), new Forecast(spec))
  const outlook = new Outlook(
    {
      spec,
      sweeps: new Map(),
      autoscale: { target: 0.7, down: 0.55, coldStartMs: 180_000 },
      forecast: policy.forecast as Forecast,
      replicas: now => policy.state(now).replicas,
      hour: () => 12,
      burn: () => undefined,
      diagnosed: () => {},
    },
    0,
  )
  return witnessed(policy, outlook)
}

/** CPU of this process, ms: others on the machine do not count. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** CPU, us: of a request without its later events, and of one later event. Streams of a step end within 2 ms. */
function cost(policy: Policy): { readonly request: number; readonly event: number } {
  let now = 1000
  let [request, event] = [0, 0]
  for (let wave = 0; wave < 10; wave++) {
    const tickets: Ticket[] = []
    let from = cpuMs()
    for (let i = 0; i < STREAMS; i++) {
      const facts = ask(now, { promptTokens: 500 + i, retryKey: `${wave}.${i}` })
      tickets.push(policy.arrive(facts, now).ticket)
    }
    now += 100
    for (const ticket of tickets) policy.firstToken(ticket, now)
    request += cpuMs() - from
    const first = now
    from = cpuMs()
    for (let step = 1; step < EVENTS; step++) {
      now += 20
      for (const ticket of tickets) policy.mark(ticket, now, 1)
    }
    event += cpuMs() - from
    from = cpuMs()
    for (const ticket of tickets) policy.finish(ticket, complete(stream(first, now, EVENTS)), now)
    request += cpuMs() - from
  }
  return { request: (request * 1000) / STREAMS / 10, event: (event * 1000) / STREAMS / 10 / (EVENTS - 1) }
}

const median = (values: readonly number[]): number =>
  [...values].sort((a, b) => a - b)[values.length >> 1] as number
const rounds = (make: () => Policy) => {
  const all = Array.from({ length: ROUNDS }, () => cost(make()))
  return { request: median(all.map(one => one.request)), event: median(all.map(one => one.event)) }
}

const bare = rounds(() => createPolicy(spec, seededRng(1)))
const modelled = rounds(() => watched(createPolicy(spec, seededRng(1)), new Forecast(spec)))
const seen = rounds(outlookOf)

const body = Buffer.alloc(4096, 'abcdefg')
const hashed = median(
  Array.from({ length: ROUNDS }, () => {
    const from = cpuMs()
    for (let i = 0; i < 10_000; i++) crc32(body)
    return (cpuMs() - from) / 10
  }),
)

console.log('| door | a request, us | a later event, us |')
console.log('|---|---|---|')
for (const [name, { request, event }] of Object.entries({
  alone: bare,
  'with a forecast': modelled,
  'and an outlook': seen,
}))
  console.log(`| ${name} | ${request.toFixed(2)} | ${event.toFixed(3)} |`)
const added = { request: seen.request - bare.request + hashed, event: seen.event - bare.event }
console.log(
  `\nAdded: ${added.request.toFixed(1)} us a request, ${hashed.toFixed(1)} us of it for the key of a body of 4 KB; ${added.event.toFixed(2)} us an event.`,
)
if (added.event > 2 || added.request > 20) process.exitCode = 1
