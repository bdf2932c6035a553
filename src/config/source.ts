/** YAML text to plain data that remembers where each value stands, with `${ENV}` filled in on its scalars. */
import {
  Document,
  isAlias,
  isMap,
  isNode,
  isPair,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  parseDocument,
  type Scalar,
  visit,
} from 'yaml'
import { type Path, type Problem, showPath } from './error.js'

export type Env = Readonly<Record<string, string | undefined>>

/** What a problem says besides its place. */
export type Complaint = Pick<Problem, 'got' | 'allowed' | 'fix'>

export class Source {
  readonly file: string
  readonly #doc: Document
  readonly #lines: LineCounter | undefined
  readonly #filled = new Map<string, string>()
  readonly problems: Problem[] = []

  private constructor(file: string, doc: Document, lines: LineCounter | undefined) {
    this.file = file
    this.#doc = doc
    this.#lines = lines
  }

  /** Syntax errors and duplicate keys are in `problems` afterwards. */
  static fromText(file: string, text: string): Source {
    const lines = new LineCounter()
    const doc = parseDocument(text, { lineCounter: lines, prettyErrors: false })
    const source = new Source(file, doc, lines)
    const mistakes = [...doc.errors, ...doc.warnings]
    // What follows a syntax error is misread, so only the first one is worth telling.
    const syntax = mistakes.find(mistake => mistake.code !== 'DUPLICATE_KEY')
    if (syntax !== undefined) {
      const { line, col } = lines.linePos(syntax.pos[0])
      const bare = /[{,:]\s*\$\{/.test(text.split('\n')[line - 1] ?? '')
      source.problems.push({
        file,
        path: '',
        line,
        column: col,
        // Without the text it stumbled on, which may be a key.
        got: syntax.message.replace(/: ".*"$/s, ''),
        allowed: 'YAML 1.2, one document',
        fix: bare
          ? `put \${…} in quotes: "\${NAME}"`
          : 'correct the YAML here or just above; quote texts with : # { [ * & ! in them',
      })
    }
    for (const { code, pos } of mistakes) {
      if (code !== 'DUPLICATE_KEY') continue
      const { line, col } = lines.linePos(pos[0])
      const path = showPath(source.#keyAt(pos[0]) ?? [])
      const complaint = { got: 'the same key again', allowed: 'each key once', fix: 'remove one of the two' }
      source.problems.push({ file, path, line, column: col, ...complaint })
    }
    return source
  }

  static fromData(name: string, data: unknown): Source {
    return new Source(name, new Document(data), undefined)
  }

  /** True where nothing can be made of the text at all. */
  get broken(): boolean {
    return this.#doc.errors.some(error => error.code !== 'DUPLICATE_KEY')
  }

  /** Puts `value` in place of what the text says, missing parents included. */
  set(path: Path, value: unknown): void {
    for (let depth = 0; depth < path.length; depth++) {
      const parent = depth === 0 ? this.#doc.contents : this.#doc.getIn(path.slice(0, depth), true)
      if (parent === undefined) break
      // Left as it is: validation will say that it should be an object.
      if (!isMap(parent)) return
    }
    this.#doc.setIn(path, this.#doc.createNode(value))
  }

  /** Fills `${NAME}` and `${NAME:-default}` in every scalar value. Unset ones are problems. */
  fill(env: Env): void {
    visit(this.#doc, {
      Scalar: (key, node, ancestors) => {
        if (key === 'key' || typeof node.value !== 'string' || !node.value.includes('${')) return
        this.#fillOne(node, pathOf(node, ancestors), node.value, env)
      },
    })
  }

  #fillOne(node: Scalar, path: Path, text: string, env: Env): void {
    let whole = true
    const filled = text.replace(
      /\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})?/g,
      (piece, name: string | undefined, fallback: string | undefined, otherwise: string | undefined) => {
        if (name === undefined) {
          this.complain(path, {
            got: 'a ${ that names no variable',
            allowed: `\${NAME} or \${NAME:-default}`,
            fix: 'write the name in capitals, digits and _, and close it with }',
          })
        } else {
          const value = env[name]
          if (value !== undefined && (value !== '' || fallback === undefined)) return value
          if (fallback !== undefined) return otherwise ?? ''
          this.complain(path, {
            got: `\${${name}}, which is not set`,
            allowed: 'a variable that is set in the environment of Weir',
            fix: `set ${name}, or give a default: \${${name}:-…}`,
          })
        }
        whole = false
        return piece
      },
    )
    node.value = filled
    if (whole) this.#filled.set(showPath(path), text)
  }

  /** The text with `${…}` that the value at `path` was filled from. */
  filledFrom(path: Path): string | undefined {
    return this.#filled.get(showPath(path))
  }

  /** Plain data; `undefined` and a problem when an alias leads nowhere, or aliases multiply beyond reason. */
  data(): unknown {
    try {
      return this.#doc.toJS()
    } catch (error) {
      this.complain([], {
        got: error instanceof Error ? error.message : String(error),
        allowed: 'an alias (*name) after its anchor (&name), 100 at most',
        fix: 'correct the aliases, or write the values out',
      })
      return undefined
    }
  }

  /** Adds a problem about the value at `path`, about its key, or about the nearest parent there is. */
  complain(path: Path, complaint: Complaint, at: 'value' | 'key' = 'value'): void {
    if (at === 'value' && this.problems.some(problem => problem.path === showPath(path))) return
    this.problems.push(this.problem(path, complaint, at))
  }

  problem(path: Path, complaint: Complaint, at: 'value' | 'key' = 'value'): Problem {
    const offset = this.#offset(path, at)
    const place = offset === undefined ? undefined : this.#lines?.linePos(offset)
    return { file: this.file, path: showPath(path), line: place?.line, column: place?.col, ...complaint }
  }

  #offset(path: Path, at: 'value' | 'key'): number | undefined {
    let node: unknown = this.#doc.contents
    let offset = path.length === 0 ? rangeStart(node) : undefined
    for (const [depth, step] of path.entries()) {
      if (isAlias(node)) node = node.resolve(this.#doc)
      let key: unknown
      if (isSeq(node)) node = node.items[Number(step)]
      else if (isMap(node)) {
        const pair = node.items.find(pair => isScalar(pair.key) && String(pair.key.value) === String(step))
        key = pair?.key
        node = pair?.value
      } else node = undefined
      if (isNode(node) && node.range == null) return undefined
      // A missing member is looked for at its parent's key, where the reader will add it.
      const value = at === 'value' && depth === path.length - 1 ? rangeStart(node) : undefined
      const found = value ?? rangeStart(key) ?? rangeStart(node)
      if (found === undefined) return offset
      offset = found
    }
    return offset
  }

  #keyAt(offset: number): Path | undefined {
    let found: Path | undefined
    visit(this.#doc, {
      Pair: (_key, pair, ancestors) => {
        if (!isScalar(pair.key) || rangeStart(pair.key) !== offset) return
        found = [...pathOf(undefined, ancestors), String(pair.key.value)]
        return visit.BREAK
      },
    })
    return found
  }
}

function rangeStart(node: unknown): number | undefined {
  return isNode(node) ? node.range?.[0] : undefined
}

/** Steps from the document to `node`, whose parents are `ancestors`, outermost first. */
function pathOf(node: Node | undefined, ancestors: readonly unknown[]): Path {
  const line = node === undefined ? ancestors : [...ancestors, node]
  const path: (string | number)[] = []
  for (const [depth, at] of line.entries()) {
    if (isPair(at) && isScalar(at.key)) path.push(String(at.key.value))
    else if (isSeq(at) && line[depth + 1] !== undefined) path.push(at.items.indexOf(line[depth + 1]))
  }
  return path
}
