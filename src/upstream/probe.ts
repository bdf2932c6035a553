/** Asks an upstream what it is: its models, by `GET /v1/models`. */
import { request } from 'undici'
import type { Ms } from '../time.js'

const PATIENCE_MS: Ms = 5000
/** A list of models is small; more is not one. */
const MAX_BYTES = 4 * 1024 * 1024

/**
 * The ids of `GET /v1/models`.
 * @param base    scheme://host:port and a path before `/v1`, if any
 * @param apiKey  sent as bearer token
 * @throws Error with what went wrong, when it does not answer in 5 s, or not with a list of models
 */
export async function modelsOf(base: string, apiKey: string | undefined): Promise<string[]> {
  const url = `${base}/v1/models`
  const signal = AbortSignal.timeout(PATIENCE_MS)
  const headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }
  const { statusCode, body } = await request(url, { signal, headers, maxRedirections: 0 } as object).catch(
    error => {
      throw new Error(`no answer to GET ${url}: ${reasonOf(error)}`, { cause: error })
    },
  )
  if (statusCode !== 200) {
    await body.dump().catch(() => undefined)
    throw new Error(`GET ${url} answered ${statusCode}`)
  }
  let text = ''
  for await (const chunk of body) {
    text += String(chunk)
    if (text.length > MAX_BYTES) throw new Error(`GET ${url} answered more than ${MAX_BYTES} bytes`)
  }
  const models = idsOf(text)
  if (models === undefined) throw new Error(`GET ${url} did not answer with a list of models`)
  return models
}

function idsOf(text: string): string[] | undefined {
  try {
    const list: unknown = JSON.parse(text)
    if (typeof list !== 'object' || list === null || !('data' in list) || !Array.isArray(list.data))
      return undefined
    return list.data.flatMap((entry: unknown) =>
      typeof entry === 'object' && entry !== null && 'id' in entry && typeof entry.id === 'string'
        ? [entry.id]
        : [],
    )
  } catch {
    return undefined
  }
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const code = 'code' in error && typeof error.code === 'string' ? error.code : undefined
  return error.name === 'TimeoutError' ? `nothing within ${PATIENCE_MS / 1000} s` : (code ?? error.message)
}
