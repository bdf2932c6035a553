/** Hands on an answer's plain form where its body came compressed, although it was asked for plain. */
import type { AnswerHandler, CallFailure } from './call.js'
import { canUnpack, type Encoding, Unpacker } from './unpacker.js'

/** The compressed answer's call. */
export interface Source {
  abort(): void
  /** There is room again after `PlainAnswer.data` returned false. */
  flow(): void
}

/**
 * Tells the head of an answer to `handler`, or breaks the call where its coding is unknown.
 * @returns who takes the rest of the answer: `handler` itself, where the body is plain
 */
export function plainly(
  status: number,
  headers: readonly string[],
  handler: AnswerHandler,
  source: Source,
): AnswerHandler | PlainAnswer {
  const encoding = encodingOf(headers)
  if (encoding === undefined) {
    handler.head(status, headers)
    return handler
  }
  if (!canUnpack(encoding)) {
    source.abort()
    handler.broke({
      kind: 'reset',
      detail: `answered in ${encoding.slice(0, 20)}, which was not asked for`,
    })
    return handler
  }
  const plain = new PlainAnswer(encoding, handler, source)
  handler.head(status, plainHead(headers))
  return plain
}

/** Takes the compressed answer behind its head. */
export class PlainAnswer {
  private readonly unpacker: Unpacker
  private over = false

  /** @param source  aborted when what comes is of no use */
  constructor(
    encoding: Encoding,
    private readonly handler: AnswerHandler,
    source: Source,
  ) {
    this.unpacker = new Unpacker(encoding, {
      data: chunk => this.over || handler.data(chunk),
      end: () => {
        if (!this.over) handler.end()
      },
      broke: error => {
        if (this.over) return
        const code = 'code' in error && typeof error.code === 'string' ? error.code : error.name
        source.abort()
        handler.broke({ kind: 'reset', detail: `its ${encoding} body cannot be unpacked: ${code}` })
      },
      drain: () => source.flow(),
    })
  }

  data(chunk: Buffer): boolean {
    // zlib reads it later, in another thread.
    return this.unpacker.push(Buffer.from(chunk))
  }

  end(): void {
    this.unpacker.end()
  }

  /** Hands on first what can be unpacked of what came. */
  broke(failure: CallFailure): void {
    this.unpacker.flushed(() => {
      if (this.over) return
      this.stop()
      this.handler.broke(failure)
    })
  }

  resume(): void {
    this.unpacker.resume()
  }

  /** Nothing more is handed on. */
  stop(): void {
    this.over = true
    this.unpacker.destroy()
  }
}

/** The coding of a body that is not plain. */
function encodingOf(headers: readonly string[]): string | undefined {
  let found: string | undefined
  for (let i = 0; i < headers.length; i += 2) {
    if (headers[i]?.length !== 16 || headers[i]?.toLowerCase() !== 'content-encoding') continue
    found = found === undefined ? (headers[i + 1] ?? '') : `${found},${headers[i + 1]}`
  }
  const encoding = found?.trim().toLowerCase()
  return encoding === undefined || encoding === '' || encoding === 'identity' ? undefined : encoding
}

/** Without what is true of the compressed body only. */
function plainHead(headers: readonly string[]): string[] {
  const plain: string[] = []
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] ?? ''
    if (/^content-(encoding|length)$/i.test(name)) continue
    plain.push(name, headers[i + 1] ?? '')
  }
  return plain
}
