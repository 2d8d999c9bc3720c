// The forms in which models mark their reasoning, by the name that a model card uses (formats.reasoning).

export { none } from './none.js'
export { think } from './think.js'
