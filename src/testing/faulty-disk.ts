// A file system in memory that fails on demand: it loses what was not synced, tears, flips, fills up, errs and stalls.
// Invariant: without a fault it does what `FileDoor` says; a call that breaks the door's rules (a closed file, a path of
// nobody's making) is a plain Error, which the disk tier takes for its own bug.

import type { FileDoor, OpenFile } from '../cache/disk/file-door.js'

export type DiskOperation = 'open' | 'create' | 'read' | 'write' | 'truncate' | 'sync' | 'list' | 'unlink'

interface Stored {
  bytes: Buffer
  /** What survives a loss of power for sure. */
  durable: Buffer
  /** Byte ranges written since the last sync, in order. */
  unsynced: { at: number; bytes: Buffer }[]
  /** Whether the name itself survives. */
  named: boolean
}

interface Fault {
  readonly operation: DiskOperation
  readonly code: string
  remaining: number
}

const ERRNO: Readonly<Record<string, number>> = { EIO: -5, EACCES: -13, ENOENT: -2, EEXIST: -17, ENOSPC: -28 }
const SECTOR = 512

/** An error as the system gives it. */
export function systemError(code: string, what: string): Error {
  return Object.assign(new Error(`${code}: ${what}`), { code, errno: ERRNO[code] ?? -5, syscall: what })
}

export class FaultyDisk {
  /** Bytes of the whole volume. */
  capacityBytes = Number.POSITIVE_INFINITY
  /** Every call that reached the disk. */
  readonly counts = new Map<DiskOperation, number>()
  readonly #files = new Map<string, Stored>()
  readonly #removed = new Map<string, Stored>()
  readonly #locks = new Set<string>()
  #faults: Fault[] = []
  #stalled: { readonly operations: ReadonlySet<DiskOperation>; readonly until: Promise<void> } | undefined
  #generation = 0

  /** The next `times` calls of `operation` fail with `code`; a failing write leaves half of its bytes. */
  fail(operation: DiskOperation, code: string, times = Number.POSITIVE_INFINITY): void {
    this.#faults.push({ operation, code, remaining: times })
  }

  /** No more faults. */
  heal(): void {
    this.#faults = []
    this.capacityBytes = Number.POSITIVE_INFINITY
  }

  /** Calls of these operations hang from now on, until the returned function is called. */
  stall(...operations: DiskOperation[]): () => void {
    let go: () => void = () => undefined
    const until = new Promise<void>((resolve) => {
      go = resolve
    })
    this.#stalled = { operations: new Set(operations), until }
    return () => {
      this.#stalled = undefined
      go()
    }
  }

  /**
   * The power goes. What was not synced survives by the sector or not, as `random` (in [0, 1)) says; open files and locks
   * are gone with their process.
   */
  crash(random: () => number): void {
    this.#generation++
    this.#locks.clear()
    for (const [path, file] of this.#removed) if (random() < 0.5) this.#files.set(path, file)
    this.#removed.clear()
    for (const [path, file] of this.#files) {
      if (!file.named && random() < 0.3) {
        this.#files.delete(path)
        continue
      }
      let bytes = Buffer.from(file.durable)
      for (const write of file.unsynced) {
        for (let at = 0; at < write.bytes.length; at += SECTOR) {
          if (random() < 0.3) continue
          bytes = overwrite(bytes, write.bytes.subarray(at, at + SECTOR), write.at + at)
        }
      }
      this.#files.set(path, { bytes, durable: Buffer.from(bytes), unsynced: [], named: true })
    }
  }

  /** The process dies: open files and locks are gone, the system keeps what was written. */
  kill(): void {
    this.#generation++
    this.#locks.clear()
  }

  /** Paths of all files. */
  get paths(): string[] {
    return [...this.#files.keys()].sort()
  }

  /** Bytes of all files. */
  get usedBytes(): number {
    return [...this.#files.values()].reduce((sum, { bytes }) => sum + bytes.length, 0)
  }

  /** The bytes of a file, to look at. @throws Error when there is none. */
  contents(path: string): Buffer {
    return this.#stored(path).bytes
  }

  /** Puts other bytes in a file's place, as a fault of the medium. */
  corrupt(path: string, bytes: Buffer): void {
    this.#files.set(path, { bytes, durable: Buffer.from(bytes), unsynced: [], named: true })
  }

  /** The file system as one process sees it: after `crash` or `kill` all its calls hang, for it is gone. */
  door(): FileDoor {
    const generation = this.#generation
    const enter = (operation: DiskOperation) => this.#enter(operation, generation)
    return {
      open: async (path) => {
        await enter('open')
        if (!this.#files.has(path)) throw systemError('ENOENT', `open ${path}`)
        return this.#handle(path, this.#stored(path), enter)
      },
      create: async (path) => {
        await enter('create')
        if (this.#files.has(path)) throw systemError('EEXIST', `create ${path}`)
        const file = { bytes: Buffer.alloc(0), durable: Buffer.alloc(0), unsynced: [], named: false }
        this.#files.set(path, file)
        return this.#handle(path, file, enter)
      },
      unlink: async (path) => {
        await enter('unlink')
        const file = this.#stored(path)
        this.#files.delete(path)
        if (file.named) this.#removed.set(path, file)
      },
      list: async (folder) => {
        await enter('list')
        return this.paths.filter((path) => path.startsWith(`${folder}/`)).map((path) => path.slice(folder.length + 1))
      },
      makeFolder: () => enter('create'),
      syncFolder: async () => {
        await enter('sync')
        for (const file of this.#files.values()) file.named = true
        this.#removed.clear()
      },
      freeBytes: async () => Math.max(0, this.capacityBytes - this.usedBytes),
      lock: (folder) => this.#lock(folder, generation),
    }
  }

  async #lock(folder: string, generation: number): Promise<() => Promise<void>> {
    if (this.#locks.has(folder)) throw new Error(`the cache folder ${folder} belongs to another process`)
    this.#locks.add(folder)
    return async () => {
      if (generation === this.#generation) this.#locks.delete(folder)
    }
  }

  #stored(path: string): Stored {
    const file = this.#files.get(path)
    if (file === undefined) throw new Error(`no file at ${path}`)
    return file
  }

  async #enter(operation: DiskOperation, generation: number): Promise<void> {
    this.counts.set(operation, (this.counts.get(operation) ?? 0) + 1)
    if (this.#stalled?.operations.has(operation)) await this.#stalled.until
    await new Promise((resolve) => setImmediate(resolve))
    if (generation !== this.#generation) await new Promise(() => undefined)
    if (operation === 'write') return
    this.#fault(operation)
  }

  #fault(operation: DiskOperation): void {
    const fault = this.#faults.find((one) => one.operation === operation && one.remaining > 0)
    if (fault === undefined) return
    fault.remaining--
    throw systemError(fault.code, operation)
  }

  #handle(path: string, file: Stored, enterDoor: (operation: DiskOperation) => Promise<void>): OpenFile {
    let open = true
    const enter = async (operation: DiskOperation) => {
      if (!open) throw new Error(`${path} is closed`)
      await enterDoor(operation)
    }
    return {
      read: async (into, position) => {
        await enter('read')
        let at = position
        for (const part of into) at += file.bytes.subarray(at).copy(part, 0)
        return Math.max(0, at - position)
      },
      write: async (from, position) => {
        await enter('write')
        const bytes = Buffer.concat(from)
        const room = this.capacityBytes - this.usedBytes - Math.max(0, position + bytes.length - file.bytes.length)
        try {
          this.#fault('write')
          if (room < 0) throw systemError('ENOSPC', 'write')
        } catch (error) {
          this.#put(file, bytes.subarray(0, Math.min(bytes.length >> 1, Math.max(0, bytes.length + room))), position)
          throw error
        }
        this.#put(file, bytes, position)
      },
      truncate: async (length) => {
        await enter('truncate')
        file.bytes = Buffer.from(file.bytes.subarray(0, length))
        file.durable = Buffer.from(file.durable.subarray(0, length))
        file.unsynced = file.unsynced
          .map(({ at, bytes }) => ({ at, bytes: bytes.subarray(0, Math.max(0, length - at)) }))
          .filter(({ bytes }) => bytes.length > 0)
      },
      size: async () => file.bytes.length,
      sync: async () => {
        await enter('sync')
        file.durable = Buffer.from(file.bytes)
        file.unsynced = []
      },
      close: async () => {
        open = false
      },
    }
  }

  #put(file: Stored, bytes: Buffer, position: number): void {
    file.bytes = overwrite(file.bytes, bytes, position)
    file.unsynced.push({ at: position, bytes: Buffer.from(bytes) })
  }
}

/** `bytes` over `target` from `position` on; a gap is zeros, as in a sparse file. */
function overwrite(target: Buffer, bytes: Buffer, position: number): Buffer<ArrayBuffer> {
  const length = bytes.length === 0 ? target.length : Math.max(target.length, position + bytes.length)
  const out = Buffer.alloc(length)
  target.copy(out)
  bytes.copy(out, position)
  return out
}
