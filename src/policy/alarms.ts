/** What the door has to look at again, and when: tickets, and replicas that may be tried. */
import { LazyHeap } from '../admission/lazy-heap.js'
import type { Ms } from '../time.js'
import type { Alarm, Open } from './open.js'

export class Alarms {
  readonly #heap = new LazyHeap<Alarm>((a, b) => a.at - b.at)

  /** When the first is due. */
  get at(): Ms | undefined {
    return this.#heap.peek()?.at
  }

  /** A replica may be tried then. */
  trial(at: Ms): void {
    this.#heap.push({ at, ticket: undefined, gone: false })
  }

  /** Follows `open.dueAt`. */
  arm(open: Open): void {
    const at = open.dueAt
    if (open.alarm?.at === at) return
    this.disarm(open)
    if (at === Infinity) return
    open.alarm = { at, ticket: open, gone: false }
    this.#heap.push(open.alarm)
  }

  disarm(open: Open): void {
    if (open.alarm !== undefined) this.#heap.drop(open.alarm)
    open.alarm = undefined
  }

  /** Takes out the first that is due by now. */
  take(now: Ms): Alarm | undefined {
    const due = this.#heap.peek()
    if (due === undefined || due.at > now) return undefined
    if (due.ticket !== undefined) due.ticket.alarm = undefined
    return this.#heap.pop()
  }
}
