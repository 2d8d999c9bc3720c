// What the model is shown of a chat, step 3 of a request's path: without what clients put in front of it, answers as they were
// generated, reasoning by the rule of the model's card. Of a logged session: what its log compiled to, to the letter.
// Invariant: the same messages are always shown the same.

import type { ChatMessage, GenerateRequest, Prompt } from './core/request.js'
import type { ModelFormats } from './prompt/contract.js'
import type { HygieneRule } from './prompt/hygiene/hygiene.js'
import { reasoningApart } from './prompt/inline-reasoning.js'
import { asSent } from './prompt/retention/as-sent.js'
import { requireReasoning } from './prompt/retention/required.js'
import { exactReplies } from './session/exact-replies.js'
import { type Recalled, recall } from './session/recall.js'
import type { ReplyStore } from './session/replies.js'
import type { TranscriptScope } from './session/transcript.js'

export interface ShownModel {
  readonly name: string
  readonly formats: ModelFormats
}

export interface MessageParts {
  readonly hygiene?: readonly HygieneRule[]
  readonly replies?: ReplyStore
}

export interface Shown {
  readonly request: GenerateRequest
  /** Undefined: nothing is kept, or it is no chat. */
  readonly recalled: Recalled | undefined
}

/** As the client sent it, put in order. @throws RefrainError `reasoning_missing`. */
export async function asTold(asked: GenerateRequest, model: ShownModel, parts: MessageParts): Promise<Shown> {
  const tidy = tidied(asked, model, parts.hygiene)
  const recalled = await recalledIn(tidy, model, parts.replies)
  return { request: retained(tidy, model, recalled), recalled }
}

/** As the log of its session has it. */
export async function asLogged(asked: GenerateRequest, model: ShownModel, { replies }: MessageParts): Promise<Shown> {
  const { prompt } = asked
  const found = await recalledIn(asked, model, replies)
  if (prompt.kind !== 'chat') return { request: asked, recalled: undefined }
  const recalled = found && exactReplies(prompt.messages, found)
  return { request: { ...asked, prompt: shownChat(prompt, model) }, recalled }
}

type WholeChat = Extract<Prompt, { kind: 'chat' }>

/** A chat by the model's rule of retention. */
export function shownChat(prompt: WholeChat, { formats: { retention = asSent } }: ShownModel): WholeChat {
  return { ...prompt, messages: retention.retain(prompt.messages, { tools: worksWithTools(prompt) }) }
}

/** A chat that is only counted. */
export function countedChat(
  { messages, tools }: Pick<WholeChat, 'messages' | 'tools'>,
  { formats }: ShownModel,
  rules: readonly HygieneRule[] | undefined,
): readonly ChatMessage[] {
  const { retention = asSent } = formats
  const own = reasoningApart(tidy(messages, rules), formats)
  return retention.retain(own, { tools: worksWithTools({ messages, tools }) })
}

/** A chat without what clients put in front of it and change from request to request, reasoning in its own place. */
function tidied(request: GenerateRequest, { formats }: ShownModel, rules?: readonly HygieneRule[]): GenerateRequest {
  const { prompt } = request
  if (prompt.kind !== 'chat') return request
  const tidied = tidy(prompt.messages, rules)
  const messages = prompt.continueFinal === true ? tidied : reasoningApart(tidied, formats)
  return messages === prompt.messages ? request : { ...request, prompt: { ...prompt, messages } }
}

function tidy(messages: readonly ChatMessage[], rules: readonly HygieneRule[] = []): readonly ChatMessage[] {
  return rules.reduce((left, rule) => rule.apply(left), messages)
}

/** Side requests leave nothing behind. */
export function isSide({ requestClass }: GenerateRequest): boolean {
  return requestClass === 'auxiliary' || requestClass === 'compaction'
}

/** A chat's messages with the answers in them as they were generated; undefined where nothing is kept. */
async function recalledIn(
  request: GenerateRequest,
  model: ShownModel,
  store: ReplyStore | undefined,
): Promise<Recalled | undefined> {
  const { prompt, session } = request
  if (store === undefined || prompt.kind !== 'chat') return undefined
  return recall(prompt.messages, {
    store,
    scope: scopeOf(request, model),
    fillReasoning: worksWithTools(prompt),
    continueFinal: prompt.continueFinal === true,
    ...(session !== undefined && { session }),
  })
}

export function scopeOf({ tenant, cacheSalt }: GenerateRequest, { name }: ShownModel): TranscriptScope {
  return { tenantSalt: tenant.salt, model: name, ...(cacheSalt !== undefined && { cacheSalt }) }
}

type Chat = Pick<Extract<Prompt, { kind: 'chat' }>, 'messages' | 'tools'>

/** A chat has tools for as long as there are calls in it: compaction requests send no definitions. */
export function worksWithTools({ tools, messages }: Chat): boolean {
  return tools.length > 0 || messages.some(({ role, toolCalls = [] }) => role === 'tool' || toolCalls.length > 0)
}

/** The chat as the model is shown it: by the rule that its card names. @throws RefrainError `reasoning_missing`. */
function retained(request: GenerateRequest, { formats }: ShownModel, recalled?: Recalled): GenerateRequest {
  const { prompt } = request
  if (prompt.kind !== 'chat') return request
  const { retention = asSent, strictReasoning = false } = formats
  const messages = recalled?.messages ?? prompt.messages
  const tools = worksWithTools(prompt)
  if (strictReasoning && tools && !isSide(request) && prompt.thinking?.enabled !== false) {
    requireReasoning(messages, { retention, isKnown: (i) => recalled?.replies[i] !== undefined })
  }
  return { ...request, prompt: { ...prompt, messages: retention.retain(messages, { tools }) } }
}
