/** Answers of upstreams, read strictly, however they are cut. */
import fc from 'fast-check'
import t from 'tap'
import {
  answers,
  asMeant,
  asNodeReads,
  cuts,
  damaged,
  HEAD_LIMIT,
  nodeOracle,
  readAnswer,
  sameHoweverCut,
} from '../fixtures/answer-bytes.js'

const OK = 'HTTP/1.1 200 OK\r\n'
const CHUNKED = `${OK}Transfer-Encoding: chunked\r\n\r\n`

const read = (text: string, headOnly = false) => readAnswer(Buffer.from(text, 'latin1'), [], true, headOnly)

t.test('however the bytes are cut, the same answer comes out', async t => {
  t.doesNotThrow(() => fc.assert(fc.property(answers, cuts, asMeant), { numRuns: 200 }))
  const meant = `${CHUNKED}5;x=y\r\nhello\r\n00A\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n`
  for (let at = 0; at <= meant.length; at++) {
    const { body, ended } = readAnswer(Buffer.from(meant), [at], false)
    if (body !== 'hello0123456789' || !ended) t.fail(`cut at ${at}`)
  }
  const bytewise = readAnswer(
    Buffer.from(meant),
    Array.from(meant, (_, i) => i),
    false,
  )
  t.match(bytewise, { body: 'hello0123456789', ended: true, reusable: true }, 'byte by byte')
})

t.test(
  'damaged bytes are read alike however they are cut, and never as other than Node reads them',
  async t => {
    t.doesNotThrow(() => fc.assert(fc.property(damaged, cuts, sameHoweverCut), { numRuns: 500 }))
    const oracle = await nodeOracle()
    t.teardown(() => oracle.close())
    await t.resolves(
      fc.assert(
        fc.asyncProperty(damaged, bytes => asNodeReads(bytes, oracle)),
        { numRuns: 200 },
      ),
    )
  },
)

t.test('an answer that broke off has no end', async t => {
  const whole = `${CHUNKED}5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n`
  for (let length = 0; length < whole.length; length++)
    if (read(whole.slice(0, length)).ended) t.fail(`${length} bytes are taken for whole`)
  t.match(read(`${OK}Content-Length: 9\r\n\r\n12345678`), { body: '12345678', ended: false })
  t.match(read(`${OK}\r\n12345678`), { body: '12345678', ended: true, reusable: false })
})

t.test('what two readers could read in two ways is refused', async t => {
  const lines = (text: string) => `${OK}${text}\r\n\r\n5\r\nhello\r\n0\r\n\r\n`
  const forms: Record<string, string> = {
    [lines('Content-Length: 5\r\nTransfer-Encoding: chunked')]: 'both a length and chunks',
    [lines('Transfer-Encoding: chunked\r\nContent-Length: 5')]: 'both a length and chunks',
    [lines('Content-Length: 5\r\nContent-Length: 6')]: 'two lengths',
    [lines('Content-Length: 5\r\nContent-Length: 5')]: 'two lengths',
    [lines('Content-Length: 5, 5')]: 'a bad length',
    [lines('Content-Length: +5')]: 'a bad length',
    [lines('Content-Length: -5')]: 'a bad length',
    [lines('Content-Length: 0x5')]: 'a bad length',
    [lines('Content-Length:')]: 'a bad length',
    [lines('Content-Length: 99999999999999999')]: 'a bad length',
    [lines('Content-Length : 5')]: 'a bad header line',
    [lines('X: a\r\n b')]: 'a bad header line',
    [lines('X: a\nContent-Length: 5')]: 'a bad header line',
    [lines('X: a\rContent-Length: 5')]: 'a bad header line',
    [lines('X: a\0b')]: 'a bad header line',
    [lines('Transfer-Encoding: gzip, chunked')]: 'a transfer coding other than chunked',
    [lines('Transfer-Encoding: xchunked')]: 'a transfer coding other than chunked',
    [lines('Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked')]: 'two transfer codings',
    'HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n': 'chunks in an HTTP/1.0 answer',
    'HTTP/1.1 20 OK\r\n\r\n': 'a bad status line',
    'HTTP/1.1  200 OK\r\n\r\n': 'a bad status line',
    'HTTP/1.2 200 OK\r\n\r\n': 'a bad status line',
    'HTTP/2 200\r\n': 'no HTTP/1 answer',
    'ICY 200 OK\r\n': 'no HTTP/1 answer',
    'HTTP/1.1 101 X\r\n\r\n': 'a change of protocol that was not asked for',
    [`${CHUNKED}5 \r\nhello\r\n0\r\n\r\n`]: 'a chunk size that is no number',
    [`${CHUNKED} 5\r\nhello\r\n0\r\n\r\n`]: 'a chunk size that is no number',
    [`${CHUNKED}0x5\r\nhello\r\n0\r\n\r\n`]: 'a chunk size that is no number',
    [`${CHUNKED}-5\r\nhello\r\n0\r\n\r\n`]: 'a chunk size that is no number',
    [`${CHUNKED}\r\n0\r\n\r\n`]: 'a chunk size that is no number',
    [`${CHUNKED}5\nhello\r\n0\r\n\r\n`]: 'a chunk size that is no number',
    [`${CHUNKED}5\rhello\r\n0\r\n\r\n`]: 'a chunk size without its line end',
    [`${CHUNKED}5;a\nb\r\nhello\r\n0\r\n\r\n`]: 'a control character in a chunk extension',
    [`${CHUNKED}5;${'a'.repeat(2000)}\r\nhello\r\n0\r\n\r\n`]: 'a chunk extension without end',
    [`${CHUNKED}ffffffffffffffff\r\nhello`]: 'a chunk size beyond counting',
    [`${CHUNKED}${'0'.repeat(40)}5\r\nhello`]: 'a chunk size beyond counting',
    [`${CHUNKED}5\r\nhello!\r\n0\r\n\r\n`]: 'a chunk longer than its size',
    [`${CHUNKED}5\r\nhello\n0\r\n\r\n`]: 'a chunk longer than its size',
    [`${CHUNKED}0\r\nx sum: 1\r\n\r\n`]: 'a bad trailer line',
    [`${CHUNKED}0\r\nx-sum: 1\n\r\n`]: 'a bad trailer line',
    [`${CHUNKED}0\r\n${'x: aaaaaaaaaaaaaaaa\r\n'.repeat(200)}\r\n`]:
      'a trailer section over the limit of a head',
    ['HTTP/1.1 100 X\r\n\r\n'.repeat(20)]: 'informational answers without end',
    [`${OK}X: ${'a'.repeat(HEAD_LIMIT)}\r\n\r\n`]: `the head of its answer is over ${HEAD_LIMIT} bytes (limits.headers)`,
    [`${OK}X: ${'a'.repeat(HEAD_LIMIT)}`]: `the head of its answer is over ${HEAD_LIMIT} bytes (limits.headers)`,
  }
  for (const [bytes, fault] of Object.entries(forms)) {
    t.match(read(bytes), { fault, ended: false }, JSON.stringify(bytes.slice(0, 70)))
    const cut = readAnswer(
      Buffer.from(bytes, 'latin1'),
      Array.from(bytes, (_, i) => i),
      true,
    )
    t.equal(cut.fault, fault, 'byte by byte')
  }
})

t.test('a connection is used again only when nothing is left on it', async t => {
  const whole = `${OK}Content-Length: 2\r\n\r\nhi`
  t.match(read(whole), { ended: true, reusable: true })
  t.match(read(`${whole}HTTP/1.1 200 OK\r\n\r\n`), { body: 'hi', ended: true, reusable: false })
  t.match(read(`${CHUNKED}0\r\n\r\nx`), { body: '', ended: true, reusable: false })
  t.match(read(`${OK}Connection: a, Close\r\nContent-Length: 2\r\n\r\nhi`), { ended: true, reusable: false })
  t.match(read('HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi'), { ended: true, reusable: false })
  t.match(read('HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi'), {
    reusable: true,
  })
})

t.test('answers that have no body end with their head', async t => {
  t.match(read(`${OK}Content-Length: 5\r\n\r\n`, true), {
    status: 200,
    body: '',
    ended: true,
    reusable: true,
  })
  t.match(read(`HTTP/1.1 204 X\r\n\r\n`), { status: 204, body: '', ended: true, reusable: true })
  t.match(read('HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n'), { status: 304, body: '', ended: true })
  t.match(read(`HTTP/1.1 100 X\r\n\r\n${OK}Content-Length: 0\r\n\r\n`), {
    status: 200,
    ended: true,
    reusable: true,
  })
})
