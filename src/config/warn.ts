/** What is legal and probably not meant. Runs only on a config without problems. */
import { takesAll } from './check.js'
import { listed, type Path, type Problem, showPath } from './error.js'
import type { ClassFields, ConfigFields, KeysFields } from './fields.js'
import type { Complaint, Source } from './source.js'
import { durationMs } from './units.js'

/** People read 5 to 10 tokens a second: slower than 100 ms per token they wait for the text. */
const READING_MS = 100
/** Common load balancers cut a connection that was silent for this long. */
const SILENCE_MS = 60_000

export function warningsOf(
  source: Source,
  config: ConfigFields,
  keys: KeysFields | undefined,
): readonly Problem[] {
  const found: Problem[] = []
  const warn = (path: Path, complaint: Complaint, at: 'value' | 'key' = 'value'): void => {
    found.push(source.problem(path, complaint, at))
  }
  warnOfCommit(config, warn)
  warnOfCors(config, warn)
  warnOfClasses(config, warn)
  warnOfReach(config, keys, warn)
  return found
}

type Warn = (path: Path, complaint: Complaint, at?: 'value' | 'key') => void

function warnOfCommit(config: ConfigFields, warn: Warn): void {
  const given: (readonly [Path, string | undefined])[] = [[['commit_after'], config.commit_after]]
  for (const [name, cls] of Object.entries(config.classes)) {
    given.push([['classes', name, 'commit_after'], cls.commit_after])
  }
  for (const [path, text] of given) {
    if (text === undefined || (durationMs(text) ?? 0) < SILENCE_MS) continue
    warn(path, {
      got: text,
      allowed: 'anything; but load balancers cut a connection that is silent for 60 s',
      fix: 'write less than 60s, or never if nothing in between cuts',
    })
  }
}

function warnOfCors({ cors }: ConfigFields, warn: Warn): void {
  const any = cors.origins.indexOf('*')
  if (any < 0) return
  warn(['cors', 'origins', any], {
    got: '*',
    allowed: 'anything; but every web page may then call from its visitors’ browsers and read the answers',
    fix: 'name the pages that should: https://app.example',
  })
}

function warnOfClasses(config: ConfigFields, warn: Warn): void {
  for (const [name, cls] of Object.entries(config.classes)) {
    const at = ['classes', name]
    const { ttft, tpot, deadline } = cls.slo.target
    if (tpot !== undefined && (durationMs(tpot) ?? 0) > READING_MS) {
      warn([...at, 'slo', 'target', 'tpot'], {
        got: tpot,
        allowed: 'anything; but people read 5 to 10 tokens a second, 100ms to 200ms each',
        fix: 'write 100ms or less, so that the text keeps ahead of its reader',
      })
    }
    const programs = ttft === undefined ? undefined : signOfPrograms(name, config)
    if (programs !== undefined) {
      warn([...at, 'slo', 'target', 'ttft'], {
        got: `a reader’s SLO, on a class of programs (${programs})`,
        allowed: 'anything; but a program waits for the whole answer, not for its first token',
        fix: 'give it a deadline (deadline: 60s), and a queue to wait in',
      })
    }
    const wait = durationMs(cls.queue?.wait ?? 'off')
    if (wait !== undefined && deadline !== undefined && wait >= (durationMs(deadline) ?? 0)) {
      warn([...at, 'queue', 'wait'], {
        got: `${cls.queue?.wait}, with a deadline of ${deadline}`,
        allowed: 'anything; but who waits as long as its deadline has missed it',
        fix: 'write less than the deadline, by the time an answer takes',
      })
    }
    warnOfModels(config, name, cls, warn)
  }
}

function signOfPrograms(name: string, config: ConfigFields): string | undefined {
  if (/agent|tool|batch|job|eval/.test(name)) return 'by its name'
  const routes = [...(config.routes ?? []).entries()].filter(([, route]) => route.class === name)
  const [first] = routes
  const all = routes.every(([, { when }]) => when?.stream === false || when?.tools === true)
  return first !== undefined && all ? `by ${showPath(['routes', first[0]])}` : undefined
}

function warnOfModels(config: ConfigFields, name: string, cls: ClassFields, warn: Warn): void {
  const models = [...new Set(cls.pools.map(pool => config.pools[pool]?.model ?? '*'))]
  const served = (model: string): boolean => models.includes('*') || models.includes(model)
  if (!served(cls.workload.model)) {
    warn(['classes', name, 'workload', 'model'], {
      got: `${cls.workload.model}, which none of its pools serves`,
      allowed: `anything; but its pools serve ${listed(models)}`,
      fix: 'name the model that they serve, or other pools',
    })
  }
  for (const [index, route] of (config.routes ?? []).entries()) {
    const model = route.class === name ? route.rewrite?.model : undefined
    if (model === undefined || served(model)) continue
    warn(['routes', index, 'rewrite', 'model'], {
      got: `${model}, which no pool of class ${name} serves`,
      allowed: `anything; but its pools serve ${listed(models)}`,
      fix: 'name a model that they serve: these requests will be refused',
    })
  }
}

function warnOfReach(config: ConfigFields, keys: KeysFields | undefined, warn: Warn): void {
  const routes = config.routes ?? []
  for (const name of Object.keys(config.classes)) {
    if (config.routes === undefined || routes.some(route => route.class === name)) continue
    const asked = keys === undefined || keys.keys.some(key => key.classes?.includes(name) ?? true)
    warn(
      ['classes', name],
      {
        got: 'a class that no route leads to',
        allowed: asked
          ? `anything; but only who asks for it gets it: /${name}/v1, or x-weir-class: ${name}`
          : 'anything; but no key may ask for it either: nothing reaches it',
        fix: `add a route with class: ${name}${asked ? ', if others should get it' : ', or remove it'}`,
      },
      'key',
    )
  }
  for (const [name, { allow }] of Object.entries(config.pools)) {
    if (allow.length > 0 || Object.values(config.classes).some(cls => cls.pools.includes(name))) continue
    warn(
      ['pools', name],
      {
        got: 'a pool that no class uses',
        allowed: 'anything; but nothing is sent to it',
        fix: `add ${name} to the pools of a class, or remove it`,
      },
      'key',
    )
  }
  const seen = new Map<string, number>()
  for (const [index, route] of routes.entries()) {
    const asks = JSON.stringify(Object.entries(route.when ?? {}).sort(([a], [b]) => (a < b ? -1 : 1)))
    const first = seen.get(asks)
    seen.set(asks, first ?? index)
    if (first !== undefined) {
      warn(['routes', index], {
        got: `the same when as ${showPath(['routes', first])}`,
        allowed: 'anything; but the first match wins: nothing reaches this one',
        fix: 'remove one of the two',
      })
    } else if (route.when?.key !== undefined && keys === undefined) {
      warn(['routes', index, 'when', 'key'], {
        got: `${route.when.key}, without a keys file`,
        allowed: 'anything; but no request has a key: nothing reaches this route',
        fix: 'write auth: { keys: ./keys.yaml }, or remove the route',
      })
    }
  }
  const last = routes.at(-1)
  if (last === undefined || takesAll(last)) return
  warn(['routes', routes.length - 1], {
    got: 'a when on the last route',
    allowed: 'anything; but requests that match no route are refused',
    fix: 'end with a route without when: { class: … }',
  })
}
