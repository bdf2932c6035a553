// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the config fills these, not the test
import fc from 'fast-check'
import t from 'tap'
import { parse, stringify } from 'yaml'
import { type Problem, showProblems } from '../../src/config/error.js'
import { loadText } from '../../src/config/load.js'

const GOOD = `listen: { port: 8080 }
classes:
  chat:
    slo:
      target: { percentile: 90, ttft: 500ms, tpot: 40ms }
    workload:
      model: small
      input_tokens: { p50: 1000, p90: 2700 }
      output_tokens: { p50: 130, p90: 420 }
    pools: [main]
  agent:
    slo:
      target: { percentile: 95, deadline: 60s }
    workload:
      model: small
      input_tokens: { p50: 8000, p90: 16000 }
      output_tokens: { p50: 210, p90: 790 }
    pools: [main, spare]
    queue: { max: 500, wait: 55s }
pools:
  main:
    model: small
    replicas: [http://10.0.0.1:8000]
  spare:
    model: small
    replicas: [http://10.0.0.2:8000]
routes:
  - { when: { stream: false }, class: agent }
  - { class: chat }
`

/** `GOOD` with each `from` replaced; a `from` that is not in it is a mistake of the test. */
function altered(...changes: readonly (readonly [from: string, to: string])[]): string {
  return changes.reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`not in the config: ${from}`)
    return text.replace(from, () => to)
  }, GOOD)
}

function problemsOf(text: string, env: Record<string, string> = {}): readonly Problem[] {
  const loaded = loadText(text, env, { file: 'weir.yaml' })
  return loaded.ok === undefined ? loaded.problems : []
}

const report = (text: string, env: Record<string, string> = {}): string => showProblems(problemsOf(text, env))

const warningsOf = (text: string): string => {
  const loaded = loadText(text, {}, { file: 'weir.yaml' })
  return loaded.ok === undefined
    ? `refused:\n${showProblems(loaded.problems)}`
    : showProblems(loaded.warnings, 'warning')
}

interface Case {
  readonly name: string
  readonly change: readonly (readonly [string, string])[]
  readonly says: string
}

const one = (path: string, got: string, allowed: string, fix: string): string =>
  `weir.yaml: 1 problem\n\n${path}\n  got      ${got}\n  allowed  ${allowed}\n  fix      ${fix}\n`

t.test('the config that the cases start from is right', async t => {
  t.equal(report(GOOD), '')
  t.equal(warningsOf(GOOD), '')
})

const CLOCK = 'a duration above 0 with ms, s, m, h or d'
const URL_ALLOWED = 'http:// or https://, host, port, and a base path if there is one'
const NAME_ALLOWED = 'a name of a-z, 0-9, _ and -: it stands in paths, headers and metrics'

const CASES: readonly Case[] = [
  {
    name: 'a share instead of a percentile',
    change: [['percentile: 90', 'percentile: 0.9']],
    says: one(
      'classes.chat.slo.target.percentile   (line 5)',
      '0.9',
      'a number from 50 to 99.9',
      'write 90 for the 90th percentile',
    ),
  },
  {
    name: 'a percentile written p99',
    change: [['percentile: 95', 'percentile: p99']],
    says: one(
      'classes.agent.slo.target.percentile   (line 13)',
      '"p99"',
      'a number from 50 to 99.9',
      'write 99 for the 99th percentile',
    ),
  },
  {
    name: 'an SLO without a percentile',
    change: [['percentile: 90, ', '']],
    says: one(
      'classes.chat.slo.target.percentile   (line 5)',
      'nothing',
      'a number from 50 to 99.9',
      'say how many must meet the bounds: without a percentile no bound can be kept or missed; 90 is usual',
    ),
  },
  {
    name: 'an SLO without a clause',
    change: [[', ttft: 500ms, tpot: 40ms', '']],
    says: one(
      'classes.chat.slo.target.ttft   (line 5)',
      'nothing',
      'ttft and tpot, or a deadline',
      'write ttft: 500ms and tpot: 40ms for people who read a stream, or deadline: 60s for programs',
    ),
  },
  {
    name: 'an SLO with one clause of the two',
    change: [[', tpot: 40ms', '']],
    says: one(
      'classes.chat.slo.target.tpot   (line 5)',
      'nothing',
      'ttft and tpot together',
      'write tpot too: one clause turns the wrong knob, since each is easily kept by breaking the other',
    ),
  },
  {
    name: 'an SLO of both kinds',
    change: [['deadline: 60s', 'deadline: 60s, ttft: 1s']],
    says: one(
      'classes.agent.slo.target.deadline   (line 13)',
      'a deadline beside ttft or tpot',
      'ttft and tpot (people who read a stream), or deadline (programs)',
      'remove one kind; traffic of both kinds is two classes',
    ),
  },
  {
    name: 'an SLO without a workload',
    change: [
      [
        `    workload:
      model: small
      input_tokens: { p50: 1000, p90: 2700 }
      output_tokens: { p50: 130, p90: 420 }
`,
        '',
      ],
    ],
    says: one(
      'classes.chat.workload   (line 3)',
      'nothing',
      'an object with model, precision, input_tokens, output_tokens, cache_hit',
      'say which traffic the SLO is for (model, input_tokens, output_tokens): without it the bounds mean nothing',
    ),
  },
  {
    name: 'lengths in the wrong order',
    change: [['p50: 130, p90: 420', 'p50: 420, p90: 130']],
    says: one(
      'classes.chat.workload.output_tokens.p90   (line 9)',
      '130',
      'a number, not below p50 (420)',
      'swap them, or measure again',
    ),
  },
  {
    name: 'a guard that is stricter than its target',
    change: [['tpot: 40ms }', 'tpot: 40ms }\n      guard: { percentile: 99, ttft: 400ms, tpot: 40ms }']],
    says: `weir.yaml: 2 problems

classes.chat.slo.guard.ttft   (line 6)
  got      "400ms"
  allowed  more than the target’s 500ms: the guard is the looser bound
  fix      write 2s, or remove it for the default

classes.chat.slo.guard.tpot   (line 6)
  got      "40ms"
  allowed  more than the target’s 40ms: the guard is the looser bound
  fix      write 100ms, or remove it for the default
`,
  },
  {
    name: 'a guard of the other kind',
    change: [['deadline: 60s }', 'deadline: 60s }\n      guard: { ttft: 4s }']],
    says: one(
      'classes.agent.slo.guard.ttft   (line 14)',
      'ttft, which the target has not',
      'clauses of the target',
      'remove it, or guard deadline instead',
    ),
  },
  {
    name: 'a guard below the percentile of its target',
    change: [
      ['percentile: 95, deadline: 60s }', 'percentile: 99, deadline: 60s }\n      guard: { percentile: 98 }'],
    ],
    says: one(
      'classes.agent.slo.guard.percentile   (line 14)',
      '98',
      'a number from the target’s 99 to 99.9',
      'write 99, or remove it for the default',
    ),
  },
  {
    name: 'a burn alert that can never fire',
    change: [['tpot: 40ms }', 'tpot: 40ms, window: 30d }']],
    says: one(
      'classes.chat.slo.target.percentile   (line 5)',
      '90 over 30d: its quickest burn alert (14.4x) would need 144 % misses',
      'an alert that can fire: at most 80 %',
      'write a percentile of 94.5 or more, or a window of 16d or less',
    ),
  },
  {
    name: 'a burn alert on the guard that can never fire',
    change: [['tpot: 40ms }', 'tpot: 40ms }\n      guard: { percentile: 90 }']],
    says: one(
      'classes.chat.slo.guard.percentile   (line 6)',
      '90 over 30d: its quickest burn alert (14.4x) would need 144 % misses',
      'an alert that can fire: at most 80 %',
      'write a percentile of 94.5 or more, or a window of 16d or less',
    ),
  },
  {
    name: 'a key with a typing error',
    change: [
      [
        '    model: small\n    replicas: [http://10.0.0.1',
        '    max_in_flght: 3\n    model: small\n    replicas: [http://10.0.0.1',
      ],
    ],
    says: one(
      'pools.main.max_in_flght   (line 22)',
      'a key Weir does not know',
      'max_in_flight, model, gpus_per_replica, replicas, engine, …',
      'rename it to max_in_flight, or remove it',
    ),
  },
  {
    name: 'a key like no other',
    change: [['listen: {', 'listen: { zebra: 1,']],
    says: one('listen.zebra   (line 1)', 'a key Weir does not know', 'host, port', 'remove it'),
  },
  {
    name: 'a key that is not built yet',
    change: [['listen:', 'admission: { explore: 0.01 }\nlisten:']],
    says: one(
      'admission.explore   (line 1)',
      'a key of the documentation that is not built yet',
      'theta, fairness',
      'remove it: not built yet, predictions learn from what is served in this version',
    ),
  },
  {
    name: 'a pool key that is not built yet',
    change: [['  spare:\n', '  spare:\n    fallback: { model: small }\n']],
    says: one(
      'pools.spare.fallback   (line 25)',
      'a key of the documentation that is not built yet',
      'model, gpus_per_replica, replicas, engine, api_key, …',
      'remove it: not built yet, a request stays with its model in this version',
    ),
  },
  {
    name: 'a group of routes that is none',
    change: [['  spare:\n', '  spare:\n    allow: [embedings]\n']],
    says: one(
      'pools.spare.allow[0]   (line 25)',
      '"embedings"',
      'embeddings, audio, images, files, rerank, tokenize, realtime',
      'did you mean embeddings?',
    ),
  },
  {
    name: 'a member of a body that every request needs',
    change: [['  spare:\n', '  spare:\n    refuse_members: [kv_transfer_params, model]\n']],
    says: one(
      'pools.spare.refuse_members[1]   (line 25)',
      '"model"',
      'any member but model, messages, prompt, input, stream',
      'remove it: nearly every request has it',
    ),
  },
  {
    name: 'an origin that no browser sends',
    change: [['listen: { port: 8080 }', 'listen: { port: 8080 }\ncors: { origins: [app.example] }']],
    says: one(
      'cors.origins[0]   (line 2)',
      '"app.example"',
      'origins as browsers send them, https://app.example, or "*"',
      'write origins as browsers send them, https://app.example, or "*", or remove the key',
    ),
  },
  {
    name: 'replicas by DNS',
    change: [['[http://10.0.0.2:8000]', '{ dns: engines.local }']],
    says: one(
      'pools.spare.replicas   (line 26)',
      'an object with dns',
      'a list of URLs: http://10.0.0.1:8000',
      'write a list of URLs: http://10.0.0.1:8000; dns is not built yet',
    ),
  },
  {
    name: 'the same key twice',
    change: [['  spare:\n    model: small', '  spare:\n    model: small\n    model: large']],
    says: one(
      'pools.spare.model   (line 26)',
      'the same key again',
      'each key once',
      'remove one of the two',
    ),
  },
  {
    name: 'a duration without a unit',
    change: [['listen:', 'timeouts: { stall: 120 }\nlisten:']],
    says: one(
      'timeouts.stall   (line 1)',
      '120',
      `${CLOCK}, or off`,
      'write 120ms, or 120s: a duration says its unit',
    ),
  },
  {
    name: 'a duration in words',
    change: [['wait: 55s', 'wait: 55 seconds']],
    says: one('classes.agent.queue.wait   (line 19)', '"55 seconds"', CLOCK, 'write 55s'),
  },
  {
    name: 'a clock of zero',
    change: [['listen:', 'timeouts: { first_token: 0s }\nlisten:']],
    says: one('timeouts.first_token   (line 1)', '"0s"', `${CLOCK}, or off`, 'write more than 0'),
  },
  {
    name: 'a clock longer than a timer can run',
    change: [['listen:', 'timeouts: { total: 30d }\nlisten:']],
    says: one('timeouts.total   (line 1)', '"30d"', 'at most 24d', 'write off'),
  },
  {
    name: 'a size in powers of ten',
    change: [['listen:', 'limits: { body: 32MB }\nlisten:']],
    says: one('limits.body   (line 1)', '"32MB"', 'a size above 0 with B, KiB, MiB or GiB', 'write 32MiB'),
  },
  {
    name: 'a share in percent',
    change: [['listen:', 'retries: { share: 10 }\nlisten:']],
    says: one('retries.share   (line 1)', '10', 'a number from 0 to 1', 'write 0.1 for 10 %'),
  },
  {
    name: 'a line to scale at that is no load at all',
    change: [['listen:', 'autoscale: { target: 0 }\nlisten:']],
    says: one(
      'autoscale.target   (line 1)',
      '0',
      'a number above 0, up to 1',
      'write 0.7: room for a burst and for one replica that fails',
    ),
  },
  {
    name: 'a replica taken away as soon as it is there',
    change: [['listen:', 'autoscale: { target: 0.5 }\nlisten:']],
    says: one(
      'autoscale.down   (line 1)',
      '0.55, with target 0.5',
      'less than target',
      'write 0.39: else a replica that was just added is taken away again',
    ),
  },
  {
    name: 'a number in quotes',
    change: [['port: 8080', 'port: "8080"']],
    says: one(
      'listen.port   (line 1)',
      '"8080"',
      'a whole number from 0 to 65535',
      'write 8080 without quotes',
    ),
  },
  {
    name: 'an unknown engine',
    change: [['  spare:\n', '  spare:\n    engine: vlm\n']],
    says: one(
      'pools.spare.engine   (line 25)',
      '"vlm"',
      'auto, vllm, sglang, trtllm, llamacpp, openai',
      'did you mean vllm?',
    ),
  },
  {
    name: 'a class that does not exist',
    change: [['class: agent', 'class: agents']],
    says: one(
      'routes[0].class   (line 28)',
      '"agents"',
      'a class under classes: "chat", "agent"',
      'did you mean "agent"?',
    ),
  },
  {
    name: 'a pool that does not exist',
    change: [['pools: [main, spare]', 'pools: [main, gpu]']],
    says: one(
      'classes.agent.pools[1]   (line 18)',
      '"gpu"',
      'a pool under pools: "main", "spare"',
      'write one of them, or add it under pools',
    ),
  },
  {
    name: 'a pool named twice',
    change: [['pools: [main, spare]', 'pools: [main, spare, main]']],
    says: one('classes.agent.pools[2]   (line 18)', '"main" again', 'each pool once', 'remove it'),
  },
  {
    name: 'a class named like a path of Weir',
    change: [
      ['  chat:', '  metrics:'],
      ['class: chat', 'class: metrics'],
    ],
    says: one(
      'classes.metrics   (line 3)',
      'the name "metrics"',
      'a name other than v1, metrics, api, livez, readyz: those are paths of Weir’s own',
      'choose another name',
    ),
  },
  {
    name: 'a class with letters that paths would change',
    change: [
      ['  chat:', '  Chat Users:'],
      ['class: chat', 'class: Chat Users'],
    ],
    says: one(
      'classes["Chat Users"]   (line 3)',
      'the name "Chat Users"',
      NAME_ALLOWED,
      'rename it to chat-users',
    ),
  },
  {
    name: 'a replica without a scheme',
    change: [['http://10.0.0.2:8000', '10.0.0.2:8000']],
    says: one(
      'pools.spare.replicas[0]   (line 26)',
      '"10.0.0.2:8000"',
      URL_ALLOWED,
      'write http://10.0.0.2:8000',
    ),
  },
  {
    name: 'a replica with credentials, which are not shown',
    change: [['http://10.0.0.2:8000', 'http://user:secret@10.0.0.2:8000']],
    says: one(
      'pools.spare.replicas[0]   (line 26)',
      '"http://…@10.0.0.2:8000"',
      URL_ALLOWED,
      'take the credentials out; the pool’s api_key is the place for one',
    ),
  },
  {
    name: 'a replica with a query',
    change: [['http://10.0.0.2:8000', 'http://10.0.0.2:8000/?a=1']],
    says: one(
      'pools.spare.replicas[0]   (line 26)',
      '"http://10.0.0.2:8000/?a=1"',
      URL_ALLOWED,
      'take out all from the ? or # on',
    ),
  },
  {
    name: 'a replica that names a whole endpoint',
    change: [['http://10.0.0.2:8000', 'http://10.0.0.2:8000/v1/chat/completions']],
    says: one(
      'pools.spare.replicas[0]   (line 26)',
      '"http://10.0.0.2:8000/v1/chat/completions"',
      URL_ALLOWED,
      'end it before /v1: Weir adds /v1/chat/completions and the like',
    ),
  },
  {
    name: 'one replica in two pools, however it is written',
    change: [['http://10.0.0.2:8000', 'HTTP://10.0.0.1:8000/v1/']],
    says: one(
      'pools.spare.replicas[0]   (line 26)',
      '"HTTP://10.0.0.1:8000/v1/", which is also in pool main',
      'each replica once: its load is counted in one place',
      'remove one of the two; a pool may serve many classes',
    ),
  },
  {
    name: 'no keys beyond loopback',
    change: [['listen: { port: 8080 }', 'listen: { host: 0.0.0.0 }\nauth: none']],
    says: one(
      'auth   (line 2)',
      'none, with listen.host 0.0.0.0',
      'none on loopback only; beyond it { keys: FILE } or { none: anyone-may-call }',
      'write { keys: ./keys.yaml }, or listen on 127.0.0.1',
    ),
  },
  {
    name: 'an admin port beyond loopback without a token',
    change: [['listen:', 'admin: { host: 10.1.2.3 }\nlisten:']],
    says: one(
      'admin.token   (line 1)',
      'an empty token, with admin.host 10.1.2.3',
      'a token of your own beyond loopback',
      'write token: "${WEIR_ADMIN_TOKEN}" and set it, or put admin.host on 127.0.0.1',
    ),
  },
  {
    name: 'one port for both listeners',
    change: [['listen:', 'admin: { port: 8080 }\nlisten:']],
    says: one(
      'admin.port   (line 1)',
      '8080, the port of listen',
      'a port of its own',
      'write another, such as 8081',
    ),
  },
  {
    name: 'a keys file that is not there',
    change: [['listen:', 'auth: { keys: ./no-keys.yaml }\nlisten:']],
    says: one(
      'auth.keys   (line 1)',
      '"./no-keys.yaml": no such file',
      'a file that Weir may read, relative to this one',
      'put the keys into no-keys.yaml, or correct the name',
    ),
  },
  {
    name: 'auth of an unknown word',
    change: [['listen:', 'auth: nobody\nlisten:']],
    says: one(
      'auth   (line 1)',
      '"nobody"',
      'none, { none: anyone-may-call } or { keys: FILE }',
      'write none, { none: anyone-may-call } or { keys: FILE }, or remove the key',
    ),
  },
  {
    name: 'two credentials for one upstream',
    change: [['  spare:\n', '  spare:\n    api_key: sk-upstream\n    pass_authorization: true\n']],
    says: one(
      'pools.spare.pass_authorization   (line 26)',
      'true, with an api_key',
      'true only with auth none and without api_key',
      'write false, or remove api_key: only one credential can be sent',
    ),
  },
  {
    name: 'a key that YAML reads as a number, which is not shown',
    change: [['  spare:\n', '  spare:\n    api_key: 123456789\n']],
    says: one('pools.spare.api_key   (line 25)', 'a value that is not shown', 'a text', 'write it in quotes'),
  },
  {
    name: 'a queue for readers',
    change: [['    pools: [main]\n', '    pools: [main]\n    queue: { max: 5, wait: 5s }\n']],
    says: one(
      'classes.chat.queue   (line 11)',
      'queue on a class with ttft and tpot',
      'queue on classes with a deadline',
      'remove it: a reader’s first token cannot wait; or give the class a deadline',
    ),
  },
  {
    name: 'own bounds in the wrong order',
    change: [['    queue:', '    own_bounds: { min: 10m, max: 5s }\n    queue:']],
    says: one(
      'classes.agent.own_bounds.min   (line 19)',
      '"10m"',
      'at most own_bounds.max (5s)',
      'swap min and max',
    ),
  },
  {
    name: 'a route without when before the last',
    change: [['  - { when: { stream: false }, class: agent }', '  - { class: agent }']],
    says: one(
      'routes[0]   (line 28)',
      'no when, before the last route',
      'a route without when only at the end',
      'move it to the end, or give it a when: it would swallow the routes below',
    ),
  },
  {
    name: 'two classes and no routes',
    change: [['routes:\n  - { when: { stream: false }, class: agent }\n  - { class: chat }\n', '']],
    says: one(
      'routes',
      'nothing',
      'a list of { when, class }; it may be left out only with a single class',
      'write which request is of which class, last { class: chat } for the rest',
    ),
  },
  {
    name: 'a route that asks for less than nothing',
    change: [['{ stream: false }', '{ max_tokens: { min: 9, max: 1 } }']],
    says: one(
      'routes[0].when.max_tokens.min   (line 28)',
      '9',
      'at most max_tokens.max (1)',
      'swap min and max',
    ),
  },
  {
    name: 'one header twice',
    change: [['{ stream: false }', '{ header: { X-Team: a, x-team: b } }']],
    says: one(
      'routes[0].when.header.x-team   (line 28)',
      'x-team again, in other case',
      'each header once',
      'remove one of the two',
    ),
  },
  {
    name: 'a variable that is not set',
    change: [['port: 8080', 'port: "${WEIR_PORT}"']],
    says: one(
      'listen.port   (line 1)',
      '${WEIR_PORT}, which is not set',
      'a variable that is set in the environment of Weir',
      'set WEIR_PORT, or give a default: ${WEIR_PORT:-…}',
    ),
  },
  {
    name: 'a variable that breaks the YAML for want of quotes',
    change: [['port: 8080', 'port: ${WEIR_PORT}']],
    says: one(
      'the file   (line 1)',
      'Unexpected flow-map-start at node end',
      'YAML 1.2, one document',
      'put ${…} in quotes: "${NAME}"',
    ),
  },
  {
    name: 'a bracket that is not closed',
    change: [['pools: [main]\n', 'pools: [main\n']],
    says: one(
      'the file   (line 11)',
      'Flow sequence in block collection must be sufficiently indented and end with a ]',
      'YAML 1.2, one document',
      'correct the YAML here or just above; quote texts with : # { [ * & ! in them',
    ),
  },
  {
    name: 'an alias without an anchor',
    change: [['[http://10.0.0.2:8000]', '*nowhere']],
    says: one(
      'the file   (line 1)',
      'Unresolved alias (the anchor must be set before the alias): nowhere',
      'an alias (*name) after its anchor (&name), 100 at most',
      'correct the aliases, or write the values out',
    ),
  },
]

for (const { name, change, says } of CASES) {
  t.test(`told with its place, what is allowed and a fix: ${name}`, async t => {
    t.equal(report(altered(...change)), says)
  })
}

t.test('a file with nothing in it is told what to start from', async t => {
  for (const [text, got] of [
    ['', 'nothing'],
    ['# only a comment\n', 'nothing'],
    ['hello', '"hello"'],
    ['[1]', 'a list'],
  ] as const) {
    const fix = 'start from one of the files in config/, or from what weir sweep --target URL prints'
    const [problem] = problemsOf(text)
    t.match(problem, { path: '', got, allowed: 'an object with the keys of the documentation', fix })
  }
})

t.test('all problems are told at once, in the order of the lines, and none because of another', async t => {
  const text = altered(
    ['port: 8080', 'port: 99999'],
    ['ttft: 500ms', 'ttft: fast'],
    ['pools: [main]', 'pools: [mian]'],
    ['wait: 55s', 'wait: 55'],
    ['  spare:\n    model: small', '  spare:\n    modell: small'],
    ['http://10.0.0.2:8000', 'ftp://10.0.0.2'],
    ['class: agent', 'class: agnet'],
    ['  - { class: chat }', '  - { class: chat, wen: { stream: true } }'],
  )
  t.same(
    problemsOf(text).map(({ path, line }) => `${line} ${path}`),
    [
      '1 listen.port',
      '5 classes.chat.slo.target.ttft',
      '10 classes.chat.pools[0]',
      '19 classes.agent.queue.wait',
      '24 pools.spare.model',
      '25 pools.spare.modell',
      '26 pools.spare.replicas[0]',
      '28 routes[0].class',
      '29 routes[1].wen',
    ],
  )
})

t.test('a problem has its column, and an unknown key is pointed at itself', async t => {
  t.match(problemsOf(altered(['port: 8080', 'prt: 8080']))[0], { path: 'listen.prt', line: 1, column: 11 })
  t.match(problemsOf(altered(['port: 8080', 'port: -1']))[0], { path: 'listen.port', line: 1, column: 17 })
})

t.test('the value of a variable is shown with its source, but not where it is a secret', async t => {
  const shown = problemsOf(altered(['port: 8080', 'port: "${PORT}"']), { PORT: 'eighty' })
  t.equal(shown[0]?.got, '"eighty", from ${PORT}')
  const hidden = report(altered(['  spare:\n', '  spare:\n    api_key: { of: "${KEY}" }\n']), {
    KEY: 'sk-hidden',
  })
  t.match(hidden, 'a value that is not shown')
  t.notMatch(hidden, 'sk-hidden')
})

t.test('what a syntax error stumbled on is not shown: it may be a key', async t => {
  t.notMatch(report('pools: { main: { api_key: a} sk-hidden }\n'), 'sk-hidden')
})

const WARNINGS: readonly Case[] = [
  {
    name: 'a reader’s SLO on agents',
    change: [
      ['percentile: 95, deadline: 60s', 'percentile: 95, ttft: 2s, tpot: 50ms'],
      ['    queue: { max: 500, wait: 55s }\n', ''],
    ],
    says: `weir.yaml: 1 warning

classes.agent.slo.target.ttft   (line 13)
  got      a reader’s SLO, on a class of programs (by its name)
  allowed  anything; but a program waits for the whole answer, not for its first token
  fix      give it a deadline (deadline: 60s), and a queue to wait in
`,
  },
  {
    name: 'tokens slower than people read',
    change: [['tpot: 40ms', 'tpot: 150ms']],
    says: `weir.yaml: 1 warning

classes.chat.slo.target.tpot   (line 5)
  got      150ms
  allowed  anything; but people read 5 to 10 tokens a second, 100ms to 200ms each
  fix      write 100ms or less, so that the text keeps ahead of its reader
`,
  },
  {
    name: 'a commit later than load balancers wait',
    change: [['    pools: [main]\n', '    pools: [main]\n    commit_after: 2m\n']],
    says: `weir.yaml: 1 warning

classes.chat.commit_after   (line 11)
  got      2m
  allowed  anything; but load balancers cut a connection that is silent for 60 s
  fix      write less than 60s, or never if nothing in between cuts
`,
  },
  {
    name: 'a pool that no class uses',
    change: [['pools: [main, spare]', 'pools: [main]']],
    says: `weir.yaml: 1 warning

pools.spare   (line 24)
  got      a pool that no class uses
  allowed  anything; but nothing is sent to it
  fix      add spare to the pools of a class, or remove it
`,
  },
  {
    name: 'a page of any origin',
    change: [
      ['listen: { port: 8080 }', 'listen: { port: 8080 }\ncors: { origins: [https://app.example, "*"] }'],
    ],
    says: `weir.yaml: 1 warning

cors.origins[1]   (line 2)
  got      *
  allowed  anything; but every web page may then call from its visitors’ browsers and read the answers
  fix      name the pages that should: https://app.example
`,
  },
  {
    name: 'a class that no route leads to, and a model that its pools do not serve',
    change: [
      ['  - { when: { stream: false }, class: agent }\n', ''],
      [
        '    workload:\n      model: small\n      input_tokens: { p50: 8000',
        '    workload:\n      model: large\n      input_tokens: { p50: 8000',
      ],
    ],
    says: `weir.yaml: 2 warnings

classes.agent   (line 11)
  got      a class that no route leads to
  allowed  anything; but only who asks for it gets it: /agent/v1, or x-weir-class: agent
  fix      add a route with class: agent, if others should get it

classes.agent.workload.model   (line 15)
  got      large, which none of its pools serves
  allowed  anything; but its pools serve small
  fix      name the model that they serve, or other pools
`,
  },
  {
    name: 'a route that repeats another, and no route for the rest',
    change: [
      ['{ stream: false }', '{ stream: true, model: a }'],
      ['  - { class: chat }', '  - { when: { model: a, stream: true }, class: chat }'],
    ],
    says: `weir.yaml: 2 warnings

routes[1]   (line 29)
  got      the same when as routes[0]
  allowed  anything; but the first match wins: nothing reaches this one
  fix      remove one of the two

routes[1]   (line 29)
  got      a when on the last route
  allowed  anything; but requests that match no route are refused
  fix      end with a route without when: { class: … }
`,
  },
  {
    name: 'a wait as long as the deadline',
    change: [['wait: 55s', 'wait: 60s']],
    says: `weir.yaml: 1 warning

classes.agent.queue.wait   (line 19)
  got      60s, with a deadline of 60s
  allowed  anything; but who waits as long as its deadline has missed it
  fix      write less than the deadline, by the time an answer takes
`,
  },
  {
    name: 'a route by key without keys',
    change: [['{ stream: false }', '{ key: team }']],
    says: `weir.yaml: 1 warning

routes[0].when.key   (line 28)
  got      team, without a keys file
  allowed  anything; but no request has a key: nothing reaches this route
  fix      write auth: { keys: ./keys.yaml }, or remove the route
`,
  },
]

for (const { name, change, says } of WARNINGS) {
  t.test(`legal, but warned of: ${name}`, async t => {
    t.equal(warningsOf(altered(...change)), says)
  })
}

t.test(
  'whatever stands in place of any value, the answer is a config or problems, never a throw',
  async t => {
    const paths: (string | number)[][] = []
    const walk = (node: unknown, path: (string | number)[]): void => {
      if (path.length > 0) paths.push(path)
      if (Array.isArray(node)) for (const [index, item] of node.entries()) walk(item, [...path, index])
      else if (typeof node === 'object' && node !== null) {
        for (const [key, value] of Object.entries(node)) walk(value, [...path, key])
      }
    }
    walk(parse(GOOD), [])
    const junk = fc.oneof(
      fc.jsonValue(),
      fc.constantFrom(
        '',
        '0s',
        '-1s',
        '${X',
        '${X:-}',
        '__proto__',
        'off',
        'never',
        '1e3s',
        'http://',
        '*',
        -1,
        1e300,
      ),
    )
    t.doesNotThrow(() =>
      fc.assert(
        fc.property(fc.constantFrom(...paths), junk, (path, value) => {
          const data = parse(GOOD)
          const parent = path.slice(0, -1).reduce((node, step) => node[step], data)
          parent[path.at(-1) ?? ''] = value
          const loaded = loadText(stringify(data), {}, { file: 'weir.yaml' })
          if (loaded.ok !== undefined) return
          if (loaded.problems.length === 0) throw new Error('refused without a problem')
          if (loaded.problems.some(({ got, allowed, fix }) => !got || !allowed || !fix))
            throw new Error('left blank')
        }),
        { numRuns: 500, seed: 7 },
      ),
    )
  },
)
