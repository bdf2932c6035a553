/** Facts to class: the first route that matches, and the class that a client asked for by name. */
import type { ClassId, RequestFacts } from '../request.js'
import { glob } from './glob.js'
import type { RouteSpec } from './route.js'

export interface Classified {
  /** Index of the route that matched; -1: none did. */
  readonly route: number
  /** undefined: no route matched, and the client asked for no class. */
  readonly cls: ClassId | undefined
  /** Model to ask the upstream for. */
  readonly model: string
}

/**
 * Compiles the routes, in their order.
 * The class a client asked for wins over its route's class; the route's model rewrite holds all the same.
 */
export function compileRoutes(routes: readonly RouteSpec[]): (facts: RequestFacts) => Classified {
  const rules = routes.map(route => rule(route.when))
  return facts => {
    const at = rules.findIndex(matches => matches(facts))
    const route = routes[at]
    return { route: at, cls: facts.askedClass ?? route?.cls, model: route?.rewriteModel ?? facts.model }
  }
}

/** A key limits only what may be asked for; the routes are the operator's own word. */
export function mayAsk(facts: RequestFacts): boolean {
  return facts.askedClass === undefined || facts.key?.classes?.includes(facts.askedClass) !== false
}

function rule(when: RouteSpec['when']): (facts: RequestFacts) => boolean {
  const path = when.path === undefined ? undefined : glob(when.path)
  const model = when.model === undefined ? undefined : glob(when.model)
  const headers = when.header.map(([name, value]) => [name, glob(value)] as const)
  const { key, stream, tools, maxTokens } = when
  return facts =>
    (path === undefined || path(facts.path)) &&
    (model === undefined || model(facts.model)) &&
    (key === undefined || facts.key?.label === key) &&
    (stream === undefined || facts.stream === stream) &&
    (tools === undefined || facts.tools === tools) &&
    (maxTokens === undefined || within(facts.maxTokens, maxTokens.min, maxTokens.max)) &&
    headers.every(([name, value]) => hasValue(facts.headers[name], value))
}

function within(tokens: number | undefined, min: number | undefined, max: number | undefined): boolean {
  return tokens !== undefined && tokens >= (min ?? 0) && tokens <= (max ?? Infinity)
}

/** A header that came more than once matches with any of its values. */
function hasValue(
  header: string | readonly string[] | undefined,
  matches: (value: string) => boolean,
): boolean {
  if (header === undefined) return false
  return typeof header === 'string' ? matches(header) : header.some(matches)
}
