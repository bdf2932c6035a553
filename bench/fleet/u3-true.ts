/** Runs a plan on the engines of the simulator, which have the last word on what it is worth. */
import { Engine } from '../../src/sim/engine.js'
import type { EngineRequest } from '../../src/sim/sequence.js'
import type { Problem } from './bounds-problem.js'
import type { Course, Orders } from './u3-replica.js'

interface Numbered extends EngineRequest {
  readonly job: number
}

/** Sends each replica its orders; returns 1 for each job that ended good. */
export function played(course: Course, problem: Problem, plan: readonly Orders[]): Uint8Array {
  const good = new Uint8Array(problem.jobs.length)
  for (const { jobs, ready } of plan) {
    const engine = new Engine<Numbered>({ profile: problem.profile, coarse: true })
    const sink: Parameters<typeof engine.runTo>[1] = step => {
      for (const { request, firstTokenAt, lastTokenAt } of step.ended) {
        const { job } = request
        if (firstTokenAt === undefined || lastTokenAt === undefined) continue
        const inTime =
          firstTokenAt <= (course.firstBy[job] as number) && lastTokenAt <= (course.lastBy[job] as number)
        if (inTime && lastTokenAt - firstTokenAt <= (course.span[job] as number)) good[job] = 1
      }
    }
    for (const [at, job] of jobs.entries()) {
      const now = (ready[at] as number) - problem.profile.overheadMs
      // Those of one time are all there before an iteration begins.
      if (ready[at] !== ready[at - 1]) engine.runTo(now, sink)
      const { promptTokens, outputTokens, blockHashes } = problem.jobs[job] as Problem['jobs'][number]
      engine.submit({ job, promptTokens, outputTokens, blockHashes }, now)
    }
    engine.runTo(Number.POSITIVE_INFINITY, sink)
  }
  return good
}
