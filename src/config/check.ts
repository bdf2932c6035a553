/** What the fields alone cannot say: names that must exist, bounds that must agree, doors that must not stand open. */
import { listed, nearest, type Path, showValue } from './error.js'
import type { ClassFields, ConfigFields, KeysFields, PoolFields, RouteFields } from './fields.js'
import { isLoopback, isWildcard, parseReplica } from './hosts.js'
import { checkSlo, spanOf } from './slo.js'
import type { Source } from './source.js'
import { durationMs, LONGEST_TIMER_MS, showDuration } from './units.js'
import type { Partly } from './validate.js'

/** Classes are also paths, and these paths are Weir's own. */
const OWN_PATHS = ['v1', 'metrics', 'api', 'livez', 'readyz']

/** Members of a body without which there is no request. */
const NEEDED = ['model', 'messages', 'prompt', 'input', 'stream']

/**
 * Tells `source` every problem between the fields. Parts that were wrong in themselves are missing from
 * `config` and are passed over.
 * @param keys  the keys file, where one is named and could be read
 */
export function checkConfig(
  source: Source,
  config: Partly<ConfigFields>,
  keys: Partly<KeysFields> | undefined,
): void {
  checkDoors(source, config)
  checkTimers(source, config)
  checkAutoscale(source, config)
  for (const [name, cls] of Object.entries(config.classes ?? {})) checkClass(source, config, name, cls)
  const owners = new Map<string, string>()
  for (const [name, pool] of Object.entries(config.pools ?? {})) checkPool(source, config, name, pool, owners)
  checkRoutes(source, config, keys)
}

function checkDoors(source: Source, { listen, admin, auth }: Partly<ConfigFields>): void {
  if (auth === 'none' && listen?.host !== undefined && !isLoopback(listen.host)) {
    source.complain(['auth'], {
      got: `none, with listen.host ${listen.host}`,
      allowed: 'none on loopback only; beyond it { keys: FILE } or { none: anyone-may-call }',
      fix: 'write { keys: ./keys.yaml }, or listen on 127.0.0.1',
    })
  }
  if (admin?.host !== undefined && !isLoopback(admin.host) && admin.token === '') {
    source.complain(['admin', 'token'], {
      got: `an empty token, with admin.host ${admin.host}`,
      allowed: 'a token of your own beyond loopback',
      fix: `write token: "\${WEIR_ADMIN_TOKEN}" and set it, or put admin.host on 127.0.0.1`,
    })
  }
  if (listen?.host === undefined || listen.port === undefined || admin?.host === undefined) return
  const sameHost = listen.host === admin.host || isWildcard(listen.host) || isWildcard(admin.host)
  if (listen.port !== 0 && listen.port === admin.port && sameHost) {
    source.complain(['admin', 'port'], {
      got: `${admin.port}, the port of listen`,
      allowed: 'a port of its own',
      fix: `write another, such as ${listen.port + 1}`,
    })
  }
}

function checkAutoscale(source: Source, { autoscale }: Partly<ConfigFields>): void {
  const { target, down } = autoscale ?? {}
  if (target === 0) {
    source.complain(['autoscale', 'target'], {
      got: '0',
      allowed: 'a number above 0, up to 1',
      fix: 'write 0.7: room for a burst and for one replica that fails',
    })
  } else if (target !== undefined && down !== undefined && down >= target) {
    source.complain(['autoscale', 'down'], {
      got: `${down}, with target ${target}`,
      allowed: 'less than target',
      fix: `write ${Math.round(target * 78) / 100}: else a replica that was just added is taken away again`,
    })
  }
}

/** Durations that become timers; a window is counted, not timed. */
function checkTimers(source: Source, config: Partly<ConfigFields>): void {
  const timers: (readonly [Path, string | undefined])[] = [[['commit_after'], config.commit_after]]
  const clocks = (path: Path, times: Readonly<Record<string, string | undefined>> | undefined): void => {
    for (const [name, text] of Object.entries(times ?? {})) timers.push([[...path, name], text])
  }
  clocks(['timeouts'], config.timeouts)
  for (const [name, pool] of Object.entries(config.pools ?? {}))
    clocks(['pools', name, 'timeouts'], pool?.timeouts)
  for (const [name, cls] of Object.entries(config.classes ?? {})) {
    const at = ['classes', name]
    timers.push([[...at, 'commit_after'], cls?.commit_after], [[...at, 'queue', 'wait'], cls?.queue?.wait])
    clocks([...at, 'own_bounds'], cls?.own_bounds)
    for (const slo of ['target', 'guard'] as const) {
      const { ttft, tpot, deadline } = cls?.slo?.[slo] ?? {}
      clocks([...at, 'slo', slo], { ttft, tpot, deadline })
    }
  }
  for (const [path, text] of timers) {
    if (text === undefined || (durationMs(text) ?? 0) <= LONGEST_TIMER_MS) continue
    source.complain(path, {
      got: showValue(text),
      allowed: `at most ${showDuration(LONGEST_TIMER_MS)}`,
      fix: path.at(-2) === 'timeouts' && path.at(-1) !== 'connect' ? 'write off' : 'write less',
    })
  }
}

function checkName(source: Source, path: Path, name: string, taken: readonly string[], why: string): void {
  if (!/^[a-z0-9_-]+$/.test(name) || name === '__proto__') {
    const safe = name
      .toLowerCase()
      .replace(/[^a-z0-9_-]+/g, '-')
      .replace(/^[-_]+|[-_]+$/g, '')
    source.complain(
      path,
      {
        got: `the name ${showValue(name)}`,
        allowed: 'a name of a-z, 0-9, _ and -: it stands in paths, headers and metrics',
        fix: safe === '' || taken.includes(safe) ? 'choose another name' : `rename it to ${safe}`,
      },
      'key',
    )
  } else if (taken.includes(name)) {
    source.complain(
      path,
      {
        got: `the name "${name}"`,
        allowed: `a name other than ${taken.join(', ')}: ${why}`,
        fix: 'choose another name',
      },
      'key',
    )
  }
}

function checkClass(
  source: Source,
  config: Partly<ConfigFields>,
  name: string,
  cls: Partly<ClassFields> | undefined,
): void {
  const at = ['classes', name]
  checkName(source, at, name, OWN_PATHS, 'those are paths of Weir’s own')
  checkReferences(source, [...at, 'pools'], cls?.pools, config.pools, 'pool')
  checkSlo(source, [...at, 'slo'], cls?.slo)
  for (const lengths of ['input_tokens', 'output_tokens'] as const) {
    const { p50, p90 } = cls?.workload?.[lengths] ?? {}
    if (p50 !== undefined && p90 !== undefined && p90 < p50) {
      source.complain([...at, 'workload', lengths, 'p90'], {
        got: String(p90),
        allowed: `a number, not below p50 (${p50})`,
        fix: 'swap them, or measure again',
      })
    }
  }
  const { min, max } = cls?.own_bounds ?? {}
  if (min !== undefined && max !== undefined && spanOf(min) > spanOf(max)) {
    source.complain([...at, 'own_bounds', 'min'], {
      got: showValue(min),
      allowed: `at most own_bounds.max (${max})`,
      fix: 'swap min and max',
    })
  }
  const target = cls?.slo?.target
  if (target === undefined || target.deadline !== undefined || target.ttft === undefined) return
  for (const key of ['queue', 'own_bounds'] as const) {
    if (cls?.[key] === undefined) continue
    source.complain(
      [...at, key],
      {
        got: `${key} on a class with ttft and tpot`,
        allowed: `${key} on classes with a deadline`,
        fix:
          key === 'queue'
            ? 'remove it: a reader’s first token cannot wait; or give the class a deadline'
            : 'remove it, or give the class a deadline',
      },
      'key',
    )
  }
}

export function checkReferences(
  source: Source,
  at: Path,
  names: readonly (string | undefined)[] | undefined,
  known: object | undefined,
  noun: 'pool' | 'class',
): void {
  for (const [index, name] of (names ?? []).entries()) {
    if (name === undefined) continue
    if (names?.indexOf(name) !== index) {
      source.complain([...at, index], {
        got: `"${name}" again`,
        allowed: `each ${noun} once`,
        fix: 'remove it',
      })
    } else checkReference(source, [...at, index], name, known, noun)
  }
}

function checkReference(
  source: Source,
  at: Path,
  name: string,
  known: object | undefined,
  noun: 'pool' | 'class',
): void {
  const under = noun === 'pool' ? 'pools' : 'classes'
  if (known === undefined || Object.hasOwn(known, name)) return
  const names = Object.keys(known)
  const meant = nearest(name, names)
  source.complain(at, {
    got: `"${name}"`,
    allowed: `a ${noun} under ${under}: ${listed(names.map(known => `"${known}"`))}`,
    fix: meant === undefined ? `write one of them, or add it under ${under}` : `did you mean "${meant}"?`,
  })
}

function checkPool(
  source: Source,
  config: Partly<ConfigFields>,
  name: string,
  pool: Partly<PoolFields> | undefined,
  owners: Map<string, string>,
): void {
  const at = ['pools', name]
  checkName(source, at, name, ['none'], 'metrics say none where no pool was chosen')
  for (const [index, text] of (pool?.replicas ?? []).entries()) {
    if (text === undefined) continue
    const url = parseReplica(text)
    if ('fix' in url) {
      source.complain([...at, 'replicas', index], url)
      continue
    }
    const owner = owners.get(url.name)
    if (owner !== undefined) {
      source.complain([...at, 'replicas', index], {
        got: `${showValue(text)}, which is also in pool ${owner}`,
        allowed: 'each replica once: its load is counted in one place',
        fix: 'remove one of the two; a pool may serve many classes',
      })
    } else owners.set(url.name, name)
  }
  for (const [index, member] of (pool?.refuse_members ?? []).entries()) {
    if (member === undefined || !NEEDED.includes(member)) continue
    source.complain([...at, 'refuse_members', index], {
      got: showValue(member),
      allowed: `any member but ${listed(NEEDED)}`,
      fix: 'remove it: nearly every request has it',
    })
  }
  if (pool?.pass_authorization !== true) return
  const keyed = typeof config.auth === 'object' && config.auth.keys !== undefined
  if (!keyed && (pool.api_key ?? '') === '') return
  source.complain([...at, 'pass_authorization'], {
    got: keyed ? 'true, with keys of Weir’s own' : 'true, with an api_key',
    allowed: 'true only with auth none and without api_key',
    fix: keyed
      ? 'write false: Weir’s keys would go to the upstream; give the pool an api_key'
      : 'write false, or remove api_key: only one credential can be sent',
  })
}

function checkRoutes(
  source: Source,
  config: Partly<ConfigFields>,
  keys: Partly<KeysFields> | undefined,
): void {
  const classes = Object.keys(config.classes ?? {})
  if (config.routes === undefined) {
    if (classes.length < 2 || source.problems.some(problem => problem.path === 'routes')) return
    source.complain(['routes'], {
      got: 'nothing',
      allowed: 'a list of { when, class }; it may be left out only with a single class',
      fix: `write which request is of which class, last { class: ${classes[0]} } for the rest`,
    })
    return
  }
  const named = keys?.keys?.map(key => key?.label).filter(label => label !== undefined)
  const labels = named === undefined ? undefined : [...new Set(named)]
  for (const [index, route] of config.routes.entries()) {
    if (route === undefined) continue
    const at: Path = ['routes', index]
    if (route.class !== undefined)
      checkReference(source, [...at, 'class'], route.class, config.classes, 'class')
    if (takesAll(route) && index < config.routes.length - 1) {
      source.complain(at, {
        got: 'no when, before the last route',
        allowed: 'a route without when only at the end',
        fix: 'move it to the end, or give it a when: it would swallow the routes below',
      })
    }
    checkWhen(source, [...at, 'when'], route.when, labels)
  }
}

/** True where nothing is asked of a request. A `when` that was wrong inside still asks something. */
export function takesAll(route: Partly<RouteFields>): boolean {
  if (!Object.hasOwn(route, 'when')) return true
  return route.when !== undefined && Object.keys(route.when).length === 0
}

function checkWhen(
  source: Source,
  at: Path,
  when: Partly<RouteFields>['when'],
  labels: readonly string[] | undefined,
): void {
  const { min, max } = when?.max_tokens ?? {}
  if (min !== undefined && max !== undefined && min > max) {
    source.complain([...at, 'max_tokens', 'min'], {
      got: String(min),
      allowed: `at most max_tokens.max (${max})`,
      fix: 'swap min and max',
    })
  }
  if (when?.key !== undefined && labels !== undefined && !labels.includes(when.key)) {
    const meant = nearest(when.key, labels)
    source.complain([...at, 'key'], {
      got: `"${when.key}"`,
      allowed: `a label of the keys file: ${listed(labels.map(label => `"${label}"`))}`,
      fix: meant === undefined ? 'write one of them, or add the key' : `did you mean "${meant}"?`,
    })
  }
  const seen = new Set<string>()
  for (const name of Object.keys(when?.header ?? {})) {
    const lower = name.toLowerCase()
    if (!/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(lower)) {
      source.complain(
        [...at, 'header', name],
        {
          got: `the name ${showValue(name)}`,
          allowed: 'a header name, without : and spaces',
          fix: 'write it as x-team',
        },
        'key',
      )
    } else if (seen.has(lower)) {
      source.complain(
        [...at, 'header', name],
        { got: `${name} again, in other case`, allowed: 'each header once', fix: 'remove one of the two' },
        'key',
      )
    }
    seen.add(lower)
  }
}
