/** The lines of a report, as text for a terminal or as Markdown for a page. */

export type Line =
  | { readonly kind: 'title' | 'section'; readonly text: string }
  | { readonly kind: 'row'; readonly name: string; readonly text: string }

export function text(lines: readonly Line[]): string {
  const width = Math.max(...lines.map(line => (line.kind === 'row' ? line.name.length : 0)))
  return lines
    .map(line => {
      if (line.kind === 'row') return `  ${line.name.padEnd(width)}  ${line.text}\n`
      return line.kind === 'title' ? `${line.text}\n` : `\n${line.text}\n`
    })
    .join('')
}

export function markdown(lines: readonly Line[]): string {
  return lines
    .map(line => {
      if (line.kind === 'row') return `| ${line.name} | ${line.text} |\n`
      return line.kind === 'title' ? `# ${line.text}\n` : `\n## ${line.text}\n\n| | |\n|---|---|\n`
    })
    .join('')
}
