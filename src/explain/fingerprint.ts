// A prompt as digests: one for each tool, each message and the parts of it that clients lose or rewrite apart from the rest.
// Invariant: digests are keyed by a secret of the process, so that a short text can't be guessed from its digest. A turn
// that only adds to the one before digests what it adds.

import { hash, randomBytes } from 'node:crypto'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, GenerateRequest, ToolDefinition } from '../core/request.js'
import type { ChatTemplate, Rendered, RenderOptions } from '../prompt/contract.js'

export interface ToolMark {
  readonly name: string
  readonly digest: string
  readonly bytes: number
}

export interface MessageMark {
  readonly role: ChatMessage['role']
  /** Of content, name and ids. */
  readonly content: string
  /** '' where there is none. */
  readonly reasoning: string
  readonly calls: string
  /** Of its place in the rendered text. */
  readonly bytes: number
  /** UTF-16 units of the rendered text; undefined: it has no place of its own. */
  readonly start?: number
  readonly end?: number
  /** Of `start`, in UTF-8. */
  readonly byteAt?: number
}

const secret = randomBytes(16).toString('hex')

export function digest(text: string): string {
  return text === '' ? '' : hash('sha256', secret + text, 'hex').slice(0, 16)
}

export function toolMark({ name, json }: ToolDefinition): ToolMark {
  return { name: Buffer.from(name).toString(), digest: digest(json), bytes: Buffer.byteLength(json) }
}

export function messageMark(message: ChatMessage, rendered: Rendered | undefined, index: number): MessageMark {
  const { role, content, reasoning = '', toolCalls = [], name = '' } = message
  const span = spanOf(rendered, index)
  return {
    role,
    content: digest(name === '' ? content : `${name}\n${content}`),
    reasoning: digest(reasoning),
    calls: toolCalls.length === 0 ? '' : digest(toolCalls.map((call) => `${call.name}\n${call.arguments}`).join('\n')),
    bytes:
      span === undefined
        ? Buffer.byteLength(content)
        : Buffer.byteLength(rendered?.text.slice(span.start, span.end) ?? ''),
    ...(span !== undefined && { start: span.start, end: span.end }),
  }
}

/** Marks of the messages from `from` on; `behind`: the last one's before them. */
export function messageMarks(
  messages: readonly ChatMessage[],
  rendered: Rendered | undefined,
  { from, behind }: { readonly from: number; readonly behind: MessageMark | undefined },
): MessageMark[] {
  let unit = behind?.end ?? 0
  let byte = (behind?.byteAt ?? 0) + (behind?.end === undefined ? 0 : behind.bytes)
  return messages.slice(from).map((message, i) => {
    const mark = messageMark(message, rendered, from + i)
    if (mark.start === undefined || mark.end === undefined || mark.start < unit) return mark
    const byteAt = byte + Buffer.byteLength(rendered?.text.slice(unit, mark.start) ?? '')
    unit = mark.end
    byte = byteAt + mark.bytes
    return { ...mark, byteAt }
  })
}

export function spanOf(rendered: Rendered | undefined, index: number): { start: number; end: number } | undefined {
  const at = rendered?.spans[index]
  // A message without a place shifts those behind it.
  return at?.message === index ? at : rendered?.spans.find(({ message }) => message === index)
}

/** Whether a message says the same in all of its parts. */
export function isSame(a: MessageMark | undefined, b: MessageMark | undefined): boolean {
  if (a === undefined || b === undefined) return a === b
  return a.role === b.role && a.content === b.content && a.reasoning === b.reasoning && a.calls === b.calls
}

/** What of the template a request chooses: a change of it changes the head of the prompt. */
export function templateOptions({ prompt }: GenerateRequest): string {
  if (prompt.kind !== 'chat') return prompt.kind
  const { thinking, templateValues = '' } = prompt
  if (thinking === undefined && templateValues === '') return ''
  return `${thinking?.enabled ?? ''}/${thinking?.effort ?? ''}/${digest(templateValues)}`
}

const known = new WeakMap<ChatTemplate, string>()

/** A digest of what the template writes around a small chat, be its source spelled as it is. */
export function templateDigest(template: ChatTemplate): string {
  const found = known.get(template)
  if (found !== undefined) return found
  const made = hash('sha256', PROBES.map((probe) => probed(template, probe)).join('\0'), 'hex').slice(0, 16)
  known.set(template, made)
  return made
}

const PROBES: readonly (readonly ChatMessage[])[] = [
  [
    { role: 'system', content: 's' },
    { role: 'user', content: 'u' },
    { role: 'assistant', content: 'a', reasoning: 'r' },
    { role: 'user', content: 'v' },
  ],
  [{ role: 'user', content: 'u' }],
]
const PROBE_TOOL = { name: 't', json: '{"type":"function","function":{"name":"t","description":"d","parameters":{}}}' }

function probed(template: ChatTemplate, messages: readonly ChatMessage[]): string {
  const options: RenderOptions = { tools: [PROBE_TOOL], addGenerationPrompt: true, date: new Date(0) }
  try {
    return template.render(messages, options).text
  } catch (error) {
    if (error instanceof RefrainError) return error.message
    throw error
  }
}
