/** What the answers of each class are like: percentiles of times and lengths, cache hits, models. */
import type { ClassId } from '../request.js'
import type { Ms } from '../time.js'
import { saneCount } from './sane.js'
import type { SavedShape } from './saved-book.js'
import { binOf, type Sketch, SketchWindow } from './sketch.js'
import type { TrafficClass } from './slo.js'
import type { Judgement } from './verdict.js'
import { LEVELS, Windows } from './windows.js'

/** Times in ms, and lengths in tokens. */
export const MEASURES = ['ttft', 'tpot', 'e2e', 'input', 'output'] as const
export type Measure = (typeof MEASURES)[number]

/** What they are looked at over: a minute to a day. */
export const SHAPE_WINDOWS: readonly Ms[] = [60_000, 300_000, 3_600_000, 86_400_000]

/** Answers in one window. */
export interface Mix {
  /** That told how many input tokens came from the cache; and these, and all their input tokens. */
  readonly cacheTold: number
  readonly cached: number
  readonly cacheable: number
  /** For the model of the class's workload, and for others. */
  readonly declaredModel: number
  readonly otherModel: number
}

const CACHE_TOLD = 0
const CACHED = 1
const CACHEABLE = 2
const DECLARED_MODEL = 3
const OTHER_MODEL = 4
const PER_CLASS = 5

interface Shape {
  since: Ms
  /** By measure, then by window. */
  readonly sketches: readonly (readonly SketchWindow[])[]
}

export class Shapes {
  #classes: readonly TrafficClass[] = []
  readonly #windows: Windows
  /** By class id. */
  readonly #shapes: Shape[] = []

  constructor(at: Ms) {
    this.#windows = new Windows(0, LEVELS.slice(0, 4), at)
  }

  advance(at: Ms): void {
    this.#windows.advance(at)
  }

  follow(classes: readonly TrafficClass[]): void {
    const { at } = this.#windows
    this.#classes = classes
    this.#windows.grow(classes.length * PER_CLASS)
    for (const { id } of classes) {
      this.#shapes[id] ??= {
        since: at,
        sketches: MEASURES.map(() => SHAPE_WINDOWS.map(windowMs => new SketchWindow(windowMs, at))),
      }
    }
  }

  /** An answer at its end, whatever its verdict. @param model  that it was sent for */
  judged(judgement: Judgement, cls: ClassId, model: string): void {
    const { ttftMs, tpotMs, e2eMs, inputTokens, outputTokens, cachedTokens } = judgement
    const input = saneCount(inputTokens)
    const { sketches } = this.#shapes[cls]!
    this.#measured(sketches[0]!, ttftMs)
    this.#measured(sketches[1]!, tpotMs)
    this.#measured(sketches[2]!, e2eMs)
    this.#measured(sketches[3]!, input)
    this.#measured(sketches[4]!, saneCount(outputTokens))
    if (input === undefined) return
    const first = cls * PER_CLASS
    const declared = this.#classes[cls]!.workload.model === model
    this.#windows.add(first + (declared ? DECLARED_MODEL : OTHER_MODEL))
    const cached = saneCount(cachedTokens)
    if (cached === undefined) return
    this.#windows.add(first + CACHE_TOLD)
    this.#windows.add(first + CACHED, Math.min(cached, input))
    this.#windows.add(first + CACHEABLE, input)
  }

  /** For how long the class has been looked at. */
  seenMs(cls: ClassId): Ms {
    return this.#windows.at - this.#shapes[cls]!.since
  }

  /** @param windowMs  one of `SHAPE_WINDOWS` */
  sketch(cls: ClassId, measure: Measure, windowMs: Ms): Sketch {
    const windows = this.#shapes[cls]!.sketches[MEASURES.indexOf(measure)]!
    return windows[SHAPE_WINDOWS.indexOf(windowMs)]!.sum(this.#windows.at)
  }

  mix(cls: ClassId, windowMs: Ms): Mix {
    const sum = (series: number) => this.#windows.sum(cls * PER_CLASS + series, windowMs)
    return {
      cacheTold: sum(CACHE_TOLD),
      cached: sum(CACHED),
      cacheable: sum(CACHEABLE),
      declaredModel: sum(DECLARED_MODEL),
      otherModel: sum(OTHER_MODEL),
    }
  }

  /** As `Promises.save`. */
  *save(): Generator<SavedShape> {
    for (const { id, name, retired } of this.#classes) {
      if (retired) continue
      const { at } = this.#windows
      const { since, sketches } = this.#shapes[id]!
      const counts = this.#windows.slicesFrom(id * PER_CLASS, PER_CLASS)
      const dumped = sketches.map(windows => windows.map(window => window.dump(at)))
      yield { kind: 'shape', at, class: name, since, counts, sketches: dumped }
    }
  }

  /** As `Promises.load`. */
  load(rows: readonly SavedShape[], begin: Ms): boolean {
    for (const shape of this.#shapes) shape.since = begin
    return rows.every(row => {
      const cls = this.#classes.find(({ name }) => name === row.class)
      if (cls === undefined) return true
      const shape = this.#shapes[cls.id]!
      shape.since = Math.min(row.since, begin)
      return (
        this.#windows.fillFrom(cls.id * PER_CLASS, PER_CLASS, row.counts, row.at) &&
        row.sketches.length === MEASURES.length &&
        row.sketches.every((saved, measure) => {
          const windows = shape.sketches[measure]!
          return (
            saved.length === windows.length && saved.every((slices, i) => windows[i]!.load(slices, row.at))
          )
        })
      )
    })
  }

  #measured(windows: readonly SketchWindow[], value: number | undefined): void {
    if (value === undefined || !(value >= 0)) return
    const bin = binOf(value)
    for (const window of windows) window.add(bin, this.#windows.at)
  }
}
