// A GGUF file that is open for reading: metadata with types checked, the tensor table, and the bytes of one tensor at a
// time by positioned reads, so that a file larger than memory can be imported. The file is never written and never mapped.

import { type FileHandle, open } from 'node:fs/promises'
import { type GgufTensor, type GgufValue, readHeader } from './gguf-header.js'
import { ModelError } from './model-error.js'

export type { GgufTensor, GgufValue } from './gguf-header.js'

/** One read call takes at most this much: the system's limit is just under 2 GiB. */
const READ_BYTES = 1 << 30

interface ValueKinds {
  readonly number: number
  readonly string: string
  readonly boolean: boolean
  readonly numbers: readonly number[]
  readonly strings: readonly string[]
}

export class Gguf {
  readonly path: string
  /** Size of the whole file. */
  readonly bytes: number
  readonly version: number
  readonly metadata: ReadonlyMap<string, GgufValue>
  readonly tensors: ReadonlyMap<string, GgufTensor>
  readonly #handle: FileHandle

  private constructor(path: string, handle: FileHandle, bytes: number) {
    const header = readHeader(handle.fd, bytes, path)
    this.path = path
    this.bytes = bytes
    this.version = header.version
    this.metadata = header.metadata
    this.tensors = header.tensors
    this.#handle = handle
    const parts = this.get('split.count', 'number') ?? 1
    if (parts > 1) {
      throw new ModelError('unsupported', `${path}: it is one of ${parts} parts of a split file; merge them first`)
    }
  }

  /** Opens the file and reads its header. @throws ModelError `bad-file` or `unsupported`; the system's error when it cannot be opened. */
  static async open(path: string): Promise<Gguf> {
    const handle = await open(path, 'r')
    try {
      const stat = await handle.stat()
      if (!stat.isFile()) throw new ModelError('bad-file', `${path}: it is not a file`)
      return new Gguf(path, handle, stat.size)
    } catch (error) {
      await handle.close()
      throw error
    }
  }

  /** The metadata value `key`; undefined where it is absent. @throws ModelError `bad-file` where it is of another kind. */
  get<K extends keyof ValueKinds>(key: string, kind: K): ValueKinds[K] | undefined {
    const value = this.metadata.get(key)
    if (value === undefined) return undefined
    if (!isOfKind(value, kind)) {
      throw new ModelError('bad-file', `${this.path}: the metadata key '${key}' is not of the kind ${kind}`)
    }
    return value as ValueKinds[K]
  }

  /** Like `get`, where absence is an error. */
  need<K extends keyof ValueKinds>(key: string, kind: K): ValueKinds[K] {
    const value = this.get(key, kind)
    if (value === undefined) throw new ModelError('bad-file', `${this.path}: it has no metadata key '${key}'`)
    return value
  }

  /** The table's row for `name`. @throws ModelError `bad-file` where there is none. */
  tensor(name: string): GgufTensor {
    const tensor = this.tensors.get(name)
    if (tensor === undefined) throw new ModelError('bad-file', `${this.path}: it has no tensor '${name}'`)
    return tensor
  }

  /** The tensor's bytes as they are in the file, in memory of their own; `rows` of the outermost dimension, or all. */
  async read(tensor: GgufTensor, rows?: { readonly from: number; readonly count: number }): Promise<Uint8Array> {
    const rowBytes = tensor.bytes / tensor.shape[0]!
    const start = tensor.offset + (rows === undefined ? 0 : rows.from * rowBytes)
    const raw = new Uint8Array(rows === undefined ? tensor.bytes : rows.count * rowBytes)
    if (start + raw.length > tensor.offset + tensor.bytes) throw new RangeError(`rows beyond '${tensor.name}'`)
    for (let done = 0; done < raw.length; ) {
      const length = Math.min(raw.length - done, READ_BYTES)
      const { bytesRead } = await this.#handle.read(raw, done, length, start + done)
      if (bytesRead === 0) {
        throw new ModelError('bad-file', `${this.path}: it became shorter while tensor '${tensor.name}' was read`)
      }
      done += bytesRead
    }
    return raw
  }

  async close(): Promise<void> {
    await this.#handle.close()
  }
}

function isOfKind(value: GgufValue, kind: keyof ValueKinds): boolean {
  if (kind === 'numbers') return Array.isArray(value) && value.every((item) => typeof item === 'number')
  if (kind === 'strings') return Array.isArray(value) && value.every((item) => typeof item === 'string')
  return typeof value === kind
}
