// One owner per folder. Node has no flock, a file with a pid in it outlives its process (and pids mean nothing across
// containers that share a volume), and an abstract socket is not seen by other network namespaces. So the owner listens
// on a Unix socket inside the folder: the kernel ends it with the process, and connecting to it works from any container
// of the machine and needs no answer from the owner, whose event loop may be held for seconds.
//
//   listen on .starting-ID  ->  rename to owner-PID-ID.sock  ->  connect to every other owner-*.sock
//   refused: its process is gone, remove the name (names are never used twice)    connected: somebody owns the folder
//
// Invariant: of two openers, the one that renames last sees the other; at worst both see each other and both refuse.

import { randomBytes } from 'node:crypto'
import { closeSync, constants, existsSync, openSync } from 'node:fs'
import { readdir, rename, rm } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { join } from 'node:path'

const OWNER = /^owner-(\d+)-[0-9a-f]+\.sock$/
const STARTING = /^\.starting-[0-9a-f]+\.sock$/

/** Longest path of a Unix socket, less the name (sun_path is 108 bytes on Linux, 104 on macOS). */
const LONGEST_FOLDER = 60

/** See `FileDoor.lock`. */
export async function lockFolder(folder: string): Promise<() => Promise<void>> {
  const short = shorten(folder)
  const id = randomBytes(6).toString('hex')
  const starting = `.starting-${id}.sock`
  const own = `owner-${process.pid}-${id}.sock`
  const server = createServer((socket) => socket.destroy())
  const release = async () => {
    await rm(join(folder, own), { force: true })
    await new Promise<void>((resolve) => server.close(() => resolve()))
    short.close()
  }
  try {
    await listen(server, join(short.folder, starting))
    // Renamed only once it listens: a socket that is bound but refuses would look like a dead owner's.
    await rename(join(folder, starting), join(folder, own))
    const owner = await otherOwner(folder, short.folder, own)
    if (owner === undefined) {
      await removeStarting(folder, short.folder)
      return release
    }
    throw new Error(
      `the cache folder ${folder} belongs to process ${owner}, which is running: ` +
        'stop it, or give this one a data folder of its own',
    )
  } catch (error) {
    await release()
    throw error
  }
}

async function listen(server: Server, path: string): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) =>
      reject(new Error(`the cache folder cannot be locked by a Unix socket at ${path}: ${cause.message}`, { cause })),
    )
    server.listen(path, resolve)
  })
  server.unref()
}

/** The pid of a living owner other than `own`; removes what dead ones left. */
async function otherOwner(folder: string, shortFolder: string, own: string): Promise<string | undefined> {
  for (const name of await readdir(folder)) {
    const pid = OWNER.exec(name)?.[1]
    if (pid === undefined || name === own) continue
    if (await answers(join(shortFolder, name))) return pid
    await rm(join(folder, name), { force: true })
  }
  return undefined
}

/** What openers left that died while they started. One that starts right now would be refused by us anyway. */
async function removeStarting(folder: string, shortFolder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!STARTING.test(name) || (await answers(join(shortFolder, name)))) continue
    await rm(join(folder, name), { force: true })
  }
}

async function answers(path: string): Promise<boolean> {
  return await new Promise<boolean>((resolve, reject) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED' || error.code === 'ENOENT') resolve(false)
      // A full backlog: its owner is there.
      else if (error.code === 'EAGAIN') resolve(true)
      else reject(error)
    })
  })
}

/** A path to `folder` that fits a socket's address: through the process's own descriptor where the real one is too long. */
function shorten(folder: string): { readonly folder: string; close(): void } {
  if (Buffer.byteLength(folder) <= LONGEST_FOLDER || !existsSync('/proc/self/fd')) {
    return { folder, close: () => undefined }
  }
  const descriptor = openSync(folder, constants.O_RDONLY | constants.O_DIRECTORY)
  return { folder: `/proc/self/fd/${descriptor}`, close: () => closeSync(descriptor) }
}
