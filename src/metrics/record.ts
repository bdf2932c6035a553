/** Turns what happened into metrics: one record a request at its end, and the policy's own numbers at a scrape. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Decision, Failure, ShedReason } from '../policy/decision.js'
import type { PolicyState } from '../policy/policy.js'
import type { PoolReading } from '../policy/pool-outlook.js'
import type { PoolId } from '../request.js'
import type { Reading } from '../slo/reading.js'
import type { Slo } from '../slo/slo.js'
import type { ClauseName, ClauseResult, Judgement } from '../slo/verdict.js'
import type { Ms } from '../time.js'
import { edges } from './buckets.js'
import { type ClassPool, type Labelled, Labels, NONE } from './labels.js'
import { type HistogramSpec, type Ladder, METRICS, type PlainSpec } from './names.js'
import { outlookGauges } from './outlook-gauges.js'
import { base } from './prometheus.js'
import { sloGauges } from './slo-gauges.js'
import { textOf } from './text.js'

export interface Build {
  readonly version: string
  /** Version of Node, as `process.version` says it. */
  readonly node: string
}

const SHED_REASONS: Readonly<Record<ShedReason, true>> = {
  no_headroom: true,
  infeasible: true,
  queue_timeout: true,
  quota: true,
  no_replica: true,
}

/** Counts requests. The one place that turns ms into seconds; a call costs microseconds and is made once a request. */
export class Recorder {
  readonly #registry: Registry
  readonly #figures: (() => Reading) | undefined
  readonly #outlook: (() => readonly PoolReading[]) | undefined
  #labels: Labels
  /** Of the scrape that is under way. */
  readonly #state: () => PolicyState
  // What the scrape under way shows.
  #seen: PolicyState | undefined
  #reading: Reading | undefined
  #ahead: readonly PoolReading[] = []

  /** Edges in use, by the histogram's name. */
  readonly #edges = new Map<string, string>()
  readonly #requests: Counter<string>
  readonly #clause: Counter<string>
  #ttft: Histogram<string>
  #upstreamTtft: Histogram<string>
  readonly #queue: Histogram<string>
  #tpot: Histogram<string>
  #e2e: Histogram<string>
  readonly #longestGap: Histogram<string>
  readonly #tokens: Counter<string>
  readonly #usageMissing: Counter<string>
  readonly #unparsed: Counter<string>
  readonly #members: Counter<string>
  readonly #shed: Counter<string>
  readonly #spill: Counter<string>
  readonly #reroute: Counter<string>
  readonly #overhead: Histogram<string>
  readonly #eventLoopDelay: Histogram<string>
  readonly #configReloads: Counter<string>

  /**
   * @param registry  an empty registry, for this recorder alone
   * @param spec      the classes, pools, replicas and routes that requests are counted under
   * @param build     what `weir_build_info` says
   * @param state     the policy's state now; asked once a scrape
   * @param figures   the book's reading now; asked once a scrape. Without it its gauges have no samples
   * @param outlook   likewise, what lies before each pool
   */
  constructor(
    registry: Registry,
    spec: Labelled,
    build: Build,
    state: () => PolicyState,
    figures?: () => Reading,
    outlook?: () => readonly PoolReading[],
  ) {
    this.#registry = registry
    this.#figures = figures
    this.#outlook = outlook
    this.#state = state
    this.#labels = new Labels(spec)

    const counter = (metric: PlainSpec) => new Counter(base(metric, registry))
    const histogram = (metric: HistogramSpec) => this.#histogram(metric, spec)
    const gauge = (
      metric: PlainSpec,
      collect: (gauge: Gauge<string>, state: PolicyState, labels: Labels) => void,
    ) => {
      const now = (gauge: Gauge<string>) => {
        // What is no longer there must not stay at its last value.
        gauge.reset()
        if (this.#seen !== undefined) collect(gauge, this.#seen, this.#labels)
      }
      new Gauge({
        ...base(metric, registry),
        collect() {
          now(this)
        },
      })
    }

    this.#requests = counter(METRICS.requests)
    this.#clause = counter(METRICS.clause)
    this.#ttft = histogram(METRICS.ttft)
    this.#upstreamTtft = histogram(METRICS.upstreamTtft)
    this.#queue = histogram(METRICS.queue)
    this.#tpot = histogram(METRICS.tpot)
    this.#e2e = histogram(METRICS.e2e)
    this.#longestGap = histogram(METRICS.longestGap)
    this.#tokens = counter(METRICS.tokens)
    this.#usageMissing = counter(METRICS.usageMissing)
    this.#unparsed = counter(METRICS.unparsed)
    this.#members = counter(METRICS.members)
    this.#shed = counter(METRICS.shed)
    this.#spill = counter(METRICS.spill)
    this.#reroute = counter(METRICS.reroute)
    gauge(METRICS.groupService, (service, { groups = [] }, labels) => {
      for (const { cls, group, share } of groups) service.set({ class: labels.class(cls), group }, share)
    })
    gauge(METRICS.queueDepth, (depth, { queues }, labels) => {
      for (const queue of queues) depth.set({ class: labels.class(queue.cls) }, queue.depth)
    })
    gauge(METRICS.inFlight, (inFlight, { replicas }, labels) => {
      for (const replica of replicas) inFlight.set(labels.replica(replica.id), replica.inFlight)
    })
    gauge(METRICS.replicaUp, (up, { replicas }, labels) => {
      for (const replica of replicas) up.set(labels.replica(replica.id), replica.up ? 1 : 0)
    })
    gauge(METRICS.outstandingPrefill, (prefill, { replicas }, labels) => {
      for (const replica of replicas) {
        prefill.set(labels.replica(replica.id), replica.outstandingPrefillTokens)
      }
    })
    sloGauges(
      registry,
      () => this.#labels,
      () => this.#reading,
      () => this.#seen?.replicas ?? [],
    )
    outlookGauges(
      registry,
      () => this.#labels,
      () => this.#ahead,
    )
    this.#overhead = histogram(METRICS.overhead)
    this.#eventLoopDelay = histogram(METRICS.eventLoopDelay)
    this.#configReloads = counter(METRICS.configReloads)
    new Gauge(base(METRICS.buildInfo, registry)).set({ version: build.version, node: build.node }, 1)
    this.#startAtZero(spec)
  }

  /**
   * Counts under a new config from here on. Counters go on; a histogram whose edges changed starts again, as it
   * would in a new process.
   */
  reconfigure(spec: Labelled): void {
    this.#labels = new Labels(spec)
    this.#ttft = this.#withEdges(this.#ttft, METRICS.ttft, spec)
    this.#upstreamTtft = this.#withEdges(this.#upstreamTtft, METRICS.upstreamTtft, spec)
    this.#tpot = this.#withEdges(this.#tpot, METRICS.tpot, spec)
    this.#e2e = this.#withEdges(this.#e2e, METRICS.e2e, spec)
    this.#startAtZero(spec)
    this.#configReloads.inc()
  }

  /** The media type of `text`. */
  get contentType(): string {
    return this.#registry.contentType
  }

  /** All metrics now, in Prometheus' text format. Reading changes nothing, so several may scrape. */
  text(): Promise<string> {
    this.#seen = this.#state()
    this.#reading = this.#figures?.()
    this.#ahead = this.#outlook?.() ?? []
    return textOf(this.#registry)
  }

  /**
   * A request that ended by `Policy.finish`. Those that end by a `shed` or `refuse` decision are counted by `news`.
   * @param model  the model it was for; one that the config does not name counts as `other`
   */
  judged(judgement: Judgement, model: string): void {
    const { cls, pool, verdict, outputTokens, inputTokens } = judgement
    const labels = this.#labels.of(cls, pool)
    this.#requests.inc({ ...labels, model: this.#labels.model(model), verdict }, 1)
    for (const clause of judgement.clauses) this.#count(clause)

    observe(this.#ttft, labels, judgement.ttftMs)
    observe(this.#upstreamTtft, labels, judgement.upstreamTtftMs)
    observe(this.#queue, labels, judgement.queueMs)
    observe(this.#tpot, labels, judgement.tpotMs)
    observe(this.#e2e, labels, judgement.e2eMs)
    observe(this.#longestGap, labels, judgement.longestGapMs)

    if (inputTokens !== undefined) this.#tokens.inc({ ...labels, kind: 'input' }, inputTokens)
    if (outputTokens === undefined) return
    this.#tokens.inc({ ...labels, kind: 'output' }, outputTokens)
    if (verdict === 'good') this.#tokens.inc({ ...labels, kind: 'output_good' }, outputTokens)
    if (judgement.estimated) this.#usageMissing.inc({ pool: labels.pool }, 1)
  }

  /** Each decision, once. `shed` and `refuse` end their request here: their judgement is counted too. */
  news(decision: Decision): void {
    switch (decision.kind) {
      case 'shed':
        this.#shed.inc({ class: this.#labels.class(decision.ticket.cls), reason: decision.reason }, 1)
        this.judged(decision.judgement, decision.ticket.model)
        break
      case 'refuse':
        this.judged(decision.judgement, decision.ticket.model)
        break
      case 'clause':
        this.#count(decision.result)
        break
      case 'dispatch':
        if (decision.why === 'spill') {
          const { class: cls, pool: to } = this.#labels.of(decision.ticket.cls, decision.pool)
          this.#spill.inc({ class: cls, from: this.#labels.home(decision.ticket), to }, 1)
        }
        break
    }
  }

  /**
   * A failed request goes out again: to another replica, as `Policy.failed` says, or to the same one on a fresh
   * socket, since a reused one was dead.
   * @param pool  the pool whose replica failed it
   */
  rerouted(pool: PoolId, reason: Failure['kind'] | 'reused_socket'): void {
    this.#reroute.inc({ pool: this.#labels.pool(pool), reason }, 1)
  }

  /** A request that ended before the policy saw it: one arrival, one verdict. */
  early(verdict: 'client_error' | 'client_left' | 'shed'): void {
    this.#requests.inc({ ...this.#labels.of(undefined, undefined), model: NONE, verdict }, 1)
  }

  /** Stream events of one answer that were passed on unread. */
  unparsed(pool: PoolId, events: number): void {
    this.#unparsed.inc({ pool: this.#labels.pool(pool) }, events)
  }

  /** An engine control in a body was refused, or replaced by Weir's own value. */
  member(pool: PoolId, action: 'refused' | 'replaced'): void {
    this.#members.inc({ pool: this.#labels.pool(pool), action }, 1)
  }

  /** Weir's own time in one request: before dispatch plus in the first event. */
  overhead(ownMs: Ms): void {
    this.#overhead.observe(seconds(ownMs))
  }

  /** One delay of the event loop. */
  eventLoopDelay(delayMs: Ms): void {
    this.#eventLoopDelay.observe(seconds(delayMs))
  }

  #histogram(metric: HistogramSpec, spec: Labelled): Histogram<string> {
    const buckets = edges(metric.buckets, boundsOf(metric.buckets, spec))
    this.#edges.set(metric.name, buckets.join())
    return new Histogram({ ...base(metric, this.#registry), buckets })
  }

  #withEdges(now: Histogram<string>, metric: HistogramSpec, spec: Labelled): Histogram<string> {
    if (this.#edges.get(metric.name) === edges(metric.buckets, boundsOf(metric.buckets, spec)).join())
      return now
    this.#registry.removeSingleMetric(metric.name)
    return this.#histogram(metric, spec)
  }

  #count(result: ClauseResult): void {
    const { cls, pool, slo, clause, met } = result
    this.#clause.inc({ ...this.#labels.of(cls, pool), slo, clause, result: met ? 'met' : 'missed' }, 1)
  }

  /** A counter that is absent until its first event hides that event from `rate`, and leaves a ratio empty. */
  #startAtZero(spec: Labelled): void {
    for (const pool of spec.pools) {
      this.#usageMissing.inc({ pool: pool.name }, 0)
      this.#unparsed.inc({ pool: pool.name }, 0)
      for (const action of ['refused', 'replaced']) this.#members.inc({ pool: pool.name, action }, 0)
    }
    for (const cls of spec.classes) {
      for (const reason of Object.keys(SHED_REASONS)) this.#shed.inc({ class: cls.name, reason }, 0)
      // Where it may be served, and where it is shed before there was a choice.
      for (const pool of [...cls.pools, undefined]) {
        const labels = this.#labels.of(cls.id, pool)
        for (const slo of ['target', 'guard'] as const) {
          for (const clause of clausesOf(cls[slo])) {
            for (const result of ['met', 'missed']) this.#clause.inc({ ...labels, slo, clause, result }, 0)
          }
        }
      }
    }
  }
}

/** Promised bounds that belong on a ladder, in seconds. */
function boundsOf(ladder: Ladder, { classes }: Labelled): number[] {
  const clauses = classes.flatMap(({ target, guard }) => [target.clauses, guard.clauses])
  return clauses.flatMap(clause => {
    if (clause.kind === 'deadline') return ladder.bounds === 'deadline' ? [seconds(clause.deadlineMs)] : []
    if (ladder.bounds === 'ttft') return [seconds(clause.ttftMs)]
    return ladder.bounds === 'tpot' ? [seconds(clause.tpotMs)] : []
  })
}

function clausesOf(slo: Slo): readonly ClauseName[] {
  return slo.clauses.kind === 'deadline' ? ['deadline'] : ['ttft', 'tpot', 'joint']
}

/** Unknown is no sample. */
function observe(histogram: Histogram<string>, labels: ClassPool, value: Ms | undefined): void {
  if (value !== undefined) histogram.observe(labels, seconds(value))
}

function seconds(ms: Ms): number {
  return ms / 1000
}
