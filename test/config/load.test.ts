// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the config fills these, not the test
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv } from 'ajv'
import t from 'tap'
import { parse } from 'yaml'
import { check } from '../../src/cli/check.js'
import type { Io } from '../../src/cli/command.js'
import { assumedConfig } from '../../src/config/assumed.js'
import { showProblems } from '../../src/config/error.js'
import { type Loaded, load, loadData, loadText, type Overrides } from '../../src/config/load.js'
import type { Resolved } from '../../src/config/resolved.js'

const MINUTE = 60_000
const DAY = 86_400_000

const SMALL = `
classes:
  chat:
    slo: { target: { percentile: 90, ttft: 500ms, tpot: 40ms } }
    workload: { model: small, input_tokens: { p50: 1000, p90: 2700 }, output_tokens: { p50: 130, p90: 420 } }
    pools: [main]
pools:
  main: { model: small, replicas: [http://10.0.0.1:8000] }
`

function resolved(loaded: Loaded): Resolved {
  if (loaded.ok === undefined) throw new Error(showProblems(loaded.problems))
  return loaded.ok
}

const fromText = (text: string, env: Record<string, string> = {}, overrides: Overrides = {}): Resolved =>
  resolved(loadText(text, env, { file: 'weir.yaml', ...overrides }))

t.test('three lines of class and pool are enough: the rest are the defaults of the docs', async t => {
  t.same(fromText(SMALL), {
    listen: { host: '127.0.0.1', port: 8080 },
    admin: { host: '127.0.0.1', port: 8081, token: undefined },
    keys: undefined,
    limits: {
      body: 32 * 1024 ** 2,
      headers: 16 * 1024,
      event: 8 * 1024 ** 2,
      headMs: MINUTE,
      bodyMs: 5 * MINUTE,
    },
    commitAfterMs: [30_000],
    overloadStatus: 503,
    stateDir: undefined,
    autoscale: { target: 0.7, down: 0.55, coldStartMs: 3 * MINUTE },
    sweeps: new Map(),
    cors: [],
    pools: [
      {
        id: 0,
        timeouts: { connectMs: 5000, firstTokenMs: 10 * MINUTE, stallMs: 2 * MINUTE, totalMs: undefined },
        apiKey: undefined,
        askUsage: true,
        passAuthorization: false,
        sendPriority: false,
        refuseMembers: [],
        allow: new Set(),
        engine: 'auto',
      },
    ],
    replicas: [{ id: 0, pool: 0, origin: 'http://10.0.0.1:8000', basePath: '' }],
    classIds: new Map([['chat', 0]]),
    policy: {
      classes: [
        {
          id: 0,
          name: 'chat',
          target: {
            percentile: 90,
            mode: 'joint',
            windowMs: 7 * DAY,
            clauses: { kind: 'stream', ttftMs: 500, tpotMs: 40 },
          },
          guard: {
            percentile: 99,
            mode: 'joint',
            windowMs: 30 * DAY,
            clauses: { kind: 'stream', ttftMs: 2000, tpotMs: 100 },
          },
          workload: {
            model: 'small',
            precision: undefined,
            inputTokens: { p50: 1000, p90: 2700 },
            outputTokens: { p50: 130, p90: 420 },
            cacheHit: 0,
          },
          priority: 0,
          pools: [0],
          queue: undefined,
          ownBounds: undefined,
        },
      ],
      pools: [
        {
          id: 0,
          name: 'main',
          model: 'small',
          replicas: [{ id: 0, pool: 0, name: '10.0.0.1:8000' }],
          maxInFlight: 32,
          gpusPerReplica: 1,
        },
      ],
      replicas: [{ id: 0, pool: 0, name: '10.0.0.1:8000' }],
      routes: [
        {
          when: {
            path: undefined,
            header: [],
            model: undefined,
            key: undefined,
            stream: undefined,
            tools: undefined,
            maxTokens: undefined,
          },
          cls: 0,
          rewriteModel: undefined,
        },
      ],
      retries: { share: 0.1, floor: 3 },
      admission: { theta: 0.15, fairness: 0.8 },
    },
  })
})

t.test('every key that is given arrives, in the units of the inside', async t => {
  const config = fromText(`
listen: { host: 127.0.0.9, port: 0 }
admin: { host: localhost, port: 9090, token: t0ken }
limits: { body: 1GiB, headers: 512B, event: 1.5KiB, head_time: 2s, body_time: 1m }
timeouts: { connect: 1s, first_token: off, stall: 1.5s, total: 2h }
commit_after: never
retries: { share: 0, floor: 0 }
overload_status: 429
autoscale: { target: 0.8, down: 0.4, cold_start: 10m }
cors: { origins: [https://app.example, "http://localhost:3000"] }
classes:
  chat:
    slo:
      target: { percentile: 99, ttft: 1s, tpot: 50ms, mode: clause, window: 1d }
      guard: { percentile: 99.9, tpot: 90ms }
    workload: { model: m, precision: fp8, input_tokens: { p50: 1, p90: 2 }, output_tokens: { p50: 3, p90: 4 }, cache_hit: 0.3 }
    pools: [b, a]
    commit_after: 0s
  agent:
    slo: { target: { percentile: 95, deadline: 1m, min_tokens_per_second: 10 } }
    workload: { model: m, input_tokens: { p50: 1, p90: 2 }, output_tokens: { p50: 3, p90: 4 } }
    priority: 1
    pools: [a]
    queue: { max: 7, wait: 50s }
    own_bounds: { min: 5s, max: 10m }
pools:
  a:
    model: "*"
    gpus_per_replica: 0.5
    replicas: [https://Engine.example/llm/v1/, "http://[::1]:80"]
    engine: vllm
    max_in_flight: 3
    ask_usage: false
    pass_authorization: true
    send_priority: true
    refuse_members: [kv_transfer_params, cache_salt]
    allow: [embeddings, realtime]
    timeouts: { stall: 5m }
  b: { model: m, replicas: [http://10.0.0.1:8000/v1], api_key: sk-up }
routes:
  - when: { path: /x/*, header: { X-Team: "a*" }, model: "*-agent", key: k, stream: true, tools: false, max_tokens: { min: 5 } }
    class: agent
    rewrite: { model: m }
  - { class: chat }
`)
  t.same(config.listen, { host: '127.0.0.9', port: 0 })
  t.same(config.autoscale, { target: 0.8, down: 0.4, coldStartMs: 10 * MINUTE })
  t.same(config.admin, { host: 'localhost', port: 9090, token: 't0ken' })
  t.same(config.limits, { body: 1024 ** 3, headers: 512, event: 1536, headMs: 2000, bodyMs: MINUTE })
  t.same(config.commitAfterMs, [0, undefined])
  t.equal(config.overloadStatus, 429)
  t.same(config.cors, ['https://app.example', 'http://localhost:3000'])
  t.same(
    config.pools.map(pool => pool.timeouts),
    [
      { connectMs: 1000, firstTokenMs: undefined, stallMs: 5 * MINUTE, totalMs: 120 * MINUTE },
      { connectMs: 1000, firstTokenMs: undefined, stallMs: 1500, totalMs: 120 * MINUTE },
    ],
  )
  t.match(config.pools, [
    {
      apiKey: undefined,
      askUsage: false,
      passAuthorization: true,
      sendPriority: true,
      refuseMembers: ['kv_transfer_params', 'cache_salt'],
      allow: new Set(['embeddings', 'realtime']),
      engine: 'vllm',
    },
    { apiKey: 'sk-up', askUsage: true, passAuthorization: false, engine: 'auto' },
  ])
  t.same(config.replicas, [
    { id: 0, pool: 0, origin: 'https://engine.example', basePath: '/llm' },
    { id: 1, pool: 0, origin: 'http://[::1]', basePath: '' },
    { id: 2, pool: 1, origin: 'http://10.0.0.1:8000', basePath: '' },
  ])
  const { classes, pools, routes, retries, replicas } = config.policy
  t.same(
    replicas.map(replica => replica.name),
    ['engine.example:443/llm', '[::1]:80', '10.0.0.1:8000'],
  )
  t.same(retries, { share: 0, floor: 0 })
  t.match(pools, [
    { model: undefined, maxInFlight: 3, gpusPerReplica: 0.5, replicas: [{ id: 0 }, { id: 1 }] },
    { model: 'm', maxInFlight: 32, replicas: [{ id: 2 }] },
  ])
  t.same(classes[0]?.target, {
    percentile: 99,
    mode: 'clause',
    windowMs: DAY,
    clauses: { kind: 'stream', ttftMs: 1000, tpotMs: 50 },
  })
  t.same(classes[0]?.guard, {
    percentile: 99.9,
    mode: 'clause',
    windowMs: 30 * DAY,
    clauses: { kind: 'stream', ttftMs: 4000, tpotMs: 90 },
  })
  t.same(classes[1]?.guard.clauses, { kind: 'deadline', deadlineMs: 2 * MINUTE, minTokensPerSecond: 5 })
  t.match(classes[0], { pools: [1, 0], workload: { precision: 'fp8', cacheHit: 0.3 }, queue: undefined })
  t.match(classes[1], {
    priority: 1,
    queue: { max: 7, waitMs: 50_000 },
    ownBounds: { minMs: 5000, maxMs: 600_000 },
  })
  t.same(routes[0], {
    when: {
      path: '/x/*',
      header: [['x-team', 'a*']],
      model: '*-agent',
      key: 'k',
      stream: true,
      tools: false,
      maxTokens: { min: 5, max: undefined },
    },
    cls: 1,
    rewriteModel: 'm',
  })
})

t.test('the resolved form is frozen all the way down', async t => {
  const seen: string[] = []
  const thawed = (value: unknown, path: string): void => {
    if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return
    if (value instanceof Map || value instanceof Set) return
    if (!Object.isFrozen(value)) seen.push(path)
    for (const [key, part] of Object.entries(value)) thawed(part, `${path}.${key}`)
  }
  thawed(fromText(SMALL), 'config')
  t.same(seen, [])
})

t.test(
  'variables are filled into values, with the default where unset or empty, and never into structure',
  async t => {
    const text = SMALL.replace('model: small, replicas', 'model: small, api_key: "a${K:-none}z", replicas')
    t.equal(fromText(text).pools[0]?.apiKey, 'anonez')
    t.equal(fromText(text, { K: '' }).pools[0]?.apiKey, 'anonez')
    t.equal(fromText(text, { K: 'x, ask_usage: false }' }).pools[0]?.apiKey, 'ax, ask_usage: false }z')
    t.equal(
      fromText(text, { K: '${HOME}' }).pools[0]?.apiKey,
      'a${HOME}z',
      'what was filled in is not filled again',
    )
    t.equal(fromText(text, { K: 'x, ask_usage: false }' }).pools[0]?.askUsage, true)
  },
)

t.test(
  'a variable may be a number or a flag where one belongs, and an empty text stands for none',
  async t => {
    const text = `listen: { port: "\${PORT:-1234}" }\nadmin: { token: "\${TOKEN:-}" }\n${SMALL}`.replace(
      'model: small, replicas',
      'model: small, ask_usage: "${ASK}", gpus_per_replica: "${GPUS}", replicas',
    )
    const config = fromText(text, { ASK: 'false', GPUS: '0.5' })
    t.equal(config.listen.port, 1234)
    t.equal(config.admin.token, undefined)
    t.equal(config.pools[0]?.askUsage, false)
    t.equal(config.policy.pools[0]?.gpusPerReplica, 0.5)
    t.equal(fromText(text, { PORT: '5', ASK: 'true', GPUS: '1', TOKEN: 'x' }).admin.token, 'x')
  },
)

t.test('the directory for state is relative to the config file, and an empty name is none', async t => {
  const dir = (name: string, file: string) =>
    resolved(loadText(`state_dir: "${name}"\n${SMALL}`, { NAME: '' }, { file })).stateDir
  t.equal(dir('./state', 'config/weir.yaml'), 'config/state')
  t.equal(dir('/var/lib/weir', 'config/weir.yaml'), '/var/lib/weir')
  t.equal(dir('${NAME:-}', 'weir.yaml'), undefined)
})

t.test('an anchor may be used again', async t => {
  const twice = SMALL.replace('workload: {', 'workload: &w {').replace(
    'pools:\n  main',
    `  other:
    slo: { target: { percentile: 95, deadline: 9s } }
    workload: *w
    pools: [main]
routes: [ { when: { model: x }, class: other }, { class: chat } ]
pools:
  main`,
  )
  const { classes } = fromText(twice).policy
  t.same(classes[1]?.workload, classes[0]?.workload)
})

t.test('loopback is 127/8, ::1 and localhost, and nothing else goes without keys', async t => {
  const at = (host: string, more = ''): boolean =>
    loadText(`listen: { host: "${host}" }\n${more}${SMALL}`, {}, { file: 'w' }).ok !== undefined
  for (const host of ['127.0.0.1', '127.8.9.1', '::1', 'localhost']) t.ok(at(host), host)
  for (const host of ['0.0.0.0', '::', '10.0.0.1', '127.0.0.1.example.com', 'weir.local'])
    t.notOk(at(host), host)
  t.ok(at('0.0.0.0', 'auth: { none: anyone-may-call }\n'))
})

t.test('keys are kept as digests, from the key or from its SHA-256', async t => {
  const dir = t.testdir({
    'keys.yaml': `keys:
  - { label: a, key: "\${TEAM_A}", classes: [chat] }
  - { label: b, sha256: ${createHash('sha256').update('key-of-team-b-0123').digest('hex').toUpperCase()} }
`,
    'weir.yaml': `listen: { host: 0.0.0.0 }\nauth: { keys: ./keys.yaml }\n${SMALL}`,
  })
  const loaded = load(join(dir, 'weir.yaml'), { TEAM_A: 'key-of-team-a-0123' })
  const digest = (key: string): Uint8Array => createHash('sha256').update(key).digest()
  const config = resolved(loaded)
  t.same(config.keys, [
    { label: 'a', digest: digest('key-of-team-a-0123'), classes: [0] },
    { label: 'b', digest: digest('key-of-team-b-0123'), classes: undefined },
  ])
  t.notMatch(JSON.stringify(config), 'key-of-team')
})

t.test(
  'what is wrong with the keys file is told beside what is wrong with the config, and no key is shown',
  async t => {
    const dir = t.testdir({
      'keys.yaml': `keys:
  - { label: a, key: key-of-everyone-012345 }
  - { label: a, sha256: ${createHash('sha256').update('key-of-everyone-012345').digest('hex')} }
  - { label: c, key: short-key }
  - { label: d, key: key-of-d-0123456789, sha256: abc }
  - { label: e, key: key-of-e-0123456789, classes: [chta] }
  - { key: key-of-nobody-0123456789 }
  - { label: g }
`,
      'weir.yaml': `auth: { keys: keys.yaml }
${SMALL.replace('model: small, replicas', 'model: small, pass_authorization: true, replicas')}
routes: [ { when: { key: aa }, class: chat }, { class: chat } ]
`,
    })
    const loaded = load(join(dir, 'weir.yaml'), {})
    const text = loaded.ok === undefined ? showProblems(loaded.problems).replaceAll(`${dir}/`, '') : ''
    t.equal(
      text,
      `weir.yaml: 2 problems

pools.main.pass_authorization   (line 9)
  got      true, with keys of Weir’s own
  allowed  true only with auth none and without api_key
  fix      write false: Weir’s keys would go to the upstream; give the pool an api_key

routes[0].when.key   (line 11)
  got      "aa"
  allowed  a label of the keys file: "a", "c", "d", "e", "g"
  fix      did you mean "a"?

keys.yaml: 8 problems

keys[1].label   (line 3)
  got      "a" again
  allowed  each label once
  fix      choose another label: logs tell keys apart by it

keys[1].sha256   (line 3)
  got      the same key as a
  allowed  each key once
  fix      give each label a key of its own

keys[2].key   (line 4)
  got      a key of 9 characters
  allowed  16 characters or more
  fix      make one with: openssl rand -hex 24

keys[3].key   (line 5)
  got      key and sha256
  allowed  either key or sha256
  fix      remove one of the two

keys[3].sha256   (line 5)
  got      a value that is not shown
  allowed  64 hexadecimal digits
  fix      write 64 hexadecimal digits, or remove the key

keys[4].classes[0]   (line 6)
  got      "chta"
  allowed  a class under classes: "chat"
  fix      did you mean "chat"?

keys[5].label   (line 7)
  got      nothing
  allowed  a name for the key
  fix      name the key: logs and routes use the name, never the key

keys[6].key   (line 8)
  got      nothing
  allowed  either key or sha256
  fix      write key: "\${TEAM_KEY}", or the sha256 of it
`,
    )
  },
)

t.test(
  'the shipped configs load with nothing set and without a warning, and fit their own schema',
  async t => {
    const files = readdirSync('config').filter(file => file.endsWith('.yaml') && !file.startsWith('keys'))
    t.same(files.sort(), ['demo.yaml', 'separate-pools.yaml', 'weir.yaml'])
    const fits = new Ajv({ strict: false }).compile(
      JSON.parse(readFileSync('config/weir.schema.json', 'utf8')),
    )
    for (const file of files) {
      const loaded = load(join('config', file), {})
      resolved(loaded)
      t.same('warnings' in loaded && loaded.warnings, [], file)
      const text = readFileSync(join('config', file), 'utf8')
      t.ok(text.startsWith('# yaml-language-server: $schema=./weir.schema.json\n'), file)
      t.ok(fits(parse(text)), `${file}: ${JSON.stringify(fits.errors)}`)
    }
  },
)

t.test('the example of the docs loads', async t => {
  const [, example] = /```yaml\n([\s\S]*?)```/.exec(readFileSync('docs/config.md', 'utf8')) ?? []
  t.match(fromText(example ?? '').policy.classes, [{ name: 'chat' }])
})

t.test('the example of a keys file loads with nothing set', async t => {
  const text = `auth: { keys: keys.example.yaml }\n${readFileSync('config/weir.yaml', 'utf8').replace('auth: none', '')}`
  const config = resolved(loadText(text, {}, { file: 'config/weir.yaml' }))
  t.match(config.keys, [{ label: 'team-search', classes: [0] }, { label: 'batch-jobs' }])
})

t.test('the demo’s pools are home to one class each, and their replicas can be replaced', async t => {
  const replicas = {
    main: ['http://127.0.0.1:5001', 'http://127.0.0.1:5002'],
    spare: ['http://127.0.0.1:5003'],
  }
  const config = resolved(load('config/demo.yaml', {}, { replicas, listen: { port: 0 }, admin: { port: 0 } }))
  t.same(
    config.replicas.map(({ pool, origin }) => [config.policy.pools[pool]?.name, origin]),
    [
      ['main', 'http://127.0.0.1:5001'],
      ['main', 'http://127.0.0.1:5002'],
      ['spare', 'http://127.0.0.1:5003'],
    ],
  )
  t.same([config.listen.port, config.admin.port], [0, 0])
  t.match(config.policy.classes, [
    { name: 'chat', pools: [0, 1], target: { percentile: 90, clauses: { ttftMs: 500, tpotMs: 40 } } },
    { name: 'agent', pools: [1, 0], target: { percentile: 95, clauses: { deadlineMs: 60_000 } }, queue: {} },
  ])
})

t.test('values from the command line win, are checked like the others, and have no line', async t => {
  const listen = { host: '0.0.0.0', port: 70_000 }
  const loaded = loadText(`listen: { port: 1 }\n${SMALL}`, {}, { file: 'w', listen })
  t.match(loaded, {
    problems: [
      { path: 'listen.port', line: undefined, got: '70000' },
      { path: 'auth', got: 'none, with listen.host 0.0.0.0' },
    ],
  })
  t.equal(fromText(SMALL, {}, { listen: { port: 7 } }).listen.port, 7)
})

t.test('upstreams alone make a config: one pool, chat and agent, with assumed traffic', async t => {
  const config = resolved(
    assumedConfig(['http://127.0.0.1:8000/v1', 'http://127.0.0.1:8001'], ['only'], { listen: { port: 0 } }),
  )
  t.equal(config.listen.port, 0)
  t.match(config.policy.pools, [{ name: 'upstream', model: 'only', replicas: { length: 2 } }])
  const azure = { model: 'only', inputTokens: { p50: 1020, p90: 2734 }, outputTokens: { p50: 129, p90: 424 } }
  t.match(config.policy.classes, [
    { name: 'chat', target: { percentile: 90, clauses: { ttftMs: 500, tpotMs: 40 } }, workload: azure },
    { name: 'agent', target: { percentile: 95, clauses: { deadlineMs: 60_000 } }, workload: azure },
  ])
  t.same(
    [...(config.pools[0]?.allow ?? [])],
    ['embeddings', 'audio', 'images', 'files', 'rerank', 'tokenize'],
    'all that is passed on but what stays open',
  )
  t.equal(config.policy.routes.at(-1)?.cls, 0)
  t.equal(resolved(assumedConfig(['http://a:1'], ['x', 'y'])).policy.pools[0]?.model, undefined)
  t.match(assumedConfig(['a:1'], []), {
    problems: [{ path: 'pools.upstream.replicas[0]', fix: 'write http://a:1' }],
  })
  const open = { listen: { host: '0.0.0.0' } }
  t.match(assumedConfig(['http://a:1'], [], open), { problems: [{ path: 'auth' }] })
  t.equal(resolved(assumedConfig(['http://a:1'], [], { apiKey: 'sk-${UP}' })).pools[0]?.apiKey, 'sk-${UP}')
})

t.test('plain data is taken as it is: a dollar in it is a dollar', async t => {
  const data = parse(SMALL)
  data.pools.main.api_key = '${NOT_FILLED}'
  t.equal(resolved(loadData(data, 'data')).pools[0]?.apiKey, '${NOT_FILLED}')
})

async function run(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const said = { out: '', err: '' }
  const io: Io = {
    out: text => {
      said.out += text
    },
    err: text => {
      said.err += text
    },
    env: {},
  }
  const code = await check.run(args, io)
  return { code, ...said }
}

t.test(
  'weir check ends with 0 and a summary, 1 and the problems, or 2 for a file it cannot read',
  async t => {
    const dir = t.testdir({
      'bad.yaml': SMALL.replace('percentile: 90', 'percentile: 0.9'),
      'warned.yaml': '',
    })
    const bad = join(dir, 'bad.yaml')
    const warned = join(dir, 'warned.yaml')
    writeFileSync(warned, SMALL.replace('tpot: 40ms', 'tpot: 150ms'))

    t.same(await run(), {
      code: 0,
      err: '',
      out: `config/weir.yaml: no problems

class  chat: p90 ttft 500ms tpot 40ms; pools main
class  agent: p95 deadline 1m; pools main
pool   main: llama-3.1-8b on 127.0.0.1:8000
routes 3; applications on 127.0.0.1:8080, admin on 127.0.0.1:8081, no keys
`,
    })
    const { out, ...rest } = await run('-c', warned)
    t.same(rest, { code: 0, err: '' })
    t.match(out, `${warned}: 1 warning\n\nclasses.chat.slo.target.tpot   (line 4)\n`)

    t.same(await run('--config', bad), {
      code: 1,
      out: '',
      err: `${bad}: 1 problem

classes.chat.slo.target.percentile   (line 4)
  got      0.9
  allowed  a number from 50 to 99.9
  fix      write 90 for the 90th percentile
`,
    })
    t.match(await run('-c', join(dir, 'none.yaml')), { code: 2, err: /got {6}no such file/ })
    t.match(await run('-c', dir), { code: 2, err: /got {6}a directory/ })
    await t.rejects(run('--cofnig', bad), { code: 'ERR_PARSE_ARGS_UNKNOWN_OPTION' })
  },
)

t.test('weir check --json prints one object', async t => {
  const dir = t.testdir({ 'bad.yaml': 'pools: 3\n' })
  const good = await run('--json')
  t.equal(good.code, 0)
  t.match(JSON.parse(good.out), {
    file: 'config/weir.yaml',
    ok: true,
    problems: [],
    warnings: [],
    classes: [{ name: 'chat', pools: ['main'] }, { name: 'agent' }],
    pools: [{ name: 'main', model: 'llama-3.1-8b', replicas: ['127.0.0.1:8000'] }],
    routes: 3,
  })
  const bad = await run('--json', '-c', join(dir, 'bad.yaml'))
  t.equal(bad.code, 1)
  t.match(JSON.parse(bad.out), {
    ok: false,
    problems: [{ path: 'classes' }, { path: 'pools', line: 1, got: '3' }],
  })
})
