/** The balancers that look at nothing, or at one count of each replica. */
import type { Replica } from '../fleet/replica.js'
import type { Open } from '../policy/open.js'
import { Balancer, inFlight } from './balancer.js'
import { baseline } from './baseline.js'

/**
 * Each replica in turn.
 * Goes wrong where requests differ: a replica that drew three long prompts gets its next one all the same.
 */
class RoundRobin extends Balancer {
  #next = 0

  protected choose(_open: Open, among: readonly Replica[]): Replica | undefined {
    return among[this.#next++ % among.length]
  }
}

/** One drawn by lot. Goes wrong as round robin does, and unevenly on top. */
class Random extends Balancer {
  protected choose(_open: Open, among: readonly Replica[]): Replica | undefined {
    return among[Math.floor(this.desk.rng.next() * among.length)]
  }
}

/**
 * Fewest requests in flight.
 * Goes wrong where one is not like the other: a prompt of 30,000 tokens counts as much as one of 30. And it refuses
 * nobody, so above capacity every stream is late.
 */
class LeastOutstanding extends Balancer {
  protected choose(_open: Open, among: readonly Replica[]): Replica | undefined {
    return this.cheapest(among, inFlight)
  }
}

/** Of two drawn by lot, the one with fewer in flight. Goes wrong as least outstanding does; needs a look at two only. */
class PowerOfTwo extends Balancer {
  protected choose(_open: Open, among: readonly Replica[]): Replica | undefined {
    return this.cheapest(twoOf(among, this.desk.rng), inFlight)
  }
}

/**
 * Fewest prompt tokens whose first output has not come; among equals, fewest in flight.
 * Goes wrong where answers are long: streams that decode count for nothing. It refuses nobody.
 */
class PrefillLeast extends Balancer {
  protected choose(_open: Open, among: readonly Replica[]): Replica | undefined {
    return this.cheapest(among, ({ outstandingPrefillTokens, inFlight }) => {
      return outstandingPrefillTokens + inFlight / 1e6
    })
  }
}

/** Two different ones where there are two. */
export function twoOf(among: readonly Replica[], rng: { next(): number }): readonly Replica[] {
  if (among.length <= 2) return among
  const first = Math.floor(rng.next() * among.length)
  const second = (first + 1 + Math.floor(rng.next() * (among.length - 1))) % among.length
  return [among[first] as Replica, among[second] as Replica]
}

export const counts = [
  baseline('round-robin', 'nginx and every other balancer', {}, desk => new RoundRobin(desk)),
  baseline('random', 'LiteLLM simple-shuffle', {}, desk => new Random(desk)),
  baseline('least-outstanding', 'nginx least_conn', {}, desk => new LeastOutstanding(desk)),
  baseline('p2c', 'Mitzenmacher 2001; Envoy LEAST_REQUEST', {}, desk => new PowerOfTwo(desk)),
  baseline('prefill-least', 'the router that counts prompt tokens', {}, desk => new PrefillLeast(desk)),
]
