import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { Engine, type EngineOptions } from '../../src/sim/engine.js'
import { BLOCK_TOKENS, KvCache, type KvHold } from '../../src/sim/kv-cache.js'
import { type EngineProfile, profileNamed } from '../../src/sim/profiles.js'
import type { EngineRequest, Sequence } from '../../src/sim/sequence.js'
import { stepMs } from '../../src/sim/step-cost.js'
import { drawnUsers, runClosedLoop, workedExampleMix } from '../../src/sim/workload.js'
import { EngineHost, World } from '../../src/sim/world.js'
import { seededRng } from '../../src/time.js'

const llama = profileNamed('llama3-8b')
const withLimits = (limits: Partial<EngineProfile>): EngineProfile => ({ ...llama, ...limits })

/** An engine in a world of its own, with what came out of it. */
function bench(options: Partial<EngineOptions> = {}) {
  const world = new World()
  const engine = new Engine({ profile: llama, ...options })
  const begun: Sequence[] = []
  const ended: Sequence[] = []
  let steps = 0
  let mostTokens = 0
  const tokensOf = new Map<Sequence, { at: number; tokens: number }[]>()
  const host = new EngineHost(world, engine, step => {
    steps++
    mostTokens = Math.max(mostTokens, step.prefillTokens + step.decodeTokens)
    begun.push(...step.begun)
    ended.push(...step.ended)
    for (const sequence of step.emitted) {
      const marks = tokensOf.get(sequence) ?? []
      marks.push({ at: step.endedAt, tokens: sequence.fresh })
      tokensOf.set(sequence, marks)
    }
  })
  return {
    world,
    engine,
    host,
    begun,
    ended,
    marks: (sequence: Sequence) => tokensOf.get(sequence) ?? [],
    steps: () => steps,
    mostTokens: () => mostTokens,
  }
}

const ttft = (sequence: Sequence): number => (sequence.firstTokenAt ?? Number.NaN) - sequence.arrivedAt

/** Hashes of a prompt that shares its first `shared` blocks with all others of the same `family`. */
const hashes = (family: number, shared: number, own: number, blocks: number): number[] =>
  Array.from({ length: blocks }, (_, at) => (at < shared ? family * 1e6 + at : own * 1e9 + at))

t.test('an iteration costs what was measured on vLLM for Qwen3-32B', async t => {
  // Random rows of ai-dynamo/aiconfigurator 26844ff6 (Apache-2.0), fpm_golden_runs, Qwen3-32B TP1: prefill tokens,
  // prefill requests, their past KV, decode requests, their KV, ms measured.
  const rows = [
    [0, 0, 0, 32, 142546, 22.481],
    [0, 0, 0, 11, 78019, 18.151],
    [0, 0, 0, 13, 80253, 18.125],
    [3406, 2, 0, 30, 141869, 156.881],
    [0, 0, 0, 23, 116750, 20.608],
    [8191, 2, 0, 1, 4096, 407.949],
    [5011, 1, 0, 31, 159540, 252.21],
    [467, 1, 0, 31, 145144, 28.677],
    [0, 0, 0, 1, 4097, 14.168],
    [0, 0, 0, 32, 75459, 16.74],
    [8167, 5, 947, 25, 60493, 405.348],
    [4096, 1, 0, 0, 0, 205.953],
    [8181, 3, 4070, 11, 45083, 410.821],
    [2180, 1, 1916, 31, 72828, 114.797],
    [1486, 1, 0, 0, 0, 73.753],
  ] as const
  const errors = rows.map(([prefill, chunks, past, decodes, kv, measured]) => {
    const attention = chunks === 0 ? 0 : prefill * (past / chunks + prefill / chunks / 2)
    const cost = profileNamed('qwen3-32b').cost
    return Math.abs(stepMs(cost, prefill + decodes, chunks + decodes, attention, kv) / measured - 1)
  })
  errors.sort((a, b) => a - b)
  t.ok((errors[7] ?? 1) < 0.04, `median error ${errors[7]}`)
  t.ok((errors.at(-1) ?? 1) < 0.2, `worst error ${errors.at(-1)}`)
})

t.test('an iteration costs what was measured for Llama-2-70B and composed for Llama-3-8B', async t => {
  // Mutinifni/splitwise-sim 8f99e7dc (MIT), data/perf_model.csv, h100-80gb TP4, medians: prompt, batch, output,
  // ms of the prefill, ms of a decode.
  const splitwise = [
    [512, 1, 1024, 59.56, 29.33],
    [512, 4, 128, 195.28, 29.92],
    [512, 16, 128, 874.35, 32.84],
    [512, 64, 128, 3520.47, 52.36],
    [2048, 1, 128, 200.68, 29.82],
    [8192, 1, 128, 953.58, 29.72],
  ] as const
  const big = profileNamed('llama2-70b').cost
  for (const [prompt, batch, output, prefillMs, decodeMs] of splitwise) {
    const prefill = stepMs(big, prompt * batch, batch, (batch * prompt * prompt) / 2, 0)
    const decode = stepMs(big, batch, batch, 0, batch * (prompt + output / 2))
    t.ok(Math.abs(prefill / prefillMs - 1) < 0.1, `prefill ${prompt} x ${batch}: ${prefill}`)
    t.ok(Math.abs(decode / decodeMs - 1) < 0.1, `decode ${prompt} x ${batch}: ${decode}`)
  }
  // Composed from kernels of ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0) and microsoft/vidur 7d475133 (MIT), with
  // 0.5 ms host gap: prefill tokens, their past, decodes, KV of each, ms.
  const composed = [
    [0, 0, 9, 1196, 7.294],
    [0, 0, 21, 3972, 10.816],
    [730, 0, 1, 3280, 17.206],
    [1759, 0, 1, 1644, 42.232],
    [26, 2048, 10, 2062, 8.861],
    [2244, 4096, 0, 0, 55.686],
  ] as const
  for (const [prefill, past, decodes, kv, ms] of composed) {
    const sequences = decodes + (prefill > 0 ? 1 : 0)
    const got = stepMs(llama.cost, prefill + decodes, sequences, prefill * (past + prefill / 2), decodes * kv)
    t.ok(Math.abs(got / ms - 1) < 0.1, `${prefill} + ${decodes}: ${got}`)
  }
})

t.test('an unknown profile is refused with the names there are', async t => {
  t.throws(() => profileNamed('gpt-5'), {
    message: /^no engine profile "gpt-5"; there are llama3-8b, qwen3-32b, llama2-70b, worked-example, /,
  })
  t.throws(() => profileNamed('toString'), { message: /no engine profile "toString"/ })
})

t.test('a lone request pays its overhead, its chunks and one decode a token', async t => {
  const profile = profileNamed('worked-example')
  const b = bench({ profile })
  const sequence = b.host.submit({ promptTokens: 2200, outputTokens: 3 })
  b.world.run()
  const chunk = (count: number, past: number): number =>
    stepMs(profile.cost, count, 1, count * (past + count / 2), 0)
  const first = 10 + chunk(1024, 0) + chunk(1024, 1024) + chunk(152, 2048)
  const decodes = stepMs(profile.cost, 1, 1, 0, 2201) + stepMs(profile.cost, 1, 1, 0, 2202)
  t.ok(Math.abs(ttft(sequence) - first) < 1e-9)
  t.ok(Math.abs((sequence.lastTokenAt ?? 0) - first - decodes) < 1e-9)
  t.equal(sequence.state, 'ended')
  t.equal(b.engine.totals.iterations, 5)
  t.equal(b.engine.nextAt, Number.POSITIVE_INFINITY)
})

t.test('a prefill chunk delays the streams that decode beside it', async t => {
  const b = bench()
  const stream = b.host.submit({ promptTokens: 100, outputTokens: 60 })
  b.world.at(200, () => b.host.submit({ promptTokens: 8000, outputTokens: 1 }))
  b.world.run()
  const times = b.marks(stream).map(mark => mark.at)
  const gaps = times.slice(1).map((at, i) => at - (times[i] ?? 0))
  t.ok(Math.min(...gaps) < 8, 'alone it decodes at the floor')
  t.ok(Math.max(...gaps) > 150, 'the iteration with the long prompt is one long gap')
})

t.test('waiting requests enter first come, first served', async t => {
  const b = bench({ profile: withLimits({ maxSeqs: 2 }) })
  const sent = [3000, 10, 2000, 10, 10].map(promptTokens => b.host.submit({ promptTokens, outputTokens: 20 }))
  t.equal(b.engine.running, 0)
  b.world.run(30)
  t.same([b.engine.running, b.engine.waiting], [2, 3])
  b.world.run()
  t.same(
    b.begun.map(sequence => sent.indexOf(sequence)),
    [0, 1, 2, 3, 4],
  )
})

t.test('a request that cannot fit is refused with the bound', async t => {
  const b = bench({ profile: withLimits({ kvTokens: 1600 }) })
  t.throws(() => b.host.submit({ promptTokens: 1500, outputTokens: 101 }), {
    message: '1500 prompt and 101 output tokens; each is at least 1, together at most 1600',
  })
  t.throws(() => b.host.submit({ promptTokens: 0, outputTokens: 1 }), { message: /at least 1/ })
})

t.test('when memory runs out the last of the batch goes back and is computed again', async t => {
  const b = bench({ profile: withLimits({ kvTokens: 800 }) })
  const first = b.host.submit({ promptTokens: 320, outputTokens: 200 })
  const last = b.host.submit({ promptTokens: 320, outputTokens: 200 })
  b.world.run()
  t.equal(first.preemptions, 0)
  t.equal(last.preemptions, 1)
  t.equal(b.engine.totals.preemptions, 1)
  t.same([first.generated, last.generated], [200, 200])
  const had = b.engine.totals.prefillComputed - 640
  t.ok(had > 320 && had < 520, `prompt and output so far were computed again: ${had}`)
  t.equal(b.engine.totals.promptTokens, 640, 'the prompt counts once')
  const times = b.marks(last).map(mark => mark.at)
  const pause = Math.max(...times.slice(1).map((at, i) => at - (times[i] ?? 0)))
  t.ok(pause > 500, `its stream pauses until the first has ended: ${pause}`)
  t.equal(b.engine.kvUsage, 0)
})

t.test('a prompt is admitted only when all of it fits', async t => {
  const b = bench({ profile: withLimits({ kvTokens: 3200, maxBatchedTokens: 512 }) })
  b.host.submit({ promptTokens: 1600, outputTokens: 100 })
  const second = b.host.submit({ promptTokens: 2400, outputTokens: 10 })
  b.world.run()
  t.equal(b.engine.totals.preemptions, 0)
  t.equal(second.scheduledAt, b.ended[0]?.lastTokenAt)
})

t.test('a prefix that was computed before saves its prefill', async t => {
  const b = bench()
  const cold = b.host.submit({ promptTokens: 4000, outputTokens: 2, blockHashes: hashes(1, 250, 1, 250) })
  b.world.run()
  const warm = b.host.submit({ promptTokens: 4000, outputTokens: 2, blockHashes: hashes(1, 250, 2, 250) })
  b.world.run()
  const half = b.host.submit({ promptTokens: 4000, outputTokens: 2, blockHashes: hashes(1, 125, 3, 250) })
  b.world.run()
  t.same(
    [cold, warm, half].map(sequence => sequence.cachedTokens),
    [0, 3984, 2000],
    'whole blocks, and at least one token is computed',
  )
  const saved = (llama.cost.gMsPerKtok * 3984) / 1000 + (llama.cost.aMsPerMtok2 * 3984 * 3984) / 2e6
  t.ok(Math.abs(ttft(cold) - ttft(warm) - saved) < 0.2 * saved)
  t.ok(ttft(half) < ttft(cold) && ttft(half) > ttft(warm))
  t.same([b.engine.totals.prefixQueries, b.engine.totals.prefixHits], [12_000, 5984])
})

t.test('a shared prefix takes memory once, and is forgotten oldest first', async t => {
  const b = bench({ profile: withLimits({ kvTokens: 1600 }) })
  b.host.submit({ promptTokens: 640, outputTokens: 100, blockHashes: hashes(1, 40, 1, 40) })
  b.host.submit({ promptTokens: 641, outputTokens: 100, blockHashes: hashes(1, 40, 2, 40) })
  b.world.run(100)
  t.equal(b.engine.running, 2)
  t.ok(b.engine.kvUsage < 0.6, `two prompts of 40 blocks in ${b.engine.kvUsage} of 100`)
  b.world.run()
  t.equal(b.engine.kvUsage, 0)
  b.host.submit({ promptTokens: 1500, outputTokens: 1 })
  b.world.run()
  const after = b.host.submit({ promptTokens: 640, outputTokens: 1, blockHashes: hashes(1, 40, 4, 40) })
  b.world.run()
  t.equal(after.cachedTokens, 6 * BLOCK_TOKENS, 'the tail went first: 94 of 100 blocks were overwritten')
})

t.test('blocks are neither lost nor held twice, whatever is taken, shared and given back', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(5), fc.integer({ min: 1, max: 12 }), fc.boolean())), actions => {
        const kv = new KvCache(32 * BLOCK_TOKENS)
        const holds: KvHold[] = Array.from({ length: 6 }, () => ({ blocks: 0, shared: [] }))
        for (const [who, count, named] of actions) {
          const hold = holds[who] as KvHold
          if (hold.blocks > 0) {
            kv.release(hold)
          } else {
            const names = hashes(who % 2, 8, who + 1, count)
            const hits = named ? kv.match(names, count) : 0
            if (count - hits + kv.idle(names, hits) > kv.free) continue
            kv.share(hold, names, hits)
            kv.grow(hold, count - hits)
            if (named) for (let at = hits; at < count; at++) kv.publish(hold, names[at] as number)
          }
          const own = holds.reduce((sum, each) => sum + each.blocks - each.shared.length, 0)
          const shared = new Set(holds.flatMap(each => each.shared)).size
          assert.equal(kv.free, kv.blocks - own - shared)
          assert.ok(kv.free >= 0)
        }
        for (const hold of holds) kv.release(hold)
        assert.equal(kv.free, kv.blocks)
        kv.grow({ blocks: 0, shared: [] }, kv.blocks)
        assert.equal(kv.match(hashes(0, 8, 1, 8), 8), 0)
      }),
    ),
  )
  t.throws(() => new KvCache(160).grow({ blocks: 0, shared: [] }, 11), {
    message: '11 blocks asked for, 10 are free',
  })
})

interface Plan {
  readonly gap: number
  readonly request: EngineRequest
  readonly leavesAfter: number | undefined
}

const plans = fc.array(
  fc.record({
    gap: fc.integer({ min: 0, max: 400 }),
    request: fc
      .record({
        promptTokens: fc.integer({ min: 1, max: 900 }),
        outputTokens: fc.integer({ min: 1, max: 120 }),
        tokensPerStep: fc.integer({ min: 1, max: 3 }),
        family: fc.nat(2),
      })
      .map(({ family, ...rest }) => ({
        ...rest,
        blockHashes: hashes(family, 20, rest.promptTokens, Math.floor(rest.promptTokens / BLOCK_TOKENS)),
      })),
    leavesAfter: fc.option(fc.integer({ min: 0, max: 1500 }), { nil: undefined, freq: 3 }),
  }),
  { minLength: 1, maxLength: 25 },
)

/** Small enough to preempt and to queue. */
const tight = withLimits({ kvTokens: 1040, maxBatchedTokens: 256, maxSeqs: 6, overheadMs: 3 })

function play(list: readonly Plan[], options: Partial<EngineOptions>) {
  const b = bench({ profile: tight, ...options })
  const sequences: Sequence[] = []
  let at = 0
  for (const plan of list) {
    at += plan.gap
    b.world.at(at, () => {
      const sequence = b.host.submit(plan.request)
      sequences.push(sequence)
      if (plan.leavesAfter === undefined) return
      b.world.at(b.world.now() + plan.leavesAfter, () => b.host.abort(sequence))
    })
  }
  return { ...b, sequences }
}

t.test('memory stays within bounds, every request ends once, and tokens are conserved', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(plans, list => {
        const run = play(list, {})
        const watch = (): void => {
          assert.ok(run.engine.kvUsage >= 0 && run.engine.kvUsage <= 1)
          assert.ok(run.engine.running <= tight.maxSeqs)
          if (run.engine.nextAt !== Number.POSITIVE_INFINITY) run.world.at(run.world.now() + 5, watch)
        }
        run.world.at(1, watch)
        run.world.run()
        assert.equal(run.engine.kvUsage, 0)
        assert.equal(run.engine.running + run.engine.waiting, 0)
        assert.ok(run.mostTokens() <= tight.maxBatchedTokens)
        const done = run.sequences.filter(sequence => sequence.state === 'ended')
        const left = run.sequences.filter(sequence => sequence.state === 'aborted')
        assert.equal(done.length + left.length, list.length)
        assert.deepEqual(new Set(run.ended), new Set(done))
        assert.equal(run.ended.length, done.length)
        for (const sequence of done) assert.equal(sequence.generated, sequence.outputTokens)
        const tokens = run.sequences.reduce((sum, sequence) => sum + sequence.generated, 0)
        assert.equal(run.engine.totals.generationTokens, tokens)
      }),
    ),
  )
})

t.test('joined iterations bring the same first tokens and ends as single ones, in fewer steps', async t => {
  const times = (sequence: Sequence): readonly unknown[] => [
    sequence.state,
    sequence.generated,
    sequence.preemptions,
    sequence.firstTokenAt?.toFixed(6),
    sequence.lastTokenAt?.toFixed(6),
  ]
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(plans, list => {
        const single = play(list, {})
        const joined = play(list, { coarse: true })
        single.world.run()
        joined.world.run()
        assert.deepEqual(joined.sequences.map(times), single.sequences.map(times))
        assert.equal(joined.engine.totals.iterations, single.engine.totals.iterations)
        assert.equal(joined.engine.totals.generationTokens, single.engine.totals.generationTokens)
        assert.ok(joined.steps() <= single.steps())
      }),
    ),
  )
  const lone = bench({ coarse: true })
  lone.host.submit({ promptTokens: 10, outputTokens: 400 })
  lone.world.run()
  t.same([lone.steps(), lone.engine.totals.iterations], [2, 400])
})

t.test('however late the engine is called, its iterations follow each other without a gap', async t => {
  const run = (calls: readonly number[]): number[] => {
    const engine = new Engine({ profile: llama })
    const ends: number[] = []
    engine.submit({ promptTokens: 500, outputTokens: 30 }, 0)
    engine.submit({ promptTokens: 700, outputTokens: 40 }, 50)
    let last = 0
    for (const now of calls) {
      engine.runTo(now, step => {
        t.equal(step.startedAt, last)
        last = step.endedAt
        ends.push(step.endedAt)
      })
    }
    return ends
  }
  const often = run(Array.from({ length: 1000 }, (_, i) => i))
  t.ok(often.length > 40, 'the second joins after some iterations of the first')
  t.same(run([1000]), often)
  t.same(run([7, 90, 91, 350, 1000]), often)
})

t.test('a step may bring several tokens, as speculative decoding does', async t => {
  const b = bench()
  const sequence = b.host.submit({ promptTokens: 100, outputTokens: 12, tokensPerStep: 4 })
  b.world.run()
  t.same(
    b.marks(sequence).map(mark => mark.tokens),
    [1, 4, 4, 3],
  )
})

t.test('a request that is dropped frees its memory at once, in every state', async t => {
  const b = bench({ profile: withLimits({ maxSeqs: 1, overheadMs: 5 }) })
  const running = b.host.submit({ promptTokens: 1000, outputTokens: 500 })
  const waiting = b.host.submit({ promptTokens: 1000, outputTokens: 500 })
  b.world.run(200)
  const arriving = b.host.submit({ promptTokens: 1000, outputTokens: 500 })
  t.ok(b.engine.kvUsage > 0)
  b.host.abort(waiting)
  b.host.abort(arriving)
  b.host.abort(running)
  t.same([b.engine.running, b.engine.waiting, b.engine.kvUsage], [0, 0, 0])
  b.host.abort(running)
  b.world.run()
  t.same(
    [running, waiting, arriving].map(sequence => sequence.state),
    ['aborted', 'aborted', 'aborted'],
  )
  t.same(b.ended, [])
})

t.test('the same seed gives the same run, noise included, and another seed another', async t => {
  const run = (seed: number): number[] => {
    const b = bench({ noise: { sigma: 0.02, rng: seededRng(seed) } })
    const sequences = [300, 500, 700].map(promptTokens => b.host.submit({ promptTokens, outputTokens: 2000 }))
    b.world.run()
    return sequences.map(sequence => sequence.lastTokenAt ?? 0)
  }
  t.same(run(1), run(1))
  t.not(run(1)[0], run(2)[0])
  const quiet = bench()
  for (const promptTokens of [300, 500, 700]) quiet.host.submit({ promptTokens, outputTokens: 2000 })
  quiet.world.run()
  const share = (run(1)[0] ?? 0) / (quiet.ended[0]?.lastTokenAt ?? 1)
  t.ok(Math.abs(share - 1) < 0.005, `noise has mean 1: ${share}`)
  const loop = (seed: number) => {
    const users = drawnUsers(workedExampleMix, 0, seed)
    return runClosedLoop({ profile: llama, users, concurrency: 4, requests: 50, warmup: 5 })
  }
  t.same(loop(7), loop(7))
  t.notSame(loop(7), loop(8))
})

t.test('a world runs events in order of time, then of scheduling, and never turns back', async t => {
  const world = new World()
  const seen: string[] = []
  world.at(5, () => {
    seen.push(`b${world.now()}`)
    world.at(1, () => seen.push(`late${world.now()}`))
  })
  world.at(5, () => seen.push(`c${world.now()}`))
  world.at(2, () => seen.push(`a${world.now()}`))
  world.at(9, () => seen.push(`d${world.now()}`))
  world.run(6)
  t.same(seen, ['a2', 'b5', 'c5', 'late5'])
  t.equal(world.now(), 6)
  world.run()
  t.equal(seen.at(-1), 'd9')
})
