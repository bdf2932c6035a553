/** Checked fields to the frozen form that everything else runs on: units resolved, names made ids. */
import { dirname, isAbsolute, join } from 'node:path'
import type { PoolSpec, ReplicaSpec } from '../fleet/pool.js'
import type { ClassId, PoolId } from '../request.js'
import type { RouteSpec } from '../routing/route.js'
import type { Slo, TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'
import type { ClassFields, ConfigFields, KeysFields, PoolFields, RouteFields } from './fields.js'
import { parseReplica } from './hosts.js'
import { idIn, resolveKeys } from './keys.js'
import type { PoolWire, ReplicaWire, Resolved, Timeouts } from './resolved.js'
import { GUARD_FACTORS } from './slo.js'
import { budgetsOf, type PoolSweep } from './sweeps.js'
import { durationMs, sizeBytes } from './units.js'

/**
 * @param file  that `config` was read from: what names of other files are relative to
 * @throws Error for fields that were not checked before
 */
export function resolve(
  config: ConfigFields,
  keys: KeysFields | undefined,
  file: string,
  sweeps: ReadonlyMap<string, PoolSweep>,
): Resolved {
  const classIds = idsOf<ClassId>(config.classes)
  const poolIds = idsOf<PoolId>(config.pools)
  const { wires, specs } = resolveReplicas(config, poolIds)
  const classes = Object.entries(config.classes)
  const pools = Object.entries(config.pools)
  return freeze<Resolved>({
    listen: config.listen,
    admin: { ...config.admin, token: given(config.admin.token) },
    keys: keys === undefined ? undefined : resolveKeys(keys, classIds),
    limits: {
      body: sizeBytes(config.limits.body),
      headers: sizeBytes(config.limits.headers),
      event: sizeBytes(config.limits.event),
      headMs: spanOf(config.limits.head_time),
      bodyMs: spanOf(config.limits.body_time),
    },
    commitAfterMs: classes.map(([, cls]) => durationMs(cls.commit_after ?? config.commit_after)),
    overloadStatus: config.overload_status === 429 ? 429 : 503,
    stateDir: config.state_dir === '' ? undefined : besides(file, config.state_dir),
    cors: config.cors.origins,
    pools: pools.map(([name, pool]) => resolveWire(idIn(poolIds, name), pool, config)),
    replicas: wires,
    autoscale: {
      target: config.autoscale.target,
      down: config.autoscale.down,
      coldStartMs: spanOf(config.autoscale.cold_start),
    },
    sweeps: budgetsOf(sweeps),
    classIds,
    policy: {
      classes: classes.map(([name, cls]) => resolveClass(idIn(classIds, name), name, cls, poolIds)),
      pools: pools.map(([name, pool]) => resolvePool(idIn(poolIds, name), name, pool, specs)),
      replicas: specs,
      routes: (config.routes ?? [{ class: classes[0]?.[0] ?? '' }]).map(route =>
        resolveRoute(route, classIds),
      ),
      retries: config.retries,
      admission: config.admission,
    },
  })
}

function idsOf<Id extends number>(named: object): ReadonlyMap<string, Id> {
  return new Map(Object.keys(named).map((name, index) => [name, index as Id]))
}

/** An empty text stands for none, so that `${NAME:-}` can leave a value out. */
const given = (text: string): string | undefined => (text === '' ? undefined : text)

/** A path in the config is relative to the file that it stands in. */
const besides = (file: string, path: string): string => (isAbsolute(path) ? path : join(dirname(file), path))

function spanOf(text: string): Ms {
  const ms = durationMs(text)
  if (ms === undefined) throw new Error(`unchecked duration: ${text}`)
  return ms
}

function resolveClass(
  id: ClassId,
  name: string,
  cls: ClassFields,
  pools: ReadonlyMap<string, PoolId>,
): TrafficClass {
  const { workload, queue, own_bounds: own } = cls
  const target = resolveTarget(cls.slo.target)
  return {
    id,
    name,
    target,
    guard: resolveGuard(cls.slo.guard, target),
    workload: {
      model: workload.model,
      precision: workload.precision,
      inputTokens: workload.input_tokens,
      outputTokens: workload.output_tokens,
      cacheHit: workload.cache_hit,
    },
    priority: cls.priority,
    pools: cls.pools.map(pool => idIn(pools, pool)),
    queue: queue === undefined ? undefined : { max: queue.max, waitMs: spanOf(queue.wait) },
    ...(cls.fairness === undefined ? {} : { fairness: cls.fairness }),
    ownBounds: own === undefined ? undefined : { minMs: spanOf(own.min), maxMs: spanOf(own.max) },
  }
}

function resolveTarget(target: ClassFields['slo']['target']): Slo {
  return {
    percentile: target.percentile,
    mode: target.mode,
    windowMs: spanOf(target.window),
    clauses:
      target.deadline === undefined
        ? { kind: 'stream', ttftMs: spanOf(target.ttft ?? ''), tpotMs: spanOf(target.tpot ?? '') }
        : {
            kind: 'deadline',
            deadlineMs: spanOf(target.deadline),
            minTokensPerSecond: target.min_tokens_per_second ?? 0,
          },
  }
}

/** What the guard leaves open follows from the target: p99 over 30 days, at 4x ttft, 2.5x tpot, 2x deadline. */
function resolveGuard(guard: ClassFields['slo']['guard'], target: Slo): Slo {
  const { clauses } = target
  const bound = (text: string | undefined, otherwise: Ms): Ms =>
    text === undefined ? otherwise : spanOf(text)
  return {
    percentile: guard?.percentile ?? Math.max(99, target.percentile),
    mode: guard?.mode ?? target.mode,
    windowMs: spanOf(guard?.window ?? '30d'),
    clauses:
      clauses.kind === 'stream'
        ? {
            kind: 'stream',
            ttftMs: bound(guard?.ttft, clauses.ttftMs * GUARD_FACTORS.ttft),
            tpotMs: bound(guard?.tpot, clauses.tpotMs * GUARD_FACTORS.tpot),
          }
        : {
            kind: 'deadline',
            deadlineMs: bound(guard?.deadline, clauses.deadlineMs * GUARD_FACTORS.deadline),
            minTokensPerSecond: clauses.minTokensPerSecond / GUARD_FACTORS.deadline,
          },
  }
}

function resolvePool(id: PoolId, name: string, pool: PoolFields, replicas: readonly ReplicaSpec[]): PoolSpec {
  return {
    id,
    name,
    model: pool.model === '*' ? undefined : pool.model,
    replicas: replicas.filter(replica => replica.pool === id),
    maxInFlight: pool.max_in_flight,
    gpusPerReplica: pool.gpus_per_replica,
  }
}

function resolveWire(id: PoolId, pool: PoolFields, config: ConfigFields): PoolWire {
  return {
    id,
    timeouts: resolveTimeouts({ ...config.timeouts, ...pool.timeouts }),
    apiKey: given(pool.api_key),
    askUsage: pool.ask_usage,
    passAuthorization: pool.pass_authorization,
    sendPriority: pool.send_priority,
    refuseMembers: pool.refuse_members,
    allow: new Set(pool.allow),
    engine: pool.engine,
  }
}

function resolveTimeouts(timeouts: ConfigFields['timeouts']): Timeouts {
  return {
    connectMs: spanOf(timeouts.connect),
    firstTokenMs: durationMs(timeouts.first_token),
    stallMs: durationMs(timeouts.stall),
    totalMs: durationMs(timeouts.total),
  }
}

function resolveReplicas(config: ConfigFields, pools: ReadonlyMap<string, PoolId>) {
  const wires: ReplicaWire[] = []
  const specs: ReplicaSpec[] = []
  for (const [name, { replicas }] of Object.entries(config.pools)) {
    const pool = idIn(pools, name)
    for (const text of replicas) {
      const url = parseReplica(text)
      if ('fix' in url) throw new Error(`unchecked URL: ${text}`)
      wires.push({ id: wires.length, pool, origin: url.origin, basePath: url.basePath })
      specs.push({ id: specs.length, pool, name: url.name })
    }
  }
  return { wires, specs }
}

function resolveRoute(route: RouteFields, classes: ReadonlyMap<string, ClassId>): RouteSpec {
  const { when } = route
  return {
    when: {
      path: when?.path,
      header: Object.entries(when?.header ?? {}).map(([name, glob]) => [name.toLowerCase(), glob]),
      model: when?.model,
      key: when?.key,
      stream: when?.stream,
      tools: when?.tools,
      maxTokens:
        when?.max_tokens === undefined ? undefined : { min: when.max_tokens.min, max: when.max_tokens.max },
    },
    cls: idIn(classes, route.class),
    rewriteModel: route.rewrite?.model,
  }
}

/** Freezes all the way down, but for Maps, Sets and bytes, which cannot be. Their types are read-only. */
function freeze<T>(value: T): T {
  if (
    typeof value !== 'object' ||
    value === null ||
    value instanceof Map ||
    value instanceof Set ||
    ArrayBuffer.isView(value)
  )
    return value
  for (const part of Object.values(value)) freeze(part)
  return Object.freeze(value)
}
