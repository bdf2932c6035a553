/** Writes down all that passes a policy's door, so that the same can be told to another one. */
import type { Decision, Ending, Failure } from '../../src/policy/decision.js'
import type { Policy, PolicySpec } from '../../src/policy/policy.js'
import type { RequestFacts, Ticket } from '../../src/request.js'
import type { Ms } from '../../src/time.js'

export type Told = { readonly now: Ms; readonly answer: unknown } & (
  | { readonly call: 'arrive'; readonly facts: RequestFacts }
  | { readonly call: 'firstToken'; readonly id: number }
  | { readonly call: 'mark'; readonly id: number; readonly events: number }
  | { readonly call: 'failed'; readonly id: number; readonly failure: Failure }
  | { readonly call: 'finish'; readonly id: number; readonly ending: Ending }
  | { readonly call: 'wake' }
)

/** A decision as data that two runs can be compared by: tickets by their number. */
function plain(decision: Decision): unknown {
  if (!('ticket' in decision)) return decision
  const { ticket, ...rest } = decision
  return { ...rest, ticket: ticket.id, cls: ticket.cls }
}

/** Passes everything on, and keeps what was told and what was answered. */
export class Recording implements Policy {
  readonly told: Told[] = []
  readonly #policy: Policy

  constructor(policy: Policy) {
    this.#policy = policy
    if (policy.forecast !== undefined) Object.defineProperty(this, 'forecast', { value: policy.forecast })
  }

  arrive(facts: RequestFacts, now: Ms) {
    const result = this.#policy.arrive(facts, now)
    this.told.push({ call: 'arrive', facts, now, answer: result.decisions.map(plain) })
    return result
  }

  firstToken(ticket: Ticket, now: Ms) {
    const decisions = this.#policy.firstToken(ticket, now)
    this.told.push({ call: 'firstToken', id: ticket.id, now, answer: decisions.map(plain) })
    return decisions
  }

  mark(ticket: Ticket, now: Ms, events: number): void {
    this.#policy.mark(ticket, now, events)
    this.told.push({ call: 'mark', id: ticket.id, now, events, answer: undefined })
  }

  failed(ticket: Ticket, failure: Failure, now: Ms) {
    const result = this.#policy.failed(ticket, failure, now)
    const again = result.again === undefined ? [] : [result.again]
    const answer = [...again, ...result.decisions].map(plain)
    this.told.push({ call: 'failed', id: ticket.id, failure, now, answer })
    return result
  }

  finish(ticket: Ticket, ending: Ending, now: Ms) {
    const result = this.#policy.finish(ticket, ending, now)
    const answer = [result.judgement, ...result.decisions.map(plain)]
    this.told.push({ call: 'finish', id: ticket.id, ending, now, answer })
    return result
  }

  wake(now: Ms) {
    const decisions = this.#policy.wake(now)
    this.told.push({ call: 'wake', now, answer: decisions.map(plain) })
    return decisions
  }

  reconfigure(spec: PolicySpec, now: Ms) {
    return this.#policy.reconfigure(spec, now)
  }

  get wakeAt(): Ms | undefined {
    return this.#policy.wakeAt
  }

  state(now: Ms) {
    return this.#policy.state(now)
  }
}

/** Tells another policy the same, at the same times. @returns what it answered, one answer a call */
export function replay(told: readonly Told[], policy: Policy): unknown[] {
  const again = new Recording(policy)
  const tickets = new Map<number, Ticket>()
  for (const one of told) {
    const ticket = 'id' in one ? (tickets.get(one.id) as Ticket) : undefined
    switch (one.call) {
      case 'arrive': {
        const { ticket } = again.arrive(one.facts, one.now)
        tickets.set(ticket.id, ticket)
        break
      }
      case 'firstToken':
        again.firstToken(ticket as Ticket, one.now)
        break
      case 'mark':
        again.mark(ticket as Ticket, one.now, one.events)
        break
      case 'failed':
        again.failed(ticket as Ticket, one.failure, one.now)
        break
      case 'finish':
        again.finish(ticket as Ticket, one.ending, one.now)
        break
      case 'wake':
        again.wake(one.now)
    }
  }
  return again.told.map(({ answer }) => answer)
}
