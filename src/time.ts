/** Time and chance, handed in: the pure rooms read no clock and roll no dice of their own. */

/** Milliseconds on a monotonic clock, or a span of them. Only differences mean anything. */
export type Ms = number

export interface Clock {
  now(): Ms
}

export interface Rng {
  /** A number from 0 up to, not including, 1. */
  next(): number
}

/**
 * A seeded generator (sfc32): the same seed gives the same numbers on every machine.
 * @param seed  any integer; only its low 32 bits count
 * Source: Chris Doty-Humphrey, PractRand, sfc32.
 */
export function seededRng(seed: number): Rng {
  let a = 0x9e3779b9
  let b = 0x243f6a88
  let c = seed | 0
  let counter = 1
  const next = (): number => {
    const sum = (((a + b) | 0) + counter) | 0
    counter = (counter + 1) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = ((c << 21) | (c >>> 11)) + sum
    return (sum >>> 0) / 4294967296
  }
  for (let warm = 0; warm < 15; warm++) next()
  return { next }
}
