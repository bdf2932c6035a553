/** Engine gauges from `GET /metrics`: what each kind of engine calls them, and a scraper that asks at intervals. */
import { request } from 'undici'
import type { EngineGauges } from '../slo/engine-gauges.js'
import type { Clock, Ms } from '../time.js'

/** `trtllm` is trtllm-serve or Triton with its TensorRT-LLM backend; one `openai` speaks for none. */
export type EngineKind = 'vllm' | 'sglang' | 'trtllm' | 'llamacpp' | 'openai'

/** Where a figure stands: a name, and the label that picks its series, where there is one. */
interface Source {
  readonly name: string
  readonly label?: string
}

type Figure = keyof EngineGauges

/** The names of one engine, or of one era of it; of several sources the first that is there counts. */
interface Dialect {
  readonly engine: EngineKind
  readonly sources: Readonly<Partial<Record<Exclude<Figure, 'kvTokens'>, readonly Source[]>>>
  /** What tells the size of its KV memory: one series with both numbers as labels, or two series. */
  readonly kv?:
    | { readonly info: string; readonly block: string; readonly blocks: string }
    | readonly [string, string]
}

const names = (...list: string[]): Source[] => list.map(name => ({ name }))

const sglang = (prefix: string): Dialect => ({
  engine: 'sglang',
  kv: { info: `${prefix}cache_config_info`, block: 'page_size', blocks: 'num_pages' },
  sources: {
    running: names(`${prefix}num_running_reqs`),
    waiting: names(`${prefix}num_queue_reqs`),
    kvUsage: names(`${prefix}token_usage`),
    prefixHitShare: names(`${prefix}cache_hit_rate`),
  },
})

/**
 * An engine is known by its name for running requests. vLLM's V1 renamed the KV gauge and gave up the hit rate for two
 * counters; while it emits old and new names, the new one counts. Source: metrics code of the engines, summer 2026.
 */
const DIALECTS: readonly Dialect[] = [
  {
    engine: 'vllm',
    kv: { info: 'vllm:cache_config_info', block: 'block_size', blocks: 'num_gpu_blocks' },
    sources: {
      running: names('vllm:num_requests_running'),
      waiting: names('vllm:num_requests_waiting'),
      kvUsage: names('vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'),
      preemptionsTotal: names('vllm:num_preemptions_total'),
      prefixHitsTotal: names('vllm:prefix_cache_hits_total'),
      prefixQueriesTotal: names('vllm:prefix_cache_queries_total'),
      prefixHitShare: names('vllm:gpu_prefix_cache_hit_rate'),
    },
  },
  sglang('sglang:'),
  // From v0.5.4 on.
  sglang('sglang_'),
  {
    engine: 'trtllm',
    kv: ['trtllm_kv_cache_tokens_per_block', 'trtllm_kv_cache_max_blocks'],
    sources: {
      running: names('trtllm_num_requests_running'),
      waiting: names('trtllm_num_requests_waiting'),
      kvUsage: names('trtllm_kv_cache_utilization'),
      prefixHitShare: names('trtllm_kv_cache_hit_rate'),
    },
  },
  {
    engine: 'trtllm',
    sources: {
      running: [{ name: 'nv_trt_llm_request_metrics', label: 'request_type="scheduled"' }],
      waiting: [{ name: 'nv_trt_llm_request_metrics', label: 'request_type="waiting"' }],
      kvUsage: [{ name: 'nv_trt_llm_kv_cache_block_metrics', label: 'kv_cache_block_type="fraction"' }],
    },
  },
  {
    engine: 'llamacpp',
    sources: {
      running: names('llamacpp:requests_processing'),
      waiting: names('llamacpp:requests_deferred'),
    },
  },
]

/** Figures that are shares, and so are not added up over ranks. */
const SHARES: ReadonlySet<Figure> = new Set<Figure>(['kvUsage', 'prefixHitShare'])

/**
 * Reads Prometheus text.
 * @param engine  `auto` takes the first dialect that the text has names of
 * @returns undefined where no name of that engine is in it
 */
export function parseEngineGauges(
  text: string,
  engine: EngineKind | 'auto',
): { readonly engine: EngineKind; readonly gauges: EngineGauges } | undefined {
  for (const dialect of DIALECTS) {
    if (engine !== 'auto' && engine !== dialect.engine) continue
    const gauges = gaugesOf(text, dialect)
    if (Object.values(gauges).some(value => value !== undefined)) return { engine: dialect.engine, gauges }
  }
  return undefined
}

function gaugesOf(text: string, { sources, kv }: Dialect): EngineGauges {
  const read = (figure: Exclude<Figure, 'kvTokens'>): number | undefined => {
    for (const source of sources[figure] ?? []) {
      const values = seriesOf(text, source)
      if (values.length > 0) return SHARES.has(figure) ? shareOf(values, figure) : sumOf(values)
    }
    return undefined
  }
  return {
    running: read('running'),
    waiting: read('waiting'),
    kvUsage: read('kvUsage'),
    kvTokens: kv && kvTokensOf(text, kv),
    preemptionsTotal: read('preemptionsTotal'),
    prefixHitsTotal: read('prefixHitsTotal'),
    prefixQueriesTotal: read('prefixQueriesTotal'),
    prefixHitShare: read('prefixHitShare'),
  }
}

/** Of the smallest rank: a request lies in one. undefined where it is not told, or is no size. */
function kvTokensOf(text: string, kv: NonNullable<Dialect['kv']>): number | undefined {
  let sizes: number[]
  if ('info' in kv) {
    const number = (labels: string, name: string): number =>
      Number(new RegExp(`[{,]${name}="(\\d+)"`).exec(labels)?.[1])
    sizes = linesOf(text, { name: kv.info }).map(
      ({ labels }) => number(labels, kv.block) * number(labels, kv.blocks),
    )
  } else {
    const [perBlock, blocks] = kv.map(name => seriesOf(text, { name }))
    sizes = (blocks ?? []).map(count => count * (perBlock?.[0] ?? Number.NaN))
  }
  return sizes.length > 0 && sizes.every(size => size > 0 && size < Infinity) ? Math.min(...sizes) : undefined
}

function sumOf(values: readonly number[]): number | undefined {
  return values.every(value => value >= 0 && value < Infinity)
    ? values.reduce((sum, one) => sum + one, 0)
    : undefined
}

/** A mean over ranks would hide a full one; vLLM V0 writes -1 where it does not count hits. */
function shareOf(values: readonly number[], figure: Figure): number | undefined {
  if (!values.every(value => value >= 0 && value <= 1)) return undefined
  return figure === 'kvUsage'
    ? Math.max(...values)
    : values.reduce((sum, one) => sum + one, 0) / values.length
}

/** Values of the series of one name. */
function seriesOf(text: string, source: Source): number[] {
  return linesOf(text, source).map(({ value }) => value)
}

/** Series of one name. Only lines with that name are looked at: a page has thousands of others. */
function linesOf(
  text: string,
  { name, label }: Source,
): { readonly labels: string; readonly value: number }[] {
  const lines: { labels: string; value: number }[] = []
  for (let at = text.indexOf(name); at >= 0; at = text.indexOf(name, at + name.length)) {
    if (at > 0 && text[at - 1] !== '\n') continue
    const found = text.indexOf('\n', at)
    const line = text.slice(at + name.length, found < 0 ? text.length : found)
    const series = /^(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)/.exec(line)
    if (series === null || (label !== undefined && !series[1]?.includes(label))) continue
    lines.push({ labels: series[1] ?? '', value: numberOf(series[2]) })
  }
  return lines
}

/** As Prometheus writes numbers; NaN for what is none. */
function numberOf(text: string | undefined): number {
  if (text === '+Inf' || text === '-Inf') return text === '+Inf' ? Infinity : -Infinity
  return text === undefined ? Number.NaN : Number(text)
}

/** Sources of the defaults: algorithms 6.2. */
const INTERVAL_MS: Ms = 500
const PRESSED_MS: Ms = 250
const TIMEOUT_MS: Ms = 2000
/** Longest pause after failures. */
const BACKOFF_MS: Ms = 30_000
/** A page of vLLM has about 100 kB. */
const MAX_BYTES = 4 * 1024 * 1024
/** What is older is not what the engine is like now. */
const STALE_MS: Ms = 3000

export interface EngineScraperOptions {
  /** Whole URL of the metrics: trtllm-serve has them below a path of its own. */
  readonly url: string
  readonly engine: EngineKind | 'auto'
  /** Sent as bearer token. */
  readonly apiKey?: string | undefined
  readonly clock: Clock
  /** Told of each reading; and of the first failure after a success, in words without the URL. */
  readonly read: (gauges: EngineGauges, now: Ms) => void
  readonly failed?: (why: string) => void
  readonly timeoutMs?: Ms
  readonly maxBytes?: number
}

/**
 * Scrapes one replica, never twice at once: the next scrape is planned when the last has ended. After a failure the
 * pause doubles, to 30 s at most.
 */
export class EngineScraper {
  /** Asks twice as often. */
  pressed = false
  readonly #options: EngineScraperOptions
  #timer: NodeJS.Timeout | undefined
  #abort: AbortController | undefined
  #scrape: Promise<void> | undefined
  #stopped = false
  #failures = 0
  #latest: { readonly gauges: EngineGauges; readonly at: Ms } | undefined
  /** What the page was found to be; found anew after a failure, for another engine may answer then. */
  #engine: EngineKind | undefined

  constructor(options: EngineScraperOptions) {
    this.#options = options
  }

  /** The kind of engine, once a page told it. */
  get engine(): EngineKind | undefined {
    return this.#engine
  }

  /** The last reading; undefined while there is none, or none of the last 3 s. */
  latest(now: Ms): EngineGauges | undefined {
    return this.#latest !== undefined && now - this.#latest.at <= STALE_MS ? this.#latest.gauges : undefined
  }

  /** Begins with a scrape at once. */
  start(): void {
    if (this.#stopped || this.#scrape !== undefined || this.#timer !== undefined) return
    this.#run()
  }

  /** Ends a scrape that is under way; when it resolves nothing is left, and nothing is told any more. */
  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#timer)
    this.#abort?.abort()
    await this.#scrape
  }

  #run(): void {
    this.#timer = undefined
    const { clock } = this.#options
    const from = clock.now()
    this.#scrape = this.#once().then(
      ({ engine, gauges }) => {
        if (this.#stopped) return
        this.#failures = 0
        this.#engine = engine
        const now = clock.now()
        this.#latest = { gauges, at: now }
        this.#options.read(gauges, now)
      },
      (error: unknown) => {
        if (this.#stopped) return
        this.#failures++
        this.#engine = undefined
        if (this.#failures === 1) this.#options.failed?.(reasonOf(error))
      },
    )
    void this.#scrape.finally(() => {
      this.#scrape = undefined
      if (this.#stopped) return
      const interval = this.pressed && this.#failures === 0 ? PRESSED_MS : INTERVAL_MS
      const pause = Math.min(BACKOFF_MS, interval * 2 ** Math.min(this.#failures, 16))
      this.#timer = setTimeout(() => this.#run(), Math.max(0, pause - (clock.now() - from)))
      this.#timer.unref()
    })
  }

  async #once(): Promise<NonNullable<ReturnType<typeof parseEngineGauges>>> {
    const { url, apiKey, timeoutMs = TIMEOUT_MS, maxBytes = MAX_BYTES } = this.#options
    this.#abort = new AbortController()
    const signal = AbortSignal.any([this.#abort.signal, AbortSignal.timeout(timeoutMs)])
    const headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }
    const { statusCode, body } = await request(url, { signal, headers })
    if (statusCode !== 200) {
      await body.dump().catch(() => undefined)
      throw new Error(`its metrics answer ${statusCode}`)
    }
    const chunks: Buffer[] = []
    let bytes = 0
    for await (const chunk of body as AsyncIterable<Buffer>) {
      bytes += chunk.length
      if (bytes > maxBytes) throw new Error(`its metrics are longer than ${maxBytes} bytes`)
      chunks.push(chunk)
    }
    const found = parseEngineGauges(Buffer.concat(chunks).toString(), this.#engine ?? this.#options.engine)
    if (found === undefined) throw new Error('its metrics have no name of a known engine')
    return found
  }
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return 'its metrics do not come in time'
  return 'code' in error && typeof error.code === 'string' ? error.code : error.message
}
