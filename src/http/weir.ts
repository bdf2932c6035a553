/** A whole running Weir: policy, driver, relay, counters, the data port and the admin port, wired once. */
import type { AddressInfo } from 'node:net'
import { performance } from 'node:perf_hooks'
import type { Logger } from 'pino'
import { Registry } from 'prom-client'
import { carryOver } from '../config/carry.js'
import type { Resolved } from '../config/resolved.js'
import { Driver } from '../live/driver.js'
import { LiveOutlook } from '../live/live-outlook.js'
import { type Kept, openState, type StateFile } from '../live/state-file.js'
import { watchEventLoop } from '../metrics/eventloop.js'
import { Recorder } from '../metrics/record.js'
import type { Policy } from '../policy/policy.js'
import type { PoolId } from '../request.js'
import { SloBook } from '../slo/book.js'
import type { Reading } from '../slo/reading.js'
import { readSavedBook } from '../slo/saved-book.js'
import type { Clock, Ms } from '../time.js'
import type { Endpoint } from '../upstream/call.js'
import { netRelay } from '../upstream/net-relay.js'
import { modelsOf } from '../upstream/probe.js'
import { undiciRelay } from '../upstream/undici-relay.js'
import type { ExchangeContext } from './exchange.js'
import { figuresOf } from './figures.js'
import { ModelList } from './models.js'
import { namedState, opsServer, type ReloadResult } from './ops.js'
import { diagnosisOf, headroomOf } from './outlook-figures.js'
import { RequestLog } from './request-log.js'
import { ResponseTable } from './response-table.js'
import { dataServer } from './server.js'
import { UsageAsking } from './usage-asking.js'

export interface WeirOptions {
  readonly config: Resolved
  readonly policy: Policy
  readonly log: Logger
  readonly version: string
  /** The monotonic clock of the process unless given. */
  readonly clock?: Clock
  /** What `POST /-/reload` does; without it there is no such route. */
  readonly reload?: () => Promise<ReloadResult>
  /** Between comments on a silent stream that has its head; 15 s unless given. */
  readonly commentEveryMs?: Ms
  /** Speak to plain-HTTP replicas by `netRelay`; by undici unless given. */
  readonly fastRelay?: boolean
  /** Write to the descriptors of clients' sockets where that is safe; no unless given. */
  readonly directWrite?: boolean
}

/** A quarter of the 60 s of silence at which common load balancers cut. */
const COMMENT_EVERY_MS: Ms = 15_000

/** For the error events of what was cut off; a client that does not read them is left. */
const LAST_WORDS_MS: Ms = 1000

export interface Weir {
  readonly data: AddressInfo
  readonly admin: AddressInfo
  /**
   * Follows a new config, all at once; nothing that is open is cut.
   * @throws Error that says what only a restart can change; then nothing has changed
   */
  reconfigure(config: Resolved): void
  /** Takes no new requests; resolves when the last has ended, or has been cut off after `graceMs`. */
  drain(graceMs: Ms): Promise<void>
  /** Closes both ports and all connections. */
  close(): Promise<void>
}

const DAY_MS: Ms = 86_400_000

const processClock: Clock = { now: () => performance.now() }

/** Starts both listeners; rejects, with nothing left running, when one of them cannot listen. */
export async function startWeir(options: WeirOptions): Promise<Weir> {
  const { config, log, version, clock = processClock } = options
  const book = new SloBook(config.policy, clock.now(), see => server.running(see))
  const ahead = new LiveOutlook({
    config,
    policy: options.policy,
    clock,
    log: {
      debug: (fields, message) => log.debug(fields, message),
      info: (fields, message) => log.info(fields, message),
      warn: (fields, message) => log.warn(fields, message),
    },
    burn: pool => dayBurn(book.reading(clock.now()), context.config, pool),
  })
  const { policy, outlook } = ahead
  const recorder = new Recorder(
    new Registry(),
    config.policy,
    { version, node: process.version },
    () => policy.state(clock.now()),
    () => book.reading(clock.now()),
    () => outlook.readings(clock.now()),
  )
  const requests = new RequestLog(log, config, recorder, book, clock)
  const driver = new Driver(policy, clock, decision => requests.news(decision))
  const relayOf = options.fastRelay === true ? netRelay : undiciRelay
  const relay = relayOf(endpointsOf(config), config.limits.headers)
  const models = new ModelList(config, pool => askPool(context.config, pool), clock)
  let draining = false

  const context: ExchangeContext = {
    config,
    driver,
    relay,
    clock,
    asking: new UsageAsking(config.pools.map(pool => pool.askUsage)),
    responses: new ResponseTable(),
    member: (pool, action) => recorder.member(pool, action),
    ended(exchange, report) {
      server.ended(exchange)
      requests.ended(exchange, report)
    },
    rerouted: (pool, failure) => requests.rerouted(pool, failure),
    warn: (fields, message) => log.warn(fields, message),
    repeated: replica => requests.repeated(replica),
    directWrite: options.directWrite ?? false,
    commentEveryMs: options.commentEveryMs ?? COMMENT_EVERY_MS,
  }
  const server = dataServer({
    context,
    models,
    early: (verdict, answer, id) => requests.early(verdict, answer, id),
    replicas: () => policy.state(clock.now()).replicas,
    passed: passed => requests.passed(passed),
    fault: (error, id) => log.error({ err: error, id }, 'a fault of the router itself; please report it'),
  })
  const ops = opsServer({
    admin: config.admin,
    version,
    metrics: recorder,
    ready: () => (draining ? { ready: false, why: 'draining' } : { ready: true }),
    state: () => namedState(context.config.policy, policy.state(clock.now())),
    report() {
      const now = clock.now()
      const spec = context.config.policy
      const headroom = headroomOf(spec, outlook.readings(now))
      return figuresOf(version, spec, policy.state(now), book.reading(now), headroom.pools)
    },
    headroom: () => headroomOf(context.config.policy, outlook.readings(clock.now())),
    diagnosis() {
      const now = clock.now()
      return diagnosisOf(context.config.policy, outlook.readings(now), at => Date.now() - (now - at))
    },
    ...(options.reload !== undefined && { reload: options.reload }),
  })
  const stopWatching = watchEventLoop(clock, delay => recorder.eventLoopDelay(delay))
  const close = async (): Promise<void> => {
    stopWatching()
    driver.stop()
    await Promise.allSettled([server.close(), ops.close(), relay.close(), ahead.stop(), state?.close()])
  }
  let state: StateFile | undefined
  try {
    state = await stateOf(config, log, book, clock, ahead.kept)
    const [data, admin] = [await server.listen(), await ops.listen()]
    driver.watch(outlook)
    ahead.start()
    return {
      data,
      admin,
      reconfigure(next) {
        const fixed = fixedChanges(context.config, next)
        if (fixed.length > 0) {
          throw new Error(`${fixed.join(', ')} cannot change while Weir runs: restart it, or change it back`)
        }
        const carried = carryOver(next, context.config)
        context.config = carried
        context.asking.reconfigure(carried.pools.map(pool => pool.askUsage))
        models.reconfigure(carried)
        requests.reconfigure(carried)
        recorder.reconfigure(carried.policy)
        book.reconfigure(carried.policy, clock.now())
        // Before the policy, which may send to a new replica at once.
        relay.reconfigure(endpointsOf(carried))
        ahead.reconfigure(carried)
        driver.reconfigure(carried.policy)
      },
      async drain(graceMs) {
        draining = true
        const drained = server.drain()
        if (await within(drained, graceMs)) return
        server.cutOff()
        await within(drained, LAST_WORDS_MS)
      },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

/** Figures from before a restart, and the file that keeps them; undefined without `state_dir`. */
function stateOf(
  config: Resolved,
  log: Logger,
  book: SloBook,
  clock: Clock,
  others: readonly Kept[],
): Promise<StateFile> | undefined {
  if (config.stateDir === undefined) return undefined
  return openState({
    dir: config.stateDir,
    warn: (fields, message) => log.warn(fields, message),
    kept: [
      {
        name: 'slo',
        save: () => book.save(clock),
        restore(saved, gapMs) {
          const read = readSavedBook(saved)
          return typeof read === 'string' ? read : book.restore(read, gapMs, clock.now())
        },
      },
      ...others,
    ],
  })
}

/** The fastest at which a class of the pool burns a budget, over a day; undefined: no day is known. */
function dayBurn(reading: Reading, { policy }: Resolved, pool: PoolId): number | undefined {
  const rates = reading
    .burn()
    .filter(({ cls, windowMs }) => windowMs === DAY_MS && policy.classes[cls]?.pools.includes(pool))
    .flatMap(({ rate }) => rate ?? [])
  return rates.length === 0 ? undefined : Math.max(...rates)
}

/** By replica id. */
function endpointsOf(config: Resolved): Endpoint[] {
  return config.replicas.map(replica => ({
    ...replica,
    connectMs: config.pools[replica.pool]!.timeouts.connectMs,
    retired: config.policy.replicas[replica.id]?.retired === true,
  }))
}

/** What the listeners were opened with, where the new config has it otherwise. */
function fixedChanges(running: Resolved, next: Resolved): string[] {
  const fixed = ({ listen, admin, limits, stateDir }: Resolved) => ({
    'listen.host': listen.host,
    'listen.port': listen.port,
    'admin.host': admin.host,
    'admin.port': admin.port,
    'admin.token': admin.token,
    'limits.headers': limits.headers,
    'limits.head_time': limits.headMs,
    'limits.body_time': limits.bodyMs,
    state_dir: stateDir,
  })
  const before = fixed(running)
  return Object.entries(fixed(next)).flatMap(([key, value]) =>
    value === before[key as keyof typeof before] ? [] : [key],
  )
}

/** Waits for `done`, for `ms` at most. @returns whether it came to be */
async function within(done: Promise<void>, ms: Ms): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<false>(resolve => {
    timer = setTimeout(() => resolve(false), ms)
  })
  const came = await Promise.race([done.then(() => true), late])
  clearTimeout(timer)
  return came
}

/** Models of a pool: those of the first replica that answers. */
async function askPool(config: Resolved, pool: number): Promise<readonly string[]> {
  const asked = config.replicas
    .filter(({ id, pool: of }) => of === pool && !config.policy.replicas[id]?.retired)
    .map(({ origin, basePath }) => modelsOf(origin + basePath, config.pools[pool]?.apiKey))
  return Promise.any(asked)
}
