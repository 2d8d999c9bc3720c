// The messages that a client sends with a turn, as events. What stands in front of them as system text is the head, and
// so are tools: where they are not the session's, the client says what becomes of them. Invariant: a result names a call
// that is open; what the user said is taken down as it came.

import { RefrainError } from '../core/errors.js'
import { NamePatterns } from '../core/name-pattern.js'
import type { ChatMessage, GenerateRequest, ToolDefinition } from '../core/request.js'
import { isBuiltInTool } from './built-ins.js'
import type { SessionPorts } from './contract.js'
import type { EventBody, HeadEvent, SessionEvent } from './log/event.js'
import type { AskedHead, SessionFold } from './session-fold.js'

export interface NewMessages {
  readonly head: HeadEvent | undefined
  /** In their order. */
  readonly bodies: readonly EventBody[]
}

/** @throws RefrainError that names the field. */
export function newMessages(asked: Pick<GenerateRequest, 'prompt' | 'logged' | 'n'>, fold: SessionFold): NewMessages {
  const { prompt, logged } = asked
  if (prompt.kind !== 'chat') throw wrong('session', 'is a chat: send messages')
  if (asked.n !== 1) throw wrong('n', 'must be 1 in a session; fork it instead')
  if (prompt.continueFinal === true) throw wrong('messages', 'cannot end with words to continue in a session')
  const { messages } = prompt
  const turnAt = messages.findIndex(({ role }) => role !== 'system')
  const headEnd = turnAt < 0 ? messages.length : turnAt
  const system = messages.slice(0, headEnd).map(({ content }) => content)
  return {
    head:
      logged?.wholeHead === true
        ? wholeHead({ system, tools: prompt.tools }, fold.head)
        : headOf({ system, tools: prompt.tools }, fold.head, logged?.apply),
    bodies: messages.slice(headEnd).flatMap(bodiesOf),
  }
}

interface SentHead {
  readonly system: readonly string[]
  readonly tools: readonly ToolDefinition[]
}

/** Undefined: nothing was sent that the session does not have. */
function headOf(sent: SentHead, has: AskedHead, apply: HeadEvent['apply'] | undefined): HeadEvent | undefined {
  const system = sent.system.length === 0 ? undefined : sent.system.join('\n\n')
  const own = has.tools.filter((tool) => !isBuiltInTool(tool))
  const isNewSystem = system !== undefined && system !== has.system
  const isNewTools = sent.tools.length > 0 && !isSameTools(sent.tools, own)
  if (!isNewSystem && !isNewTools) return undefined
  if (apply === undefined) {
    const [param, what] = isNewTools ? ['tools', 'tools'] : ['messages', 'system text']
    const how = "leave it out, or say with 'apply' what becomes of it: 'append', 'boundary' or 'now'"
    throw new RefrainError('invalid_request', `'${param}' has other ${what} than the session; ${how}`, { param })
  }
  const ours = has.tools.filter((tool) => isBuiltInTool(tool) && !sent.tools.some(({ name }) => name === tool.name))
  return {
    kind: 'head',
    apply,
    ...(isNewSystem && { system }),
    ...(isNewTools && { tools: [...sent.tools, ...ours] }),
  }
}

/** The head as it is sent, absent parts too. */
function wholeHead({ system: sent, tools }: SentHead, has: AskedHead): HeadEvent | undefined {
  const system = sent.join('\n\n')
  if (system === has.system && isSameTools(tools, has.tools)) return undefined
  return { kind: 'head', apply: 'now', system, tools }
}

function isSameTools(a: readonly ToolDefinition[], b: readonly ToolDefinition[]): boolean {
  return a.length === b.length && a.every(({ json }, i) => json === b[i]?.json)
}

function bodiesOf(message: ChatMessage): readonly EventBody[] {
  const { role, content, name } = message
  if (role === 'user') return [{ kind: 'user', content, ...(name !== undefined && { name }) }]
  if (role === 'system') return [{ kind: 'note', tail: 'kept', label: 'system', content }]
  if (role === 'tool') return [{ kind: 'tool_result', callId: message.toolCallId ?? '', content }]
  const { reasoning, toolCalls = [] } = message
  return [
    { kind: 'assistant', content, ...(reasoning !== undefined && { reasoning }) },
    ...toolCalls.map((call): EventBody => ({ kind: 'tool_call', ...call })),
  ]
}

/** @throws RefrainError where a result names no call that waits for one. `param`: the field that complaints name. */
export function checkResults(bodies: readonly EventBody[], fold: SessionFold, param: string): void {
  const open = new Set(fold.openCalls.keys())
  for (const body of bodies) {
    if (body.kind === 'tool_call') open.add(body.id)
    if (body.kind !== 'tool_result' || open.delete(body.callId)) continue
    const waiting = open.size === 0 ? 'none waits' : `those that wait are ${[...open].slice(0, 8).join(', ')}`
    throw wrong(param, `has a result for '${body.callId.slice(0, 64)}', which no call waits for; ${waiting}`)
  }
}

/** Whether the same messages were sent before, in a turn that came to nothing. */
export function isAskedAgain(bodies: readonly EventBody[], { unanswered, wasTried }: SessionFold): boolean {
  if (!wasTried || bodies.length === 0 || bodies.length > unanswered.length) return false
  const last = unanswered.slice(-bodies.length)
  return bodies.every((body, i) => saysSame(body, last[i] as SessionEvent))
}

/**
 * A key names one turn: its first message is the one that is there. @throws RefrainError `conflict` where it is not, so that
 * nothing that was said is passed over.
 */
export function checkKeyed([first]: readonly EventBody[], there: SessionEvent | undefined): void {
  if (first === undefined || there === undefined || there.body.kind === 'head' || saysSame(first, there)) return
  throw new RefrainError('conflict', 'the key was given to another turn, which began with another message', {
    param: 'idempotency-key',
  })
}

function saysSame(body: EventBody, { body: { key: _, ...before } }: SessionEvent): boolean {
  // What was stored apart is known by its size.
  if (body.kind === 'tool_result' && before.kind === 'tool_result' && before.spilled !== undefined) {
    return body.callId === before.callId && body.content.length === before.spilled.chars
  }
  return JSON.stringify(sorted(body)) === JSON.stringify(sorted(before))
}

function sorted(body: object): object {
  return Object.fromEntries(Object.entries(body).sort(([a], [b]) => (a < b ? -1 : 1)))
}

/** The model that a turn names, if it does, is its session's. @throws RefrainError `invalid_request`, `model_not_found`. */
export function checkModel(
  model: string,
  { record }: { readonly record: { readonly model: string } },
  ports: Pick<SessionPorts, 'model'>,
): void {
  if (model === '' || ports.model(model).name === record.model) return
  throw wrong('model', `is not the session's, which is '${record.model}'`)
}

/** Names in a tool choice are of the session's tools. @throws RefrainError `invalid_request`. */
export function checkChoice({ toolChoice }: GenerateRequest, tools: readonly ToolDefinition[]): void {
  if (toolChoice === undefined || toolChoice.mode === 'none') return
  const { allowed } = toolChoice
  if (tools.length === 0) {
    if (toolChoice.mode === 'required') throw wrong('tool_choice', 'needs tools, and the session has none')
    return
  }
  if (allowed === undefined) return
  const patterns = new NamePatterns(allowed)
  if (!tools.some(({ name }) => patterns.has(name))) throw wrong('tool_choice', "names none of the session's tools")
}

function wrong(param: string, what: string): RefrainError {
  return new RefrainError('invalid_request', `'${param}' ${what}`, { param })
}
