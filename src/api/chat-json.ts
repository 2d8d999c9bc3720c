// A request of any dialect as the body of a chat, for backends that have no other. Invariant: tools, arguments and schemas
// go out as the text that came, in the client's order; what the client did not say is not said.

import { RefrainError } from '../core/errors.js'
import type { ChatMessage, Constraint, GenerateRequest, Sampling, Thinking, ToolChoice } from '../core/request.js'

/** @throws RefrainError `unsupported_parameter` where a chat cannot say it. */
export function chatJson(request: GenerateRequest): string {
  const { prompt } = request
  if (prompt.kind !== 'chat') {
    throw new RefrainError('unsupported_parameter', 'no backend of the model takes prompts that are no chat')
  }
  const members: [string, string | undefined][] = [
    ['model', JSON.stringify(request.model)],
    ['messages', `[${prompt.messages.map(messageJson).join(',')}]`],
    ['tools', prompt.tools.length === 0 ? undefined : `[${prompt.tools.map(({ json }) => json).join(',')}]`],
    ...choiceMembers(request.toolChoice, prompt.tools.length),
    ['max_tokens', request.maxTokens?.toString()],
    ...samplingMembers(request.sampling),
    ['stop', request.stop.length === 0 ? undefined : JSON.stringify(request.stop)],
    ['stop_token_ids', request.stopTokenIds.length === 0 ? undefined : JSON.stringify(request.stopTokenIds)],
    ['n', request.n === 1 ? undefined : String(request.n)],
    ['logprobs', request.logprobs === undefined ? undefined : 'true'],
    ['top_logprobs', request.logprobs === undefined ? undefined : String(request.logprobs)],
    ['response_format', request.constraint && formatJson(request.constraint)],
    ['cache_salt', request.cacheSalt === undefined ? undefined : JSON.stringify(request.cacheSalt)],
    ...thinkingMembers(prompt.thinking, prompt.templateValues),
    ['stream', 'true'],
  ]
  if (prompt.continueFinal === true) {
    members.push(['continue_final_message', 'true'], ['add_generation_prompt', 'false'])
  }
  return `{${members.flatMap(([key, json]) => (json === undefined ? [] : [`"${key}":${json}`])).join(',')}}`
}

function messageJson(message: ChatMessage): string {
  const { role, content, name, toolCalls, toolCallId, reasoning } = message
  const calls = toolCalls?.map(
    ({ id, name: called, arguments: text }) =>
      `{"id":${JSON.stringify(id)},"type":"function","function":{"name":${JSON.stringify(called)},"arguments":${JSON.stringify(text)}}}`,
  )
  const members = [
    `"role":"${role}"`,
    `"content":${content === '' && calls !== undefined ? 'null' : JSON.stringify(content)}`,
    ...(name === undefined ? [] : [`"name":${JSON.stringify(name)}`]),
    ...(reasoning === undefined ? [] : [`"reasoning_content":${JSON.stringify(reasoning)}`]),
    ...(calls === undefined ? [] : [`"tool_calls":[${calls.join(',')}]`]),
    ...(toolCallId === undefined ? [] : [`"tool_call_id":${JSON.stringify(toolCallId)}`]),
  ]
  return `{${members.join(',')}}`
}

function choiceMembers(choice: ToolChoice | undefined, tools: number): [string, string | undefined][] {
  if (choice === undefined || tools === 0) return []
  const { mode, allowed, parallel } = choice
  const parallelJson = parallel === undefined ? undefined : String(parallel)
  return [
    ['tool_choice', choiceJson(mode, allowed)],
    ['parallel_tool_calls', parallelJson],
  ]
}

function choiceJson(mode: ToolChoice['mode'], allowed: readonly string[] | undefined): string | undefined {
  if (allowed === undefined) return mode === 'auto' ? undefined : `"${mode}"`
  const named = (name: string) => `{"type":"function","function":{"name":${JSON.stringify(name)}}}`
  const [only, ...more] = allowed
  if (mode === 'required' && only !== undefined && more.length === 0 && !only.includes('*')) return named(only)
  if (mode === 'none') return '"none"'
  return `{"type":"allowed_tools","allowed_tools":{"mode":"${mode}","tools":[${allowed.map(named).join(',')}]}}`
}

function samplingMembers(sampling: Sampling): [string, string | undefined][] {
  const unless = (value: number, neutral: number) => (value === neutral ? undefined : String(value))
  return [
    ['temperature', unless(sampling.temperature, 1)],
    ['top_p', unless(sampling.topP, 1)],
    ['top_k', unless(sampling.topK, 0)],
    ['min_p', unless(sampling.minP, 0)],
    ['repetition_penalty', unless(sampling.repetitionPenalty, 1)],
    ['presence_penalty', unless(sampling.presencePenalty, 0)],
    ['frequency_penalty', unless(sampling.frequencyPenalty, 0)],
    ['logit_bias', Object.keys(sampling.logitBias).length === 0 ? undefined : JSON.stringify(sampling.logitBias)],
    ['seed', sampling.seed?.toString()],
  ]
}

function formatJson(constraint: Constraint): string {
  switch (constraint.kind) {
    case 'json':
      return '{"type":"json_object"}'
    case 'json-schema':
      return `{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":${constraint.schema}}}`
    default:
      throw new RefrainError('unsupported_parameter', 'no backend of the model takes this form of output')
  }
}

/** The effort in the API's own field, the switch where templates look for it. */
function thinkingMembers(
  thinking: Thinking | undefined,
  templateValues: string | undefined,
): [string, string | undefined][] {
  const off = thinking?.enabled === false ? '"enable_thinking":false,"thinking":false' : ''
  const sent = templateValues?.trim().slice(1, -1).trim() ?? ''
  const values = [off, sent].filter((each) => each !== '').join(',')
  return [
    ['reasoning_effort', thinking?.effort === undefined ? undefined : JSON.stringify(thinking.effort)],
    ['chat_template_kwargs', values === '' ? undefined : `{${values}}`],
  ]
}
