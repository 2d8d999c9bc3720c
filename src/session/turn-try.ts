// One try of a turn: what the log compiles to as a request, the check that nothing else is sent, and the answer on its way
// into the log. Invariant: what the client is told has ended is in the log; a request that is not what the log compiles to
// is not sent.

import { createHash } from 'node:crypto'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest, Prompt } from '../core/request.js'
import type { CompiledContext } from './compile/contract.js'
import type { Sending, TurnTry } from './contract.js'
import type { EventBody, NewEvent, PolicySnapshot, SessionEvent, TurnEvent, UsageEvent } from './log/event.js'
import type { OpenSession } from './open-session.js'
import { TurnAnswer } from './turn-answer.js'

type Finish = Extract<GenerateEvent, { type: 'finish' }>
type Chat = Extract<Prompt, { kind: 'chat' }>

export interface TryDeps {
  readonly open: OpenSession
  readonly policy: PolicySnapshot
  /** The chat as the model is shown it. */
  shown(prompt: Chat): Chat
  /** Says which blocks are the session's, so that they can be erased with it. */
  noteBlocks(hashes: readonly string[]): Promise<void>
  /** Edits of memory that several sessions see are kept for all. */
  share(events: readonly SessionEvent[]): Promise<void>
  /** Results of calls that the server runs itself. */
  runBuiltIns(bodies: readonly EventBody[]): Promise<readonly NewEvent[]>
}

export class LoggedTry implements TurnTry {
  readonly request: GenerateRequest
  readonly date: Date
  readonly tailMessages: number
  readonly callable: CompiledContext['callable']
  readonly boundary?: 'compaction' | 'revocation'
  readonly answer = new TurnAnswer()
  /** Its number, once it was sent. */
  turn: number | undefined
  finish: Finish | undefined
  readonly #deps: TryDeps
  #sent: Sending | undefined

  constructor(asked: GenerateRequest, deps: TryDeps) {
    const { open, policy } = deps
    const context = open.compile(policy)
    this.#deps = deps
    this.request = requestOf(asked, context)
    this.date = dateOf(open)
    this.tailMessages = context.tail.length
    this.callable = context.callable
    const { boundaryAt, boundaryKind, usageAt } = open.fold
    if (boundaryAt > usageAt && boundaryKind !== 'head') this.boundary = boundaryKind
  }

  async sending(sending: Sending): Promise<void> {
    const { open, policy } = this.#deps
    // Again, from the log as it stands now: what was made in between must be the same to the letter.
    const context = open.compile(policy)
    const shown = this.#deps.shown(chatOf(this.request.prompt, context))
    if (payloadDigest(sending.prompt) !== payloadDigest(shown)) {
      throw new RefrainError(
        'context_mismatch',
        `what would be sent is not what the log of ${open.record.id} compiles to`,
      )
    }
    const turn = open.fold.turns + 1
    const body: TurnEvent = {
      kind: 'turn',
      turn,
      requestId: this.request.id,
      compiler: context.version,
      upTo: open.position,
      digest: context.digest,
      verdicts: verdictsOf(context, policy, open),
      rendering: JSON.stringify(sending.rendering),
      promptDigest: digestOf(sending.text),
    }
    // Before any of it is computed: what a crash leaves behind can be found. Together they share a commit.
    await Promise.all([this.#deps.noteBlocks(sending.blocks([])), open.append([{ body }])])
    this.#sent = sending
    this.turn = turn
  }

  async *logged(events: AsyncIterable<GenerateEvent>): AsyncGenerator<GenerateEvent, void> {
    const held: GenerateEvent[] = []
    for await (const event of events) {
      this.answer.add(event)
      if (event.type === 'finish') {
        await this.#keep(event)
        yield* held
        yield event
      } else if (event.type === 'end' || held.length > 0) held.push(event)
      else yield event
    }
  }

  async #keep(finish: Finish): Promise<void> {
    const { open, noteBlocks, runBuiltIns, share } = this.#deps
    const { turn, answer } = this
    const sent = this.#sent
    if (turn === undefined || sent === undefined) throw new Error('an answer to what was not sent')
    const { promptTokens, completionTokens, cache } = finish
    const usage: UsageEvent = {
      kind: 'usage',
      turn,
      promptTokens,
      completionTokens,
      cachedTokens: promptTokens - cache.computed,
      stableTokens: sent.stableTokens ?? promptTokens,
      backend: sent.backend,
    }
    const bodies = answer.bodies()
    const results = await runBuiltIns(bodies)
    const events = [...bodies.map((body) => ({ body })), ...results, { body: usage }]
    const [appended] = await Promise.all([open.append(events), noteBlocks(sent.blocks(answer.ids))])
    await share(appended)
    this.finish = finish
  }
}

/** A request about the context that leaves nothing in the log. */
export class AsideTry implements TurnTry {
  readonly request: GenerateRequest
  readonly date: Date
  readonly tailMessages: number
  readonly callable: CompiledContext['callable']
  readonly #noteBlocks: TryDeps['noteBlocks']

  constructor(asked: GenerateRequest, { open, policy, noteBlocks }: Pick<TryDeps, 'open' | 'policy' | 'noteBlocks'>) {
    const context = open.compile(policy)
    const own = asked.prompt.kind === 'chat' ? asked.prompt : { messages: [], tools: [] }
    const isWhole = asked.logged?.aside === 'whole'
    this.request = isWhole ? asked : asideOf(asked, context)
    this.date = dateOf(open)
    this.tailMessages = isWhole ? 0 : context.tail.length + own.messages.length
    this.callable = isWhole || asked.logged?.wholeHead === true ? own.tools : context.callable
    this.#noteBlocks = noteBlocks
  }

  async sending(sending: Sending): Promise<void> {
    await this.#noteBlocks(sending.blocks([]))
  }

  logged(events: AsyncIterable<GenerateEvent>): AsyncIterable<GenerateEvent> {
    return events
  }
}

/** What is asked stands behind the context; its head is the session's, or its own. */
function asideOf(asked: GenerateRequest, context: CompiledContext): GenerateRequest {
  const request = requestOf(asked, context)
  const { prompt } = request
  if (prompt.kind !== 'chat' || asked.prompt.kind !== 'chat') return request
  const { messages: own, tools } = asked.prompt
  if (asked.logged?.wholeHead !== true)
    return { ...request, prompt: { ...prompt, messages: [...prompt.messages, ...own] } }
  const turnAt = own.findIndex(({ role }) => role !== 'system')
  const [head, rest] = turnAt < 0 ? [own, []] : [own.slice(0, turnAt), own.slice(turnAt)]
  const body = prompt.messages[0]?.role === 'system' ? prompt.messages.slice(1) : prompt.messages
  return { ...request, prompt: { ...prompt, tools, messages: [...head, ...body, ...rest] } }
}

/** A session's template prints the day on which it began; forks began with what they come from. */
export function dateOf(open: OpenSession): Date {
  return new Date(open.events[0]?.at ?? open.record.createdAt)
}

function requestOf(asked: GenerateRequest, context: CompiledContext): GenerateRequest {
  const { checkpoints, ...rest } = asked
  // Places among the client's own messages are none in the context.
  const head = checkpoints?.filter(({ after }) => after === 'head')
  return {
    ...rest,
    prompt: chatOf(asked.prompt, context),
    contextEpoch: context.series,
    ...(head !== undefined && head.length > 0 && { checkpoints: head }),
  }
}

function chatOf(prompt: Prompt, { messages, tail, tools }: CompiledContext): Chat {
  const asked = prompt.kind === 'chat' ? prompt : { kind: 'chat' as const }
  return { ...asked, messages: [...messages, ...tail], tools }
}

function verdictsOf(context: CompiledContext, policy: PolicySnapshot, open: OpenSession): TurnEvent['verdicts'] {
  const kept = new Set(context.withheld)
  const out = open.events.filter(({ position }) => kept.has(position)).flatMap(({ sources }) => sources)
  const revoked = out.filter((source) => policy.revoked.includes(source))
  return {
    ...Object.fromEntries(context.sources.map((source) => [source, 'granted' as const])),
    ...Object.fromEntries(revoked.map((source) => [source, 'revoked' as const])),
  }
}

/** Of what the model is shown: messages and tools, to the letter. */
function payloadDigest({ messages, tools }: Pick<Chat, 'messages' | 'tools'>): string {
  const hash = createHash('sha256')
  for (const { name, json } of tools) hash.update(JSON.stringify([name, json]))
  for (const { role, content, name, toolCalls, toolCallId, reasoning } of messages) {
    const calls = toolCalls?.map((call) => [call.id, call.name, call.arguments])
    hash.update(JSON.stringify([role, content, name, calls, toolCallId, reasoning]))
  }
  return hash.digest('hex')
}

export function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}
