// The body of a context as a list of entries: what was said, answers with their calls and results, and what compactions
// left in place of others. Invariant: a call and its result are one entry's, so no step can part them.

import type { ChatMessage } from '../../../core/request.js'
import type { AssistantEvent, ToolCallEvent, ToolResultEvent } from '../../log/event.js'
import type { MadeBy } from '../contract.js'
import { answerMessage, type Of, resultMessage } from './messages.js'
import { NO_RESULT, SUMMARY_READ } from './words.js'

export interface CallState {
  readonly event: Of<ToolCallEvent>
  result: Of<ToolResultEvent> | undefined
  /** A result that came when the conversation had gone on without it: told where it came in, until the next boundary. */
  late: Of<ToolResultEvent> | undefined
  /** Stands in place of the result's content. */
  instead: string | undefined
}

/** An answer, its calls and their results. */
export interface Batch {
  readonly kind: 'batch'
  readonly answer: Of<AssistantEvent> | undefined
  readonly calls: CallState[]
}

/** One message, from one event or from several. */
export interface Single {
  readonly kind: 'single'
  readonly message: ChatMessage
  readonly from: number
  readonly to: number
  readonly made: MadeBy | undefined
  /** Of the events that it was made from. */
  readonly sources: readonly string[]
}

export type Entry = Batch | Single

/** A message on its way into the context. */
export interface Placed {
  readonly message: ChatMessage
  readonly from: number
  readonly to: number
  readonly made: MadeBy | undefined
}

/** Positions of the first and last event of `entry`. */
export function spanOf(entry: Entry): { readonly from: number; readonly to: number } {
  if (entry.kind === 'single') return entry
  const from = (entry.answer ?? entry.calls[0]!.event).position
  let to = from
  for (const { event, result } of entry.calls) to = Math.max(to, event.position, result?.position ?? 0)
  return { from, to }
}

export function isOpen(entry: Entry | undefined): boolean {
  return entry?.kind === 'batch' && entry.calls.some(waits)
}

/** Whether a result may still come for a call. */
function waits({ result, late }: CallState): boolean {
  return result === undefined && late === undefined
}

/** Sources of everything that `entry` shows. */
export function* sourcesOf(entry: Entry): Generator<string> {
  if (entry.kind === 'single') yield* entry.sources
  else {
    if (entry.answer !== undefined) yield* entry.answer.sources
    for (const { event, result } of entry.calls) {
      yield* event.sources
      if (result !== undefined) yield* result.sources
    }
  }
}

const READ: ChatMessage = { role: 'assistant', content: SUMMARY_READ }

/**
 * Messages of `entry`, and those that stand in the tail because a result is not there yet: they are another's once it is.
 * `next` is the entry behind it.
 */
export function placedOf(entry: Entry, next: Entry | undefined): { readonly body: Placed[]; readonly tail: Placed[] } {
  if (entry.kind === 'single') {
    const answered = entry.made === 'summary' && next?.kind === 'single' && next.message.role === 'user'
    const { from, to } = entry
    return { body: answered ? [entry, { message: READ, from, to, made: 'summary' }] : [entry], tail: [] }
  }
  const { answer, calls } = entry
  const body: Placed[] = [
    {
      message: answerMessage(
        answer,
        calls.map(({ event }) => event),
      ),
      from: (answer ?? calls[0]!.event).position,
      to: (calls.at(-1)?.event ?? answer!).position,
      made: undefined,
    },
  ]
  const tail: Placed[] = []
  for (const call of calls) {
    const placed = placedResult(call)
    const waits = next === undefined && (tail.length > 0 || call.result === undefined)
    if (waits) tail.push(placed)
    else body.push(placed)
  }
  return { body, tail }
}

function placedResult({ event, result, instead }: CallState): Placed {
  if (result !== undefined) {
    const { position } = result
    return {
      message: resultMessage(result, instead),
      from: position,
      to: position,
      made: instead === undefined ? undefined : 'placeholder',
    }
  }
  const { position } = event
  return { message: missing(event), from: position, to: position, made: 'missing' }
}

const missingResults = new WeakMap<Of<ToolCallEvent>, ChatMessage>()

function missing(call: Of<ToolCallEvent>): ChatMessage {
  const known = missingResults.get(call)
  if (known !== undefined) return known
  const message: ChatMessage = { role: 'tool', content: NO_RESULT, toolCallId: call.body.id }
  missingResults.set(call, message)
  return message
}
