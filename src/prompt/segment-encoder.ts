// One segment of text, free of special tokens, to ids: normalize, cut into words, merge each word. Invariant: a pure
// function of the segment; words are remembered because a chat's vocabulary is small, whatever its length.

import { type IdList, MergeTable, WordMerger } from './bpe.js'
import { BYTE_TO_CHAR, fallbackSpelling } from './byte-alphabet.js'
import { ownCopy } from './own-copy.js'
import type { TokenizerParts } from './tokenizer-json.js'

// About 10 MB of words; a full table is dropped whole, which costs one slower request.
const WORDS = 50_000
const WORD_UNITS = 48

const encoder = new TextEncoder()

export class SegmentEncoder {
  readonly #parts: TokenizerParts
  readonly #merger: WordMerger
  /** Id of each byte; -1: the vocabulary lacks it. */
  readonly #byteIds: Int32Array
  readonly #words = new Map<string, Int32Array>()
  #symbols = new Int32Array(256)
  #bytes = new Uint8Array(768)

  constructor(parts: TokenizerParts) {
    this.#parts = parts
    this.#merger = new WordMerger(mergeTable(parts))
    const spelling = (byte: number): string =>
      parts.alphabet === 'bytes' ? BYTE_TO_CHAR[byte]! : fallbackSpelling(byte)
    this.#byteIds = Int32Array.from({ length: 256 }, (_, byte) => parts.vocab.get(spelling(byte)) ?? -1)
  }

  /** Appends the ids of `text` to `out`. */
  encode(text: string, out: IdList): void {
    const normal = this.#parts.normalize?.(text) ?? text
    let words = [normal]
    for (const split of this.#parts.splits) words = cut(words, split)
    for (const word of words) this.#word(word, out)
  }

  #word(word: string, out: IdList): void {
    const known = this.#words.get(word)
    if (known !== undefined) {
      out.append(known)
      return
    }
    const start = out.length
    this.#merge(word, out)
    if (word.length > WORD_UNITS) return
    if (this.#words.size >= WORDS) this.#words.clear()
    this.#words.set(ownCopy(word), out.copy(start))
  }

  #merge(word: string, out: IdList): void {
    const { alphabet, ignoreMerges, vocab } = this.#parts
    if (alphabet === 'bytes') {
      const bytes = this.#utf8(word)
      if (ignoreMerges && bytes.length <= 4 * WORD_UNITS) {
        const whole = vocab.get(Array.from(bytes, (byte) => BYTE_TO_CHAR[byte]).join(''))
        if (whole !== undefined) {
          out.push(whole)
          return
        }
      }
      const symbols = this.#room(bytes.length)
      for (let i = 0; i < bytes.length; i++) symbols[i] = this.#byteIds[bytes[i]!]!
      const left = this.#merger.merge(symbols, bytes.length)
      for (let i = 0; i < left; i++) if (symbols[i]! >= 0) out.push(symbols[i]!)
      return
    }
    const symbols = this.#room(word.length)
    let length = 0
    // A character without a token is kept as its complement, which merges with nothing.
    for (const char of word) symbols[length++] = vocab.get(char) ?? ~char.codePointAt(0)!
    const left = this.#merger.merge(symbols, length)
    for (let i = 0; i < left; i++) {
      if (symbols[i]! >= 0) out.push(symbols[i]!)
      else this.#fallback(String.fromCodePoint(~symbols[i]!), out)
    }
  }

  #fallback(char: string, out: IdList): void {
    const ids = Array.from(encoder.encode(char), (byte) => this.#byteIds[byte]!)
    if (ids.every((id) => id >= 0)) for (const id of ids) out.push(id)
    else if (this.#parts.unknownId !== undefined) out.push(this.#parts.unknownId)
  }

  #utf8(word: string): Uint8Array {
    if (this.#bytes.length < word.length * 3) this.#bytes = new Uint8Array(word.length * 3)
    return this.#bytes.subarray(0, encoder.encodeInto(word, this.#bytes).written)
  }

  #room(symbols: number): Int32Array {
    if (this.#symbols.length < symbols) this.#symbols = new Int32Array(symbols)
    return this.#symbols
  }
}

function cut(pieces: readonly string[], split: RegExp): string[] {
  const words: string[] = []
  for (const piece of pieces) {
    // Most families' last expression leaves no gaps, and `match` is twice as fast as `exec`.
    const found = piece.match(split)
    if (found === null || lengthOf(found) === piece.length) {
      for (const word of found ?? [piece]) words.push(word)
      continue
    }
    let start = 0
    split.lastIndex = 0
    for (let match = split.exec(piece); match !== null; match = split.exec(piece)) {
      if (match[0] === '') {
        split.lastIndex++
        continue
      }
      if (match.index > start) words.push(piece.slice(start, match.index))
      words.push(match[0])
      start = split.lastIndex
    }
    if (start < piece.length) words.push(piece.slice(start))
  }
  return words
}

function lengthOf(words: readonly string[]): number {
  let length = 0
  for (const word of words) length += word.length
  return length
}

function mergeTable(parts: TokenizerParts): MergeTable {
  const table = new MergeTable(parts.merges.length)
  // SentencePiece ranks a merge by the piece that it makes, so all ways to make one share a rank.
  const byResult = parts.alphabet === 'spaces'
  let rank = -1
  let last = -1
  for (const merge of parts.merges) {
    const at = typeof merge === 'string' ? merge.indexOf(' ', 1) : 0
    const left = typeof merge === 'string' ? merge.slice(0, at) : merge[0]
    const right = typeof merge === 'string' ? merge.slice(at + 1) : merge[1]
    const [leftId, rightId] = [parts.vocab.get(left), parts.vocab.get(right)]
    const result = parts.vocab.get(left + right)
    if (leftId === undefined || rightId === undefined || result === undefined) {
      throw new Error(`tokenizer.json: merge '${left}' + '${right}' is not made of tokens`)
    }
    if (!byResult || result !== last) rank++
    last = result
    table.add(leftId, rightId, rank, result)
  }
  return table
}
