// Strings whose length is bounded, counted here instead of in the grammar: xgrammar would make a state of every length and
// look at the whole vocabulary for each (100 characters: seconds). Invariant: the same as for the grammar's own strings:
// whole UTF-8 characters, valid escapes, no surrogates; a character counts when its first byte comes.
//
//   grammar:   "\"" <pseudo-token k> "\""       k-th bounds: `counted[k]`
//   matcher:   sees that k is allowed, takes it, and is then past the string; meanwhile this file says what may stand inside
//
//   0 border -- 0x20..0x7f but " and \ --> 0     -- c2..df --> 1     -- e0 --> 4, e1.. --> 2, ed --> 5
//            -- \ --> 8 -- "\/bfnrt --> 0        8 -- u --> 9 -- hex digits 10 (d: 0 to 7 next), 11, 12, 13 --> 0

/** Bits of tokens, one a token, as the sampler takes them. */
export type TokenMask = Int32Array

export interface Vocabulary {
  readonly vocabSize: number
  /** UTF-8 bytes of one token; empty for special ones, which no grammar allows but as its end. */
  bytesOf(id: number): Uint8Array
}

const BORDER = 0
const STATES = 14
const REJECT = 255
/** Longest token that is told apart; longer ones are not allowed inside counted strings. */
const MAX_CHARACTERS = 250
const MAX_MASKS = 128

const NEXT = transitions()

function transitions(): Uint8Array {
  const next = new Uint8Array(STATES * 256).fill(REJECT)
  const set = (state: number, from: number, to: number, then: number) =>
    next.fill(then, state * 256 + from, state * 256 + to + 1)
  const one = (state: number, characters: string, then: number) => {
    for (const character of characters) set(state, character.charCodeAt(0), character.charCodeAt(0), then)
  }
  set(BORDER, 0x20, 0x7f, BORDER)
  one(BORDER, '"', REJECT)
  one(BORDER, '\\', 8)
  set(BORDER, 0xc2, 0xdf, 1)
  set(BORDER, 0xe0, 0xe0, 4)
  set(BORDER, 0xe1, 0xef, 2)
  set(BORDER, 0xed, 0xed, 5)
  set(BORDER, 0xf0, 0xf0, 6)
  set(BORDER, 0xf1, 0xf3, 3)
  set(BORDER, 0xf4, 0xf4, 7)
  set(1, 0x80, 0xbf, BORDER)
  set(2, 0x80, 0xbf, 1)
  set(3, 0x80, 0xbf, 2)
  set(4, 0xa0, 0xbf, 1)
  set(5, 0x80, 0x9f, 1)
  set(6, 0x90, 0xbf, 2)
  set(7, 0x80, 0x8f, 2)
  one(8, '"\\/bfnrt', BORDER)
  one(8, 'u', 9)
  const digits = '0123456789abcdefABCDEF'
  one(9, digits, 11)
  one(9, 'dD', 10)
  one(10, '01234567', 12)
  one(11, digits, 12)
  one(12, digits, 13)
  one(13, digits, BORDER)
  return next
}

/** Where a string stands: a state of the automaton, and the characters begun so far. */
export interface StringPosition {
  readonly state: number
  readonly count: number
}

export const STRING_START: StringPosition = { state: BORDER, count: 0 }

/** Whether the closing quote may come here, as far as this automaton knows. */
export function isClosable(position: StringPosition): boolean {
  return position.state === BORDER
}

/** What every token does from one state: the characters that it begins (255: not allowed) and the state after it. */
interface Row {
  readonly counts: Uint8Array
  readonly ends: Uint8Array
  readonly most: number
}

/** What tokens may stand inside a string. One for a vocabulary; tables are made as states are met. */
export class StringTokens {
  readonly #vocabulary: Vocabulary
  readonly #rows: (Row | undefined)[] = []
  readonly #masks = new Map<number, TokenMask>()

  constructor(vocabulary: Vocabulary) {
    this.#vocabulary = vocabulary
  }

  /** Tokens that fit at `position` when `left` more characters may begin (undefined: any number). Not to be changed. */
  mask(position: StringPosition, left: number | undefined): TokenMask {
    const { counts, most } = this.#row(position.state)
    const limit = Math.min(left ?? most, most)
    const key = position.state * 256 + limit
    const known = this.#masks.get(key)
    if (known !== undefined) return known
    const mask = new Int32Array((counts.length + 31) >> 5)
    for (let id = 0; id < counts.length; id++) if (counts[id]! <= limit) mask[id >> 5]! |= 1 << (id & 31)
    if (this.#masks.size === MAX_MASKS) this.#masks.clear()
    this.#masks.set(key, mask)
    return mask
  }

  /** The position behind `id`; undefined when it does not fit or begins more than `left` characters. */
  after(position: StringPosition, id: number, left: number | undefined): StringPosition | undefined {
    const { counts, ends } = this.#row(position.state)
    const count = counts[id] ?? REJECT
    if (count === REJECT || (left !== undefined && count > left)) return undefined
    return { state: ends[id]!, count: position.count + count }
  }

  #row(state: number): Row {
    const known = this.#rows[state]
    if (known !== undefined) return known
    const { vocabSize } = this.#vocabulary
    const counts = new Uint8Array(vocabSize).fill(REJECT)
    const ends = new Uint8Array(vocabSize)
    let most = 0
    for (let id = 0; id < vocabSize; id++) {
      const bytes = this.#vocabulary.bytesOf(id)
      if (bytes.length === 0) continue
      let at = state
      let count = 0
      for (let i = 0; i < bytes.length && at !== REJECT; i++) {
        if (at === BORDER) count++
        at = NEXT[at * 256 + bytes[i]!]!
      }
      if (at === REJECT || count > MAX_CHARACTERS) continue
      counts[id] = count
      ends[id] = at
      most = Math.max(most, count)
    }
    const row = { counts, ends, most }
    this.#rows[state] = row
    return row
  }
}
