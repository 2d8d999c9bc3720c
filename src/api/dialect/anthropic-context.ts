// `context_management` of the Messages API: what a client has the server take out of a conversation that grew long. A pure
// function of the messages. Invariant: it plays the conversation again from its first request, so what was cleared at one
// step stays cleared and nothing more is cleared before the trigger is passed anew: between two clearings the prompt only
// grows, and its prefix stays put.
// https://platform.claude.com/docs/en/build-with-claude/context-editing

import type { ChatMessage, ToolCall } from '../../core/request.js'

export interface ClearToolUses {
  readonly kind: 'tool-uses'
  readonly trigger: { readonly kind: 'input-tokens' | 'tool-uses'; readonly value: number }
  /** Most recent tool uses that a clearing leaves. */
  readonly keep: number
  /** Nothing is cleared where it would be fewer tokens than that. */
  readonly clearAtLeast: number
  /** Tools whose uses are never cleared. */
  readonly exclude: ReadonlySet<string>
  /** Whether calls lose their arguments too: all, or those of some tools. */
  readonly inputs: 'keep' | 'clear' | ReadonlySet<string>
}

export interface ClearThinking {
  readonly kind: 'thinking'
  /** Most recent turns with reasoning that keep it. */
  readonly keep: number | 'all'
}

export type ContextEdit = ClearToolUses | ClearThinking

/** In the words of the API. */
export type AppliedEdit =
  | {
      readonly type: 'clear_tool_uses_20250919'
      readonly cleared_tool_uses: number
      readonly cleared_input_tokens: number
    }
  | {
      readonly type: 'clear_thinking_20251015'
      readonly cleared_thinking_turns: number
      readonly cleared_input_tokens: number
    }

export interface EditedContext {
  /** The very same list where nothing was cleared. */
  readonly messages: readonly ChatMessage[]
  readonly applied: readonly AppliedEdit[]
}

export interface Counting {
  /** Text that stands before the messages: tools. */
  readonly head: string
  tokensOf(text: string): number
}

/** What the model reads in place of a result. */
export const CLEARED = '[This tool result was cleared to save context.]'
const NO_INPUT = '{}'

export function applyEdits(
  messages: readonly ChatMessage[],
  edits: readonly ContextEdit[],
  counting: Counting,
): EditedContext {
  return edits.reduce<EditedContext>(
    (context, edit) => {
      const edited =
        edit.kind === 'tool-uses'
          ? clearToolUses(context.messages, edit, counting)
          : clearThinking(context.messages, edit, counting)
      return { messages: edited.messages, applied: [...context.applied, ...edited.applied] }
    },
    { messages, applied: [] },
  )
}

/** A result that may be cleared, and the call that it answers. */
interface ToolUse {
  readonly result: number
  /** Undefined: its call is not there. */
  readonly call: { readonly message: number; readonly at: number } | undefined
  readonly clearsResult: boolean
  readonly clearsInput: boolean
  readonly tokens: number
}

function clearToolUses(messages: readonly ChatMessage[], edit: ClearToolUses, counting: Counting): EditedContext {
  if (!mayTrigger(messages, edit, counting)) return { messages, applied: [] }
  const cleared = clearedUses(messages, edit, counting).filter((use) => use.clearsResult || use.clearsInput)
  if (cleared.length === 0) return { messages, applied: [] }
  const edited = [...messages]
  for (const { result, call, clearsResult, clearsInput } of cleared) {
    if (clearsResult) edited[result] = { ...(edited[result] as ChatMessage), content: CLEARED }
    if (!clearsInput || call === undefined) continue
    const caller = edited[call.message] as ChatMessage
    const toolCalls = [...(caller.toolCalls ?? [])]
    toolCalls[call.at] = { ...(toolCalls[call.at] as ToolCall), arguments: NO_INPUT }
    edited[call.message] = { ...caller, toolCalls }
  }
  const tokens = cleared.reduce((sum, use) => sum + use.tokens, 0)
  return {
    messages: edited,
    applied: [{ type: 'clear_tool_uses_20250919', cleared_tool_uses: cleared.length, cleared_input_tokens: tokens }],
  }
}

/** False where there are fewer bytes than tokens are asked for: then none need be counted. */
function mayTrigger(messages: readonly ChatMessage[], { trigger }: ClearToolUses, { head }: Counting): boolean {
  if (trigger.kind === 'tool-uses') return messages.some(({ role }) => role === 'tool')
  let bytes = Buffer.byteLength(head)
  for (const message of messages) {
    bytes += Buffer.byteLength(textOf(message))
    if (bytes > trigger.value) return true
  }
  return false
}

/** The uses that were cleared by the last request, a request standing before each answer and at the end. */
function clearedUses(messages: readonly ChatMessage[], edit: ClearToolUses, counting: Counting): readonly ToolUse[] {
  const { trigger, keep, clearAtLeast } = edit
  const countsTokens = trigger.kind === 'input-tokens'
  const calls = callsById(messages)
  const uses: ToolUse[] = []
  /** Tokens that clearing the first i uses takes out. */
  const savings = [0]
  let cleared = 0
  let total = countsTokens ? counting.tokensOf(counting.head) : 0
  for (let i = 0; i <= messages.length; i++) {
    const message = messages[i]
    const until = uses.length - keep
    const isOver = countsTokens ? total > trigger.value : uses.length - cleared > trigger.value
    if ((message === undefined || message.role === 'assistant') && isOver && until > cleared) {
      const saved = (savings[until] as number) - (savings[cleared] as number)
      if (saved > 0 && saved >= clearAtLeast) {
        cleared = until
        total -= saved
      }
    }
    if (message === undefined) break
    if (countsTokens) total += counting.tokensOf(textOf(message))
    if (message.role !== 'tool') continue
    const call = calls.get(message.toolCallId ?? '')
    if (call !== undefined && edit.exclude.has(call.name)) continue
    const use = toolUse(i, message, call, { edit, counting })
    uses.push(use)
    savings.push((savings.at(-1) as number) + use.tokens)
  }
  return uses.slice(0, cleared)
}

interface PlacedCall {
  readonly name: string
  readonly arguments: string
  readonly message: number
  readonly at: number
}

function callsById(messages: readonly ChatMessage[]): ReadonlyMap<string, PlacedCall> {
  return new Map(
    messages.flatMap(({ toolCalls = [] }, message) =>
      toolCalls.map(({ id, name, arguments: input }, at) => [id, { name, arguments: input, message, at }] as const),
    ),
  )
}

function toolUse(
  result: number,
  { content }: ChatMessage,
  call: PlacedCall | undefined,
  { edit, counting }: { readonly edit: ClearToolUses; readonly counting: Counting },
): ToolUse {
  const { inputs } = edit
  const inResult = counting.tokensOf(content) - counting.tokensOf(CLEARED)
  const asked = call !== undefined && (inputs === 'clear' || (inputs !== 'keep' && inputs.has(call.name)))
  const inInput = asked ? counting.tokensOf(call.arguments) - counting.tokensOf(NO_INPUT) : 0
  return {
    result,
    call,
    // What is as short as what would stand in its place stays.
    clearsResult: inResult > 0,
    clearsInput: inInput > 0,
    tokens: Math.max(0, inResult) + Math.max(0, inInput),
  }
}

function clearThinking(messages: readonly ChatMessage[], { keep }: ClearThinking, counting: Counting): EditedContext {
  if (keep === 'all') return { messages, applied: [] }
  const turns = thinkingTurns(messages)
  const cleared = turns.slice(0, Math.max(0, turns.length - keep))
  if (cleared.length === 0) return { messages, applied: [] }
  const edited = [...messages]
  let tokens = 0
  for (const i of cleared.flat()) {
    const { reasoning = '', ...rest } = edited[i] as ChatMessage
    tokens += counting.tokensOf(reasoning)
    edited[i] = rest
  }
  return {
    messages: edited,
    applied: [
      { type: 'clear_thinking_20251015', cleared_thinking_turns: cleared.length, cleared_input_tokens: tokens },
    ],
  }
}

/** Messages with reasoning, by the assistant's turns: a turn goes on over tool results and what is said beside them. */
function thinkingTurns(messages: readonly ChatMessage[]): number[][] {
  const turns: number[][] = []
  let current: number[] | undefined
  for (const [i, message] of messages.entries()) {
    if (message.role === 'user' && messages[i - 1]?.role !== 'tool') current = undefined
    if (message.role !== 'assistant' || message.reasoning === undefined) continue
    if (current === undefined) {
      current = []
      turns.push(current)
    }
    current.push(i)
  }
  return turns
}

function textOf({ content, reasoning = '', toolCalls = [] }: ChatMessage): string {
  return content + reasoning + toolCalls.map((call) => call.name + call.arguments).join('')
}
