// What members themselves say of their caches, through their events: keys of engine blocks, by member and medium. Invariant:
// a member that is not followed, or is followed from the middle on only, is known to be so; what is not told is not
// believed. The longest front is found in leaps: a cache lets go of a chain from its end, so what holds both ends of a
// stretch holds all of it; where one does not, a wrong guess costs a hit.

import type { EventSink, FollowState, HeldBlocks } from '../backend/kv-events/contract.js'
import { BlockTable, MEDIA } from './block-table.js'
import type { Medium, PromptBlocks } from './contract.js'

export interface PreciseIndex extends EventSink {
  /** Undefined: its events are not followed. */
  state(member: string): FollowState | undefined
  /** For one prompt; finds what all members hold of it at once, when first asked of. Good until the index changes. */
  lookup(blocks: readonly PromptBlocks[]): PreciseLookup
  readonly bytes: number
  /** Tells all that is known, as events would have. */
  retell(sink: EventSink): void
}

export interface PreciseLookup {
  /** Tokens of the front that a member holds, by where the first of them lies; undefined: no keys fit its events. */
  held(member: string): Readonly<Partial<Record<Medium, number>>> | undefined
}

export function createPreciseIndex(): PreciseIndex {
  return new Index()
}

interface Followed {
  readonly bit: number
  state: FollowState
}

const UNHEARD: FollowState = { connected: false, complete: false, blockTokens: [], salted: true }

class Index implements PreciseIndex {
  readonly #table = new BlockTable()
  /** Of the lookup that goes on; one ends before the next begins. */
  #rows = new Int32Array(1024)
  readonly #members = new Map<string, Followed>()

  get bytes(): number {
    return this.#table.bytes
  }

  state(member: string): FollowState | undefined {
    return this.#members.get(member)?.state
  }

  retell(sink: EventSink): void {
    for (const [member, { bit, state }] of this.#members) {
      for (const medium of this.#table.media) {
        const keys = this.#table.keysOf(bit, medium)
        if (keys.length > 0) sink.stored(member, { medium: MEDIA[medium] as Medium, keys })
      }
      sink.followed(member, state)
    }
  }

  stored(member: string, { medium, keys }: HeldBlocks): void {
    const place = { medium: MEDIA.indexOf(medium), member: this.#followed(member).bit }
    for (let i = 0; i < keys.length; i += 2) this.#table.set(keys[i] as number, keys[i + 1] as number, place)
  }

  removed(member: string, { medium, keys }: HeldBlocks): void {
    const place = { medium: MEDIA.indexOf(medium), member: this.#followed(member).bit }
    for (let i = 0; i < keys.length; i += 2) this.#table.unset(keys[i] as number, keys[i + 1] as number, place)
  }

  cleared(member: string, medium?: Medium): void {
    this.#table.clear(this.#followed(member).bit, medium === undefined ? undefined : MEDIA.indexOf(medium))
  }

  lost(member: string): void {
    this.cleared(member)
  }

  followed(member: string, state: FollowState): void {
    this.#followed(member).state = state
  }

  #followed(member: string): Followed {
    const known = this.#members.get(member)
    if (known !== undefined) return known
    const followed = { bit: this.#members.size, state: UNHEARD }
    this.#members.set(member, followed)
    return followed
  }

  #rowsFor(count: number): Int32Array {
    if (this.#rows.length < count) this.#rows = new Int32Array(2 * count)
    return this.#rows.subarray(0, count).fill(UNKNOWN)
  }

  lookup(blocks: readonly PromptBlocks[]): PreciseLookup {
    const media = this.#table.media
    const found = new Map<PromptBlocks, readonly Uint32Array[]>()
    const depthsIn = (prompt: PromptBlocks): readonly Uint32Array[] => {
      const known = found.get(prompt)
      if (known !== undefined) return known
      const fronts = new Fronts(this.#table, prompt.keys, this.#rowsFor(prompt.keys.length >>> 1))
      // In the nearest medium, in that or the next one, and so on.
      const depths = media.map((_, i) => fronts.depths(media.slice(0, i + 1)))
      found.set(prompt, depths)
      return depths
    }
    return {
      held: (member) => {
        const { bit, state } = this.#members.get(member) ?? {}
        const prompt = blocks.find(
          ({ blockTokens, salted }) => state?.salted === salted && state.blockTokens.includes(blockTokens),
        )
        if (bit === undefined || prompt === undefined) return undefined
        const held: Partial<Record<Medium, number>> = {}
        let before = 0
        for (const [i, depths] of depthsIn(prompt).entries()) {
          const depth = depths[bit] ?? 0
          if (depth > before) held[MEDIA[media[i] as number] as Medium] = (depth - before) * prompt.blockTokens
          before = Math.max(before, depth)
        }
        return held
      },
    }
  }
}

/** Blocks of one leap. */
const LEAP = 64
const UNKNOWN = -2

/** The longest fronts of one prompt, of all members at once. */
class Fronts {
  readonly #table: BlockTable
  readonly #keys: Uint32Array
  /** Rows of the prompt's blocks, as far as they were looked up. */
  readonly #rows: Int32Array

  /** `rows`: one for each block, `UNKNOWN`. */
  constructor(table: BlockTable, keys: Uint32Array, rows: Int32Array) {
    this.#table = table
    this.#keys = keys
    this.#rows = rows
  }

  /** Blocks from the front that each member, by its bit, holds in any of `media`. */
  depths(media: readonly number[]): Uint32Array {
    const { words } = this.#table
    const depths = new Uint32Array(32 * words)
    for (let word = 0; word < words; word++) this.#word(word, media, depths)
    return depths
  }

  #word(word: number, media: readonly number[], depths: Uint32Array): void {
    const count = this.#rows.length
    if (count === 0) return
    let holders = this.#bits(0, word, media)
    let at = 0
    while (holders !== 0 && at < count - 1) {
      const next = Math.min(at + LEAP, count - 1)
      const left = holders & this.#bits(next, word, media)
      if (left !== holders) this.#narrow({ word, media, depths }, { from: at, to: next, holders: holders & ~left })
      holders = left
      at = next
    }
    setDepth(depths, word, holders, count)
  }

  /** All of `holders` hold block `from` and none of them block `to`. */
  #narrow(
    into: { word: number; media: readonly number[]; depths: Uint32Array },
    { from, to, holders }: { from: number; to: number; holders: number },
  ): void {
    if (holders === 0) return
    if (to - from === 1) {
      setDepth(into.depths, into.word, holders, to)
      return
    }
    const middle = (from + to) >>> 1
    const beyond = holders & this.#bits(middle, into.word, into.media)
    this.#narrow(into, { from: middle, to, holders: beyond })
    this.#narrow(into, { from, to: middle, holders: holders & ~beyond })
  }

  #bits(block: number, word: number, media: readonly number[]): number {
    let row = this.#rows[block] as number
    if (row === UNKNOWN) {
      row = this.#table.row(this.#keys[2 * block] as number, this.#keys[2 * block + 1] as number)
      this.#rows[block] = row
    }
    return this.#table.bits(row, word, media)
  }
}

function setDepth(depths: Uint32Array, word: number, holders: number, depth: number): void {
  for (let bits = holders; bits !== 0; bits &= bits - 1) {
    depths[32 * word + (31 - Math.clz32(bits & -bits))] = depth
  }
}
