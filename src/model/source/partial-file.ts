// A download in progress, hashed as it is written. It lives in a folder beside its target that belongs to one process at
// a time, so that two pulls at once never write into one file; a folder that was left behind (released, or its process
// died) is taken over by renaming it, which only one can win.
//
//   <target>.partial-<host>-<pid>-<random>/   data, origin.json      in use
//   <target>.partial-free-<random>/           data, origin.json      left for whoever pulls next
//
// Data is never truncated, only replaced: it may be a hard link to a file of the user's.

import { createHash, randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { type FileHandle, link, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { basename, dirname, join } from 'node:path'

/** Where bytes came from, and what must still hold there for them to be continued. */
export interface Origin {
  readonly url: string
  /** A strong ETag or a Last-Modified date, as the server gave it. */
  readonly validator: string
}

/** A folder of another host, or of a reused process id, counts as left behind after a day without a change. */
const ABANDONED_MS = 24 * 3600 * 1000

export class PartialFile {
  readonly folder: string
  #bytes = 0
  #hash = createHash('sha256')
  #handle: FileHandle | undefined
  #origin: Origin | undefined
  #gone = false

  readonly #target: string

  private constructor(target: string, folder: string) {
    this.#target = target
    this.folder = folder
  }

  /** A partial file for `target`, taken over where one was left behind. The target's folder is made. */
  static async claim(target: string): Promise<PartialFile> {
    await mkdir(dirname(target), { recursive: true })
    const own = ownFolder(target)
    for (const left of await abandoned(target)) {
      if (await renamed(left, own)) return new PartialFile(target, own)
    }
    await mkdir(own)
    return new PartialFile(target, own)
  }

  get data(): string {
    return join(this.folder, 'data')
  }

  /** Bytes that are there and hashed. */
  get bytes(): number {
    return this.#bytes
  }

  /** Undefined: what is there cannot be continued. */
  get origin(): Origin | undefined {
    return this.#origin
  }

  /** Keeps what an earlier attempt got from `url` (and hashes it), or starts anew. */
  async resume(url: string): Promise<void> {
    const origin = await this.#storedOrigin()
    if (origin?.url !== url) return this.restart(undefined)
    await this.#closeHandle()
    this.#hash = createHash('sha256')
    this.#bytes = 0
    this.#handle = await open(this.data, 'a')
    for await (const chunk of createReadStream(this.data, { highWaterMark: 1 << 20 })) this.#count(chunk)
    this.#origin = origin
  }

  /** Drops everything; what is appended next comes from `origin`. */
  async restart(origin: Origin | undefined): Promise<void> {
    await this.#closeHandle()
    await rm(this.data, { force: true })
    await rm(this.#originPath, { force: true })
    this.#handle = await open(this.data, 'wx')
    if (origin !== undefined) await writeFile(this.#originPath, JSON.stringify(origin))
    this.#origin = origin
    this.#hash = createHash('sha256')
    this.#bytes = 0
  }

  async append(chunk: Uint8Array): Promise<void> {
    for (let done = 0; done < chunk.length; ) {
      done += (await this.#handle!.write(chunk, done)).bytesWritten
    }
    this.#count(chunk)
  }

  /** Makes `path` (no symbolic link) the data, by a hard link where the file system allows one. `onBytes` runs per chunk. */
  async fill(path: string, onBytes: () => void): Promise<void> {
    await this.restart(undefined)
    const linked = await this.#linked(path)
    for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
      if (linked) this.#count(chunk)
      else await this.append(chunk)
      onBytes()
    }
  }

  /** Forces the data to the disk. Returns the SHA-256 of all of it, hex. */
  async seal(): Promise<string> {
    await this.#handle!.sync()
    await this.#closeHandle()
    return this.#hash.digest('hex')
  }

  /** The sealed data becomes `target`, atomically; the partial file is gone. */
  async moveTo(target: string): Promise<void> {
    await rename(this.data, target)
    await this.discard()
    // The rename itself is on the disk only when the folder is.
    const folder = await open(dirname(target), 'r')
    await folder.sync()
    await folder.close()
  }

  /** Leaves what can be continued for whoever pulls next; nothing happens where the data was moved or discarded. */
  async release(): Promise<void> {
    if (this.#gone) return
    if (this.#origin === undefined || this.#bytes === 0) return this.discard()
    await this.#closeHandle()
    this.#gone = true
    await rename(this.folder, `${this.#target}.partial-free-${randomBytes(4).toString('hex')}`)
  }

  async discard(): Promise<void> {
    this.#gone = true
    await this.#closeHandle()
    await rm(this.folder, { recursive: true, force: true })
  }

  get #originPath(): string {
    return join(this.folder, 'origin.json')
  }

  #count(chunk: Uint8Array): void {
    this.#hash.update(chunk)
    this.#bytes += chunk.length
  }

  async #closeHandle(): Promise<void> {
    const handle = this.#handle
    this.#handle = undefined
    await handle?.close()
  }

  async #storedOrigin(): Promise<Origin | undefined> {
    try {
      await stat(this.data)
      return JSON.parse(await readFile(this.#originPath, 'utf8')) as Origin
    } catch {
      // Absent or torn: then nothing can be continued, which is what undefined says.
      return undefined
    }
  }

  async #linked(path: string): Promise<boolean> {
    await this.#closeHandle()
    await rm(this.data)
    try {
      await link(path, this.data)
      this.#handle = await open(this.data, 'r')
      return true
    } catch {
      // Another file system, or one without links: the bytes are copied.
      await rm(this.data, { force: true })
      this.#handle = await open(this.data, 'wx')
      return false
    }
  }
}

/** Removes what dead or failed pulls of `target` left; called once the target is there. */
export async function sweep(target: string): Promise<void> {
  for (const left of await abandoned(target)) {
    const own = ownFolder(target)
    if (await renamed(left, own)) await rm(own, { recursive: true, force: true })
  }
}

function ownFolder(target: string): string {
  return `${target}.partial-${ownHost()}-${process.pid}-${randomBytes(4).toString('hex')}`
}

async function abandoned(target: string): Promise<string[]> {
  const prefix = `${basename(target)}.partial-`
  const found: string[] = []
  for (const name of await readdir(dirname(target))) {
    if (!name.startsWith(prefix)) continue
    const path = join(dirname(target), name)
    if (await isAbandoned(path, name.slice(prefix.length))) found.push(path)
  }
  return found
}

async function isAbandoned(path: string, owner: string): Promise<boolean> {
  if (/^free-[0-9a-f]{8}$/.test(owner)) return true
  const [, host, pid] = /^(.+)-(\d+)-[0-9a-f]{8}$/.exec(owner) ?? []
  if (host === undefined) return false
  if (host === ownHost() && !isAlive(Number(pid))) return true
  // The folder's time too: data that is a link has the time of the file that it links to.
  const times = [await changedMs(join(path, 'data')), await changedMs(path)]
  return Date.now() - Math.max(...times) > ABANDONED_MS
}

function ownHost(): string {
  return hostname().replace(/[^A-Za-z0-9._-]/g, '_')
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    // EPERM: it is there, and somebody else's.
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** False: somebody else was faster. */
async function renamed(from: string, to: string): Promise<boolean> {
  try {
    await rename(from, to)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false
    throw error
  }
}

/** When the file was last changed; 0 where it is not there. */
async function changedMs(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.mtimeMs ?? 0
}
