// The kinds of evictors, by the name that `cache.evictor` gives.

export { fifo } from './fifo.js'
export { lru } from './lru.js'
export { priorityLru as 'priority-lru' } from './priority-lru.js'
