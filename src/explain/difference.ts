// Where two prompts part, and what of the chat that is: from the first token that differs to the byte, the message and the
// reason. Invariant: a place is a place of the rendered text that both prompts were made into, never of a body; the old
// prompt is known by its digests and by a few tokens behind that place.

import type { ChatMessage } from '../core/request.js'
import type { Rendered } from '../prompt/contract.js'
import type { DifferenceView, Reason } from './contract.js'
import { isSame, type MessageMark, spanOf, type ToolMark } from './fingerprint.js'
import { bytesOf, type Spellings, spelled } from './token-line.js'
import { toolChanges } from './tool-changes.js'

export interface Fingerprint {
  /** Of the template and of what of it the request chose. */
  readonly template: string
  readonly tools: readonly ToolMark[]
  readonly messages: readonly MessageMark[]
}

export interface Parting {
  readonly before: Fingerprint
  readonly after: Fingerprint
  /** Of the new prompt, as rendered. */
  readonly messages: readonly ChatMessage[]
  readonly rendered: Rendered | undefined
  readonly spellings: Spellings
  /** Tokens that are the same, and their UTF-8 bytes. */
  readonly token: number
  readonly bytesBefore: number
  /** The first of what follows, on either side. */
  readonly old: Int32Array
  readonly new: Int32Array
  /** What of the old tokens was prompt; the answer follows. */
  readonly promptTokens: number
  /** The old answer began with reasoning. */
  readonly reasoned: boolean
  readonly keepText: boolean
}

export interface Difference {
  readonly reason: Reason
  readonly view: DifferenceView
  /** Where it is, as what repeats is counted by. */
  readonly place: string
  /** Within its message or tool list, in bytes. */
  readonly at: number
  /** Digits and what stands between them, on both sides. */
  readonly isNumber: boolean
}

export function differenceOf(parting: Parting): Difference {
  const { spellings } = parting
  const sides = { old: spelled(parting.old, spellings), new: spelled(parting.new, spellings) }
  const alike = sharedStart(sides.old, sides.new)
  const isOther = isRetokenized(parting, sides, alike)
  // The text goes on as it was: it is the tokens that part.
  const same = isOther ? 0 : alike
  const byte = parting.bytesBefore + same
  const text = parting.rendered?.text ?? ''
  const at = unitAt(text, byte)
  const tools = toolChanges(parting.before.tools, parting.after.tools)
  const place = placeOf(parting, at)
  const reason = reasonOf(parting, {
    ...{ place, tools: tools.length > 0, isRetokenized: isOther },
    isInPrompt: alike < promptBytes(parting),
  })
  const change = place && changeAt(parting.before.messages, parting.after.messages, place.index)
  const showsTools = tools.length > 0 && (reason === 'tools_changed' || place === undefined)
  const view: DifferenceView = {
    token: parting.token,
    byte,
    ...(place && change && { message: { ...place, change } }),
    ...(showsTools && { tools }),
    ...(change === 'edited' && !isOther && isBlank(parting) && { whitespace: true as const }),
    ...(parting.keepText && excerpts(text.slice(Math.max(0, at - CONTEXT), at), sides, same)),
  }
  const where = reason === 'tools_changed' ? tools.map(({ name }) => name).join(',') : (place?.index ?? '')
  return {
    reason,
    view,
    place: `${reason} ${where}`,
    at: place?.byte ?? byte,
    isNumber: [sides.old, sides.new].every((side) => isNumber(side.subarray(same, same + WORD_BYTES))),
  }
}

// --- where ------------------------------------------------------------------------------------------------------------

type Place = Omit<NonNullable<DifferenceView['message']>, 'change'>

/** The message that unit `at` of the rendered text is in; undefined: in front of all, or no chat. */
function placeOf({ messages, rendered, before }: Parting, at: number): Place | undefined {
  if (rendered === undefined || messages.length === 0) return undefined
  const span = rendered.spans.find(({ start, end }) => start <= at && at < end)
  const first = rendered.spans[0]
  // A template may write a system text into a head of its own, beside the tools.
  if (span === undefined && (first === undefined || at < first.start))
    return inHead({ messages, text: rendered.text, at })
  if (span === undefined) {
    // Behind the last: what stood there is gone.
    const gone = at >= rendered.tail ? before.messages[messages.length] : undefined
    if (gone === undefined) return undefined
    return { index: messages.length, role: gone.role, part: 'frame', byte: 0 }
  }
  const message = messages[span.message] as ChatMessage
  const { role, content, reasoning = '', toolCalls = [] } = message
  const found = (part: Place['part'], words: string) => {
    const start = words === '' ? -1 : rendered.text.indexOf(words, span.start)
    if (start < 0 || start > at || at > start + words.length || start >= span.end) return undefined
    return { index: span.message, role, part, byte: bytesIn(rendered.text, start, at) }
  }
  const inCall = toolCalls.map(({ arguments: json }) => found('tool_calls', json)).find((each) => each !== undefined)
  return (
    (role === 'assistant' ? found('reasoning', reasoning) : undefined) ??
    found('content', content) ??
    inCall ?? {
      index: span.message,
      role,
      part:
        toolCalls.length > 0 && at > (content === '' ? span.start : rendered.text.indexOf(content, span.start))
          ? 'tool_calls'
          : 'frame',
      byte: bytesIn(rendered.text, span.start, at),
    }
  )
}

function inHead({
  messages,
  text,
  at,
}: {
  messages: readonly ChatMessage[]
  text: string
  at: number
}): Place | undefined {
  for (const [index, { role, content }] of messages.entries()) {
    if (role !== 'system') return undefined
    const start = content === '' ? -1 : text.indexOf(content)
    if (start >= 0 && start <= at && at <= start + content.length) {
      return { index, role, part: 'content', byte: bytesIn(text, start, at) }
    }
  }
  return undefined
}

type Change = NonNullable<DifferenceView['message']>['change']

/** How far an inserted or removed run of messages is looked past. */
const RUN = 64

function changeAt(before: readonly MessageMark[], after: readonly MessageMark[], index: number): Change {
  const [old, now] = [before[index], after[index]]
  if (old === undefined) return 'edited'
  if (now === undefined) return 'removed'
  if (isSame(old, now)) return 'unchanged'
  const isLater = (list: readonly MessageMark[], mark: MessageMark) =>
    list.slice(index + 1, index + 1 + RUN).some((each) => isSame(each, mark))
  if (isLater(after, old)) return 'inserted'
  if (isLater(before, now)) return 'removed'
  return 'edited'
}

/** Whether what follows on both sides, to the end of the message as far as it is there, differs in white space alone. */
function isBlank({ old, new: now, spellings }: Parting): boolean {
  const [a, b] = [old, now].map((ids) => {
    const end = ids.findIndex((id) => spellings.isSpecial(id))
    const words = spelled(end < 0 ? ids : ids.subarray(0, end), spellings)
      .toString('latin1')
      .replace(/\s+/g, '')
    return { words, isWhole: end >= 0 }
  }) as [Rest, Rest]
  if (a.isWhole && b.isWhole) return a.words === b.words
  const length = Math.min(a.words.length, b.words.length)
  return length > 0 && a.words.slice(0, length) === b.words.slice(0, length)
}

interface Rest {
  readonly words: string
  readonly isWhole: boolean
}

// --- why --------------------------------------------------------------------------------------------------------------

interface Found {
  readonly place: Place | undefined
  /** Some tools changed. */
  readonly tools: boolean
  readonly isRetokenized: boolean
  /** It is in the old prompt, not in the answer to that. */
  readonly isInPrompt: boolean
}

function reasonOf(parting: Parting, found: Found): Reason {
  const { before, after, messages } = parting
  const { place, tools } = found
  if (messages.length === 0) return found.isRetokenized ? 'retokenized' : 'messages_changed'
  if (before.template !== after.template && found.isInPrompt) return 'template_changed'
  const heads = Math.min(headLength(before.messages), headLength(after.messages))
  if (place === undefined || place.index < Math.max(1, heads) || isHead(place, after)) return headReason(parting, found)
  const old = before.messages[place.index]
  const now = after.messages[place.index]
  if (old === undefined || now === undefined) return answerReason(parting, place, found)
  if (!isSame(old, now)) return isReasoningAlone(old, now) ? 'reasoning_dropped' : 'messages_changed'
  if (found.isRetokenized) return 'retokenized'
  if (now.reasoning !== '') return 'reasoning_dropped'
  return tools ? 'tools_changed' : 'template_changed'
}

function headLength(messages: readonly MessageMark[]): number {
  const end = messages.findIndex(({ role }) => role !== 'system')
  return end < 0 ? messages.length : end
}

function isHead({ index, role }: Place, { messages }: Fingerprint): boolean {
  return role === 'system' && index < headLength(messages)
}

/** Tools and system text stand in one head: what differs, and where both do, what the place is in. */
function headReason({ before, after, messages, rendered }: Parting, { place, tools, isRetokenized }: Found): Reason {
  const [old, now] = [before, after].map(({ messages: all }) => all.slice(0, headLength(all)))
  const size = Math.max(old?.length ?? 0, now?.length ?? 0)
  const system = Array.from({ length: size }, (_, i) => i).some((i) => !isSame(old?.[i], now?.[i]))
  if (system && tools) return place?.part === 'content' && place.role === 'system' ? 'system_changed' : 'tools_changed'
  if (system) return 'system_changed'
  if (tools) return 'tools_changed'
  const index = place?.index ?? 0
  const isChanged = !isSame(before.messages[index], after.messages[index])
  const isShown = spanOf(rendered, index) !== undefined && messages[index] !== undefined
  if (isChanged && isShown && place !== undefined) return 'messages_changed'
  return isRetokenized ? 'retokenized' : 'template_changed'
}

/** The answer came back otherwise than it was sampled. */
function answerReason(parting: Parting, { index, role }: Place, { isRetokenized, isInPrompt }: Found): Reason {
  const { messages, rendered, reasoned } = parting
  if (isRetokenized) return 'retokenized'
  const reasoning = messages[index]?.reasoning ?? ''
  const span = spanOf(rendered, index)
  const isShown = reasoning !== '' && rendered?.text.slice(span?.start, span?.end).includes(reasoning.trim()) === true
  if (role !== 'assistant') return 'messages_changed'
  if (reasoned && !isShown) return 'reasoning_dropped'
  // What opened the answer is not what the template writes of it later.
  return isInPrompt ? 'template_changed' : 'messages_changed'
}

function isReasoningAlone(old: MessageMark, now: MessageMark): boolean {
  return old.role === now.role && old.content === now.content && old.calls === now.calls
}

/** So many bytes in other tokens are no accident. */
const RETOKENIZED_BYTES = 48

/** Of the old tokens that follow, those of the prompt. */
function promptBytes({ old, spellings, promptTokens, token }: Parting): number {
  return spelled(old.subarray(0, Math.max(0, promptTokens - token)), spellings).length
}

function isRetokenized(
  { old, new: now, spellings }: Parting,
  sides: { old: Buffer; new: Buffer },
  same: number,
): boolean {
  const first = [old[0], now[0]].map((id) => (id === undefined ? 0 : bytesOf(id, spellings).length))
  if (same <= Math.max(...first)) return false
  return same >= RETOKENIZED_BYTES || same === sides.old.length || same === sides.new.length
}

// --- texts ------------------------------------------------------------------------------------------------------------

const CONTEXT = 80
const EXCERPT_BYTES = 160
const WORD_BYTES = 40

function excerpts(context: string, sides: { old: Buffer; new: Buffer }, same: number) {
  const cut = (side: Buffer) => context + side.subarray(same, same + EXCERPT_BYTES).toString('utf8')
  return { before: cut(sides.old), after: cut(sides.new) }
}

/** Up to the next blank: a clock's digits, or a counter's. */
function isNumber(side: Buffer): boolean {
  const word = /^[^\s<]*/.exec(side.toString('utf8'))?.[0] ?? ''
  return /^[\d:.,/%TZ+-]+[^\w]*$/.test(word) && /\d/.test(word)
}

export function sharedStart(a: Uint8Array, b: Uint8Array): number {
  const end = Math.min(a.length, b.length)
  let at = 0
  while (at < end && a[at] === b[at]) at++
  return at
}

/** The UTF-16 unit that byte `byte` of the text is in. */
function unitAt(text: string, byte: number): number {
  if (Buffer.byteLength(text) === text.length) return Math.min(byte, text.length)
  return Buffer.from(text, 'utf8')
    .toString('utf8', 0, byte)
    .replace(/\uFFFD$/, '').length
}

function bytesIn(text: string, start: number, end: number): number {
  return Buffer.byteLength(text.slice(start, end))
}
