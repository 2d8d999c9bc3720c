// Who sits in which slot of a llama-server: one session, one slot; its state goes to a file before the slot is given away
// and comes back before the session's next turn. Invariant: every request names its slot, so that the server never gives a
// session's slot to another by itself; a state is used only where its tokens and its model are those that were saved; what
// cannot be saved or restored is computed again. https://github.com/ggml-org/llama.cpp/tree/master/tools/server

import { createHash } from 'node:crypto'
import type { Clock } from '../../core/clock.js'
import { RefrainError } from '../../core/errors.js'
import { note } from '../../core/signals.js'
import type { RouteQuery } from '../../router/contract.js'
import { type Remote, RemoteFault, type RemoteUsage, type Setting } from './contract.js'
import type { SlotRecord, SlotRecords } from './slot-records.js'

export interface SlotOptions {
  /** For a slot to become free. */
  readonly waitMs: number
  /** Rest of a session after which its slot is saved, so that it outlives the server's end; 0: only when it is given away. */
  readonly saveAfterMs: number
}

export interface SlotParts {
  /** Those of kind llama-cpp have slots. */
  remotes(): readonly Remote[]
  readonly records: SlotRecords
  readonly clock: Clock
}

/** A place for one request. */
export interface SlotSeat {
  readonly settings: readonly Setting[]
  leave(usage: RemoteUsage | undefined): void
}

export interface SlotCounts {
  saved: number
  restored: number
  /** Saves and restores that came to nothing. */
  failed: number
}

/** Of a state as a file: gigabytes for large models, on a disk. */
const MOVE_MS = 60_000

interface Slot {
  readonly id: number
  holder: Holder | undefined
  /** Requests that sit there, and moves under way. */
  busy: number
  usedAt: number
  /** Resolves when the holder's state is there. */
  ready: Promise<void>
  cancelSave: () => void
}

/** A session in its slot. */
interface Holder {
  readonly key: string
  tail: string
  /** Of its last prompt, as the server counted; undefined: nothing was answered. */
  promptTokens: number | undefined
  /** The file says less than the slot. */
  isUnsaved: boolean
}

export class LlamaSlots {
  readonly #options: SlotOptions
  readonly #parts: SlotParts
  readonly #servers = new Map<string, SlotServer>()
  readonly counts: SlotCounts = { saved: 0, restored: 0, failed: 0 }

  constructor(options: SlotOptions, parts: SlotParts) {
    this.#options = options
    this.#parts = parts
  }

  /** Undefined: the member has no slots. @throws RefrainError `queue_timeout`; the signal's reason. */
  take(member: string, query: RouteQuery, signal: AbortSignal): Promise<SlotSeat> | undefined {
    return this.#server(member)?.take(query, signal)
  }

  /** The server was started anew: its slots are empty, its files are not. */
  emptied(member: string): void {
    this.#servers.delete(member)
  }

  /** Saves what its slots hold. */
  async close(): Promise<void> {
    await Promise.all([...this.#servers.values()].map((server) => server.saveAll()))
    await this.#parts.records.settled()
  }

  #server(member: string): SlotServer | undefined {
    const remote = this.#parts.remotes().find(({ id }) => id === member)
    const slots = remote?.facts?.kind === 'llama-cpp' ? (remote.facts.slots ?? 0) : 0
    if (remote === undefined || slots === 0) return undefined
    const known = this.#servers.get(member)
    if (known?.remote === remote && known.size === slots) return known
    const { records, clock } = this.#parts
    const server = new SlotServer(remote, slots, { ...this.#options, records, clock, counts: this.counts })
    this.#servers.set(member, server)
    return server
  }
}

interface ServerParts extends SlotOptions {
  readonly records: SlotRecords
  readonly clock: Clock
  readonly counts: SlotCounts
}

class SlotServer {
  readonly remote: Remote
  readonly #parts: ServerParts
  readonly #slots: readonly Slot[]
  /** By session: its state is on the way to its file. */
  readonly #saving = new Map<string, Promise<void>>()
  #waiters: (() => void)[] = []
  #fingerprint: Promise<string | undefined> | undefined
  #canSave = true

  constructor(remote: Remote, slots: number, parts: ServerParts) {
    this.remote = remote
    this.#parts = parts
    const none = () => undefined
    this.#slots = Array.from({ length: slots }, (_, id) => ({
      ...{ id, holder: undefined, busy: 0, usedAt: Number.NEGATIVE_INFINITY },
      ...{ ready: Promise.resolve(), cancelSave: none },
    }))
  }

  get size(): number {
    return this.#slots.length
  }

  async take(query: RouteQuery, signal: AbortSignal): Promise<SlotSeat> {
    const key = this.#keyOf(query)
    const until = this.#parts.clock.now() + this.#parts.waitMs
    let slot = this.#choose(key)
    while (slot === undefined) {
      await this.#room(until, signal)
      slot = this.#choose(key)
    }
    slot.busy++
    slot.cancelSave()
    slot.usedAt = this.#parts.clock.now()
    if (slot.holder?.key !== key) {
      const before = slot.holder
      const holder = { key, tail: tailOf(query), promptTokens: undefined, isUnsaved: false }
      slot.holder = holder
      slot.ready = this.#change(slot, before, holder)
    }
    await slot.ready
    return this.#seat(slot, query)
  }

  #seat(slot: Slot, query: RouteQuery): SlotSeat {
    const { holder } = slot
    let isOver = false
    return {
      settings: [{ key: 'id_slot', json: String(slot.id) }],
      leave: (usage) => {
        if (isOver) return
        isOver = true
        if (usage !== undefined && holder !== undefined) {
          holder.promptTokens = usage.promptTokens
          holder.tail = tailOf(query)
          holder.isUnsaved = true
        }
        this.#free(slot)
      },
    }
  }

  /** The session's own, an empty one, the one that was used longest ago; undefined: all are busy. */
  #choose(key: string): Slot | undefined {
    const own = this.#slots.find(({ holder }) => holder?.key === key)
    if (own !== undefined) return own
    const idle = this.#slots.filter(({ busy }) => busy === 0)
    const empty = idle.find(({ holder }) => holder === undefined)
    if (empty !== undefined) return empty
    return idle.reduce<Slot | undefined>((a, b) => (a === undefined || b.usedAt < a.usedAt ? b : a), undefined)
  }

  /**
   * A side request has a slot of its own: in its session's it would overwrite what the next turn goes on from. One that
   * goes on from a turn's whole prompt costs the next turn its answer at most, and elsewhere it would cost the prompt.
   */
  #keyOf(query: RouteQuery): string {
    const { tenant, session, model, requestClass, segments, isBeside = false } = query
    const isSide = !isBeside && (requestClass === 'auxiliary' || requestClass === 'compaction')
    if (isSide && this.#slots.length > 1) return `side\0${tenant}\0${model}`
    if (session !== undefined) return `${tenant}\0${session}\0${model}`
    // Followed by content: the session whose last prompt is a beginning of this one.
    const known = new Set(segments.hashes)
    const here = this.#slots.find(({ holder }) => holder !== undefined && known.has(holder.tail))?.holder
    const key = here?.key ?? this.#parts.records.following(this.remote.id, segments.hashes)?.key
    const prefix = `${tenant}\0`
    return key?.startsWith(prefix) ? key : `${prefix}${tailOf(query)}\0${model}`
  }

  async #change(slot: Slot, before: Holder | undefined, holder: Holder): Promise<void> {
    if (before !== undefined) await this.#save(slot, before)
    await this.#saving.get(holder.key)
    await this.#restore(slot, holder)
  }

  #free(slot: Slot): void {
    slot.busy--
    slot.usedAt = this.#parts.clock.now()
    if (slot.busy > 0) return
    const { saveAfterMs, clock } = this.#parts
    if (saveAfterMs > 0) slot.cancelSave = clock.after(saveAfterMs, () => void this.#rest(slot))
    const waiters = this.#waiters
    this.#waiters = []
    for (const wake of waiters) wake()
  }

  /** Saves it where it stands. */
  async #rest(slot: Slot): Promise<void> {
    if (slot.busy > 0 || slot.holder === undefined) return
    slot.busy++
    await this.#save(slot, slot.holder)
    slot.cancelSave = () => undefined
    slot.busy--
    for (const wake of this.#waiters.splice(0)) wake()
  }

  async saveAll(): Promise<void> {
    for (const slot of this.#slots) {
      slot.cancelSave()
      if (slot.holder !== undefined && slot.busy === 0) await this.#save(slot, slot.holder)
    }
    await Promise.all(this.#saving.values())
  }

  #room(until: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const over = (settle: () => void) => {
        cancel()
        signal.removeEventListener('abort', onAbort)
        this.#waiters = this.#waiters.filter((each) => each !== wake)
        settle()
      }
      const wake = () => over(resolve)
      const onAbort = () => over(() => reject(signal.reason))
      const { clock, waitMs } = this.#parts
      const late = () => new RefrainError('queue_timeout', `no slot of ${this.remote.id} was free in ${waitMs} ms`)
      const cancel = clock.after(Math.max(0, until - clock.now()), () => over(() => reject(late())))
      this.#waiters.push(wake)
      signal.addEventListener('abort', onAbort)
      if (signal.aborted) onAbort()
    })
  }

  // --- moving states -------------------------------------------------------------------------------------------------

  async #save(slot: Slot, holder: Holder): Promise<void> {
    if (!this.#canSave || !holder.isUnsaved || holder.promptTokens === undefined) return
    const saving = this.#saveNow(slot, holder, holder.promptTokens)
    this.#saving.set(holder.key, saving)
    await saving
    if (this.#saving.get(holder.key) === saving) this.#saving.delete(holder.key)
  }

  async #saveNow(slot: Slot, holder: Holder, promptTokens: number): Promise<void> {
    const { records, counts } = this.#parts
    const { key, tail } = holder
    const member = this.remote.id
    const fingerprint = await this.#ask()
    if (fingerprint === undefined) return
    const file = records.nameFor(member, key)
    // A file that is half written must not be taken for the old one.
    records.forget({ member, key })
    const { status, value } = await this.#move(slot, 'save', file)
    const tokens = countIn(value, 'n_saved')
    // The answer is 200 for a slot that is not there, too: the count tells.
    if (status === 200 && tokens >= promptTokens) {
      records.put({ member, key, file, tokens, fingerprint, tail })
      counts.saved++
      holder.isUnsaved = false
      return
    }
    counts.failed++
    const text = `${member} does not save slot ${slot.id}: status ${status}, ${tokens} of ${promptTokens} tokens`
    if (NO_ACTION.includes(status)) this.#canSave = false
    note.publish({ level: 'warn', text: this.#canSave ? text : `${text}; was it started with --slot-save-path?` })
  }

  async #restore(slot: Slot, holder: Holder): Promise<void> {
    const { records, counts } = this.#parts
    const record = records.get(this.remote.id, holder.key)
    if (record === undefined || !(await this.#fits(record))) return
    const { status, value } = await this.#move(slot, 'restore', record.file)
    if (status === 200 && countIn(value, 'n_restored') === record.tokens) {
      counts.restored++
      records.put(record)
      return
    }
    counts.failed++
    records.forget(record)
    note.publish({ level: 'warn', text: `${this.remote.id} does not restore ${record.file}: status ${status}` })
    // Whatever came in is not what was saved.
    if (status === 200) await this.#move(slot, 'erase', undefined)
  }

  async #fits(record: SlotRecord): Promise<boolean> {
    const fingerprint = await this.#ask()
    if (fingerprint !== undefined && fingerprint !== record.fingerprint) this.#parts.records.forget(record)
    return fingerprint === record.fingerprint
  }

  async #move(slot: Slot, action: 'save' | 'restore' | 'erase', filename: string | undefined) {
    try {
      const body = filename === undefined ? {} : { filename }
      return await this.remote.call('POST', `/slots/${slot.id}?action=${action}`, { body, timeoutMs: MOVE_MS })
    } catch (error) {
      if (!(error instanceof RemoteFault)) throw error
      // The request that comes behind it finds out for itself.
      return { status: 0, value: undefined }
    }
  }

  /** What a state depends on; undefined: it does not say. */
  #ask(): Promise<string | undefined> {
    this.#fingerprint ??= this.remote.call('GET', '/props').then(
      ({ status, value }) => (status === 200 ? fingerprintOf(value) : undefined),
      (error) => {
        if (!(error instanceof RemoteFault)) throw error
        this.#fingerprint = undefined
        return undefined
      },
    )
    return this.#fingerprint
  }
}

/** Without --slot-save-path there is no such action. */
const NO_ACTION = [404, 405, 501]

function tailOf({ segments, id }: RouteQuery): string {
  return segments.hashes.at(-1) ?? id
}

function countIn(value: unknown, name: string): number {
  const count = (value as Record<string, unknown> | undefined)?.[name]
  return typeof count === 'number' ? count : 0
}

function fingerprintOf(value: unknown): string {
  const props = (value ?? {}) as Record<string, unknown>
  const settings = (props['default_generation_settings'] ?? {}) as Record<string, unknown>
  const parts = [props['model_path'], props['model_alias'], props['build_info'], settings['n_ctx']]
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 24)
}
