/** A problem of the config: where it is, what was got, what is allowed, how to fix it; and how all of them read. */

export type Path = readonly (string | number)[]

export interface Problem {
  readonly file: string
  /** `classes.chat.slo.target.percentile`, `routes[2].class`; '' for the file as a whole. */
  readonly path: string
  /** From 1; undefined for a value that no file holds. */
  readonly line: number | undefined
  readonly column: number | undefined
  readonly got: string
  readonly allowed: string
  readonly fix: string
}

export function showPath(path: Path): string {
  let shown = ''
  for (const step of path) {
    if (typeof step === 'number') shown += `[${step}]`
    else if (/^[\w-]+$/.test(step)) shown += shown === '' ? step : `.${step}`
    else shown += `[${JSON.stringify(step)}]`
  }
  return shown
}

/** A value for `got`: short, on one line, and without what a URL may hide. */
export function showValue(value: unknown): string {
  if (value === null || value === undefined) return 'nothing'
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : 'a list'
  if (typeof value === 'object') {
    const keys = Object.keys(value)
    return keys.length === 0 ? 'an empty object' : `an object with ${listed(keys)}`
  }
  const shown = JSON.stringify(typeof value === 'string' ? value.replace(/\/\/[^/@\s]*@/, '//…@') : value)
  return shown.length > 80 ? `${shown.slice(0, 79)}…` : shown
}

/** The first few, and a sign that there are more. */
export function listed(names: readonly string[], most = 5): string {
  return names.length > most ? `${names.slice(0, most).join(', ')}, …` : names.join(', ')
}

/**
 * The known name that was probably meant: at most a third of its letters away, counting a swap of two
 * neighbours as one change.
 */
export function nearest(got: string, known: readonly string[]): string | undefined {
  let best: string | undefined
  let least = Number.POSITIVE_INFINITY
  for (const name of known) {
    const distance = editDistance(got.toLowerCase(), name.toLowerCase())
    if (distance < least && distance <= Math.max(1, Math.floor(Math.max(got.length, name.length) / 3))) {
      best = name
      least = distance
    }
  }
  return best
}

/** Optimal string alignment distance. */
function editDistance(a: string, b: string): number {
  let before: number[] = []
  let above = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const change = (above[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)
      let least = Math.min(change, (above[j] ?? 0) + 1, (row[j - 1] ?? 0) + 1)
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        least = Math.min(least, (before[j - 2] ?? 0) + 1)
      }
      row.push(least)
    }
    before = above
    above = row
  }
  return above[b.length] ?? 0
}

/**
 * All problems as one text, by file and line, ending in a newline.
 * @param noun  what to call them in the head line: `problem`, `warning`
 */
export function showProblems(problems: readonly Problem[], noun = 'problem'): string {
  return [...new Set(problems.map(problem => problem.file))]
    .map(file => {
      const here = problems.filter(problem => problem.file === file)
      const head = `${file}: ${here.length} ${noun}${here.length === 1 ? '' : 's'}\n`
      return head + here.map(problem => `\n${showProblem(problem)}`).join('')
    })
    .join('\n')
}

function showProblem({ path, line, got, allowed, fix }: Problem): string {
  const head = `${path === '' ? 'the file' : path}${line === undefined ? '' : `   (line ${line})`}`
  return `${head}\n  got      ${got}\n  allowed  ${allowed}\n  fix      ${fix}\n`
}
