// Finds clocks and counters near the head of a prompt: a session's system text that changes from turn to turn at the same
// place costs the whole prefix every time. Invariant: it is found and told, never rewritten; a turn costs one comparison of
// two strings, and a change one search for where they part.

/** What is remembered of a session's system text. */
export interface HeadMemory {
  readonly text: string
  /** Turns that were compared with the one before. */
  readonly compared: number
  /** Those that had changed at the same place. */
  readonly changed: number
  /** Where the last change began, in UTF-16 units. */
  readonly at: number | undefined
}

export interface HeadChange {
  readonly changed: number
  readonly compared: number
  /** Of the UTF-8 text. */
  readonly byte: number
  /** Only digits and what stands between them changed. */
  readonly isNumber: boolean
}

/** Changes of so many turns at one place are no accident; then every ten times as many are told again. */
const TOLD_AT = [3, 30, 300, 3000]
/** A clock's digits begin to differ within so many characters of each other. */
const SAME_PLACE = 32
/** More than that is another prompt, not another time of day. */
const LENGTH_CHANGE = 64
/** Of a system text, as much as is looked at. */
const HEAD_CHARS = 131_072

/** Compares a turn's system text with the one before; `change` when it is time to tell. */
export function compareHead(
  last: HeadMemory | undefined,
  whole: string,
): { readonly memory: HeadMemory; readonly change?: HeadChange } {
  const text = headOf(whole)
  if (last === undefined) return { memory: { text, compared: 0, changed: 0, at: undefined } }
  const compared = last.compared + 1
  if (text === last.text) return { memory: { ...last, compared } }
  if (Math.abs(text.length - last.text.length) > LENGTH_CHANGE) {
    return { memory: { text, compared: 0, changed: 0, at: undefined } }
  }
  const at = firstDifference(text, last.text)
  const isSamePlace = last.at === undefined || Math.abs(last.at - at) <= SAME_PLACE
  const changed = isSamePlace ? last.changed + 1 : 1
  const memory = { text, compared, changed, at }
  if (!TOLD_AT.includes(changed)) return { memory }
  const byte = Buffer.byteLength(text.slice(0, at))
  return { memory, change: { changed, compared, byte, isNumber: isNumberAt(at, text, last.text) } }
}

/** As much of a system text as is remembered. */
export function headOf(system: string): string {
  return system.length > HEAD_CHARS ? system.slice(0, HEAD_CHARS) : system
}

const STRIDE = 1024

/** Whole strides are compared by the runtime; only the one that differs is walked. */
function firstDifference(a: string, b: string): number {
  const end = Math.min(a.length, b.length)
  let at = 0
  while (at < end && a.slice(at, at + STRIDE) === b.slice(at, at + STRIDE)) at += STRIDE
  while (at < end && a.charCodeAt(at) === b.charCodeAt(at)) at++
  return Math.min(at, end)
}

/** What differs on either side, up to the next line break or blank, has digits and their separators alone. */
function isNumberAt(at: number, a: string, b: string): boolean {
  const word = (text: string) => /^\S{0,40}/.exec(text.slice(at, at + 40))?.[0] ?? ''
  return [word(a), word(b)].every((text) => /^[\d:.,/%TZ+-]*$/.test(text) && /\d/.test(text))
}
