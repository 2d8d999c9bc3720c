// Memory that is read from end to end, many megabytes of it: in large pages where the addon and the system have them. With
// small ones the processor stops looking ahead every 4 KB and forgets where they lie.

import { loadAddon } from './addon.js'

/** A zeroed buffer of `bytes`. */
export function largeBuffer(bytes: number): ArrayBuffer {
  const buffer = new ArrayBuffer(bytes)
  const addon = loadAddon()
  if ('askLargePages' in addon) addon.askLargePages(buffer)
  return buffer
}
