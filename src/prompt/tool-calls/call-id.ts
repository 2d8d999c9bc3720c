// Ids of tool calls whose form carries none. Invariant: they depend on the call's text and its place in the answer alone,
// so an answer that is read again has the same ids.

import { createHash } from 'node:crypto'

/** `call_` and 24 hex digits. */
export function hashedId(index: number, text: string): string {
  return `call_${createHash('sha256').update(`${index}\n${text}`).digest('hex').slice(0, 24)}`
}

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'

/** Nine letters and digits, which is all that Mistral's templates take. */
export function nineId(index: number, text: string): string {
  const digest = createHash('sha256').update(`${index}\n${text}`).digest()
  return Array.from(digest.subarray(0, 9), (byte) => LETTERS[byte % LETTERS.length]).join('')
}
