// What a request is for: a turn of the conversation, a sub-agent's, a side question (titles, tags, suggestions) or the
// summary that a client compacts its history with. Clients that say so in headers are believed; the others are known by
// the shape of what they send. Invariant: the class changes what is kept and who goes first, never the answer. Step 2.

import type { RequestClass } from '../core/request.js'
import type { RequestHeaders } from './session-signal.js'

type Body = Readonly<Record<string, unknown>>

export interface Classified {
  /** Undefined: an ordinary turn. */
  readonly requestClass?: RequestClass
  /** The client's count of how often it rewrote this context, or 'new' on the first turn after a rewrite. */
  readonly contextEpoch?: number | 'new'
}

/** A body as the rules look at it: the heads of a few texts, whichever API they came by. */
export interface Look {
  header(name: string): string | undefined
  /** Codex's account of the request: `x-codex-turn-metadata`. */
  readonly codex: Body
  readonly tools: number
  /** Low or no reasoning is asked for. */
  readonly lowEffort: boolean
  readonly maxTokens: number | undefined
  /** Head of the first system text. */
  readonly system: string
  /** User messages. */
  readonly turns: number
  /** Heads of what the user side said last: of the parts of the last user message and of those right before it. */
  readonly asked: readonly string[]
  /** The history has tool calls or results. */
  readonly called: boolean
  /** Members of the JSON schema that the answer must match. */
  readonly answers: readonly string[]
}

export interface Rule {
  readonly name: string
  /** Undefined: the rule has nothing to say of it. */
  of(look: Look): RequestClass | undefined
}

const CLASSES: Readonly<Record<string, RequestClass>> = {
  main: 'main',
  subagent: 'subagent',
  workflow: 'subagent',
  auxiliary: 'auxiliary',
  compaction: 'compaction',
}

const CODEX_AGENTS: Readonly<Record<string, RequestClass>> = {
  compact: 'compaction',
  memory_consolidation: 'auxiliary',
}

const CODEX_SOURCES: Readonly<Record<string, RequestClass>> = {
  thread_title: 'auxiliary',
  subagent: 'subagent',
}

// What clients write, by the few words of it that stay from release to release. Open WebUI, LibreChat, LobeChat, Cherry
// Studio, Continue, Goose, Copilot, OpenCode, Codex, Claude Code, Qwen Code and Gemini CLI, Zed, NextChat.
const TITLE_SYSTEM =
  /\btitle generator\b|\btitles?\b[^.\n]{0,60}\b(conversations?|chats?|session|thread)\b|new conversation topic|\bsummarize\b[^.\n]{0,40}\bconversations? into (a )?titles?\b|^Summarize this coding conversation in under/i
const TITLE_ASKED =
  /^\s*(please )?(generate|write|create|suggest|provide)\b[^.\n]{0,40}\btitle\b[^.\n]{0,40}\b(conversation|chat|session|thread)\b|^\s*Given the following[^\n]{0,120}\breply with a title for the chat\b|^\s*---BEGIN USER MESSAGES---/i
/** Title and language together, by way of a tool of its own where the server knows no schemas: LibreChat. */
const TITLE_AND_LANGUAGE = /^\s*Analyze this conversation and provide\b/
/**
 * Questions behind the conversation that they are about, tools and all: what the user might say next, who is to go on, whether
 * the talk turns in circles, what it was about.
 */
const ASIDE_ASKED =
  /^\s*(\[SUGGESTION MODE\b|Analyze \*only\* the content and structure of your immediately preceding response|Please analyze the conversation history to determine the possibility that the conversation is stuck|Summarize the user's primary intent or goal in this conversation in ONE sentence)/
/** Open WebUI's side questions: titles, tags, follow-ups, queries, emoji, tools. Its answers from documents are no such. */
const WEBUI_ASKED =
  /^\s*(#{2,3} Task:\s*(Generate|Suggest|Analyze|Your task is|You are an autocompletion)|Your task is to reflect the speaker's likely facial expression|You have been provided with a set of responses from various models to the latest user query|Create a concise, 3-5 word title)/i
const WEBUI_SYSTEM = /^\s*Available Tools:[\s\S]*\bYour task is to choose\b/
const COMPACTION_ASKED =
  /CONTEXT CHECKPOINT COMPACTION|<state_snapshot>|^\s*<conversation>|Your task is to create a detailed summary of the conversation/
const SUMMARY_ASKED = /\b(summar(y|ise|ize|ies)|compact|condense|hand-?off)/i

/** The first that has something to say counts. What a client says of itself stands before what its body looks like. */
export const RULES: readonly Rule[] = [
  { name: 'refrain', of: (look) => named(CLASSES, look.header('x-refrain-request-class')) },
  { name: 'claude-code-class', of: (look) => named(CLASSES, look.header('x-claude-code-request-class')) },
  {
    name: 'claude-code-compaction',
    of: (look) => (look.header('x-claude-code-compaction') ? 'compaction' : undefined),
  },
  { name: 'codex-kind', of: (look) => (look.codex['request_kind'] === 'compaction' ? 'compaction' : undefined) },
  { name: 'codex-agent', of: codexAgent },
  { name: 'codex-source', of: (look) => named(CODEX_SOURCES, look.codex['thread_source']) },
  { name: 'claude-code-agent', of: (look) => (look.header('x-claude-code-agent-id') ? 'subagent' : undefined) },
  { name: 'aside', of: (look) => (asks(look, ASIDE_ASKED) ? 'auxiliary' : undefined) },
  { name: 'open-webui', of: (look) => (isWebUi(look) ? 'auxiliary' : undefined) },
  { name: 'title-and-language', of: (look) => (isTitleAndLanguage(look) ? 'auxiliary' : undefined) },
  { name: 'compaction', of: (look) => (asks(look, COMPACTION_ASKED) ? 'compaction' : undefined) },
  { name: 'title', of: (look) => (isTitle(look) ? 'auxiliary' : undefined) },
  { name: 'probe', of: (look) => (isProbe(look) ? 'auxiliary' : undefined) },
  {
    name: 'no-tools-after-tools',
    of: (look) => (look.tools === 0 && look.called && asks(look, SUMMARY_ASKED) ? 'compaction' : undefined),
  },
  { name: 'parent-session', of: (look) => (look.header('x-parent-session-id') ? 'subagent' : undefined) },
]

export function classify(headers: RequestHeaders, body: Body): Classified {
  const look = lookAt(headers, body)
  let requestClass: RequestClass | undefined
  for (const rule of RULES) {
    requestClass = rule.of(look)
    if (requestClass !== undefined) break
  }
  const contextEpoch = epochOf(look, body)
  return { ...(requestClass && { requestClass }), ...(contextEpoch !== undefined && { contextEpoch }) }
}

function named(table: Readonly<Record<string, RequestClass>>, name: unknown): RequestClass | undefined {
  return typeof name === 'string' && Object.hasOwn(table, name) ? table[name] : undefined
}

function codexAgent(look: Look): RequestClass | undefined {
  const agent = look.header('x-openai-subagent')
  return agent === undefined ? undefined : (named(CODEX_AGENTS, agent) ?? 'subagent')
}

function asks(look: Look, pattern: RegExp): boolean {
  return look.asked.some((text) => pattern.test(text))
}

function isTitle({ tools, system, asked, turns, answers, lowEffort }: Look): boolean {
  if (tools > 0) return false
  if (isTitleForm(answers)) return true
  if (asked.some((text) => TITLE_ASKED.test(text))) return true
  // A system text about titles alone is an application's own business, unless it asks like a client in passing.
  return TITLE_SYSTEM.test(system) && (lowEffort || turns <= 2)
}

function isTitleForm(answers: readonly string[]): boolean {
  return answers.includes('title') && answers.every((each) => each === 'title' || each === 'language')
}

/** What it decides is which tool to call, not what to say. */
function isWebUi(look: Look): boolean {
  return look.tools === 0 && (asks(look, WEBUI_ASKED) || WEBUI_SYSTEM.test(look.system))
}

/** The conversation is text in the one message that there is; a tool, where there is one, is the form of the answer. */
function isTitleAndLanguage(look: Look): boolean {
  return look.turns === 1 && asks(look, TITLE_AND_LANGUAGE)
}

/** Claude Code asks one token to learn whether its key is good. */
function isProbe({ maxTokens, turns, asked, tools }: Look): boolean {
  return maxTokens === 1 && tools === 0 && turns === 1 && asked.length === 1 && asked[0] === 'quota'
}

/** Claude Code tells it once; Codex counts its windows: `<thread>:<n>`. */
function epochOf(look: Look, body: Body): number | 'new' | undefined {
  if (look.header('x-claude-code-context-compacted') !== undefined) return 'new'
  const window = look.header('x-codex-window-id') ?? asBody(body['client_metadata'])['x-codex-window-id']
  const count = typeof window === 'string' ? /:(\d{1,9})$/.exec(window)?.[1] : undefined
  return count === undefined ? undefined : Number(count)
}

// --- looking ---------------------------------------------------------------------------------------------------------

/** Of a text, as much as harness prompts need to be known by. */
const HEAD_CHARS = 4096
const PARTS = 8
/** Codex's metadata is under 4 kB. */
const METADATA_CHARS = 32_768

function lookAt(headers: RequestHeaders, body: Body): Look {
  const header = (name: string) => {
    const value = headers[name]
    const text = (Array.isArray(value) ? value[0] : value)?.trim()
    return text === '' ? undefined : text
  }
  const items = Array.isArray(body['messages']) ? body['messages'] : Array.isArray(body['input']) ? body['input'] : []
  const tools = Array.isArray(body['tools']) ? body['tools'].length : 0
  return {
    header,
    codex: codexMetadata(header('x-codex-turn-metadata') ?? asBody(body['client_metadata'])['x-codex-turn-metadata']),
    tools,
    lowEffort: isLowEffort(body),
    maxTokens: typeof body['max_tokens'] === 'number' ? body['max_tokens'] : undefined,
    system: systemOf(body, items),
    turns: items.filter((item) => asBody(item)['role'] === 'user').length,
    asked: askedOf(body, items),
    called: tools === 0 && items.some(isCall),
    answers: tools === 0 ? answersOf(body) : [],
  }
}

function codexMetadata(text: unknown): Body {
  if (typeof text !== 'string' || text.length > METADATA_CHARS) return {}
  try {
    return asBody(JSON.parse(text))
  } catch {
    // Not Codex's: it says nothing to us.
    return {}
  }
}

function isLowEffort(body: Body): boolean {
  const low = (effort: unknown) => effort === 'none' || effort === 'minimal' || effort === 'low'
  const thinking = asBody(body['thinking'])
  return (
    low(body['reasoning_effort']) ||
    low(asBody(body['reasoning'])['effort']) ||
    low(asBody(body['output_config'])['effort']) ||
    thinking['type'] === 'disabled' ||
    (typeof thinking['budget_tokens'] === 'number' && thinking['budget_tokens'] <= 4096)
  )
}

function systemOf(body: Body, items: readonly unknown[]): string {
  const own = headsOf(body['system'] ?? body['instructions'])
  if (own.length > 0) return own.join('\n')
  const { role, content } = asBody(items[0])
  return role === 'system' || role === 'developer' ? headsOf(content).join('\n') : ''
}

/** OpenCode asks for a title in one message and shows what to name in the next. */
function askedOf(body: Body, items: readonly unknown[]): string[] {
  const isUser = (item: unknown) => asBody(item)['role'] === 'user'
  const end = items.findLastIndex(isUser)
  if (end < 0) return headsOf(body['input'])
  const start = items.findLastIndex((item, i) => i < end && !isUser(item)) + 1
  return items.slice(Math.max(start, end + 1 - PARTS), end + 1).flatMap((item) => headsOf(asBody(item)['content']))
}

/** Heads of a content's texts: of a string, or of the last few text parts. */
function headsOf(content: unknown): string[] {
  if (typeof content === 'string') return [content.slice(0, HEAD_CHARS)]
  if (!Array.isArray(content)) return []
  return content.slice(-PARTS).flatMap((part) => {
    const text = asBody(part)['text']
    return typeof text === 'string' ? [text.slice(0, HEAD_CHARS)] : []
  })
}

function isCall(item: unknown): boolean {
  const { role, type, tool_calls: calls, content } = asBody(item)
  if (role === 'tool' || type === 'function_call' || type === 'function_call_output') return true
  if (Array.isArray(calls) && calls.length > 0) return true
  return Array.isArray(content) && content.some((part) => asBody(part)['type'] === 'tool_use')
}

/** Member names of the schema in `response_format`, `text.format` or `output_config.format`. */
function answersOf(body: Body): string[] {
  const format = asBody(
    asBody(body['response_format'])['json_schema'] ??
      asBody(body['text'])['format'] ??
      asBody(body['output_config'])['format'],
  )
  return Object.keys(asBody(asBody(format['schema'])['properties'])).slice(0, PARTS)
}

function asBody(value: unknown): Body {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Body) : {}
}
