// One message's payload -> a batch of events, whatever generation of engine wrote it: batch and events as arrays or maps,
// trailing fields left out, hashes as integers or bytes, SGLang's map where vLLM has a name. Invariant: a bad or unknown
// event is stepped over and counted; those around it count. Which forms there are: docs/fleet.md.

import type { Medium } from '../../router/contract.js'
import { MalformedFrame, MsgpackReader, type Value } from './msgpack-reader.js'

/** 64 bits of an engine's hash, as two words: those of an integer, the last eight bytes of a digest. */
export interface EngineHashes {
  readonly count: number
  /** Two a hash: low, high. */
  readonly words: Uint32Array
}

export interface BlockStored {
  readonly type: 'stored'
  readonly hashes: EngineHashes
  /** Undefined: the first block of a prompt. */
  readonly parent: EngineHashes | undefined
  /** `count` * `blockTokens` ids; empty: known by its hashes alone (offloading). */
  readonly tokens: Int32Array
  readonly blockTokens: number
  readonly medium: Medium
  readonly adapter: string | undefined
  readonly salt: string | undefined
  /** Whether its form has a place for a salt at all. */
  readonly tellsSalt: boolean
  /** What else each block's KV depends on (images); undefined: nothing. */
  readonly extras: readonly (string | undefined)[] | undefined
  readonly group: number | undefined
  /** Kind of attention of its cache group; undefined: not told. */
  readonly spec: string | undefined
  readonly session: string | undefined
}

export interface BlockRemoved {
  readonly type: 'removed'
  readonly hashes: EngineHashes
  readonly medium: Medium
  readonly group: number | undefined
}

export interface AllBlocksCleared {
  readonly type: 'cleared'
  readonly medium: Medium | undefined
}

export type KvEvent = BlockStored | BlockRemoved | AllBlocksCleared

export interface EventBatch {
  /** Seconds since 1970 by the engine's clock. */
  readonly at: number | undefined
  /** Rank of data parallelism. */
  readonly rank: number | undefined
  readonly events: readonly KvEvent[]
  /** Events that made no sense. */
  readonly bad: number
  /** Events of types that are not known. */
  readonly unknown: number
  /** The frame ends or breaks in the middle: what stood before counts. */
  readonly broken: boolean
}

/** Hashes of one event; far above what engines send. */
const MAX_BLOCKS = 1 << 20

/** Fields by position behind the type, in the order in which they came to be (vLLM's kv_events.py, then SGLang's). */
const STORED_FIELDS = [
  'block_hashes',
  'parent_block_hash',
  'token_ids',
  'block_size',
  'lora_id',
  'medium',
  'lora_name',
  'extra_keys',
  'group_idx',
  'kv_cache_spec_kind',
] as const
const REMOVED_FIELDS = ['block_hashes', 'medium', 'group_idx'] as const
const CLEARED_FIELDS = ['medium'] as const

class BadEvent extends Error {}

/** Never throws, whatever the bytes are. */
export function decodeBatch(payload: Uint8Array): EventBatch {
  const found = { at: undefined as number | undefined, rank: undefined as number | undefined }
  const events: KvEvent[] = []
  const counts = { bad: 0, unknown: 0 }
  const reader = new MsgpackReader(payload)
  let broken = false
  try {
    const take = (field: string) => {
      if (field === 'events') readEvents(reader, events, counts)
      else if (field === 'ts') found.at = asNumber(reader.value())
      else if (field === 'data_parallel_rank') found.rank = asCount(reader.value())
      else reader.skip()
    }
    readFields(reader, ['ts', 'events', 'data_parallel_rank'], take)
    broken = !reader.isAtEnd
  } catch (fault) {
    if (!(fault instanceof MalformedFrame)) throw fault
    broken = true
  }
  return { ...found, events, ...counts, broken }
}

/** Calls `take` with each field's name, its value being next: by position in an array, by key in a map. */
function readFields(reader: MsgpackReader, names: readonly string[], take: (field: string) => void): void {
  const length = reader.list()
  if (length !== undefined) {
    for (let i = 0; i < length; i++) take(names[i] ?? '')
    return
  }
  const pairs = reader.map()
  if (pairs === undefined) throw new MalformedFrame('a batch is an array or a map')
  for (let i = 0; i < pairs; i++) {
    const key = reader.value()
    take(typeof key === 'string' ? key : '')
  }
}

function readEvents(reader: MsgpackReader, events: KvEvent[], counts: { bad: number; unknown: number }): void {
  const length = reader.list()
  if (length === undefined) throw new MalformedFrame('events are no array')
  for (let i = 0; i < length; i++) {
    const from = reader.at
    // Finds the event's end first: whatever is wrong inside, the next one is found.
    reader.skip()
    const end = reader.at
    reader.at = from
    try {
      const event = readEvent(reader)
      if (event === undefined) counts.unknown++
      else events.push(event)
    } catch (fault) {
      if (!(fault instanceof BadEvent) && !(fault instanceof MalformedFrame)) throw fault
      counts.bad++
    }
    reader.at = end
  }
}

function readEvent(reader: MsgpackReader): KvEvent | undefined {
  const length = reader.list()
  const fields = new Fields(length === undefined)
  if (length !== undefined) {
    if (length === 0) throw new BadEvent()
    const type = reader.value()
    const names = typeof type === 'string' ? fieldsOf(type) : undefined
    if (names === undefined) return notKnown(type)
    for (let i = 0; i < length - 1; i++) fields.read(reader, names[i] ?? '')
    return fields.event(type as string)
  }
  const pairs = reader.map()
  if (pairs === undefined) throw new BadEvent()
  let type: Value
  for (let i = 0; i < pairs; i++) {
    const key = reader.value()
    if (key === 'type') type = reader.value()
    else fields.read(reader, typeof key === 'string' ? key : '')
  }
  if (typeof type !== 'string' || fieldsOf(type) === undefined) return notKnown(type)
  return fields.event(type)
}

function notKnown(type: Value): undefined {
  if (typeof type !== 'string') throw new BadEvent()
  return undefined
}

function fieldsOf(type: string): readonly string[] | undefined {
  if (type === 'BlockStored') return STORED_FIELDS
  if (type === 'BlockRemoved') return REMOVED_FIELDS
  return type === 'AllBlocksCleared' ? CLEARED_FIELDS : undefined
}

/** The fields of one event as they come, in any order. */
class Fields {
  #hashes: EngineHashes | undefined
  #parent: EngineHashes | undefined
  #tokens: Int32Array | undefined
  readonly #rest = new Map<string, Value>()
  readonly #isMap: boolean

  constructor(isMap: boolean) {
    this.#isMap = isMap
  }

  read(reader: MsgpackReader, name: string): void {
    if (name === 'block_hashes') this.#hashes = readHashes(reader)
    else if (name === 'parent_block_hash') this.#parent = readParent(reader)
    else if (name === 'token_ids') this.#tokens = readTokens(reader)
    else if (name === '') reader.skip()
    else this.#rest.set(name, reader.value())
  }

  event(type: string): KvEvent {
    if (type === 'AllBlocksCleared') {
      const medium = this.#rest.get('medium')
      return { type: 'cleared', medium: medium === undefined ? undefined : mediumOf(medium) }
    }
    const hashes = this.#hashes
    if (hashes === undefined) throw new BadEvent()
    const medium = mediumOf(this.#rest.get('medium'))
    const group = asCount(this.#rest.get('group_idx'))
    return type === 'BlockRemoved' ? { type: 'removed', hashes, medium, group } : this.#stored(hashes, medium, group)
  }

  #stored(hashes: EngineHashes, medium: Medium, group: number | undefined): BlockStored {
    const tokens = this.#tokens ?? NO_TOKENS
    const said = asCount(this.#rest.get('block_size'))
    const blockTokens = said ?? (hashes.count > 0 ? tokens.length / hashes.count : 0)
    const fits = Number.isInteger(blockTokens) && tokens.length === blockTokens * hashes.count
    if (tokens.length > 0 && !fits) throw new BadEvent()
    // SGLang has a map of more where vLLM has the adapter's name.
    const name = this.#rest.get('lora_name')
    const more = name instanceof Map ? name : undefined
    const loraId = asNumber(this.#rest.get('lora_id'))
    const adapter = typeof name === 'string' ? name : loraId === undefined ? undefined : `#${loraId}`
    const keys = this.#rest.get('extra_keys')
    const salts = [this.#rest.get('cache_salt'), more?.get('cache_salt')]
    const told = salts.find((salt): salt is string => typeof salt === 'string')
    const { salt, extras } = splitExtraKeys(keys, { adapter, isFirst: this.#parent === undefined, told })
    return {
      type: 'stored',
      hashes,
      parent: this.#parent,
      tokens,
      blockTokens,
      medium,
      adapter,
      salt,
      // Every engine that writes maps has a place for it, and leaves it out where there is none.
      tellsSalt: this.#isMap || this.#rest.has('extra_keys') || more !== undefined,
      extras,
      group,
      spec: asText(this.#rest.get('kv_cache_spec_kind')),
      session: asText(this.#rest.get('session_id') ?? more?.get('session_id')),
    }
  }
}

const NO_TOKENS = new Int32Array(0)

interface KeyContext {
  readonly adapter: string | undefined
  readonly isFirst: boolean
  readonly told: string | undefined
}

/**
 * One entry a block: nothing, or in this order the adapter's name, the images (a name and an offset, or the bare name),
 * the salt (of a prompt's first block only), a digest of embeddings. They are not told apart there: in a first block
 * the last text is taken for the salt.
 */
function splitExtraKeys(keys: Value, { adapter, isFirst, told }: KeyContext): Pick<BlockStored, 'salt' | 'extras'> {
  if (!Array.isArray(keys)) return { salt: told, extras: undefined }
  let salt = told
  let any = false
  const extras = keys.map((entry: Value, i): string | undefined => {
    if (!Array.isArray(entry)) return undefined
    const rest = entry.filter((each: Value) => each !== adapter && each !== told)
    if (i === 0 && isFirst && told === undefined) {
      const at = rest.findLastIndex((each) => typeof each === 'string')
      if (at >= 0) salt = rest.splice(at, 1)[0] as string
    }
    if (rest.length === 0) return undefined
    any = true
    return rest.map(spelled).join('\u0000')
  })
  return { salt, extras: any ? extras : undefined }
}

function spelled(value: Value): string {
  if (value instanceof Uint8Array) return `b${Buffer.from(value).toString('hex')}`
  if (Array.isArray(value)) return `[${value.map(spelled).join(',')}]`
  if (value instanceof Map) return `{${[...value].map(([key, each]) => `${key}:${spelled(each)}`).join(',')}}`
  return `${typeof value}:${String(value)}`
}

function readHashes(reader: MsgpackReader): EngineHashes {
  const count = reader.list()
  if (count === undefined || count > MAX_BLOCKS) throw new BadEvent()
  const words = new Uint32Array(2 * count)
  for (let i = 0; i < count; i++) writeHash(reader.value(), words, i)
  return { count, words }
}

function readParent(reader: MsgpackReader): EngineHashes | undefined {
  const value = reader.value()
  if (value === undefined) return undefined
  const words = new Uint32Array(2)
  writeHash(value, words, 0)
  return { count: 1, words }
}

function writeHash(value: Value, words: Uint32Array, i: number): void {
  if (typeof value === 'number' && Number.isSafeInteger(value)) {
    words[2 * i] = value % 2 ** 32
    words[2 * i + 1] = Math.floor(value / 2 ** 32)
  } else if (typeof value === 'bigint') {
    words[2 * i] = Number(value & 0xffffffffn)
    words[2 * i + 1] = Number((value >> 32n) & 0xffffffffn)
  } else if (value instanceof Uint8Array && value.length >= 8) {
    // The last eight bytes, big-endian: the integer that the same engine sends in its other mode.
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.length)
    words[2 * i] = bytes.readUInt32BE(value.length - 4)
    words[2 * i + 1] = bytes.readUInt32BE(value.length - 8)
  } else throw new BadEvent()
}

/** Ids as they are, or the first of each pair (SGLang's bigrams under EAGLE: a token and the one after it). */
function readTokens(reader: MsgpackReader): Int32Array {
  const count = reader.list()
  if (count === undefined) {
    if (reader.value() === undefined) return NO_TOKENS
    throw new BadEvent()
  }
  const tokens = new Int32Array(count)
  for (let i = 0; i < count; i++) {
    const pair = reader.list()
    if (pair === 0) throw new BadEvent()
    const id = reader.number()
    for (let rest = 1; rest < (pair ?? 0); rest++) reader.skip()
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id > 0x7fffffff) throw new BadEvent()
    tokens[i] = id
  }
  return tokens
}

/** vLLM: GPU, CPU, FS, OBJ and more; SGLang: GPU, CPU_PINNED, DISK, EXTERNAL. */
function mediumOf(value: Value): Medium {
  if (value === undefined) return 'device'
  if (typeof value !== 'string') throw new BadEvent()
  const name = value.toUpperCase()
  if (/^(GPU|CUDA|DEVICE|HBM|HPU|NPU|TPU|XPU)/.test(name)) return 'device'
  if (/^(CPU|HOST|DRAM|MEMORY)/.test(name)) return 'host'
  if (/^(DISK|FS|SSD|NVME|FILE|STORAGE)/.test(name)) return 'disk'
  return 'remote'
}

function asNumber(value: Value): number | undefined {
  return typeof value === 'number' ? value : undefined
}

function asCount(value: Value): number | undefined {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : undefined
}

function asText(value: Value): string | undefined {
  return typeof value === 'string' ? value : undefined
}
