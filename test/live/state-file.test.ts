import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { type Kept, openState, StateFile } from '../../src/live/state-file.js'
import { SloBook } from '../../src/slo/book.js'
import { readSavedBook } from '../../src/slo/saved-book.js'
import { judge } from '../../src/slo/verdict.js'
import { chat, specOf, stream } from '../policy/world.js'

const NOON = Date.parse('2026-03-01T12:00:00Z')

/** A part that remembers what it was given. */
function part(name: string, value: unknown, refuse?: string) {
  const taken: [unknown, number][] = []
  const kept: Kept = {
    name,
    save: () => [value],
    restore: (saved, gapMs) => {
      taken.push([saved, gapMs])
      return refuse
    },
  }
  return { kept, taken }
}

function warnings() {
  const told: { why?: string; aside?: string; message: string }[] = []
  return { told, warn: (fields: object, message: string) => void told.push({ ...fields, message }) }
}

t.test('what was saved is there after a restart, with the time between', async t => {
  const dir = join(t.testdir(), 'made', 'on the way')
  const { told, warn } = warnings()
  const first = await openState({
    dir,
    warn,
    wall: () => NOON,
    kept: [part('a', { x: 1 }).kept, part('b', [2]).kept],
  })
  await first.close()
  t.same(readdirSync(dir), ['weir-state.json'], 'and no draft of it is left')
  const [a, b, c] = [part('a', 0), part('b', 0), part('c', 0)]
  const kept = [a.kept, b.kept, c.kept]
  const again = new StateFile({ dir, warn, wall: () => NOON + 90_000, kept })
  await again.restore()
  t.same([a.taken, b.taken, c.taken], [[[[{ x: 1 }], 90_000]], [[[[2]], 90_000]], []])
  const back = new StateFile({ dir, warn, wall: () => NOON - 90_000, kept })
  await back.restore()
  t.same(a.taken[1], [[{ x: 1 }], 0], 'a wall clock that was set back makes no gap')
  t.same(told, [])
})

t.test('a book of verdicts goes on over a restart', async t => {
  const dir = t.testdir()
  const { told, warn } = warnings()
  const spec = specOf([1], 8)
  const keep = (book: SloBook, now: () => number): Kept => ({
    name: 'slo',
    save: () => book.save({ now }),
    restore: (saved, gapMs) => {
      const read = readSavedBook(saved)
      return typeof read === 'string' ? read : book.restore(read, gapMs, now())
    },
  })
  const served = {
    ...{ traffic: chat, pool: 0, stream: true, promptTokens: 100, deadlineMs: Infinity, reported: 0 },
    ...{ arrivedAt: 0, bodyAt: 0, dispatchedAt: 0 },
  }
  const book = new SloBook(spec, 0)
  for (let i = 0; i < 200; i++) book.judged(judge(served, 'complete', stream(100, 500, 11), 1, 500), 'm', 500)
  const first = await openState({ dir, warn, wall: () => NOON, kept: [keep(book, () => 3_600_000)] })
  await first.close()
  const next = new SloBook(spec, 77)
  const second = await openState({ dir, warn, wall: () => NOON + 1000, kept: [keep(next, () => 77)] })
  const hour = next
    .reading(77)
    .attainment()
    .find(row => row.clause === 'joint' && row.windowMs === 7_200_000)
  t.match(hour, { met: 200, missed: 0, share: undefined }, 'two hours have not been seen')
  const seen = next
    .reading(77 + 3_600_000)
    .attainment()
    .find(row => row.clause === 'joint' && row.windowMs === 7_200_000)
  t.match(seen, { met: 200, share: 1 })
  t.notMatch(readFileSync(join(dir, 'weir-state.json'), 'utf8'), /prompt/)
  await second.close()
  t.same(told, [])
})

const good = JSON.stringify({ version: 1, saved_at: '2026-03-01T12:00:00.000Z', parts: { a: [1], b: [2] } })
for (const [name, text, why] of [
  ['torn', good.slice(0, 40), 'it is torn: no whole JSON'],
  ['empty', '', 'it is torn: no whole JSON'],
  ['foreign', '{"scripts":{}}', 'it is no state of Weir'],
  ['foreign, too', '[1]', 'it is no state of Weir'],
  [
    'of a later version',
    good.replace('"version":1', '"version":2'),
    'it is of version 2, and this Weir reads 1',
  ],
  ['of no time', good.replace('2026', 'MMXX'), 'it does not say when it was saved'],
  ['refused by a part', good, 'b: no'],
] as const) {
  t.test(`a file that is ${name} is set aside as it is, and Weir goes on`, async t => {
    const dir = t.testdir({ 'weir-state.json': text })
    const { told, warn } = warnings()
    const kept = [part('a', 1).kept, part('b', 2, 'no').kept]
    const state = await openState({ dir, warn, wall: () => NOON, kept })
    t.match(told, [{ why, message: 'the kept state was set aside: its figures begin anew' }])
    const aside = 'weir-state.json.aside-2026-03-01T12-00-00.000Z'
    t.same(readdirSync(dir), [aside])
    t.equal(readFileSync(join(dir, aside), 'utf8'), text)
    await state.close()
    t.equal(readFileSync(join(dir, 'weir-state.json'), 'utf8'), `${good}\n`)
  })
}

t.test(
  'a directory that cannot be used is told of once, not every minute, and again after it was mended',
  async t => {
    const root = t.testdir({ file: 'in the way' })
    const { told, warn } = warnings()
    const dir = join(root, 'file')
    const state = await openState({ dir, warn, kept: [part('a', 1).kept] })
    await state.save()
    await state.save()
    rmSync(dir)
    await state.save()
    t.same(readdirSync(dir), ['weir-state.json'])
    rmSync(dir, { recursive: true })
    writeFileSync(dir, 'in the way again')
    await state.close()
    t.same(
      told.map(({ message }) => message),
      [
        'the kept state cannot be read: figures begin anew',
        'the state cannot be kept: figures will not survive a restart',
        'the state cannot be kept: figures will not survive a restart',
      ],
    )
  },
)

t.test('it is written again and again, and the last write has the last figures', async t => {
  const dir = t.testdir()
  const { told, warn } = warnings()
  let figures = 0
  const kept: Kept = { name: 'a', save: () => [figures], restore: () => undefined }
  const state = await openState({ dir, warn, everyMs: 5, kept: [kept] })
  const file = join(dir, 'weir-state.json')
  const figuresIn = () => (JSON.parse(readFileSync(file, 'utf8')) as { parts: { a: [number] } }).parts.a[0]
  figures = 1
  while (!existsSync(file) || figuresIn() !== 1) await sleep(5)
  figures = 2
  while (figuresIn() !== 2) await sleep(5)
  const under = state.save()
  figures = 3
  t.equal(state.save(), under, 'one write at a time')
  await state.close()
  t.equal(figuresIn(), 3)
  writeFileSync(file, '')
  await sleep(60)
  t.equal(readFileSync(file, 'utf8'), '', 'and then no more')
  t.same(told, [])
})
