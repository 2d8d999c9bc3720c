// Ways to shorten a context, by the name that a lifecycle policy uses.

export { discard75 as 'discard-75' } from './discard-75.js'
export { discardAll as 'discard-all' } from './discard-all.js'
export { history } from './history.js'
export { micro } from './micro.js'
export { snip } from './snip.js'
export { summary } from './summary.js'
