// Sessions by tenant: bounded by count and bytes for each tenant on its own, so that none pushes out another's. Sessions
// without a key are followed by the blocks that their prompts begin with. Invariant: what is dropped is a turn that can't be
// told, never an error.

import type { BlockHash, Chain } from '../core/block.js'
import type { ExplainOptions } from './contract.js'
import { Session } from './session.js'
import type { Turn } from './turn.js'

/** Blocks by which sessions without a key are found, of one tenant. */
const FOLLOWED_BLOCKS = 100_000

export class TenantTable {
  readonly name: string
  readonly #options: ExplainOptions
  /** Least recently used first. */
  readonly sessions = new Map<string, Session>()
  readonly #byBlock = new Map<BlockHash, Session>()
  readonly #byRequest = new Map<string, { readonly session: Session; readonly turn: Turn }>()
  #bytes = 0

  constructor(name: string, options: ExplainOptions) {
    this.name = name
    this.#options = options
  }

  /** The session of that key, a new one where there is none. */
  open(key: string, byContent = false): Session {
    const session = this.sessions.get(key) ?? new Session(this.name, key, byContent)
    this.sessions.delete(key)
    this.sessions.set(key, session)
    return session
  }

  /** The session without a key whose prompts share most blocks with this one, from the start. */
  follow({ hashes }: Chain): Session | undefined {
    for (let i = hashes.length - 1; i >= 0; i--) {
      const found = this.#byBlock.get(hashes[i] as BlockHash)
      if (found !== undefined && this.sessions.get(found.key) === found) return found
    }
    return undefined
  }

  /** `session` is found by the blocks of `chain` from `from` on. */
  led(session: Session, { hashes }: Chain, from: number): void {
    for (let i = from; i < hashes.length; i++) {
      this.#byBlock.delete(hashes[i] as BlockHash)
      this.#byBlock.set(hashes[i] as BlockHash, session)
    }
    for (const hash of this.#byBlock.keys()) {
      if (this.#byBlock.size <= FOLLOWED_BLOCKS) return
      this.#byBlock.delete(hash)
    }
  }

  add(session: Session, turn: Turn): void {
    session.turns.push(turn)
    session.count++
    this.#byRequest.set(turn.requestId, { session, turn })
    while (session.turns.length > this.#options.turns) {
      const oldest = session.turns.shift() as Turn
      session.ownMarks -= oldest.ownMarks
      this.#forget(oldest)
    }
  }

  find(requestId: string): { readonly session: Session; readonly turn: Turn } | undefined {
    return this.#byRequest.get(requestId)
  }

  /** `session` has grown; others make room for it. */
  account(session: Session): void {
    if (this.sessions.get(session.key) !== session) return
    const bytes = session.measure()
    this.#bytes += bytes - session.bytes
    session.bytes = bytes
    for (const key of this.sessions.keys()) {
      if (this.sessions.size <= this.#options.sessions && this.#bytes <= this.#options.memoryBytes) return
      this.forget(key)
    }
  }

  forget(key: string): void {
    const session = this.sessions.get(key)
    if (session === undefined) return
    this.sessions.delete(key)
    this.#bytes -= session.bytes
    for (const turn of session.turns) this.#forget(turn)
  }

  #forget({ requestId }: Turn): void {
    this.#byRequest.delete(requestId)
  }
}
