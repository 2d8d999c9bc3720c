// What one member holds, from its events: own keys made of tokens, engine hashes as aliases of them, copies counted. Invariant:
// the sink hears of a key when its first copy comes and when its last one goes, over all ranks. A block whose parent is
// not known has no key, and is left out.
//
//   aliases (a rank's)      engine hash -> own key, copies by medium, age      names without copies stay while there is room:
//   keys (the member's)     own key -> copies by medium                        offloading names a block by its hash alone

import { chainKeys, type KeyWords, rootKey } from '../../core/block-keys.js'
import type { Medium } from '../../router/contract.js'
import type { EventSink } from './contract.js'
import type { BlockRemoved, BlockStored, EngineHashes, KvEvent } from './event-batch.js'
import { WordTable } from './word-table.js'

const MEDIA: readonly Medium[] = ['device', 'host', 'disk', 'remote']
/** Words of a row of aliases behind the engine's hash. */
const KEY = 2
const COPIES = 4
const AGE = 5
/** Copies that are counted of a block in a medium: eight bits a medium. */
const MAX_COPIES = 255
/** Kinds of groups of which a block says that everything before it can be reused. */
const FULL_ATTENTION = /full_attention|mla_attention/

/** What became of some events. */
export interface Applied {
  /** Blocks. */
  stored: number
  removed: number
  /** Blocks stored once more where a copy was known. */
  duplicates: number
  /** Blocks whose parent is not known, and removals of blocks that are not. */
  orphans: number
  /** Blocks of cache groups that are not indexed. */
  ignored: number
}

export class MemberHoldings {
  readonly #member: string
  readonly #sink: EventSink
  readonly #keys = new WordTable(1)
  readonly #sizes = new Set<number>()
  #changed = new Uint32Array(256)

  constructor(member: string, sink: EventSink) {
    this.#member = member
    this.#sink = sink
  }

  /** Block sizes that were seen, smallest first. */
  get blockTokens(): readonly number[] {
    return [...this.#sizes].sort((a, b) => a - b)
  }

  /** Different blocks that are held. */
  get size(): number {
    return this.#keys.size
  }

  get bytes(): number {
    return this.#keys.bytes
  }

  sawSize(blockTokens: number): void {
    this.#sizes.add(blockTokens)
  }

  /** `tell` is called with a function that counts one block in or out of `medium`. */
  change(way: 'stored' | 'removed', medium: Medium, tell: (count: (low: number, high: number) => void) => void): void {
    const shift = 8 * MEDIA.indexOf(medium)
    const keys = this.#keys
    let changes = 0
    tell((low, high) => {
      const crossed = way === 'stored' ? addCopy(keys, low, high, shift) : takeCopy(keys, low, high, shift)
      if (!crossed) return
      if (2 * changes + 2 > this.#changed.length) this.#changed = grown(this.#changed)
      this.#changed[2 * changes] = low
      this.#changed[2 * changes + 1] = high
      changes++
    })
    if (changes > 0) this.#sink[way](this.#member, { medium, keys: this.#changed.subarray(0, 2 * changes) })
  }

  /** Everything, where no other rank holds anything. */
  forget(medium: Medium | undefined, way: 'cleared' | 'lost'): void {
    if (medium === undefined) this.#keys.clear()
    else {
      const kept = ~(0xff << (8 * MEDIA.indexOf(medium)))
      this.#keys.retain((at) => {
        const copies = ((this.#keys.rows[at + 2] as number) & kept) >>> 0
        this.#keys.rows[at + 2] = copies
        return copies !== 0
      })
    }
    if (way === 'lost') this.#sink.lost(this.#member)
    else this.#sink.cleared(this.#member, medium)
  }
}

function addCopy(keys: WordTable, low: number, high: number, shift: number): boolean {
  const at = keys.ensure(low, high) + 2
  const word = keys.rows[at] as number
  const copies = (word >>> shift) & 0xff
  if (copies < MAX_COPIES) keys.rows[at] = word + 2 ** shift
  return copies === 0
}

function takeCopy(keys: WordTable, low: number, high: number, shift: number): boolean {
  const at = keys.find(low, high)
  if (at < 0) return false
  const word = keys.rows[at + 2] as number
  const copies = (word >>> shift) & 0xff
  if (copies === 0) return false
  const left = word - 2 ** shift
  if (left === 0) keys.remove(at)
  else keys.rows[at + 2] = left
  return copies === 1
}

function grown(array: Uint32Array): Uint32Array<ArrayBuffer> {
  const larger = new Uint32Array(2 * array.length)
  larger.set(array)
  return larger
}

/** The events of one rank, applied to what its member holds. */
export class RankHoldings {
  readonly #shared: MemberHoldings
  readonly #isOnly: boolean
  readonly #maxAliases: number
  readonly #aliases = new WordTable(4)
  /** The cache group that is indexed; undefined: none was seen. */
  #group: number | undefined
  #age = 0
  #scratch = new Uint32Array(256)
  #tellsSalt: boolean | undefined

  constructor(shared: MemberHoldings, options: { readonly aliases: number; readonly isOnly: boolean }) {
    this.#shared = shared
    this.#maxAliases = options.aliases
    this.#isOnly = options.isOnly
  }

  get aliases(): number {
    return this.#aliases.size
  }

  get bytes(): number {
    return this.#aliases.bytes
  }

  /** Whether its engine's events have a place for salts; undefined: none was seen yet. */
  get tellsSalt(): boolean | undefined {
    return this.#tellsSalt
  }

  apply(event: KvEvent, applied: Applied): void {
    if (event.type === 'stored') this.#store(event, applied)
    else if (event.type === 'removed') this.#remove(event, applied)
    else this.forget(event.medium, 'cleared')
  }

  /** What this rank holds, in `medium` or at all, is gone; the names of blocks stay while they may still be of use. */
  forget(medium: Medium | undefined, way: 'cleared' | 'lost'): void {
    if (this.#isOnly) this.#shared.forget(medium, way)
    else for (const each of medium === undefined ? MEDIA : [medium]) this.#withdraw(each)
    if (way === 'lost') this.#group = undefined
    if (medium === undefined) this.#aliases.clear()
    else if (this.#isOnly) this.#aliases.each((at) => this.#setCopies(at, medium, 0))
  }

  #withdraw(medium: Medium): void {
    const { rows } = this.#aliases
    this.#shared.change('removed', medium, (count) => {
      this.#aliases.each((at) => {
        for (let left = this.#copies(at, medium); left > 0; left--) {
          count(rows[at + KEY] as number, rows[at + KEY + 1] as number)
        }
        this.#setCopies(at, medium, 0)
      })
    })
  }

  #store(event: BlockStored, applied: Applied): void {
    const { hashes, tokens, medium, blockTokens } = event
    if (!this.#isIndexed(event.group, event.spec)) {
      applied.ignored += hashes.count
      return
    }
    if (hashes.count === 0) return
    if (event.parent === undefined || event.tellsSalt) this.#tellsSalt = event.tellsSalt || this.#tellsSalt === true
    if (tokens.length > 0 && !this.#name(event)) {
      applied.orphans += hashes.count
      return
    }
    if (blockTokens > 0) this.#shared.sawSize(blockTokens)
    const isReport = tokens.length > 0 && this.#isReport(event)
    this.#shared.change('stored', medium, (count) => {
      for (let i = 0; i < hashes.count; i++) this.#storeOne({ hashes, i, medium, isReport, count }, applied)
    })
    this.#bound()
  }

  #storeOne(
    block: {
      readonly hashes: EngineHashes
      readonly i: number
      readonly medium: Medium
      readonly isReport: boolean
      readonly count: (low: number, high: number) => void
    },
    applied: Applied,
  ): void {
    const { hashes, i, medium, isReport, count } = block
    const at = this.#find(hashes, i)
    if (at < 0) {
      applied.orphans++
      return
    }
    const { rows } = this.#aliases
    const copies = this.#copies(at, medium)
    if (isReport && copies > 0) return
    rows[at + AGE] = ++this.#age
    applied.stored++
    if (copies > 0) applied.duplicates++
    if (copies === MAX_COPIES) return
    this.#setCopies(at, medium, copies + 1)
    count(rows[at + KEY] as number, rows[at + KEY + 1] as number)
  }

  #remove({ hashes, medium, group }: BlockRemoved, applied: Applied): void {
    if (group !== undefined && this.#group !== undefined && group !== this.#group) {
      applied.ignored += hashes.count
      return
    }
    this.#shared.change('removed', medium, (count) => {
      for (let i = 0; i < hashes.count; i++) {
        const at = this.#find(hashes, i)
        const copies = at < 0 ? 0 : this.#copies(at, medium)
        if (copies === 0) {
          applied.orphans++
          continue
        }
        applied.removed++
        this.#setCopies(at, medium, copies - 1)
        const { rows } = this.#aliases
        count(rows[at + KEY] as number, rows[at + KEY + 1] as number)
      }
    })
  }

  /** Gives the blocks of `event` their names; false: their parent has none. */
  #name(event: BlockStored): boolean {
    const { hashes, parent, tokens, blockTokens, extras, adapter, salt } = event
    const { count } = hashes
    const from = parent === undefined ? rootKey({ blockTokens, adapter, salt }) : this.#keyOf(parent)
    if (from === undefined) return false
    while (this.#scratch.length < 2 * count) this.#scratch = grown(this.#scratch)
    const keys = this.#scratch
    chainKeys({ parent: from, tokens, at: 0, blockTokens, count, extras }, keys)
    for (let i = 0; i < count; i++) {
      const at = this.#aliases.ensure(hashes.words[2 * i] as number, hashes.words[2 * i + 1] as number)
      const { rows } = this.#aliases
      const low = keys[2 * i] as number
      const high = keys[2 * i + 1] as number
      if (rows[at + KEY] === low && rows[at + KEY + 1] === high) continue
      // An engine that uses one hash for different blocks (other salts): the newest is what it names.
      if (rows[at + COPIES] !== 0) this.#drop(at)
      rows[at + KEY] = low
      rows[at + KEY + 1] = high
    }
    return true
  }

  #keyOf(hash: EngineHashes): KeyWords | undefined {
    const at = this.#find(hash, 0)
    const { rows } = this.#aliases
    return at < 0 ? undefined : [rows[at + KEY] as number, rows[at + KEY + 1] as number]
  }

  /**
   * vLLM repeats, where a request asks for it, the whole prefix that it reuses, in the form of a store. A prompt's blocks
   * from the first on are not computed again while the first is held, so it is such a report.
   */
  #isReport({ parent, hashes, medium, session }: BlockStored): boolean {
    if (parent !== undefined || (hashes.count === 1 && session === undefined)) return false
    const first = this.#find(hashes, 0)
    return first >= 0 && this.#copies(first, medium) > 0
  }

  /** Of several groups of layers one is indexed, the first with full attention; without kinds, the first group. */
  #isIndexed(group: number | undefined, spec: string | undefined): boolean {
    if (spec !== undefined && !FULL_ATTENTION.test(spec)) return false
    if (group === undefined) return true
    if (this.#group === undefined && (spec !== undefined || group === 0)) this.#group = group
    return group === this.#group
  }

  /** Room for new names: those without copies go, then the oldest quarter, whose blocks count as removed. */
  #bound(): void {
    const aliases = this.#aliases
    if (aliases.size <= this.#maxAliases) return
    aliases.retain((at) => aliases.rows[at + COPIES] !== 0)
    if (aliases.size <= 0.75 * this.#maxAliases) return
    const ages = new Uint32Array(aliases.size)
    let i = 0
    aliases.each((at) => {
      ages[i++] = aliases.rows[at + AGE] as number
    })
    ages.sort()
    const oldest = ages[Math.floor(ages.length - 0.75 * this.#maxAliases)] as number
    const isOld = (at: number) => (aliases.rows[at + AGE] as number) < oldest
    aliases.each((at) => {
      if (isOld(at)) this.#drop(at)
    })
    aliases.retain((at) => !isOld(at))
  }

  /** All copies of a name count as removed. */
  #drop(at: number): void {
    const { rows } = this.#aliases
    for (const medium of MEDIA) {
      const copies = this.#copies(at, medium)
      if (copies === 0) continue
      this.#shared.change('removed', medium, (count) => {
        for (let left = copies; left > 0; left--) count(rows[at + KEY] as number, rows[at + KEY + 1] as number)
      })
    }
    rows[at + COPIES] = 0
  }

  #find(hashes: EngineHashes, i: number): number {
    return this.#aliases.find(hashes.words[2 * i] as number, hashes.words[2 * i + 1] as number)
  }

  #copies(at: number, medium: Medium): number {
    return ((this.#aliases.rows[at + COPIES] as number) >>> (8 * MEDIA.indexOf(medium))) & 0xff
  }

  #setCopies(at: number, medium: Medium, copies: number): void {
    const shift = 8 * MEDIA.indexOf(medium)
    const word = this.#aliases.rows[at + COPIES] as number
    this.#aliases.rows[at + COPIES] = ((word & ~(0xff << shift)) | (copies << shift)) >>> 0
  }
}
