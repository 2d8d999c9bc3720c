// Answers as they were sampled, kept for the turns that send them back. Contract, and the store that both kinds share: a
// bounded memory with an index, and under the disk kind a log below it. Invariant: keeping returns at once, finding never
// blocks the event loop, and any fault of the disk is an answer that is not found. Only the tenant that got an answer can
// find it: its salt is in every key (transcript.ts), and no file holds replies of two tenants.

import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { Reply } from '../core/reply.js'
import { forgetTranscripts, type TranscriptKey } from './transcript.js'

/** A reply with all that it can be found and told apart by. */
export interface KeptReply {
  /** Salt of the tenant that it was for. */
  readonly tenant: string
  readonly session?: string
  /** Of the conversation with this answer at its end. */
  readonly transcript: TranscriptKey
  /** Of its first call and what it says: `callKey`. */
  readonly call?: string
  /** Names the kept replies that its prompt was made with: `lineageOf`. */
  readonly after: string
  readonly reply: Reply
}

/** Found again; of a session's key only a digest is stored. */
export interface FoundReply {
  readonly reply: Reply
  readonly after: string
  readonly session: string | undefined
}

export interface ReplyStatus {
  readonly replies: number
  readonly memoryBytes: number
  readonly diskBytes: number
  /** Reads, writes and records that failed. */
  readonly faults: number
}

export interface ReplyStore {
  keep(kept: KeptReply): void
  /** Whether something was kept under a key of either kind; it may still turn out to be unreadable. */
  has(key: string): boolean
  /** What was kept under a key of either kind, newest first; at once where all of it is in memory. */
  find(key: string): readonly FoundReply[] | Promise<readonly FoundReply[]>
  /**
   * Forgets a tenant's replies, or a session's; resolves when their bytes are overwritten.
   * @throws what the disk says, when it cannot be overwritten: then it is not erased.
   */
  erase(whose: { readonly tenant: string; readonly session?: string }): Promise<void>
  status(): ReplyStatus
  /** Resolves when all that was kept so far is written, or was given up. */
  flush(): Promise<void>
  close(): Promise<void>
}

/** Where a log keeps one; opaque to the store. */
export interface ReplyPlace {
  /** Of its record. */
  readonly bytes: number
}

/** What the store knows of a reply without having it. */
export interface ReplySlot {
  /** Digest of the tenant's salt. */
  readonly tenant: string
  /** Digest of the session's key. */
  readonly session: string | undefined
  readonly transcript: string
  readonly call: string | undefined
  readonly after: string
  readonly id: string
  /** Undefined: in memory alone. */
  place: ReplyPlace | undefined
  /** Rises with every use; 0: not used since it was written. */
  usedAt: number
}

/** The disk below a store. */
export interface ReplyLog {
  readonly usedBytes: number
  readonly faults: number
  /** Gives the slot a place at once, and writes it there in time unless the place is taken away again. */
  append(slot: ReplySlot, reply: Reply): void
  /** Undefined: it is not there, or not whole. */
  read(slot: ReplySlot): Promise<Reply | undefined>
  /** By digests; undefined: all of the tenant's. */
  erase(tenant: string, session: string | undefined): Promise<void>
  flush(): Promise<void>
  close(): Promise<void>
}

/** The log tells when it gave up a slot's place. */
export type OpenLog = (events: { lost(slot: ReplySlot): void }) => Promise<{ log: ReplyLog; slots: ReplySlot[] }>

/** Different answers to the same conversation that are kept. */
const ANSWERS = 8

/** In memory alone, `memoryBytes` of it. */
export function createMemoryReplies(options: { readonly memoryBytes: number }): ReplyStore {
  return new Replies(options.memoryBytes)
}

/** In memory, and in a log that outlives the process. @throws what makes the log's folder unusable. */
export async function openReplies(options: {
  readonly memoryBytes: number
  readonly log: OpenLog
}): Promise<ReplyStore> {
  const store = new Replies(options.memoryBytes)
  const { log, slots } = await options.log({ lost: (slot) => store.onLost(slot) })
  store.adopt(log, slots)
  return store
}

/** Digest under which a tenant is stored. */
function tenantDigest(tenant: string): string {
  return hash('sha256', JSON.stringify(['refrain-replies', tenant]), 'hex').slice(0, 32)
}

/** Digest under which a session's key is stored. */
export function sessionDigest(tenant: string, session: string): string {
  return hash('sha256', JSON.stringify(['refrain-session', tenant, session]), 'hex').slice(0, 16)
}

/** Names a sequence of kept replies: what a prompt was made with. */
export function lineageOf(replies: readonly Pick<Reply, 'id'>[]): string {
  return hash('sha256', replies.map(({ id }) => id).join(' '), 'hex').slice(0, 16)
}

class Replies implements ReplyStore {
  readonly #slots = new Map<string, ReplySlot[]>()
  readonly #memory: LRUCache<ReplySlot, Reply>
  #log: ReplyLog | undefined
  #count = 0
  #uses = 0

  constructor(memoryBytes: number) {
    this.#memory = new LRUCache<ReplySlot, Reply>({
      // 0 is the library's word for no bound.
      maxSize: Math.max(1, memoryBytes),
      sizeCalculation: bytesOf,
      dispose: (_, slot, reason) => {
        if (reason === 'evict' && slot.place === undefined) this.#unlist(slot)
      },
    })
  }

  adopt(log: ReplyLog, slots: readonly ReplySlot[]): void {
    this.#log = log
    for (const slot of slots) {
      // A record that was moved while the process died is there twice.
      const same = this.#slots
        .get(slot.transcript)
        ?.find(({ id, session }) => id === slot.id && session === slot.session)
      if (same !== undefined) this.#remove(same)
      this.#add(slot)
    }
  }

  keep({ tenant, session, transcript, call, after, reply }: KeptReply): void {
    const digest = session === undefined ? undefined : sessionDigest(tenant, session)
    const same = this.#slots.get(transcript)?.find(({ id, session: own }) => id === reply.id && own === digest)
    if (same !== undefined) {
      same.usedAt = ++this.#uses
      this.#memory.set(same, reply)
      return
    }
    const { id } = reply
    const owner = tenantDigest(tenant)
    const slot: ReplySlot = { tenant: owner, session: digest, transcript, call, after, id, place: undefined, usedAt: 0 }
    this.#add(slot)
    this.#log?.append(slot, reply)
    this.#memory.set(slot, reply)
    // What is larger than all of memory is not taken, and the library says nothing.
    if (slot.place === undefined && !this.#memory.has(slot)) this.#remove(slot)
  }

  has(key: string): boolean {
    return this.#slots.has(key)
  }

  find(key: string): readonly FoundReply[] | Promise<readonly FoundReply[]> {
    const found = (this.#slots.get(key) ?? []).map((slot) => this.#read(slot)).reverse()
    return found.some((each) => each instanceof Promise) ? present(found) : (found as FoundReply[])
  }

  #read(slot: ReplySlot): FoundReply | Promise<FoundReply | undefined> {
    slot.usedAt = ++this.#uses
    const { after, session } = slot
    const reply = this.#memory.get(slot)
    return reply === undefined ? this.#bringUp(slot) : { reply, after, session }
  }

  async #bringUp(slot: ReplySlot): Promise<FoundReply | undefined> {
    const { after, session } = slot
    const reply = await this.#log?.read(slot)
    if (reply === undefined) {
      this.#remove(slot)
      return undefined
    }
    // It may have been erased in the meantime.
    if (this.#slots.get(slot.transcript)?.includes(slot)) this.#memory.set(slot, reply)
    return { reply, after, session }
  }

  async erase({ tenant, session }: { readonly tenant: string; readonly session?: string }): Promise<void> {
    const owner = tenantDigest(tenant)
    const digest = session === undefined ? undefined : sessionDigest(tenant, session)
    for (const slots of [...this.#slots.values()]) {
      for (const slot of [...slots]) {
        if (slot.tenant === owner && (digest === undefined || slot.session === digest)) this.#remove(slot)
      }
    }
    forgetTranscripts()
    await this.#log?.erase(owner, digest)
  }

  status(): ReplyStatus {
    return {
      replies: this.#count,
      memoryBytes: this.#memory.calculatedSize,
      diskBytes: this.#log?.usedBytes ?? 0,
      faults: this.#log?.faults ?? 0,
    }
  }

  async flush(): Promise<void> {
    await this.#log?.flush()
  }

  async close(): Promise<void> {
    await this.#log?.close()
  }

  onLost(slot: ReplySlot): void {
    slot.place = undefined
    if (!this.#memory.has(slot)) this.#remove(slot)
  }

  #add(slot: ReplySlot): void {
    this.#count++
    for (const key of keysOf(slot)) {
      const slots = this.#slots.get(key)
      if (slots === undefined) this.#slots.set(key, [slot])
      else slots.push(slot)
    }
    const siblings = this.#slots.get(slot.transcript) ?? []
    if (siblings.length > ANSWERS) this.#remove(siblings[0] as ReplySlot)
    // The same call may be made in any number of conversations.
    const calls = slot.call === undefined ? undefined : this.#slots.get(slot.call)
    if (calls !== undefined && calls.length > ANSWERS) calls.shift()
  }

  #remove(slot: ReplySlot): void {
    this.#unlist(slot)
    this.#memory.delete(slot)
    slot.place = undefined
  }

  #unlist(slot: ReplySlot): void {
    if (!this.#slots.get(slot.transcript)?.includes(slot)) return
    this.#count--
    for (const key of keysOf(slot)) {
      const left = this.#slots.get(key)?.filter((each) => each !== slot) ?? []
      if (left.length === 0) this.#slots.delete(key)
      else this.#slots.set(key, left)
    }
  }
}

async function present<T>(all: readonly (T | Promise<T | undefined>)[]): Promise<T[]> {
  const settled = await Promise.all(all)
  return settled.filter((each): each is Awaited<T> => each !== undefined)
}

function keysOf({ transcript, call }: ReplySlot): readonly string[] {
  return call === undefined ? [transcript] : [transcript, call]
}

/** What an entry weighs beside its texts and ids: the slot, its keys, the index. */
const SLOT_BYTES = 600

function bytesOf({ opening, rest, ids, message }: Reply): number {
  const { content, reasoning = '', toolCalls = [] } = message
  const calls = toolCalls.reduce((sum, call) => sum + call.id.length + call.name.length + call.arguments.length, 0)
  return SLOT_BYTES + 4 * ids.length + 2 * (opening.length + rest.length + content.length + reasoning.length + calls)
}
