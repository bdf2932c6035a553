/** Globs in which `*` stands for any characters, none included, and everything else for itself. */

/**
 * Compiles a glob that has to match the whole text.
 * The parts between the stars are looked for from left to right, each once: no text makes it slow.
 */
export function glob(pattern: string): (text: string) => boolean {
  const [head = '', ...rest] = pattern.split('*')
  const tail = rest.pop()
  if (tail === undefined) return text => text === pattern
  return text => {
    if (!text.startsWith(head) || !text.endsWith(tail)) return false
    let at = head.length
    for (const part of rest) {
      const found = text.indexOf(part, at)
      if (found < 0) return false
      at = found + part.length
    }
    return at <= text.length - tail.length
  }
}
