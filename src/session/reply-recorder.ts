// Takes down each answer of a chat as it streams by, and hands over what was sampled once the request is through. The events
// pass as they came. Invariant: only a request that finished leaves a reply, and the ids that are handed over spell the
// visible answer, token for token.

import type { CallDelta, GenerateEvent } from '../core/events.js'
import type { Reply, ReplyMessage } from '../core/reply.js'
import { callKey, canonical, replyId, type Transcript, type TranscriptScope } from './transcript.js'

export interface RecorderOptions {
  /** What of the prompt belongs to the answer. */
  readonly opening: string
  /** The assistant's words in the prompt that are continued. */
  readonly begun: string
  readonly eosTokenIds: readonly number[]
  /** The request's own: a token of these ends an answer and is none of its text. */
  readonly stopTokenIds: readonly number[]
  /** UTF-8 of a token's visible text. */
  bytesOf(id: number): Uint8Array
  /** What has been said up to the answer, and whose conversation it is. */
  readonly transcript: Transcript
  readonly scope: TranscriptScope
  keep(reply: Reply, keys: { readonly transcript: string; readonly call?: string }): void
}

type TokenEvent = Extract<GenerateEvent, { type: 'token' }>
type EndEvent = Extract<GenerateEvent, { type: 'end' }>

export async function* recordReplies(
  events: AsyncIterable<GenerateEvent>,
  options: RecorderOptions,
): AsyncGenerator<GenerateEvent, void> {
  const answers = new Map<number, Answer>()
  for await (const event of events) {
    if (event.type === 'token' || event.type === 'end') {
      const answer = answers.get(event.choice) ?? new Answer()
      answers.set(event.choice, answer)
      answer.add(event)
    }
    // Before the client is told: its next request may come at once.
    if (event.type === 'finish') for (const answer of answers.values()) keep(answer, options)
    yield event
  }
}

class Answer {
  readonly ids: number[] = []
  text = ''
  content = ''
  reasoning = ''
  readonly calls: { id: string; name: string; arguments: string }[] = []
  end: EndEvent | undefined

  add(event: TokenEvent | EndEvent): void {
    const text = event.type === 'token' ? event.text : ''
    if (event.type === 'token') for (const id of event.ids) this.ids.push(id)
    else this.end = event
    this.text += text
    this.content += event.split?.content ?? text
    this.reasoning += event.split?.reasoning ?? ''
    for (const call of event.split?.calls ?? []) this.#call(call)
  }

  #call({ index, id, name, argumentsDelta }: CallDelta): void {
    const call = this.calls[index] ?? { id: '', name: '', arguments: '' }
    this.calls[index] = call
    call.id = id ?? call.id
    call.name = name ?? call.name
    call.arguments += argumentsDelta ?? ''
  }
}

function keep({ ids, text, content, reasoning, calls, end }: Answer, options: RecorderOptions): void {
  const { opening, begun, eosTokenIds, stopTokenIds } = options
  if (end === undefined) return
  const last = ids.at(-1)
  const isEnd = last !== undefined && (eosTokenIds.includes(last) || stopTokenIds.includes(last))
  const sampled = isEnd ? ids.slice(0, -1) : ids
  // A model that was told to go on behind its end: no template has a form for that.
  if (sampled.some((id) => eosTokenIds.includes(id))) return
  const cut = end.stopString === undefined ? { ids: sampled, rest: '' } : cutAt(sampled, text, options.bytesOf)
  const message: ReplyMessage = {
    content: begun + content,
    ...(reasoning !== '' && { reasoning }),
    ...(calls.length > 0 && { toolCalls: calls }),
  }
  const said = canonical(message)
  if (said === '') return
  const body = Int32Array.from(cut.ids)
  const transcript = options.transcript.add({
    role: 'assistant',
    content,
    ...(calls.length > 0 && { toolCalls: calls }),
  })
  const call = calls[0] && { call: callKey(options.scope, calls[0].id, said) }
  const reply = { id: replyId(opening, body), opening, ids: body, rest: cut.rest, message }
  options.keep(reply, { transcript: transcript.key, ...call })
}

/** The most tokens that are all visible, and what is visible behind them: a stop string may end within a token. */
function cutAt(
  ids: readonly number[],
  text: string,
  bytesOf: RecorderOptions['bytesOf'],
): { ids: number[]; rest: string } {
  const visible = Buffer.from(text, 'utf8')
  let [at, count, end] = [0, 0, 0]
  for (const [i, id] of ids.entries()) {
    const bytes = bytesOf(id)
    if (!visible.subarray(at, at + bytes.length).equals(bytes)) break
    at += bytes.length
    // Not within a character: the rest is text of its own.
    if (((visible[at] ?? 0) & 0xc0) === 0x80) continue
    count = i + 1
    end = at
  }
  return { ids: ids.slice(0, count), rest: visible.toString('utf8', end) }
}
