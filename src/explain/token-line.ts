// The tokens of a session's last main turn, its answer included: what the next one is compared with. Blocks are compared by
// their chained hashes, the rest token by token. Invariant: a prompt's tokens are those of its job, which nobody changes, so
// nothing is copied; a line only gets its answer.
//
//   tokens   prompt ........................ | answer ......... |
//   marks    bytes before token 0, 64, 128 .. as far as somebody asked

import { BLOCK_TOKENS, type Chain } from '../core/block.js'
import type { TurnFacts } from './contract.js'

export type Spellings = TurnFacts['tokenizer']

export class TokenLine {
  readonly chain: Chain
  readonly prompt: Int32Array
  /** Tokens of the prompt without what opens the answer. */
  readonly headTokens: number
  #answer: readonly number[] = []
  /** Bytes before every 64th token. */
  readonly #marks: number[]

  constructor(
    of: { readonly chain: Chain; readonly tokens: Int32Array; readonly headTokens: number },
    before?: TokenLine,
  ) {
    this.chain = of.chain
    this.prompt = of.tokens
    this.headTokens = of.headTokens
    // What is the same has the same bytes.
    const shared = before === undefined || before.#marks.length < 2 ? 0 : before.shared(of.chain, of.tokens)
    this.#marks = before === undefined ? [0] : before.#marks.slice(0, Math.floor(shared / BLOCK_TOKENS) + 1)
  }

  get length(): number {
    return this.prompt.length + this.#answer.length
  }

  get bytes(): number {
    return this.prompt.buffer.byteLength + 8 * (this.#answer.length + this.#marks.length)
  }

  /** What was sampled behind the prompt. */
  answered(ids: readonly number[]): void {
    this.#answer = ids
  }

  at(index: number): number | undefined {
    return index < this.prompt.length ? this.prompt[index] : this.#answer[index - this.prompt.length]
  }

  /** How many tokens are the same from the start. */
  shared({ root, hashes }: Chain, tokens: Int32Array): number {
    const end = Math.min(this.length, tokens.length)
    let at = this.chain.root === root ? sharedBlocks(this.chain.hashes, hashes) * BLOCK_TOKENS : 0
    while (at < end && this.at(at) === tokens[at]) at++
    return Math.min(at, end)
  }

  /** Tokens `[from, to)`. */
  slice(from: number, to: number): Int32Array {
    const length = Math.max(0, Math.min(to, this.length) - from)
    return Int32Array.from({ length }, (_, i) => this.at(from + i) as number)
  }

  /** UTF-8 bytes of the tokens in front of `token`. */
  bytesBefore(token: number, spellings: Spellings): number {
    const block = Math.floor(token / BLOCK_TOKENS)
    for (let mark = this.#marks.length; mark <= block; mark++) {
      const from = (mark - 1) * BLOCK_TOKENS
      this.#marks.push((this.#marks[mark - 1] as number) + this.#lengthOf(from, from + BLOCK_TOKENS, spellings))
    }
    return (this.#marks[block] as number) + this.#lengthOf(block * BLOCK_TOKENS, token, spellings)
  }

  /** The token that the byte is in, or the line's end. */
  tokenAt(byte: number, spellings: Spellings): number {
    let [low, high] = [0, Math.floor(this.length / BLOCK_TOKENS)]
    while (low < high) {
      const middle = (low + high + 1) >> 1
      if (this.bytesBefore(middle * BLOCK_TOKENS, spellings) <= byte) low = middle
      else high = middle - 1
    }
    let at = low * BLOCK_TOKENS
    for (let bytes = this.bytesBefore(at, spellings); at < this.length; at++) {
      bytes += bytesOf(this.at(at) as number, spellings).length
      if (bytes > byte) return at
    }
    return this.length
  }

  #lengthOf(from: number, to: number, spellings: Spellings): number {
    let bytes = 0
    for (let at = from; at < to; at++) bytes += bytesOf(this.at(at) as number, spellings).length
    return bytes
  }
}

/** Chained hashes: one that is the same says that all before it are. */
function sharedBlocks(a: Chain['hashes'], b: Chain['hashes']): number {
  let [low, high] = [0, Math.min(a.length, b.length)]
  if (high > 0 && a[high - 1] === b[high - 1]) return high
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (a[middle - 1] === b[middle - 1]) low = middle
    else high = middle - 1
  }
  return low
}

/** UTF-8 of one token, special ones as they are spelled. */
export function bytesOf(id: number, spellings: Spellings): Uint8Array {
  return spellings.isSpecial(id) ? Buffer.from(spellings.spellingOf(id)) : spellings.bytesOf(id)
}

export function spelled(ids: Int32Array, spellings: Spellings): Buffer {
  return Buffer.concat(Array.from(ids, (id) => bytesOf(id, spellings)))
}
