/** Weir's own error answers: one table of codes, in the shape that OpenAI's clients read. */
import type { ShedReason } from '../policy/decision.js'
import type { StreamShape } from '../sse/marks.js'
import type { Ms } from '../time.js'

interface AnswerKind {
  /** HTTP status before the commit; the same code goes in band after it. undefined: only in band. */
  readonly status: number | undefined
  /** `error.type`, by which SDKs sort errors. */
  readonly type: string
  readonly when: string
}

/** Every code Weir answers with. The README's table is held equal to this one by a test. */
export const ANSWERS = {
  weir_no_headroom: {
    status: 503,
    type: 'overloaded_error',
    when: "no replica could serve it without breaking others' SLO",
  },
  weir_deadline_infeasible: {
    status: 503,
    type: 'overloaded_error',
    when: 'the deadline the client sent can no longer be met; said at once',
  },
  weir_queue_timeout: { status: 503, type: 'overloaded_error', when: 'waited as long as its class allows' },
  weir_quota: { status: 429, type: 'rate_limit_error', when: 'the key is over its own share' },
  weir_no_replica: { status: 503, type: 'overloaded_error', when: 'none healthy' },
  weir_upstream_error: {
    status: 502,
    type: 'upstream_error',
    when: 'upstream failed before the commit and no other could take it',
  },
  weir_connect_timeout: {
    status: 504,
    type: 'timeout_error',
    when: 'no connection within the connect clock, and no other replica could take it',
  },
  weir_first_token_timeout: {
    status: 504,
    type: 'timeout_error',
    when: 'no token within the first-token clock',
  },
  weir_total_timeout: { status: 504, type: 'timeout_error', when: 'not done within the total clock' },
  weir_stream_stalled: { status: undefined, type: 'timeout_error', when: 'no token within the stall clock' },
  weir_upstream_truncated: {
    status: undefined,
    type: 'upstream_error',
    when: 'the upstream broke off in mid-stream',
  },
  weir_draining: { status: 503, type: 'overloaded_error', when: 'shutting down' },
  weir_bad_request: { status: 400, type: 'invalid_request_error', when: 'the request cannot be read' },
  weir_unauthorized: { status: 401, type: 'authentication_error', when: 'no known API key' },
  weir_unknown_route: { status: 404, type: 'invalid_request_error', when: 'no such path, or no such model' },
  weir_too_large: { status: 413, type: 'invalid_request_error', when: 'the body is over limits.body' },
  weir_internal: { status: 500, type: 'internal_error', when: 'a fault of Weir itself: please report it' },
} as const satisfies Record<string, AnswerKind>

export type AnswerCode = keyof typeof ANSWERS

/** One answer to be sent: a code, a sentence with numbers someone can act on, and how long to wait. */
export interface Answer {
  readonly code: AnswerCode
  readonly message: string
  /** Overrides the table's status (`overload_status`). */
  readonly status?: number
  readonly retryAfterMs?: Ms
  /** False where waiting is pointless: the SDKs then do not retry. */
  readonly shouldRetry?: boolean
  /** In band, the event to send in place of Weir's own: what the upstream itself said. */
  readonly event?: string | undefined
}

/** Of a failure that may be over at any moment: a second or two, so that those who met it do not all come back at once. */
export function soonMs(): Ms {
  return 1000 + Math.random() * 1000
}

export function statusOf(answer: Answer): number {
  return answer.status ?? ANSWERS[answer.code].status ?? 502
}

/** Anthropic's own error types, by status. */
const MESSAGES_TYPES: Readonly<Record<number, string>> = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

/**
 * The body, in the shape of the API that was called: `{"error":{"message","type","param","code"}}`, for Anthropic's
 * `{"type":"error","error":{"type","message","code","details":{"error_code"}}}`, where its SDK looks for the code.
 */
export function bodyOf(answer: Answer, shape: StreamShape = 'chat'): string {
  const { code, message } = answer
  if (shape === 'messages') {
    const late = ANSWERS[code].type === 'timeout_error' ? 'timeout_error' : 'api_error'
    const type = MESSAGES_TYPES[statusOf(answer)] ?? late
    return JSON.stringify({ type: 'error', error: { type, message, code, details: { error_code: code } } })
  }
  return JSON.stringify({ error: { message, type: ANSWERS[code].type, param: null, code } })
}

/** The same as an event for a stream whose head is out already. */
export function eventOf(answer: Answer, shape: StreamShape = 'chat'): string {
  if (answer.event !== undefined) return answer.event
  const body = bodyOf(answer, shape)
  if (shape === 'messages') return `event: error\ndata: ${body}\n\n`
  if (shape !== 'responses') return `data: ${body}\n\n`
  // The Responses API has the members of the error at the top; the SDK looks for them below `error`, too.
  const { code, message } = answer
  const event = { type: 'error', code, message, param: null, ...JSON.parse(body) }
  return `event: error\ndata: ${JSON.stringify(event)}\n\n`
}

/** Header lines besides content type and length. */
export function headersOf(answer: Answer): string[] {
  const headers: string[] = []
  if (answer.retryAfterMs !== undefined) {
    const ms = Math.min(59_000, Math.max(1000, answer.retryAfterMs))
    headers.push(
      'retry-after',
      String(Math.min(59, Math.ceil(ms / 1000))),
      'retry-after-ms',
      String(Math.round(ms)),
    )
  }
  if (answer.shouldRetry === false) headers.push('x-should-retry', 'false')
  return headers
}

const SHED_CODES: Record<ShedReason, AnswerCode> = {
  no_headroom: 'weir_no_headroom',
  infeasible: 'weir_deadline_infeasible',
  queue_timeout: 'weir_queue_timeout',
  quota: 'weir_quota',
  no_replica: 'weir_no_replica',
}

/**
 * The answer to a request that was shed.
 * @param waitedMs  time it stood in the queue
 * @param overloadStatus  `overload_status`: 503, or 429 for meshes that eject on 5xx; quota is 429 always
 */
export function shedAnswer(
  reason: ShedReason,
  className: string,
  waitedMs: Ms,
  retryAfterMs: Ms,
  overloadStatus: 503 | 429,
): Answer {
  const retry = `Retry in ${Math.min(59, Math.ceil(Math.max(1000, retryAfterMs) / 1000))} s.`
  const waited = `${(waitedMs / 1000).toFixed(1)} s`
  const messages: Record<ShedReason, string> = {
    no_headroom: `Class ${className} has no headroom: every replica it may use is at its limit. ${retry}`,
    infeasible: `The deadline you sent has passed after ${waited} in the queue of class ${className}. Send a longer one, or retry later.`,
    queue_timeout: `Waited ${waited} in the queue of class ${className}, as long as it may. ${retry}`,
    quota: `This key is over its own share of class ${className}. ${retry}`,
    no_replica: `No replica that class ${className} may use is healthy. ${retry}`,
  }
  return {
    code: SHED_CODES[reason],
    message: messages[reason],
    ...(reason === 'quota' ? {} : { status: overloadStatus }),
    retryAfterMs,
    ...(reason === 'infeasible' ? { shouldRetry: false } : {}),
  }
}
