// What is remembered of a session between its turns, beside its KV: when it began, which tools it had last, the chain of
// its last prompt, its system text. Bounded by count, age and bytes; what came last stays. Invariant: a session that is
// forgotten costs a comparison or a hit, never an answer. Asked by serve.ts in front of the template and behind the chain.

import { BLOCK_TOKENS, type BlockHash, type Chain } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { GenerateRequest, RequestClass, ToolDefinition } from '../core/request.js'
import { note } from '../core/signals.js'
import { compareHead, type HeadMemory, headOf } from './head-changes.js'

export interface SessionFactsOptions {
  /** Sessions; 0: nothing is remembered. */
  readonly max: number
  /** Without a turn for so long, a session is forgotten. */
  readonly ttlMs: number
  /** Of all that is remembered, about. */
  readonly memoryBytes: number
  readonly clock: Clock
  /** The time of day; tests set it. */
  readonly dateNow?: () => Date
}

/** A session's key: equal keys of two tenants or models are two sessions. */
export interface SessionScope {
  readonly tenant: string
  readonly model: string
  readonly session: string
  /** The session that a sub-agent was started from: it is of the same day, or would share no prefix. */
  readonly parent?: string
}

export interface SessionTurn {
  readonly request: Pick<GenerateRequest, 'requestClass' | 'contextEpoch'>
  readonly chain: Chain
  readonly tools: readonly ToolDefinition[]
  /** Text of the leading system messages, as it is rendered. */
  readonly system: string
}

export type Asking = Pick<GenerateRequest, 'requestClass' | 'prompt'>

export interface SessionFacts {
  /** When its conversation began, which is what its template's date is frozen to. */
  readonly since: Date
  /** Turns so far; side requests do not count. */
  readonly turns: number
  /** Those of its last turn that had any. */
  readonly tools: readonly ToolDefinition[]
  /** Of its last turn's prompt. */
  readonly chain: Chain | undefined
  /**
   * The date to render a request with: `since`. A turn without any answer before it begins a conversation anew, under a
   * key that many share or that goes on for weeks: it moves `since`.
   */
  dateFor(request: Asking): Date
  /**
   * The session's tools, for a side request that asks about its conversation and sends none: shown all the same, they
   * keep the prefix what it was. Undefined: it has tools, or is about something else.
   */
  keepTools(request: Asking, system: string): readonly ToolDefinition[] | undefined
  /**
   * Takes down a turn whose prompt is hashed. Returns the blocks that the session left behind for good: where the client
   * says that it rewrote the context, those of the last prompt that this one does not share.
   */
  settle(turn: SessionTurn): readonly BlockHash[] | undefined
}

export interface SessionFactsTable {
  readonly size: number
  /** The session's facts, empty ones where it is new. */
  open(scope: SessionScope): SessionFacts
  /** Forgets one session, and with `session` undefined all of a tenant's. */
  forget(scope: { readonly tenant: string; readonly session?: string }): void
}

export function createSessionFacts(options: SessionFactsOptions): SessionFactsTable {
  return new Table(options)
}

/** Between two notes about the heads of prompts, whichever session's: they are for people. */
const NOTE_MS = 10_000

class Table implements SessionFactsTable {
  readonly options: SessionFactsOptions
  /** Least recently used first. */
  readonly #sessions = new Map<string, Remembered>()
  #bytes = 0
  #notedAt = Number.NEGATIVE_INFINITY

  constructor(options: SessionFactsOptions) {
    this.options = options
  }

  get size(): number {
    return this.#sessions.size
  }

  open(scope: SessionScope): SessionFacts {
    const key = keyOf(scope)
    const now = this.options.clock.now()
    this.#expire(now)
    const found = this.#sessions.get(key) ?? new Remembered(scope, this, this.#dateFor(scope))
    this.#sessions.delete(key)
    found.usedAt = now
    if (this.options.max === 0) return found
    this.#sessions.set(key, found)
    if (found.bytes === 0) this.account(found, BASE_BYTES + 2 * key.length)
    return found
  }

  #dateFor(scope: SessionScope): Date {
    const { parent } = scope
    const known = parent === undefined ? undefined : this.#sessions.get(keyOf({ ...scope, session: parent }))
    return known?.since ?? this.date()
  }

  date(): Date {
    return this.options.dateNow?.() ?? new Date()
  }

  forget({ tenant, session }: { readonly tenant: string; readonly session?: string }): void {
    for (const [key, { scope }] of this.#sessions) {
      if (scope.tenant === tenant && (session === undefined || scope.session === session)) this.#remove(key)
    }
  }

  /** `session` has grown to `bytes`; others make room for it. */
  account(session: Remembered, bytes: number): void {
    this.#bytes += bytes - session.bytes
    session.bytes = bytes
    const { max, memoryBytes } = this.options
    for (const key of this.#sessions.keys()) {
      if (this.#sessions.size <= max && this.#bytes <= memoryBytes) return
      this.#remove(key)
    }
  }

  tell(text: string, detail: Readonly<Record<string, unknown>>): void {
    const now = this.options.clock.now()
    if (now - this.#notedAt < NOTE_MS) return
    this.#notedAt = now
    note.publish({ level: 'warn', text, detail })
  }

  #expire(now: number): void {
    for (const [key, { usedAt }] of this.#sessions) {
      if (now - usedAt < this.options.ttlMs) return
      this.#remove(key)
    }
  }

  #remove(key: string): void {
    const session = this.#sessions.get(key)
    if (session === undefined) return
    this.#sessions.delete(key)
    this.#bytes -= session.bytes
    // What a running turn still writes into it counts no more.
    session.bytes = Number.NaN
  }
}

function keyOf({ tenant, model, session }: SessionScope): string {
  return JSON.stringify([tenant, model, session])
}

/** Of a session of which nothing is known yet. */
const BASE_BYTES = 512
/** A hash is a string of 32 characters and its header. */
const HASH_BYTES = 64

class Remembered implements SessionFacts {
  readonly scope: SessionScope
  since: Date
  readonly #table: Table
  turns = 0
  tools: readonly ToolDefinition[] = []
  chain: Chain | undefined
  usedAt = 0
  /** What it is accounted for; 0: not yet; NaN: it was forgotten. */
  bytes = 0
  #epoch = 0
  #head: HeadMemory | undefined

  constructor(scope: SessionScope, table: Table, since: Date) {
    this.scope = scope
    this.#table = table
    this.since = since
  }

  dateFor({ requestClass, prompt }: Asking): Date {
    const begins = prompt.kind === 'chat' && !prompt.messages.some(({ role }) => role === 'assistant')
    if (begins && this.turns > 0 && !isSide(requestClass)) this.since = this.#table.date()
    return this.since
  }

  keepTools({ requestClass, prompt }: Asking, system: string): readonly ToolDefinition[] | undefined {
    if (!isSide(requestClass) || prompt.kind !== 'chat' || prompt.tools.length > 0 || this.tools.length === 0)
      return undefined
    return headOf(system) === this.#head?.text ? this.tools : undefined
  }

  settle({ request, chain, tools, system }: SessionTurn): readonly BlockHash[] | undefined {
    const { requestClass, contextEpoch } = request
    // They have prompts of their own: the session goes on from where it was.
    if (requestClass === 'compaction') this.#compareCompaction(chain, tools)
    if (isSide(requestClass)) return undefined
    const dead = this.#isRewritten(contextEpoch) ? leftBehind(this.chain, chain) : undefined
    if (typeof contextEpoch === 'number') this.#epoch = contextEpoch
    this.turns++
    this.chain = chain
    if (tools.length > 0 && !sameTools(tools, this.tools)) this.tools = tools.map(ownTool)
    this.#compareHead(system)
    if (this.bytes > 0) this.#table.account(this, this.#measure())
    return dead
  }

  #isRewritten(epoch: number | 'new' | undefined): boolean {
    if (epoch === 'new') return true
    // The first count that is seen says nothing: a client may resume a session that it compacted elsewhere.
    return epoch !== undefined && this.turns > 0 && epoch > this.#epoch
  }

  /** A summary of a long conversation that reuses nothing of it is dear, and its client can mend that. */
  #compareCompaction(chain: Chain, tools: readonly ToolDefinition[]): void {
    if (this.chain === undefined) return
    const blocks = this.chain.hashes.length
    const shared = blocks - (leftBehind(this.chain, chain)?.length ?? 0)
    if (shared * 2 >= blocks) return
    const why =
      tools.length === 0 && this.tools.length > 0 ? 'it is sent without the tools' : 'its prompt is another one'
    this.#table.tell(
      `a summary shares ${shared * BLOCK_TOKENS} tokens of the ${blocks * BLOCK_TOKENS} that its session has cached: ${why}`,
      { ...this.scope, sharedTokens: shared * BLOCK_TOKENS, cachedTokens: blocks * BLOCK_TOKENS },
    )
  }

  #compareHead(system: string): void {
    const { memory, change } = compareHead(this.#head, system)
    this.#head = memory
    if (change === undefined) return
    const { changed, compared, byte, isNumber } = change
    const what = isNumber ? 'a clock or a counter' : 'something that changes'
    this.#table.tell(
      `the system prompt contains ${what}: it changed in ${changed} of ${compared} turns at byte ${byte}; ` +
        'all that stands behind it is computed again every time',
      { ...this.scope, byte, changed, compared },
    )
  }

  #measure(): number {
    const tools = this.tools.reduce((sum, { name, json }) => sum + name.length + json.length, 0)
    const hashes = (this.chain?.hashes.length ?? 0) * HASH_BYTES
    return BASE_BYTES + 2 * (tools + (this.#head?.text.length ?? 0)) + hashes
  }
}

function isSide(requestClass: RequestClass | undefined): boolean {
  return requestClass === 'auxiliary' || requestClass === 'compaction'
}

/** Hashes of `old` behind what `live` shares with it; undefined: none. */
function leftBehind(old: Chain | undefined, live: Chain): readonly BlockHash[] | undefined {
  if (old === undefined || old.root !== live.root) return undefined
  let shared = 0
  while (shared < old.hashes.length && old.hashes[shared] === live.hashes[shared]) shared++
  return shared === old.hashes.length ? undefined : old.hashes.slice(shared)
}

function sameTools(a: readonly ToolDefinition[], b: readonly ToolDefinition[]): boolean {
  return a.length === b.length && a.every(({ json }, i) => json === b[i]?.json)
}

/** Definitions are cut out of a request's body, which would stay alive as a whole. */
function ownTool({ name, json }: ToolDefinition): ToolDefinition {
  return { name, json: Buffer.from(json).toString() }
}
