/** An error answer of the upstream to a stream whose head is out already: collected, to go out as one event. */
import { HOLD_LIMIT } from './downstream.js'

export class LateRefusal {
  private readonly chunks: Uint8Array[] = []
  private length = 0

  push(chunk: Uint8Array): void {
    this.length += chunk.length
    if (this.length <= HOLD_LIMIT) this.chunks.push(chunk)
  }

  /** The upstream's own words as an event; undefined where they are no error in the shape that clients read. */
  get event(): string | undefined {
    if (this.length > HOLD_LIMIT) return undefined
    const text = Buffer.concat(this.chunks).toString().trim()
    return isError(text) ? `data: ${text.replace(/\r\n|\r|\n/g, '\ndata: ')}\n\n` : undefined
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
