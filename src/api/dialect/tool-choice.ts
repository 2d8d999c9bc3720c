// What may be called, in every form that OpenAI's APIs say it, and the member `refrain.allowed_tools` of any dialect's
// body. Invariant: a choice says which calls are allowed and nothing about how tools are shown: definitions, and so the
// prompt's prefix, are the same whatever is chosen. A name that no tool has is refused here, where its field is known.
// https://platform.openai.com/docs/guides/function-calling#tool-choice

import { isPattern, MAX_PATTERNS, NamePatterns } from '../../core/name-pattern.js'
import type { ToolChoice, ToolDefinition } from '../../core/request.js'
import { asObject, boolean, custom, type Field, invalid, kindOf, listOf, object, text, unsupported } from './fields.js'

const MODES = ['auto', 'none', 'required'] as const

/** A choice as it was sent. */
export interface SentChoice {
  readonly mode: ToolChoice['mode']
  /** Names, each with the field that it was sent in; undefined: all tools. */
  readonly allowed?: readonly { readonly name: string; readonly path: string }[]
}

/** `tool_choice`, in the nested form of Chat Completions and in the flat one of Responses. */
export const toolChoice: Field<SentChoice> = custom(
  {
    description:
      'auto, none, required, {type: "function", function: {name}}, or {type: "allowed_tools", allowed_tools: {mode, tools}}.',
    anyOf: [{ enum: MODES }, { type: 'object', properties: { type: { type: 'string' } }, required: ['type'] }],
  },
  (value, path) => {
    if (typeof value !== 'object') {
      if (MODES.includes(value as ToolChoice['mode'])) return { mode: value as ToolChoice['mode'] }
      throw invalid(path, `must be 'auto', 'none', 'required' or an object, not ${shown(value)}`)
    }
    const choice = asObject(value, path)
    const { type } = choice
    // Some clients wrap the plain words.
    if (MODES.includes(type as ToolChoice['mode'])) return { mode: type as ToolChoice['mode'] }
    if (type === 'function') return { mode: 'required', allowed: [nameIn(choice, path)] }
    if (type === 'allowed_tools') {
      const isNested = choice['allowed_tools'] !== undefined
      const at = isNested ? `${path}.allowed_tools` : path
      return readAllowed(isNested ? asObject(choice['allowed_tools'], at) : choice, at)
    }
    if (typeof type !== 'string') throw invalid(`${path}.type`, `must be a string, not ${shown(type ?? null)}`)
    throw unsupported(
      `${path}.type`,
      `must be 'function' or 'allowed_tools': there are no tools of '${type.slice(0, 40)}'`,
    )
  },
)

export const parallelToolCalls = boolean('False: one call at most. Default true.')

/** The member `refrain` of a body: what this server takes beyond the dialect. */
export const refrainMember = object(
  {
    allowed_tools: listOf(
      text('A name, or a pattern with `*`.'),
      'Names of tools, or patterns such as `browser_*`: the decoder lets nothing else be called. `tools` stay as they are.',
    ),
  },
  'What this server takes beyond the API.',
)

/** What a body says about calls. */
export interface SentCalls {
  readonly choice?: SentChoice | undefined
  /** `parallel_tool_calls` */
  readonly parallel?: boolean | undefined
  /** `refrain.allowed_tools` */
  readonly allowed?: readonly string[] | undefined
}

/**
 * The choice of a request that has `tools` (undefined: they are not known here); undefined: auto, with nothing narrowed.
 * @throws RefrainError `invalid_request` naming the field: a name that no tool has, or nothing left that may be called.
 */
export function toolChoiceOf(sent: SentCalls, tools: readonly ToolDefinition[] | undefined): ToolChoice | undefined {
  const { choice, parallel } = sent
  if (choice?.mode === 'required' && tools?.length === 0) throw invalid('tool_choice', "needs 'tools'")
  checkNames(choice?.allowed ?? [], tools)
  const named: ToolChoice | undefined = choice && {
    mode: choice.mode,
    ...(choice.allowed && { allowed: choice.allowed.map(({ name }) => name) }),
    ...(parallel === false && { parallel }),
  }
  return narrowChoice(named ?? (parallel === false ? { mode: 'auto', parallel } : undefined), sent.allowed, tools)
}

/**
 * `choice`, narrowed to what `refrain.allowed_tools` allows as well. For every dialect.
 * @throws RefrainError `invalid_request` naming the field: a name that no tool has, or nothing left that may be called.
 */
export function narrowChoice(
  choice: ToolChoice | undefined,
  allowed: readonly string[] | undefined,
  tools: readonly ToolDefinition[] | undefined,
): ToolChoice | undefined {
  if (allowed === undefined) return choice
  const path = 'refrain.allowed_tools'
  checkNames(
    allowed.map((name, i) => ({ name, path: `${path}[${i}]` })),
    tools,
  )
  if (choice?.mode === 'none') return choice
  const before = choice?.allowed && new NamePatterns(choice.allowed)
  const set = new NamePatterns(allowed)
  const both = (name: string) => set.has(name) && (before?.has(name) ?? true)
  if (tools === undefined) return { mode: 'auto', ...choice, allowed: choice?.allowed?.filter(both) ?? allowed }
  if (!tools.some(({ name }) => both(name))) throw invalid(path, "leaves no tool of 'tools' that may be called")
  if (before === undefined) return { mode: 'auto', ...choice, allowed }
  return { mode: 'auto', ...choice, allowed: tools.map(({ name }) => name).filter(both) }
}

function checkNames(sent: Required<SentChoice>['allowed'], tools: readonly ToolDefinition[] | undefined): void {
  const names = tools && new Set(tools.map(({ name }) => name))
  let patterns = 0
  for (const { name, path } of sent) {
    if (isPattern(name)) {
      if (++patterns > MAX_PATTERNS) throw invalid(path, `is one pattern too many: ${MAX_PATTERNS} are allowed`)
    } else if (names?.has(name) === false) throw invalid(path, `names '${name.slice(0, 64)}', which is not in 'tools'`)
  }
}

function readAllowed(value: Readonly<Record<string, unknown>>, path: string): SentChoice {
  const { mode = 'auto', tools } = value
  if (mode !== 'auto' && mode !== 'required') {
    throw invalid(`${path}.mode`, `must be 'auto' or 'required', not ${shown(mode)}`)
  }
  if (!Array.isArray(tools)) throw invalid(`${path}.tools`, `must be an array, not ${shown(tools ?? null)}`)
  if (tools.length === 0) throw invalid(`${path}.tools`, 'must not be empty')
  const allowed = tools.map((tool: unknown, i) => {
    const at = `${path}.tools[${i}]`
    if (typeof tool === 'string') return { name: tool, path: at }
    const entry = asObject(tool, at)
    const type = entry['type'] ?? 'function'
    if (type === 'function') return nameIn(entry, at)
    if (typeof type !== 'string') throw invalid(`${at}.type`, `must be a string, not ${shown(type)}`)
    throw unsupported(`${at}.type`, `must be 'function': there are no tools of '${type.slice(0, 40)}'`)
  })
  return { mode, allowed }
}

function nameIn(value: Readonly<Record<string, unknown>>, path: string): { name: string; path: string } {
  const nested = value['function']
  const at = nested === undefined ? `${path}.name` : `${path}.function.name`
  const name = nested === undefined ? value['name'] : asObject(nested, `${path}.function`)['name']
  if (typeof name !== 'string' || name === '') throw invalid(at, `must be a name, not ${shown(name ?? null)}`)
  return { name, path: at }
}

function shown(value: unknown): string {
  return typeof value === 'string' ? `'${value.slice(0, 40)}'` : kindOf(value)
}
