/** Which paths may go to an upstream: those that it cannot read as another one. */
import { badRequest } from './chat.js'

/** Some servers decode more than once. */
const DECODINGS = 3

/**
 * @returns the path, as it was
 * @throws Refusal for dot segments, however they are written, and for what is no path
 */
export function checkedPath(path: string): string {
  let plain = path
  for (let i = 0; i < DECODINGS; i++) {
    const decoded = decode(plain)
    if (decoded === undefined && i === 0) throw badRequest('The path has a % that begins no escape.')
    plain = decoded ?? plain
    if (/[\0-\x1f\x7f]/.test(plain)) throw badRequest('The path has control characters.')
    if (plain.split(/[/\\]/).some(segment => segment === '.' || segment === '..')) {
      throw badRequest('The path has "." or ".." as a segment. Send it without.')
    }
  }
  return path
}

function decode(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}
