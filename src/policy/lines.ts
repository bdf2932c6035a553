/** Requests that wait, a line a lane: by deadline in a line, by priority and age between lines. */
import { DeadlineQueue } from '../admission/queue.js'
import type { Replica } from '../fleet/replica.js'
import type { Ms } from '../time.js'
import type { Lane } from './lane.js'
import type { Open } from './open.js'
import type { Desk } from './rule.js'

/** A line that waits gains one step of priority each time this passes. */
const AGING_MS: Ms = 5_000

/** Those who wait for the same pools under the same promise, and when one of them was served last. */
interface Line {
  readonly lane: Lane
  readonly queue: DeadlineQueue<Open>
  /** Last time one was served from the queue, or the queue began. */
  servedAt: Ms
}

/**
 * Whose turn it is: the lowest priority number, then the earliest deadline at the head.
 *
 * Nothing starves: a line `d` steps of priority behind the others outranks every line that was served in the last
 * 5 s once it has gone `(d + 1) * 5 s` unserved, and then has the next slot it can use, after the lines that have
 * waited as long as it. One request waits for its class's `queue.wait` at most, whatever the others do.
 */
export class Lines {
  readonly #desk: Pick<Desk, 'dispatch'>
  readonly #hasRoom: (lane: Lane, now: Ms) => boolean
  readonly #pick: (open: Open, now: Ms) => Replica | undefined
  readonly #lines = new Map<Lane, Line>()

  /**
   * @param desk     how one is sent
   * @param hasRoom  for one of those who wait there; false spares asking for each of them
   * @param pick     where one may go now; undefined: nowhere
   */
  constructor(
    desk: Pick<Desk, 'dispatch'>,
    hasRoom: (lane: Lane, now: Ms) => boolean,
    pick: (open: Open, now: Ms) => Replica | undefined,
  ) {
    this.#desk = desk
    this.#hasRoom = hasRoom
    this.#pick = pick
  }

  waits(open: Open, now: Ms): void {
    const { lane } = open
    let line = this.#lines.get(lane)
    if (line === undefined) {
      line = { lane, queue: new DeadlineQueue<Open>(), servedAt: now }
      this.#lines.set(lane, line)
    }
    if (line.queue.size === 0) line.servedAt = now
    open.waiting = line.queue.push(open, open.facts.key?.label ?? '', open.deadlineAt, open.promptTokens)
  }

  left(open: Open): void {
    if (open.waiting !== undefined) this.#lines.get(open.lane)?.queue.remove(open.waiting)
    open.waiting = undefined
  }

  clear(): void {
    this.#lines.clear()
  }

  /** Sends those who wait, while there is room that one of them may use. */
  serve(now: Ms): void {
    const stuck: Line[] = []
    for (let line = this.#next(stuck, now); line !== undefined; line = this.#next(stuck, now)) {
      let replica: Replica | undefined
      const open = line.queue.take(one => {
        replica = this.#pick(one, now)
        return replica !== undefined
      })
      if (open === undefined || replica === undefined) {
        stuck.push(line)
        continue
      }
      line.servedAt = now
      open.waiting = undefined
      this.#desk.dispatch(open, replica, now)
    }
  }

  /** @returns undefined when nobody waits where there is room */
  #next(stuck: readonly Line[], now: Ms): Line | undefined {
    let best: Line | undefined
    for (const line of this.#lines.values()) {
      if (line.queue.size === 0 || stuck.includes(line) || !this.#hasRoom(line.lane, now)) continue
      if (best === undefined || before(line, best, now)) best = line
    }
    return best
  }
}

function before(a: Line, b: Line, now: Ms): boolean {
  const sooner = rank(a, now) - rank(b, now) || headOf(a) - headOf(b) || a.lane.traffic.id - b.lane.traffic.id
  return sooner < 0
}

/** Lower is sooner. */
function rank({ lane, servedAt }: Line, now: Ms): number {
  return lane.traffic.priority - Math.floor((now - servedAt) / AGING_MS)
}

function headOf({ queue }: Line): Ms {
  return queue.peek()?.deadlineAt ?? Number.MAX_VALUE
}
