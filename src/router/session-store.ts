// Where sessions outlive the router: what of each is kept. Invariant: a record that is lost or stale costs a hit.

export interface SessionRecord {
  readonly key: string
  /** Id of the member that it lives on. */
  readonly member: string
  readonly scope: string
  /** Hash of its last prompt as a whole, and its tokens. */
  readonly tail: string
  readonly tokens: number
  /** Hash of its head, and its tokens. */
  readonly head?: string
  readonly headTokens?: number
}

export interface SessionStore {
  /** Those that were there when it was opened, oldest first. */
  records(): Iterable<SessionRecord>
  put(record: SessionRecord): void
  remove(key: string): void
}
