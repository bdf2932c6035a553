/** Writes an answer's body to its client: framed by Weir, in one write a call, by the shortest way that keeps the order. */
import { writeSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { platform } from 'node:process'

const CR = 0x0d
const LF = 0x0a
/** Hexadecimal digits of a chunk's size, and two line ends. */
const FRAME_ROOM = 16 + 4

/** Where a write is put together. Nothing of it outlives the call. */
const scratch = Buffer.allocUnsafeSlow(160 * 1024)

/** What Node keeps behind a socket. Not public: looked for, never relied on. */
interface Handled {
  readonly _handle?: { readonly fd?: unknown } | null
}

/**
 * A plain TCP connection whose descriptor Node shows. Writing to the descriptor saves what Node does a write beside the
 * system call itself. It is allowed only where nothing is queued, right after the descriptor was looked up, in the same turn:
 * between the two nothing can close it or give its number to another connection.
 */
function showsDescriptor(socket: Socket): boolean {
  const handle = (socket as Handled)._handle
  return (
    platform !== 'win32' &&
    !('encrypted' in socket) &&
    handle?.constructor?.name === 'TCP' &&
    typeof handle.fd === 'number'
  )
}

export class BodyWriter {
  private readonly direct: boolean
  private waits = false

  /**
   * @param response  whose head is given to Node before the first write
   * @param directly  write to the descriptor where that is safe
   * @param onDrain   a write had returned false, and the client has caught up
   */
  constructor(
    private readonly response: ServerResponse,
    directly: boolean,
    private readonly onDrain: () => void,
  ) {
    this.direct = directly && response.socket !== null && showsDescriptor(response.socket)
  }

  /**
   * @param slices  the caller's again afterwards
   * @returns false when the client reads more slowly than this: pause until `onDrain`
   */
  write(slices: readonly Uint8Array[]): boolean {
    const { response } = this
    const { socket } = response
    let size = 0
    for (const slice of slices) size += slice.length
    if (size === 0) return !response.writableNeedDrain
    // The answer to an earlier request of this connection is not out yet: Node keeps this one until it is.
    if (socket === null) return response.write(Buffer.concat(slices, size))
    if (socket.destroyed) return true
    const framed = response.chunkedEncoding
    const room = size + FRAME_ROOM
    const target = room <= scratch.length ? scratch : Buffer.allocUnsafe(room)
    const end = put(slices, size, framed, target)
    // What Node has queued goes first, the head among it.
    const from = this.direct && response.writableLength === 0 ? writeNow(socket, target, end) : 0
    if (from === end) return true
    const rest = target.subarray(from, end)
    if (!socket.write(target === scratch ? Buffer.from(rest) : rest)) this.wait(socket)
    return !this.waits
  }

  private wait(socket: Socket): void {
    if (this.waits) return
    this.waits = true
    socket.once('drain', () => {
      this.waits = false
      this.onDrain()
    })
  }
}

/** @returns how many of the first `end` bytes the system has taken; all of them where the connection is broken */
function writeNow(socket: Socket, bytes: Buffer, end: number): number {
  const fd = (socket as Handled)._handle?.fd
  if (typeof fd !== 'number' || fd < 0) return 0
  try {
    return writeSync(fd, bytes, 0, end)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return 0
    // 'close' follows, and tells that the client left.
    socket.destroy()
    return end
  }
}

/** @returns where the bytes in `target` end */
function put(slices: readonly Uint8Array[], size: number, framed: boolean, target: Buffer): number {
  let at = 0
  if (framed) {
    let digits = 1
    for (let rest = size >>> 4; rest > 0; rest >>>= 4) digits++
    at = digits
    for (let i = digits - 1, rest = size; i >= 0; i--, rest >>>= 4) {
      const digit = rest & 15
      target[i] = digit < 10 ? 0x30 + digit : 0x57 + digit
    }
    target[at++] = CR
    target[at++] = LF
  }
  for (const slice of slices) {
    target.set(slice, at)
    at += slice.length
  }
  if (framed) {
    target[at++] = CR
    target[at++] = LF
  }
  return at
}
