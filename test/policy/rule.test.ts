/** What the door holds a rule to, and what it lets one do. */
import assert from 'node:assert/strict'
import t from 'tap'
import type { Decision } from '../../src/policy/decision.js'
import { Door } from '../../src/policy/door.js'
import type { Open } from '../../src/policy/open.js'
import type { Desk, Rule } from '../../src/policy/rule.js'
import { seededRng } from '../../src/time.js'
import { ask, complete, specOf, stream } from './world.js'

const IDLE: Rule = { arrive() {}, again() {}, freed() {} }
/** A door with a rule made for the test. */
const doorOf = (rule: (desk: Desk) => Partial<Rule>): Door =>
  new Door(specOf([2], 4), seededRng(1), desk =>
    Object.defineProperties({ ...IDLE }, Object.getOwnPropertyDescriptors(rule(desk))),
  )
const agentAsks = (now: number) => ask(now, { askedClass: 1 })
const kinds = (decisions: readonly Decision[]): string[] => decisions.map(({ kind }) => kind)

t.test(
  'a rule that decides nothing about a newcomer is a fault, as is a second decision or a late shed',
  async t => {
    t.throws(() => doorOf(() => ({})).arrive(ask(0), 0), new Error('the rule decided nothing about ticket 0'))

    const twice = doorOf(desk => ({
      arrive(open, now) {
        for (const replica of desk.replicas) desk.dispatch(open, replica, now)
      },
    }))
    t.throws(() => twice.arrive(ask(0), 0), new Error('ticket 0 is on a replica: it cannot be sent'))

    let sent: Open | undefined
    const late = doorOf(desk => ({
      arrive(open, now) {
        if (sent !== undefined) desk.shed(sent, 'no_headroom', now)
        sent = open
        desk.dispatch(open, desk.replicas[0] ?? assert.fail(), now)
      },
    }))
    late.arrive(ask(0), 0)
    t.throws(() => late.arrive(ask(0), 0), new Error('ticket 0 was sent: it cannot be shed'))
  },
)

t.test(
  'for a newcomer a rule may shed one that waits, with its own Retry-After; its own decision is first',
  async t => {
    let waiting: Open | undefined
    const door = doorOf(desk => ({
      arrive(open, now) {
        if (waiting !== undefined) desk.shed(waiting, 'no_headroom', now, 1234)
        waiting = open
        t.ok(desk.queue(open, now))
        t.notOk(desk.queue(open, now), 'once')
      },
    }))
    const first = door.arrive(agentAsks(0), 0)
    const second = door.arrive(agentAsks(1), 1)
    t.match(second.decisions, [
      { kind: 'queue', ticket: second.ticket },
      { kind: 'shed', ticket: first.ticket, retryAfterMs: 1234, judgement: { verdict: 'shed' } },
    ])
    t.equal(door.state(1).queues[0]?.depth, 1)
  },
)

t.test('a rule is woken at its time, before whatever happens then, and once', async t => {
  const woken: number[] = []
  let at: number | undefined = 25
  const door = doorOf(desk => ({
    arrive: (open, now) => desk.shed(open, 'no_headroom', now),
    get wakeAt() {
      return at
    },
    wake(now) {
      woken.push(now)
      at = now < 40 ? 50 : undefined
    },
  }))
  t.equal(door.wakeAt, 25)
  door.wake(24)
  t.same(woken, [])
  door.arrive(ask(30), 30)
  t.same(woken, [30], 'an arrival comes after it')
  t.equal(door.wakeAt, 50)
  door.wake(51)
  door.wake(60)
  t.same(woken, [30, 51])
})

t.test(
  'a rule hears of a request what it needs to learn, and who leaves its queue by no act of its own',
  async t => {
    const heard: string[] = []
    const door = doorOf(desk => ({
      arrive(open, now) {
        if (open.facts.askedClass === 1) desk.queue(open, now)
        else desk.dispatch(open, desk.replicas[0] ?? assert.fail(), now)
      },
      waits: open => heard.push(`waits ${open.id}`),
      left: open => heard.push(`left ${open.id}`),
      firstToken: (open, replica, now) => heard.push(`first ${open.id} on ${replica.spec.id} at ${now}`),
      mark: (open, _replica, now, events) => heard.push(`mark ${open.id} ${events} at ${now}`),
      failed: (open, replica, { kind }) => heard.push(`failed ${open.id} on ${replica.spec.id}: ${kind}`),
      ended: (open, replica, { kind }, { verdict }) =>
        heard.push(`ended ${open.id} on ${replica?.spec.id}: ${kind}, ${verdict}`),
      state: () => ({ kappa: 2 }),
    }))
    const one = door.arrive(ask(0), 0).ticket
    door.firstToken(one, 10)
    door.mark(one, 20, 3)
    door.finish(one, complete(stream(10, 20, 4)), 20)
    const two = door.arrive(ask(20), 20).ticket
    t.equal(door.failed(two, { kind: 'reset', detail: '' }, 30).again, undefined, 'again did nothing')
    door.finish(two, { kind: 'upstreamError', progress: undefined }, 30)
    const three = door.arrive(agentAsks(40), 40).ticket
    door.finish(three, { kind: 'clientLeft', progress: undefined }, 50)
    const four = door.arrive(agentAsks(60), 60).ticket
    t.same(kinds(door.wake(60_000)), ['shed'], 'its 55 s are over, its deadline is not')
    t.same(heard, [
      'first 0 on 0 at 10',
      'mark 0 3 at 20',
      'ended 0 on 0: complete, good',
      'failed 1 on 0: reset',
      'ended 1 on undefined: upstreamError, upstream_error',
      'waits 2',
      'left 2',
      'ended 2 on undefined: clientLeft, client_left',
      'waits 3',
      'left 3',
    ])
    t.equal(four.id, 3)
    t.same(door.state(60_000).rule, { kappa: 2 })
  },
)

t.test('after a change of config those who wait stand in the queue anew, in their order', async t => {
  const queue: number[] = []
  const door = doorOf(desk => ({
    arrive: (open, now) => void desk.queue(open, now),
    waits: open => queue.push(open.id),
    reconfigure: () => queue.splice(0, queue.length),
  }))
  for (const now of [0, 1, 2]) door.arrive(agentAsks(now), now)
  const spec = specOf([3], 4)
  t.same(door.reconfigure(spec, 3), [])
  t.same(queue, [0, 1, 2])
  const withoutQueue = spec.classes.map(traffic => ({ ...traffic, queue: undefined }))
  t.same(kinds(door.reconfigure({ ...spec, classes: withoutQueue }, 4)), ['shed', 'shed', 'shed'])
  t.same(queue, [])
  t.equal(door.state(4).open, 0)
})
