/** Whether a pool's replicas may be asked for usage: some refuse members they do not know. */
import type { PoolId } from '../request.js'

/**
 * `unproven`: asked, and a 400 is tried again without asking; `proven`: an answer came to a request that asked;
 * `off`: configured so, or refused.
 */
type Standing = 'unproven' | 'proven' | 'off'

export class UsageAsking {
  private asked: readonly boolean[] = []
  private readonly standings: Standing[] = []

  /** @param asked  by pool id: `ask_usage` */
  constructor(asked: readonly boolean[]) {
    this.reconfigure(asked)
  }

  /** What was found out about a pool stands until its `ask_usage` changes. */
  reconfigure(asked: readonly boolean[]): void {
    asked.forEach((ask, pool) => {
      if (ask !== this.asked[pool]) this.standings[pool] = ask ? 'unproven' : 'off'
    })
    this.asked = asked
  }

  asks(pool: PoolId): boolean {
    return this.standings[pool] !== 'off'
  }

  /** A 400 to a request that asked may be for the asking. */
  doubtful(pool: PoolId): boolean {
    return this.standings[pool] === 'unproven'
  }

  /** An answer came to a request that asked. */
  prove(pool: PoolId): void {
    if (this.standings[pool] === 'unproven') this.standings[pool] = 'proven'
  }

  /** The same request was refused with asking and answered without. @returns whether this is news */
  refuse(pool: PoolId): boolean {
    const news = this.standings[pool] === 'unproven'
    if (news) this.standings[pool] = 'off'
    return news
  }
}
