/** The metrics of a simulated engine, as vLLM V1 names them, in Prometheus text. */
import type { Ms } from '../time.js'
import type { Engine } from './engine.js'
import { BLOCK_TOKENS } from './kv-cache.js'

// Names and buckets: vllm/v1/metrics/loggers.py; seconds.
const TTFT = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
  2560,
]
const GAP = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
const REQUEST = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]

class Histogram {
  readonly #buckets: readonly number[]
  readonly #counts: number[]
  #sum = 0

  constructor(buckets: readonly number[]) {
    this.#buckets = buckets
    this.#counts = new Array<number>(buckets.length + 1).fill(0)
  }

  observe(ms: Ms): void {
    const seconds = ms / 1000
    let at = 0
    while (at < this.#buckets.length && seconds > (this.#buckets[at] as number)) at++
    this.#counts[at] = (this.#counts[at] as number) + 1
    this.#sum += seconds
  }

  lines(name: string, labels: string): string[] {
    let count = 0
    const lines = this.#counts.map((inBucket, at) => {
      count += inBucket
      return `${name}_bucket{${labels},le="${this.#buckets[at] ?? '+Inf'}"} ${count}`
    })
    return [...lines, `${name}_sum{${labels}} ${this.#sum}`, `${name}_count{${labels}} ${count}`]
  }
}

export type Finish = 'stop' | 'length' | 'abort' | 'error'

export class EngineMetrics {
  readonly ttft = new Histogram(TTFT)
  /** One observation an iteration and sequence, however many tokens it brought. */
  readonly gap = new Histogram(GAP)
  readonly endToEnd = new Histogram(REQUEST)
  readonly queueTime = new Histogram(REQUEST)
  readonly finished: Record<Finish, number> = { stop: 0, length: 0, abort: 0, error: 0 }

  /** Text for a scrape. */
  render(
    engine: Pick<Engine, 'running' | 'waiting' | 'kvUsage' | 'kvBlocks' | 'totals'>,
    model: string,
  ): string {
    const labels = `engine="0",model_name="${model}"`
    const { totals } = engine
    const out: string[] = []
    const metric = (name: string, type: string, help: string, lines: string[]): void => {
      out.push(`# HELP vllm:${name} ${help}`, `# TYPE vllm:${name} ${type}`, ...lines)
    }
    const number = (name: string, type: 'gauge' | 'counter', help: string, value: number): void =>
      metric(name, type, help, [`vllm:${name}{${labels}} ${value}`])
    const histogram = (name: string, help: string, values: Histogram): void =>
      metric(name, 'histogram', help, values.lines(`vllm:${name}`, labels))

    number('num_requests_running', 'gauge', 'Requests in the batch.', engine.running)
    number('num_requests_waiting', 'gauge', 'Requests waiting to be processed.', engine.waiting)
    number('kv_cache_usage_perc', 'gauge', 'KV cache in use, 1 means all of it.', engine.kvUsage)
    number('num_preemptions_total', 'counter', 'Preemptions.', totals.preemptions)
    number(
      'prefix_cache_queries_total',
      'counter',
      'Tokens looked up in the prefix cache.',
      totals.prefixQueries,
    )
    number('prefix_cache_hits_total', 'counter', 'Tokens found in the prefix cache.', totals.prefixHits)
    number('prompt_tokens_total', 'counter', 'Prefill tokens processed.', totals.promptTokens)
    number('generation_tokens_total', 'counter', 'Generation tokens processed.', totals.generationTokens)
    metric(
      'request_success_total',
      'counter',
      'Requests that ended, by reason.',
      Object.entries(this.finished).map(
        ([reason, count]) => `vllm:request_success_total{${labels},finished_reason="${reason}"} ${count}`,
      ),
    )
    histogram('time_to_first_token_seconds', 'Arrival to first token.', this.ttft)
    histogram('inter_token_latency_seconds', 'Between the token steps of a request.', this.gap)
    histogram('e2e_request_latency_seconds', 'Arrival to last token.', this.endToEnd)
    histogram('request_queue_time_seconds', 'Time spent waiting.', this.queueTime)
    metric('cache_config_info', 'gauge', 'KV cache layout.', [
      `vllm:cache_config_info{block_size="${BLOCK_TOKENS}",enable_prefix_caching="True",engine="0",num_gpu_blocks="${engine.kvBlocks}"} 1`,
    ])
    return `${out.join('\n')}\n`
  }
}
