/** One line in the log, and one record in the counters and in the book of verdicts, for each request: no prompt, no key, no header in it. */
import type { Logger } from 'pino'
import type { Resolved } from '../config/resolved.js'
import type { Recorder } from '../metrics/record.js'
import type { Decision, Failure } from '../policy/decision.js'
import type { PoolId, ReplicaId } from '../request.js'
import type { SloBook } from '../slo/book.js'
import type { Clock, Ms } from '../time.js'
import type { Answer } from './answers.js'
import type { Exchange, Report } from './exchange.js'
import type { Passed } from './forward.js'
import type { EarlyVerdict } from './server.js'

export class RequestLog {
  private named: ReadonlySet<string> = new Set()

  constructor(
    private readonly log: Logger,
    private config: Resolved,
    private readonly recorder: Recorder,
    private readonly book: SloBook,
    private readonly clock: Clock,
  ) {
    this.reconfigure(config)
  }

  reconfigure(config: Resolved): void {
    const { pools, routes } = config.policy
    const names = [
      ...pools.map(pool => pool.model),
      ...routes.flatMap(route => [route.when.model, route.rewriteModel]),
    ]
    this.config = config
    this.named = new Set(names.filter(name => name !== undefined))
  }

  /** Every decision of the policy. */
  news(decision: Decision): void {
    this.recorder.news(decision)
    this.book.news(decision, this.clock.now())
    if (decision.kind === 'ejected') {
      const { why, replica } = decision
      this.log.warn(
        { ...this.place(replica), why },
        'replica ejected: it gets no requests until one trial succeeds',
      )
    } else if (decision.kind === 'restored') this.log.info(this.place(decision.replica), 'replica restored')
  }

  /** A request that had a ticket. Those the policy closed itself were counted with its decision. */
  ended(exchange: Exchange, report: Report): void {
    const { inbound, ticket, attempt, why } = exchange
    const { facts } = inbound
    const { judgement, ending, status, code, detail, ownMs } = report
    const model = ticket?.model ?? facts.model
    if (ending !== 'shed' && ending !== 'refused') {
      this.recorder.judged(judgement, model)
      this.book.judged(judgement, model, this.clock.now())
    }
    if (ownMs !== undefined) this.recorder.overhead(ownMs)
    const unparsed = attempt?.unparsed ?? 0
    if (attempt !== undefined && unparsed > 0) this.recorder.unparsed(attempt.wire.id, unparsed)
    this.log.info(
      {
        id: inbound.id,
        class: judgement.cls === undefined ? undefined : this.config.policy.classes[judgement.cls]?.name,
        ...(attempt !== undefined && this.place(attempt.replica)),
        model: this.named.has(model) ? model : 'other',
        key: facts.key?.label,
        stream: facts.stream,
        route: ticket === undefined || ticket.route < 0 ? undefined : `routes[${ticket.route}]`,
        decision: why,
        verdict: judgement.verdict,
        ending,
        status,
        code,
        detail,
        bodyMs: rounded(facts.bodyAt - facts.arrivedAt),
        // Of one that was never sent: what it waited.
        queueMs: rounded(judgement.queueMs ?? exchange.queuedMs),
        ttftMs: rounded(judgement.ttftMs),
        // What other tools call TTFT: the first event of any kind, and the first text that a reader sees.
        firstEventMs: rounded(since(facts.bodyAt, attempt?.progress?.firstEvent)),
        firstVisibleMs: rounded(since(facts.bodyAt, attempt?.progress?.firstVisible)),
        upstreamTtftMs: rounded(judgement.upstreamTtftMs),
        tpotMs: rounded(judgement.tpotMs),
        longestGapMs: rounded(judgement.longestGapMs),
        e2eMs: rounded(judgement.e2eMs),
        ownMs: rounded(ownMs),
        inputTokens: judgement.inputTokens,
        outputTokens: judgement.outputTokens,
        estimated: judgement.estimated || undefined,
        retry: facts.retry === 0 ? undefined : facts.retry,
      },
      'request',
    )
  }

  /** A request that ended before it had facts. */
  early(verdict: EarlyVerdict, answer: Answer | undefined, id: string): void {
    this.recorder.early(verdict)
    this.log.info({ id, verdict, code: answer?.code, detail: answer?.message }, 'request')
  }

  /** A request that was passed on unmeasured. */
  passed({ replica, tookMs, ...passed }: Passed): void {
    this.log.info({ ...passed, ...this.place(replica), tookMs: rounded(tookMs) }, 'passed')
  }

  rerouted(pool: PoolId, failure: Failure): void {
    this.recorder.rerouted(pool, failure.kind)
  }

  repeated(replica: ReplicaId): void {
    this.recorder.rerouted(this.config.policy.replicas[replica]!.pool, 'reused_socket')
  }

  private place(replica: ReplicaId): {
    readonly pool: string | undefined
    readonly replica: string | undefined
  } {
    const { replicas, pools } = this.config.policy
    const spec = replicas[replica]
    return { pool: spec === undefined ? undefined : pools[spec.pool]?.name, replica: spec?.name }
  }
}

function rounded(ms: Ms | undefined): number | undefined {
  return ms === undefined ? undefined : Math.round(ms * 100) / 100
}

function since(start: Ms, at: Ms | undefined): Ms | undefined {
  return at === undefined ? undefined : at - start
}
