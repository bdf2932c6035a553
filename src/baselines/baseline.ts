/** A policy that can be chosen by name, with the knobs it may be tuned by. */
import { Door } from '../policy/door.js'
import type { Policy, PolicySpec } from '../policy/policy.js'
import type { Desk, Rule } from '../policy/rule.js'
import type { Rng } from '../time.js'

export interface Knob {
  readonly name: string
  /** What a sweep tries. */
  readonly values: readonly number[]
  readonly default: number
}

export interface NamedPolicy {
  readonly name: string
  /** Where the rule comes from. */
  readonly source: string
  readonly knobs: readonly Knob[]
  /**
   * @param knobs  by name; those left out have their default
   * @throws RangeError for a knob that it does not have
   */
  create(spec: PolicySpec, rng: Rng, knobs?: Readonly<Record<string, number>>): Policy
}

/** A rule behind the door, under its name. @param knobs  default first, then the other values that a sweep tries */
export function baseline<K extends string = never>(
  name: string,
  source: string,
  knobs: Readonly<Record<K, readonly [number, ...number[]]>>,
  rule: (desk: Desk, set: Readonly<Record<K, number>>, spec: PolicySpec) => Rule,
): NamedPolicy {
  const entries = Object.entries(knobs) as [K, readonly [number, ...number[]]][]
  return {
    name,
    source,
    knobs: entries.map(([knob, values]) => {
      return { name: knob, values: values.toSorted((a, b) => a - b), default: values[0] }
    }),
    create(spec, rng, chosen = {}) {
      const set = Object.fromEntries(entries.map(([knob, [value]]) => [knob, value])) as Record<K, number>
      for (const [knob, value] of Object.entries(chosen)) {
        if (!(knob in set))
          throw new RangeError(`${name} has no knob ${knob}; it has: ${Object.keys(set).join(', ')}`)
        set[knob as K] = value
      }
      return new Door(spec, rng, desk => rule(desk, set, spec))
    },
  }
}
