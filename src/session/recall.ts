// The client's messages with the answers in them as they were generated: exact white space, raw arguments, reasoning that
// the client did not send back. Invariant: a message is replaced only by a reply that was made for this tenant and model and
// says the same; what is not found stays as it came. Stands in front of the template, step 3 of a request's path.

import type { Reply } from '../core/reply.js'
import type { ChatMessage } from '../core/request.js'
import { type FoundReply, lineageOf, type ReplyStore, sessionDigest } from './replies.js'
import { callKey, canonical, startTranscript, type Transcript, type TranscriptScope, words } from './transcript.js'

export interface RecallOptions {
  readonly store: ReplyStore
  readonly scope: TranscriptScope
  /** A hint among several answers that say the same. */
  readonly session?: string
  /** Whether reasoning that was not sent back is filled in. */
  readonly fillReasoning: boolean
  /** The last message is being written: it stays as it came. */
  readonly continueFinal: boolean
}

export interface Recalled {
  readonly messages: readonly ChatMessage[]
  /** For each of `messages`: the reply that it was. */
  readonly replies: readonly (Reply | undefined)[]
  /** For each message as the client sent them: its index in `messages`. An answer may have come in several. */
  readonly places: readonly number[]
  readonly transcript: Transcript
  /** Names the replies that were found, in order. */
  readonly after: string
}

/** Messages in a row that may be one answer. */
const PARTS = 4

export async function recall(messages: readonly ChatMessage[], options: RecallOptions): Promise<Recalled> {
  const out: ChatMessage[] = []
  const replies: (Reply | undefined)[] = []
  const places: number[] = []
  const finder = new Finder(options)
  const end = options.continueFinal ? messages.length - 1 : messages.length
  for (let at = 0; at < messages.length; ) {
    const run = at < end ? runOf(messages.slice(at, Math.min(end, at + PARTS))) : []
    const found = run.length === 0 ? undefined : await finder.next(run)
    const count = found?.count ?? 1
    for (let i = 0; i < count; i++) places.push(out.length)
    out.push(found?.message ?? (messages[at] as ChatMessage))
    replies.push(found?.reply)
    if (found === undefined) finder.pass(messages[at] as ChatMessage)
    at += count
  }
  return { messages: out, replies, places, transcript: finder.transcript, after: lineageOf(finder.taken) }
}

/** The assistant's messages that `messages` begins with. */
function runOf(messages: readonly ChatMessage[]): readonly ChatMessage[] {
  const end = messages.findIndex(({ role }) => role !== 'assistant')
  return end < 0 ? messages : messages.slice(0, end)
}

interface Found {
  readonly message: ChatMessage
  readonly reply: Reply
  /** Messages of the client's that it takes the place of. */
  readonly count: number
}

class Finder {
  readonly #options: RecallOptions
  readonly #session: string | undefined
  /** The replies that were found so far. */
  readonly taken: Reply[] = []
  transcript: Transcript

  constructor(options: RecallOptions) {
    const { scope, session } = options
    this.#options = options
    this.#session = session === undefined ? undefined : sessionDigest(scope.tenantSalt, session)
    this.transcript = startTranscript(scope)
  }

  pass(message: ChatMessage): void {
    this.transcript = this.transcript.add(message)
  }

  /** The reply that the first messages of `run` are, all of it or less. */
  async next(run: readonly ChatMessage[]): Promise<Found | undefined> {
    for (let count = run.length; count > 0; count--) {
      const part = run.slice(0, count)
      const behind = part.reduce((transcript, message) => transcript.add(message), this.transcript)
      const found = await this.#pick(behind, part)
      if (found !== undefined) return this.#take(found, behind, part)
    }
    return (await this.#behindReasoning(run)) ?? this.#byCall(run)
  }

  async #pick(behind: Transcript, part: readonly ChatMessage[]): Promise<Reply | undefined> {
    if (!this.#options.store.has(behind.key)) return undefined
    const isWholeTurn = !this.transcript.continues(part[0] as ChatMessage)
    const said = joined(part)
    return this.#best(behind.key, isWholeTurn ? behind.said : canonical(said), said.reasoning)
  }

  /** Some clients send reasoning back as a message in front of the answer. */
  async #behindReasoning([thought, answer]: readonly ChatMessage[]): Promise<Found | undefined> {
    if (thought === undefined || answer === undefined) return undefined
    const behind = this.transcript.add(answer)
    const found = await this.#pick(behind, [answer])
    if (found === undefined || thoughtOf(found) !== words(thought.content)) return undefined
    return { ...this.#take(found, behind, [{ ...answer, reasoning: thought.content }]), count: 2 }
  }

  /** What was said before is not what it was, or not known: a call's id, and what was said with it, is found anywhere. */
  async #byCall([first]: readonly ChatMessage[]): Promise<Found | undefined> {
    const id = first?.toolCalls?.[0]?.id
    if (first === undefined || id === undefined) return undefined
    const said = canonical(first)
    const found = await this.#best(callKey(this.#options.scope, id, said), said, first.reasoning)
    return found && this.#take(found, this.transcript.add(first), [first])
  }

  async #best(key: string, said: string, reasoning: string | undefined): Promise<Reply | undefined> {
    if (!this.#options.store.has(key)) return undefined
    const found = this.#options.store.find(key)
    const all = found instanceof Promise ? await found : found
    const fitting = all.filter(({ reply }) => saidIn(reply) === said && fits(reasoning, reply))
    if (fitting.length < 2) return fitting[0]?.reply
    const after = lineageOf(this.taken)
    const score = (each: FoundReply) =>
      (isSame(reasoning, each.reply) ? 4 : 0) +
      (each.after === after ? 2 : 0) +
      (each.session !== undefined && each.session === this.#session ? 1 : 0)
    const best = Math.max(...fitting.map(score))
    return fitting.find((each) => score(each) === best)?.reply
  }

  #take(reply: Reply, behind: Transcript, part: readonly ChatMessage[]): Found {
    this.transcript = behind
    this.taken.push(reply)
    const said = joined(part)
    const { content, reasoning, toolCalls = [] } = reply.message
    const isShown = this.#options.fillReasoning || sentReasoning(said.reasoning) !== ''
    const shown = isShown ? reasoning : undefined
    const message: ChatMessage = {
      role: 'assistant',
      content,
      ...(said.name !== undefined && { name: said.name }),
      ...(shown !== undefined && { reasoning: shown }),
      ...(toolCalls.length > 0 && {
        // Results name a call as the client does.
        toolCalls: toolCalls.map((call, i) => ({ ...call, id: said.toolCalls?.[i]?.id ?? call.id })),
      }),
    }
    return { message, reply, count: part.length }
  }
}

function joined(part: readonly ChatMessage[]): ChatMessage {
  const [first] = part as [ChatMessage]
  if (part.length === 1) return first
  const reasoning = part.map((message) => message.reasoning ?? '').join('')
  return {
    ...first,
    content: part.map(({ content }) => content).join(''),
    toolCalls: part.flatMap(({ toolCalls }) => toolCalls ?? []),
    ...(reasoning !== '' && { reasoning }),
  }
}

/** What clients put where reasoning was lost to them. */
const PLACEHOLDERS = ['', words('(reasoning omitted)')]

function sentReasoning(reasoning: string | undefined): string {
  if (reasoning === undefined) return ''
  const sent = words(reasoning)
  return PLACEHOLDERS.includes(sent) ? '' : sent
}

/** What a reply says and thought, worked out once. */
const said = new WeakMap<Reply, { readonly canonical: string; readonly thought: string }>()

function formsOf(reply: Reply): { readonly canonical: string; readonly thought: string } {
  let forms = said.get(reply)
  if (forms === undefined) {
    forms = { canonical: canonical(reply.message), thought: words(reply.message.reasoning ?? '') }
    said.set(reply, forms)
  }
  return forms
}

const saidIn = (reply: Reply): string => formsOf(reply).canonical
const thoughtOf = (reply: Reply): string => formsOf(reply).thought

/** Reasoning comes back whole, trimmed, in part (a client that keeps the last delta alone) or not at all; never as another. */
function fits(sent: string | undefined, reply: Reply): boolean {
  return sent === undefined || sent === reply.message.reasoning || thoughtOf(reply).includes(sentReasoning(sent))
}

function isSame(sent: string | undefined, reply: Reply): boolean {
  return sent !== undefined && thoughtOf(reply) === sentReasoning(sent)
}
