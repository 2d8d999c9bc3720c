// The forms in which models write tool calls, by the name that a model card uses (formats.toolCalls).

export { deepseekV3 as 'deepseek-v3', deepseekV31 as 'deepseek-v3.1' } from './deepseek-v3.js'
export { deepseekV4 as 'deepseek-v4', deepseekV32 as 'deepseek-v3.2' } from './deepseek-v4.js'
export { glm, glm47 as 'glm-4.7' } from './glm.js'
export { harmony } from './harmony.js'
export { hermes } from './hermes.js'
export { kimi } from './kimi.js'
export { llama3Json as 'llama3-json' } from './llama3-json.js'
export { mistral, mistralV3 as 'mistral-v3', mistralV11 as 'mistral-v11' } from './mistral.js'
export { none } from './none.js'
export { qwen3Coder as 'qwen3-coder', seed } from './qwen3-coder.js'
