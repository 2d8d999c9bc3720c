// The disk below the kept replies: append-only segments, each one tenant's, indexed at boot, so that replies outlive a
// restart and a kill. Invariant: one writer, in order, behind everybody's back; a fault loses replies and nothing else; over
// its bound the oldest segment goes, and what of it was used lately is written anew.
//
//   <folder>/<digest of the tenant's salt>-<number>.replies        numbers rise over all tenants

import { join } from 'node:path'
import type { Reply } from '../core/reply.js'
import { note } from '../core/signals.js'
import type { OpenLog, ReplyLog, ReplyPlace, ReplySlot } from './replies.js'
import { decodeRecord, encodeRecord, erasedRecord, scanRecord } from './reply-record.js'

/** What of a file system the log asks. */
export interface ReplyFile {
  read(into: readonly Uint8Array[], position: number): Promise<number>
  write(from: readonly Uint8Array[], position: number): Promise<void>
  size(): Promise<number>
  sync(): Promise<void>
  close(): Promise<void>
}

export interface ReplyFiles {
  open(path: string): Promise<ReplyFile>
  create(path: string): Promise<ReplyFile>
  unlink(path: string): Promise<void>
  list(folder: string): Promise<string[]>
  makeFolder(folder: string): Promise<void>
}

export interface ReplyLogOptions {
  readonly folder: string
  readonly files: ReplyFiles
  readonly diskBytes: number
}

/** Records that wait for a slow disk; more are not written. */
const WAITING_BYTES = 32 * 1024 * 1024
/** A segment is a part of the bound, so that one can go without much being lost. */
const SEGMENTS = 16
const MIN_SEGMENT_BYTES = 16 * 1024
const MAX_SEGMENT_BYTES = 16 * 1024 * 1024

interface Segment {
  readonly tenant: string
  readonly path: string
  readonly number: number
  readonly file: ReplyFile
  bytes: number
  readonly slots: Set<ReplySlot>
}

interface Place extends ReplyPlace {
  /** Undefined: it waits to be written, and is here. */
  readonly segment: Segment | undefined
  readonly offset: number
  readonly waiting: Reply | undefined
}

/** Opens the log in `folder` and reads what is in it; segments that can't be read are left out. */
export function replyLog(options: ReplyLogOptions): OpenLog {
  return async ({ lost }) => {
    const log = new Log(options, lost)
    return { log, slots: await log.load() }
  }
}

class Log implements ReplyLog {
  readonly #options: ReplyLogOptions
  readonly #lost: (slot: ReplySlot) => void
  readonly #segmentBytes: number
  /** Oldest first. */
  readonly #segments: Segment[] = []
  /** Paths of those that could not be read. */
  readonly #unread: { readonly tenant: string; readonly path: string }[] = []
  /** Where each tenant's next record goes. */
  readonly #open = new Map<string, Segment>()
  /** All work on the files, one after the other. */
  #work: Promise<void> = Promise.resolve()
  #waitingBytes = 0
  #number = 0
  #failing = false
  #closed = false
  faults = 0

  constructor(options: ReplyLogOptions, lost: (slot: ReplySlot) => void) {
    this.#options = options
    this.#lost = lost
    const share = Math.floor(options.diskBytes / SEGMENTS)
    this.#segmentBytes = Math.min(MAX_SEGMENT_BYTES, Math.max(MIN_SEGMENT_BYTES, share))
  }

  get usedBytes(): number {
    return this.#segments.reduce((sum, { bytes }) => sum + bytes, 0)
  }

  // --- loading -------------------------------------------------------------------------------------------------------

  async load(): Promise<ReplySlot[]> {
    const { files, folder } = this.#options
    await files.makeFolder(folder)
    const names = await files.list(folder)
    const found = names.flatMap((name) => {
      const [, tenant, number] = /^([0-9a-f]{32})-(\d{8,15})\.replies$/.exec(name) ?? []
      return tenant === undefined ? [] : [{ tenant, path: join(folder, name), number: Number(number) }]
    })
    found.sort((a, b) => a.number - b.number)
    this.#number = (found.at(-1)?.number ?? -1) + 1
    const slots: ReplySlot[] = []
    for (const each of found) slots.push(...(await this.#loadSegment(each)))
    return slots
  }

  async #loadSegment({ tenant, path, number }: Pick<Segment, 'tenant' | 'path' | 'number'>): Promise<ReplySlot[]> {
    const slots: ReplySlot[] = []
    try {
      const file = await this.#options.files.open(path)
      const bytes = await wholeOf(file)
      const segment: Segment = { tenant, path, number, file, bytes: bytes.length, slots: new Set() }
      this.#segments.push(segment)
      let at = 0
      for (let record = scanRecord(bytes, at); record !== undefined; record = scanRecord(bytes, at)) {
        at += record.bytes
        if (record.head === undefined) continue
        const place: Place = { segment, offset: record.offset, bytes: record.bytes, waiting: undefined }
        const slot: ReplySlot = { tenant, ...record.head, place, usedAt: 0 }
        segment.slots.add(slot)
        slots.push(slot)
      }
      // Behind a torn record nothing is written any more: the next one begins a new segment.
      if (at === bytes.length) this.#open.set(tenant, segment)
      else this.#open.delete(tenant)
    } catch (error) {
      this.#unread.push({ tenant, path })
      this.#fault(`cannot read ${path}`, error)
    }
    return slots
  }

  // --- writing -------------------------------------------------------------------------------------------------------

  append(slot: ReplySlot, reply: Reply): void {
    const record = encodeRecord(slot, reply)
    if (this.#closed || record.length > this.#segmentBytes || this.#waitingBytes + record.length > WAITING_BYTES) return
    const waiting: Place = { segment: undefined, offset: 0, bytes: record.length, waiting: reply }
    slot.place = waiting
    this.#waitingBytes += record.length
    this.#work = this.#work.then(async () => {
      // Removed from the store meanwhile, or erased.
      if (slot.place === waiting) await this.#write(slot, record)
      this.#waitingBytes -= record.length
    })
  }

  async #write(slot: ReplySlot, record: Buffer): Promise<void> {
    try {
      const segment = await this.#segmentFor(slot.tenant, record.length)
      await segment.file.write([record], segment.bytes)
      this.#settle(slot, segment, record.length)
      this.#failing = false
    } catch (error) {
      this.#fault('cannot write', error)
      this.#lost(slot)
      return
    }
    while (this.usedBytes > this.#options.diskBytes && this.#segments.length > 1) await this.#reclaim()
  }

  #settle(slot: ReplySlot, segment: Segment, bytes: number): void {
    const place: Place = { segment, offset: segment.bytes, bytes, waiting: undefined }
    slot.place = place
    segment.slots.add(slot)
    segment.bytes += bytes
  }

  async #segmentFor(tenant: string, bytes: number): Promise<Segment> {
    const open = this.#open.get(tenant)
    if (open !== undefined && open.bytes + bytes <= this.#segmentBytes) return open
    const number = this.#number++
    const path = join(this.#options.folder, `${tenant}-${String(number).padStart(8, '0')}.replies`)
    const file = await this.#options.files.create(path)
    const segment: Segment = { tenant, path, number, file, bytes: 0, slots: new Set() }
    this.#segments.push(segment)
    this.#open.set(tenant, segment)
    return segment
  }

  /** The oldest segment goes. Up to half of it, what was used last, moves to the end of the log. */
  async #reclaim(): Promise<void> {
    const oldest = this.#segments.shift() as Segment
    if (this.#open.get(oldest.tenant) === oldest) this.#open.delete(oldest.tenant)
    const latest = [...oldest.slots].sort((a, b) => b.usedAt - a.usedAt)
    let left = oldest.bytes / 2
    try {
      for (const slot of latest) {
        const bytes = slot.place?.bytes ?? 0
        if (slot.usedAt > 0 && bytes <= left && (await this.#move(slot, oldest))) left -= bytes
        else this.#lost(slot)
      }
      await oldest.file.close()
      await this.#options.files.unlink(oldest.path)
    } catch (error) {
      this.#fault(`cannot make room in ${this.#options.folder}`, error)
      for (const slot of latest) if ((slot.place as Place | undefined)?.segment === oldest) this.#lost(slot)
    }
  }

  async #move(slot: ReplySlot, from: Segment): Promise<boolean> {
    const place = slot.place as Place | undefined
    if (place?.segment !== from) return false
    const record = Buffer.alloc(place.bytes)
    if ((await from.file.read([record], place.offset)) < record.length) return false
    const segment = await this.#segmentFor(from.tenant, record.length)
    await segment.file.write([record], segment.bytes)
    if (slot.place === place) this.#settle(slot, segment, record.length)
    else segment.bytes += record.length
    slot.usedAt = 0
    return true
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  async read(slot: ReplySlot): Promise<Reply | undefined> {
    const place = slot.place as Place | undefined
    if (place?.segment === undefined) return place?.waiting
    const record = Buffer.alloc(place.bytes)
    try {
      const read = await place.segment.file.read([record], place.offset)
      const reply = read === record.length ? decodeRecord(record, slot.id) : undefined
      if (reply !== undefined) return reply
      if (slot.place === place) this.#fault(`${place.segment.path}: a record is damaged`)
    } catch (error) {
      if (slot.place === place) this.#fault('cannot read', error)
    }
    // It moved, or was given up, while it was read.
    return slot.place === place ? undefined : this.read(slot)
  }

  // --- forgetting ----------------------------------------------------------------------------------------------------

  erase(tenant: string, session: string | undefined): Promise<void> {
    const done = this.#work.then(async () => {
      for (const segment of this.#segments.filter((each) => each.tenant === tenant)) {
        await this.#eraseIn(segment, session)
      }
      // Nobody knows what is in them.
      for (const each of this.#unread.filter((unread) => unread.tenant === tenant)) {
        await this.#options.files.unlink(each.path)
        this.#unread.splice(this.#unread.indexOf(each), 1)
      }
    })
    this.#work = done.catch(() => undefined)
    return done
  }

  async #eraseIn(segment: Segment, session: string | undefined): Promise<void> {
    const bytes = await wholeOf(segment.file)
    let at = 0
    for (let record = scanRecord(bytes, at); record !== undefined; record = scanRecord(bytes, at)) {
      at += record.bytes
      if (record.head === undefined || (session !== undefined && record.head.session !== session)) continue
      await segment.file.write([erasedRecord(bytes, record)], record.offset)
    }
    // Nobody knows any more whose a torn end is.
    if (at < bytes.length) await segment.file.write([Buffer.alloc(bytes.length - at)], at)
    await segment.file.sync()
    if (session !== undefined) return
    await segment.file.close()
    await this.#options.files.unlink(segment.path)
    this.#segments.splice(this.#segments.indexOf(segment), 1)
    if (this.#open.get(segment.tenant) === segment) this.#open.delete(segment.tenant)
  }

  flush(): Promise<void> {
    return this.#work
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#work
    for (const { file } of this.#segments) {
      await file.sync().catch((error: unknown) => this.#fault('cannot sync', error))
      await file.close()
    }
  }

  /** Told once until something succeeds again. */
  #fault(what: string, error?: unknown): void {
    this.faults++
    if (this.#failing) return
    this.#failing = true
    const reason = error instanceof Error ? `: ${error.message}` : ''
    note.publish({ level: 'warn', text: `kept replies: ${what}${reason}; the turns concerned are tokenized anew` })
  }
}

async function wholeOf(file: ReplyFile): Promise<Buffer> {
  const bytes = Buffer.alloc(await file.size())
  return bytes.subarray(0, await file.read([bytes], 0))
}
