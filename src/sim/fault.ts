/** Faults that a request asks for by header, so that a proxy can be tried against them. */

/**
 * `x-engine-fault: name` or `name=number`. N counts output tokens already sent.
 * - `status=S`      answers with that status and a JSON error
 * - `html`          answers 200 with a page of HTML
 * - `hang`          takes the request and never answers
 * - `slow-head=MS`  waits so long before it looks at the request
 * - `refuse-usage`  400 where the body has `stream_options`
 * - `cut=N`         after N tokens closes the connection in order (FIN), the body unfinished
 * - `reset=N`       after N tokens resets the connection (RST)
 * - `stall=N`       after N tokens sends nothing more and holds the connection
 * - `error=N`       after N tokens sends an error event, then `[DONE]`, as vLLM does
 * - `no-done`       ends a stream without `[DONE]`
 * - `no-usage`      leaves out the usage, asked for or not
 */
export type Fault =
  | { readonly name: 'html' | 'hang' | 'refuse-usage' | 'no-done' | 'no-usage' }
  | {
      readonly name: 'status' | 'slow-head' | 'cut' | 'reset' | 'stall' | 'error'
      readonly arg: number
    }

const PLAIN = ['html', 'hang', 'refuse-usage', 'no-done', 'no-usage'] as const
/** With what a bare name stands for. */
const NUMBERED = { status: 503, 'slow-head': 1000, cut: 1, reset: 1, stall: 1, error: 1 } as const

/** @throws RangeError where the header names no fault that there is, or gives it no whole number */
export function parseFault(header: string | undefined): Fault | undefined {
  if (header === undefined) return undefined
  const [name = '', arg] = header.trim().split('=', 2)
  const plain = PLAIN.find(known => known === name)
  if (plain !== undefined && arg === undefined) return { name: plain }
  if (Object.hasOwn(NUMBERED, name)) {
    const numbered = name as keyof typeof NUMBERED
    const number = arg === undefined ? NUMBERED[numbered] : Number(arg)
    if (Number.isInteger(number) && number >= 0 && arg !== '') return { name: numbered, arg: number }
  }
  const known = [...PLAIN, ...Object.keys(NUMBERED).map(each => `${each}=N`)].join(', ')
  throw new RangeError(`no fault "${header}"; there are ${known}`)
}
