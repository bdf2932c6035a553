/** An error answer of the upstream to a stream whose head is out already: collected, to go out as one event. */
import type { StreamShape } from '../sse/marks.js'
import { HOLD_LIMIT } from './downstream.js'

export class LateRefusal {
  private readonly chunks: Uint8Array[] = []
  private length = 0

  constructor(private readonly shape: StreamShape) {}

  push(chunk: Uint8Array): void {
    this.length += chunk.length
    if (this.length <= HOLD_LIMIT) this.chunks.push(Buffer.from(chunk))
  }

  /** The upstream's own words as an event; undefined where they are no error in the shape that clients read. */
  get event(): string | undefined {
    if (this.length > HOLD_LIMIT) return undefined
    const text = Buffer.concat(this.chunks).toString().trim()
    if (!isError(text)) return undefined
    const name = this.shape === 'messages' || this.shape === 'responses' ? 'event: error\n' : ''
    return `${name}data: ${text.replace(/\r\n|\r|\n/g, '\ndata: ')}\n\n`
  }
}

function isError(text: string): boolean {
  try {
    const body: unknown = JSON.parse(text)
    return typeof body === 'object' && body !== null && 'error' in body
  } catch {
    return false
  }
}
