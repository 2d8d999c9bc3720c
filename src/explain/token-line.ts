// The tokens of a session's last main turn, its answer included: what the next one is compared with. Blocks are compared by
// their chained hashes, the rest token by token. Invariant: `bytesBefore` is right for every token that is still there; what
// a turn adds is copied once.
//
//   tokens   prompt ........................ | answer ......... |
//   marks    bytes before token 0, 64, 128 .. as far as somebody asked

import { BLOCK_TOKENS, type Chain } from '../core/block.js'
import type { TurnFacts } from './contract.js'

export type Spellings = TurnFacts['tokenizer']

export class TokenLine {
  chain: Chain
  /** Of the prompt. */
  promptTokens = 0
  /** Of the prompt without what opens the answer. */
  headTokens = 0
  length = 0
  #tokens: Int32Array
  /** Bytes before every 64th token. */
  #marks: number[] = [0]

  constructor(chain: Chain) {
    this.chain = chain
    this.#tokens = new Int32Array(0)
  }

  get bytes(): number {
    return this.#tokens.byteLength + 8 * this.#marks.length
  }

  /** How many tokens are the same from the start. */
  shared({ root, hashes }: Chain, tokens: Int32Array): number {
    const end = Math.min(this.length, tokens.length)
    let at = this.chain.root === root ? sharedBlocks(this.chain.hashes, hashes) * BLOCK_TOKENS : 0
    while (at < end && this.#tokens[at] === tokens[at]) at++
    return Math.min(at, end)
  }

  /** Tokens `[from, to)`, as they are now. */
  slice(from: number, to: number): Int32Array {
    return this.#tokens.slice(from, Math.min(to, this.length))
  }

  /** Another prompt, whose first `shared` tokens are those of this one. */
  replace(chain: Chain, tokens: Int32Array, shared: number): void {
    this.chain = chain
    this.#reserve(tokens.length, shared)
    this.#tokens.set(tokens.subarray(shared), shared)
    this.length = tokens.length
    this.promptTokens = tokens.length
    this.#marks.length = Math.min(this.#marks.length, Math.floor(shared / BLOCK_TOKENS) + 1)
  }

  push(ids: readonly number[]): void {
    this.#reserve(this.length + ids.length, this.length)
    for (const id of ids) this.#tokens[this.length++] = id
  }

  /** UTF-8 bytes of the tokens in front of `token`. */
  bytesBefore(token: number, spellings: Spellings): number {
    const block = Math.floor(token / BLOCK_TOKENS)
    for (let mark = this.#marks.length; mark <= block; mark++) {
      const at = (mark - 1) * BLOCK_TOKENS
      this.#marks.push(
        (this.#marks[mark - 1] as number) + lengthOf(this.#tokens.subarray(at, at + BLOCK_TOKENS), spellings),
      )
    }
    return (this.#marks[block] as number) + lengthOf(this.#tokens.subarray(block * BLOCK_TOKENS, token), spellings)
  }

  /** The token that the byte is in, or the line's end. */
  tokenAt(byte: number, spellings: Spellings): number {
    let [low, high] = [0, Math.ceil(this.length / BLOCK_TOKENS)]
    while (low < high) {
      const middle = (low + high + 1) >> 1
      if (middle * BLOCK_TOKENS <= this.length && this.bytesBefore(middle * BLOCK_TOKENS, spellings) <= byte)
        low = middle
      else high = middle - 1
    }
    let at = low * BLOCK_TOKENS
    let bytes = this.bytesBefore(at, spellings)
    for (; at < this.length; at++) {
      bytes += bytesOf(this.#tokens[at] as number, spellings).length
      if (bytes > byte) return at
    }
    return this.length
  }

  #reserve(length: number, keep: number): void {
    if (length <= this.#tokens.length) return
    // A turn adds some per cent.
    const grown = new Int32Array(length + (length >> 3) + 256)
    grown.set(this.#tokens.subarray(0, keep))
    this.#tokens = grown
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

function lengthOf(ids: Int32Array, spellings: Spellings): number {
  let bytes = 0
  for (const id of ids) bytes += bytesOf(id, spellings).length
  return bytes
}
