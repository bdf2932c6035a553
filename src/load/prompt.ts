/** Makes prompts whose length and shared prefixes are those of a trace row; there is no text in a trace. */
import { hash } from 'node:crypto'
import type { Prefix } from './trace.js'

/** 64 common words: with the space before it each is 4 bytes, and one token in most vocabularies. */
const WORDS = wordsAsNumbers(
  'the and for are but not you all any can had her was one our out day get has him his how man new now old see two way ' +
    'who boy did its let put say she too use dad mom car far few got big end why try ask men run own set may act add ' +
    'age air art bad bed box buy',
)
const BLOCK_TOKENS = 64

/**
 * A prompt of exactly `tokens` x 4 bytes of ASCII that needs no JSON escape. Its leading blocks are named by the
 * prefix, so equal ids in one scope give equal bytes and hit an engine's prefix cache; what follows them is named by
 * `unique`. The same arguments give the same bytes on every run.
 * @param unique  a name no other request has
 */
export function promptText(tokens: number, prefix: Prefix | undefined, unique: string): Buffer {
  const text = new Uint32Array(tokens)
  let at = 0
  if (prefix !== undefined) {
    const parts = prefix.blockTokens / BLOCK_TOKENS
    for (const id of prefix.ids)
      for (let part = 0; part < parts && at < tokens; part++)
        at = writeBlock(text, at, `${prefix.scope}/${id}/${part}`)
  }
  for (let part = 0; at < tokens; part++) at = writeBlock(text, at, `${unique}//${part}`)
  return Buffer.from(text.buffer)
}

/** 64 words, one for each byte of the name's SHA-512, cut where the text ends. Returns where it stopped. */
function writeBlock(text: Uint32Array, from: number, name: string): number {
  const end = Math.min(from + BLOCK_TOKENS, text.length)
  const digest = hash('sha512', name, 'buffer')
  for (let at = from; at < end; at++) text[at] = WORDS[(digest[at - from] ?? 0) & 63] ?? 0
  return end
}

/** Four bytes each, in the byte order of this machine, so that they are written in one step. */
function wordsAsNumbers(words: string): Uint32Array {
  const bytes = new TextEncoder().encode(` ${words}`)
  return new Uint32Array(bytes.buffer, 0, bytes.length / 4)
}

export interface BodyOptions {
  readonly model: string
  readonly inputTokens: number
  readonly prefix: Prefix | undefined
  readonly unique: string
  /** Ask for `usage` at the end of the stream. */
  readonly askUsage: boolean
  /** For engines that do not obey the header: put this length into the body, which a router can read too. */
  readonly exactTokens: number | undefined
}

/** The JSON body of a streamed chat completion with that prompt as its one message. */
export function chatBody(options: BodyOptions): Buffer {
  const members =
    (options.askUsage ? ',"stream_options":{"include_usage":true}' : '') +
    (options.exactTokens === undefined ? '' : `,"max_tokens":${options.exactTokens},"ignore_eos":true`)
  return Buffer.concat([
    Buffer.from(`{"model":${JSON.stringify(options.model)},"messages":[{"role":"user","content":"`),
    promptText(options.inputTokens, options.prefix, options.unique),
    Buffer.from(`"}],"stream":true${members}}`),
  ])
}
