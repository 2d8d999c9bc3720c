// The forms in which models write tool calls, by the name that a model card uses (formats.toolCalls).

export { hermes } from './hermes.js'
export { none } from './none.js'
