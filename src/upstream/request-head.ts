/** Writes the head of a request: the framing is Weir's own, whatever the client's was. */
import type { CallRequest } from './call.js'

const NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const BAD_VALUE = /[^\t\x20-\x7e\x80-\xff]/
const BAD_PATH = /[^\x21-\xff]/

/**
 * @param host  as the origin of the replica has it
 * @param path  with the replica's base path
 * @param bytes  of the body
 * @returns one latin1 text up to the body; undefined where a line of it would be no header line
 */
export function requestHead(
  { method = 'POST', headers, body }: CallRequest,
  host: string,
  path: string,
  bytes: number,
): string | undefined {
  if (BAD_PATH.test(path)) return undefined
  let head = `${method} ${path} HTTP/1.1\r\nhost: ${host}\r\nconnection: keep-alive\r\n`
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] as string
    const value = headers[i + 1] as string
    if (!NAME.test(name) || BAD_VALUE.test(value)) return undefined
    head += `${name}: ${value}\r\n`
  }
  if (body !== undefined || method === 'POST') head += `content-length: ${bytes}\r\n`
  return `${head}\r\n`
}
