/** The header lines that Weir adds to an answer, and the answers to requests that the policy refuses. */
import type { Resolved } from '../config/resolved.js'
import type { RefuseReason } from '../policy/decision.js'
import type { Ticket } from '../request.js'
import type { StreamShape } from '../sse/marks.js'
import type { Answer } from './answers.js'
import { corsHead } from './cors.js'
import type { Exchange } from './exchange.js'

/** The request's id, where the SDK of the API that was called looks for it. */
export function idHead(id: string, shape: StreamShape): string[] {
  return shape === 'messages' ? ['x-request-id', id, 'request-id', id] : ['x-request-id', id]
}

/** The id, class, pool, decision and `server-timing`, as far as they are known now. */
export function ownHead(exchange: Exchange): string[] {
  const { inbound, context, ticket, attempt, why, queuedMs } = exchange
  const { facts } = inbound
  const { classes, pools } = context.config.policy
  const head = idHead(inbound.id, inbound.shape)
  const cls = ticket?.cls
  if (cls !== undefined) head.push('x-weir-class', classes[cls]!.name)
  const timing = [
    `body;dur=${(facts.bodyAt - facts.arrivedAt).toFixed(1)}`,
    `queue;dur=${queuedMs.toFixed(1)}`,
  ]
  if (attempt !== undefined && why !== undefined) {
    head.push('x-weir-pool', pools[attempt.wire.id]!.name, 'x-weir-decision', why)
    timing.push(`upstream;dur=${(context.clock.now() - attempt.sentAt).toFixed(1)}`)
  } else if (exchange.queued) head.push('x-weir-decision', 'queued')
  head.push('server-timing', timing.join(', '), ...corsHead(context.config.cors, inbound.request))
  // Buffering by a proxy in front would undo the streaming.
  if (facts.stream) head.push('cache-control', 'no-cache, no-transform', 'x-accel-buffering', 'no')
  return head
}

export function refusalAnswer(reason: RefuseReason, ticket: Ticket, config: Resolved): Answer {
  const { classes, pools } = config.policy
  if (reason === 'class_not_allowed') {
    const { askedClass, key } = ticket.facts
    const allowed = (key?.classes ?? []).map(id => classes[id]!.name)
    return {
      code: 'weir_unauthorized',
      message: `This key may not ask for class ${classes[askedClass!]!.name}. It may ask for: ${allowed.join(', ') || 'none'}.`,
    }
  }
  if (ticket.cls === undefined) {
    const names = classes.map(({ name }) => name).join(', ')
    return {
      code: 'weir_unknown_route',
      message: `No route of this router takes this request. Name a class, by the path /CLASS/v1 or the header x-weir-class: ${names}.`,
    }
  }
  const cls = classes[ticket.cls]!
  const models = new Set(cls.pools.map(id => pools[id]!.model).filter(model => model !== undefined))
  return {
    code: 'weir_unknown_route',
    message: `No pool of class ${cls.name} serves this model. Set "model" to one of: ${[...models].join(', ')}.`,
  }
}
