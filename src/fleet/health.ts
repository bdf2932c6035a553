/** Passive health of one replica, from how its requests ended: who is left alone for a while, and comes back how. */
import type { Ms } from '../time.js'

/** Failures in a row that eject a replica. */
const EJECT_AFTER = 5
/** How long at first; each failed trial doubles it. */
const EJECT_MS: Ms = 5_000
const EJECT_MAX_MS: Ms = 60_000

/**
 * up     takes requests; `row` failures since its last answer
 * down   takes none before `retryAt`, and one, the trial, after it
 * trial  the request of this ticket decides; nobody else's does
 */
export type Health =
  | { readonly is: 'up'; readonly row: number }
  | { readonly is: 'down'; readonly retryAt: Ms; readonly backoffMs: Ms }
  | { readonly is: 'trial'; readonly ticket: number; readonly backoffMs: Ms }

export const HEALTHY: Health = { is: 'up', row: 0 }

/** May be sent a request, as far as health goes. */
export function mayTry(health: Health, now: Ms): boolean {
  return health.is === 'up' || (health.is === 'down' && now >= health.retryAt)
}

/** A request was sent: to a replica that is down it is the trial. */
export function afterDispatch(health: Health, ticket: number): Health {
  return health.is === 'down' ? { is: 'trial', ticket, backoffMs: health.backoffMs } : health
}

/** The replica answered, be it with "your request is wrong". */
export function afterAnswer(health: Health, ticket: number): Health {
  return health.is === 'up' || (health.is === 'trial' && health.ticket === ticket) ? HEALTHY : health
}

/**
 * The replica failed a request.
 * @param mayEject  enough others of its pool are in
 */
export function afterFailure(health: Health, ticket: number, now: Ms, mayEject: boolean): Health {
  if (health.is === 'up') {
    const row = health.row + 1
    return row >= EJECT_AFTER && mayEject
      ? { is: 'down', retryAt: now + EJECT_MS, backoffMs: EJECT_MS }
      : { is: 'up', row }
  }
  if (health.is === 'down' || health.ticket !== ticket) return health
  const backoffMs = Math.min(2 * health.backoffMs, EJECT_MAX_MS)
  return { is: 'down', retryAt: now + backoffMs, backoffMs }
}

/** A request ended in a way that says nothing of its replica: a trial has to be repeated. */
export function afterNothing(health: Health, ticket: number, now: Ms): Health {
  return health.is === 'trial' && health.ticket === ticket
    ? { is: 'down', retryAt: now, backoffMs: health.backoffMs }
    : health
}
