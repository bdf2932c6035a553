/** The client's side of one request: what is held before the commit, the head, the bytes, the end. */
import type { ServerResponse } from 'node:http'
import type { StreamShape } from '../sse/marks.js'
import { type Answer, bodyOf, eventOf, headersOf, statusOf } from './answers.js'
import { BodyWriter } from './body-writer.js'
import { onceClosed } from './closed.js'

/** Bytes held before the commit, at most: role deltas and comments, not answers. */
export const HOLD_LIMIT = 64 * 1024

export class Downstream {
  /** The status line is out. */
  committed = false
  heldBytes = 0
  private held: Uint8Array[] = []
  private writer: BodyWriter | undefined

  /**
   * @param directly  see `BodyWriter`
   * @param onDrain  a write had returned false, and the client has caught up
   * @param onClose  the answer is out; or, where `left`, the client closed its connection before it was
   */
  constructor(
    private readonly response: ServerResponse,
    private readonly shape: StreamShape,
    private readonly directly: boolean,
    private readonly onDrain: () => void,
    onClose: (left: boolean) => void,
  ) {
    response.on('drain', onDrain)
    onceClosed(response, () => onClose(!response.writableFinished))
    // A write after the client left; 'close' follows and tells.
    response.on('error', () => undefined)
  }

  /** Keeps slices back for the commit: copies, since they are the caller's again afterwards. */
  hold(slices: readonly Uint8Array[]): void {
    for (const slice of slices) {
      this.held.push(Buffer.from(slice))
      this.heldBytes += slice.length
    }
  }

  /** Forgets what is held: the attempt that sent it failed, and another begins. */
  drop(): void {
    this.held = []
    this.heldBytes = 0
  }

  /** Sends the head, then all that is held. @returns as `writeAll` */
  commit(status: number, headers: readonly string[]): boolean {
    this.committed = true
    this.response.writeHead(status, headers as string[])
    const { held } = this
    this.drop()
    let flows = true
    if (held.length > 0) {
      // With the head before it, in one write.
      flows = this.response.write(held.length === 1 ? held[0] : Buffer.concat(held))
    } else this.response.flushHeaders()
    this.writer = new BodyWriter(this.response, this.directly, this.onDrain)
    return flows
  }

  /**
   * After the commit.
   * @param slices  the caller's again afterwards
   * @returns false when the client reads more slowly than this: pause until `onDrain`
   */
  writeAll(slices: readonly Uint8Array[]): boolean {
    return this.writer?.write(slices) ?? true
  }

  /** A comment, only where nothing of an event is outstanding. */
  comment(text: string): void {
    this.response.write(`: ${text}\n\n`)
  }

  /**
   * Ends with an error of Weir's: a status and a JSON body before the commit, an event in the stream after it.
   * @param between  what was sent ends between two events; else the broken event is closed first
   * @param headers  further header lines before the commit
   */
  fail(answer: Answer, between: boolean, headers: readonly string[] = []): void {
    if (this.committed) {
      this.response.end(`${between ? '' : '\n\n'}${eventOf(answer, this.shape)}`)
      return
    }
    this.drop()
    this.committed = true
    const body = bodyOf(answer, this.shape)
    this.response.writeHead(statusOf(answer), [
      'content-type',
      'application/json; charset=utf-8',
      'content-length',
      String(Buffer.byteLength(body)),
      ...headersOf(answer),
      ...headers,
    ])
    this.response.end(body)
  }

  end(): void {
    this.response.end()
  }

  /** It has ended, and the kernel has all of it. */
  get flushed(): boolean {
    return this.response.writableFinished
  }

  /** Breaks the connection: the client must not take what it has for a whole answer. */
  destroy(): void {
    this.response.destroy()
  }
}
