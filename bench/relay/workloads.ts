/** What the proxies are put to: each workload with the upstream's and the load generator's options. */

export interface Workload {
  readonly what: string
  readonly upstream: readonly string[]
  readonly warmup: readonly string[]
  readonly load: readonly string[]
  /** Whom it runs by default: some are far past what they carry, and some it cannot tell apart. */
  readonly contenders: readonly string[]
  /** About how long one run takes, s. */
  readonly seconds: number
}

const WEIR = ['weir', 'weir-node24']
const PEERS = ['nginx', 'haproxy', 'fastify-http-proxy-10k', 'http-proxy-3']
const ROUTERS = ['vllm-router', 'smg']
const SLOW = ['fastify-http-proxy', 'portkey']

/** For just-in-time compilers; not measured. */
const STREAM_WARMUP = args('--concurrency 100 --duration 3 --ramp 0.2 --drain 0')

/** 150 streams of 5 s, arrivals by Poisson, one message each 2 KB. */
function prompt(size: string, bytes: number, contenders: readonly string[]): Workload {
  const body = ['--prompt-bytes', String(bytes), '--messages', String(Math.max(1, Math.round(bytes / 2000)))]
  return {
    what: `prompts of ${size}, 30 requests/s by Poisson, 150 streams open`,
    upstream: args('--tokens 100 --tpot-ms 50 --ttft-ms 50'),
    warmup: [...args('--rate 30 --concurrency 600 --duration 3 --drain 0'), ...body],
    load: [...args('--rate 30 --concurrency 600 --duration 16 --warmup 6 --drain 8'), ...body],
    contenders,
    seconds: 27,
  }
}

export const WORKLOADS: Readonly<Record<string, Workload>> = {
  W0: {
    what: '20 streams x 20 tok/s: what the slowest carries, too',
    upstream: args('--tokens 60 --tpot-ms 50 --ttft-ms 50'),
    warmup: args('--concurrency 20 --duration 4 --ramp 2 --drain 4'),
    load: args('--concurrency 20 --duration 12 --warmup 3 --ramp 2.5 --drain 5'),
    contenders: ['direct', 'nginx', 'fastify-http-proxy-10k', 'portkey', 'litellm', ...ROUTERS, ...WEIR],
    seconds: 25,
  },
  W1: {
    what: '200 streams x 50 tok/s x 200 tokens: 10,000 events/s, below saturation',
    upstream: args('--tokens 200 --tpot-ms 20 --ttft-ms 50'),
    warmup: STREAM_WARMUP,
    load: args('--concurrency 200 --duration 7 --warmup 2 --ramp 1.5 --drain 6'),
    contenders: ['direct', ...PEERS, ...SLOW, ...ROUTERS, ...WEIR],
    seconds: 16,
  },
  W2: {
    what: '1,000 streams x 33 tok/s: 33,000 events/s, past the saturation of most proxies',
    upstream: args('--tokens 200 --tpot-ms 30.303 --ttft-ms 50'),
    warmup: STREAM_WARMUP,
    load: args('--concurrency 1000 --duration 6.5 --warmup 2.5 --ramp 2 --drain 12'),
    contenders: ['direct', ...PEERS, ...ROUTERS, ...WEIR],
    seconds: 18,
  },
  W3: {
    what: 'plain JSON answers of 1 KB, 64 connections, closed loop',
    upstream: [],
    warmup: args('--no-stream --concurrency 32 --duration 2'),
    load: args('--no-stream --concurrency 64 --duration 3 --warmup 0.5 --ramp 0.2'),
    contenders: ['direct', ...PEERS, ...SLOW, 'litellm', ...ROUTERS, ...WEIR],
    seconds: 8,
  },
  W4: {
    what: '2,000 streams x 5 tok/s: memory per stream',
    upstream: args('--tokens 50 --tpot-ms 200 --ttft-ms 50'),
    // Only a little: memory is what is measured.
    warmup: args('--concurrency 100 --duration 1 --ramp 0.2 --drain 0'),
    load: args('--concurrency 2000 --duration 10 --warmup 4 --ramp 3 --drain 12'),
    contenders: [...PEERS, ...ROUTERS, ...WEIR],
    seconds: 22,
  },
  RAMP: {
    what: '0 to 2,400 streams x 50 tok/s in 20 s: the rate at which p99 leaves 5 ms',
    upstream: args('--tokens 4000 --tpot-ms 20 --ttft-ms 50'),
    warmup: STREAM_WARMUP,
    load: args('--concurrency 2400 --duration 20 --warmup 2 --ramp 20 --drain 0 --series 0.5'),
    contenders: ['nginx', 'haproxy', 'fastify-http-proxy-10k', 'http-proxy-3', ...WEIR],
    seconds: 26,
  },
  TTFT: {
    what: '250 requests/s by Poisson, streams of 8 s x 5 tok/s: TTFT at 2,000 open streams',
    upstream: args('--tokens 40 --tpot-ms 200 --ttft-ms 50'),
    warmup: args('--rate 250 --concurrency 4000 --duration 3 --drain 0'),
    load: args('--rate 250 --concurrency 4000 --duration 15 --warmup 9 --drain 10'),
    contenders: ['direct', 'nginx', 'haproxy', 'fastify-http-proxy-10k', 'http-proxy-3', ...WEIR],
    seconds: 28,
  },
  P4K: prompt('4 KB', 4_000, ['direct', 'nginx', 'fastify-http-proxy-10k', ...WEIR]),
  P100K: prompt('100 KB', 100_000, ['direct', 'nginx', 'fastify-http-proxy-10k', ...WEIR]),
  P400K: prompt('400 KB', 400_000, ['direct', ...PEERS, 'portkey', ...ROUTERS, ...WEIR]),
  P2M: prompt('2 MB', 2_000_000, ['direct', 'nginx', 'fastify-http-proxy-10k', ...WEIR]),
}

function args(line: string): string[] {
  return line.split(' ')
}
