// The forms in which models mark their reasoning, by the name that a model card uses (formats.reasoning).

export { harmony } from './harmony.js'
export { mistral } from './mistral.js'
export { none } from './none.js'
export { seed } from './seed.js'
export { think, thinkImplied as 'think-implied' } from './think.js'
