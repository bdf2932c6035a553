/** How long a piece of work holds the event loop. */

/** The longest time between two turns of the event loop while `work` runs. */
export async function longestPiece(work: Promise<unknown>): Promise<number> {
  let longest = 0
  let last = performance.now()
  let going = true
  const turn = (): void => {
    const now = performance.now()
    longest = Math.max(longest, now - last)
    last = now
    if (going) setImmediate(turn)
  }
  setImmediate(turn)
  await work
  // The piece that ended the work.
  longest = Math.max(longest, performance.now() - last)
  going = false
  return longest
}
