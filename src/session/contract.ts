// What routes and serve.ts need of sessions that are logged, and nothing of how they are kept. The face of session/.
// Invariant: a tenant sees its own sessions alone; one that is somebody else's is one that does not exist.

import type { BlockHash } from '../core/block.js'
import type { GenerateEvent } from '../core/events.js'
import type { ChatMessage, GenerateRequest, LoggedAsk, Prompt, Tenant, ToolDefinition } from '../core/request.js'
import type { SessionRecord, SharedMemory, SourceGrant, StoredResult } from './log/contract.js'
import type { NewEvent, SessionEvent } from './log/event.js'
import type { SeriesStep } from './series.js'

export type { SessionRecord, SharedMemory, SourceGrant, StoredResult } from './log/contract.js'
export type { EventBody, EventKind, Keyed, NewEvent, SessionEvent } from './log/event.js'

/** Tools that the server runs itself; see built-ins.ts. */
export type BuiltIn = 'read_result' | 'compact' | 'memory'

export interface NewSession {
  /** The model's own name. */
  readonly model: string
  readonly system?: string
  readonly tools: readonly ToolDefinition[]
  readonly builtIns: readonly BuiltIn[]
  /** Events that it begins with, behind its head. */
  readonly events: readonly NewEvent[]
  /** Raw JSON of an object. */
  readonly metadata?: string
}

export interface SessionState extends SessionRecord {
  readonly turns: number
  readonly events: number
  /** A turn is running. */
  readonly busy: boolean
}

export interface ContextView {
  readonly session: string
  /** Undefined: as the next turn would see it. */
  readonly turn?: number
  readonly upTo: number
  readonly compiler: number
  readonly digest: string
  readonly stableDigest: string
  readonly series: number
  readonly tools: readonly ToolDefinition[]
  readonly messages: readonly ChatMessage[]
  readonly tail: readonly ChatMessage[]
  /** Positions of events that a policy keeps out. */
  readonly withheld: readonly number[]
  readonly sources: readonly string[]
  /** The rendered text, as the model saw it. */
  readonly prompt: string
  readonly promptDigest: string
  /** Of a turn: whether compiling and rendering again gave the digests that were logged when it was sent. */
  readonly matches?: boolean
}

export interface ForkAsk {
  /** Position of the last event that is shared; undefined: the last there is. */
  readonly at?: number
  readonly n: number
}

/** Undefined members: as the policy of the session's model says. */
export interface CompactAsk {
  readonly strategy?: string
}

export interface CompactionView {
  readonly event: SessionEvent
  readonly charsBefore: number
  readonly charsAfter: number
  readonly steps: readonly string[]
}

export interface Warmed {
  readonly promptTokens: number
  /** Of the prompt, those that were not there. */
  readonly computedTokens: number
}

export interface SourceView extends SourceGrant {
  /** Sessions that rest on it, each with the newest layer that rests on none of what is revoked. */
  readonly sessions: readonly { readonly session: string; readonly cleanLayer?: string }[]
}

/** What routes ask. All throw RefrainError `not_found` where there is no such session, `erased` where there was one. */
export interface Sessions {
  /** @throws RefrainError `model_not_found`, `session_limit`. */
  create(tenant: Tenant, session: NewSession): Promise<SessionState>
  get(tenant: Tenant, id: string): Promise<SessionState>
  list(tenant: Tenant, page: { readonly before?: number; readonly limit: number }): Promise<readonly SessionRecord[]>
  /**
   * Events whose `key` is there already are those that are there.
   * @throws RefrainError `conflict` where the log does not stand at `expected` or a turn is running; `session_limit`,
   * `memory_limit`, `invalid_request`.
   */
  append(
    tenant: Tenant,
    id: string,
    append: { readonly events: readonly NewEvent[]; readonly expected?: number },
  ): Promise<readonly SessionEvent[]>
  events(
    tenant: Tenant,
    id: string,
    page: { readonly from: number; readonly limit: number },
  ): Promise<readonly SessionEvent[]>
  /**
   * What a turn that brings `prompt` would be sent as things stand. Nothing is logged.
   * @throws RefrainError as the turn would: `invalid_request` by field, `model_not_found`.
   */
  trial(
    tenant: Tenant,
    id: string,
    asked: { readonly model: string; readonly prompt: Chat; readonly logged: LoggedAsk },
  ): Promise<{ readonly model: string; readonly prompt: Chat }>
  /** Each turn's figures. */
  series(tenant: Tenant, id: string): Promise<readonly SeriesStep[]>
  /** @throws RefrainError `source_revoked` where the turn rests on what is revoked and the viewer may not audit. */
  context(tenant: Tenant, id: string, turn?: number): Promise<ContextView>
  fork(tenant: Tenant, id: string, ask: ForkAsk): Promise<readonly SessionState[]>
  /** @throws RefrainError `compaction_rejected`, `conflict`. */
  compact(tenant: Tenant, id: string, ask: CompactAsk, signal: AbortSignal): Promise<CompactionView>
  reset(tenant: Tenant, id: string, ask: { readonly artifacts: readonly string[] }): Promise<SessionEvent>
  /** Brings up or computes the KV of the context and keeps it for `ttlMs`. */
  resume(
    tenant: Tenant,
    id: string,
    how: { readonly requestId: string; readonly ttlMs: number; readonly signal: AbortSignal },
  ): Promise<Warmed>
  /** @throws RefrainError `conflict` where it has forks. */
  erase(tenant: Tenant, id: string): Promise<void>
  result(tenant: Tenant, id: string, locator: string): Promise<StoredResult>
  sources(tenant: Tenant): Promise<readonly SourceGrant[]>
  /** Revoking drops what rests on it from every session of the tenant and erases what was made of it. */
  setSource(tenant: Tenant, source: string, state: SourceGrant['state']): Promise<SourceView>
  memory(tenant: Tenant): Promise<readonly SharedMemory[]>
  setMemory(tenant: Tenant, block: SharedMemory): Promise<SharedMemory>
  /** Everything of a tenant. @throws RefrainError `forbidden` unless it is the tenant itself or an admin. */
  eraseTenant(tenant: Tenant, name: string): Promise<void>
  /** What a Responses API's id stands for. */
  readonly responses: ResponseStore
}

/** Sessions behind ids of answers. */
export interface ResponseStore {
  /**
   * The session to go on with behind the answer `previousId`, a fork of it where it has gone on already; without one a new
   * session.
   * @throws RefrainError `not_found`.
   */
  open(
    tenant: Tenant,
    ask: { readonly model: string; readonly previousId?: string },
  ): Promise<{ readonly session: string; readonly isNew: boolean }>
  /** @throws RefrainError `not_found`, `erased`, `source_revoked`. */
  find(tenant: Tenant, id: string): Promise<StoredResponse>
  /** Erases the session behind an answer. @throws RefrainError `conflict` where another answer stands in it, or goes on from it. */
  erase(tenant: Tenant, id: string): Promise<void>
  /** The id of the answer that the request `requestId` gives in the session. */
  idOf(session: string, requestId: string): string
}

/** An answer as it was told, and what of its request the log has. */
export interface StoredResponse {
  readonly model: string
  /** Unix milliseconds. */
  readonly createdAt: number
  readonly system: string
  readonly tools: readonly ToolDefinition[]
  /** The answer that it went on from. */
  readonly previous?: { readonly session: string; readonly requestId: string }
  /** Of the answer, from start to finish. */
  readonly events: readonly GenerateEvent[]
}

// --- a turn, as serve.ts runs it ----------------------------------------------------------------------------------------

type Chat = Extract<Prompt, { kind: 'chat' }>

/** What is about to be sent. */
export interface Sending {
  /** The chat as it was rendered. */
  readonly prompt: Chat
  /** The rendered text. */
  readonly text: string
  /** What it was rendered by. */
  readonly rendering: Rendering
  /** Of the prompt, without the tail. Undefined: it has no place for it. */
  readonly stableTokens?: number
  readonly backend: string
  /** Names of the blocks that the prompt and, behind it, `answer` fill, and those of questions that run beside it. */
  blocks(answer: readonly number[]): readonly BlockHash[]
}

/** What a rendering rests on beside messages and tools; plain JSON, in the log with each turn. */
export interface Rendering {
  /** ISO 8601; what the template prints as today. */
  readonly date?: string
  readonly thinking?: Chat['thinking']
  readonly templateValues?: string
}

/** One try of a turn. */
export interface TurnTry {
  /** What the log compiles to, as a request of its own. */
  readonly request: GenerateRequest
  /** What the template prints as today: the day that the session began. */
  readonly date: Date
  /** Messages of the prompt that are no part of the stable prefix, from the end. */
  readonly tailMessages: number
  /** What rewrote the context since the last turn. */
  readonly boundary?: 'compaction' | 'revocation'
  /** What may be called: the prompt's tools, and what was told behind the history. */
  readonly callable: readonly ToolDefinition[]
  /**
   * Last before the backend: compares what would be sent with the log and writes it down. @throws RefrainError
   * `context_mismatch`, `conflict`.
   */
  sending(sending: Sending): Promise<void>
  /** The answer's events, logged before the end is told. */
  logged(events: AsyncIterable<GenerateEvent>): AsyncIterable<GenerateEvent>
}

/** The path of a request, from its messages to its events. */
export type TurnPath = (request: GenerateRequest, signal: AbortSignal, turn: TurnTry) => AsyncIterable<GenerateEvent>

export interface TurnRunner {
  /**
   * A turn of a logged session: new messages are appended, the log is compiled and sent along `path`, the answer logged.
   * @throws RefrainError from the loop: `not_found`, `conflict`, `session_limit`, `invalid_request`, what `path` throws.
   */
  run(asked: GenerateRequest, path: TurnPath, signal: AbortSignal): AsyncIterable<GenerateEvent>
}

// --- what sessions take -------------------------------------------------------------------------------------------------

/** Given by compose.ts. */
export interface SessionPorts {
  /** The model's own name and window; `retention`: of its card. @throws RefrainError `model_not_found`. */
  model(name: string | undefined): { readonly name: string; readonly contextLength: number; readonly retention: string }
  /** The chat as the path renders it: by the model's rule of retention. */
  shown(model: string, prompt: Chat): Chat
  /** The text of a chat that is shown, as the path renders it. */
  render(model: string, shown: Chat, rendering: Rendering): string
  countTokens(model: string, text: string): number
  /** Of the tenant's chains and replies. */
  saltOf(tenant: string): string
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent>
  /** Cached blocks, in every tier. */
  eraseBlocks(blocks: readonly BlockHash[]): Promise<void>
  /** Everything else that is kept of a session or tenant: replies, facts, explanations. */
  forget(whose: { readonly tenant: string; readonly session?: string }): Promise<void>
  /** Of a session whose sources were revoked. */
  revoked(whose: { readonly tenant: string; readonly session: string }): Promise<void>
}
