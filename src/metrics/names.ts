/** Every metric of Weir, once: what it is called, counts and is labelled with. docs/metrics.md holds the same table. */

/** Range and steps of a histogram, in seconds, and which promised bounds are edges of it. */
export interface Ladder {
  readonly from: number
  readonly to: number
  readonly perDecade: 5 | 10
  readonly bounds: 'ttft' | 'tpot' | 'deadline' | undefined
}

type Unit =
  | 'seconds'
  | 'requests'
  | 'requests/s'
  | 'clauses'
  | 'tokens'
  | 'tokens/s/GPU'
  | 'GPU s/s'
  | 'replicas'
  | 'events'
  | 'members'
  | 'reloads'
  | 'ratio'
  | 'none'

interface Named {
  readonly name: string
  /** Also the metric's row in docs/metrics.md. */
  readonly help: string
  readonly unit: Unit
  readonly labels: readonly string[]
}

export interface PlainSpec extends Named {
  readonly type: 'counter' | 'gauge'
}

export interface HistogramSpec extends Named {
  readonly type: 'histogram'
  readonly unit: 'seconds'
  readonly buckets: Ladder
}

const TTFT: Ladder = { from: 0.001, to: 600, perDecade: 10, bounds: 'ttft' }
const TPOT: Ladder = { from: 0.001, to: 5, perDecade: 10, bounds: 'tpot' }
const E2E: Ladder = { from: 0.01, to: 1800, perDecade: 10, bounds: 'deadline' }
/** For what no clause is about: half as many edges. */
const WAIT: Ladder = { from: 0.001, to: 600, perDecade: 5, bounds: undefined }

export const METRICS = {
  requests: {
    type: 'counter',
    name: 'weir_requests_total',
    unit: 'requests',
    labels: ['class', 'pool', 'model', 'verdict'],
    help: 'Requests that ended, by their one verdict.',
  },
  clause: {
    type: 'counter',
    name: 'weir_clause_total',
    unit: 'clauses',
    labels: ['class', 'pool', 'slo', 'clause', 'result'],
    help: 'Clauses decided, met or missed, compared exactly and not from buckets.',
  },
  ttft: {
    type: 'histogram',
    name: 'weir_ttft_seconds',
    unit: 'seconds',
    labels: ['class', 'pool'],
    buckets: TTFT,
    help: 'Request body complete at Weir to the first output, queue included.',
  },
  upstreamTtft: {
    type: 'histogram',
    name: 'weir_upstream_ttft_seconds',
    unit: 'seconds',
    labels: ['class', 'pool'],
    buckets: TTFT,
    help: 'Last dispatch to the first output: the part of TTFT spent upstream.',
  },
  queue: {
    type: 'histogram',
    name: 'weir_queue_seconds',
    unit: 'seconds',
    labels: ['class', 'pool'],
    buckets: WAIT,
    help: 'Request body complete to the last dispatch, of every request that was dispatched.',
  },
  tpot: {
    type: 'histogram',
    name: 'weir_tpot_seconds',
    unit: 'seconds',
    labels: ['class', 'pool'],
    buckets: TPOT,
    help: 'Mean time per output token after the first, of streams with two tokens or more.',
  },
  e2e: {
    type: 'histogram',
    name: 'weir_e2e_seconds',
    unit: 'seconds',
    labels: ['class', 'pool'],
    buckets: E2E,
    help: 'Arrival to the last output.',
  },
  longestGap: {
    type: 'histogram',
    name: 'weir_longest_gap_seconds',
    unit: 'seconds',
    labels: ['class', 'pool'],
    buckets: WAIT,
    help: 'Longest silence between two output events of one stream; TPOT cannot see it.',
  },
  tokens: {
    type: 'counter',
    name: 'weir_tokens_total',
    unit: 'tokens',
    labels: ['class', 'pool', 'kind'],
    help: 'Tokens of answers that began: input, output, and output_good for the output of good ones.',
  },
  usageMissing: {
    type: 'counter',
    name: 'weir_usage_missing_total',
    unit: 'requests',
    labels: ['pool'],
    help: 'Answers without usage, so their output tokens were estimated.',
  },
  unparsed: {
    type: 'counter',
    name: 'weir_unparsed_events_total',
    unit: 'events',
    labels: ['pool'],
    help: 'Stream events passed on unread: over the size limit, or not JSON.',
  },
  members: {
    type: 'counter',
    name: 'weir_body_members_total',
    unit: 'members',
    labels: ['pool', 'action'],
    help: 'Engine controls in bodies: refused, or replaced by the class priority.',
  },
  shed: {
    type: 'counter',
    name: 'weir_shed_total',
    unit: 'requests',
    labels: ['class', 'reason'],
    help: 'Requests refused for load, by reason.',
  },
  spill: {
    type: 'counter',
    name: 'weir_spill_total',
    unit: 'requests',
    labels: ['class', 'from', 'to'],
    help: 'Requests sent to another pool because home had no room.',
  },
  reroute: {
    type: 'counter',
    name: 'weir_reroute_total',
    unit: 'requests',
    labels: ['pool', 'reason'],
    help: 'Requests tried again elsewhere, by the pool that failed them and how.',
  },
  groupService: {
    type: 'gauge',
    name: 'weir_group_service_ratio',
    unit: 'ratio',
    labels: ['class', 'group'],
    help: 'Share of a group of arrivals that was admitted, times the share of those that was good: prompt sizes by quartile (q1 the shortest), a class that waits as a whole (all).',
  },
  queueDepth: {
    type: 'gauge',
    name: 'weir_queue_depth',
    unit: 'requests',
    labels: ['class'],
    help: 'Requests held in Weir, not yet sent.',
  },
  inFlight: {
    type: 'gauge',
    name: 'weir_in_flight',
    unit: 'requests',
    labels: ['pool', 'replica'],
    help: 'Requests a replica is working on for this Weir.',
  },
  replicaUp: {
    type: 'gauge',
    name: 'weir_replica_up',
    unit: 'none',
    labels: ['pool', 'replica'],
    help: '1 where the replica takes requests, 0 where it is ejected.',
  },
  outstandingPrefill: {
    type: 'gauge',
    name: 'weir_replica_outstanding_prefill_tokens',
    unit: 'tokens',
    labels: ['pool', 'replica'],
    help: 'Prompt tokens sent to a replica whose first output has not come.',
  },
  goodputRequests: {
    type: 'gauge',
    name: 'weir_goodput_requests_per_second',
    unit: 'requests/s',
    labels: ['class', 'pool'],
    help: 'Good requests per second, by their end.',
  },
  goodputTokens: {
    type: 'gauge',
    name: 'weir_goodput_tokens_per_second_per_gpu',
    unit: 'tokens/s/GPU',
    labels: ['class', 'pool'],
    help: 'Output tokens of good requests, per second and per GPU of the replicas that are up.',
  },
  attainment: {
    type: 'gauge',
    name: 'weir_attainment_ratio',
    unit: 'ratio',
    labels: ['class', 'slo', 'clause', 'window'],
    help: 'Share of the requests that met the clause, those under way that have lost it included.',
  },
  burnRate: {
    type: 'gauge',
    name: 'weir_burn_rate',
    unit: 'ratio',
    labels: ['class', 'slo', 'window'],
    help: 'Share of misses over the share that may miss: 1 spends the error budget in just its period.',
  },
  budget: {
    type: 'gauge',
    name: 'weir_error_budget_remaining_ratio',
    unit: 'ratio',
    labels: ['class', 'slo'],
    help: 'Share of the error budget of the whole period that is left; below 0 where it is overspent.',
  },
  drift: {
    type: 'gauge',
    name: 'weir_workload_drift_ratio',
    unit: 'ratio',
    labels: ['class', 'dimension'],
    help: 'How far traffic is from the workload of the SLO; above 1 the SLO was not stated for it.',
  },
  demandRatio: {
    type: 'gauge',
    name: 'weir_demand_ratio',
    unit: 'ratio',
    labels: ['pool'],
    help: 'Work asked for, what was shed included, over what the pool can serve within its SLOs; scale at 0.7.',
  },
  headroomRatio: {
    type: 'gauge',
    name: 'weir_headroom_ratio',
    unit: 'ratio',
    labels: ['pool'],
    help: 'Share of what the pool can serve within its SLOs that is left; below 0 more is asked for.',
  },
  headroomRequests: {
    type: 'gauge',
    name: 'weir_headroom_requests_per_second',
    unit: 'requests/s',
    labels: ['class', 'pool'],
    help: 'Requests that could come on top within the SLOs, if that class alone grew.',
  },
  capacity: {
    type: 'gauge',
    name: 'weir_capacity_work_per_second',
    unit: 'GPU s/s',
    labels: ['pool', 'source'],
    help: 'Work that the replicas which are up can serve within the SLOs, and where that is known from.',
  },
  desiredReplicas: {
    type: 'gauge',
    name: 'weir_desired_replicas',
    unit: 'replicas',
    labels: ['pool'],
    help: 'Replicas that the pool should have, ahead of a rise and slow to fall.',
  },
  predictionError: {
    type: 'gauge',
    name: 'weir_prediction_error_ratio',
    unit: 'ratio',
    labels: ['pool', 'kind'],
    help: 'Median size of what TTFT and TPOT, as predicted at dispatch, were off by; of the last 512.',
  },
  diagnosis: {
    type: 'gauge',
    name: 'weir_diagnosis',
    unit: 'ratio',
    labels: ['pool', 'clause', 'cause'],
    help: 'There while something is wrong: the clause that moved, why, and the share of the excess it explains.',
  },
  overhead: {
    type: 'histogram',
    name: 'weir_relay_overhead_seconds',
    unit: 'seconds',
    labels: [],
    buckets: { from: 0.00001, to: 1, perDecade: 5, bounds: undefined },
    help: 'Own time of Weir in one request: before dispatch, and in the first event.',
  },
  eventLoopDelay: {
    type: 'histogram',
    name: 'weir_event_loop_delay_seconds',
    unit: 'seconds',
    labels: [],
    buckets: { from: 0.001, to: 10, perDecade: 5, bounds: undefined },
    help: 'How late a timer due every 20 ms fired: a busy process relays late.',
  },
  configReloads: {
    type: 'counter',
    name: 'weir_config_reloads_total',
    unit: 'reloads',
    labels: [],
    help: 'Times a changed config was taken over since the start.',
  },
  buildInfo: {
    type: 'gauge',
    name: 'weir_build_info',
    unit: 'none',
    labels: ['version', 'node'],
    help: 'Always 1: the version of Weir, and of the Node it runs on.',
  },
} as const satisfies Readonly<Record<string, PlainSpec | HistogramSpec>>
