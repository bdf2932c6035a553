import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { startEngine } from '../../src/sim/server.js'
import { type EngineGauges, engineRates } from '../../src/slo/engine-gauges.js'
import {
  EngineScraper,
  type EngineScraperOptions,
  parseEngineGauges,
} from '../../src/upstream/engine-gauges.js'

const NOTHING: EngineGauges = {
  running: undefined,
  waiting: undefined,
  kvUsage: undefined,
  kvTokens: undefined,
  preemptionsTotal: undefined,
  prefixHitsTotal: undefined,
  prefixQueriesTotal: undefined,
  prefixHitShare: undefined,
}

/** Pages as the engines write them, cut down to what matters and what could be taken for it. */
const PAGES: readonly (readonly [string, string, string, Partial<EngineGauges>])[] = [
  [
    'vLLM V0',
    'vllm',
    `# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="meta-llama/Llama-3.1-8B"} 7.0
vllm:num_requests_swapped{model_name="meta-llama/Llama-3.1-8B"} 0.0
vllm:num_requests_waiting{model_name="meta-llama/Llama-3.1-8B"} 2.0
vllm:gpu_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"} 0.8125
vllm:cpu_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"} 0.0
vllm:gpu_prefix_cache_hit_rate{model_name="meta-llama/Llama-3.1-8B"} -1.0
vllm:num_preemptions_total{model_name="meta-llama/Llama-3.1-8B"} 3.0
vllm:num_preemptions_created{model_name="meta-llama/Llama-3.1-8B"} 1.7e+09
vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0
`,
    { running: 7, waiting: 2, kvUsage: 0.8125, preemptionsTotal: 3 },
  ],
  [
    'vLLM V1 with two ranks, old and new name of the KV gauge',
    'vllm',
    `vllm:num_requests_running{engine="0",model_name="a } b \\" vllm:num_requests_running{} 9"} 5.0
vllm:num_requests_running{engine="1",model_name="a"} 6.0
vllm:num_requests_waiting{engine="0",model_name="a"} 0.0
vllm:num_requests_waiting{engine="1",model_name="a"} 4.0
vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 40
vllm:gpu_cache_usage_perc{engine="0"} 0.1
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.99
vllm:num_preemptions_total{engine="0"} 1
vllm:num_preemptions_total{engine="1"} 11
vllm:prefix_cache_queries_total{engine="0"} 1e+06
vllm:prefix_cache_hits_total{engine="0"} 2.5e+05 1760000000000
vllm:external_prefix_cache_hits_total{engine="0"} 77
vllm:cache_config_info{block_size="16",cpu_block_size="7",engine="0",num_gpu_blocks="28125"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="20000"} 1
`,
    {
      running: 11,
      waiting: 4,
      kvUsage: 0.99,
      kvTokens: 320_000,
      preemptionsTotal: 12,
      prefixQueriesTotal: 1e6,
      prefixHitsTotal: 2.5e5,
    },
  ],
  [
    'SGLang before 0.5.4',
    'sglang',
    `sglang:num_running_reqs{model_name="m"} 162.0
sglang:num_queue_reqs{model_name="m"} 2826.0
sglang:token_usage{model_name="m"} 0.28
sglang:cache_hit_rate{model_name="m"} 0.007507552643049313
sglang:num_retracted_reqs{model_name="m"} 0.0
sglang:cache_config_info{num_pages="5000",page_size="64"} 1
`,
    { running: 162, waiting: 2826, kvUsage: 0.28, kvTokens: 320_000, prefixHitShare: 0.007507552643049313 },
  ],
  [
    'SGLang from 0.5.4 on',
    'sglang',
    'sglang_num_running_reqs{dp_rank="0"} 3\nsglang_num_queue_reqs{dp_rank="0"} 0\nsglang_token_usage{dp_rank="0"} 1\nsglang_cache_hit_rate{dp_rank="0"} 0.5',
    { running: 3, waiting: 0, kvUsage: 1, prefixHitShare: 0.5 },
  ],
  [
    'trtllm-serve',
    'trtllm',
    'trtllm_num_requests_running 4\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.5\ntrtllm_kv_cache_hit_rate 0.75\ntrtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 1000\n',
    { running: 4, waiting: 1, kvUsage: 0.5, kvTokens: 32_000, prefixHitShare: 0.75 },
  ],
  [
    'Triton with TensorRT-LLM',
    'trtllm',
    `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 9
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm"} 600
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.6
`,
    { running: 5, waiting: 4, kvUsage: 0.6 },
  ],
  [
    'llama.cpp',
    'llamacpp',
    'llamacpp:predicted_tokens_seconds 31.2\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n',
    { running: 1, waiting: 0 },
  ],
]

t.test('each engine is known by its names, and told figures are the only figures', async t => {
  for (const [name, engine, page, told] of PAGES) {
    const expected = { engine, gauges: { ...NOTHING, ...told } }
    t.same(parseEngineGauges(page, 'auto'), expected, name)
    t.same(parseEngineGauges(page, engine as 'vllm'), expected, `${name}, as configured`)
    t.same(parseEngineGauges(page.replaceAll('\n', '\r\n'), 'auto'), expected, `${name}, with CRLF`)
    t.equal(
      parseEngineGauges(page, engine === 'llamacpp' ? 'vllm' : 'llamacpp'),
      undefined,
      `${name}, as another`,
    )
  }
  t.equal(
    parseEngineGauges('# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 3\n', 'auto'),
    undefined,
  )
  t.equal(
    parseEngineGauges(PAGES[0]?.[2] ?? '', 'openai'),
    undefined,
    'an engine that speaks for none is not read',
  )
})

t.test('what makes no sense is unknown, not 0', async t => {
  const nonsense = (value: string) =>
    parseEngineGauges(
      `vllm:num_requests_running ${value}\nvllm:kv_cache_usage_perc ${value}\nvllm:num_requests_waiting 3\n`,
      'auto',
    )?.gauges
  for (const value of ['NaN', '-1', '+Inf', '-Inf', 'seven']) {
    t.same(nonsense(value), { ...NOTHING, waiting: 3 }, value)
  }
  t.equal(nonsense('0')?.running, 0, 'and 0 is 0')
  t.equal(nonsense('57')?.kvUsage, undefined, 'a share is not above 1: it is no percentage')
})

t.test('counters become rates by two looks', async t => {
  const at = (preemptionsTotal: number | undefined, hits?: number, queries?: number): EngineGauges => ({
    ...NOTHING,
    preemptionsTotal,
    prefixHitsTotal: hits,
    prefixQueriesTotal: queries,
    prefixHitShare: 0.1,
  })
  t.same(engineRates(at(3, 100, 1000), at(5, 400, 1600), 30_000), {
    spanMs: 30_000,
    preemptionsPerMinute: 4,
    prefixHitShare: 0.5,
  })
  t.same(engineRates(at(5), at(2), 500), {
    spanMs: 500,
    preemptionsPerMinute: undefined,
    prefixHitShare: 0.1,
  })
  t.equal(engineRates(at(undefined), at(2), 500).preemptionsPerMinute, undefined)
  t.equal(
    engineRates(at(2, 5, 9), at(2, 5, 9), 500).prefixHitShare,
    0.1,
    'no look-ups in between say nothing',
  )
})

const clock = { now: () => performance.now() }

async function serve(t: Test, listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await new Promise(resolve => server.once('listening', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/metrics`
}

/** A scraper, and what it tells, in order. */
function scraper(t: Test, url: string, over: Partial<EngineScraperOptions> = {}) {
  const told: (EngineGauges | string)[] = []
  let wake: () => void = () => undefined
  const tell = (one: EngineGauges | string): void => {
    told.push(one)
    wake()
  }
  const one = new EngineScraper({ url, engine: 'auto', clock, read: tell, failed: tell, ...over })
  t.teardown(() => one.stop())
  const until = async (count: number): Promise<void> => {
    while (told.length < count) await new Promise<void>(resolve => (wake = resolve))
  }
  return { one, told, until }
}

t.test('a simulated engine is read as it is', async t => {
  const engine = await startEngine({ profile: 'worked-example' })
  t.teardown(() => engine.close())
  const answer = await fetch(`${engine.url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({ messages: [{ role: 'user', content: 'x'.repeat(6400) }], max_tokens: 4 }),
    headers: { 'content-type': 'application/json', 'x-engine-output-tokens': '3' },
  })
  await answer.text()
  const { one, told, until } = scraper(t, `${engine.url}/metrics`)
  t.equal(one.latest(clock.now()), undefined, 'nothing is known before the first scrape')
  one.start()
  await until(1)
  t.same(told[0], {
    running: 0,
    waiting: 0,
    kvUsage: 0,
    kvTokens: 450_000,
    preemptionsTotal: 0,
    prefixHitsTotal: 0,
    prefixQueriesTotal: 1600,
    prefixHitShare: undefined,
  })
  t.equal(one.engine, 'vllm')
  t.same(one.latest(clock.now()), told[0])
  t.equal(one.latest(clock.now() + 3100), undefined, 'what is old is unknown')
})

t.test('one scrape at a time, twice as often under pressure, and none after the stop', async t => {
  let [open, most, scrapes] = [0, 0, 0]
  const at: number[] = []
  const url = await serve(t, (_, response) => {
    open++
    scrapes++
    at.push(performance.now())
    most = Math.max(most, open)
    setTimeout(() => {
      open--
      response.end('vllm:num_requests_running 1\n')
    }, 100)
  })
  const { one, until } = scraper(t, url)
  one.start()
  one.start()
  await until(2)
  const relaxed = (at[1] ?? 0) - (at[0] ?? 0)
  t.ok(relaxed >= 300, `half a second apart: ${relaxed} ms`)
  one.pressed = true
  await until(6)
  // The shortest of three: a machine that stalls makes one of them long.
  const pressed = Math.min(...[3, 4, 5].map(i => (at[i] ?? 0) - (at[i - 1] ?? 0)))
  t.ok(pressed >= 100 && pressed < relaxed, `a quarter of a second apart: ${pressed} ms`)
  t.equal(most, 1)
  await one.stop()
  const before = scrapes
  one.start()
  await new Promise(resolve => setTimeout(resolve, 350))
  t.equal(scrapes, before)
})

t.test('a page that fails is told once in words, asked less and less often, and found again', async t => {
  let broken = true
  const at: number[] = []
  const url = await serve(t, (_, response) => {
    at.push(performance.now())
    response.statusCode = broken ? 404 : 200
    response.end('sglang_num_running_reqs 2\n')
  })
  const { one, told, until } = scraper(t, url)
  one.pressed = true
  one.start()
  await until(1)
  while (at.length < 3) await new Promise(resolve => setTimeout(resolve, 50))
  broken = false
  await until(2)
  t.same(told, ['its metrics answer 404', { ...NOTHING, running: 2 }])
  const pauses = at.slice(1, 3).map((time, i) => time - (at[i] ?? 0))
  t.ok((pauses[0] ?? 0) >= 950 && (pauses[1] ?? 0) >= 1900, `pauses of ${pauses} ms`)
})

t.test('what is too long, too slow, foreign or not there is a failure with its own words', async t => {
  const urlOf = (listener: RequestListener) => serve(t, listener)
  const long = await urlOf((_, response) => response.end('vllm:num_requests_running 1\n'.repeat(100)))
  const slow = await urlOf((_, response) => response.write('vllm:num_requests_running 1\n'))
  const foreign = await urlOf((_, response) => response.end('<html></html>'))
  const cases: [string, Partial<EngineScraperOptions>, string][] = [
    [long, { maxBytes: 1000 }, 'its metrics are longer than 1000 bytes'],
    [slow, { timeoutMs: 100 }, 'its metrics do not come in time'],
    [foreign, {}, 'its metrics have no name of a known engine'],
    ['http://127.0.0.1:1/metrics', {}, 'ECONNREFUSED'],
  ]
  for (const [url, over, words] of cases) {
    const { one, told, until } = scraper(t, url, over)
    one.start()
    await until(1)
    t.same(told, [words])
    t.equal(one.latest(clock.now()), undefined)
    await one.stop()
  }
})

t.test('a stop in the middle of a scrape ends it and tells nothing', async t => {
  let closed: () => void = () => undefined
  const gone = new Promise<void>(resolve => (closed = resolve))
  let asked: () => void = () => undefined
  const came = new Promise<void>(resolve => (asked = resolve))
  const url = await serve(t, (_, response) => {
    response.once('close', closed)
    asked()
  })
  const { one, told } = scraper(t, url)
  one.start()
  await came
  await one.stop()
  await gone
  t.same(told, [])
})
