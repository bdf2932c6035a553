/** The simulated engine behind a real socket: OpenAI's API, vLLM's metrics, and faults on request. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Ms, seededRng } from '../time.js'
import { Answer } from './answer.js'
import { type Call, CallError, errorBody, readCall } from './call.js'
import { drawLength, type LengthSpec } from './draw.js'
import { Engine, type Step } from './engine.js'
import { EngineMetrics } from './engine-metrics.js'
import { type Fault, parseFault } from './fault.js'
import { PinnedEngine } from './pinned.js'
import { profileNamed } from './profiles.js'
import type { Sequence } from './sequence.js'
import { workedExampleMix } from './workload.js'

/** Longer than the clients' pools keep idle connections, so that they close first. */
const KEEP_ALIVE_MS = 75_000

export interface EngineServerOptions {
  /** A name that `profileNamed` knows; default llama3-8b. */
  readonly profile?: string
  /** Model name it answers to; default: the profile's. */
  readonly model?: string
  /** Default 127.0.0.1. */
  readonly host?: string
  /** Default 0: any free one. */
  readonly port?: number
  /** Of answer lengths and noise; default 1. */
  readonly seed?: number
  /** Sigma of the lognormal jitter of iteration times; default 0. */
  readonly noise?: number
  /** Tokens in each event after the first; a request's header outranks it. Default 1. */
  readonly tokensPerEvent?: number
  /** Events within 0.1 ms of their virtual time, for up to a quarter of a core; default false: within some 2 ms. */
  readonly exact?: boolean
  /**
   * What a client's request and an answer's first event take on their ways, in ms; default 0. It is part of the
   * profile's overhead, which was measured by clients, and so is taken off it.
   */
  readonly wayMs?: Ms
  /** Lengths of answers that no header sets; default: the worked example's, median 450. */
  readonly outputTokens?: LengthSpec
}

export interface EngineServer {
  readonly url: string
  /** Ends all connections at once. */
  close(): Promise<void>
}

/** CLOCK_MONOTONIC in ms: comparable between processes, so that stamps can be held against a client's times. */
const clock = {
  now(): Ms {
    const [seconds, nanos] = process.hrtime()
    return seconds * 1000 + nanos / 1e6
  },
}

/**
 * Starts an engine on a port of its own.
 * @throws RangeError where the profile is unknown; the listen error where the port is taken
 */
export async function startEngine(options: EngineServerOptions = {}): Promise<EngineServer> {
  const served = new ServedEngine(options)
  const server = createServer({ keepAliveTimeout: KEEP_ALIVE_MS, requestTimeout: 0 }, (req, res) => {
    served.handle(req, res).catch((error: unknown) => fail(res, error))
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(options.port ?? 0, options.host ?? '127.0.0.1', resolve)
  })
  const { address, family, port } = server.address() as AddressInfo
  return {
    url: `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`,
    close: () =>
      new Promise<void>(resolve => {
        served.close()
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

class ServedEngine {
  readonly #model: string
  readonly #created = Math.floor(Date.now() / 1000)
  readonly #lengths: LengthSpec
  readonly #lengthRng
  readonly #tokensPerEvent: number
  readonly #metrics = new EngineMetrics()
  readonly #pinned: PinnedEngine<Answer>
  #calls = 0

  constructor(options: EngineServerOptions) {
    const named = profileNamed(options.profile ?? 'llama3-8b')
    const profile = { ...named, overheadMs: Math.max(0, named.overheadMs - (options.wayMs ?? 0)) }
    const seed = options.seed ?? 1
    const sigma = options.noise ?? 0
    this.#model = options.model ?? profile.name
    this.#lengths = options.outputTokens ?? workedExampleMix.output
    this.#lengthRng = seededRng(seed)
    this.#tokensPerEvent = options.tokensPerEvent ?? 1
    const noise = sigma > 0 ? { noise: { sigma, rng: seededRng(seed + 1) } } : {}
    const engine = new Engine<Answer>({ profile, ...noise })
    this.#pinned = new PinnedEngine(engine, clock, step => this.#emit(step), options.exact)
  }

  close(): void {
    this.#pinned.close()
  }

  async handle(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const path = (req.url ?? '').split('?', 1)[0]
    switch (`${req.method} ${path}`) {
      case 'POST /v1/chat/completions':
        return this.#answer('chat', req, res)
      case 'POST /v1/completions':
        return this.#answer('completions', req, res)
      case 'GET /v1/models':
        return send(res, 200, 'application/json', this.#models())
      case 'GET /health':
        return send(res, 200, 'text/plain', '')
      case 'GET /metrics':
        return send(
          res,
          200,
          'text/plain; version=0.0.4; charset=utf-8',
          this.#metrics.render(this.#pinned.engine, this.#model),
        )
      default:
        return send(res, 404, 'application/json', '{"detail":"Not Found"}')
    }
  }

  #models(): string {
    const model = {
      id: this.#model,
      object: 'model',
      created: this.#created,
      owned_by: 'weir',
      max_model_len: this.#pinned.engine.profile.maxModelLen,
    }
    return JSON.stringify({ object: 'list', data: [model] })
  }

  async #answer(shape: Call['shape'], req: IncomingMessage, res: ServerResponse): Promise<void> {
    const fault = parseFault(req.headers['x-engine-fault'] as string | undefined)
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk as Buffer)
    if (fault?.name === 'hang') return
    if (fault?.name === 'slow-head') await new Promise(resolve => setTimeout(resolve, fault.arg).unref())
    if (res.destroyed) return
    if (fault?.name === 'status') {
      throw new CallError(fault.arg, 'InternalServerError', `status ${fault.arg}, as asked for`)
    }
    if (fault?.name === 'html') return send(res, 200, 'text/html', '<html><body>Sign in</body></html>')
    const call = readCall(shape, req.headers, Buffer.concat(chunks), this.#model)
    if (fault?.name === 'refuse-usage' && call.streamOptions) {
      throw new CallError(400, 'BadRequestError', 'stream_options: unknown member')
    }
    this.#submit(call, fault, res)
  }

  #submit(call: Call, fault: Fault | undefined, res: ServerResponse): void {
    const most = this.#pinned.engine.profile.maxModelLen
    const room = most - call.promptTokens
    if (room < (call.maxTokens ?? 1)) {
      throw new CallError(
        400,
        'BadRequestError',
        `This model's maximum context length is ${most} tokens. However, you requested ${call.maxTokens ?? 1} output tokens and your prompt contains ${call.promptTokens} input tokens.`,
      )
    }
    const natural = call.outputTokens ?? drawLength(this.#lengths, this.#lengthRng)
    const cap = call.maxTokens ?? room
    const answer = new Answer(res, {
      id: ++this.#calls,
      call,
      fault,
      model: this.#model,
      outputTokens: Math.min(natural, cap),
      tokensPerStep: call.tokensPerEvent ?? this.#tokensPerEvent,
      finish: natural > cap ? 'length' : 'stop',
      stampMs: clock.now,
    })
    const sequence = this.#pinned.submit(answer)
    res.once('close', () => {
      if (sequence.state === 'ended' || sequence.state === 'aborted') return
      this.#pinned.abort(sequence)
      this.#metrics.finished.abort++
    })
  }

  #emit(step: Step<Answer>): void {
    const metrics = this.#metrics
    for (const sequence of step.emitted) {
      const answer = sequence.request
      if (answer.lastAt === undefined) {
        metrics.ttft.observe(step.endedAt - sequence.arrivedAt)
        metrics.queueTime.observe((sequence.scheduledAt ?? step.startedAt) - sequence.arrivedAt)
      } else {
        metrics.gap.observe(step.endedAt - answer.lastAt)
      }
      answer.lastAt = step.endedAt
      this.#send(sequence)
    }
    for (const sequence of step.ended) metrics.endToEnd.observe(step.endedAt - sequence.arrivedAt)
  }

  #send(sequence: Sequence<Answer>): void {
    const failed = sequence.request.tokens(sequence)
    if (failed !== undefined) {
      this.#pinned.abort(sequence)
      this.#metrics.finished[failed]++
    } else if (sequence.state === 'ended') {
      this.#metrics.finished[sequence.request.finish]++
    }
  }
}

function send(res: ServerResponse, status: number, type: string, body: string): void {
  res.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body) })
  res.end(body)
}

/** What a request's handler threw: a refusal becomes its answer, anything else ends the connection. */
function fail(res: ServerResponse, error: unknown): void {
  if (res.headersSent || res.destroyed) {
    res.destroy()
  } else if (error instanceof CallError) {
    send(res, error.status, 'application/json', errorBody(error.status, error.type, error.message))
  } else {
    const status = error instanceof RangeError ? 400 : 500
    const type = status === 400 ? 'BadRequestError' : 'InternalServerError'
    send(res, status, 'application/json', errorBody(status, type, String(error)))
  }
}
