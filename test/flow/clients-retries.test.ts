/** Each SDK's own retries, as Weir sees them arrive: the wait it asked for, and none where waiting is pointless. */
import t from 'tap'
import { LAX } from '../fixtures/before.js'
import { ask } from '../fixtures/client.js'
import { CLIENTS, type Client } from '../fixtures/clients.js'
import { type ClientName, cellOf, RETRIES } from '../fixtures/matrix.js'
import { SHAPES } from '../fixtures/shapes.js'
import { HDR, type Step, startUpstream, WHOLE } from '../fixtures/upstream.js'
import { startTestWeir, type TestWeir } from '../fixtures/weir.js'

/** ms. Weir never says less than 1 s; LangChain's own pace is 1 to 2 s, so a wait that it heeds has to be longer. */
const TOLD_BY_UPSTREAM = 3000
/** Of a timer on a busy machine, ms. */
const LATE = 150

/** One class a case, on an upstream of its own. `full` has one slot, which is taken. */
const SCRIPTS: Readonly<Record<string, (client: Client) => readonly Step[]>> = {
  full: () => ['HOLD'],
  busy: () => [WHOLE(429, '{}', 'application/json', `retry-after: ${TOLD_BY_UPSTREAM / 1000}\r\n`)],
  // Weir's own key is refused: no client can mend that.
  pointless: () => [WHOLE(401, '{}')],
  fails: () => ['RST'],
  broken: ({ api }) => [HDR, SHAPES[api].begin, SHAPES[api].first, 'CUT'],
}
type Case = keyof typeof SCRIPTS & string

interface Attempts {
  /** When Weir answered each; of answers that come at once, when it arrived. ms */
  readonly times: readonly number[]
  readonly retries: readonly unknown[]
  /** What each answer told to wait, ms. */
  readonly told: readonly (number | undefined)[]
}

async function start(t: Parameters<typeof startTestWeir>[0], client: Client): Promise<TestWeir> {
  const names = Object.keys(SCRIPTS)
  const upstreams = await Promise.all(
    Object.values(SCRIPTS).map(script => startUpstream(t, () => script(client))),
  )
  const weir = await startTestWeir(t, {
    classes: Object.fromEntries(names.map(name => [name, { ...LAX, pools: [name] }])),
    pools: Object.fromEntries(
      names.map((name, i) => [
        name,
        { model: 'm', replicas: [upstreams[i]?.url], ...(name === 'full' && { max_in_flight: 1 }) },
      ]),
    ),
    routes: [{ class: 'full' }],
  })
  return weir
}

/** Asks in vain. */
async function attempts(weir: TestWeir, client: Client, name: Case, maxRetries: number): Promise<Attempts> {
  const id = `${client.name}-${name}`.replaceAll(' ', '-')
  const told: (number | undefined)[] = []
  const asked = client.ask({
    url: `${weir.url}/${name}`,
    model: 'm',
    stream: true,
    maxRetries,
    headers: { 'x-request-id': id },
    fetch: async (url, init) => {
      const response = await fetch(url, init)
      const ms = response.headers.get('retry-after-ms')
      const seconds = response.headers.get('retry-after')
      told.push(ms !== null ? Number(ms) : seconds !== null ? Number(seconds) * 1000 : undefined)
      return response
    },
  })
  const failed = await asked.then(
    () => false,
    () => true,
  )
  if (!failed) throw new Error(`${id} did not fail`)
  const lines = weir.logs.filter(line => line['msg'] === 'request' && line['id'] === id)
  return { times: lines.map(({ time }) => Number(time)), retries: lines.map(({ retry }) => retry), told }
}

/** The first wait of a case, beside what was told. */
function firstWait({ times, told }: Attempts): { waited: number; told: number } {
  return { waited: (times[1] ?? Number.NaN) - (times[0] ?? Number.NaN), told: told[0] ?? Number.NaN }
}

const within = (ms: number, least: number, most: number): boolean =>
  ms >= least * 0.9 && ms <= Math.max(most * 1.1, most + LATE)

// All waits run side by side: the longest is LangChain's two, up to 6 s.
const played = new Map<ClientName, Promise<Readonly<Record<Case, Attempts>>>>()

async function play(client: Client): Promise<Readonly<Record<Case, Attempts>>> {
  const weir = await start(t, client)
  const holding = ask(weir.url)
  await weir.until('it is full', async () => (await weir.metric('weir_in_flight', { pool: 'full' })) === 1)
  const maxRetries = (name: Case): number => (name === 'fails' ? 2 : 1)
  const all = await Promise.all(
    Object.keys(SCRIPTS).map(
      async name => [name, await attempts(weir, client, name, maxRetries(name))] as const,
    ),
  )
  holding.leave()
  await weir.atRest()
  return Object.fromEntries(all)
}

for (const client of CLIENTS) played.set(client.name, play(client))

for (const { name } of CLIENTS) {
  t.test(name, async t => {
    const cell = (row: keyof typeof RETRIES): string => cellOf<string>(RETRIES[row], name)
    const cases = await played.get(name)
    if (cases === undefined) return t.fail('it was not played')
    const of = (one: Case): Attempts => {
      const found = cases[one]
      if (found === undefined) throw new Error(`no case ${one}`)
      return found
    }

    for (const [one, row] of [
      ['full', 'wait after a 503 of Weir'],
      ['busy', 'wait after a 429 with `retry-after: 3`'],
    ] as const) {
      const { waited, told } = firstWait(of(one))
      const [least, most] = cell(row) === 'as told' ? [told, told] : [1000, 2000]
      t.ok(within(waited, least, most), `${row}: told ${told} ms, waited ${waited} ms`)
    }
    const { told } = firstWait(of('full'))
    t.ok(told >= 1000 && told < 2000, 'told to the millisecond: in whole seconds it would be 2')
    t.equal(firstWait(of('busy')).told, TOLD_BY_UPSTREAM)

    const pointless = cell('after `x-should-retry: false`') === 'no retry' ? 1 : 2
    t.equal(of('pointless').times.length, pointless, 'attempts that are pointless')
    t.equal(String(of('fails').times.length), cell('attempts at `maxRetries: 2`'))
    t.equal(of('broken').times.length === 1 ? 'no retry' : 'retries', cell('after an in-band error'))
    const known = cell("a retry is known to Weir's log") === 'yes'
    t.same(of('fails').retries, known ? [undefined, 1, 2] : [undefined, undefined, undefined])
  })
}
