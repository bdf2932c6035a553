/** Every policy that can be chosen by name: Weir's own, and the rules that people use today. */
import { createPolicy } from '../policy/simple.js'
import { aibrix } from './aibrix.js'
import type { NamedPolicy } from './baseline.js'
import { cacheAware } from './cache-aware.js'
import { caps } from './caps.js'
import { counts } from './counts.js'
import { dynamo } from './dynamo.js'
import { gradient2 } from './gradient2.js'
import { llmDs } from './llm-d.js'
import { peakEwma } from './peak-ewma.js'
import { selfOnly } from './self-only.js'

const weir: NamedPolicy = { name: 'weir', source: 'this repository', knobs: [], create: createPolicy }

export const POLICIES: readonly NamedPolicy[] = [
  weir,
  ...counts,
  peakEwma,
  cacheAware,
  ...llmDs,
  selfOnly,
  dynamo,
  aibrix,
  ...caps,
  gradient2,
]

/** @returns undefined where no policy has that name */
export function policyNamed(name: string): NamedPolicy | undefined {
  return POLICIES.find(policy => policy.name === name)
}
