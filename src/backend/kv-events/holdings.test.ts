// What a member holds against a plain model of it: copies by name and medium; and the cases that engines are known for.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { promptKeys } from '../../core/block-keys.js'
import type { Medium } from '../../router/contract.js'
import { HeldIndex } from '../../testing/held-index.js'
import type { BlockRemoved, BlockStored, EngineHashes, KvEvent } from './event-batch.js'
import { type Applied, MemberHoldings, RankHoldings } from './holdings.js'

const BLOCK = 4

function hashes(...ids: number[]): EngineHashes {
  return { count: ids.length, words: Uint32Array.from(ids.flatMap((id) => [id, 0])) }
}

function stored(ids: readonly number[], tokens: readonly number[], more: Partial<BlockStored> = {}): BlockStored {
  return {
    ...{
      type: 'stored',
      hashes: hashes(...ids),
      tokens: Int32Array.from(tokens),
      blockTokens: BLOCK,
      medium: 'device',
    },
    ...{ parent: undefined, adapter: undefined, salt: undefined, tellsSalt: true, extras: undefined },
    ...{ group: undefined, spec: undefined, session: undefined, ...more },
  }
}

function removed(ids: readonly number[], more: Partial<BlockRemoved> = {}): BlockRemoved {
  return { type: 'removed', hashes: hashes(...ids), medium: 'device', group: undefined, ...more }
}

const tokensOf = (...blocks: number[]) =>
  blocks.flatMap((block) => Array.from({ length: BLOCK }, (_, i) => block * 100 + i))

function member(ranks = 1, aliases = 1000) {
  const index = new HeldIndex()
  const applied: Applied = { stored: 0, removed: 0, duplicates: 0, orphans: 0, ignored: 0 }
  const shared = new MemberHoldings('m', index)
  const each = Array.from({ length: ranks }, () => new RankHoldings(shared, { aliases, isOnly: ranks === 1 }))
  const take = (event: KvEvent, rank = 0) => (each[rank] as RankHoldings).apply(event, applied)
  const prefix = (tokens: number[], medium?: Medium, salt?: string) =>
    index.prefix('m', promptKeys(tokens, { blockTokens: BLOCK, salt }), medium)
  return { index, applied, shared, ranks: each, take, prefix }
}

describe('a member', () => {
  test('follows chains, whatever its engine calls the blocks', () => {
    const { take, prefix } = member()
    take(stored([11, 12], tokensOf(1, 2)))
    take(stored([13], tokensOf(3), { parent: hashes(12) }))
    expect(prefix(tokensOf(1, 2, 3, 4))).toBe(3)
    take(removed([12]))
    expect(prefix(tokensOf(1, 2, 3, 4))).toBe(1)
  })

  test('counts copies: of two, one removal leaves one', () => {
    const { take, prefix, applied } = member()
    take(stored([11], tokensOf(1)))
    take(stored([12], tokensOf(2), { parent: hashes(11) }))
    take(stored([12], tokensOf(2), { parent: hashes(11) }))
    take(removed([12]))
    expect(prefix(tokensOf(1, 2))).toBe(2)
    take(removed([12]))
    expect(prefix(tokensOf(1, 2))).toBe(1)
    expect(applied).toMatchObject({ stored: 3, removed: 2, duplicates: 1, orphans: 0 })
  })

  test('a prefix that is reported again is no second copy', () => {
    const { take, prefix } = member()
    for (let i = 0; i < 2; i++) take(stored([11, 12], tokensOf(1, 2), { session: 'a' }))
    take(removed([11, 12]))
    expect(prefix(tokensOf(1, 2))).toBe(0)
  })

  test('a report tells a late joiner what it missed', () => {
    const { take, prefix } = member()
    take(stored([11], tokensOf(1)))
    take(stored([11, 12], tokensOf(1, 2)))
    take(removed([12]))
    expect(prefix(tokensOf(1, 2))).toBe(1)
    take(removed([11]))
    expect(prefix(tokensOf(1))).toBe(0)
  })

  test('an unknown parent makes an orphan, never a root', () => {
    const { take, applied, index } = member()
    take(stored([13], tokensOf(3), { parent: hashes(12) }))
    take(removed([13]))
    expect(index.held('m')).toEqual([])
    expect(applied).toMatchObject({ stored: 0, orphans: 2 })
  })

  test('blocks that move down the media by their hashes alone', () => {
    const { take, prefix } = member()
    take(stored([11, 12], tokensOf(1, 2)))
    take(removed([11, 12]))
    take(stored([11, 12], [], { medium: 'host', blockTokens: 0 }))
    expect(prefix(tokensOf(1, 2))).toBe(0)
    expect(prefix(tokensOf(1, 2), 'host')).toBe(2)
    take({ type: 'cleared', medium: 'device' })
    expect(prefix(tokensOf(1, 2), 'host')).toBe(2)
    take({ type: 'cleared', medium: undefined })
    expect(prefix(tokensOf(1, 2), 'host')).toBe(0)
  })

  test('salts, adapters and images part what has the same tokens', () => {
    const { take, prefix } = member()
    take(stored([11], tokensOf(1), { salt: 'a' }))
    take(stored([12], tokensOf(1), { adapter: 'sql' }))
    take(stored([13], tokensOf(1), { extras: ['image'] }))
    expect(prefix(tokensOf(1))).toBe(0)
    expect(prefix(tokensOf(1), 'device', 'a')).toBe(1)
    expect(prefix(tokensOf(1), 'device', 'b')).toBe(0)
  })

  test('two hashes for the same tokens (an engine that tells no salts) are held until both are gone', () => {
    const { take, prefix } = member()
    take(stored([11], tokensOf(1)))
    take(stored([21], tokensOf(1)))
    take(removed([11]))
    expect(prefix(tokensOf(1))).toBe(1)
    take(removed([21]))
    expect(prefix(tokensOf(1))).toBe(0)
  })

  test('of several cache groups the first with full attention is indexed', () => {
    const { take, prefix, applied } = member()
    take(stored([11], tokensOf(1), { group: 0, spec: 'sliding_window' }))
    expect(prefix(tokensOf(1))).toBe(0)
    take(stored([11], tokensOf(1), { group: 1, spec: 'full_attention' }))
    take(stored([11], tokensOf(1), { group: 2, spec: 'mla_attention' }))
    take(removed([11], { group: 0 }))
    take(removed([11], { group: 2 }))
    expect(prefix(tokensOf(1))).toBe(1)
    take(removed([11], { group: 1 }))
    expect(prefix(tokensOf(1))).toBe(0)
    expect(applied.ignored).toBe(4)
  })

  test('of several ranks: held while one of them holds it, and one that clears leaves the others', () => {
    const { take, prefix, ranks, index } = member(2)
    take(stored([11, 12], tokensOf(1, 2)), 0)
    take(stored([91], tokensOf(1)), 1)
    take({ type: 'cleared', medium: undefined }, 0)
    expect(prefix(tokensOf(1, 2))).toBe(1)
    ranks[1]?.forget(undefined, 'lost')
    expect(prefix(tokensOf(1, 2))).toBe(0)
    expect(index.told).toEqual([])
  })

  test('names are bounded: the oldest go, and their blocks with them', () => {
    const { take, ranks, index } = member(1, 100)
    for (let i = 0; i < 1000; i++) take(stored([i + 1], tokensOf(i)))
    expect(ranks[0]?.aliases).toBeLessThanOrEqual(100)
    expect(index.held('m').length).toBe(ranks[0]?.aliases)
    expect(index.prefix('m', promptKeys(tokensOf(999), { blockTokens: BLOCK }))).toBe(1)
    expect(index.prefix('m', promptKeys(tokensOf(0), { blockTokens: BLOCK }))).toBe(0)
    expect(index.complaints).toEqual([])
  })
})

// --- against a plain model -------------------------------------------------------------------------------------------

const MEDIA: readonly Medium[] = ['device', 'host', 'disk', 'remote']
/** A chain of up to eight blocks in one of three conversations; block i of conversation c is called 1 + 8c + i. */
const move = fc.record({
  rank: fc.nat(1),
  way: fc.constantFrom('stored', 'offloaded', 'removed', 'removed', 'cleared'),
  medium: fc.constantFrom(...MEDIA),
  conversation: fc.nat(2),
  from: fc.nat(7),
  count: fc.integer({ min: 1, max: 3 }),
})

describe.each([1, 2])('%i rank(s)', (ranks) => {
  test('give the blocks of a plain count of copies', () => {
    fc.assert(
      fc.property(fc.array(move, { maxLength: 120 }), (moves) => {
        const { take, index } = member(ranks)
        const model = new PlainModel(ranks)
        for (const { rank: any, way, medium, conversation, from, count } of moves) {
          const rank = any % ranks
          const blocks = Array.from({ length: count }, (_, i) => from + i).filter((block) => block < 8)
          const ids = blocks.map((block) => 1 + 8 * conversation + block)
          const parent = from === 0 ? undefined : hashes((ids[0] as number) - 1)
          const tokens = tokensOf(...blocks.map((block) => 10 * conversation + block))
          if (way === 'cleared') {
            if (count < 3) continue
            take({ type: 'cleared', medium: undefined }, rank)
          } else if (way === 'removed') take(removed(ids, { medium }), rank)
          else if (way === 'offloaded') take(stored(ids, [], { medium, blockTokens: 0 }), rank)
          else take(stored(ids, tokens, { parent, medium }), rank)
          model.take(rank, way, medium, ids, from === 0)
        }
        expect(index.complaints).toEqual([])
        for (const medium of MEDIA) expect(index.held('m', medium)).toEqual(model.held(medium))
      }),
      { numRuns: 300 },
    )
  })
})

interface PlainRank {
  /** Names. */
  readonly known: Set<number>
  /** By medium and name. */
  readonly copies: Map<string, number>
}

class PlainModel {
  readonly #ranks: PlainRank[]

  constructor(ranks: number) {
    this.#ranks = Array.from({ length: ranks }, () => ({ known: new Set(), copies: new Map() }))
  }

  take(rank: number, way: string, medium: Medium, ids: readonly number[], isRoot: boolean): void {
    const state = this.#ranks[rank] as PlainRank
    const copiesOf = (id: number) => state.copies.get(`${medium} ${id}`) ?? 0
    if (way === 'cleared') {
      state.known.clear()
      state.copies.clear()
      return
    }
    if (way === 'stored') {
      if (!isRoot && !state.known.has((ids[0] as number) - 1)) return
      for (const id of ids) state.known.add(id)
    }
    const isReport = way === 'stored' && isRoot && ids.length > 1 && copiesOf(ids[0] as number) > 0
    for (const id of ids) {
      const copies = copiesOf(id)
      if (way === 'removed') state.copies.set(`${medium} ${id}`, Math.max(0, copies - 1))
      else if (state.known.has(id) && !(isReport && copies > 0)) state.copies.set(`${medium} ${id}`, copies + 1)
    }
  }

  held(medium: Medium): string[] {
    const keys = new Set<string>()
    for (const { copies } of this.#ranks) {
      for (const [name, count] of copies) {
        const [where, id] = name.split(' ')
        if (count > 0 && where === medium) keys.add(keyOf(Number(id)))
      }
    }
    return [...keys].sort()
  }
}

function keyOf(id: number): string {
  const [conversation, block] = [Math.floor((id - 1) / 8), (id - 1) % 8]
  const chain = Array.from({ length: block + 1 }, (_, i) => 10 * conversation + i)
  const keys = promptKeys(tokensOf(...chain), { blockTokens: BLOCK })
  return [keys[2 * block + 1], keys[2 * block]].map((word) => (word as number).toString(16).padStart(8, '0')).join('')
}
