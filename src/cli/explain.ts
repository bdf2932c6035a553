/** `weir explain`: which route, class, pools, promise and estimates a request would get, and why. */
import { readFileSync } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import { parseArgs } from 'node:util'
import { deadlineOf } from '../admission/deadline.js'
import { showProblems } from '../config/error.js'
import { defaultFile, load } from '../config/load.js'
import type { KeyEntry, Resolved } from '../config/resolved.js'
import { showDuration } from '../config/units.js'
import { type Answer, shedAnswer, statusOf } from '../http/answers.js'
import { keyOf } from '../http/auth.js'
import { BodyFault, readBody } from '../http/body.js'
import { factsOf, HeaderFault } from '../http/facts.js'
import { refusalAnswer } from '../http/own-head.js'
import type { Decision } from '../policy/decision.js'
import { createWeir } from '../policy/weir.js'
import type { RequestFacts, Ticket } from '../request.js'
import type { RouteSpec } from '../routing/route.js'
import { seededRng } from '../time.js'
import type { Command, Io } from './command.js'
import { showSlo } from './show-slo.js'

/** What a request would get. `--json` prints it. */
interface Explanation {
  /** `routes[i]` and what it asks for; undefined: none matched. */
  readonly route: string | undefined
  readonly class: string | undefined
  /** Why that class. */
  readonly because: string | undefined
  readonly model: string | undefined
  readonly pools: readonly string[]
  readonly promise: { readonly target: string; readonly guard: string } | undefined
  readonly deadline: string | undefined
  readonly estimates: Record<string, number | boolean | undefined>
  /** On an idle fleet, in the words of the log's `decision` and of `x-weir-decision`. */
  readonly decision: string
  readonly answer: { readonly status: number; readonly code: string; readonly message: string } | undefined
}

export const explain: Command = {
  name: 'explain',
  summary: 'say which route, class, pools and promise a request would get, and why',
  help: `weir explain [-c FILE] [--path PATH] [--header 'NAME: VALUE' ...] [--model NAME] [--request FILE] [--json]

Decides about one request as the router would on an idle fleet, and says why.

  -c, --config FILE   config, by default config/weir.yaml
  --request FILE      the request: a JSON body, or a whole HTTP request as text (head, empty line, body)
  --path PATH         by default /v1/chat/completions
  --header 'N: V'     repeat it for more
  --model NAME        in place of the body's
  --stream            streamed, where no --request says so
  --json              one object

Example: weir explain --model my-agent --header 'x-weir-deadline-ms: 30000'
`,
  async run(args, io) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        config: { type: 'string', short: 'c' },
        request: { type: 'string' },
        path: { type: 'string' },
        header: { type: 'string', multiple: true },
        model: { type: 'string' },
        stream: { type: 'boolean' },
        json: { type: 'boolean' },
      },
    })
    const loaded = load(values.config ?? defaultFile(), io.env)
    if (loaded.ok === undefined) {
      io.err(showProblems(loaded.problems))
      return loaded.unreadable ? 2 : 1
    }
    const asked = askedFor(values, io)
    if (asked === undefined) return 2
    const explanation = explained(loaded.ok, asked)
    io.out(values.json === true ? `${JSON.stringify(explanation)}\n` : shown(explanation))
    return explanation.answer === undefined ? 0 : 1
  },
}

interface Asked {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: Buffer
}

interface Flags {
  readonly request?: string | undefined
  readonly path?: string | undefined
  readonly header?: string[] | undefined
  readonly model?: string | undefined
  readonly stream?: boolean | undefined
}

/** The request that the flags and the file describe; undefined when they cannot be read, which is said. */
function askedFor(flags: Flags, io: Io): Asked | undefined {
  let text = ''
  try {
    if (flags.request !== undefined) text = readFileSync(flags.request, 'utf8')
  } catch (error) {
    io.err(
      `--request: cannot read ${flags.request}: ${error instanceof Error ? error.message : String(error)}\n`,
    )
    return undefined
  }
  const whole = /^[A-Z]+ (\S+) HTTP\/1\.[01]\r?\n([\s\S]*?)\r?\n\r?\n([\s\S]*)$/.exec(text)
  const [, path, head, body] = whole ?? [undefined, undefined, '', text]
  const headers: Record<string, string> = {}
  for (const line of [...(head ?? '').split(/\r?\n/), ...(flags.header ?? [])]) {
    const colon = line.indexOf(':')
    if (line === '') continue
    if (colon < 1) {
      io.err(`--header: got ${line}; allowed: 'name: value'\n`)
      return undefined
    }
    headers[line.slice(0, colon).trim().toLowerCase()] = line.slice(colon + 1).trim()
  }
  return {
    path: flags.path ?? path ?? '/v1/chat/completions',
    headers,
    body: Buffer.from(bodyFor(body ?? '', flags)),
  }
}

function bodyFor(body: string, { model, stream }: Flags): string {
  if (body.trim() === '') return JSON.stringify({ model: model ?? '', stream: stream === true, messages: [] })
  if (model === undefined) return body
  try {
    return JSON.stringify({ ...JSON.parse(body), model })
  } catch {
    // The router will say what is wrong with it.
    return body
  }
}

function explained(config: Resolved, asked: Asked): Explanation {
  const nothing = { route: undefined, class: undefined, because: undefined, model: undefined, pools: [] }
  const none = { ...nothing, promise: undefined, deadline: undefined, estimates: {}, decision: 'refused' }
  const key = config.keys === undefined ? undefined : keyOf(asked.headers, config.keys)
  if (config.keys !== undefined && key === undefined) {
    return { ...none, answer: answered({ code: 'weir_unauthorized', message: 'No known API key was sent.' }) }
  }
  let facts: RequestFacts
  try {
    facts = factsFor(config, asked, key)
  } catch (error) {
    if (!(error instanceof BodyFault || error instanceof HeaderFault)) throw error
    return { ...none, answer: answered({ code: 'weir_bad_request', message: error.message }) }
  }
  const { ticket, decisions } = createWeir(config.policy, seededRng(0)).arrive(facts, 0)
  const decision = decisions[0]!
  const cls = ticket.cls === undefined ? undefined : config.policy.classes[ticket.cls]
  const route = config.policy.routes[ticket.route]
  return {
    route: route === undefined ? undefined : `routes[${ticket.route}]: ${conditions(route.when)}`,
    class: cls?.name,
    because:
      facts.askedClass === undefined
        ? route && 'the first route that matches says so'
        : 'the client asked for it, by the path or by x-weir-class',
    model: ticket.model === facts.model ? ticket.model : `${ticket.model}, rewritten from ${facts.model}`,
    pools: poolsFor(config, ticket),
    promise: cls && { target: showSlo(cls.target), guard: showSlo(cls.guard) },
    deadline: cls && deadlineOf(cls, facts).ms < Infinity ? shownDeadline(cls, facts) : undefined,
    estimates: {
      prompt_tokens: facts.promptTokens,
      max_tokens: facts.maxTokens,
      stream: facts.stream,
      tools: facts.tools,
    },
    decision: decision.kind === 'dispatch' ? decision.why : decision.kind,
    answer: answerOf(decision, config),
  }
}

function factsFor(config: Resolved, { path, headers, body }: Asked, key: KeyEntry | undefined): RequestFacts {
  const prefix = /^\/([^/]+)\/v1\//.exec(path)?.[1]
  return factsOf({
    path: path.split('?', 1)[0] ?? path,
    headers,
    body: readBody(body),
    bytes: body,
    prefixClass: prefix === undefined ? undefined : config.classIds.get(prefix),
    key,
    classIds: config.classIds,
    arrivedAt: 0,
    bodyAt: 0,
  })
}

function conditions(when: RouteSpec['when']): string {
  const { path, header, model, key, stream, tools, maxTokens } = when
  const said = [
    path !== undefined && `path ${path}`,
    ...header.map(([name, value]) => `header ${name}: ${value}`),
    model !== undefined && `model ${model}`,
    key !== undefined && `key ${key}`,
    stream !== undefined && `stream ${stream}`,
    tools !== undefined && `tools ${tools}`,
    maxTokens !== undefined && `max_tokens ${maxTokens.min ?? 0} to ${maxTokens.max ?? 'any'}`,
  ].filter(text => text !== false)
  return said.length === 0 ? 'any request' : said.join(', ')
}

function poolsFor({ policy }: Resolved, ticket: Ticket): string[] {
  const pools = ticket.cls === undefined ? [] : (policy.classes[ticket.cls]?.pools ?? [])
  return pools
    .map(id => policy.pools[id]!)
    .filter(({ model }) => model === undefined || model === ticket.model)
    .map(({ name }, index) => `${name} (${index === 0 ? 'home' : 'spill'})`)
}

function shownDeadline(cls: Parameters<typeof deadlineOf>[0], facts: RequestFacts): string {
  const { ms, by } = deadlineOf(cls, facts)
  const who = { client: 'the request asked for it', sdk: 'its SDK waits no longer', class: "the class's own" }
  return `${showDuration(ms)}: ${who[by]}`
}

function answerOf(decision: Decision, config: Resolved): Explanation['answer'] {
  if (decision.kind === 'refuse') return answered(refusalAnswer(decision.reason, decision.ticket, config))
  if (decision.kind !== 'shed') return undefined
  const name = config.policy.classes[decision.ticket.cls ?? 0]?.name ?? ''
  return answered(shedAnswer(decision.reason, name, 0, decision.retryAfterMs, config.overloadStatus))
}

function answered(answer: Answer): Explanation['answer'] {
  return { status: statusOf(answer), code: answer.code, message: answer.message }
}

function shown(explanation: Explanation): string {
  const { route, because, model, pools, promise, deadline, estimates, decision, answer } = explanation
  const facts = Object.entries(estimates).filter(([, value]) => value !== undefined)
  const rows: (readonly [string, string | undefined])[] = [
    ['route', route ?? 'none matches'],
    ['class', explanation.class === undefined ? undefined : `${explanation.class}, since ${because}`],
    ['model', model],
    ['pools', pools.join(', ') || undefined],
    ['target', promise?.target],
    ['guard', promise?.guard],
    ['deadline', deadline],
    ['estimates', facts.map(([name, value]) => `${name} ${value}`).join(', ') || undefined],
    ['decision', `${decision} (on an idle fleet)`],
    ['answer', answer && `${answer.status} ${answer.code}: ${answer.message}`],
  ]
  return rows
    .flatMap(([name, value]) => (value === undefined ? [] : [`${name.padEnd(10)}${value}\n`]))
    .join('')
}
