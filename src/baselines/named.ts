/** Every policy that can be chosen by name: Weir's own, and the rules that people use today. */

import { DEFAULTS, type Knobs } from '../policy/knobs.js'
import { createPolicy } from '../policy/simple.js'
import { createWeir } from '../policy/weir.js'
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

/** What a sweep tries of the core's constants; the others are there to take its parts out. */
const TRIED: Readonly<Partial<Record<keyof Knobs, readonly number[]>>> = {
  theta: [0.05, 0.15, 0.3],
  fairness: [0, 0.5, 0.65, 0.8, 1],
}
const weir: NamedPolicy = {
  name: 'weir',
  source: 'this repository',
  knobs: Object.entries(DEFAULTS).map(([name, value]) => {
    return { name, values: TRIED[name as keyof Knobs] ?? [value], default: value }
  }),
  create(spec, rng, knobs = {}) {
    const unknown = Object.keys(knobs).find(name => !(name in DEFAULTS))
    if (unknown !== undefined)
      throw new RangeError(`weir has no knob ${unknown}; it has: ${Object.keys(DEFAULTS).join(', ')}`)
    return createWeir(spec, rng, knobs)
  },
}
const simple: NamedPolicy = {
  name: 'simple',
  source: 'this repository: limits and counts, without a model of the engine',
  knobs: [],
  create: createPolicy,
}

export const POLICIES: readonly NamedPolicy[] = [
  weir,
  simple,
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
