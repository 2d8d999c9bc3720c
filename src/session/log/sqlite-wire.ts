// What the session log and its thread say to each other: a request and its one answer, by number.

import type { ErrorCode } from '../../core/errors.js'
import type { MasterKeyOptions } from './master-key.js'
import type { AppendLimits } from './place-events.js'
import type { Durability } from './sqlite-database.js'
import type { SqliteStore } from './sqlite-store.js'

/** What the thread is started with. */
export interface LogSetup {
  /** Absolute. */
  readonly folder: string
  readonly durability: Durability
  readonly keys: MasterKeyOptions
  /** Of the database file. */
  readonly maxBytes: number
  readonly limits: AppendLimits
}

/** Its first word: it serves (`made`: the key file that was made for it), or why not. */
export type Opened = { readonly made: string | undefined } | { readonly refused: string }

export interface LogRequest {
  readonly id: number
  readonly call: Exclude<keyof SqliteStore, 'forget'>
  readonly args: readonly unknown[]
}

export interface LogReply {
  readonly id: number
  readonly answer: LogAnswer
}

export type LogAnswer =
  | { readonly value: unknown }
  | { readonly error: { readonly code: ErrorCode; readonly message: string; readonly param?: string } }
  /** Of our own: a stack. */
  | { readonly fault: string }
