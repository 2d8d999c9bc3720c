// Reads the header of a GGUF file: magic, version, metadata, tensor table. Nothing in the file is believed: every count
// and length is held against the bytes that are left before anything is allocated for it.
//
//   'GGUF' u32 version u64 tensors u64 entries | entries: key, u32 type, value | tensors: name, u32 n, n x u64, u32 type, u64 offset | padding | data
//
// Source: the format's description in the ggml repository, docs/gguf.md. Versions 2 and 3 differ in nothing that is read here.

import { readSync } from 'node:fs'
import { ModelError } from './model-error.js'
import { TENSOR_TYPES, type TensorType, tensorBytes, tensorTypeOf, unreadTypeName } from './tensor-type.js'

/** A metadata value. 64-bit integers are numbers where they are exact, bigints beyond. */
export type GgufValue = number | bigint | boolean | string | readonly GgufValue[]

export interface GgufTensor {
  readonly name: string
  /** Outermost dimension first: a matrix is `[rows, cols]`, the reverse of the order in the file. */
  readonly shape: readonly number[]
  readonly type: TensorType
  /** Absolute position in the file. */
  readonly offset: number
  readonly bytes: number
}

export interface GgufHeader {
  readonly version: number
  readonly metadata: ReadonlyMap<string, GgufValue>
  readonly tensors: ReadonlyMap<string, GgufTensor>
}

const WINDOW_BYTES = 1 << 20
const MAX_NAME_BYTES = 65535
const MAX_ARRAY_DEPTH = 4
/** Ten times what the largest vocabularies take: more would only serve to fill memory. */
const MAX_HEADER_BYTES = 128 << 20
const MAX_TEXT_BYTES = 16 << 20
const MAX_ALIGNMENT = 1 << 20

/** Width of each scalar type by its number; 8 is a string, 9 an array. */
const SCALAR_BYTES: Readonly<Record<number, number>> = {
  0: 1,
  1: 1,
  2: 2,
  3: 2,
  4: 4,
  5: 4,
  6: 4,
  7: 1,
  10: 8,
  11: 8,
  12: 8,
}
const STRING = 8
const ARRAY = 9

/** A position in the file with a window of bytes around it. */
class Cursor {
  position = 0
  #window = Buffer.alloc(0)
  #start = 0

  constructor(
    readonly fd: number,
    readonly size: number,
    readonly path: string,
  ) {}

  fault(message: string): ModelError {
    return new ModelError('bad-file', `${this.path}: ${message}`)
  }

  /** Offset in the window of the next `count` bytes, which are then behind the position. */
  take(count: number, what: string): number {
    if (count > this.size - this.position) {
      throw this.fault(
        `${what} needs ${count} bytes at byte ${this.position}, but the file has ${this.size}: it is cut off or damaged`,
      )
    }
    if (this.position + count > MAX_HEADER_BYTES)
      throw this.fault(`its header is larger than ${MAX_HEADER_BYTES} bytes`)
    if (this.position + count > this.#start + this.#window.length) this.#refill(count)
    const at = this.position - this.#start
    this.position += count
    return at
  }

  #refill(count: number): void {
    const length = Math.min(Math.max(count, WINDOW_BYTES), this.size - this.position)
    const window = Buffer.allocUnsafe(length)
    for (let done = 0; done < length; ) {
      const read = readSync(this.fd, window, done, length - done, this.position + done)
      if (read === 0) throw this.fault('the file became shorter while it was read')
      done += read
    }
    this.#window = window
    this.#start = this.position
  }

  u32(what: string): number {
    const at = this.take(4, what)
    return this.#window.readUInt32LE(at)
  }

  /** A count or an offset: must be exact as a number. */
  u64(what: string): number {
    const at = this.take(8, what)
    const value = this.#window.readUInt32LE(at) + this.#window.readUInt32LE(at + 4) * 2 ** 32
    if (!Number.isSafeInteger(value)) throw this.fault(`${what} is absurd (${value})`)
    return value
  }

  text(what: string, maxBytes = MAX_TEXT_BYTES): string {
    const length = this.u64(`the length of ${what}`)
    if (length > maxBytes && length <= this.size - this.position)
      throw this.fault(`${what} has ${length} bytes; ${maxBytes} are the most`)
    const at = this.take(length, what)
    return this.#window.toString('utf8', at, at + length)
  }

  scalar(type: number, what: string): number | bigint | boolean {
    const at = this.take(SCALAR_BYTES[type]!, what)
    const window = this.#window
    switch (type) {
      case 0:
        return window.readUInt8(at)
      case 1:
        return window.readInt8(at)
      case 2:
        return window.readUInt16LE(at)
      case 3:
        return window.readInt16LE(at)
      case 4:
        return window.readUInt32LE(at)
      case 5:
        return window.readInt32LE(at)
      case 6:
        return window.readFloatLE(at)
      case 7:
        return window.readUInt8(at) !== 0
      case 12:
        return window.readDoubleLE(at)
      default:
        return exact(type === 10 ? window.readBigUInt64LE(at) : window.readBigInt64LE(at))
    }
  }
}

function exact(value: bigint): number | bigint {
  const number = Number(value)
  return Number.isSafeInteger(number) ? number : value
}

/** Parses the header of the open file `fd`. @throws ModelError `bad-file` or `unsupported`, naming what is wrong. */
export function readHeader(fd: number, size: number, path: string): GgufHeader {
  const cursor = new Cursor(fd, size, path)
  const version = readPreamble(cursor)
  const tensorCount = cursor.u64('the number of tensors')
  const entryCount = cursor.u64('the number of metadata entries')
  // A tensor takes at least 24 bytes of table, an entry at least 13: more cannot be there.
  if (tensorCount * 24 + entryCount * 13 > Math.min(size, MAX_HEADER_BYTES) - cursor.position) {
    throw cursor.fault(
      `it claims ${tensorCount} tensors and ${entryCount} metadata entries, more than fit into its ${size} bytes`,
    )
  }
  const metadata = new Map<string, GgufValue>()
  for (let entry = 0; entry < entryCount; entry++) {
    const key = cursor.text(`the key of metadata entry ${entry}`, MAX_NAME_BYTES)
    if (metadata.has(key)) throw cursor.fault(`the metadata key '${key}' is there twice`)
    metadata.set(key, readValue(cursor, cursor.u32(`the type of '${key}'`), `'${key}'`, 0))
  }
  const rows: GgufTensor[] = []
  for (let index = 0; index < tensorCount; index++) rows.push(readTensorRow(cursor, index))
  return { version, metadata, tensors: place(cursor, rows, alignmentOf(cursor, metadata)) }
}

function readPreamble(cursor: Cursor): number {
  if (cursor.size < 24) throw cursor.fault(`it has ${cursor.size} bytes, too few for a GGUF file`)
  if (cursor.u32('the magic') !== 0x46554747)
    throw cursor.fault("it is not a GGUF file (it does not start with 'GGUF')")
  const version = cursor.u32('the version')
  if (version === 2 || version === 3) return version
  if ((version & 0xffff) === 0) {
    throw new ModelError(
      'unsupported',
      `${cursor.path}: it is a big-endian GGUF file; only little-endian ones are read`,
    )
  }
  throw new ModelError('unsupported', `${cursor.path}: GGUF version ${version} is not read; 2 and 3 are`)
}

function readValue(cursor: Cursor, type: number, what: string, depth: number): GgufValue {
  if (type === STRING) return cursor.text(what)
  if (type === ARRAY) return readArray(cursor, what, depth)
  if (SCALAR_BYTES[type] === undefined) throw cursor.fault(`${what} has the unknown value type ${type}`)
  return cursor.scalar(type, what)
}

function readArray(cursor: Cursor, what: string, depth: number): readonly GgufValue[] {
  if (depth >= MAX_ARRAY_DEPTH) throw cursor.fault(`${what} nests arrays deeper than ${MAX_ARRAY_DEPTH}`)
  const type = cursor.u32(`the element type of ${what}`)
  const count = cursor.u64(`the length of ${what}`)
  const least = type === STRING ? 8 : type === ARRAY ? 12 : SCALAR_BYTES[type]
  if (least === undefined) throw cursor.fault(`${what} has the unknown element type ${type}`)
  if (count * least > Math.min(cursor.size, MAX_HEADER_BYTES) - cursor.position) {
    throw cursor.fault(`${what} claims ${count} elements, more than fit into the rest of the header`)
  }
  const values: GgufValue[] = []
  for (let index = 0; index < count; index++) values.push(readValue(cursor, type, what, depth + 1))
  return values
}

/** A row of the tensor table; its offset is relative to the data section until `place`. */
function readTensorRow(cursor: Cursor, index: number): GgufTensor {
  const name = cursor.text(`the name of tensor ${index}`, MAX_NAME_BYTES)
  const what = `tensor '${name}'`
  const dimensions = cursor.u32(`the rank of ${what}`)
  if (dimensions < 1 || dimensions > 4) throw cursor.fault(`${what} has ${dimensions} dimensions; 1 to 4 are possible`)
  const shape: number[] = []
  for (let dimension = 0; dimension < dimensions; dimension++) shape.unshift(cursor.u64(`the shape of ${what}`))
  const typeId = cursor.u32(`the type of ${what}`)
  const offset = cursor.u64(`the offset of ${what}`)
  const type = tensorTypeOf(typeId)
  if (type === undefined) {
    const known = Object.keys(TENSOR_TYPES).join(', ')
    throw new ModelError(
      'unsupported',
      `${cursor.path}: ${what} has the type ${unreadTypeName(typeId)}, which is not read; ${known} are`,
    )
  }
  const elements = shape.reduce((product, size) => product * size, 1)
  const block = TENSOR_TYPES[type].elements
  if (elements === 0 || !Number.isSafeInteger(elements)) {
    throw cursor.fault(`${what} has the impossible shape [${shape.join(', ')}]`)
  }
  if (shape.at(-1)! % block !== 0) {
    throw cursor.fault(`${what} has rows of ${shape.at(-1)}, not a multiple of ${block} as ${type} needs`)
  }
  return { name, shape, type, offset, bytes: tensorBytes(type, elements) }
}

function alignmentOf(cursor: Cursor, metadata: ReadonlyMap<string, GgufValue>): number {
  const alignment = metadata.get('general.alignment') ?? 32
  if (
    typeof alignment !== 'number' ||
    alignment < 1 ||
    alignment > MAX_ALIGNMENT ||
    (alignment & (alignment - 1)) !== 0
  ) {
    throw cursor.fault(`general.alignment is ${String(alignment)}, not a power of two up to ${MAX_ALIGNMENT}`)
  }
  return alignment
}

function place(cursor: Cursor, rows: readonly GgufTensor[], alignment: number): ReadonlyMap<string, GgufTensor> {
  const start = Math.ceil(cursor.position / alignment) * alignment
  const tensors = new Map<string, GgufTensor>()
  for (const row of rows) {
    const offset = start + row.offset
    if (tensors.has(row.name)) throw cursor.fault(`the tensor '${row.name}' is there twice`)
    if (row.offset % alignment !== 0) throw cursor.fault(`tensor '${row.name}' is not aligned to ${alignment} bytes`)
    if (offset + row.bytes > cursor.size) {
      throw cursor.fault(
        `tensor '${row.name}' ends at byte ${offset + row.bytes}, but the file has ${cursor.size}: it is cut off or damaged`,
      )
    }
    tensors.set(row.name, { ...row, offset })
  }
  return tensors
}
