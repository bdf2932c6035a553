/** Follows one event stream: where its events end, what they carry, and what may go on to the client. */
import type { Progress, Usage } from '../slo/latency.js'
import type { Ms } from '../time.js'

/** Shape of the stream: chat.completion.chunk, or text_completion. */
export type StreamShape = 'chat' | 'completions'

/** An error event in the stream, as its upstream told it. */
export interface StreamError {
  /** `error.code` or `error.status` where it is a number. */
  readonly status: number | undefined
  /** The event's data, as JSON text. */
  readonly body: string
}

export interface MeterOptions {
  readonly shape: StreamShape
  /** Take out the usage-only event that Weir asked for. */
  readonly takeUsage: boolean
  /** Longest event that is looked into, bytes. A longer one goes through unread and counts as unparsed. */
  readonly eventLimit: number
}

// CONTRACT ONLY, to be replaced by the real class of this name.
export declare class Meter implements Progress {
  constructor(options: MeterOptions)
  /**
   * Reads one chunk that came at `now`. `chunk` may be kept until the next call, not longer.
   * Afterwards `out` holds the bytes that may go to the client now, in order: all bytes so far up to the last
   * complete event (or complete comment line), less the usage event that Weir asked for. An incomplete event is
   * kept back up to 64 KiB; a longer one goes on as it comes.
   */
  push(chunk: Uint8Array, now: Ms): void
  /** The upstream's body ended properly: a last event without its blank line counts, its bytes are in `out`. */
  end(now: Ms): void
  /** Reused array; valid until the next `push` or `end`. */
  readonly out: Uint8Array[]
  /** Everything sent on so far ends between two events: a comment or an error event may be put in here. */
  readonly between: boolean
  readonly streamed: boolean
  readonly firstEvent: Ms | undefined
  readonly firstOutput: Ms | undefined
  readonly firstVisible: Ms | undefined
  readonly lastOutput: Ms | undefined
  readonly marks: number
  readonly longestChoiceMarks: number
  readonly longestGap: Ms | undefined
  readonly usage: Usage | undefined
  throttled: boolean
  /** `[DONE]` came. */
  readonly done: boolean
  /** Every choice that was seen has its finish reason (and at least one was seen). */
  readonly finished: boolean
  /** A finish reason that is no end of an answer: `abort`, `error`. */
  readonly aborted: boolean
  readonly error: StreamError | undefined
  /** Events longer than the limit, or whose data is not JSON. */
  readonly unparsed: number
}
