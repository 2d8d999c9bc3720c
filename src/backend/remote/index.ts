// The kinds of servers elsewhere. A re-export is a registration: the quoted name is the `kind` of a backend in the config.

export { llamaCpp as 'llama-cpp' } from './llama-cpp.js'
export { openai } from './openai.js'
export { refrain } from './refrain.js'
export { sglang } from './sglang.js'
export { vllm } from './vllm.js'
