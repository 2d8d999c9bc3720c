// Token ids back to text: the bytes of every token, and the incremental form that a stream needs. Invariant: the pushes
// of a stream and its end, joined, are what `decode` gives for all ids at once, and no push ends in half a character.

import { fallbackByte, UNIT_TO_BYTE } from './byte-alphabet.js'
import type { Detokenizer } from './contract.js'
import type { AddedToken } from './special-tokens.js'

const EMPTY = new Uint8Array(0)
const SPACE = 0x20
const encoder = new TextEncoder()

/** How a vocabulary spells text. */
export interface Spelling {
  /** `bytes`: stand-ins of bytes; `spaces`: text with U+2581 for a space and <0xNN> for single bytes. */
  readonly alphabet: 'bytes' | 'spaces'
  /** One space at the very start of a text is the tokenizer's own and is cut off. */
  readonly stripsLeadingSpace: boolean
}

/** Bytes of tokens, worked out once each. */
export class TokenBytes {
  readonly spelling: Spelling
  readonly #spellings: readonly (string | undefined)[]
  readonly #added: ReadonlyMap<number, AddedToken>
  readonly #bytes: (Uint8Array | undefined)[]

  constructor(spelling: Spelling, spellings: readonly (string | undefined)[], added: ReadonlyMap<number, AddedToken>) {
    this.spelling = spelling
    this.#spellings = spellings
    this.#added = added
    this.#bytes = new Array(spellings.length)
  }

  /** Bytes of the token's text; empty for special tokens and ids that name none. */
  of(id: number): Uint8Array {
    const known = this.#bytes[id]
    if (known !== undefined) return known
    const bytes = this.#added.get(id)?.special === true ? EMPTY : this.spelled(id)
    if (id >= 0 && id < this.#spellings.length) this.#bytes[id] = bytes
    return bytes
  }

  /** As `of`, with special tokens spelled out. */
  spelled(id: number): Uint8Array {
    const spelling = this.#spellings[id]
    if (spelling === undefined) return EMPTY
    if (this.#added.has(id)) return encoder.encode(spelling)
    return this.spelling.alphabet === 'bytes' ? bytesOfStandIns(spelling) : bytesOfSpaces(spelling)
  }

  /** Text of all `ids`; incomplete bytes become U+FFFD. */
  decode(ids: ArrayLike<number>, special: 'keep' | 'skip'): string {
    const parts = Array.from(ids, (id) => (special === 'keep' ? this.spelled(id) : this.of(id)))
    const bytes = Buffer.concat(parts)
    const text = newDecoder().decode(bytes)
    return this.spelling.stripsLeadingSpace && bytes[0] === SPACE ? text.slice(1) : text
  }
}

/** A fresh incremental detokenizer; special tokens give '' but for the `visible` ones. */
export function streamOf(bytes: TokenBytes, visible: readonly number[] = []): Detokenizer {
  const decoder = newDecoder()
  const shown = new Set(visible)
  let atStart = bytes.spelling.stripsLeadingSpace
  return {
    push(id) {
      const piece = shown.has(id) ? bytes.spelled(id) : bytes.of(id)
      if (piece.length === 0) return ''
      const text = decoder.decode(piece, { stream: true })
      if (!atStart) return text
      atStart = false
      return piece[0] === SPACE ? text.slice(1) : text
    },
    end: () => decoder.decode(),
  }
}

// ignoreBOM keeps U+FEFF in the text, as every tokenizer does.
function newDecoder(): InstanceType<typeof TextDecoder> {
  return new TextDecoder('utf-8', { ignoreBOM: true })
}

// A character outside the alphabet (a few vocabularies have tokens that no byte-level merge makes) stands for itself.
function bytesOfStandIns(spelling: string): Uint8Array {
  const bytes: number[] = []
  for (const char of spelling) {
    const byte = char.length === 1 ? UNIT_TO_BYTE.get(char.charCodeAt(0)) : undefined
    if (byte === undefined) bytes.push(...encoder.encode(char))
    else bytes.push(byte)
  }
  return Uint8Array.from(bytes)
}

function bytesOfSpaces(spelling: string): Uint8Array {
  const byte = fallbackByte(spelling)
  return byte === undefined ? encoder.encode(spelling.replaceAll('\u2581', ' ')) : Uint8Array.of(byte)
}
