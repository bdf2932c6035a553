/** Every key of a scenario file: its type, unit, default, what is allowed and what it is for. */
import Type, { type Static } from 'typebox'
import { about, CLOSED, duration, flag, object, share, text, whole } from '../config/kinds.js'

const amount = (min: number, doc: string, byDefault?: number) =>
  Type.Number({
    minimum: min,
    ...about({ unit: 'number', allowed: `a number, ${min} or more`, doc }),
    ...(byDefault === undefined ? {} : { default: byDefault }),
  })

const kind = <T extends string>(names: T[], doc: string) =>
  Type.Enum(names, {
    ...about({ unit: 'name', allowed: names.join(', '), doc, missing: `name one: ${names.join(', ')}` }),
  })

const replicas = object(
  {
    engine: text(
      'name',
      'the name of an engine profile',
      'What it costs. llama3-8b: Llama-3-8B on one H100.',
      {
        missing: 'name an engine, such as llama3-8b, qwen3-32b or llama2-70b',
      },
    ),
    count: whole('count', 1, 'Replicas of it.', { max: 10_000, default: 1 }),
    speed: amount(0.01, 'So many times as fast as the profile. 0.6: a step takes 1.67 times as long.', 1),
  },
  'Replicas of one kind.',
)

const length = (doc: string) =>
  object(
    {
      median: amount(1, 'Tokens.'),
      sigma: amount(0, 'Standard deviation of the logarithm.'),
      min: whole('tokens', 1, 'Shorter ones are this long.'),
      max: whole('tokens', 1, 'Longer ones are this long.'),
    },
    doc,
  )

const traffic = object(
  {
    share: amount(0, 'Of the offered work, relative to the other classes. 0.8 beside 0.2: four fifths.', 1),
    slo: object(
      {
        percentile: Type.Number({
          minimum: 50,
          maximum: 99.9,
          ...about({
            unit: 'percentile',
            allowed: 'a number from 50 to 99.9',
            doc: 'Share that must meet it, in %.',
          }),
          default: 90,
        }),
        ttft: Type.Optional(duration('Time to the first output.')),
        tpot: Type.Optional(duration('Mean time per output token after the first.')),
        deadline: Type.Optional(duration('The whole answer within this.')),
      },
      'What is promised: ttft and tpot, or a deadline.',
      'write ttft and tpot for people who read a stream, or a deadline for programs',
    ),
    queue: Type.Optional(
      object(
        {
          max: whole('count', 1, 'Waiting at once, at most.', { default: 500 }),
          wait: duration('For so long, at most.', { default: '55s' }),
        },
        'With a deadline: requests may wait in the router.',
      ),
    ),
    trace: Type.Optional(text('file', 'a shipped trace or a file', 'Rows of a trace, in their order.')),
    sessions: Type.Optional(
      text(
        'file',
        'a shipped trace or a file',
        'Agent sessions: the next call comes when the last is answered.',
      ),
    ),
    lengths: Type.Optional(
      object(
        { input: length('Of prompts.'), output: length('Of answers.') },
        'Lognormal lengths, Poisson arrivals.',
      ),
    ),
    arrivals: Type.Enum(['recorded', 'poisson'], {
      ...about({
        unit: 'name',
        allowed: 'recorded or poisson',
        doc: 'Of a trace. recorded: at its own times, scaled to the load. poisson: only lengths are its.',
      }),
      default: 'recorded',
    }),
    max_input: whole('tokens', 1, 'Rows and calls with longer prompts are left out.', { default: 100_000 }),
    max_think: duration('Of sessions: longer think times are cut to this.', { default: '30s' }),
    max_calls: whole('count', 1, 'A session ends after so many calls.', { default: 40 }),
  },
  'Requests under one promise.',
)

const rate = object(
  {
    shape: kind(
      ['steady', 'burst', 'square', 'daily', 'two-state', 'steps'],
      'How the rate goes up and down around the load.',
    ),
    at: Type.Optional(duration('Of a burst: when it begins.')),
    for: Type.Optional(duration('Of a burst: how long it lasts.')),
    factor: Type.Optional(amount(0, 'Of a burst. 3: three times the rate.')),
    period: Type.Optional(
      duration('Of a square wave: high half and low half. Of daily: a day, from its lowest rate on.'),
    ),
    mean: Type.Optional(duration('Of two states: how long each lasts, on average.')),
    low: Type.Optional(amount(0, 'Factor of the low half or state, or at night.')),
    high: Type.Optional(amount(0, 'Factor of the high half or state, or at noon.')),
    steps: Type.Optional(
      Type.Array(
        object({ at: duration('From then on.'), factor: amount(0, 'So many times the rate.') }, 'One step.'),
        { minItems: 1, ...about({ unit: 'list', allowed: 'a list of steps', doc: 'In order of time.' }) },
      ),
    ),
  },
  'How the rate goes up and down.',
)

const fault = object(
  {
    kind: kind(
      ['prompt-shift', 'cache-flush', 'crash', 'slow', 'cold-start', 'foreign', 'aborts', 'retries'],
      'What goes wrong.',
    ),
    at: Type.Optional(duration('When it begins.')),
    for: Type.Optional(duration('How long it lasts.')),
    replica: Type.Optional(whole('count', 0, 'Which one, from 0.')),
    factor: Type.Optional(amount(0.01, 'Prompts, or iterations of a slow replica: so many times as long.')),
    share: Type.Optional(share('Of clients that leave; of the replica, for foreign traffic.', 0)),
    within: Type.Optional(duration('Clients leave within this.')),
    times: Type.Optional(whole('count', 1, 'Retries after the first attempt.')),
    obey: Type.Optional(flag('Whether retries wait for Retry-After.')),
  },
  'One thing that goes wrong.',
)

export const ScenarioFields = Type.Object(
  {
    name: text('text', 'a text', 'What the tables call it.', { missing: 'give the scenario a name' }),
    fleet: object(
      {
        replicas: Type.Array(replicas, {
          minItems: 1,
          ...about({ unit: 'list', allowed: 'a list of replicas', doc: 'Numbered from 0 in this order.' }),
        }),
        noise: amount(0, 'Sigma of the lognormal jitter of each iteration. Measured: 0.01 to 0.03.', 0.02),
        prefix_cache: flag('Whether engines keep prefixes.', true),
        view_delay: Type.Optional(duration('What engines do is known to the policy so much later.')),
        max_in_flight: whole('count', 1, 'Of one replica, for policies that go by a limit.', { default: 64 }),
      },
      'The replicas, all in one pool.',
      'say which engines there are: fleet.replicas is a list with engine and count',
    ),
    classes: Type.Record(Type.String({ pattern: '^[a-z][a-z0-9_-]*$' }), traffic, {
      ...CLOSED,
      minProperties: 1,
      ...about({
        unit: 'object',
        allowed: 'an object with one member a class',
        doc: 'In order of priority.',
      }),
    }),
    rate: Type.Optional(rate),
    faults: Type.Array(fault, {
      ...about({ unit: 'list', allowed: 'a list of faults', doc: 'What goes wrong.' }),
      default: [],
    }),
    warmup: duration('Before measuring begins.', { default: '60s' }),
    length: duration('Requests that arrive in this time are measured.', { default: '5m' }),
  },
  CLOSED,
)

export type ScenarioFile = Static<typeof ScenarioFields>
