// The scorers, by the names that `router.weights` gives.

export { affinity } from './affinity.js'
export { prefill } from './prefill.js'
export { pressure } from './pressure.js'
export { queue } from './queue.js'
export { random } from './random.js'
export { streams } from './streams.js'
