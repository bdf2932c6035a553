/** The config of `weir serve --upstream`: upstreams alone are known, so the promises and the traffic are assumed. */
import { type Loaded, loadData, type Overrides } from './load.js'

/** Azure's conversation trace of 2023: 19,366 requests (AzurePublicDataset, AzureLLMInferenceTrace_conv). */
const AZURE_CONVERSATIONS = {
  input_tokens: { p50: 1020, p90: 2734 },
  output_tokens: { p50: 129, p90: 424 },
} as const

/**
 * One pool of the upstreams, the default classes chat and agent over it.
 * @param upstreams  their URLs, with or without `/v1`
 * @param models     what their `/v1/models` names; with a single one the pool serves that, else any
 * @param options    addresses of the two listeners, and Weir's own credential for the upstreams
 */
export function assumedConfig(
  upstreams: readonly string[],
  models: readonly string[],
  { apiKey, ...overrides }: Assumed = {},
): Loaded {
  const [model, ...more] = models
  const workload = { model: model ?? 'unknown', ...AZURE_CONVERSATIONS }
  const data = {
    classes: {
      chat: {
        slo: { target: { percentile: 90, ttft: '500ms', tpot: '40ms' } },
        workload,
        priority: 0,
        pools: ['upstream'],
      },
      agent: {
        slo: { target: { percentile: 95, deadline: '60s' } },
        workload,
        priority: 1,
        pools: ['upstream'],
        queue: { max: 500, wait: '55s' },
      },
    },
    pools: {
      upstream: {
        model: model === undefined || more.length > 0 ? '*' : model,
        replicas: [...upstreams],
        api_key: apiKey ?? '',
        allow: ['embeddings', 'audio', 'images', 'files', 'rerank', 'tokenize'],
      },
    },
    routes: [
      { when: { header: { 'x-weir-class': 'agent' } }, class: 'agent' },
      { when: { stream: false }, class: 'agent' },
      { class: 'chat' },
    ],
  }
  return loadData(data, '--upstream', overrides)
}

export interface Assumed extends Pick<Overrides, 'listen' | 'admin'> {
  readonly apiKey?: string
}
