/** The second opinion: what a stream tells, by eventsource-parser and JSON.parse. */
import { createParser } from 'eventsource-parser'
import type { StreamShape } from '../../src/sse/meter.js'
import type { Json } from './streams.js'

/** What one event's JSON tells. */
interface Told {
  readonly failed: boolean
  /** Where an error's status may be told, the first first. */
  readonly codes: readonly unknown[]
  readonly choices: readonly {
    readonly index: number
    readonly visible: boolean
    readonly other: boolean
    readonly finished: boolean
  }[]
  readonly usage?: Json | undefined
  /** Nothing but usage: the event may be taken out. */
  readonly usageOnly?: boolean
  readonly done?: boolean
  readonly aborted?: boolean
  readonly id?: unknown
}

type Teller = (root: Json) => Told

const object = (value: unknown): Json | undefined =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined
const filled = (value: unknown): boolean =>
  (typeof value === 'string' || Array.isArray(value)) && value.length > 0
const isText = (value: unknown): boolean => typeof value === 'string' && value !== ''
const isFailure = (value: unknown): boolean => object(value) !== undefined || isText(value)
const count = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined)

/** One teller a stream: the messages shape adds up what its events tell. */
const TELLERS: Readonly<Record<Exclude<StreamShape, 'completions'>, () => Teller>> = {
  chat: () => root => {
    const list = Array.isArray(root['choices']) ? (root['choices'] as Json[]) : []
    const used = object(root['usage'])
    const inner = object(root['error'])
    return {
      failed: root['object'] === 'error' || isFailure(root['error']),
      codes: [inner?.['code'], inner?.['status'], root['code']],
      choices: list.map(one => ({
        index: one['index'] as number,
        ...outputOf((one['delta'] ?? {}) as Json),
        finished: isText(one['finish_reason']),
      })),
      aborted: list.some(one => one['finish_reason'] === 'abort'),
      usageOnly: used !== undefined && list.length === 0,
      usage:
        used?.['completion_tokens'] === undefined
          ? undefined
          : {
              promptTokens: used['prompt_tokens'] ?? 0,
              completionTokens: used['completion_tokens'],
              cachedTokens: object(used['prompt_tokens_details'])?.['cached_tokens'],
              reasoningTokens: object(used['completion_tokens_details'])?.['reasoning_tokens'],
            },
    }
  },

  responses: () => root => {
    const type = String(root['type'])
    const response = object(root['response']) ?? {}
    const inner = object(response['error']) ?? object(root['error'])
    const failed =
      type === 'error' ||
      type === 'response.failed' ||
      response['status'] === 'failed' ||
      isFailure(root['error']) ||
      isFailure(response['error'])
    const done = type === 'response.completed' || type === 'response.incomplete'
    const delta = /^.*\.delta$/s.test(type) && filled(root['delta'])
    const seen = /^response\.(output_text|refusal)\.delta$/.test(type)
    const call =
      type === 'response.output_item.added' && /_call$/.test(String(object(root['item'])?.['type'] ?? ''))
    const used = done ? object(response['usage']) : undefined
    return {
      failed,
      codes: [inner?.['code'], inner?.['status'], root['code']],
      choices:
        delta || call || done
          ? [{ index: 0, visible: delta && seen, other: (delta && !seen) || call, finished: done }]
          : [],
      done,
      aborted: response['status'] === 'cancelled',
      id: response['id'],
      usage:
        used?.['output_tokens'] === undefined
          ? undefined
          : {
              promptTokens: used['input_tokens'] ?? 0,
              completionTokens: used['output_tokens'],
              cachedTokens: count(object(used['input_tokens_details'])?.['cached_tokens']),
              reasoningTokens: count(object(used['output_tokens_details'])?.['reasoning_tokens']),
            },
    }
  },

  messages: () => {
    const total: Record<string, number> = {}
    const add = (used: Json | undefined, names: readonly string[]) => {
      for (const name of names) {
        const value = count(used?.[name])
        if (value !== undefined) total[name] = value
      }
    }
    const prompt = ['input_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens']
    return root => {
      const message = root['type'] === 'message_start' ? object(root['message']) : undefined
      const delta = object(root['delta']) ?? {}
      const inner = object(root['error'])
      const statuses: Record<string, number> = {
        invalid_request_error: 400,
        billing_error: 402,
        overloaded_error: 529,
      }
      const ends = root['type'] === 'message_delta'
      const failed = root['type'] === 'error' || isFailure(root['error'])
      add(object(message?.['usage']), prompt)
      if (ends) {
        const used = object(root['usage'])
        add(used, [...prompt, 'output_tokens'])
        add(object(used?.['output_tokens_details']), ['thinking_tokens'])
      }
      const block = root['type'] === 'content_block_delta'
      const tool =
        root['type'] === 'content_block_start' &&
        /tool_use$/.test(String(object(root['content_block'])?.['type'] ?? ''))
      const visible = block && isText(delta['text'])
      const other = tool || (block && (isText(delta['thinking']) || isText(delta['partial_json'])))
      const finished = ends && isText(delta['stop_reason'])
      return {
        failed,
        codes: [inner?.['code'], inner?.['status'], statuses[String(inner?.['type'])], root['code']],
        choices: visible || other || finished ? [{ index: 0, visible, other, finished }] : [],
        done: root['type'] === 'message_stop',
        id: message?.['id'],
        usage:
          ends && object(root['usage']) !== undefined && total['output_tokens'] !== undefined
            ? {
                promptTokens: prompt.reduce((sum, name) => sum + (total[name] ?? 0), 0),
                completionTokens: total['output_tokens'],
                cachedTokens: total['cache_read_input_tokens'],
                reasoningTokens: total['thinking_tokens'],
              }
            : undefined,
      }
    }
  },
}

/** What one stream tells, from whole events, each with the time at which it is complete. */
export function judge(
  events: readonly { readonly text: string; readonly at: number }[],
  shape: keyof typeof TELLERS,
  takeUsage: boolean,
) {
  const told = {
    firstEvent: undefined as number | undefined,
    firstOutput: undefined as number | undefined,
    firstVisible: undefined as number | undefined,
    lastOutput: undefined as number | undefined,
    longestGap: undefined as number | undefined,
    marks: 0,
    longestChoiceMarks: 0,
    usage: undefined as Json | undefined,
    responseId: undefined as unknown,
    done: false,
    finished: false,
    aborted: false,
    error: undefined as Json | undefined,
    unparsed: 0,
    partial: false,
  }
  const tell = TELLERS[shape]()
  const perChoice = new Map<number, { marks: number; finished: boolean }>()
  const kept: string[] = []
  for (const { text, at } of events) {
    kept.push(text)
    for (const { event, data: raw } of parsed(text)) {
      told.firstEvent ??= at
      if (raw.trim() === '[DONE]') {
        if (shape === 'chat') told.done = true
        continue
      }
      let json: unknown
      try {
        json = JSON.parse(raw)
      } catch {
        if (raw.trim() !== '') told.unparsed++
        if (event === 'error') {
          told.error ??= { status: undefined, body: JSON.stringify({ error: { message: raw.trim() } }) }
        }
        continue
      }
      const seen = tell(object(json) ?? {})
      if (event === 'error' || seen.failed) {
        const status = seen.codes
          .map(code => (typeof code === 'number' || typeof code === 'string' ? Number(code) : Number.NaN))
          .find(code => code >= 400 && code <= 599)
        told.error ??= { status, body: raw.trim() }
        continue
      }
      if (takeUsage && shape === 'chat' && seen.usageOnly === true) kept.pop()
      if (isText(seen.id)) told.responseId ??= seen.id
      told.usage = seen.usage ?? told.usage
      if (seen.done === true) told.done = true
      if (seen.aborted === true) told.aborted = true
      let output = false
      for (const { index, visible, other, finished } of seen.choices) {
        const choice = perChoice.get(index) ?? { marks: 0, finished: false }
        perChoice.set(index, choice)
        if (visible) told.firstVisible ??= at
        if (visible || other) {
          output = true
          choice.marks++
        }
        if (finished) choice.finished = true
      }
      if (!output) continue
      told.firstOutput ??= at
      if (told.lastOutput !== undefined)
        told.longestGap = Math.max(told.longestGap ?? 0, at - told.lastOutput)
      told.lastOutput = at
      told.marks++
    }
  }
  const all = [...perChoice.values()]
  told.longestChoiceMarks = Math.max(0, ...all.map(choice => choice.marks))
  told.finished = all.length > 0 && all.every(choice => choice.finished)
  return { told, kept: kept.join('') }
}

function outputOf(one: Json): { visible: boolean; other: boolean } {
  const called = (value: unknown) =>
    filled((value as Json | undefined)?.['name']) || filled((value as Json | undefined)?.['arguments'])
  const calls = (one['tool_calls'] ?? []) as Json[]
  return {
    visible: filled(one['content']) || filled(one['refusal']),
    other:
      filled(one['reasoning_content']) ||
      filled(one['reasoning']) ||
      filled((one['audio'] as Json | undefined)?.['data']) ||
      calls.some(item => called(item['function'])) ||
      called(one['function_call']),
  }
}

export function parsed(text: string): { event: string | undefined; data: string }[] {
  const events: { event: string | undefined; data: string }[] = []
  const parser = createParser({ onEvent: ({ event, data }) => events.push({ event, data }) })
  parser.feed(text)
  // The parser waits for what follows a CR.
  parser.feed(':\n')
  return events
}
