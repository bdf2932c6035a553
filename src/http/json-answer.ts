/** An answer that is one JSON body: passed on as it comes, and read at its end for usage. */
import type { Ending } from '../policy/decision.js'
import type { Progress } from '../slo/latency.js'
import { readAnswer, type StreamShape } from '../sse/marks.js'
import type { Ms } from '../time.js'

export class JsonAnswer {
  private chunks: Uint8Array[] = []
  private length = 0

  /** @param limit  bytes kept for reading; a longer body goes on unread, and counts as without usage */
  constructor(
    private readonly limit: number,
    private readonly shape: StreamShape,
  ) {}

  push(chunk: Uint8Array): void {
    this.length += chunk.length
    if (this.length <= this.limit) this.chunks.push(Buffer.from(chunk))
    else this.chunks = []
  }

  /** @param now  when the last byte came */
  end(now: Ms): {
    readonly progress: Progress
    readonly ending: Ending['kind']
    readonly id: string | undefined
  } {
    const body = this.length > this.limit ? undefined : readAnswer(Buffer.concat(this.chunks), this.shape)
    return {
      id: body?.id,
      ending: body?.error === true ? 'upstreamError' : body?.aborted === true ? 'truncated' : 'complete',
      progress: {
        streamed: false,
        firstEvent: undefined,
        firstOutput: undefined,
        firstVisible: undefined,
        lastOutput: now,
        marks: 0,
        longestChoiceMarks: 0,
        longestGap: undefined,
        usage: body?.usage,
        throttled: false,
      },
    }
  }
}
