// Long texts that were tokenized, so that the next turn of a conversation pays for what is new in it. Invariant: a start of
// ids is taken over only up to a cut, a place behind which a text is tokenized as if nothing stood in front of it, and only
// where both texts are the same up to the cut and as far behind it as the tokenizer looked to find it.
//
//   remembered   [system ...]<|end|>[user ...]<|end|>[assistant
//   new          [system ...]<|end|>[user ...]<|end|>[assistant ...]<|end|>[user ...]<|end|>[assistant
//                                                   ^ last cut in what they share: ids up to here are taken over

/** A place in a text, and how many ids stand for what is in front of it. */
export interface Cut {
  readonly text: number
  readonly ids: number
}

/** How a text begins: the ids of `text.slice(0, at)`, and the cuts in it. */
export interface Start {
  readonly at: number
  readonly ids: Int32Array
  readonly cuts: readonly Cut[]
  /** All of the text is the start of one that is remembered: there is nothing to keep. */
  readonly isKept: boolean
  /** What is kept in place of this: the same conversation, earlier. */
  readonly replaces?: object
}

export interface Kept {
  readonly start: Start
  readonly ids: Int32Array
  readonly cuts: readonly Cut[]
}

interface Entry {
  readonly key: string
  readonly text: string
  readonly ids: Int32Array
  readonly cuts: readonly Cut[]
}

/** UTF-16 units. Shorter texts are tokenized from their segments as quickly, and are not worth the memory. */
const PREFIX_UNITS = 65_536

/** Nothing is known of a text. */
export const NOTHING: Start = { at: 0, ids: new Int32Array(0), cuts: [], isKept: false }
const CHUNK_UNITS = 4096
/** A text that shares all but so many units of an older one takes its place: it is the same conversation, later. */
const SUPERSEDED_UNITS = 16_384

export class PrefixMemo {
  readonly #maxBytes: number
  readonly #margin: number
  readonly #leastUnits: number
  /** Least recently used first. */
  #entries: Entry[] = []

  /** `margin`: how far behind a cut a tokenizer looks to find it; `leastUnits`: shorter texts are not remembered. */
  constructor(options: { readonly maxBytes: number; readonly margin: number; readonly leastUnits?: number }) {
    this.#maxBytes = options.maxBytes
    this.#margin = options.margin
    this.#leastUnits = options.leastUnits ?? PREFIX_UNITS
  }

  /** The longest start of `text` that is known; ids depend on `key`, too. */
  start(key: string, text: string): Start {
    if (text.length < this.#leastUnits) return NOTHING
    let best: Entry | undefined
    let shared = 0
    for (const entry of this.#entries) {
      if (entry.key !== key) continue
      const units = sharedUnits(entry.text, text, shared)
      if (units > shared) [best, shared] = [entry, units]
    }
    if (best === undefined) return NOTHING
    const count = cutsBelow(best.cuts, shared - this.#margin)
    const last = best.cuts[count - 1]
    if (last === undefined) return NOTHING
    const isLater = shared >= best.text.length - SUPERSEDED_UNITS
    this.#entries = [...this.#entries.filter((entry) => entry !== best), best]
    return {
      at: last.text,
      ids: best.ids.subarray(0, last.ids),
      cuts: best.cuts.slice(0, count),
      isKept: shared === text.length,
      ...(isLater && { replaces: best }),
    }
  }

  /** Remembers a text that began with `start`, with all of its ids, which nobody may change; `cuts` in order. */
  keep(key: string, text: string, { start, ids, cuts }: Kept): void {
    if (text.length < this.#leastUnits || start.isKept) return
    this.#entries = [...this.#entries.filter((entry) => entry !== start.replaces), { key, text, ids, cuts }]
    let total = this.#entries.reduce((sum, entry) => sum + bytesOf(entry), 0)
    while (total > this.#maxBytes) total -= bytesOf(this.#entries.shift()!)
  }
}

function bytesOf({ text, ids, cuts }: Entry): number {
  return 200 + 2 * text.length + ids.byteLength + 40 * cuts.length
}

/** Cuts at most at `end`. */
function cutsBelow(cuts: readonly Cut[], end: number): number {
  let low = 0
  let high = cuts.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (cuts[middle]!.text <= end) low = middle + 1
    else high = middle
  }
  return low
}

/** How many units are the same from the start, or `least` where it is not more than that. Slices compare as memory does. */
function sharedUnits(a: string, b: string, least: number): number {
  const end = Math.min(a.length, b.length)
  if (least >= end || a.charCodeAt(least) !== b.charCodeAt(least)) return least
  let at = 0
  while (at < end && a.slice(at, at + CHUNK_UNITS) === b.slice(at, at + CHUNK_UNITS)) at += CHUNK_UNITS
  while (at < end && a.charCodeAt(at) === b.charCodeAt(at)) at++
  return Math.max(least, Math.min(at, end))
}
