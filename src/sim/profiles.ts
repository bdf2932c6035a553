/** Engines by name: measured step costs, batch limits and memory. */
import type { Ms } from '../time.js'
import type { StepCoefficients } from './step-cost.js'

export interface EngineProfile {
  /** What users write, and the model name that the engine serves under. */
  readonly name: string
  readonly cost: StepCoefficients
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

// Defaults of vLLM's API server on GPUs of at least 70 GiB other than A100.
const LARGE_GPU = { maxBatchedTokens: 8192, maxSeqs: 1024 }
// Longest context of the current checkpoints of these families (Llama 3.1, Qwen3 with YaRN). An assumption for
// llama2-70b, whose step cost stands in for any 70B model with grouped-query attention.
const LONG_CONTEXT = { maxModelLen: 131_072, overheadMs: 0 }

/**
 * h100_sxm_llama3-8b_bf16_tp1_composed: kernel times of vLLM 0.24.0 summed over the layers plus 0.5 ms host gap
 * (an assumption). 2.6 % median error against composed iterations; no whole-engine run was there to check it, so
 * take absolute times as -0/+50 %. KV: (0.9 * 80 GiB - weights - workspace) / 131,072 B.
 */
const llama3: StepCoefficients = {
  wMs: 7.097,
  gMsPerKtok: 21.46,
  cMsPerSeq: 0.004343,
  aMsPerMtok2: 0.8257,
  dMsPerKkv: 0.04034,
  p: 2,
}

const profiles = {
  'llama3-8b': { name: 'llama3-8b', cost: llama3, kvTokens: 450_000, ...LARGE_GPU, ...LONG_CONTEXT },
  /**
   * b300class_qwen3-32b_bf16_tp1: 6,850 whole-engine iterations of vLLM, mixed ones among them; 1.4 % median error.
   * KV is an estimate for a B300: (0.9 * 288e9 B - 65.5e9 B of weights - 2.1e9 B workspace) / 262,144 B a token.
   */
  'qwen3-32b': {
    name: 'qwen3-32b',
    cost: { wMs: 13.05, gMsPerKtok: 46.58, cMsPerSeq: 0.1083, aMsPerMtok2: 1.337, dMsPerKkv: 0.043, p: 8 },
    kvTokens: 730_000,
    ...LARGE_GPU,
    ...LONG_CONTEXT,
  },
  /**
   * h100-80gb_llama2-70b_fp16_tp4: Splitwise's measurements of a late-2023 engine; a current one decodes 1.3 to 2
   * times faster. 1.4 % median, 16 % 95th percentile error. KV: 4 x 80 GB at 327,680 B a token.
   */
  'llama2-70b': {
    name: 'llama2-70b',
    cost: { wMs: 29.08, gMsPerKtok: 101.3, cMsPerSeq: 0.2915, aMsPerMtok2: 3.72, dMsPerKkv: 0.03524, p: 2 },
    kvTokens: 482_000,
    ...LARGE_GPU,
    ...LONG_CONTEXT,
  },
  /** The engine of the worked example: llama3-8b with the small batch that its figures were made with. */
  'worked-example': {
    name: 'worked-example',
    cost: { ...llama3, cMsPerSeq: 0.0043 },
    maxBatchedTokens: 1024,
    maxSeqs: 256,
    kvTokens: 450_000,
    maxModelLen: LONG_CONTEXT.maxModelLen,
    overheadMs: 10,
  },
} as const satisfies Record<string, EngineProfile>

type ProfileName = keyof typeof profiles

const profileNames = Object.keys(profiles).join(', ')

/** @throws RangeError that lists the known names, where `name` is none of them */
export function profileNamed(name: string): EngineProfile {
  if (!Object.hasOwn(profiles, name)) {
    throw new RangeError(`no engine profile "${name}"; there are ${profileNames}`)
  }
  return profiles[name as ProfileName]
}
