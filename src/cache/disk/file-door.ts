// The door to the file system: all that the disk tier asks of one, so that tests can put a faulty disk in its place.
// Invariant: every call is asynchronous (libuv's threads do the waiting) and rejects with the system's error code.

import { constants } from 'node:fs'
import { type FileHandle, mkdir, open, readdir, statfs, unlink } from 'node:fs/promises'
import { lockFolder } from './folder-lock.js'

export interface OpenFile {
  /** Fills the buffers in turn from `position` on; returns the bytes read, fewer only at the end of the file. */
  read(into: readonly Uint8Array[], position: number): Promise<number>
  /** Writes all bytes of the buffers in turn from `position` on, or rejects; then any part of them may be written. */
  write(from: readonly Uint8Array[], position: number): Promise<void>
  truncate(length: number): Promise<void>
  size(): Promise<number>
  /** After it, what was written survives a loss of power. */
  sync(): Promise<void>
  close(): Promise<void>
}

export interface FileDoor {
  /** The file at `path` for reading and writing. */
  open(path: string): Promise<OpenFile>
  /** A new file, readable by its owner alone (0600). Rejects when it exists. */
  create(path: string): Promise<OpenFile>
  unlink(path: string): Promise<void>
  /** Names in a folder. */
  list(folder: string): Promise<string[]>
  /** Makes a folder, with its parents, that only its owner may enter (0700); one that exists stays as it is. */
  makeFolder(folder: string): Promise<void>
  /** After it, names made and removed in `folder` survive a loss of power. */
  syncFolder(folder: string): Promise<void>
  /** Bytes that may still be written to the volume of `folder`. */
  freeBytes(folder: string): Promise<number>
  /**
   * Makes this process (and this call in it) the only owner of `folder` until the returned function is called or the
   * process ends in any way.
   * @throws Error naming the owner when there is one.
   */
  lock(folder: string): Promise<() => Promise<void>>
}

/** The file system of the machine. */
export const systemFiles: FileDoor = {
  async open(path) {
    return openFile(await open(path, constants.O_RDWR))
  },
  async create(path) {
    return openFile(await open(path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, 0o600))
  },
  unlink,
  list: (folder) => readdir(folder),
  async makeFolder(folder) {
    await mkdir(folder, { recursive: true, mode: 0o700 })
  },
  async syncFolder(folder) {
    const handle = await open(folder, constants.O_RDONLY)
    try {
      await handle.sync()
    } finally {
      await handle.close()
    }
  },
  async freeBytes(folder) {
    const { bavail, bsize } = await statfs(folder)
    return bavail * bsize
  },
  lock: lockFolder,
}

function openFile(handle: FileHandle): OpenFile {
  return {
    async read(into, position) {
      const total = into.reduce((sum, part) => sum + part.length, 0)
      let done = 0
      while (done < total) {
        const { bytesRead } = await handle.readv(rest(into, done), position + done)
        if (bytesRead === 0) break
        done += bytesRead
      }
      return done
    },
    async write(from, position) {
      const total = from.reduce((sum, part) => sum + part.length, 0)
      let done = 0
      while (done < total) {
        const { bytesWritten } = await handle.writev(rest(from, done), position + done)
        if (bytesWritten === 0) throw Object.assign(new Error('nothing could be written'), { code: 'EIO' })
        done += bytesWritten
      }
    },
    truncate: (length) => handle.truncate(length),
    size: async () => (await handle.stat()).size,
    sync: () => handle.datasync(),
    close: () => handle.close(),
  }
}

/** What remains of `parts` after their first `done` bytes: one system call may move less than asked. */
function rest(parts: readonly Uint8Array[], done: number): Uint8Array[] {
  let skip = done
  const left: Uint8Array[] = []
  for (const part of parts) {
    if (skip < part.length) left.push(skip === 0 ? part : part.subarray(skip))
    skip = Math.max(0, skip - part.length)
  }
  return left
}
