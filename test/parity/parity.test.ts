/** What a policy decided in a live run, over real sockets, it decides again in virtual time. */
import pino from 'pino'
import t from 'tap'
import { policyNamed } from '../../src/baselines/named.js'
import { showProblems } from '../../src/config/error.js'
import { loadData } from '../../src/config/load.js'
import { startWeir } from '../../src/http/weir.js'
import type { PlayRecord } from '../../src/load/call.js'
import { Player } from '../../src/load/player.js'
import { startEngine } from '../../src/sim/server.js'
import { seededRng } from '../../src/time.js'
import { AGENT, configData } from '../fixtures/weir.js'
import { Recording, replay } from './recording.js'

const row = (inputTokens: number, outputTokens: number) => ({
  atMs: 0,
  inputTokens,
  outputTokens,
  prefix: undefined,
})

for (const name of ['weir', 'p2c', 'self-only']) {
  t.test(`${name} decides in virtual time what it decided over sockets`, async t => {
    const policy = policyNamed(name)
    if (policy === undefined) throw new Error(`no policy ${name}`)
    const engines = await Promise.all([1, 2].map(seed => startEngine({ seed, model: 'm', noise: 0.02 })))
    t.teardown(() => Promise.all(engines.map(engine => engine.close())))
    // A replica that nobody answers at: attempts fail, and go elsewhere.
    const gone = await startEngine()
    await gone.close()
    const urls = [...engines.map(({ url }) => url), gone.url]
    const data = configData(urls, { routes: [{ class: 'chat' }] }, { max_in_flight: 6 })
    const config = loadData({ ...data, classes: { ...data.classes, agent: AGENT } }, 'test', {
      listen: { port: 0 },
      admin: { port: 0 },
    })
    if (config.ok === undefined) throw new Error(showProblems(config.problems))
    const spec = config.ok.policy
    const recording = new Recording(policy.create(spec, seededRng(7)))
    const weir = await startWeir({
      config: config.ok,
      policy: recording,
      log: pino({ level: 'silent' }),
      version: '0.0.0-test',
    })
    t.teardown(() => weir.close())
    const records: PlayRecord[] = []
    const traffic = (label: string, perSecond: number, rows: ReturnType<typeof row>[]) => ({
      label,
      model: 'm',
      headers: { 'x-weir-class': label },
      drainMs: 10_000,
      abortShare: 0.1,
      abortWithinMs: 500,
      arrivals: { kind: 'poisson' as const, perSecond, rows },
    })
    const player = new Player({
      target: `http://127.0.0.1:${weir.data.port}`,
      traffic: [
        traffic('chat', 60, [row(300, 20), row(2000, 60), row(60, 5)]),
        traffic('agent', 10, [row(6000, 80), row(900, 40)]),
      ],
      durationMs: 1500,
      rng: seededRng(3),
      onRecord: record => records.push(record),
    })
    await player.play()
    await weir.drain(5000)
    const { told } = recording
    const kinds = new Set(told.map(({ call }) => call))
    for (const call of ['arrive', 'firstToken', 'mark', 'failed', 'finish'] as const) {
      t.ok(kinds.has(call), `${call} was heard of`)
    }
    t.ok(records.length > 60, `${records.length} requests were played`)
    const answers = replay(told, policy.create(spec, seededRng(7)))
    const differs = told.findIndex(({ answer }, at) => JSON.stringify(answer) !== JSON.stringify(answers[at]))
    t.equal(answers.length, told.length)
    t.equal(differs, -1, `all ${told.length} answers are the same`)
  })
}
