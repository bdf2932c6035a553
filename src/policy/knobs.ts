/** Constants of the rule, for experiments; the defaults are what is argued for in docs/algorithms.md. */
export const DEFAULTS = {
  /** Least gain of a request that does not wait, in units of its group's weight: below it the room is worth more to the next. */
  theta: 0.15,
  /** The same of one that may wait. */
  waitingTheta: 0.8,
  /** Least chance to be good, as a share of that on an idle replica, at which one that may wait is sent. */
  waitingLeast: 0.7,
  /** 0: most good requests. 1: equal service to all prompt sizes and waiting classes. */
  fairness: 0.8,
  /** Share of chat's TTFT that prefill of those who may wait may take on one replica. */
  guard: 0.3,
  /** Charge for each stream of chat where one goes that may wait: they gather. */
  gather: 0.0004,
  /** Loss that a request may cause that no idle replica would serve within its SLO. */
  beyond: 0.05,
  /** Predictions are multiplied by this: how the core does with a wrong model. */
  bias: 1,
  /** 0 switches a part off, to see what it is worth: the loss of others, its price, the scale, the memory guard, prefixes. */
  loss: 1,
  kappa: 1,
  scale: 1,
  memory: 1,
  prefix: 1,
}
export type Knobs = typeof DEFAULTS
