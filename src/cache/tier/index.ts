// The kinds of tiers. Which ones stand below host memory follows from the config: `cache.disk` present or not.

export { disk } from './disk.js'
export { memory } from './memory.js'
export { none } from './none.js'
