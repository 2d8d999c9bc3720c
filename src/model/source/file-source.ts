// Weights that are already on this machine: linked where that is possible, copied otherwise, hashed in both cases.

import { access, constants, realpath, stat } from 'node:fs/promises'
import { SourceFailure } from './failure.js'
import type { Transfer } from './transfer.js'

/** Fills the transfer's partial file from the file at `path`. @throws SourceFailure where that is no such file. */
export async function takeFile(path: string, transfer: Transfer): Promise<void> {
  const { partial, expectedBytes, signal, onProgress } = transfer
  // A hard link to a symbolic link would be one: the file behind it is wanted.
  const real = await realpath(path).catch((error: NodeJS.ErrnoException) => {
    throw new SourceFailure(error.code === 'ENOENT' ? 'there is no such file' : error.message, { cause: error })
  })
  const facts = await stat(real)
  if (!facts.isFile()) throw new SourceFailure('it is not a file')
  if (expectedBytes !== undefined && facts.size !== expectedBytes) {
    throw new SourceFailure(`it has ${facts.size} bytes, but the card says ${expectedBytes}`)
  }
  await access(real, constants.R_OK).catch((error: Error) => {
    throw new SourceFailure('it may not be read', { cause: error })
  })
  await partial.fill(real, () => {
    signal?.throwIfAborted()
    onProgress(partial.bytes, facts.size)
  })
}
