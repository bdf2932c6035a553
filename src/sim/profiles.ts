/** Engines by name: measured step costs, batch limits and memory. */
import type { Ms } from '../time.js'
import type { StepCoefficients } from './step-cost.js'

export interface EngineProfile {
  /** What users write, and the model name that the engine serves under. */
  readonly name: string
  readonly cost: StepCoefficients
  readonly gpus: number
  /** What the step cost was measured on. */
  readonly hardware: string
  /** Tokens computed in one iteration at most (vLLM `max_num_batched_tokens`). */
  readonly maxBatchedTokens: number
  /** Sequences running at once at most (vLLM `max_num_seqs`). */
  readonly maxSeqs: number
  /** Tokens that fit into the KV cache. */
  readonly kvTokens: number
  /** Prompt + output of one request at most, tokens; at most `kvTokens`. */
  readonly maxModelLen: number
  /** From arrival to the scheduler's sight of the request: HTTP and tokenizer, ms. */
  readonly overheadMs: Ms
}

// Defaults of vLLM's API server: GPUs of at least 70 GiB other than A100, and the A100.
const LARGE_GPU = { maxBatchedTokens: 8192, maxSeqs: 1024 }
const A100_BATCH = { maxBatchedTokens: 2048, maxSeqs: 256 }
// Longest context of the current checkpoints of these families (Llama 3.1, Qwen3 with YaRN). An assumption for
// llama2-70b, whose step cost stands in for any 70B model with grouped-query attention.
const LONG_CONTEXT = { maxModelLen: 131_072, overheadMs: 0 }

/** In the order of the table in the engine data: w, g, c, a, d, p. */
function cost(w: number, g: number, c: number, a: number, d: number, p: number): StepCoefficients {
  return { wMs: w, gMsPerKtok: g, cMsPerSeq: c, aMsPerMtok2: a, dMsPerKkv: d, p }
}

/**
 * b300class_qwen3-32b: whole-engine iterations of vLLM, mixed ones among them; 1.2 to 2.5 % median error. With several
 * GPUs an iteration that prefills is 20 to 30 ms slower than this says.
 * KV is an estimate for B300s: (0.9 * 288e9 B - 2.1e9 B workspace) a GPU, less 65.5e9 B of weights, at 262,144 B.
 */
function qwen3(gpus: 1 | 2 | 4 | 8, kvTokens: number, coefficients: StepCoefficients) {
  const hardware = `${gpus} x B300 class`
  return { cost: coefficients, gpus, hardware, kvTokens, ...LARGE_GPU, ...LONG_CONTEXT }
}

/**
 * Splitwise's measurements of a late-2023 engine; a current one decodes 1.3 to 2 times faster. 1.4 to 4.4 % median
 * error, up to 38 % at the 95th percentile. KV of the 70B: 80 GB a GPU, 327,680 B a token.
 */
function splitwise(gpus: 4 | 8, gpu: 'H100' | 'A100', kvTokens: number, coefficients: StepCoefficients) {
  const hardware = `${gpus} x ${gpu} 80 GB`
  const batch = gpu === 'A100' ? A100_BATCH : LARGE_GPU
  return { cost: coefficients, gpus, hardware, kvTokens, ...batch, ...LONG_CONTEXT }
}

/**
 * BLOOM has no grouped-query attention: 4.0 MB of KV a token, (0.9 * 8 x 80 GiB - 352e9 B of weights - 16e9 B of
 * workspace) / that. Its context is an assumption, longer than it was trained for and half of what fits.
 */
const BLOOM = { kvTokens: 62_000, maxModelLen: 32_768 }

/**
 * Kernel times of vLLM summed over the layers plus 0.5 ms host gap (an assumption). 2.6 to 2.9 % median error against
 * composed iterations; no whole-engine run was there to check it, so take absolute times as -0/+50 %. KV: (0.9 *
 * 80 GiB - weights - workspace) / 131,072 B.
 */
function composed(gpu: 'H100' | 'A100', coefficients: StepCoefficients) {
  const hardware = `1 x ${gpu} SXM 80 GB`
  const batch = gpu === 'A100' ? A100_BATCH : LARGE_GPU
  return { cost: coefficients, gpus: 1, hardware, kvTokens: 450_000, ...batch, ...LONG_CONTEXT }
}

const LLAMA3 = composed('H100', cost(7.097, 21.46, 0.004343, 0.8257, 0.04034, 2))
const QWEN3 = qwen3(1, 730_000, cost(13.05, 46.58, 0.1083, 1.337, 0.043, 8))
const LLAMA2 = splitwise(4, 'H100', 482_000, cost(29.08, 101.3, 0.2915, 3.72, 0.03524, 2))
/** llama3-8b with the small batch that the figures of the worked example were made with. */
const WORKED = {
  ...LLAMA3,
  cost: { ...LLAMA3.cost, cMsPerSeq: 0.0043 },
  maxBatchedTokens: 1024,
  maxSeqs: 256,
  overheadMs: 10,
}

/** Short names first; the long ones are those of the fits. */
const profiles: Readonly<Record<string, Omit<EngineProfile, 'name'>>> = {
  'llama3-8b': LLAMA3,
  'qwen3-32b': QWEN3,
  'llama2-70b': LLAMA2,
  'worked-example': WORKED,
  'worked-example-h100-8b': WORKED,
  'b300class_qwen3-32b_bf16_tp1': QWEN3,
  'b300class_qwen3-32b_bf16_tp2': qwen3(2, 1_700_000, cost(8.213, 26.34, 0.09452, 0.8505, 0.01453, 1.5)),
  'b300class_qwen3-32b_bf16_tp4': qwen3(4, 3_600_000, cost(5.935, 16.02, 0.06131, 0.3969, 0.005038, 1.5)),
  'b300class_qwen3-32b_bf16_tp8': qwen3(8, 7_500_000, cost(4.618, 11.51, 0.02049, 0.2003, 0.005692, 1.5)),
  'h100-80gb_llama2-70b_fp16_tp4': LLAMA2,
  'h100-80gb_llama2-70b_fp16_tp8': splitwise(
    8,
    'H100',
    1_380_000,
    cost(30.23, 85.61, 0.2382, 4.001, 0.0867, 2),
  ),
  'a100-80gb_llama2-70b_fp16_tp4': splitwise(4, 'A100', 482_000, cost(43.59, 241, 0.1966, 5.655, 0.2981, 2)),
  'a100-80gb_llama2-70b_fp16_tp8': splitwise(
    8,
    'A100',
    1_380_000,
    cost(44.38, 160.2, 0.2318, 4.985, 0.2457, 2),
  ),
  'h100-80gb_bloom-176b_fp16_tp8': {
    ...splitwise(8, 'H100', BLOOM.kvTokens, cost(35.75, 128.5, 0.3201, 14.48, 0.1098, 2)),
    ...BLOOM,
  },
  'a100-80gb_bloom-176b_fp16_tp8': {
    ...splitwise(8, 'A100', BLOOM.kvTokens, cost(48.33, 298.5, 0.3707, 27.28, 0.3506, 1.5)),
    ...BLOOM,
  },
  'h100_sxm_llama3-8b_bf16_tp1_composed': LLAMA3,
  'a100_sxm_llama3-8b_bf16_tp1_composed': composed(
    'A100',
    cost(11.72, 73.33, 0.0007905, 1.918, 0.07128, 1.5),
  ),
}

/** @throws RangeError that lists the known names, where `name` is none of them */
export function profileNamed(name: string): EngineProfile {
  const profile = Object.hasOwn(profiles, name) ? profiles[name] : undefined
  if (profile === undefined)
    throw new RangeError(`no engine profile "${name}"; there are ${Object.keys(profiles).join(', ')}`)
  return { name, ...profile }
}
