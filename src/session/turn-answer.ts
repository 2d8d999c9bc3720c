// The answer of a turn as it streams by, put together as the events that the log takes. Invariant: a call that was cut off
// is not one; what is put together is what was told, to the letter.

import type { CallDelta, GenerateEvent } from '../core/events.js'
import type { EventBody, ToolCallEvent } from './log/event.js'

type Finish = Extract<GenerateEvent, { type: 'finish' }>

export class TurnAnswer {
  /** All ids of the first choice. */
  readonly ids: number[] = []
  #content = ''
  #reasoning = ''
  readonly #calls: { id: string; name: string; arguments: string }[] = []
  #wasCut = false
  #ended = false

  add(event: GenerateEvent): void {
    if (event.type !== 'token' && event.type !== 'end') return
    const text = event.type === 'token' ? event.text : ''
    if (event.type === 'token') for (const id of event.ids) this.ids.push(id)
    else {
      this.#ended = true
      this.#wasCut = event.reason === 'length'
    }
    this.#content += event.split?.content ?? text
    this.#reasoning += event.split?.reasoning ?? ''
    for (const call of event.split?.calls ?? []) this.#call(call)
  }

  get calls(): readonly ToolCallEvent[] {
    return this.#calls
      .filter((call, i) => !(this.#wasCut && i === this.#calls.length - 1) || isJson(call.arguments))
      .map((call) => ({ kind: 'tool_call', ...call }))
  }

  /** The assistant's event and its calls; empty where nothing was asked for. */
  bodies(): readonly EventBody[] {
    if (!this.#ended) return []
    const reasoning = this.#reasoning
    return [{ kind: 'assistant', content: this.#content, ...(reasoning !== '' && { reasoning }) }, ...this.calls]
  }

  #call({ index, id, name, argumentsDelta }: CallDelta): void {
    const call = this.#calls[index] ?? { id: '', name: '', arguments: '' }
    this.#calls[index] = call
    call.id = id ?? call.id
    call.name = name ?? call.name
    call.arguments += argumentsDelta ?? ''
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    // It was cut off in the middle.
    return false
  }
}

/** What is told of an answer that was given before, to a client that did not get it. */
export function* toldAgain(
  bodies: readonly EventBody[],
  usage: { readonly promptTokens: number; readonly completionTokens: number; readonly cachedTokens: number },
): Generator<GenerateEvent, void> {
  const { promptTokens, completionTokens, cachedTokens } = usage
  const cache = { working: 0, memory: cachedTokens, disk: 0, computed: promptTokens - cachedTokens }
  const counted = { promptTokens, cache, committedTokens: 0 }
  yield { type: 'start', ...counted }
  // Rounds of the server's own calls are one answer.
  const answers = bodies.filter((body) => body.kind === 'assistant')
  const calls = bodies.filter((body) => body.kind === 'tool_call')
  if (answers.length > 0) {
    const content = answers.map((body) => body.content).join('')
    const reasoning = answers.map((body) => body.reasoning ?? '').join('')
    const deltas = calls.map(({ id, name, arguments: json }, index) => ({ index, id, name, argumentsDelta: json }))
    if (reasoning !== '') yield told(reasoning, { content: '', reasoning, calls: [] })
    yield told(content, { content, reasoning: '', calls: deltas })
    yield { type: 'end', choice: 0, reason: 'stop', split: { content: '', reasoning: '', calls: [] } }
  }
  yield { type: 'finish', ...counted, completionTokens } satisfies Finish
}

function told(text: string, split: { content: string; reasoning: string; calls: CallDelta[] }): GenerateEvent {
  return { type: 'token', choice: 0, ids: [], text, split }
}
