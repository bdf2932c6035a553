/** Unpacks an answer's body that came compressed although it was asked for plain: event by event, as it comes. */
import {
  type BrotliDecompress,
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createInflateRaw,
  type Gunzip,
  type Inflate,
} from 'node:zlib'

/** Takes the plain body. Order: `data` any number of times, then one of the others. */
export interface Unpacked {
  /** Returns false to pause until `Unpacker.resume`. */
  data(chunk: Buffer): boolean
  end(): void
  /** The compressed bytes are not what their label says, or end too early. */
  broke(error: Error): void
  /** There is room again after a `push` that returned false. */
  drain(): void
}

const ENCODINGS = ['gzip', 'x-gzip', 'deflate', 'br'] as const
export type Encoding = (typeof ENCODINGS)[number]

export function canUnpack(encoding: string): encoding is Encoding {
  return ENCODINGS.includes(encoding as Encoding)
}

export class Unpacker {
  /** Made with the first byte: a body without one is none. */
  private stream: Gunzip | Inflate | BrotliDecompress | undefined

  constructor(
    private readonly encoding: Encoding,
    private readonly out: Unpacked,
  ) {}

  /** @returns false when it has more than it can hold: wait for `drain` */
  push(chunk: Buffer): boolean {
    this.stream ??= this.open(chunk)
    return this.stream.write(chunk)
  }

  /** The compressed body is whole. */
  end(): void {
    if (this.stream === undefined) this.out.end()
    else this.stream.end()
  }

  /** Nothing more will come: calls `fn` once all that did has been unpacked. */
  flushed(fn: () => void): void {
    if (this.stream === undefined) fn()
    // What is unpacked may be handed out a turn after it was written.
    else this.stream.write(Buffer.alloc(0), () => setImmediate(fn))
  }

  resume(): void {
    this.stream?.resume()
  }

  destroy(): void {
    this.stream?.destroy()
  }

  private open(first: Buffer): Gunzip | Inflate | BrotliDecompress {
    const stream = this.decoder(first)
    stream.on('data', (chunk: Buffer) => {
      if (!this.out.data(chunk)) stream.pause()
    })
    stream.on('drain', () => this.out.drain())
    stream.on('end', () => this.out.end())
    stream.on('error', error => this.out.broke(error))
    return stream
  }

  private decoder(first: Buffer): Gunzip | Inflate | BrotliDecompress {
    // Each write gives out all that it holds: an event must not wait for the next one.
    const flush = constants.Z_SYNC_FLUSH
    switch (this.encoding) {
      case 'br':
        return createBrotliDecompress({ flush: constants.BROTLI_OPERATION_FLUSH })
      case 'deflate':
        // By the RFC it has zlib's two bytes in front; some servers leave them out.
        return ((first[0] ?? 0) & 0x0f) === 8 ? createInflate({ flush }) : createInflateRaw({ flush })
      default:
        return createGunzip({ flush })
    }
  }
}
