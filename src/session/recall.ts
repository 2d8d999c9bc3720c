// The client's messages with the answers in them as they were generated: exact white space, raw arguments, reasoning that
// the client did not send back. Invariant: a message is replaced only by a reply that was made for this tenant and model and
// says the same; what is not found stays as it came. Stands in front of the template, step 3 of a request's path.

import type { Reply } from '../core/reply.js'
import type { ChatMessage } from '../core/request.js'
import { type FoundReply, lineage, type ReplyStore, sessionDigest } from './replies.js'
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
    const found = await finder.next(run)
    const count = found?.count ?? 1
    for (let i = 0; i < count; i++) places.push(out.length)
    out.push(found?.message ?? (messages[at] as ChatMessage))
    replies.push(found?.reply)
    if (found === undefined) finder.pass(messages[at] as ChatMessage)
    at += count
  }
  return { messages: out, replies, places, transcript: finder.transcript, after: finder.after }
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
  transcript: Transcript
  after = ''

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
      const found = await this.#pick(behind.key, joined(part))
      if (found !== undefined) return this.#take(found, behind, part)
    }
    return (await this.#behindReasoning(run)) ?? this.#byCall(run)
  }

  /** Some clients send reasoning back as a message in front of the answer. */
  async #behindReasoning([thought, answer]: readonly ChatMessage[]): Promise<Found | undefined> {
    if (thought === undefined || answer === undefined) return undefined
    const behind = this.transcript.add(answer)
    const found = await this.#pick(behind.key, answer)
    if (found === undefined || words(found.message.reasoning ?? '') !== words(thought.content)) return undefined
    return { ...this.#take(found, behind, [{ ...answer, reasoning: thought.content }]), count: 2 }
  }

  /** What was said before is not what it was, or not known: a call's id, and what was said with it, is found anywhere. */
  async #byCall(run: readonly ChatMessage[]): Promise<Found | undefined> {
    const [first] = run
    const id = first?.toolCalls?.[0]?.id
    if (first === undefined || id === undefined) return undefined
    const found = await this.#pick(callKey(this.#options.scope, id, canonical(first)), first)
    return found && this.#take(found, this.transcript.add(first), [first])
  }

  async #pick(key: string, said: ChatMessage): Promise<Reply | undefined> {
    if (!this.#options.store.has(key)) return undefined
    const wanted = canonical(said)
    const all = await this.#options.store.find(key)
    const fitting = all.filter(({ reply }) => canonical(reply.message) === wanted && fits(said.reasoning, reply))
    const score = (each: FoundReply) =>
      (isSame(said.reasoning, each.reply) ? 4 : 0) +
      (each.after === this.after ? 2 : 0) +
      (each.session !== undefined && each.session === this.#session ? 1 : 0)
    const best = Math.max(...fitting.map(score))
    return fitting.find((each) => score(each) === best)?.reply
  }

  #take(reply: Reply, behind: Transcript, part: readonly ChatMessage[]): Found {
    this.transcript = behind
    this.after = lineage(this.after, reply.id)
    const said = joined(part)
    const { content, reasoning, toolCalls = [] } = reply.message
    const shown = sentReasoning(said.reasoning) !== '' || this.#options.fillReasoning ? reasoning : undefined
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
  const sent = words(reasoning ?? '')
  return PLACEHOLDERS.includes(sent) ? '' : sent
}

/** Reasoning comes back whole, trimmed, in part (a client that keeps the last delta alone) or not at all; never as another. */
function fits(sent: string | undefined, { message }: Reply): boolean {
  return words(message.reasoning ?? '').includes(sentReasoning(sent))
}

function isSame(sent: string | undefined, { message }: Reply): boolean {
  return sent !== undefined && words(message.reasoning ?? '') === sentReasoning(sent)
}
