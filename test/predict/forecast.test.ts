import t from 'tap'
import { type Asking, Forecast, type Sent } from '../../src/predict/forecast.js'
import { Engine } from '../../src/sim/engine.js'
import { profileNamed } from '../../src/sim/profiles.js'
import type { EngineRequest } from '../../src/sim/sequence.js'
import { EngineHost, World } from '../../src/sim/world.js'
import { seededRng } from '../../src/time.js'
import { specOf, stream, usage } from '../policy/world.js'

const asking = (change: Partial<Asking> = {}): Asking => ({
  cls: 0,
  model: 'm',
  promptTokens: 1000,
  maxTokens: undefined,
  stream: true,
  ...change,
})

/** Poisson traffic on two engines of one pool, half of the prompts cached; an event holds `coalesce` tokens. */
function play(forecast: Forecast, seconds: number, coalesce = 1): void {
  const rng = seededRng(3)
  const world = new World()
  const hosts = [0, 1].map(() => {
    const engine = new Engine<EngineRequest & { sent: Sent; events: number; held: number }>({
      profile: profileNamed('llama3-8b'),
    })
    return new EngineHost(world, engine, step => {
      const now = step.endedAt
      for (const one of step.emitted) {
        const { request, generated, fresh, outputTokens } = one
        const ended = generated === outputTokens
        request.held += fresh
        if (generated === fresh) forecast.firstToken(request.sent, now)
        else if (request.held >= coalesce || ended) forecast.mark(request.sent, now, 1)
        if (generated === fresh || request.held >= coalesce || ended) {
          request.events++
          request.held = 0
        }
        if (!ended) continue
        const first = one.firstTokenAt ?? 0
        const progress = stream(first, now, request.events, {
          usage: { ...usage(generated), promptTokens: one.promptTokens },
        })
        forecast.ended(
          request.sent,
          { complete: true, progress, tpotMs: (now - first) / (generated - 1) },
          now,
        )
      }
    })
  })
  for (let at = 0; at < seconds * 1000; at += -Math.log(1 - rng.next()) * 70) {
    const promptTokens = Math.round(200 + 4000 * rng.next() ** 3)
    const outputTokens = Math.round(20 + 400 * rng.next())
    const replica = rng.next() < 0.5 ? 0 : 1
    world.at(at, () => {
      const sent = forecast.dispatched(replica, asking({ promptTokens }), world.now())
      hosts[replica]?.submit({ promptTokens, outputTokens, sent, events: 0, held: 0 })
    })
  }
  world.run(seconds * 1000 + 60_000)
}

t.test('from what passes through, a forecast learns to tell TTFT and pace at dispatch', async t => {
  const forecast = new Forecast(specOf([2], 100))
  play(forecast, 240)
  const { fit, ttftErrors, tpotErrors, lengths, recent } = forecast.pool(0)
  t.ok(fit.calibrated)
  t.ok(fit.relativeError < 0.05, `steps are off by ${fit.relativeError}`)
  t.ok((ttftErrors.medianAbsolute ?? 1) < 0.15, `TTFT is off by ${ttftErrors.medianAbsolute}`)
  t.ok((tpotErrors.medianAbsolute ?? 1) < 0.1, `TPOT is off by ${tpotErrors.medianAbsolute}`)
  const mean = lengths.mean(asking())
  t.ok(mean > 190 && mean < 250, `answers of 20 to 420 tokens are expected to have ${mean}`)
  t.ok(recent.count > 3000, `${recent.count} requests are the mix`)
  for (const id of [0, 1]) {
    const { waiting, streams, contextTokens } = forecast.replica(id).observer
    t.same(
      { waiting, streams, contextTokens },
      { waiting: 0, streams: 0, contextTokens: 0 },
      'nothing is left behind',
    )
  }
})

t.test('events that hold several tokens are told as so many', async t => {
  const forecast = new Forecast(specOf([2], 100))
  play(forecast, 240, 4)
  const { tokensPerMark } = forecast.replica(0)
  t.ok(tokensPerMark > 3.5 && tokensPerMark < 4.1, `${tokensPerMark} tokens an event`)
  const off = forecast.pool(0).tpotErrors.medianAbsolute ?? 1
  t.ok(off < 0.15, `the pace is off by ${off}, not by a factor of 4`)
})

t.test('a restart begins from what was learned, and what is no forecast is refused', async t => {
  const learned = new Forecast(specOf([2], 100))
  play(learned, 60)
  const saved = (of: Forecast): unknown => JSON.parse(JSON.stringify([...of.save()]))
  const file = saved(learned) as Record<string, unknown>[]
  t.ok(JSON.stringify(file).length < 100_000, `${JSON.stringify(file).length} bytes`)
  const again = new Forecast(specOf([2], 100))
  t.equal(again.restore(file), undefined)
  t.same(saved(again), file)
  const [before, after] = [learned.pool(0), again.pool(0)]
  t.same(after.fit.cost, before.fit.cost)
  t.equal(after.fit.budget, before.fit.budget)
  t.notOk(after.fit.calibrated, 'an engine may have changed meanwhile: it is proved anew')
  t.equal(after.recent.count, Math.min(2048, before.recent.count))
  const asked = { cls: 0, model: 'm', promptTokens: 900, maxTokens: undefined, stream: true }
  t.ok(Math.abs(after.lengths.mean(asked) - before.lengths.mean(asked)) < 1e-6)
  t.equal(after.lengths.quantile(asked, 0.9), before.lengths.quantile(asked, 0.9))

  const more = new Forecast(specOf([2, 1], 100))
  t.equal(more.restore(file), undefined)
  t.notSame(more.pool(1).fit.cost, before.fit.cost, 'a pool that was not there begins cold')
  const other = new Forecast(specOf([2], 100))
  const renamed = JSON.parse(JSON.stringify(file).replaceAll('"chat"', '"gone"'))
  t.equal(other.restore(renamed), undefined)
  t.equal(other.pool(0).recent.count, 0, 'the requests of a class that is gone are no mix')

  const cold = new Forecast(specOf([1], 100))
  const none = saved(cold)
  const [cost] = file
  const row = { version: 2, pool: 'pool0' }
  const lengths = { ...row, kind: 'lengths', class: 'chat', model: null, sketches: [[80, 3]] }
  const recent = { ...row, kind: 'recent', classes: ['chat'], asked: [0, 100, 0, 10] }
  for (const [foreign, why] of [
    [7, 'no list of rows'],
    [{}, 'no list of rows'],
    [[null], 'a row of it is no object'],
    [[{ version: 1, pools: [] }], 'its version is 1, not 2'],
    [[{ ...cost, pool: 3 }], 'a row of it is of no pool'],
    [[{ ...row, kind: 'price' }], 'pool pool0: a row of a kind that is not known'],
    [[{ ...cost, budget: 0 }], 'pool pool0: a budget that is no number of tokens'],
    [[{ ...cost, cost: null }], 'pool pool0: a cost with parts missing'],
    [[lengths, { ...recent, asked: [0, 100, 0] }], 'pool pool0: requests that are no counts'],
    [[{ ...recent, asked: [0, 100, -1, 10] }], 'pool pool0: requests that are no counts'],
    [[{ ...lengths, sketches: [[80, 0.5]] }], 'pool pool0: lengths that are no counts'],
    [[{ ...lengths, class: 1 }], 'pool pool0: lengths that are no counts'],
  ] as const) {
    t.equal(cold.restore(foreign), why)
  }
  t.same(saved(cold), none, 'and nothing of it is taken')
  t.equal(cold.restore([{ ...lengths, sketches: [[900, 3, 80, 1e9, 81, 2]] }, recent]), undefined)
  t.ok(cold.pool(0).lengths.quantile(asked, 1) < 60, 'lengths and counts out of bounds are left out')
})

t.test('what is not streamed teaches lengths and nothing about steps', async t => {
  const forecast = new Forecast(specOf([1], 100))
  const sent = forecast.dispatched(0, asking({ stream: false }), 0)
  t.equal(forecast.replica(0).observer.waiting, 0)
  const body = stream(900, 900, 0, { streamed: false, usage: usage(64) })
  forecast.ended(sent, { complete: true, progress: body }, 900)
  const mean = forecast.pool(0).lengths.mean(asking())
  t.ok(Math.abs(mean / 64 - 1) < 0.03, `an answer is expected to have ${mean} tokens`)
  t.equal(forecast.pool(0).fit.firstTokens, 0)
  t.same(forecast.pool(0).recent.at(0), { cls: 0, promptTokens: 90, cachedTokens: 0, outputTokens: 64 })
})

t.test('what is refused is in the mix of its home pool, as long as it is expected to be', async t => {
  const forecast = new Forecast(specOf([1, 1], 100))
  forecast.shed(asking({ promptTokens: 7000 }))
  t.same(forecast.pool(0).recent.at(0), { cls: 0, promptTokens: 7000, cachedTokens: 0, outputTokens: 200 })
  t.equal(forecast.pool(1).recent.count, 0)
  t.equal(forecast.home(0, 'other'), undefined)
  forecast.shed(asking({ model: 'other' }))
  t.equal(forecast.pool(0).recent.count, 1, 'no pool serves it: it is in no mix')
})

t.test(
  'an answer that broke off teaches neither lengths nor paces, and an unknown replica is an error',
  async t => {
    const forecast = new Forecast(specOf([1], 100))
    const sent = forecast.dispatched(0, asking(), 0)
    forecast.mark(sent, 5, 1)
    forecast.firstToken(sent, 10)
    forecast.mark(sent, 20, 1)
    forecast.ended(sent, { complete: false, progress: stream(10, 20, 2) }, 30)
    t.equal(forecast.pool(0).recent.count, 0)
    t.equal(forecast.replica(0).observer.streams, 0)
    t.throws(() => forecast.dispatched(4, asking(), 0), new RangeError('there is no replica 4'))
    t.throws(() => forecast.pool(4), new RangeError('there is no pool 4'))
    forecast.reconfigure(specOf([1, 4], 100))
    t.doesNotThrow(() => forecast.dispatched(4, asking(), 0))
  },
)
