/** Runs jobs on all cores, each worker a process of its own, and keeps what came of them in a file of lines. */
import { type ChildProcess, fork } from 'node:child_process'
import { createHash } from 'node:crypto'
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import type { Job, Reply } from './worker.js'

export type Result = Extract<Reply, { result: unknown }>['result']

export interface Line {
  readonly key: string
  readonly job: Job
  readonly result: Result
  readonly seconds: number
}

/** Rooms that a result depends on, by what is run. */
const ENGINE = ['sim', 'slo', 'fleet', 'admission', 'routing', 'policy']
const MODEL = ['predict']

/** Results by key: a job whose scenario, knobs and code are unchanged is not run again. */
export class Results {
  readonly #file: string
  readonly #lines = new Map<string, Line>()
  readonly #anyCode: boolean
  readonly #hashes = new Map<string, string>()

  /** @param anyCode  results of other versions of the code count, too */
  constructor(file: string, anyCode: boolean) {
    this.#file = file
    this.#anyCode = anyCode
    if (!existsSync(file)) return
    for (const text of readFileSync(file, 'utf8').split('\n')) {
      // A run that was killed leaves half a line.
      if (!text.endsWith('}')) continue
      const line = JSON.parse(text) as Line
      this.#lines.set(anyCode ? withoutCode(line.key) : line.key, line)
    }
  }

  get(job: Job): Line | undefined {
    const key = this.#key(job)
    return this.#lines.get(this.#anyCode ? withoutCode(key) : key)
  }

  add(job: Job, reply: Extract<Reply, { result: unknown }>): Line {
    const line = { key: this.#key(job), job, ...reply }
    this.#lines.set(this.#anyCode ? withoutCode(line.key) : line.key, line)
    mkdirSync(dirname(this.#file), { recursive: true })
    appendFileSync(this.#file, `${JSON.stringify(line)}\n`)
    return line
  }

  #key(job: Job): string {
    const rooms = job.policy === 'weir' ? [...ENGINE, ...MODEL] : [...ENGINE, ...MODEL, 'baselines']
    const code = this.#hash(
      rooms.map(room => `src/${room}`).join(' '),
      rooms.flatMap(room => filesOf(`src/${room}`)),
    )
    const scenario = this.#hash(job.scenario, [`bench/scenarios/${job.scenario}.yaml`])
    const { policy, load, seed, knobs, lengthMs, warmupMs } = job
    return `${job.scenario} ${policy} ${load} ${seed} ${JSON.stringify(knobs)} ${lengthMs} ${warmupMs} ${scenario} ${code}`
  }

  #hash(name: string, files: readonly string[]): string {
    const known = this.#hashes.get(name)
    if (known !== undefined) return known
    const sum = createHash('sha256')
    for (const file of files) sum.update(readFileSync(file))
    const hash = sum.digest('hex').slice(0, 10)
    this.#hashes.set(name, hash)
    return hash
  }
}

const withoutCode = (key: string): string => key.slice(0, key.lastIndexOf(' '))

const filesOf = (folder: string): string[] =>
  readdirSync(folder)
    .sort()
    .map(name => join(folder, name))

/** Workers, as many as cores. */
export class Crew {
  readonly #results: Results
  readonly #idle: ChildProcess[] = []
  readonly #waiting: ((worker: ChildProcess) => void)[] = []
  readonly #all: ChildProcess[] = []
  readonly #say: (text: string) => void
  #done = 0
  #asked = 0

  constructor(results: Results, say: (text: string) => void) {
    this.#results = results
    this.#say = say
    for (let core = 0; core < availableParallelism(); core++) {
      const worker = fork(new URL('./worker.ts', import.meta.url), { execArgv: process.execArgv })
      this.#all.push(worker)
      this.#idle.push(worker)
    }
  }

  /** The result of a job: kept from before, or run now. @throws Error where it failed */
  async run(job: Job): Promise<Line> {
    this.#asked++
    const kept = this.#results.get(job)
    const line = kept ?? (await this.#work(job))
    this.#done++
    if (kept === undefined) {
      const { good_share: good } = line.result
      const { scenario, policy, load, seed, knobs } = job
      const set = Object.entries(knobs).map(([knob, value]) => ` ${knob}=${value}`)
      this.#say(
        `${this.#done}/${this.#asked} ${scenario} ${policy}${set.join('')} ${load} seed ${seed}: ${good?.toFixed(3)} (${line.seconds.toFixed(1)} s)`,
      )
    }
    return line
  }

  async #work(job: Job): Promise<Line> {
    const worker = this.#idle.pop() ?? (await new Promise<ChildProcess>(free => this.#waiting.push(free)))
    const reply = await new Promise<Reply>((answered, broken) => {
      const died = (code: number | null): void => broken(new Error(`a worker ended with ${code}`))
      worker.once('exit', died)
      worker.once('message', (message: Reply) => {
        worker.off('exit', died)
        answered(message)
      })
      worker.send(job)
    })
    const next = this.#waiting.shift()
    if (next === undefined) this.#idle.push(worker)
    else next(worker)
    if ('error' in reply) throw new Error(`${job.scenario} ${job.policy} ${job.load}: ${reply.error}`)
    return this.#results.add(job, reply)
  }

  stop(): void {
    for (const worker of this.#all) worker.kill()
  }
}
