/** `weir check`: is the config file right, and if not, everything that is wrong with it. */
import { parseArgs } from 'node:util'
import { showProblems } from '../config/error.js'
import { DEFAULT_FILES, defaultFile, load } from '../config/load.js'
import type { Resolved } from '../config/resolved.js'
import type { Command } from './command.js'
import { showSlo } from './show-slo.js'

export const check: Command = {
  name: 'check',
  summary: 'say everything that is wrong with a config file',
  help: `weir check [-c FILE] [--json]

Reads a config file as \`weir serve\` would, and says every problem at once: file, line, path, what was got, what is
allowed, how to fix it; then warnings, for what is legal but unwise.

  -c, --config FILE   the file (default: ./${DEFAULT_FILES.join(', else ./')})
  --json              one object: file, ok, problems, warnings, classes, pools, routes

Exit codes: 0 no problem, 1 problems, 2 the file could not be read.

Example
  weir check -c config/weir.yaml
`,
  async run(args, io) {
    const { values } = parseArgs({
      args: [...args],
      options: { config: { type: 'string', short: 'c' }, json: { type: 'boolean' } },
    })
    const file = values.config ?? defaultFile()
    const loaded = load(file, io.env)
    if (loaded.ok === undefined) {
      const { problems, unreadable } = loaded
      if (values.json) io.out(`${JSON.stringify({ file, ok: false, problems, warnings: [] })}\n`)
      else io.err(showProblems(problems))
      return unreadable ? 2 : 1
    }
    const { ok, warnings } = loaded
    if (values.json) io.out(`${JSON.stringify({ file, ok: true, problems: [], warnings, ...factsOf(ok) })}\n`)
    else
      io.out(`${summaryOf(file, ok)}${warnings.length === 0 ? '' : `\n${showProblems(warnings, 'warning')}`}`)
    return 0
  },
}

function factsOf({ policy }: Resolved) {
  const poolName = (id: number): string => policy.pools[id]?.name ?? ''
  return {
    classes: policy.classes.map(({ name, target, pools }) => ({
      name,
      target: showSlo(target),
      pools: pools.map(poolName),
    })),
    pools: policy.pools.map(({ name, model, replicas }) => ({
      name,
      model: model ?? '*',
      replicas: replicas.map(replica => replica.name),
    })),
    routes: policy.routes.length,
  }
}

function summaryOf(file: string, config: Resolved): string {
  const { classes, pools, routes } = factsOf(config)
  const lines = [
    `${file}: no problems`,
    '',
    ...classes.map(({ name, target, pools }) => `class  ${name}: ${target}; pools ${pools.join(', ')}`),
    ...pools.map(
      ({ name, model, replicas }) =>
        `pool   ${name}: ${model === '*' ? 'any model' : model} on ${replicas.join(', ')}`,
    ),
    `routes ${routes}; applications on ${config.listen.host}:${config.listen.port}, ` +
      `admin on ${config.admin.host}:${config.admin.port}, ` +
      (config.keys === undefined ? 'no keys' : `${config.keys.length} keys`),
  ]
  return `${lines.join('\n')}\n`
}
