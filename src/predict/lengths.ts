/** How long answers get: sketches by class, model and prompt size, each leaning on the wider one while it is new. */
import type { ClassId } from '../request.js'

/** Ratio of the edges of a bin: a length is known to 2.5 %, far closer than it can be predicted. */
const BASE = Math.log(1.05)
/** Bins: 1.05^284 is a million tokens. */
const BINS = 285
/** Samples from which a sketch stands for itself. Source: algorithms 6.1. */
const ENOUGH = 200
/** At so many samples all counts are halved: what came long ago fades. */
const MEMORY = 4096
/** Bands of prompt size: below 256 tokens, then by doubling; the last is everything from 64k. */
const BANDS = 10
/** Models are named by clients: those beyond so many share the sketch of their class. */
const MODELS_MAX = 64
/** Before anything came. The mean of Azure's conversations of 2023 is 211. */
const UNKNOWN_TOKENS = 200

/** Middle of each bin. */
const TOKENS = Float64Array.from({ length: BINS }, (_, bin) => Math.exp(bin * BASE))

/** Counts of lengths in bins of equal ratio. */
class Sketch {
  readonly counts = new Uint16Array(BINS)
  count = 0
  /** Of all that it counts. */
  tokens = 0
  /** No bin outside these was ever counted in. */
  first = BINS
  last = -1

  add(tokens: number): void {
    const bin = binOf(tokens)
    this.counts[bin] = (this.counts[bin] as number) + 1
    this.count++
    this.tokens += TOKENS[bin] as number
    this.first = Math.min(this.first, bin)
    this.last = Math.max(this.last, bin)
    if (this.count >= MEMORY) this.#halve()
  }

  #halve(): void {
    this.count = 0
    this.tokens = 0
    for (let bin = this.first; bin <= this.last; bin++) {
      const half = (this.counts[bin] as number) >> 1
      this.counts[bin] = half
      this.count += half
      this.tokens += half * (TOKENS[bin] as number)
    }
  }

  /** Bins and their counts, one after the other, without the empty ones. */
  dump(): number[] {
    return [...this.counts].flatMap((count, bin) => (count === 0 ? [] : [bin, count]))
  }

  /** Takes over what `dump` gave, in place of what there is; what makes no sense is left out. */
  load(dumped: readonly number[]): void {
    this.counts.fill(0)
    this.count = 0
    this.tokens = 0
    for (let i = 0; i + 1 < dumped.length; i += 2) {
      const [bin = BINS, count = 0] = [dumped[i], dumped[i + 1]]
      if (bin >= BINS || this.counts[bin] !== 0 || this.count + count >= MEMORY) continue
      this.counts[bin] = count
      this.count += count
      this.tokens += count * (TOKENS[bin] as number)
      this.first = Math.min(this.first, bin)
      this.last = Math.max(this.last, bin)
    }
  }
}

/** The sketches of one class, or of one of its models, or of all. */
export interface SavedLengths {
  /** null: of all classes. */
  readonly class: string | null
  /** null: of all models. */
  readonly model: string | null
  /** The whole, then by band of prompt size; null where nothing came. */
  readonly sketches: readonly (readonly number[] | null)[]
}

export interface LengthQuery {
  readonly cls: ClassId
  readonly model: string
  readonly promptTokens: number
  /** `max_tokens`: no answer is longer. */
  readonly maxTokens: number | undefined
}

interface OfModel {
  readonly all: Sketch
  readonly bands: (Sketch | undefined)[]
}

interface OfClass {
  readonly all: Sketch
  readonly models: Map<string, OfModel>
}

/** Answers of a class of traffic, of its models, and of their bands of prompt size. Whole answers only are to be added. */
export class OutputLengths {
  readonly #classes: OfClass[] = []
  /** The widest, of all classes. */
  readonly #all = new Sketch()
  /** Of the last query, reused: the sketches that speak for it, what each takes over from those before; probabilities. */
  readonly #sketches: Sketch[] = []
  readonly #trusts: number[] = []
  readonly #mass = new Float64Array(BINS)

  add(cls: ClassId, model: string, promptTokens: number, outputTokens: number): void {
    if (!(outputTokens >= 1)) return
    this.#all.add(outputTokens)
    const own = this.#own(cls)
    own.all.add(outputTokens)
    const named = this.#named(own, model)
    if (named === undefined) return
    named.all.add(outputTokens)
    this.#band(named, bandOf(promptTokens)).add(outputTokens)
  }

  /** @param nameOf  of a class; undefined for one that is not kept */
  *save(nameOf: (cls: ClassId) => string | undefined): Generator<SavedLengths> {
    yield { class: null, model: null, sketches: [this.#all.dump()] }
    for (const [cls, own] of this.#classes.entries()) {
      const name = nameOf(cls)
      if (own === undefined || name === undefined) continue
      yield { class: name, model: null, sketches: [own.all.dump()] }
      for (const [model, { all, bands }] of own.models) {
        const sketches = [all, ...bands].map(sketch => sketch?.dump() ?? null)
        yield { class: name, model, sketches }
      }
    }
  }

  /** Takes over a row that `save` gave; to be called before anything is added. @param cls  undefined: of all classes */
  restore(cls: ClassId | undefined, { model, sketches: [all, ...bands] }: SavedLengths): void {
    const own = cls === undefined ? undefined : this.#own(cls)
    const named = model === null ? undefined : own && this.#named(own, model)
    const widest = model === null ? (own?.all ?? this.#all) : named?.all
    widest?.load(all ?? [])
    bands.slice(0, BANDS).forEach((band, at) => {
      if (band !== null && named !== undefined) this.#band(named, at).load(band)
    })
  }

  /** Mean length to expect; 200 before the first answer. */
  mean(query: LengthQuery): number {
    return this.remaining(query, 0)
  }

  /** Length that a share of the answers stays within. @param share  0 to 1 */
  quantile(query: LengthQuery, share: number): number {
    const most = query.maxTokens ?? Number.POSITIVE_INFINITY
    if (this.#choose(query) === 0) return Math.min(most, UNKNOWN_TOKENS)
    const [first, last] = this.#blend()
    let sum = 0
    for (let bin = first; bin < last; bin++) {
      sum += this.#mass[bin] as number
      if (sum >= share) return Math.min(most, TOKENS[bin] as number)
    }
    return Math.min(most, TOKENS[last] as number)
  }

  /** Mean number of tokens still to come of an answer that has `sofar`; at least 1. */
  remaining(query: LengthQuery, sofar: number): number {
    const most = query.maxTokens ?? Number.POSITIVE_INFINITY
    let weight = 0
    let sum = 0
    /** What the narrower ones leave to be said. */
    let rest = 1
    for (let i = this.#choose(query) - 1; i >= 0 && rest > 0; i--) {
      const { counts, count, tokens: all, first, last } = this.#sketches[i] as Sketch
      const trust = this.#trusts[i] as number
      const each = (rest * trust) / count
      rest *= 1 - trust
      if (sofar === 0 && most >= (TOKENS[last] as number)) {
        weight += each * count
        sum += each * all
        continue
      }
      for (let bin = first; bin <= last; bin++) {
        const tokens = Math.min(most, TOKENS[bin] as number)
        if (tokens <= sofar) continue
        const mass = each * (counts[bin] as number)
        weight += mass
        sum += mass * (tokens - sofar)
      }
    }
    const expected = weight > 0 ? sum / weight : UNKNOWN_TOKENS
    return Math.max(1, Math.min(expected, most - sofar))
  }

  /**
   * Whole lengths of an answer that has `sofar` tokens, at the middles of three equal shares of what it may get to:
   * the 1/6, 1/2 and 5/6 quantiles. A mean alone hides that many answers are short.
   * @param into  written; each is at least `sofar` + 1, unless `max_tokens` is below that
   */
  thirds(query: LengthQuery, sofar: number, into: Float64Array): void {
    const most = query.maxTokens ?? Number.POSITIVE_INFINITY
    let weight = 0
    let first = 0
    let last = -1
    if (this.#choose(query) > 0) {
      ;[first, last] = this.#blend()
      if (sofar >= 1) first = Math.max(first, binOf(sofar + 1))
      for (let bin = first; bin <= last; bin++) weight += this.#mass[bin] as number
    }
    if (weight <= 0) {
      for (let third = 0; third < 3; third++)
        into[third] = Math.min(most, sofar + (UNKNOWN_TOKENS * (2 * third + 1)) / 3)
      return
    }
    let sum = 0
    let third = 0
    for (let bin = first; bin <= last && third < 3; bin++) {
      sum += this.#mass[bin] as number
      while (third < 3 && sum >= (weight * (2 * third + 1)) / 6)
        into[third++] = Math.min(most, Math.max(sofar + 1, TOKENS[bin] as number))
    }
  }

  #own(cls: ClassId): OfClass {
    let own = this.#classes[cls]
    if (own === undefined) {
      own = { all: new Sketch(), models: new Map() }
      this.#classes[cls] = own
    }
    return own
  }

  /** undefined: there are too many. */
  #named({ models }: OfClass, model: string): OfModel | undefined {
    let named = models.get(model)
    if (named === undefined && models.size < MODELS_MAX) {
      named = { all: new Sketch(), bands: [] }
      models.set(model, named)
    }
    return named
  }

  #band({ bands }: OfModel, band: number): Sketch {
    let narrow = bands[band]
    if (narrow === undefined) {
      narrow = new Sketch()
      bands[band] = narrow
    }
    return narrow
  }

  /** Sketches from the widest to the narrowest, each taking over as its samples near `ENOUGH`. @returns how many */
  #choose(query: LengthQuery): number {
    const own = this.#classes[query.cls]
    const named = own?.models.get(query.model)
    this.#sketches.length = 0
    this.#trusts.length = 0
    this.#hear(this.#all)
    this.#hear(own?.all)
    this.#hear(named?.all)
    this.#hear(named?.bands[bandOf(query.promptTokens)])
    return this.#sketches.length
  }

  #hear(sketch: Sketch | undefined): void {
    if (sketch === undefined || sketch.count === 0) return
    this.#trusts.push(this.#sketches.length === 0 ? 1 : Math.min(1, sketch.count / ENOUGH))
    this.#sketches.push(sketch)
  }

  /** Probabilities by the chosen sketches, of which there is one. @returns the first and the last bin that has one */
  #blend(): [number, number] {
    const mass = this.#mass
    // The widest has counted all that the others have.
    const { first, last } = this.#sketches[0] as Sketch
    mass.fill(0, first, last + 1)
    for (let i = 0; i < this.#sketches.length; i++) {
      const { counts, count } = this.#sketches[i] as Sketch
      const trust = this.#trusts[i] as number
      for (let bin = first; bin <= last; bin++)
        mass[bin] = (1 - trust) * (mass[bin] as number) + (trust * (counts[bin] as number)) / count
    }
    return [first, last]
  }
}

function binOf(tokens: number): number {
  return Math.min(BINS - 1, Math.max(0, Math.round(Math.log(tokens) / BASE)))
}

function bandOf(promptTokens: number): number {
  return Math.min(BANDS - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, promptTokens) / 128))))
}
