// What the API takes and gives, in its own spelling (docs/api.md, docs/sessions.md, GET /openapi.json). Types alone.

export interface ToolDefinition {
  readonly type: 'function'
  readonly function: { readonly name: string; readonly description?: string; readonly parameters?: object }
}

export interface ToolCall {
  readonly id: string
  readonly type: 'function'
  /** `arguments`: JSON text, as the model wrote it. */
  readonly function: { readonly name: string; readonly arguments: string }
}

export type Message =
  | { readonly role: 'system' | 'user'; readonly content: string; readonly name?: string }
  | { readonly role: 'tool'; readonly tool_call_id: string; readonly content: string }
  | AssistantMessage

export interface AssistantMessage {
  readonly role: 'assistant'
  readonly content: string | null
  readonly reasoning_content?: string
  readonly tool_calls?: readonly ToolCall[]
}

export interface Usage {
  readonly prompt_tokens: number
  readonly completion_tokens: number
  readonly total_tokens: number
  /** Of the prompt: read from the cache; newly kept. */
  readonly prompt_tokens_details: { readonly cached_tokens: number; readonly cache_write_tokens: number }
}

// --- sessions -----------------------------------------------------------------------------------------------------------

export type BuiltInTool = 'read_result' | 'compact' | 'memory'

export interface NewSession {
  readonly model?: string
  readonly system?: string
  readonly tools?: readonly ToolDefinition[]
  /** Tools that the server runs itself. Absent: read_result where there are tools. */
  readonly built_in_tools?: readonly BuiltInTool[]
  readonly events?: readonly NewEvent[]
  readonly metadata?: Readonly<Record<string, unknown>>
}

export interface SessionRecord {
  readonly id: string
  readonly object: 'session'
  readonly tenant: string
  readonly model: string
  readonly created: number
  readonly created_ms: number
  readonly used_ms: number
  /** Of the last event. */
  readonly position: number
  readonly parent?: { readonly session: string; readonly at: number }
  readonly metadata: Readonly<Record<string, unknown>>
}

export interface SessionState extends SessionRecord {
  readonly turns: number
  readonly events: number
  /** A turn is running. */
  readonly busy: boolean
}

/** What a client logs. */
export type NewEvent = Logged & {
  /** Its own name: sent again, it is the event that is there. */
  readonly key?: string
  /** What it was derived from. */
  readonly sources?: readonly string[]
  /** The layer that it was read from. */
  readonly layer?: string
}

type Logged =
  | {
      readonly type: 'head'
      readonly apply?: 'append' | 'boundary' | 'now'
      readonly system?: string
      readonly tools?: readonly ToolDefinition[]
    }
  | { readonly type: 'user'; readonly content: string; readonly name?: string }
  | { readonly type: 'assistant'; readonly content: string; readonly reasoning?: string }
  | { readonly type: 'tool_call'; readonly call_id: string; readonly name: string; readonly arguments?: string }
  | { readonly type: 'tool_result'; readonly call_id: string; readonly content: string; readonly error?: boolean }
  | { readonly type: 'note'; readonly tail?: 'ephemeral' | 'kept'; readonly label: string; readonly content: string }
  | {
      readonly type: 'memory'
      readonly label: string
      readonly value?: string
      readonly limit_tokens?: number
      readonly shared?: string
    }
  | { readonly type: 'layer'; readonly layer_id: string; readonly parent?: string }
  | { readonly type: 'attempt'; readonly outcome: 'failed' | 'retried' | 'cancelled'; readonly reason: string }

/** What stands in the log. */
export type SessionEvent = (Logged | Decided) & {
  readonly object: 'session.event'
  readonly id: string
  readonly session: string
  /** From 1, without a gap. */
  readonly position: number
  readonly created_ms: number
  readonly key?: string
  readonly sources: readonly string[]
  readonly layer?: string
  readonly digest: string
  readonly previous: string
  /** Of a stored result: its place. */
  readonly spilled?: { readonly locator: string; readonly chars: number }
}

type Decided =
  | {
      readonly type: 'compaction'
      readonly trigger: 'pressure' | 'overflow' | 'tool' | 'api' | 'ttl'
      readonly steps: readonly (Readonly<Record<string, unknown>> & { readonly step: string })[]
      readonly chars_before: number
      readonly chars_after: number
    }
  | {
      readonly type: 'turn'
      readonly turn: number
      readonly request_id: string
      readonly compiler: number
      readonly up_to: number
      readonly verdicts: Readonly<Record<string, 'granted' | 'revoked'>>
      readonly rendering: string
      /** Of what was compiled; `prompt_digest`: of the text that was made of it. */
      readonly context_digest: string
      readonly prompt_digest: string
    }
  | {
      readonly type: 'usage'
      readonly turn: number
      readonly prompt_tokens: number
      readonly completion_tokens: number
      readonly cached_tokens: number
      readonly stable_tokens: number
      readonly backend: string
    }
  | {
      readonly type: 'fork'
      readonly parent: string
      readonly at: number
      readonly of: number
      readonly index: number
    }
  | { readonly type: 'reset'; readonly artifacts: readonly string[] }
  | { readonly type: 'revocation'; readonly revoked: readonly string[]; readonly clean_layer?: string }
  | { readonly type: 'policy'; readonly snapshot: Readonly<Record<string, unknown>> }

export interface SessionContext {
  readonly session: string
  readonly turn?: number
  /** Of a turn: compiling and rendering again gave what was sent, byte for byte. */
  readonly matches?: boolean
  readonly up_to: number
  readonly compiler: number
  readonly digest: string
  readonly stable_digest: string
  readonly series: number
  readonly tools: readonly ToolDefinition[]
  readonly messages: readonly Message[]
  /** Behind the stable prefix. */
  readonly tail: readonly Message[]
  readonly withheld: readonly number[]
  readonly sources: readonly string[]
  /** The rendered text, as the model saw it. */
  readonly prompt: string
  readonly prompt_digest: string
}

export interface Compaction {
  readonly position: number
  readonly chars_before: number
  readonly chars_after: number
  readonly steps: readonly string[]
}

export interface StoredResult {
  readonly locator: string
  readonly offset: number
  readonly length: number
  /** Of the whole. */
  readonly chars: number
  readonly content: string
}

export interface Resumed {
  readonly prompt_tokens: number
  readonly computed_tokens: number
}

export interface SeriesStep {
  readonly turn: number
  readonly series: number
  readonly prompt_tokens: number
  readonly cached_tokens: number
  readonly stable_prefix: number
  readonly hit_rate: number
}

export interface Source {
  readonly id: string
  readonly state: 'granted' | 'revoked'
  readonly changed_ms: number
  /** Sessions that rested on it, each with the newest layer to roll back to. */
  readonly sessions: readonly { readonly session: string; readonly clean_layer: string | null }[]
}

export interface MemoryBlock {
  readonly id: string
  readonly label: string
  readonly value: string
  readonly limit_tokens?: number
}

// --- side questions -----------------------------------------------------------------------------------------------------

export interface QuickTask {
  readonly task: 'action' | 'title' | 'query' | 'authority' | 'domain' | 'read_url' | 'custom'
  readonly instruction?: string
  readonly choices?: readonly string[]
  readonly schema?: object
  readonly regex?: string
  readonly max_tokens?: number
  readonly urls?: readonly string[]
}

export interface QuickResult {
  readonly task: QuickTask['task']
  readonly url?: string
  readonly form: string
  readonly text?: string
  readonly choice?: string
  readonly json?: unknown
  readonly probabilities?: Readonly<Record<string, number>>
  readonly error?: { readonly code: string; readonly message: string }
  readonly usage: Pick<Usage, 'prompt_tokens' | 'completion_tokens' | 'total_tokens'>
}

export interface QuickAnswer {
  readonly id: string
  readonly model: string
  readonly results: readonly QuickResult[]
  readonly usage: Usage
}

// --- explanations -------------------------------------------------------------------------------------------------------

export interface Miss {
  readonly reason: string
  readonly missed_tokens: number
  readonly sentence: string
  readonly compared_with: number | null
  readonly causes: readonly { readonly reason: string; readonly missed_tokens: number }[]
  readonly difference?: Readonly<Record<string, unknown>>
}

export interface Turn {
  readonly turn: number
  readonly id: string
  readonly created: number
  readonly class: string
  readonly model: string
  readonly backend: string
  readonly status: 'running' | 'done' | 'failed'
  readonly prompt_tokens: number
  readonly completion_tokens: number
  readonly committed_tokens: number
  /** Tokens of the prompt by where their KV came from. */
  readonly cache: {
    readonly working: number
    readonly memory: number
    readonly disk: number
    readonly computed: number
  } | null
  readonly miss: Miss | null
}

export interface ExplainedTurn extends Turn {
  readonly session: string
  readonly segments: readonly Readonly<Record<string, unknown>>[]
}

export interface ExplainedSession {
  readonly session: string
  readonly turns: number
  readonly prompt_tokens: number
  readonly reused_tokens: number
  readonly missed_tokens: number
}
