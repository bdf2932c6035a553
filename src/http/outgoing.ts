/** A client's request as it goes to a replica: its own bytes, less what is Weir's, plus what the pool asks for. */
import type { PoolWire } from '../config/resolved.js'
import type { Ticket } from '../request.js'
import type { CallRequest } from '../upstream/call.js'
import { type Edit, setMember, splice } from './body.js'
import type { Inbound } from './exchange.js'
import { requestHeaders } from './headers.js'

/**
 * @param priority  of its class, for engines that schedule by it; undefined: the client's own stays
 * @param askUsage  ask for the usage of a stream, where its body has a place for that
 */
export function outgoing(
  inbound: Inbound,
  ticket: Ticket,
  wire: PoolWire,
  priority: number | undefined,
  askUsage: boolean,
): CallRequest {
  const { body, bodyFacts, facts, id, request, shape, upstreamPath } = inbound
  const edits: Edit[] = []
  if (ticket.model !== facts.model) edits.push(setMember(bodyFacts, 'model', ticket.model))
  if (askUsage && bodyFacts.usageEdit !== undefined) edits.push(bodyFacts.usageEdit)
  if (priority !== undefined) edits.push(setMember(bodyFacts, 'priority', priority))
  const headers = requestHeaders(request.rawHeaders, wire.passAuthorization)
  headers.push('x-request-id', id, 'accept-encoding', 'identity')
  if (wire.apiKey !== undefined) {
    headers.push('authorization', `Bearer ${wire.apiKey}`)
    if (shape === 'messages') headers.push('x-api-key', wire.apiKey)
  }
  return { path: upstreamPath, headers, body: splice(body, edits), repeatable: facts.repeatable }
}

/** A member of the body that the pool refuses: an engine control that a client may not touch. */
export function refusedMember({ bodyFacts }: Inbound, wire: PoolWire): string | undefined {
  return wire.refuseMembers.find(name => bodyFacts.members.has(name))
}
