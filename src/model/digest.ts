// The SHA-256 of a weights file, and a note beside the file that spares hashing gigabytes at every start. The note holds
// as long as the file's size and modification time are those that it names.
//
//   <file>.digest.json   { "sha256": "…", "bytes": 98362432, "mtimeMs": 1738886400000 }

import { createHash, randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readFile, rename, stat, writeFile } from 'node:fs/promises'

interface DigestNote {
  readonly sha256: string
  readonly bytes: number
  readonly mtimeMs: number
}

/** SHA-256 of the file at `path`, hex: from the note where that holds, else by reading it all. Writes nothing. */
export async function weightsDigest(
  path: string,
  options: {
    readonly signal?: AbortSignal
    readonly onProgress?: (hashedBytes: number, totalBytes: number) => void
  } = {},
): Promise<string> {
  const noted = await notedDigest(path)
  if (noted !== undefined) return noted
  const { size } = await stat(path)
  const hash = createHash('sha256')
  let done = 0
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    options.signal?.throwIfAborted()
    hash.update(chunk)
    done += chunk.length
    options.onProgress?.(done, size)
  }
  return hash.digest('hex')
}

/** What the note says, where it is there and holds. */
export async function notedDigest(path: string): Promise<string | undefined> {
  try {
    const note = JSON.parse(await readFile(notePath(path), 'utf8')) as DigestNote
    const { size, mtimeMs } = await stat(path)
    return note.bytes === size && note.mtimeMs === mtimeMs ? note.sha256 : undefined
  } catch {
    // No note, a torn one, or no file: the digest has to be computed.
    return undefined
  }
}

/** Notes the digest of the file as it is now. */
export async function noteDigest(path: string, sha256: string): Promise<void> {
  const { size, mtimeMs } = await stat(path)
  const temporary = `${notePath(path)}.${randomBytes(4).toString('hex')}`
  await writeFile(temporary, JSON.stringify({ sha256, bytes: size, mtimeMs } satisfies DigestNote))
  await rename(temporary, notePath(path))
}

function notePath(path: string): string {
  return `${path}.digest.json`
}
