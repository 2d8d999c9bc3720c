// Which members hold which engine blocks, in parts by hash that each grow for themselves. Invariant: no call moves more than
// one part's rows, some thousands of a million, so that a table that grows never stops the event loop for long.

import { BlockShard, homeOf } from './block-shard.js'
import type { Medium } from './contract.js'

/** From near to far. */
export const MEDIA: readonly Medium[] = ['device', 'host', 'disk', 'remote']

const SHARD_BITS = 8
const SHARDS = 1 << SHARD_BITS
/** Of a row's number, what says where in its shard it is. */
const ROW_BITS = 31 - SHARD_BITS
const ROW_MASK = (1 << ROW_BITS) - 1

export class BlockTable {
  readonly #shards: readonly BlockShard[] = Array.from({ length: SHARDS }, () => new BlockShard())
  /** 32 members each; a shard may have fewer yet. */
  #words = 1
  readonly #media: boolean[] = MEDIA.map(() => false)

  get words(): number {
    return this.#words
  }

  get bytes(): number {
    return this.#shards.reduce((sum, { bytes }) => sum + bytes, 0)
  }

  /** Media that any block was ever told to be in. */
  get media(): readonly number[] {
    return MEDIA.map((_, i) => i).filter((i) => this.#media[i])
  }

  /** The row of a key; -1: it has none. Good until the next `set`. */
  row(low: number, high: number): number {
    const shard = shardOf(low, high)
    const row = this.#shards[shard]!.row(low, high)
    return row < 0 ? row : (shard << ROW_BITS) | row
  }

  /** Members `[32 * word, 32 * word + 32)` that hold the block of `row` in any of `media`. */
  bits(row: number, word: number, media: readonly number[]): number {
    return row < 0 ? 0 : this.#shards[row >>> ROW_BITS]!.bits(row & ROW_MASK, word, media)
  }

  set(low: number, high: number, place: { medium: number; member: number }): void {
    while (place.member >= 32 * this.#words) this.#words *= 2
    this.#media[place.medium] = true
    this.#shards[shardOf(low, high)]!.set(low, high, place)
  }

  unset(low: number, high: number, place: { medium: number; member: number }): void {
    this.#shards[shardOf(low, high)]!.unset(low, high, place)
  }

  /** The member holds nothing any more, in one medium or (undefined) any. */
  clear(member: number, medium?: number): void {
    for (const shard of this.#shards) shard.clear(member, medium)
  }

  /** Keys of all blocks that a member holds in one medium, two words each. */
  keysOf(member: number, medium: number): Uint32Array {
    const keys: number[] = []
    for (const shard of this.#shards) shard.keysOf(member, medium, keys)
    return Uint32Array.from(keys)
  }
}

/** By bits that do not say where in its shard a key is, mixed so that keys which differ in few of them spread too. */
function shardOf(low: number, high: number): number {
  const hash = Math.imul(homeOf(low, high) ^ high, 0x85ebca6b)
  return (hash ^ (hash >>> 13)) >>> (32 - SHARD_BITS)
}
