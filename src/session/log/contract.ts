// The log of sessions: append, read, fork, erase. Two kinds implement it: memory, and SQLite on a thread of its own.
// Invariant: what an append promised is there after a kill (and, with durability `power`, after a loss of power); of an append
// either all events are there or none. What is erased cannot be read again by anybody, from any file.

import type { NewEvent, SessionEvent } from './event.js'

export interface SessionRecord {
  /** `ses_` and 32 hex digits. */
  readonly id: string
  readonly tenant: string
  readonly model: string
  /** Unix milliseconds. */
  readonly createdAt: number
  /** Of its last append. */
  readonly usedAt: number
  /** Position of its last event. */
  readonly position: number
  /** A fork's: whose events come first, and up to where. */
  readonly parent?: { readonly session: string; readonly at: number }
  /** What a client said of it; raw JSON of an object. */
  readonly metadata?: string
}

export interface Append {
  readonly tenant: string
  readonly session: string
  /** Position that the log must stand at; undefined: wherever it stands. */
  readonly expected?: number
  readonly events: readonly NewEvent[]
}

export interface Page {
  /** First position. */
  readonly from: number
  readonly limit: number
}

/** A text that is too long for the context, whole. */
export interface StoredResult {
  readonly locator: string
  readonly text: string
  readonly sources: readonly string[]
}

export interface SourceGrant {
  readonly source: string
  readonly state: 'granted' | 'revoked'
  /** Unix milliseconds. */
  readonly at: number
}

/** Everything is scoped by tenant: another tenant's session is one that does not exist. */
export interface SessionLog {
  create(
    session: Pick<SessionRecord, 'id' | 'tenant' | 'model' | 'metadata' | 'parent'>,
    events: readonly NewEvent[],
  ): Promise<SessionRecord>
  /**
   * All of them or none, durable when it resolves; their sources and those of what they rest on are in what comes back.
   * @throws RefrainError `conflict` where the log does not stand at `expected` (its message says where), `not_found`.
   */
  append(append: Append): Promise<readonly SessionEvent[]>
  session(tenant: string, id: string): Promise<SessionRecord | undefined>
  /** The latest first; `before`: created before that one's `createdAt`, of which no two are equal. */
  sessions(
    tenant: string,
    page: { readonly before?: number; readonly limit: number },
  ): Promise<readonly SessionRecord[]>
  /** In order, a fork's with its parent's before them; fewer than `limit` only at the end. @throws RefrainError `not_found`, `erased`. */
  read(tenant: string, session: string, page: Page): Promise<readonly SessionEvent[]>
  keepResult(whose: { readonly tenant: string; readonly session: string }, result: StoredResult): Promise<void>
  result(
    whose: { readonly tenant: string; readonly session: string },
    locator: string,
  ): Promise<StoredResult | undefined>
  /** Names of cached blocks that the session's prompts are made of, so that they can be erased with it. */
  noteBlocks(whose: { readonly tenant: string; readonly session: string }, hashes: readonly Uint8Array[]): Promise<void>
  /** Of a session those that no other session of its tenant has (`which: 'all'`: all of its), or of all sessions of a tenant. */
  blocksOf(whose: {
    readonly tenant: string
    readonly session?: string
    readonly which?: 'own' | 'all'
  }): Promise<readonly Uint8Array[]>
  grants(tenant: string): Promise<readonly SourceGrant[]>
  /** Sessions (not erased) whose events rest on the source. */
  setGrant(tenant: string, grant: SourceGrant): Promise<readonly string[]>
  sharedMemory(tenant: string): Promise<readonly SharedMemory[]>
  setSharedMemory(tenant: string, block: SharedMemory): Promise<void>
  forksOf(tenant: string, session: string): Promise<readonly string[]>
  /**
   * Destroys the key of a session or of a whole tenant, and then its rows.
   * @throws RefrainError `conflict` where a session has forks that are not erased.
   */
  erase(whose: { readonly tenant: string; readonly session?: string }): Promise<void>
  /** Bodies of these events and these results are gone; places, digests and sources stay. */
  eraseEvents(
    whose: { readonly tenant: string; readonly session: string },
    what: { readonly positions: readonly number[]; readonly locators: readonly string[] },
  ): Promise<void>
  status(): Promise<{ readonly sessions: number; readonly events: number; readonly bytes: number }>
  close(): Promise<void>
}

export interface SharedMemory {
  readonly id: string
  readonly label: string
  readonly value: string
  readonly limitTokens?: number
  /** What the value rests on: those of the memory event that set it. Sorted. */
  readonly sources?: readonly string[]
}
