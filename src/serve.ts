// The path of a request, top to bottom, in one function: decoded request in, events out. What each step can refuse is
// written beside it. Invariant: a prompt is rendered once, tokenized once, hashed once; the job is then complete, frozen,
// and travels on.

import type { ServedModel, Service } from './api/contract.js'
import type { MissReason } from './api/dialect/contract.js'
import type { Backend } from './backend/backend.js'
import { createChainMemo } from './cache/chain.js'
import type { Chain, Root } from './core/block.js'
import { RefrainError } from './core/errors.js'
import type { GenerateEvent } from './core/events.js'
import type { ChatMessage, GenerateRequest, Job, Prompt } from './core/request.js'
import type { Reason, TurnArchive, TurnRecorder } from './explain/contract.js'
import { callConstraint } from './prompt/call-constraint.js'
import type {
  ChatTemplate,
  EncodeOptions,
  ModelFormats,
  Rendered,
  RenderOptions,
  Tokenizer,
} from './prompt/contract.js'
import { echoing } from './prompt/echo.js'
import type { HygieneRule } from './prompt/hygiene/hygiene.js'
import { reasoningApart } from './prompt/inline-reasoning.js'
import { pinsOf } from './prompt/pins.js'
import { asSent } from './prompt/retention/as-sent.js'
import { requireReasoning } from './prompt/retention/required.js'
import { type EncodedPrompt, encodePieces, splice } from './prompt/splice.js'
import { splitEvents } from './prompt/split-events.js'
import { catalogueOf, type QuickCatalogue } from './quick/catalogue.js'
import type { RenderChange } from './quick/fork-text.js'
import { jobApart, planQuick, type QuickJob, type QuickRun } from './quick/quick.js'
import { modelNamed } from './router/model-names.js'
import { type RouteLimits, route } from './router/router.js'
import { metered, type TenantLimits } from './router/tenant-limits.js'
import { type Recalled, recall } from './session/recall.js'
import type { ReplyStore } from './session/replies.js'
import { recordReplies } from './session/reply-recorder.js'
import type { SessionFacts, SessionFactsTable } from './session/session-facts.js'
import type { TranscriptScope } from './session/transcript.js'

/** A model with all that turns a request into a job for it. */
export interface ModelParts extends ServedModel {
  readonly tokenizer: Tokenizer
  readonly template: ChatTemplate
  readonly formats: ModelFormats
  /** Ids of `formats.specials`: they show up in the text of a chat's answer. */
  readonly visibleSpecials: readonly number[]
  /** How side questions are asked of it; absent: in words. */
  readonly quick?: QuickCatalogue
  /** Where this request's chain starts: model, format, tenant and salt. */
  root(request: GenerateRequest): Root
}

export interface ServeParts {
  /** The first is the default. */
  readonly models: readonly [ModelParts, ...ModelParts[]]
  /** Glob patterns over the names that clients send -> a model's own name; the first that matches counts. */
  readonly aliases: Readonly<Record<string, string>>
  readonly fleet: readonly Backend[]
  readonly limits: RouteLimits
  /** What tenants may ask for in a minute; absent: as much as comes. */
  readonly quotas?: TenantLimits | undefined
  /** What is remembered of sessions; absent: nothing. */
  readonly sessions?: SessionFactsTable
  /** Answers as they were sampled; absent: none is kept. */
  readonly replies?: ReplyStore
  /** Applied in this order to what is rendered. */
  readonly hygiene?: readonly HygieneRule[]
  /** Takes down turns, to say why they miss; absent: nobody does. */
  readonly explain?: TurnRecorder & Pick<TurnArchive, 'compare'>
}

/** Of the rendered prompt's end, what the reasoning parser looks at. */
const TAIL_CHARS = 256

/** Chains of the last prompts, some sixty of 100,000 tokens: a turn hashes its new blocks only. */
const CHAIN_MEMO_BYTES = 32 * 1024 * 1024

export function createService(parts: ServeParts): Service {
  const resolve = modelNamed(parts.models, parts.aliases)
  const chainOf = createChainMemo(CHAIN_MEMO_BYTES)

  async function* generate(asked: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void> {
    const model = resolve(asked.model || undefined) //            model_not_found
    const tidy = tidied(asked, model, parts.hygiene)
    const recalled = await recalledIn(tidy, model, parts.replies)
    const request = retained(tidy, model, recalled) //            reasoning_missing
    const facts = factsOf(request, model, parts.sessions)
    const keepTools = facts?.keepTools(request, systemOf(request.prompt))
    const frozen = { ...(facts && { date: facts.dateFor(request) }), ...(keepTools && { keepTools }) }
    const rendered = render(request.prompt, model, frozen) //     template_failed
    const prompt = await encoded(rendered, request.prompt, { model, recalled }) // invalid_request (ids outside of the vocabulary)
    const quick = quickOf(request, { model, rendered, prompt, frozen }) // invalid_request, by task
    const { tokens } = quick?.job ?? prompt
    checkIds(request, model) //                                   invalid_request
    const tail = (rendered?.text ?? '').slice(-TAIL_CHARS)
    const shown = { request, formats: model.formats, tail, keepsTools: keepTools !== undefined }
    const constraint = callConstraint(shown) //                   invalid_request, unsupported_parameter
    const maxTokens = room(request, tokens, model) //             context_length_exceeded
    const chain = chainOf(model.root(request), tokens)
    const visible = request.prompt.kind === 'chat' && { visibleSpecials: model.visibleSpecials }
    const pins = rendered && pinsOf(asked, request, { rendered, prompt, places: recalled?.places })
    const kept = { ...keeping(request, chain, facts), ...(pins && { pins }), ...(constraint && { constraint }) }
    const asides = quick !== undefined && quick.job.branches.length > 0 && { branches: quick.job.branches }
    const job: Job = Object.freeze({
      request,
      model: model.name,
      tokens,
      chain,
      maxTokens,
      ...visible,
      ...kept,
      ...asides,
    })
    parts.quotas?.take(request.tenant.name, tokens.length) //     rate_limited
    const { backend } = route(job, parts.fleet, parts.limits) //  engine_failed, queue_full
    const places = recalled && { places: recalled.places }
    const placed = { model: model.name, backend: backend.name, tokens, chain, rendered, ...places }
    const watch = parts.explain?.record({ request, ...placed, tokenizer: model.tokenizer, template: model.template })
    const ran = backend.generate(job, signal) //                  what the backend throws comes up in the loop
    const own =
      parts.quotas === undefined ? ran : metered(ran, (used) => parts.quotas?.settle(request.tenant.name, used))
    const apart = (questions: QuickJob, stop: AbortSignal) =>
      backend.generate(Object.freeze(jobApart(job, questions, chainOf(chain.root, questions.tokens))), stop)
    const events = quick === undefined ? own : quick.answer(own, signal, apart)
    if (request.echo) yield* echoing(events, request.n, rendered?.text ?? model.tokenizer.decode(tokens))
    else {
      const split = splitEvents(events, request, { formats: model.formats, tail })
      const told = recorded(split, request, { model, recalled, rendered, replies: parts.replies })
      yield* watch === undefined ? told : watch(told)
    }
  }

  return {
    models: parts.models,
    resolve,
    generate,
    async tokenize(served, input) {
      const model = resolve(served.name)
      if (input.kind === 'text') return encodedText(model, input.text, { special: 'text', bos: input.bos })
      const { retention = asSent } = model.formats
      const tidied = reasoningApart(tidy(input.messages, parts.hygiene), model.formats)
      const messages = retention.retain(tidied, { tools: worksWithTools(input) })
      const { text } = render({ ...input, messages }, model) as Rendered
      return encodedText(model, text, CHAT)
    },
    countTokens: (served, text) => resolve(served.name).tokenizer.encode(text, { special: 'text', bos: 'none' }).length,
    detokenize(served, ids) {
      const { tokenizer } = resolve(served.name)
      checkRange(ids, tokenizer, 'tokens')
      return tokenizer.decode(ids, { special: 'keep' })
    },
    spellingOf: (served, id) => resolve(served.name).tokenizer.spellingOf(id),
    ...(parts.explain && { explainMiss: missReasons(parts.explain) }),
  }
}

/** The reasons in the words of Anthropic's API, which knows of no other than what the client changed. */
const MISS_TYPES: Readonly<Partial<Record<Reason, MissReason['type']>>> = {
  model_changed: 'model_changed',
  system_changed: 'system_changed',
  // What the template writes of itself stands in the head, as the system prompt does.
  template_changed: 'system_changed',
  tools_changed: 'tools_changed',
  messages_changed: 'messages_changed',
  reasoning_dropped: 'messages_changed',
  retokenized: 'messages_changed',
  compaction: 'messages_changed',
  revocation: 'messages_changed',
}

function missReasons(explain: Pick<TurnArchive, 'compare'>): NonNullable<Service['explainMiss']> {
  return ({ id, tenant }, previousId) => {
    // Ids of answers are those of their requests behind a prefix.
    const found = explain.compare(tenant.name, { id, previousId: previousId.replace(/^[a-z]+[-_]/, '') })
    if (found === 'none') return undefined
    if (found === 'previous_not_found') return { type: 'previous_message_not_found' }
    if (found === 'unknown') return { type: 'unavailable' }
    const type = MISS_TYPES[found.reason]
    return type === undefined ? { type: 'unavailable' } : { type, missedTokens: found.missedTokens }
  }
}

/** A chat without what clients put in front of it and change from request to request, reasoning in its own place. */
function tidied(request: GenerateRequest, { formats }: ModelParts, rules?: readonly HygieneRule[]): GenerateRequest {
  const { prompt } = request
  if (prompt.kind !== 'chat') return request
  const tidied = tidy(prompt.messages, rules)
  const messages = prompt.continueFinal === true ? tidied : reasoningApart(tidied, formats)
  return messages === prompt.messages ? request : { ...request, prompt: { ...prompt, messages } }
}

function tidy(messages: readonly ChatMessage[], rules: readonly HygieneRule[] = []): readonly ChatMessage[] {
  return rules.reduce((left, rule) => rule.apply(left), messages)
}

function factsOf(
  { session, parentSession, tenant }: GenerateRequest,
  { name }: ModelParts,
  sessions: SessionFactsTable | undefined,
): SessionFacts | undefined {
  if (session === undefined) return undefined
  const scope = { tenant: tenant.name, model: name, session }
  return sessions?.open(parentSession === undefined ? scope : { ...scope, parent: parentSession })
}

/** Text of a chat's leading system messages. */
function systemOf(prompt: Prompt): string {
  if (prompt.kind !== 'chat') return ''
  const end = prompt.messages.findIndex(({ role }) => role !== 'system')
  return prompt.messages
    .slice(0, end < 0 ? undefined : end)
    .map(({ content }) => content)
    .join('\n')
}

/** Side requests leave nothing behind. */
function isSide({ requestClass }: GenerateRequest): boolean {
  return requestClass === 'auxiliary' || requestClass === 'compaction'
}

/** What of this request and of the session's past is kept: nothing of a side request, nothing that the client left behind. */
function keeping(
  request: GenerateRequest,
  chain: Chain,
  facts: SessionFacts | undefined,
): Pick<Job, 'transient' | 'deadBranch'> {
  const { prompt, pinTtlMs } = request
  const tools = prompt.kind === 'chat' ? prompt.tools : []
  const deadBranch = facts?.settle({ request, chain, tools, system: systemOf(prompt) })
  return { ...(isSide(request) && pinTtlMs === undefined && { transient: true }), ...(deadBranch && { deadBranch }) }
}

/** A chat's messages with the answers in them as they were generated; undefined where nothing is kept. */
async function recalledIn(
  request: GenerateRequest,
  model: ModelParts,
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

function scopeOf({ tenant, cacheSalt }: GenerateRequest, { name }: ModelParts): TranscriptScope {
  return { tenantSalt: tenant.salt, model: name, ...(cacheSalt !== undefined && { cacheSalt }) }
}

type Chat = Pick<Extract<Prompt, { kind: 'chat' }>, 'messages' | 'tools'>

/** A chat has tools for as long as there are calls in it: compaction requests send no definitions. */
function worksWithTools({ tools, messages }: Chat): boolean {
  return tools.length > 0 || messages.some(({ role, toolCalls = [] }) => role === 'tool' || toolCalls.length > 0)
}

/** The chat as the model is shown it: by the rule that its card names. @throws RefrainError `reasoning_missing`. */
function retained(request: GenerateRequest, { formats }: ModelParts, recalled?: Recalled): GenerateRequest {
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

/** What of the rendering is not the request's to say. */
type Frozen = Partial<Pick<RenderOptions, 'date' | 'keepTools' | 'addGenerationPrompt'>>

/** Text of a prompt; undefined where token ids were sent. */
function render(prompt: Prompt, { template, formats }: ModelParts, frozen: Frozen = {}): Rendered | undefined {
  if (prompt.kind === 'text') return { text: prompt.text, spans: [], tail: prompt.text.length }
  if (prompt.kind === 'tokens') return undefined
  const keepReasoning = formats.retention?.beyondTemplate === true && worksWithTools(prompt)
  const { messages, tools, continueFinal, thinking, templateValues: values } = prompt
  const asked = {
    ...(continueFinal === true && { continueFinal }),
    ...(thinking && { thinking }),
    ...(values !== undefined && { values }),
  }
  return template.render(messages, {
    tools,
    addGenerationPrompt: true,
    ...asked,
    ...(keepReasoning && { keepReasoning }),
    ...frozen,
  })
}

interface Asking {
  readonly model: ModelParts
  readonly rendered: Rendered | undefined
  readonly prompt: EncodedPrompt
  readonly frozen: Frozen
}

/** The side questions of a chat. @throws RefrainError `invalid_request`, `template_failed`. */
function quickOf(request: GenerateRequest, { model, rendered, prompt, frozen }: Asking): QuickRun | undefined {
  const { quick: ask, prompt: chat, maxTokens } = request
  if (ask === undefined || chat.kind !== 'chat' || rendered === undefined) return undefined
  const { continueFinal: continues = false, ...plain } = chat
  const { tokenizer, formats, contextLength, quick: catalogue = catalogueOf() } = model
  const input = {
    ...{ ask, catalogue, formats, tokenizer, contextLength, rendered, tokens: prompt.tokens },
    ...{ messages: chat.messages, continues },
    prefixTokens: prompt.tokensBefore(rendered.tail),
    render: (messages: readonly ChatMessage[], { addGenerationPrompt, thinking }: RenderChange) =>
      render({ ...plain, messages, ...(thinking && { thinking }) }, model, {
        ...frozen,
        addGenerationPrompt,
      }) as Rendered,
  }
  return planQuick(input, maxTokens === 0)
}

// A template writes its own BOS and special tokens; what a client sends as plain text stays text.
const CHAT = { special: 'parse', bos: 'none' } as const
const TEXT = { special: 'text', bos: 'add' } as const

function encodedText({ tokenizer }: ModelParts, text: string, options: EncodeOptions) {
  return tokenizer.encodeAsync?.(text, options) ?? tokenizer.encode(text, options)
}

async function encoded(
  rendered: Rendered | undefined,
  prompt: Prompt,
  { model, recalled }: { readonly model: ModelParts; readonly recalled: Recalled | undefined },
): Promise<EncodedPrompt> {
  const { tokenizer, formats } = model
  if (prompt.kind === 'tokens') {
    checkRange(prompt.ids, tokenizer, 'prompt')
    return { tokens: Int32Array.from(prompt.ids), tokensBefore: (at) => at }
  }
  const { text, spans } = rendered as Rendered
  const whole = [{ kind: 'text', text, at: 0, until: text.length } as const]
  if (prompt.kind === 'text') return encodePieces(whole, { tokenizer, options: TEXT })
  const beyondTemplate = formats.retention?.beyondTemplate === true
  const shown = { messages: prompt.messages, replies: recalled?.replies ?? [], beyondTemplate, tokenizer }
  return encodePieces(splice({ text, spans }, shown), { tokenizer, options: CHAT })
}

interface Recording {
  readonly model: ModelParts
  readonly recalled: Recalled | undefined
  readonly rendered: Rendered | undefined
  readonly replies: ReplyStore | undefined
}

/** The events, and the answers in them kept for the turns that send them back. */
function recorded(
  events: AsyncIterable<GenerateEvent>,
  request: GenerateRequest,
  { model, recalled, rendered, replies }: Recording,
): AsyncIterable<GenerateEvent> {
  const { prompt, session, tenant } = request
  if (replies === undefined || recalled === undefined || rendered === undefined || isSide(request)) return events
  if (prompt.kind !== 'chat') return events
  const begun = prompt.continueFinal === true ? prompt.messages.at(-1) : undefined
  const place = rendered.spans.find(({ message }) => message === prompt.messages.length - 1)
  if (begun !== undefined && place === undefined) return events
  const { tokenizer, visibleSpecials } = model
  const { transcript, after } = recalled
  return recordReplies(events, {
    opening: rendered.text.slice(begun === undefined ? rendered.tail : place?.start),
    begun: begun?.content ?? '',
    transcript,
    scope: scopeOf(request, model),
    eosTokenIds: tokenizer.eosTokenIds,
    stopTokenIds: request.stopTokenIds,
    bytesOf: (id) => (visibleSpecials.includes(id) ? Buffer.from(tokenizer.spellingOf(id)) : tokenizer.bytesOf(id)),
    keep: (reply, keys) =>
      replies.keep({ tenant: tenant.salt, ...(session !== undefined && { session }), ...keys, after, reply }),
  })
}

function checkIds({ sampling, stopTokenIds }: GenerateRequest, { tokenizer }: ModelParts): void {
  checkRange(stopTokenIds, tokenizer, 'stop_token_ids')
  checkRange(Object.keys(sampling.logitBias).map(Number), tokenizer, 'logit_bias')
}

function checkRange(ids: readonly number[], { vocabSize }: Tokenizer, param: string): void {
  const bad = ids.find((id) => id < 0 || id >= vocabSize)
  if (bad === undefined) return
  throw new RefrainError('invalid_request', `'${param}' has ${bad}, which is no token id below ${vocabSize}`, { param })
}

/**
 * How many tokens may be generated. Clients look for these words to know that they must compact.
 * @throws RefrainError `context_length_exceeded`.
 */
function room(request: GenerateRequest, tokens: Int32Array, { contextLength }: ModelParts): number {
  const param = request.prompt.kind === 'chat' ? 'messages' : 'prompt'
  if (tokens.length === 0) throw new RefrainError('invalid_request', `'${param}' is empty`, { param })
  const wanted = request.maxTokens ?? contextLength
  const left = contextLength - tokens.length
  if (left >= (wanted === 0 ? 0 : 1)) return Math.min(wanted, left)
  throw new RefrainError(
    'context_length_exceeded',
    `This model's maximum context length is ${contextLength} tokens. However, your ${param} resulted in ` +
      `${tokens.length} tokens. Please reduce the length of the ${param}.`,
    { param },
  )
}
