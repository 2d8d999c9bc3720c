// The family of wire APIs. A re-export is a registration: the dialect's path becomes a route of the server.

export { anthropicMessages as 'anthropic-messages' } from './anthropic-messages.js'
export { openaiChat as 'openai-chat' } from './openai-chat.js'
export { openaiCompletions as 'openai-completions' } from './openai-completions.js'
export { openaiResponses as 'openai-responses' } from './openai-responses.js'
