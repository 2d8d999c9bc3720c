// The path of a request, top to bottom, in one function: decoded request in, events out. What each step can refuse is
// written beside it. Invariant: a prompt is rendered once, tokenized once, hashed once; the job is then complete, frozen,
// and travels on.

import type { ServedModel, Service } from './api/contract.js'
import type { Backend } from './backend/backend.js'
import { chainOf } from './cache/chain.js'
import type { Chain, Root } from './core/block.js'
import { RefrainError } from './core/errors.js'
import type { GenerateEvent } from './core/events.js'
import type { ChatMessage, GenerateRequest, Job, Prompt } from './core/request.js'
import { callConstraint } from './prompt/call-constraint.js'
import type { ChatTemplate, ModelFormats, RenderOptions, Tokenizer } from './prompt/contract.js'
import type { HygieneRule } from './prompt/hygiene/hygiene.js'
import { splitEvents } from './prompt/split-events.js'
import { type RouteLimits, route } from './router/router.js'
import type { SessionFacts, SessionFactsTable } from './session/session-facts.js'

/** A model with all that turns a request into a job for it. */
export interface ModelParts extends ServedModel {
  readonly tokenizer: Tokenizer
  readonly template: ChatTemplate
  readonly formats: ModelFormats
  /** Ids of `formats.specials`: they show up in the text of a chat's answer. */
  readonly visibleSpecials: readonly number[]
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
  /** What is remembered of sessions; absent: nothing. */
  readonly sessions?: SessionFactsTable
  /** Applied in this order to what is rendered. */
  readonly hygiene?: readonly HygieneRule[]
}

/** Of the rendered prompt's end, what the reasoning parser looks at. */
const TAIL_CHARS = 256

/** Longer names of models than this match no alias. */
const NAME_CHARS = 256

export function createService(parts: ServeParts): Service {
  const resolve = resolver(parts)

  async function* generate(asked: GenerateRequest, signal: AbortSignal): AsyncGenerator<GenerateEvent, void> {
    const model = resolve(asked.model || undefined) //            model_not_found
    const request = tidied(asked, parts.hygiene)
    const facts = factsOf(request, model, parts.sessions)
    const keepTools = facts?.keepTools(request, systemOf(request.prompt))
    const frozen = { ...(facts && { date: facts.dateFor(request) }), ...(keepTools && { keepTools }) }
    const text = render(request.prompt, model, frozen) //         template_failed
    const tokens = tokenize(text, request.prompt, model) //       invalid_request (ids outside of the vocabulary)
    checkIds(request, model) //                                   invalid_request
    const tail = (text ?? '').slice(-TAIL_CHARS)
    const shown = { request, formats: model.formats, tail, keepsTools: keepTools !== undefined }
    const constraint = callConstraint(shown) //                   invalid_request, unsupported_parameter
    const maxTokens = room(request, tokens, model) //             context_length_exceeded
    const chain = chainOf(model.root(request), tokens)
    const visible = request.prompt.kind === 'chat' && { visibleSpecials: model.visibleSpecials }
    const kept = { ...keeping(request, chain, facts), ...(constraint && { constraint }) }
    const job: Job = Object.freeze({ request, model: model.name, tokens, chain, maxTokens, ...visible, ...kept })
    const { backend } = route(job, parts.fleet, parts.limits) //  engine_failed, queue_full
    const events = backend.generate(job, signal) //               what the backend throws comes up in the loop
    if (request.echo) yield* echoing(events, request.n, text ?? model.tokenizer.decode(tokens))
    else yield* splitEvents(events, request, { formats: model.formats, tail })
  }

  return {
    models: parts.models,
    resolve,
    generate,
    tokenize(served, input) {
      const model = resolve(served.name)
      if (input.kind === 'text') return model.tokenizer.encode(input.text, { special: 'text', bos: input.bos })
      const messages = tidy(input.messages, parts.hygiene)
      return tokenize(render({ ...input, messages }, model), input, model)
    },
    detokenize(served, ids) {
      const { tokenizer } = resolve(served.name)
      checkRange(ids, tokenizer, 'tokens')
      return tokenizer.decode(ids, { special: 'keep' })
    },
    spellingOf: (served, id) => resolve(served.name).tokenizer.spellingOf(id),
  }
}

function resolver(parts: ServeParts): (name: string | undefined) => ModelParts {
  const byName = new Map(parts.models.map((model) => [model.name, model]))
  const patterns = Object.entries(parts.aliases).map(([pattern, name]) => ({ matches: glob(pattern), name }))
  return (name) => {
    if (name === undefined) return parts.models[0]
    const own = byName.get(name)
    if (own !== undefined) return own
    // Matching is quadratic at worst in the name's length, and the name is the client's.
    const alias = name.length > NAME_CHARS ? undefined : patterns.find(({ matches }) => matches.test(name))
    const model = alias && byName.get(alias.name)
    if (model !== undefined) return model
    throw new RefrainError('model_not_found', `The model '${name.slice(0, 128)}' does not exist`, { param: 'model' })
  }
}

/** `*` is any run of characters, `?` one; letters' case does not matter. */
function glob(pattern: string): RegExp {
  const source = pattern
    .replace(/[\\^$.+()[\]{}|]/g, '\\$&')
    .replaceAll('*', '.*')
    .replaceAll('?', '.')
  return new RegExp(`^${source}$`, 'is')
}

/** A chat without what clients put in front of it and change from request to request. */
function tidied(request: GenerateRequest, rules: readonly HygieneRule[] | undefined): GenerateRequest {
  const { prompt } = request
  if (prompt.kind !== 'chat') return request
  const messages = tidy(prompt.messages, rules)
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

/** What of this request and of the session's past is kept: nothing of a side request, nothing that the client left behind. */
function keeping(
  request: GenerateRequest,
  chain: Chain,
  facts: SessionFacts | undefined,
): Pick<Job, 'transient' | 'deadBranch'> {
  const { prompt, requestClass, pinTtlMs } = request
  const isSide = requestClass === 'auxiliary' || requestClass === 'compaction'
  const tools = prompt.kind === 'chat' ? prompt.tools : []
  const deadBranch = facts?.settle({ request, chain, tools, system: systemOf(prompt) })
  return { ...(isSide && pinTtlMs === undefined && { transient: true }), ...(deadBranch && { deadBranch }) }
}

/** Text of a prompt; undefined where token ids were sent. */
function render(
  prompt: Prompt,
  model: ModelParts,
  frozen: Pick<RenderOptions, 'date' | 'keepTools'> = {},
): string | undefined {
  if (prompt.kind === 'text') return prompt.text
  if (prompt.kind === 'tokens') return undefined
  const options = { tools: prompt.tools, addGenerationPrompt: true, ...frozen }
  return model.template.render(prompt.messages, options).text
}

function tokenize(text: string | undefined, prompt: Prompt, { tokenizer }: ModelParts): Int32Array {
  if (prompt.kind === 'tokens') {
    checkRange(prompt.ids, tokenizer, 'prompt')
    return Int32Array.from(prompt.ids)
  }
  // A template writes its own BOS and special tokens; what a client sends as plain text stays text.
  if (prompt.kind === 'chat') return tokenizer.encode(text ?? '', { special: 'parse', bos: 'none' })
  return tokenizer.encode(text ?? '', { special: 'text', bos: 'add' })
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

/** Completions' `echo`: the prompt's text in front of every choice. */
async function* echoing(events: AsyncIterable<GenerateEvent>, n: number, text: string): AsyncGenerator<GenerateEvent> {
  for await (const event of events) {
    yield event
    if (event.type !== 'start') continue
    for (let choice = 0; choice < n; choice++) yield { type: 'token', choice, ids: [], text }
  }
}
