/** Whom to refuse is a choice: groups of requests that are served less than their share gain weight until they are not. */
import type { TrafficClass } from '../slo/slo.js'
import type { Ms } from '../time.js'

/** Prompt-size bands of a class that does not wait; one that waits is one group. Source: algorithms 6.6b. */
const BANDS = 4
const LABELS = ['q1', 'q2', 'q3', 'q4']
/** Fewer than this, faded, are none. */
const SEEN = 0.01
/** Prompts by which the edges of a class's bands are set, and how often they are set anew. */
const RECENT = 1000
const EDGES_EVERY = 50
/** Memory of what was offered, admitted and good. */
const MEMORY_MS: Ms = 20_000
/** How fast the weight of a band moves, in its logarithm: by second and by share of service that it lacks. */
const BAND_PER_MS = 0.3 / 1000
/** The same for a class that waits, by arrival and by dispatch. */
const CLASS_STEP = 0.05
/** Weights are between 1 and 30: only their ratios matter. */
const LOG_MAX = Math.log(30)
/** A span without arrivals does not move weights for longer than this. */
const STEP_MAX_MS: Ms = 1_000

interface Service {
  offered: number
  /** Of those offered. */
  work: number
  admitted: number
  judged: number
  good: number
}

interface Sizes {
  readonly recent: Float64Array
  count: number
  untilEdges: number
  readonly edges: Float64Array
}

/**
 * Weight of each group. A group's service is the share of it that was admitted times the share of the admitted that
 * was good. A group below `fairness` times the share of all work that is served gains weight, one above loses it: that is
 * what each would have if the same room were dealt out without a look at sizes. (The share of all requests is higher, for
 * the small ones are many: by it code with its long prompts gave up 5 points for little.)
 *
 * Goes wrong where a group cannot be served at any price: its weight rises to the limit for nothing. Requests that not
 * even an idle replica would serve within their SLO are therefore not to be counted.
 */
export class GroupPrices {
  /** What one good answer of a group counts, 1 to 30. */
  values = new Float64Array(0)
  /** By class: 0 most good answers, 1 equal service to all. */
  #fairness: readonly number[] = []
  #classes: readonly TrafficClass[] = []
  #services: Service[] = []
  #sizes: Sizes[] = []
  #at: Ms | undefined

  /** @param fairness  by class id */
  reconfigure(classes: readonly TrafficClass[], fairness: readonly number[]): void {
    this.#classes = classes
    this.#fairness = fairness
    const before = this.values
    this.values = new Float64Array(classes.length * BANDS).fill(1)
    this.values.set(before.subarray(0, this.values.length))
    while (this.#services.length < this.values.length)
      this.#services.push({ offered: 0, work: 0, admitted: 0, judged: 0, good: 0 })
    while (this.#sizes.length < classes.length)
      this.#sizes.push({
        recent: new Float64Array(RECENT),
        count: 0,
        untilEdges: EDGES_EVERY,
        edges: new Float64Array(BANDS - 1).fill(Infinity),
      })
  }

  /** The group of a request, by its class and the size of its prompt. */
  groupOf(cls: number, promptTokens: number): number {
    if (this.#waits(cls)) return cls * BANDS
    const sizes = this.#sizes[cls] as Sizes
    sizes.recent[sizes.count % RECENT] = promptTokens
    sizes.count++
    if (--sizes.untilEdges === 0) {
      sizes.untilEdges = EDGES_EVERY
      const sorted = sizes.recent.slice(0, Math.min(RECENT, sizes.count)).sort()
      for (let i = 1; i < BANDS; i++)
        sizes.edges[i - 1] = sorted[Math.floor((sorted.length * i) / BANDS)] as number
    }
    let band = 0
    while (band < BANDS - 1 && promptTokens > (sizes.edges[band] as number)) band++
    return cls * BANDS + band
  }

  /** One of the group came. @param work  that it takes, above 0, in any unit that is the same for all */
  offered(group: number, work: number, now: Ms): void {
    this.#fade(now)
    const cls = this.classOf(group)
    const service = this.#services[group] as Service
    service.offered++
    service.work += work
    if (this.#waits(cls)) this.#move(group, CLASS_STEP * this.#wanted(cls))
  }

  /** It was sent to a replica. */
  admitted(group: number): void {
    const service = this.#services[group] as Service
    service.admitted++
    if (this.#waits(this.classOf(group))) this.#move(group, -CLASS_STEP * attainment(service))
  }

  judged(group: number, good: boolean): void {
    const service = this.#services[group] as Service
    service.judged++
    if (good) service.good++
  }

  /** Its bands, shortest prompts first; a class that waits is one group, called all. */
  groupsOf(
    cls: number,
  ): { readonly label: string; readonly value: number; readonly service: number | undefined }[] {
    return (this.#waits(cls) ? ['all'] : LABELS).map((label, band) => {
      const group = cls * BANDS + band
      const service = this.#services[group] as Service
      return {
        label,
        value: this.values[group] as number,
        service: service.offered < SEEN ? undefined : serviceOf(service),
      }
    })
  }

  classOf(group: number): number {
    return Math.floor(group / BANDS)
  }

  #waits(cls: number): boolean {
    return this.#classes[cls]?.target.clauses.kind === 'deadline'
  }

  /** Service that a group of the class is to have: a share of what all would have if the room were dealt out evenly. */
  #wanted(cls: number): number {
    const fairness = this.#fairness[cls] ?? 0
    let asked = 0
    let done = 0
    for (const service of this.#services) {
      asked += service.work
      done += service.work * serviceOf(service)
    }
    return asked === 0 ? 0 : (fairness * done) / asked
  }

  #fade(now: Ms): void {
    const span = this.#at === undefined ? 0 : Math.max(0, now - this.#at)
    this.#at = now
    if (span === 0) return
    const step = BAND_PER_MS * Math.min(span, STEP_MAX_MS)
    for (let cls = 0; cls < this.#classes.length; cls++) {
      if (this.#waits(cls)) continue
      const wanted = this.#wanted(cls)
      for (let group = cls * BANDS; group < (cls + 1) * BANDS; group++) {
        const service = this.#services[group] as Service
        if (service.offered > SEEN) this.#move(group, step * (wanted - serviceOf(service)))
      }
    }
    const kept = Math.exp(-span / MEMORY_MS)
    for (const service of this.#services) {
      service.offered *= kept
      service.work *= kept
      service.admitted *= kept
      service.judged *= kept
      service.good *= kept
    }
  }

  #move(group: number, by: number): void {
    const log = Math.log(this.values[group] as number) + by
    this.values[group] = Math.exp(Math.min(LOG_MAX, Math.max(0, log)))
  }
}

function attainment({ judged, good }: Service): number {
  return judged < SEEN ? 1 : good / judged
}

function serviceOf(service: Service): number {
  if (service.offered < SEEN) return 1
  return attainment(service) * Math.min(1, service.admitted / service.offered)
}
