/** Chooses the knobs of a policy for one scenario, on a seed that no table uses. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import type { NamedPolicy } from '../../src/baselines/baseline.js'
import type { Crew } from './crew.js'
import { TUNING_LOADS, TUNING_SEED } from './tables.js'

type Knobs = Readonly<Record<string, number>>

interface Choice {
  readonly knobs: Knobs
  /** Mean good / offered at the tuning loads and seed. */
  readonly good: number
}

/** Shorter than the tables: a knob is chosen by what differs much. */
const LENGTH_MS = 30_000
const WARMUP_MS = 20_000
/** So many settings are tried all together; of more, one knob after the other. */
const MOST_TOGETHER = 16

/** Choices by scenario and policy, in a file that is committed. */
export class Tuning {
  readonly #file: string
  readonly #choices: Record<string, Record<string, Choice>>

  constructor(file: string) {
    this.#file = file
    this.#choices = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {}
  }

  get(scenario: string, policy: NamedPolicy): Choice | undefined {
    return this.#choices[scenario]?.[policy.name]
  }

  /** @param again  though there is a choice */
  async choose(scenario: string, policy: NamedPolicy, crew: Crew, again: boolean): Promise<Knobs> {
    if (policy.knobs.length === 0) return {}
    const known = this.#choices[scenario]?.[policy.name]
    if (known !== undefined && !again) return known.knobs
    const best = await search(policy, settings =>
      Promise.all(settings.map(knobs => tried(scenario, policy, knobs, crew))),
    )
    const sorted = { ...this.#choices, [scenario]: { ...this.#choices[scenario], [policy.name]: best } }
    Object.assign(this.#choices, sorted)
    writeFileSync(this.#file, `${JSON.stringify(this.#choices, undefined, 1)}\n`)
    return best.knobs
  }
}

async function tried(scenario: string, policy: NamedPolicy, knobs: Knobs, crew: Crew): Promise<Choice> {
  const lines = await Promise.all(
    TUNING_LOADS.map(load =>
      crew.run({
        scenario,
        policy: policy.name,
        load,
        seed: TUNING_SEED,
        knobs,
        lengthMs: LENGTH_MS,
        warmupMs: WARMUP_MS,
      }),
    ),
  )
  const shares = lines.map(({ result }) => result.good_share ?? 0)
  return { knobs, good: shares.reduce((a, b) => a + b, 0) / shares.length }
}

async function search(
  policy: NamedPolicy,
  tryAll: (settings: Knobs[]) => Promise<Choice[]>,
): Promise<Choice> {
  const together = policy.knobs.reduce<Knobs[]>(
    (settings, { name, values }) => settings.flatMap(set => values.map(value => ({ ...set, [name]: value }))),
    [{}],
  )
  if (together.length <= MOST_TOGETHER) return bestOf(await tryAll(together))
  let best: Choice = {
    knobs: Object.fromEntries(policy.knobs.map(knob => [knob.name, knob.default])),
    good: -1,
  }
  for (let round = 0; round < 2; round++) {
    for (const { name, values } of policy.knobs) {
      best = bestOf([best, ...(await tryAll(values.map(value => ({ ...best.knobs, [name]: value }))))])
    }
  }
  return best
}

const bestOf = (choices: readonly Choice[]): Choice => choices.reduce((a, b) => (b.good > a.good ? b : a))
