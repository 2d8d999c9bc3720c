// What every kind of source is given: where the bytes go, who may stop it, and what the card promises.

import { SourceFailure } from './failure.js'
import type { PartialFile } from './partial-file.js'

export interface Transfer {
  readonly partial: PartialFile
  /** Undefined: the card does not say. */
  readonly expectedBytes: number | undefined
  readonly signal: AbortSignal | undefined
  readonly onProgress: (receivedBytes: number, totalBytes: number | undefined) => void
}

/** How often a URL is tried again, and how long a silent connection is believed. */
export interface Patience {
  /** Failures in a row without progress. */
  readonly attempts: number
  /** Before the second attempt; doubles with each failure. */
  readonly backoffMs: number
  readonly stallMs: number
}

/** Appends, and refuses what is longer than the card says before it fills the disk. */
export async function appendBounded({ partial, expectedBytes }: Transfer, chunk: Uint8Array): Promise<void> {
  if (expectedBytes !== undefined && partial.bytes + chunk.length > expectedBytes) {
    throw new SourceFailure(`it is longer than the ${expectedBytes} bytes that the card says`)
  }
  await partial.append(chunk)
}
