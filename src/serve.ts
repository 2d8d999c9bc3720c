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
import type { ChatMessage, GenerateRequest, Job, Prompt, ToolDefinition } from './core/request.js'
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
import { pinsOf } from './prompt/pins.js'
import { type EncodedPrompt, encodePieces, splice } from './prompt/splice.js'
import { splitEvents } from './prompt/split-events.js'
import { stableTokens } from './prompt/stable-tokens.js'
import { catalogueOf, type QuickCatalogue } from './quick/catalogue.js'
import type { RenderChange } from './quick/fork-text.js'
import { jobApart, planQuick, type QuickJob, type QuickRun } from './quick/quick.js'
import { modelNamed } from './router/model-names.js'
import { type RouteLimits, route } from './router/router.js'
import { metered, type TenantLimits } from './router/tenant-limits.js'
import { asLogged, asTold, countedChat, isSide, scopeOf, shownChat, worksWithTools } from './serve-messages.js'
import type { Rendering, Sending, TurnRunner, TurnTry } from './session/contract.js'
import type { Recalled } from './session/recall.js'
import type { ReplyStore } from './session/replies.js'
import { recordReplies } from './session/reply-recorder.js'
import type { SessionFacts, SessionFactsTable } from './session/session-facts.js'

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
  /** Turns of sessions whose log is kept; absent: none is. */
  readonly turns?: TurnRunner
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

/** Chats as they are shown and rendered, for whoever shows them again. */
export interface ChatRenderer {
  shown(model: string, prompt: WholeChat): WholeChat
  render(model: string, shown: WholeChat, rendering: Rendering): string
}

type WholeChat = Extract<Prompt, { kind: 'chat' }>

export function createService(parts: ServeParts): Service & ChatRenderer {
  const resolve = modelNamed(parts.models, parts.aliases)
  const chainOf = createChainMemo(CHAIN_MEMO_BYTES)

  /** A turn of a session whose log is kept is compiled from it first, and comes back along the same path. */
  function generate(asked: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    if (asked.logged === undefined) return path(asked, signal)
    if (parts.turns === undefined) throw new RefrainError('unsupported_parameter', NO_SESSIONS, { param: 'session' })
    return parts.turns.run(asked, path, signal) //                conflict, session_limit, compaction_rejected
  }

  async function* path(
    asked: GenerateRequest,
    signal: AbortSignal,
    turn?: TurnTry,
  ): AsyncGenerator<GenerateEvent, void> {
    const model = resolve(asked.model || undefined) //            model_not_found
    const { request, recalled } = await (turn === undefined ? asTold : asLogged)(asked, model, parts) // reasoning_missing
    const facts = factsOf(request, model, parts.sessions)
    const keepTools = turn === undefined ? facts?.keepTools(request, systemOf(request.prompt)) : undefined
    const date = turn?.date ?? facts?.dateFor(request)
    const frozen = { ...(date && { date }), ...(keepTools && { keepTools }) }
    const rendered = render(request.prompt, model, frozen) //     template_failed
    const prompt = await encoded(rendered, request.prompt, { model, recalled }) // invalid_request (ids outside of the vocabulary)
    const quick = quickOf(request, { model, rendered, prompt, frozen }) // invalid_request, by task
    const { tokens } = quick?.job ?? prompt
    checkIds(request, model) //                                   invalid_request
    const tail = (rendered?.text ?? '').slice(-TAIL_CHARS)
    const callable = turn === undefined ? request : withTools(request, turn.callable)
    const choosing = { request: callable, formats: model.formats, tail, keepsTools: keepTools !== undefined }
    const constraint = callConstraint(choosing) //                invalid_request, unsupported_parameter
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
    const stable = turn && rendered && { stableTokens: stableOf(request, { rendered, prompt, turn }) }
    const beside = quick?.apart === undefined ? [] : chainOf(chain.root, quick.apart.tokens).hashes
    const blocks = (answer: readonly number[]) => [...chainOf(chain.root, behind(tokens, answer)).hashes, ...beside]
    const sending = { ...stable, backend: backend.name, blocks }
    await turn?.sending({ ...sendingOf(request, { rendered, date }), ...sending }) // context_mismatch
    const explained = {
      request,
      ...placed,
      ...(turn && rewritingOf(turn, stable)),
      tokenizer: model.tokenizer,
      template: model.template,
    }
    const watch = parts.explain?.record(explained)
    const ran = backend.generate(job, signal) //                  what the backend throws comes up in the loop
    const own =
      parts.quotas === undefined ? ran : metered(ran, (used) => parts.quotas?.settle(request.tenant.name, used))
    const apart = (questions: QuickJob, stop: AbortSignal) =>
      backend.generate(Object.freeze(jobApart(job, questions, chainOf(chain.root, questions.tokens))), stop)
    const events = quick === undefined ? own : quick.answer(own, signal, apart)
    if (request.echo) yield* echoing(events, request.n, rendered?.text ?? model.tokenizer.decode(tokens))
    else {
      const split = splitEvents(events, callable, { formats: model.formats, tail })
      const kept = recorded(split, request, { model, recalled, rendered, replies: parts.replies })
      const told = watch === undefined ? kept : watch(kept)
      yield* turn === undefined ? told : turn.logged(told)
    }
  }

  return {
    models: parts.models,
    resolve,
    generate,
    shown: (name, prompt) => shownChat(prompt, resolve(name)),
    render(name, { kind, messages, tools }, { date, ...rendering }) {
      const dated = date === undefined ? {} : { date: new Date(date) }
      return (render({ kind, messages, tools, ...rendering }, resolve(name), dated) as Rendered).text
    },
    async tokenize(served, input) {
      const model = resolve(served.name)
      if (input.kind === 'text') return encodedText(model, input.text, { special: 'text', bos: input.bos })
      const messages = countedChat(input, model, parts.hygiene)
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

const NO_SESSIONS = "'session' cannot be honoured: sessions are not logged here (sessions.log.store)"

/** A chat whose model may call `tools`, be they where they are. */
function withTools(request: GenerateRequest, tools: readonly ToolDefinition[]): GenerateRequest {
  const { prompt } = request
  return prompt.kind !== 'chat' || prompt.tools === tools ? request : { ...request, prompt: { ...prompt, tools } }
}

function behind(tokens: Int32Array, answer: readonly number[]): Int32Array {
  const all = new Int32Array(tokens.length + answer.length)
  all.set(tokens)
  all.set(answer, tokens.length)
  return all
}

/** What explanations are told of a logged session's prompt. */
function rewritingOf({ tailMessages, boundary }: TurnTry, stable: { readonly stableTokens: number } | undefined) {
  return { ...(tailMessages > 0 && stable), ...(boundary !== undefined && { boundary }) }
}

interface Standing {
  readonly rendered: Rendered
  readonly prompt: EncodedPrompt
  readonly turn: TurnTry
}

/** Tokens of a logged session's prompt that are there in the next turn too. */
function stableOf({ prompt: chat }: GenerateRequest, { rendered, prompt, turn }: Standing): number {
  const messages = chat.kind === 'chat' ? chat.messages.length : 0
  return stableTokens({ rendered, prompt }, { messages, tail: turn.tailMessages })
}

/** What the log of a session is told of a prompt, but for its tokens. */
function sendingOf(
  { prompt }: GenerateRequest,
  { rendered, date }: { readonly rendered: Rendered | undefined; readonly date: Date | undefined },
): Pick<Sending, 'prompt' | 'text' | 'rendering'> {
  if (prompt.kind !== 'chat' || rendered === undefined) throw new Error('a session is a chat')
  const { thinking, templateValues } = prompt
  const rendering: Rendering = {
    ...(date && { date: date.toISOString() }),
    ...(thinking && { thinking }),
    ...(templateValues !== undefined && { templateValues }),
  }
  return { prompt, text: rendered.text, rendering }
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
