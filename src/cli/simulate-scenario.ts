/** Reads a scenario file and the traces that it names. */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Path, showProblems } from '../config/error.js'
import { Source } from '../config/source.js'
import { durationMs } from '../config/units.js'
import { validate } from '../config/validate.js'
import { readTrace } from '../load/trace.js'
import type { TraceData } from '../sim/mix.js'
import { profileNamed } from '../sim/profiles.js'
import type { Fault, RateShape, RequestSource, Scenario, ScenarioClass } from '../sim/scenario.js'
import { type Ms, seededRng } from '../time.js'
import { reason, UsageError } from './flags.js'
import { ScenarioFields, type ScenarioFile } from './simulate-fields.js'

type ClassFile = ScenarioFile['classes'][string]
type RateFile = NonNullable<ScenarioFile['rate']>
type FaultFile = ScenarioFile['faults'][number]

const SHIPPED = fileURLToPath(new URL('../../bench/data/', import.meta.url))
const ms = (text: string): Ms => durationMs(text) ?? 0

/**
 * Reads a scenario file: YAML or JSON.
 * @throws UsageError that tells every problem with its line
 */
export async function readScenario(file: string): Promise<Scenario> {
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw new UsageError(`${file}: cannot be read: ${reason(error)}; give the path of a scenario file`)
  })
  const source = Source.fromText(file, text)
  const data = source.broken ? {} : validate(source, ScenarioFields)
  if (source.problems.length > 0) throw new UsageError(showProblems(source.problems).trimEnd())
  const scenario = new Reader(source).scenario(data as ScenarioFile)
  if (source.problems.length > 0) throw new UsageError(showProblems(source.problems).trimEnd())
  return scenario
}

/** Makes a scenario of what the schema lets through; what does not go together becomes a problem. */
class Reader {
  readonly #source: Source

  constructor(source: Source) {
    this.#source = source
  }

  scenario(file: ScenarioFile): Scenario {
    file.fleet.replicas.forEach(({ engine }, at) => {
      try {
        profileNamed(engine)
      } catch (error) {
        this.#source.complain(['fleet', 'replicas', at, 'engine'], {
          got: JSON.stringify(engine),
          allowed: 'the name of an engine profile',
          fix: reason(error),
        })
      }
    })
    const size = file.fleet.replicas.reduce((sum, { count }) => sum + count, 0)
    return {
      name: file.name,
      replicas: file.fleet.replicas,
      noise: file.fleet.noise,
      prefixCache: file.fleet.prefix_cache,
      maxInFlight: file.fleet.max_in_flight,
      ...(file.fleet.view_delay === undefined ? {} : { staleMs: ms(file.fleet.view_delay) }),
      classes: Object.entries(file.classes).map(([name, one]) => this.#class(name, one)),
      rate: file.rate === undefined ? { kind: 'steady' } : this.#rate(file.rate),
      faults: file.faults.map((fault, at) => this.#fault(fault, ['faults', at], size)),
      warmupMs: ms(file.warmup),
      lengthMs: ms(file.length),
    }
  }

  #class(name: string, file: ClassFile): ScenarioClass {
    const path = ['classes', name]
    const { ttft, tpot, deadline, percentile } = file.slo
    const stream = ttft !== undefined && tpot !== undefined
    if (stream === (deadline !== undefined) || (deadline !== undefined && (ttft ?? tpot) !== undefined)) {
      this.#source.complain([...path, 'slo'], {
        got: `${Object.keys(file.slo).join(', ')}`,
        allowed: 'ttft and tpot, or a deadline',
        fix: 'write both ttft and tpot for people who read a stream, or only a deadline for programs',
      })
    }
    if (file.queue !== undefined && deadline === undefined) {
      this.#source.complain([...path, 'queue'], {
        got: 'a queue in a class of streams',
        allowed: 'a queue where there is a deadline',
        fix: 'remove it: people do not wait in a queue',
      })
    }
    return {
      name,
      share: file.share,
      requests: this.#requests(path, file),
      percentile,
      promise:
        deadline === undefined
          ? { kind: 'stream', ttftMs: ms(ttft ?? '1s'), tpotMs: ms(tpot ?? '1s') }
          : { kind: 'deadline', deadlineMs: ms(deadline), minTokensPerSecond: 0 },
      queue: file.queue && { max: file.queue.max, waitMs: ms(file.queue.wait) },
    }
  }

  #requests(path: Path, file: ClassFile): RequestSource {
    const { trace, sessions, lengths } = file
    const given = [trace, sessions, lengths].filter(one => one !== undefined)
    if (given.length !== 1) {
      this.#source.complain(path, {
        got: given.length === 0 ? 'no requests' : 'requests from several places',
        allowed: 'one of trace, sessions and lengths',
        fix: 'say where the requests come from: trace: azure2023-conv, for example',
      })
    }
    const maxInputTokens = file.max_input
    if (lengths !== undefined) return { kind: 'lengths', ...lengths }
    if (sessions !== undefined) {
      const maxThinkMs = ms(file.max_think)
      return { kind: 'sessions', trace: sessions, maxInputTokens, maxThinkMs, maxCalls: file.max_calls }
    }
    return { kind: 'trace', trace: trace ?? '', arrivals: file.arrivals, maxInputTokens }
  }

  #rate(file: RateFile): RateShape {
    const need = this.#needer(['rate'], file.shape, file)
    switch (file.shape) {
      case 'steady':
        return { kind: 'steady' }
      case 'burst':
        return { kind: 'burst', atMs: need.ms('at'), forMs: need.ms('for'), factor: need.number('factor') }
      case 'square':
      case 'daily':
        return this.#notStill({
          kind: file.shape,
          periodMs: need.ms('period'),
          low: need.number('low'),
          high: need.number('high'),
        })
      case 'two-state':
        return this.#notStill({
          kind: 'two-state',
          meanMs: need.ms('mean'),
          low: need.number('low'),
          high: need.number('high'),
        })
      case 'steps':
        if (file.steps === undefined) need.ms('steps')
        return {
          kind: 'steps',
          steps: (file.steps ?? []).map(({ at, factor }) => ({ atMs: ms(at), factor })),
        }
    }
  }

  /** A rate that is never above 0 has no next arrival. */
  #notStill<const T extends { readonly low: number; readonly high: number }>(shape: T): T {
    if (shape.low > 0 || shape.high > 0) return shape
    this.#source.complain(['rate', 'high'], {
      got: '0',
      allowed: 'low or high above 0',
      fix: 'write high: 1.5, for example',
    })
    return shape
  }

  #fault(file: FaultFile, path: Path, size: number): Fault {
    const need = this.#needer(path, file.kind, file)
    const replica = (): number => {
      const got = need.number('replica')
      if (got >= size) {
        this.#source.complain([...path, 'replica'], {
          got: String(got),
          allowed: `a replica of the fleet, 0 to ${size - 1}`,
          fix: 'write the number of one that there is',
        })
      }
      return got
    }
    switch (file.kind) {
      case 'prompt-shift':
        return { kind: file.kind, atMs: need.ms('at'), forMs: need.ms('for'), factor: need.number('factor') }
      case 'cache-flush':
        return { kind: file.kind, atMs: need.ms('at') }
      case 'crash':
        return { kind: file.kind, atMs: need.ms('at'), forMs: need.ms('for'), replica: replica() }
      case 'slow': {
        const factor = need.number('factor')
        return { kind: file.kind, atMs: need.ms('at'), forMs: need.ms('for'), replica: replica(), factor }
      }
      case 'cold-start':
        return { kind: file.kind, atMs: need.ms('at'), replica: replica() }
      case 'foreign': {
        const share = need.number('share')
        return { kind: file.kind, atMs: need.ms('at'), forMs: need.ms('for'), replica: replica(), share }
      }
      case 'aborts':
        return { kind: file.kind, share: need.number('share'), withinMs: need.ms('within') }
      case 'retries':
        return { kind: file.kind, times: need.number('times'), obey: file.obey ?? true }
    }
  }

  /** Reads members that one kind needs and others do not have. */
  #needer(path: Path, kind: string, file: object) {
    const member = (key: string): unknown => {
      const value = (file as Record<string, unknown>)[key]
      if (value === undefined) {
        this.#source.complain([...path, key], {
          got: 'nothing',
          allowed: `a value, since ${kind} needs one`,
          fix: `write ${key}: …`,
        })
      }
      return value
    }
    return {
      ms: (key: string): Ms => {
        const value = member(key)
        return typeof value === 'string' ? ms(value) : 1
      },
      number: (key: string): number => {
        const value = member(key)
        return typeof value === 'number' ? value : 1
      },
    }
  }
}

/**
 * Reads the traces of a scenario: shipped ones by name, others by path, from the scenario's folder.
 * @throws TraceError for a file that cannot be read
 */
export async function readTraces(scenario: Scenario, file: string): Promise<Map<string, TraceData>> {
  const names = scenario.classes.flatMap(({ requests }) =>
    requests.kind === 'lengths' ? [] : [requests.trace],
  )
  const traces = new Map<string, TraceData>()
  for (const name of new Set(names)) {
    traces.set(name, await readTrace(traceFile(name, dirname(file)), { rng: seededRng(1) }))
  }
  return traces
}

function traceFile(name: string, folder: string): string {
  const shipped = ['csv.gz', 'jsonl.gz'].map(ending => join(SHIPPED, `${name}.${ending}`)).find(existsSync)
  return shipped ?? resolve(folder, name)
}
