/** Every key of the config: its type, unit, default, what is allowed and what it is for. All else is made from this. */
import Type, { type Static } from 'typebox'
import {
  about,
  CLOSED,
  commitAfter,
  defaulted,
  duration,
  durationOrOff,
  flag,
  group,
  host,
  names,
  namesOrNone,
  object,
  port,
  share,
  size,
  text,
  whole,
} from './kinds.js'

const MODE = (byDefault?: 'joint') =>
  Type.Enum(['joint', 'clause'], {
    ...about({
      unit: 'name',
      allowed: 'joint or clause',
      doc: 'joint: the share that meets all clauses at once. clause: each for itself, so p90 of both may leave 80 % good.',
    }),
    ...defaulted(byDefault),
  })

const PERCENTILE_ALLOWED = 'a number from 50 to 99.9'

const bounds = {
  ttft: Type.Optional(
    duration(
      'Time from the complete request to the first output, queueing included. 500ms: the reader waits half a second.',
    ),
  ),
  tpot: Type.Optional(
    duration(
      'Mean time per output token after the first. 40ms: 25 tokens a second, faster than people read.',
    ),
  ),
  deadline: Type.Optional(
    duration(
      'For programs: the whole answer within this, from arrival. 60s at 30 tokens/s leaves room for 1,800 tokens.',
    ),
  ),
}

const target = object(
  {
    percentile: Type.Number({
      minimum: 50,
      maximum: 99.9,
      ...about({
        unit: 'percentile',
        allowed: PERCENTILE_ALLOWED,
        doc: 'Share of the requests, in %, that must meet the clauses. 90: one in ten may miss.',
        missing:
          'say how many must meet the bounds: without a percentile no bound can be kept or missed; 90 is usual',
      }),
    }),
    ...bounds,
    min_tokens_per_second: Type.Optional(
      Type.Number({
        minimum: 0,
        ...about({
          unit: 'tokens/s',
          allowed: 'a number, 0 or more',
          doc: 'With a deadline: slowest acceptable rate over the whole answer. 0 asks for none; 30 gives 3,000 tokens 100 s.',
        }),
      }),
    ),
    mode: MODE('joint'),
    window: duration('Period of the error budget. 7d at 90 %: a tenth of a week’s requests may miss.', {
      default: '7d',
    }),
  },
  'What is promised: a percentile, and ttft and tpot for people who read a stream, or a deadline for programs.',
  'write a percentile with ttft and tpot, or with a deadline',
)

const guard = object(
  {
    percentile: Type.Optional(
      Type.Number({
        minimum: 50,
        maximum: 99.9,
        ...about({
          unit: 'percentile',
          allowed: PERCENTILE_ALLOWED,
          doc: 'Not below the target’s. Without one: 99, or the target’s if that is higher.',
        }),
      }),
    ),
    ttft: Type.Optional(duration('Without one: 4 times the target’s, so 500ms gives 2s.')),
    tpot: Type.Optional(duration('Without one: 2.5 times the target’s, so 40ms gives 100ms.')),
    deadline: Type.Optional(duration('Without one: 2 times the target’s, so 60s gives 120s.')),
    mode: Type.Optional(MODE()),
    window: duration('Period of the error budget. 30d at 99 %: one request in a hundred of a month.', {
      default: '30d',
    }),
  },
  'The looser bound at a higher percentile, which pages. Without one: p99 at 4x ttft and 2.5x tpot, or 2x the deadline.',
)

const percentiles = (doc: string) =>
  object(
    {
      p50: Type.Number({
        minimum: 1,
        ...about({
          unit: 'tokens',
          allowed: 'a number, 1 or more',
          doc: 'Half of the requests have at most this many. 1000: about 750 English words.',
          missing: 'write the median of your own traffic, in tokens',
        }),
      }),
      p90: Type.Number({
        minimum: 1,
        ...about({
          unit: 'tokens',
          allowed: 'a number, not below p50',
          doc: 'Nine in ten have at most this many. 2700 beside a p50 of 1000: a long tail.',
          missing: 'write the 90th percentile of your own traffic, in tokens',
        }),
      }),
    },
    doc,
    'write p50 and p90: an SLO holds for the lengths it was measured with, and for no others',
  )

const MODEL_NAME = 'a model name'

const workload = object(
  {
    model: text('name', MODEL_NAME, 'Model the SLO was measured with: llama-3.1-8b.', {
      missing: 'name the model: the same bounds on another model are another promise',
    }),
    precision: Type.Optional(
      text('name', 'a word such as fp8', 'Its number format: fp8 or bf16. Recorded with the SLO.'),
    ),
    input_tokens: percentiles('Prompt lengths, cached part included. 1000 and 2700: chat.'),
    output_tokens: percentiles('Answer lengths, reasoning included. 130 and 420: chat.'),
    cache_hit: share('Share of prompt tokens found in the prefix cache. 0.3: 300 of 1,000 cost nothing.', 0),
  },
  'The traffic the SLO holds for. Prompts three times as long need about three times the prefill.',
  'say which traffic the SLO is for (model, input_tokens, output_tokens): without it the bounds mean nothing',
)

const trafficClass = object(
  {
    slo: object(
      { target, guard: Type.Optional(guard) },
      'The promise.',
      'write slo: { target: … }: a class without an SLO has no goodput',
    ),
    workload,
    priority: Type.Integer({
      ...about({
        unit: 'number',
        allowed: 'a whole number',
        doc: 'Lower is served first. 0 for chat, 1 for agents.',
      }),
      default: 0,
    }),
    pools: names(
      'names of pools',
      'Home first, then where it may spill. [main, spare]: spare only when main is full.',
      'name at least one pool: its home',
    ),
    queue: Type.Optional(
      object(
        {
          max: whole('count', 1, 'Most requests waiting at once. 500 more find it full and are shed.'),
          wait: duration('Longest wait. 55s of a 60s deadline leave 5s for the answer.', {
            missing: 'say how long a request may wait; less than the deadline',
          }),
        },
        'Deadline classes only: requests wait in Weir, by deadline, while other classes keep their headroom.',
      ),
    ),
    fairness: Type.Optional(
      Type.Number({
        minimum: 0,
        maximum: 1,
        ...about({
          unit: 'share',
          allowed: 'a number from 0 to 1',
          doc: 'As admission.fairness, for this class. 0: its longest prompts are refused first.',
        }),
      }),
    ),
    own_bounds: Type.Optional(
      object(
        {
          min: duration('A request that asks for less gets this. 5s.', { missing: 'write both min and max' }),
          max: duration('A request that asks for more gets this. 600s.', {
            missing: 'write both min and max',
          }),
        },
        'Deadline classes only: clamps for x-weir-deadline-ms. Without them it counts as sent.',
      ),
    ),
    commit_after: Type.Optional(commitAfter('As the top-level key, for this class.')),
  },
  'Traffic under one SLO and one priority. The name is also a path: /NAME/v1.',
)

const poolTimeouts = object(
  {
    connect: Type.Optional(duration('As the top-level key, for this pool.')),
    first_token: Type.Optional(durationOrOff('As the top-level key, for this pool.')),
    stall: Type.Optional(durationOrOff('As the top-level key, for this pool.')),
    total: Type.Optional(durationOrOff('As the top-level key, for this pool.')),
  },
  'The clocks of this pool; those not named are the top-level ones.',
)

/** Routes that are passed through, by what they are for. */
const GROUPS = ['embeddings', 'audio', 'images', 'files', 'rerank', 'tokenize', 'realtime'] as const

const ENGINES = ['auto', 'vllm', 'sglang', 'trtllm', 'llamacpp', 'openai'] as const

const pool = object(
  {
    model: text('name', 'a model name, or "*" for any', 'The model its replicas serve. "*" takes any.', {
      missing: 'name the model its replicas serve, as in their /v1/models, or "*"',
    }),
    gpus_per_replica: Type.Number({
      exclusiveMinimum: 0,
      ...about({
        unit: 'GPUs',
        allowed: 'a number above 0',
        doc: 'For goodput per GPU. 4: one replica is tensor-parallel over four; 0.5: half a GPU.',
      }),
      default: 1,
    }),
    replicas: Type.Array(
      Type.String({
        minLength: 1,
        'x-unit': 'URL',
        'x-allowed': 'http:// or https://, host, port, and a base path if there is one',
      }),
      {
        minItems: 1,
        ...about({
          unit: 'list',
          allowed: 'a list of URLs: http://10.0.0.1:8000',
          doc: 'One URL an engine endpoint. A /v1 at the end is dropped; a path before it is kept.',
          missing: 'list the URLs of its engines: replicas: [http://10.0.0.1:8000]',
        }),
      },
    ),
    engine: Type.Enum([...ENGINES], {
      ...about({
        unit: 'name',
        allowed: ENGINES.join(', '),
        doc: 'Kind of server. Recorded; all are spoken to alike for now.',
      }),
      default: 'auto',
    }),
    api_key: text(
      'secret',
      'a text',
      `Weir’s own credential for its replicas. Empty: none. Best from \${ENV}.`,
      {
        default: '',
      },
    ),
    max_in_flight: whole(
      'count',
      1,
      'Requests on one replica at most, until its speed is known. 2 replicas: 64.',
      {
        default: 32,
      },
    ),
    ask_usage: flag(
      'Ask for true token counts (stream_options.include_usage); the added event is taken out again.',
      true,
    ),
    pass_authorization: flag(
      'Hand the client’s own credentials on. Not with keys and not with api_key.',
      false,
    ),
    send_priority: flag(
      'Send the class’s priority to its replicas, in place of the client’s. For engines that schedule by it.',
      false,
    ),
    refuse_members: namesOrNone(
      'names of members of a request body',
      'Members that only operators may set; a body with one of them is a 400. [kv_transfer_params].',
    ),
    allow: Type.Array(Type.Enum([...GROUPS], { 'x-unit': 'name', 'x-allowed': GROUPS.join(', ') }), {
      ...about({
        unit: 'list',
        allowed: `a list of ${GROUPS.join(', ')}`,
        doc: 'Further routes passed to its replicas, unmeasured. [embeddings]: POST /v1/embeddings. Others are 404.',
      }),
      default: [],
    }),
    timeouts: Type.Optional(poolTimeouts),
    sweep: Type.Optional(
      text(
        'file',
        'a file that weir sweep wrote',
        'Sweep of this pool, relative to this file; its knee is the budget. sweeps/main.json.',
      ),
    ),
  },
  'Replicas that serve one model under one SLO.',
)

const when = object(
  {
    path: Type.Optional(
      text(
        'glob',
        'a path, * for any characters',
        'Path of the request. /agent/* takes /agent/v1/chat/completions.',
      ),
    ),
    header: Type.Optional(
      Type.Record(
        Type.String(),
        Type.String({ 'x-unit': 'glob', 'x-allowed': 'a text, * for any characters' }),
        {
          minProperties: 1,
          ...about({
            unit: 'object',
            allowed: 'header names with a glob each: { x-weir-class: agent }',
            doc: 'All must be there and match. Names in any case. { user-agent: "langchain*" }.',
          }),
        },
      ),
    ),
    model: Type.Optional(
      text(
        'glob',
        'a model name, * for any characters',
        'Model the client asks for. "*-agent" takes small-agent.',
      ),
    ),
    key: Type.Optional(
      text('name', 'a label of the keys file', 'Label of the API key, exactly. team-search.'),
    ),
    stream: Type.Optional(flag('Whether the client asks for a stream. false: programs, mostly.')),
    tools: Type.Optional(flag('Whether the body brings tools. true: agents, mostly.')),
    max_tokens: Type.Optional(
      object(
        {
          min: Type.Optional(whole('tokens', 0, 'At least. 1000.')),
          max: Type.Optional(whole('tokens', 0, 'At most. 4000.')),
        },
        'Bounds on max_tokens of the request; one without it does not match. { min: 1000 }.',
      ),
    ),
  },
  'All that are named must hold. Only the last route may go without.',
)

const route = object(
  {
    when: Type.Optional(when),
    class: text('name', 'the name of a class', 'Class of the requests that match.', {
      missing: 'name the class of the requests that match',
    }),
    rewrite: Type.Optional(
      object(
        {
          model: text('name', MODEL_NAME, 'Model to ask the upstream for instead. llama-3.1-8b.', {
            missing: 'name the model to ask for, or remove rewrite',
          }),
        },
        'What to change in the body.',
      ),
    ),
  },
  'A rule; the first that matches wins.',
)

export type AuthFields = 'none' | { none?: 'anyone-may-call'; keys?: string }

export const ConfigFields = Type.Object(
  {
    listen: group(
      {
        host: host('Address of the data port. 127.0.0.1: this machine only; 0.0.0.0: every network.'),
        port: port(8080),
      },
      'Where applications call: /v1/*.',
    ),
    admin: group(
      {
        host: host('Address of the admin port.'),
        port: port(8081),
        token: text(
          'secret',
          'a text',
          'Needed for all but /livez and /readyz. Required beyond loopback. Empty: none.',
          {
            default: '',
          },
        ),
      },
      'Where operators look: metrics, health, state. Never on the data port.',
    ),
    auth: Type.Unsafe<AuthFields>({
      type: ['string', 'object'],
      pattern: '^none$',
      properties: {
        none: Type.Literal('anyone-may-call', {
          ...about({
            unit: 'name',
            allowed: 'anyone-may-call',
            doc: 'Written out, it also allows no keys beyond loopback: whoever reaches the port may use the GPUs.',
          }),
        }),
        keys: text('file', 'a file name', 'Keys file, relative to this file: ./keys.yaml.'),
      },
      minProperties: 1,
      maxProperties: 1,
      ...CLOSED,
      ...about({
        unit: 'name',
        allowed: 'none, { none: anyone-may-call } or { keys: FILE }',
        doc: 'Who may call. none: anyone, on loopback only.',
      }),
      default: 'none',
    }),
    limits: group(
      {
        body: size('Largest request body; a longer one is a 413. 32MiB: some 20 photos.', '32MiB'),
        headers: size('Largest request head; a longer one is a 431. 16KiB.', '16KiB'),
        event: size('Longest event that is looked into; a longer one passes unread. 8MiB.', '8MiB'),
        head_time: duration('For the head of a request to come in; a slower one is a 408. 60s.', {
          default: '60s',
        }),
        body_time: duration(
          'For its body, after that; a slower one is a 408. 5m: 32MiB at less than a megabit a second do not make it.',
          { default: '5m' },
        ),
      },
      'Sizes of what is taken, and how long it may take to come in.',
    ),
    timeouts: group(
      {
        connect: duration('Until the connection to a replica stands. 5s.', { default: '5s' }),
        first_token: durationOrOff(
          'From dispatch to the first output; not streamed: to the head. 600s.',
          '600s',
        ),
        stall: durationOrOff('Between two outputs of a stream. 120s.', '120s'),
        total: durationOrOff('From dispatch to the end. off: long answers are not cut.', 'off'),
      },
      'Each clock is its own; none is another’s default. Queueing has its own: classes.NAME.queue.wait.',
    ),
    commit_after: commitAfter(
      'When a silent stream gets its status line, from arrival. 30s: below the 60 s at which load balancers cut.',
      '30s',
    ),
    retries: group(
      {
        share: share(
          'Of the requests of the last 10 s, how many may go to a second replica. 0.1: 10 of 100.',
          0.1,
        ),
        floor: whole('count', 0, 'Allowed however few requests there were. 3.', { default: 3 }),
      },
      'Before the commit a failed request goes to one other replica, within this budget.',
    ),
    admission: group(
      {
        theta: share(
          'Least gain at which a request is taken: its chance to be good, less what it costs others. 0.15: for less, the room waits for the next.',
          0.15,
        ),
        fairness: share(
          'Whom to refuse. 0: most good requests, so the longest prompts first. 1: equal service to all prompt sizes. 0.8: none much below four fifths of what it would have if the room were dealt out evenly.',
          0.8,
        ),
      },
      'What is served when headroom runs out. A class may set its own fairness.',
    ),
    autoscale: group(
      {
        target: share(
          'Demand over capacity that the wished number of replicas is made for. 0.7: ten replicas for the work of seven.',
          0.7,
        ),
        down: share(
          'Below this, with one replica fewer and for 10 minutes, one goes. 0.55: of ten when nine would be 55 % full.',
          0.55,
        ),
        cold_start: duration(
          'What a replica needs from its start until it is ready and warm. 180s: a rise is answered that much ahead.',
          { default: '180s' },
        ),
      },
      'What weir_desired_replicas goes by. Weir starts and stops nothing itself.',
    ),
    state_dir: text(
      'file',
      'a directory, made if it is not there; relative to this file',
      'Where figures are kept over a restart. Empty: nowhere. ./state: one small file in it, without prompts.',
      { default: '' },
    ),
    cors: group(
      {
        origins: namesOrNone(
          'origins as browsers send them, https://app.example, or "*"',
          'Pages that may call from a browser. [https://app.example]; "*" is any page.',
          '^([*]|[a-z][a-z0-9+.-]*://[^/?#A-Z\\s]+)$',
        ),
      },
      'Which web pages may read the answers. Without origins: none.',
    ),
    overload_status: Type.Enum([503, 429], {
      ...about({
        unit: 'status',
        allowed: '503 or 429',
        doc: 'Status of a shed for want of headroom. 429 for meshes that eject on 5xx.',
      }),
      default: 503,
    }),
    classes: Type.Record(Type.String(), trafficClass, {
      minProperties: 1,
      ...about({
        unit: 'object',
        allowed: 'at least one class',
        doc: 'By name: a-z, 0-9, _ and -.',
        missing: 'write at least one class with its slo, workload and pools',
      }),
    }),
    pools: Type.Record(Type.String(), pool, {
      minProperties: 1,
      ...about({
        unit: 'object',
        allowed: 'at least one pool',
        doc: 'By name: a-z, 0-9, _ and -.',
        missing: 'write at least one pool with its model and replicas',
      }),
    }),
    routes: Type.Optional(
      Type.Array(route, {
        minItems: 1,
        ...about({
          unit: 'list',
          allowed: 'a list of { when, class }',
          doc: 'First match wins. Without routes every request is of the only class.',
        }),
      }),
    ),
  },
  CLOSED,
)
export type ConfigFields = Static<typeof ConfigFields>
export type ClassFields = ConfigFields['classes'][string]
export type PoolFields = ConfigFields['pools'][string]
export type RouteFields = NonNullable<ConfigFields['routes']>[number]

export const KeysFields = Type.Object(
  {
    keys: Type.Array(
      object(
        {
          label: text('name', 'a name for the key', 'What logs and routes call the key. team-search.', {
            missing: 'name the key: logs and routes use the name, never the key',
          }),
          key: Type.Optional(text('secret', 'a text', `The key itself, best from \${ENV}.`)),
          sha256: Type.Optional(
            Type.String({
              pattern: '^[0-9a-fA-F]{64}$',
              ...about({
                unit: 'secret',
                allowed: '64 hexadecimal digits',
                doc: 'Or its SHA-256: printf %s "$KEY" | sha256sum.',
              }),
            }),
          ),
          classes: Type.Optional(
            names('names of classes', 'Classes it may ask for by path or header. Without: all.'),
          ),
        },
        'One key.',
      ),
      {
        minItems: 1,
        ...about({
          unit: 'list',
          allowed: 'a list of { label, key or sha256, classes }',
          doc: 'The keys that may call.',
          missing: `write keys: [ { label: team-search, key: "\${TEAM_SEARCH_KEY}" } ]`,
        }),
      },
    ),
  },
  CLOSED,
)
export type KeysFields = Static<typeof KeysFields>

/** Keys of the documentation that this version does not do, and what that means. `*` is any name. */
export const NOT_BUILT: readonly (readonly [path: string, means: string])[] = [
  ['admission.hold_share', 'what does not wait is decided at once'],
  ['admission.explore', 'predictions learn from what is served'],
  ['pools.*.fallback', 'a request stays with its model'],
]
