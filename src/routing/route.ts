/** One rule of `routes`: what it asks of a request, and what it gives it. */
import type { ClassId } from '../request.js'

export interface RouteSpec {
  /** All that are given must hold; undefined members are not asked. */
  readonly when: {
    /** Glob over the whole path; `*` stands for any characters. */
    readonly path: string | undefined
    /** Lower-case header name to a glob over its value. */
    readonly header: readonly (readonly [name: string, value: string])[]
    /** Glob over the model. */
    readonly model: string | undefined
    /** Label of the API key, exactly. */
    readonly key: string | undefined
    readonly stream: boolean | undefined
    readonly tools: boolean | undefined
    /** Bounds on `max_tokens`; a request without one matches neither. */
    readonly maxTokens: { readonly min: number | undefined; readonly max: number | undefined } | undefined
  }
  readonly cls: ClassId
  /** Model to ask the upstream for instead. */
  readonly rewriteModel: string | undefined
}
