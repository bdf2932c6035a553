/** How long answers get: three likely lengths of one that has got so far. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { type LengthQuery, OutputLengths } from '../../src/predict/lengths.js'

const query: LengthQuery = { cls: 0, model: 'm', promptTokens: 500, maxTokens: undefined }

function known(lengths: readonly number[]): OutputLengths {
  const outputs = new OutputLengths()
  for (const length of lengths) outputs.add(0, 'm', 500, length)
  return outputs
}

function thirds(outputs: OutputLengths, sofar: number, maxTokens?: number): number[] {
  const into = new Float64Array(3)
  outputs.thirds({ ...query, maxTokens }, sofar, into)
  return [...into]
}

/** A length is kept to 2.5 %. */
const near = (got: readonly number[], wanted: readonly number[]): boolean =>
  got.every((length, i) => Math.abs(length / (wanted[i] as number) - 1) < 0.026)

t.test('likely lengths are the 1/6, 1/2 and 5/6 quantiles', async t => {
  const outputs = known(Array.from({ length: 600 }, (_, i) => 1 + i))
  const got = thirds(outputs, 0)
  t.ok(near(got, [100, 300, 500]), `${got}`)
})

t.test('of an answer that outgrew the short ones only the long ones are left', async t => {
  const outputs = known([...new Array(900).fill(20), ...new Array(100).fill(1000)])
  t.ok(near(thirds(outputs, 0), [20, 20, 20]))
  t.ok(near(thirds(outputs, 30), [1000, 1000, 1000]))
})

t.test('before the first answer, and beyond the longest, a guess goes on from where it is', async t => {
  const outputs = new OutputLengths()
  t.ok(near(thirds(outputs, 0), [200 / 3, 200, 1000 / 3]))
  t.ok(near(thirds(known([10]), 500), [500 + 200 / 3, 700, 500 + 1000 / 3]))
})

t.test('likely lengths rise, are ahead of what is there, and none is above max_tokens', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 5000 }), { maxLength: 60 }),
        fc.nat(6000),
        fc.integer({ min: 1, max: 8000 }),
        (lengths, sofar, more) => {
          const most = sofar + more
          const [a = 0, b = 0, c = 0] = thirds(known(lengths), sofar, most)
          assert(a <= b && b <= c, `${a} ${b} ${c}`)
          assert(a > sofar && c <= most, `${a} to ${c} after ${sofar} of ${most}`)
        },
      ),
    ),
  )
})
