// The elements of one array of a JSON file, one after the other, however long the file is. Invariant: holds one element and
// one chunk at a time; does not check the JSON around them, parsing an element does that.

import { UsageError } from '../core/usage-error.js'

const QUOTE = 0x22
const BACKSLASH = 0x5c
const OPEN = [0x5b, 0x7b]
const CLOSE = [0x5d, 0x7d]
const COMMA = 0x2c

/**
 * Bytes of each element of the array that follows `key` (`"entries"`), or of the outermost array where `key` is undefined.
 * @throws UsageError where an element is longer than `mostBytes`.
 */
export async function* jsonElements(
  chunks: AsyncIterable<Buffer>,
  { key, mostBytes }: { readonly key: string | undefined; readonly mostBytes: number },
): AsyncGenerator<Buffer, void> {
  let rest: Buffer = Buffer.alloc(0)
  let isInside = false
  /** Of the element that is being read. */
  let depth = 0
  let inString = false
  let at = 0
  let start = -1
  for await (const chunk of chunks) {
    rest = Buffer.concat([rest, chunk])
    if (!isInside) {
      const found = key === undefined ? rest.indexOf('[') : arrayAfter(rest, key)
      if (found < 0) {
        if (rest.length > mostBytes) throw new UsageError(`there is no list in the first ${mostBytes} bytes`)
        continue
      }
      isInside = true
      at = found + 1
    }
    for (; at < rest.length; at++) {
      const byte = rest[at]!
      if (inString) {
        if (byte === BACKSLASH) at++
        else if (byte === QUOTE) inString = false
        continue
      }
      if (byte === QUOTE) {
        inString = true
        if (start < 0) start = at
      } else if (OPEN.includes(byte)) {
        if (depth++ === 0 && start < 0) start = at
      } else if (CLOSE.includes(byte)) {
        if (depth === 0) {
          if (start >= 0) yield rest.subarray(start, at)
          return
        }
        depth--
      } else if (byte === COMMA && depth === 0) {
        if (start >= 0) yield rest.subarray(start, at)
        start = -1
      } else if (start < 0 && byte > 0x20) start = at
    }
    const keep = start < 0 ? rest.length : start
    // An escape may have skipped past the end.
    at -= keep
    rest = rest.subarray(Math.min(keep, rest.length))
    start = start < 0 ? -1 : 0
    if (rest.length > mostBytes) throw new UsageError(`an entry is longer than ${mostBytes} bytes`)
  }
}

function arrayAfter(bytes: Buffer, key: string): number {
  const name = bytes.indexOf(key)
  return name < 0 ? -1 : bytes.indexOf('[', name + key.length)
}

/** Lines without their ends; empty ones are left out. @throws UsageError where one is longer than `mostBytes`. */
export async function* lines(chunks: AsyncIterable<Buffer>, mostBytes: number): AsyncGenerator<Buffer, void> {
  let parts: Buffer[] = []
  let length = 0
  for await (const chunk of chunks) {
    let from = 0
    for (let end = chunk.indexOf(0x0a); end >= 0; end = chunk.indexOf(0x0a, from)) {
      parts.push(chunk.subarray(from, end))
      const line = parts.length === 1 ? parts[0]! : Buffer.concat(parts)
      if (line.length > 1) yield line
      parts = []
      length = 0
      from = end + 1
    }
    if (from < chunk.length) parts.push(chunk.subarray(from))
    length += chunk.length - from
    if (length > mostBytes) throw new UsageError(`a line is longer than ${mostBytes} bytes`)
  }
  const last = Buffer.concat(parts)
  if (last.length > 1) yield last
}
