/** Tells when the answer to a request is over, be it out or not. */
import type { ServerResponse } from 'node:http'

/**
 * Calls `fn` once, when the answer is out or its connection gone. The request's own 'close' comes when its body is
 * read; and a response that stands behind another on its connection is not told that the connection closed.
 */
export function onceClosed(response: ServerResponse, fn: () => void): void {
  const { socket } = response.req
  let over = false
  const closed = (): void => {
    response.off('close', closed)
    socket.off('close', closed)
    // The response closes from within the 'close' of its socket, which still calls whom it had then.
    if (over) return
    over = true
    fn()
  }
  response.on('close', closed)
  socket.on('close', closed)
}
