// Reads MessagePack as events need it: integers of 64 bits exactly, lists of token ids without an object each, and any value
// skipped without building it. Invariant: no length is believed before the bytes are there, nothing recurses without bound,
// and whatever the bytes are, the only failure is a MalformedFrame. https://github.com/msgpack/msgpack/blob/master/spec.md

/** The bytes are no MessagePack, or end too early. */
export class MalformedFrame extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'MalformedFrame'
  }
}

/** A value as it is read where any may stand: a list is `unknown[]`, a map is a Map. */
export type Value = undefined | boolean | number | bigint | string | Uint8Array | readonly Value[] | Map<string, Value>

/** Nesting of a value that is built; events have three. */
const DEPTH = 8

const TWO_32 = 2 ** 32

export class MsgpackReader {
  readonly #bytes: Buffer
  /** Where the next value begins. */
  at = 0

  constructor(bytes: Uint8Array) {
    this.#bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  get isAtEnd(): boolean {
    return this.at >= this.#bytes.length
  }

  /** The type byte of the next value. */
  peek(): number {
    if (this.at >= this.#bytes.length) throw new MalformedFrame('it ends too early')
    return this.#bytes[this.at] as number
  }

  /** The length of the list that begins here; undefined where none does, and nothing is read. */
  list(): number | undefined {
    const type = this.peek()
    if ((type & 0xf0) === 0x90) return this.#opened(type & 0x0f)
    if (type === 0xdc) return this.#opened(this.#lengthAfter(2), 2)
    if (type === 0xdd) return this.#opened(this.#lengthAfter(4), 4)
    return undefined
  }

  /** The number of pairs of the map that begins here; undefined where none does, and nothing is read. */
  map(): number | undefined {
    const type = this.peek()
    if ((type & 0xf0) === 0x80) return this.#opened(type & 0x0f)
    if (type === 0xde) return this.#opened(this.#lengthAfter(2), 2)
    if (type === 0xdf) return this.#opened(this.#lengthAfter(4), 4)
    return undefined
  }

  /** The next value. */
  value(depth = DEPTH): Value {
    const type = this.peek()
    if (isIntegerOrFloat(type)) return this.number()
    const list = this.list()
    if (list !== undefined) return this.#values(list, depth)
    const map = this.map()
    if (map !== undefined) return this.#pairs(map, depth)
    if (type === 0xc0 || type === 0xc2 || type === 0xc3) {
      this.at++
      return type === 0xc0 ? undefined : type === 0xc3
    }
    const text = this.#textLength(type)
    if (text !== undefined) return this.#take(text.header, text.length).toString('utf8')
    if (type >= 0xc4 && type <= 0xc6) {
      const width = 1 << (type - 0xc4)
      return this.#take(1 + width, this.#lengthAfter(width))
    }
    // Extension types (timestamps, vendors' own): opaque.
    const from = this.at
    this.skip()
    return this.#bytes.subarray(from, this.at)
  }

  /** The number that begins here: a bigint where a double would not hold it. @throws MalformedFrame where none does. */
  number(): number | bigint {
    const type = this.peek()
    if (type <= 0x7f || type >= 0xe0) {
      this.at++
      return type <= 0x7f ? type : type - 256
    }
    const bytes = this.#bytes
    const width = numberWidth(type)
    if (width === undefined) throw new MalformedFrame('a number is expected')
    const at = this.at + 1
    this.#need(1 + width)
    this.at += 1 + width
    switch (type) {
      case 0xca:
        return bytes.readFloatBE(at)
      case 0xcb:
        return bytes.readDoubleBE(at)
      case 0xcf:
        return exact(bytes.readUInt32BE(at), bytes.readUInt32BE(at + 4))
      case 0xd3:
        return exact(bytes.readInt32BE(at), bytes.readUInt32BE(at + 4))
      default:
        return type <= 0xce ? bytes.readUIntBE(at, width) : bytes.readIntBE(at, width)
    }
  }

  /** Steps over the next value, however deep it is. */
  skip(): void {
    for (let left = 1; left > 0; left--) {
      const list = this.list()
      if (list !== undefined) {
        left += list
        continue
      }
      const map = this.map()
      if (map !== undefined) {
        left += 2 * map
        continue
      }
      this.#step(this.#scalarBytes())
    }
  }

  /** All bytes of the value that has no elements and begins here. */
  #scalarBytes(): number {
    const type = this.peek()
    if (type <= 0x7f || type >= 0xe0 || (type >= 0xc0 && type <= 0xc3)) return 1
    const number = numberWidth(type)
    if (number !== undefined) return 1 + number
    const text = this.#textLength(type)
    if (text !== undefined) return text.header + text.length
    if (type >= 0xc4 && type <= 0xc6) {
      const width = 1 << (type - 0xc4)
      return 1 + width + this.#lengthAfter(width)
    }
    if (type >= 0xc7 && type <= 0xc9) {
      const width = 1 << (type - 0xc7)
      return 2 + width + this.#lengthAfter(width)
    }
    // fixext 1, 2, 4, 8, 16
    return 2 + (1 << (type - 0xd4))
  }

  #textLength(type: number): { header: number; length: number } | undefined {
    if ((type & 0xe0) === 0xa0) return { header: 1, length: type & 0x1f }
    if (type < 0xd9 || type > 0xdb) return undefined
    const width = 1 << (type - 0xd9)
    return { header: 1 + width, length: this.#lengthAfter(width) }
  }

  #values(count: number, depth: number): Value[] {
    if (depth === 0) throw new MalformedFrame('it is nested too deep')
    const values: Value[] = []
    for (let i = 0; i < count; i++) values.push(this.value(depth - 1))
    return values
  }

  #pairs(count: number, depth: number): Map<string, Value> {
    if (depth === 0) throw new MalformedFrame('it is nested too deep')
    const pairs = new Map<string, Value>()
    for (let i = 0; i < count; i++) {
      const key = this.value(depth - 1)
      pairs.set(typeof key === 'string' ? key : String(key), this.value(depth - 1))
    }
    return pairs
  }

  #lengthAfter(width: number): number {
    this.#need(1 + width)
    return this.#bytes.readUIntBE(this.at + 1, width)
  }

  /** Steps behind the head of a list or map of `count`, each of which takes a byte at least. */
  #opened(count: number, width = 0): number {
    this.#need(1 + width + count)
    this.at += 1 + width
    return count
  }

  #take(header: number, length: number): Buffer {
    this.#need(header + length)
    const from = this.at + header
    this.at = from + length
    return this.#bytes.subarray(from, this.at)
  }

  #step(bytes: number): void {
    this.#need(bytes)
    this.at += bytes
  }

  #need(bytes: number): void {
    if (this.at + bytes > this.#bytes.length) throw new MalformedFrame('it ends too early')
  }
}

function isIntegerOrFloat(type: number): boolean {
  return type <= 0x7f || type >= 0xe0 || numberWidth(type) !== undefined
}

/** Bytes behind the type byte: float 32 and 64, uint 8 to 64, int 8 to 64. */
function numberWidth(type: number): number | undefined {
  if (type === 0xca) return 4
  if (type === 0xcb) return 8
  if (type >= 0xcc && type <= 0xcf) return 1 << (type - 0xcc)
  if (type >= 0xd0 && type <= 0xd3) return 1 << (type - 0xd0)
  return undefined
}

function exact(high: number, low: number): number | bigint {
  const near = high * TWO_32 + low
  return Number.isSafeInteger(near) ? near : (BigInt(high) << 32n) | BigInt(low)
}
