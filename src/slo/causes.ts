/** The causes a diagnosis can find, and the one thing to do about each. */

export type Cause = keyof typeof CAUSES

/** Source: algorithms 6.14. */
export const CAUSES = {
  prompt_shift: {
    why: 'prompts have become longer',
    action: 'sweep anew with this workload, or give long prompts a pool of their own',
  },
  cache_loss: {
    why: 'the prefix cache finds less',
    action: 'look for a change of prompts or of routing, and for eviction',
  },
  router_queue: {
    why: 'requests wait in Weir for a replica',
    action: 'raise max_in_flight if the replicas have room, else add replicas',
  },
  prefill_capacity: {
    why: 'more prompts come than the engines can prefill',
    action: 'add replicas, or prefill capacity',
  },
  cold_start: {
    why: 'replicas that have just started are slow',
    action: 'warm replicas up before they take requests',
  },
  head_of_line: {
    why: 'short prompts wait behind long ones',
    action: 'send long prompts to a pool of their own',
  },
  batch_pressure: {
    why: 'more streams share each step',
    action: 'lower max_in_flight, or add replicas',
  },
  kv_thrash: {
    why: 'KV memory is full and streams are thrown out of it',
    action: 'lower max_in_flight or the longest context',
  },
  prefill_interference: {
    why: 'prefill takes the steps of running streams',
    action: "lower the engine's chunk size, or send long prompts elsewhere",
  },
  sick_replica: {
    why: 'one replica is slower than it was, and than the others',
    action: 'take it out, and look for throttling or a noisy neighbour',
  },
  overload: {
    why: 'more comes than the pool can serve',
    action: 'add replicas; until then let Weir shed',
  },
  regression: {
    why: 'every replica is slower at the same load',
    action: 'take back the last change of engine, model, precision or driver',
  },
  slow_clients: {
    why: 'clients read more slowly than the engines write',
    action: "look at the clients' network: the engines are well",
  },
  unexplained: {
    why: 'nothing that Weir counts explains it',
    action: 'look at the engines themselves',
  },
} as const
