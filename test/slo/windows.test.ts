import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { binOf, Sketch, SketchWindow } from '../../src/slo/sketch.js'
import { LEVELS, WINDOWS, Windows, windowName, windowsOf } from '../../src/slo/windows.js'

const DAY = 86_400_000
const ALL = windowsOf(30 * DAY)

interface Event {
  readonly at: number
  readonly series: number
  readonly by: number
}

/** Gaps of every size, from two events at once to a month of silence. */
const gaps = fc.oneof(
  { weight: 3, arbitrary: fc.nat(3000) },
  { weight: 2, arbitrary: fc.nat(600_000) },
  fc.nat(6 * 3_600_000),
  fc.nat(40 * DAY),
  fc.constantFrom(0, 1000, 5000, 60_000, 600_000, 3_600_000),
)
const steps = fc.array(fc.tuple(gaps, fc.nat(2), fc.integer({ min: 1, max: 9 })), { maxLength: 60 })

function eventsOf(list: readonly (readonly [number, number, number])[], from: number): Event[] {
  let at = from
  return list.map(([gap, series, by]) => {
    at += gap
    return { at, series, by }
  })
}

/** What a window must say, from the list of all events. */
function naive(events: readonly Event[], series: number, windowMs: number, now: number): number {
  const sliceMs = LEVELS.find(({ spanMs }) => spanMs >= windowMs)!.sliceMs
  const begin = Math.floor((now - windowMs) / sliceMs) * sliceMs
  return events
    .filter(event => event.series === series && event.at >= begin && event.at <= now)
    .reduce((sum, { by }) => sum + by, 0)
}

function play(windows: Windows, events: readonly Event[]): void {
  for (const { at, series, by } of events) {
    windows.advance(at)
    windows.add(series, by)
  }
}

t.test(
  'every window counts what a list of all events says, to a slice, however long nothing came',
  async t => {
    t.doesNotThrow(() =>
      fc.assert(
        fc.property(steps, gaps, fc.nat(10 * DAY), (list, rest, from) => {
          const events = eventsOf(list, from)
          const windows = new Windows(3, LEVELS, from)
          play(windows, events)
          const now = (events.at(-1)?.at ?? from) + rest
          windows.advance(now)
          for (const windowMs of ALL) {
            for (const series of [0, 1, 2]) {
              const sum = windows.sum(series, windowMs)
              assert.equal(sum, naive(events, series, windowMs, now), `${windowName(windowMs)} of ${series}`)
            }
            const over = windows.spanMs(windowMs) - windowMs
            assert.ok(
              over >= 0 && over <= Math.max(1000, windowMs / 10),
              `${windowName(windowMs)} is ${over} longer`,
            )
          }
        }),
      ),
    )
  },
)

t.test('what was saved and taken over goes on like what was never stopped', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(steps, steps, gaps, gaps, (before, after, rest, older) => {
        const first = eventsOf(before, 0)
        const savedAt = (first.at(-1)?.at ?? 0) + rest
        const whole = new Windows(3, LEVELS, 0)
        play(whole, first)
        whole.advance(savedAt)
        // What is taken over may be older than what takes it over.
        const at = savedAt + older
        const second = eventsOf(after, at)
        const again = new Windows(3, LEVELS, at)
        for (const series of [0, 1, 2]) {
          const saved = JSON.parse(JSON.stringify(whole.slices(series))) as number[][]
          assert.equal(again.fill(series, saved, savedAt), true)
        }
        whole.advance(at)
        play(whole, second)
        play(again, second)
        for (const windowMs of ALL) {
          for (const series of [0, 1, 2]) {
            assert.equal(again.sum(series, windowMs), whole.sum(series, windowMs), windowName(windowMs))
          }
        }
      }),
    ),
  )
})

t.test(
  'series can be added and cleared while others go on; counts that cannot be right are not taken',
  async t => {
    const windows = new Windows(1, LEVELS, 0)
    windows.add(0, 5)
    windows.advance(90_000)
    windows.grow(3)
    windows.add(2, 7)
    windows.advance(150_000)
    t.same(
      [0, 1, 2].map(series => windows.sum(series, 300_000)),
      [5, 0, 7],
    )
    t.same(
      [0, 1, 2].map(series => windows.sum(series, 60_000)),
      [0, 0, 7],
    )
    windows.clear(2)
    windows.add(2, 1)
    t.same(
      [0, 2].map(series => windows.sum(series, 30 * DAY)),
      [5, 1],
    )
    windows.advance(100)
    t.equal(windows.at, 150_000, 'time does not go back')

    const saved = windows.slices(0)
    t.equal(windows.fill(1, saved.slice(1), windows.at), false, 'a level is missing')
    t.equal(
      windows.fill(
        1,
        saved.map(() => Array(5000).fill(1)),
        windows.at,
      ),
      false,
      'more slices than there are',
    )
    for (const count of [-1, Number.NaN, 1e300])
      t.equal(
        windows.fill(
          1,
          saved.map(() => [count]),
          windows.at,
        ),
        false,
        `${count}`,
      )
    t.equal(windows.sum(1, 30 * DAY), 0)
    t.equal(windows.fillFrom(0, 3, [saved, saved], windows.at), false, 'a series is missing')
    t.throws(() => windows.sum(0, 91 * DAY), { message: `no window of ${91 * DAY} ms is kept` })
  },
)

t.test('windows are called what people call them', async t => {
  t.same(WINDOWS.map(windowName), ['10s', '60s', '5m', '30m', '1h', '2h', '6h', '1d', '3d'])
  t.same(windowsOf(3 * DAY).length, WINDOWS.length)
  t.same([7 * DAY, 36 * 3_600_000, 90_000].map(windowName), ['7d', '36h', '90s'])
})

/** Nearest rank. */
function truth(values: readonly number[], share: number): number {
  return values.toSorted((a, b) => a - b)[Math.max(1, Math.ceil(share * values.length)) - 1]!
}

const values = fc.array(fc.double({ min: 0.5, max: 3_600_000, noNaN: true }), {
  minLength: 1,
  maxLength: 200,
})
const shares = fc.constantFrom(0.001, 0.5, 0.9, 0.99, 1)
const sketchOf = (list: readonly number[]): Sketch => {
  const sketch = new Sketch()
  for (const value of list) sketch.add(binOf(value))
  return sketch
}
const within = (got: number | undefined, want: number): void => {
  assert.ok(got !== undefined && Math.abs(got / want - 1) <= 0.01 + 1e-9, `${got} for ${want}`)
}

t.test('every percentile of a sketch is within 1 %, and sketches merge and subtract', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(values, values, shares, (a, b, share) => {
        const sketch = sketchOf(a)
        within(sketch.quantile(share), truth(a, share))
        sketch.merge(sketchOf(b))
        within(sketch.quantile(share), truth([...a, ...b], share))
        assert.deepEqual(sketch.dump(), sketchOf([...b, ...a]).dump())
        sketch.subtract(sketchOf(a))
        assert.equal(sketch.count, b.length)
        within(sketch.quantile(share), truth(b, share))
        const loaded = new Sketch()
        assert.equal(loaded.load(sketch.dump()), true)
        assert.deepEqual(loaded.dump(), sketch.dump())
      }),
    ),
  )
  t.equal(new Sketch().quantile(0.5), undefined)
  t.same([0, -5, 0.1].map(binOf), Array(3).fill(binOf(0.5)), 'what is too small is in the first bin')
  t.equal(binOf(Infinity), binOf(3_600_000))
  for (const wrong of [[1.5, 1], [-99, 1], [binOf(1e9), 1, 1], [0], [0, -1], [0, 0.5]]) {
    t.equal(new Sketch().load(wrong), false, `${wrong}`)
  }
})

t.test('a window of sketches holds what came in it, also after it was saved', async t => {
  const arrivals = fc.array(fc.tuple(gaps, fc.double({ min: 1, max: 100_000, noNaN: true })), {
    maxLength: 60,
  })
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        arrivals,
        fc.constantFrom(60_000, 300_000, 3_600_000, DAY),
        gaps,
        (list, windowMs, rest) => {
          let at = 0
          let window = new SketchWindow(windowMs, 0)
          const seen: { at: number; value: number }[] = []
          for (const [i, [gap, value]] of list.entries()) {
            at += gap
            window.add(binOf(value), at)
            seen.push({ at, value })
            if (i % 20 !== 10) continue
            const saved = JSON.parse(JSON.stringify(window.dump(at))) as number[][]
            const savedAt = at
            // As old as it may be.
            if (i % 40 === 10) at += rest
            window = new SketchWindow(windowMs, at)
            assert.equal(window.load(saved, savedAt), true)
          }
          at += rest
          const begin = (Math.floor(at / (windowMs / 12)) - 12) * (windowMs / 12)
          const inside = seen.filter(one => one.at >= begin).map(({ value }) => value)
          const sum = window.sum(at)
          assert.equal(sum.count, inside.length)
          assert.deepEqual(sum.dump(), sketchOf(inside).dump())
        },
      ),
    ),
  )
  const window = new SketchWindow(60_000, 0)
  for (const wrong of [[], [13, 0, 1], [-1, 0, 1], [0.5, 0, 1], [0, 0]])
    t.equal(window.load([wrong], 0), false, `${wrong}`)
})
