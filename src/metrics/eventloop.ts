/** Watches how late this process runs its timers: time in which it relayed nothing. */
import type { Clock, Ms } from '../time.js'

/** Short beside the stalls that a stream would show, and rare enough to cost nothing. */
const EVERY_MS: Ms = 20

/**
 * Measures until stopped; it does not keep the process alive.
 * @param clock    the clock of the process, ms
 * @param observe  given one delay in ms, 0 or more, about every 20 ms; a stall is one long delay
 * @returns what stops it
 */
export function watchEventLoop(clock: Clock, observe: (delayMs: Ms) => void): () => void {
  let due = clock.now() + EVERY_MS
  const timer = setInterval(() => {
    const now = clock.now()
    observe(Math.max(0, now - due))
    due = now + EVERY_MS
  }, EVERY_MS)
  timer.unref()
  return () => clearInterval(timer)
}
