/** The table of Weir's own answers: the README has the same one, and each answer is one that SDKs can act on. */
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import {
  ANSWERS,
  type AnswerCode,
  bodyOf,
  eventOf,
  headersOf,
  shedAnswer,
  statusOf,
} from '../../src/http/answers.js'
import type { ShedReason } from '../../src/policy/decision.js'

const README = readFileSync(new URL('../../README.md', import.meta.url), 'utf8')

t.test('the README has the table of codes, word for word', async t => {
  const [head, , ...rows] = README.split('\n\n')
    .filter(block => block.startsWith('| code | status | when |'))
    .flatMap(block => block.split('\n'))
  t.equal(head, '| code | status | when |')
  const told = Object.entries(ANSWERS).map(
    ([code, { status, when }]) => `| \`${code}\` | ${status ?? 'in band'} | ${when} |`,
  )
  t.same(
    rows.filter(row => row !== ''),
    told,
  )
})

t.test('a body has the shape of OpenAI, an event is that body', async t => {
  for (const code of Object.keys(ANSWERS) as AnswerCode[]) {
    const answer = { code, message: 'one "quoted"\nsentence' }
    t.same(JSON.parse(bodyOf(answer)), {
      error: { message: answer.message, type: ANSWERS[code].type, param: null, code },
    })
    t.equal(eventOf(answer), `data: ${bodyOf(answer)}\n\n`)
    t.equal(eventOf(answer).split('\n').length, 3, 'one line of data')
    t.ok(statusOf(answer) >= 400)
  }
  t.equal(eventOf({ code: 'weir_upstream_error', message: 'x', event: 'data: own\n\n' }), 'data: own\n\n')
})

t.test('retry-after is whole seconds from 1 to 59, and not before retry-after-ms', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(fc.double({ min: 0, max: 1e6, noNaN: true }), retryAfterMs => {
        const headers = headersOf({ code: 'weir_no_headroom', message: '', retryAfterMs })
        const [name, seconds, nameMs, ms] = headers
        if (name !== 'retry-after' || nameMs !== 'retry-after-ms') return false
        const s = Number(seconds)
        return Number.isInteger(s) && s >= 1 && s <= 59 && Number(ms) <= s * 1000 && Number(ms) >= 1000
      }),
    ),
  )
  t.same(headersOf({ code: 'weir_bad_request', message: '' }), [])
  t.same(headersOf({ code: 'weir_bad_request', message: '', shouldRetry: false }), [
    'x-should-retry',
    'false',
  ])
})

t.test('each reason to shed has a code, a status, and a sentence of its own', async t => {
  const cases: readonly (readonly [ShedReason, AnswerCode, number, RegExp])[] = [
    ['no_headroom', 'weir_no_headroom', 503, /Class chat has no headroom.*Retry in 3 s/],
    ['infeasible', 'weir_deadline_infeasible', 503, /after 1.5 s in the queue of class chat.*longer one/],
    ['queue_timeout', 'weir_queue_timeout', 503, /Waited 1.5 s.*class chat.*Retry in 3 s/],
    ['quota', 'weir_quota', 429, /over its own share of class chat.*Retry in 3 s/],
    ['no_replica', 'weir_no_replica', 503, /No replica.*class chat.*healthy.*Retry in 3 s/],
  ]
  for (const [reason, code, status, says] of cases) {
    const answer = shedAnswer(reason, 'chat', 1500, 2400, 503)
    t.equal(answer.code, code)
    t.equal(statusOf(answer), status)
    t.match(answer.message, says)
    t.same(headersOf(answer).slice(0, 4), ['retry-after', '3', 'retry-after-ms', '2400'])
    t.equal(headersOf(answer).includes('x-should-retry'), reason === 'infeasible')
    t.equal(statusOf(shedAnswer(reason, 'chat', 1500, 2400, 429)), 429, 'for meshes that eject on 5xx')
  }
})
