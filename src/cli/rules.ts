/** `weir rules`: recording and alert rules for the configured SLOs, or the SLOs themselves for tools that make rules. */
import { parseArgs } from 'node:util'
import { stringify } from 'yaml'
import { showProblems } from '../config/error.js'
import { DEFAULT_FILES, defaultFile, load } from '../config/load.js'
import { durationMs, PATTERNS, showDuration } from '../config/units.js'
import { openSloObjects } from '../rules/openslo.js'
import { prometheusRules } from '../rules/prometheus.js'
import { leftOut, nameOf, type Promised, promisesOf } from '../rules/promised.js'
import { pyrraCanAlert, pyrraObjects } from '../rules/pyrra.js'
import { slothKnows, slothSpec, slothWindows } from '../rules/sloth.js'
import type { Command, Io } from './command.js'
import { showSlo } from './show-slo.js'

const FORMATS = ['prometheus', 'sloth', 'pyrra', 'openslo'] as const
type Format = (typeof FORMATS)[number]

/** What is printed: lines for the reader, then the documents. */
interface Printed {
  readonly notes: readonly string[]
  readonly documents: readonly unknown[]
}

export const rules: Command = {
  name: 'rules',
  summary: 'print alert rules for the SLOs of a config',
  help: `weir rules [-c FILE] [--format prometheus|sloth|pyrra|openslo] [--runbook URL] [--period 30d] [--json]

Prints recording rules and burn-rate alerts for the target and the guard of every class. The guard pages, the target
opens tickets. An alert that could not fire, or would fire on an SLO that is kept, is left out, and a comment says so.

  -c, --config FILE   the config (default: ./${DEFAULT_FILES.join(', else ./')})
  --format NAME       prometheus (default): a rule file; sloth, pyrra, openslo: the SLOs, for those tools
  --runbook URL       where people who are paged can read docs/runbook.md (default: that path)
  --period 30d        only SLOs of this period. Sloth takes one period a run; without it, that of the first guard
  --json              the same as JSON

Exit codes: 0 printed, 1 the config has problems, 2 it could not be read, or an option is wrong.

Example
  weir rules -c config/weir.yaml --runbook https://wiki.example/weir > weir-rules.yml && promtool check rules weir-rules.yml
`,
  async run(args, io) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        config: { type: 'string', short: 'c' },
        format: { type: 'string', default: 'prometheus' },
        runbook: { type: 'string', default: 'docs/runbook.md' },
        period: { type: 'string' },
        json: { type: 'boolean', default: false },
      },
    })
    const format = FORMATS.find(known => known === values.format)
    if (format === undefined) return refuse(io, '--format', values.format, FORMATS.join(', '))
    const { period } = values
    if (period !== undefined && !new RegExp(PATTERNS.duration).test(period))
      return refuse(io, '--period', period, 'a duration, such as 30d')
    const file = values.config ?? defaultFile()
    const loaded = load(file, io.env)
    if (loaded.ok === undefined) {
      io.err(showProblems(loaded.problems))
      return loaded.unreadable ? 2 : 1
    }
    const all = promisesOf(loaded.ok, showSlo)
    const periods = [...new Set(all.map(({ periodMs }) => periodMs))]
    const asked = period === undefined ? undefined : durationMs(period)
    if (asked !== undefined && !periods.includes(asked))
      return refuse(io, '--period', period, periods.map(showDuration).join(', '))
    const { notes, documents } = printed(format, all, asked, values.runbook)
    if (values.json) io.out(`${JSON.stringify(documents.length === 1 ? documents[0] : documents, null, 2)}\n`)
    else {
      const made = `Made by: weir rules -c ${file}${format === 'prometheus' ? '' : ` --format ${format}`}`
      io.out(
        [made, ...notes].map(note => `${`# ${note}`.trimEnd()}\n`).join('') +
          documents.map(document => stringify(document, YAML)).join('---\n'),
      )
    }
    return 0
  },
}

/** No anchors, and no line broken inside a query. */
const YAML = { lineWidth: 0, aliasDuplicateObjects: false } as const

function refuse(io: Io, flag: string, got: string | undefined, allowed: string): number {
  io.err(`weir rules: ${flag}: got ${JSON.stringify(got)}; allowed: ${allowed}\n`)
  return 2
}

function printed(
  format: Format,
  all: readonly Promised[],
  period: number | undefined,
  runbook: string,
): Printed {
  const promises = all.filter(({ periodMs }) => period === undefined || periodMs === period)
  const silent = promises.flatMap(promised => leftOut(promised).map(why => `${nameOf(promised)}: ${why}.`))
  switch (format) {
    case 'prometheus':
      return prometheus(promises, silent, runbook)
    case 'sloth':
      return sloth(all, period, runbook)
    case 'pyrra':
      return {
        notes: promises
          .filter(promised => !pyrraCanAlert(promised))
          .map(
            promised =>
              `${nameOf(promised)}: Pyrra's alerts are switched off; its quickest, 14x, would need ` +
              `${Math.round(1400 * promised.allowed)} % misses. Take them from weir rules.`,
          ),
        documents: pyrraObjects(promises, runbook),
      }
    case 'openslo':
      return {
        notes: [
          ...silent,
          'The AlertNotificationTargets weir-page and weir-ticket are yours to define.',
          ...clauseNotes(promises),
        ],
        documents: openSloObjects(promises),
      }
  }
}

function prometheus(promises: readonly Promised[], silent: readonly string[], runbook: string): Printed {
  const longest = Math.max(...promises.map(({ periodMs }) => periodMs))
  return {
    notes: [
      `Name it under rule_files. A budget of ${showDuration(longest)} is true with storage.tsdb.retention.time of as much or more.`,
      ...silent,
    ],
    documents: [{ groups: prometheusRules(promises, { runbook }) }],
  }
}

function sloth(all: readonly Promised[], asked: number | undefined, runbook: string): Printed {
  const period = asked ?? all.find(({ slo }) => slo === 'guard')?.periodMs ?? 0
  const promises = all.filter(({ periodMs }) => periodMs === period)
  const others = [...new Set(all.map(({ periodMs }) => periodMs))].filter(ms => ms !== period)
  const windows = promises.map(slothWindows).find(known => known !== undefined)
  const length = showDuration(period)
  const own = slothKnows(period) || windows === undefined
  return {
    notes: [
      `Sloth takes one period a run: these are the SLOs of ${length}.` +
        others
          .map(ms => ` With --period ${showDuration(ms)} it prints those of ${showDuration(ms)}.`)
          .join(''),
      ...(own
        ? []
        : [
            `Its windows for ${length}, as ${length}.yaml in a folder of its own (windows/):`,
            ...stringify(windows, YAML)
              .trimEnd()
              .split('\n')
              .map(line => `  ${line}`),
          ]),
      `sloth generate -i THIS --default-slo-period=${length}${own ? '' : ' --slo-period-windows-path=windows'}`,
      ...clauseNotes(promises),
    ],
    documents: [slothSpec(promises, runbook)],
  }
}

function clauseNotes(promises: readonly Promised[]): readonly string[] {
  return promises
    .filter(({ mode, kind }) => kind === 'stream' && mode === 'clause')
    .map(
      promised =>
        `${nameOf(promised)}: each clause is an SLO of its own; requests that failed are in neither. weir rules counts them.`,
    )
}
