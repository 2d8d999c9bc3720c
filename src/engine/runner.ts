// The runner: the only file that imports onnxruntime-node. Graphs over the same weights: `prefill` (many tokens of one
// sequence), `decode` (one token for several sequences) and `split` (a tree of branches behind one prefix). Past K/V are
// fed in place, never copied; only the new rows come out. `session.run` holds its thread: this belongs in a worker.

import { join } from 'node:path'
import { InferenceSession, Tensor } from 'onnxruntime-node'
import type { KvLayout } from '../core/block.js'
import type { DecodeRow, Runner, TreeToken } from './contract.js'
import type { Slot } from './slot.js'

export interface RunnerOptions {
  /** The folder of an imported model: graph-<form>.onnx, weights.bin. */
  readonly directory: string
  readonly layout: KvLayout
  readonly vocabSize: number
  /** Rows that the decode graph has; DECODE_ROWS of model/graph. */
  readonly decodeRows: number
  readonly threads: number
  /** A key of `providers`. */
  readonly provider: string
  /** False: no graph for trees is opened, which saves its memory; the runner has no `tree` then. */
  readonly trees?: boolean
}

/** Execution providers by the name in the config: what the session is created with. */
const providers: Readonly<Record<string, readonly InferenceSession.ExecutionProviderConfig[]>> = {
  cpu: ['cpu'],
}

/** @throws Error when a graph can't be loaded or the provider is unknown. */
export async function openRunner(options: RunnerOptions): Promise<Runner> {
  const executionProviders = Object.hasOwn(providers, options.provider) ? providers[options.provider] : undefined
  if (executionProviders === undefined) {
    const known = Object.keys(providers).join(', ')
    throw new Error(`engine.provider: unknown kind '${options.provider}'; known are ${known}`)
  }
  const session: InferenceSession.SessionOptions = {
    executionProviders: [...executionProviders],
    intraOpNumThreads: options.threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    logSeverityLevel: 3,
    // Two sessions take turns: the one that rests must not spin on a core that the other needs.
    extra: { session: { force_spinning_stop: '1' } },
  }
  const open = (form: string) => InferenceSession.create(join(options.directory, `graph-${form}.onnx`), session)
  const [prefill, decode] = [await open('prefill'), await open('decode')]
  return new OnnxRunner(options, { prefill, decode, ...(options.trees !== false && { split: await open('split') }) })
}

type Feeds = Record<string, Tensor>

interface Sessions {
  readonly prefill: InferenceSession
  readonly decode: InferenceSession
  readonly split?: InferenceSession
}

class OnnxRunner implements Runner {
  readonly layout: KvLayout
  readonly vocabSize: number
  readonly decodeRows: number
  readonly tree: Runner['tree']
  readonly #prefill: InferenceSession
  readonly #decode: InferenceSession
  readonly #split: InferenceSession | undefined
  /** Feeds of decode rows that are not in use: tensors without elements. */
  readonly #unused: Feeds[]

  constructor(options: RunnerOptions, { prefill, decode, split }: Sessions) {
    this.layout = options.layout
    this.vocabSize = options.vocabSize
    this.decodeRows = options.decodeRows
    this.#prefill = prefill
    this.#decode = decode
    this.#split = split
    this.tree = split && ((slot, tokens) => this.#tree(split, slot, tokens))
    this.#unused = Array.from({ length: options.decodeRows }, (_, row) => this.#emptyRow(row))
  }

  async prefill(slot: Slot, ids: Int32Array): Promise<Float32Array> {
    const start = slot.length
    const count = ids.length
    if (count === 0 || start + count > slot.capacity) throw new RangeError(`${count} tokens do not fit the slot`)
    const feeds: Feeds = {
      input_ids: int64(ids, [1, count]),
      pos: int64(
        Array.from(ids, (_, i) => start + i),
        [1, count],
      ),
      last: int64([count - 1], [1, 1]),
      seqlens: new Tensor('int32', Int32Array.of(start + count - 1), [1]),
      total: new Tensor('int32', Int32Array.of(start + count), []),
    }
    this.#feedPast(feeds, slot)
    const results = await this.#prefill.run(feeds)
    slot.append(ids, (layer, letter) => data(results, `new.${layer}.${letter}`))
    return data(results, 'logits')
  }

  async decode(rows: readonly DecodeRow[]): Promise<readonly Float32Array[]> {
    const count = rows.length
    if (count === 0 || count > this.decodeRows)
      throw new RangeError(`${count} rows in a run of 1 to ${this.decodeRows}`)
    const feeds: Feeds = {
      input_ids: int64(
        rows.map(({ id }) => id),
        [count, 1],
      ),
      pos: int64(
        rows.map(({ slot }) => slot.length),
        [count, 1],
      ),
      last: int64(new Array<number>(count).fill(0), [count, 1]),
      rows: int64(
        Array.from({ length: this.decodeRows }, (_, row) => (row < count ? 1 : 0)),
        [this.decodeRows],
      ),
    }
    for (let row = 0; row < this.decodeRows; row++) {
      const used = rows[row]
      if (used === undefined) Object.assign(feeds, this.#unused[row])
      else this.#feedRow(feeds, row, used.slot)
    }
    const results = await this.#decode.run(feeds)
    const logits = data(results, 'logits')
    const rowElements = this.layout.kvHeads * this.layout.headDim
    for (const [row, { slot, id }] of rows.entries()) {
      slot.append(Int32Array.of(id), (layer, letter) =>
        data(results, `new.${layer}.${letter}`).subarray(row * rowElements, (row + 1) * rowElements),
      )
    }
    return rows.map((_, row) => logits.subarray(row * this.vocabSize, (row + 1) * this.vocabSize))
  }

  async #tree(split: InferenceSession, slot: Slot, tokens: readonly TreeToken[]): Promise<readonly Float32Array[]> {
    const count = tokens.length
    const asked = tokens.flatMap(({ wantsLogits }, i) => (wantsLogits ? [i] : []))
    // The graph gives some row's logits in any case.
    const last = asked.length === 0 ? [count - 1] : asked
    const feeds: Feeds = {
      input_ids: int64(
        tokens.map(({ id }) => id),
        [1, count],
      ),
      pos: int64(
        tokens.map(({ sees, behind }) => sees + behind.length),
        [1, count],
      ),
      last: int64(last, [1, last.length]),
      mask: new Tensor('float32', treeMask(tokens, slot.capacity), [1, 1, count, slot.capacity + count]),
    }
    this.#feedPast(feeds, slot)
    const results = await split.run(feeds)
    const rows = tokens.map(({ row }) => row)
    slot.place(rows, (layer, letter) => data(results, `new.${layer}.${letter}`))
    const logits = data(results, 'logits')
    return asked.map((_, i) => logits.subarray(i * this.vocabSize, (i + 1) * this.vocabSize))
  }

  async close(): Promise<void> {
    await this.#prefill.release()
    await this.#decode.release()
    await this.#split?.release()
  }

  /** The whole slot as the past of one sequence. */
  #feedPast(feeds: Feeds, slot: Slot): void {
    const { layers, kvHeads, headDim } = this.layout
    const dims = [1, kvHeads, slot.capacity, headDim]
    for (let layer = 0; layer < layers; layer++) {
      feeds[`past.${layer}.k`] = new Tensor('float32', slot.k[layer] as Float32Array, dims)
      feeds[`past.${layer}.v`] = new Tensor('float32', slot.v[layer] as Float32Array, dims)
    }
  }

  #feedRow(feeds: Feeds, row: number, slot: Slot): void {
    const { layers, kvHeads, headDim } = this.layout
    if (slot.length >= slot.capacity) throw new RangeError('the slot is full')
    const mask = new Float32Array(slot.capacity + 1).fill(-1e9, slot.length, slot.capacity)
    feeds[`mask.${row}`] = new Tensor('float32', mask, [1, 1, 1, slot.capacity + 1])
    const dims = [1, kvHeads, slot.capacity, headDim]
    for (let layer = 0; layer < layers; layer++) {
      feeds[`past.${layer}.k.${row}`] = new Tensor('float32', slot.k[layer] as Float32Array, dims)
      feeds[`past.${layer}.v.${row}`] = new Tensor('float32', slot.v[layer] as Float32Array, dims)
    }
  }

  #emptyRow(row: number): Feeds {
    const { layers, kvHeads, headDim } = this.layout
    const none = new Float32Array(0)
    const feeds: Feeds = { [`mask.${row}`]: new Tensor('float32', none, [0, 1, 1, 2]) }
    for (let layer = 0; layer < layers; layer++) {
      feeds[`past.${layer}.k.${row}`] = new Tensor('float32', none, [0, kvHeads, 1, headDim])
      feeds[`past.${layer}.v.${row}`] = new Tensor('float32', none, [0, kvHeads, 1, headDim])
    }
    return feeds
  }
}

/** Who sees whom, added to the scores: [tokens, capacity + tokens]; the new tokens' own columns come last. */
function treeMask(tokens: readonly TreeToken[], capacity: number): Float32Array {
  const width = capacity + tokens.length
  const mask = new Float32Array(tokens.length * width).fill(-1e9)
  const fresh = new Map(tokens.map(({ row }, i) => [row, capacity + i]))
  for (const [i, { sees, behind }] of tokens.entries()) {
    const start = i * width
    mask.fill(0, start, start + sees)
    for (const row of behind) mask[start + (fresh.get(row) ?? row)] = 0
    mask[start + capacity + i] = 0
  }
  return mask
}

function data(results: InferenceSession.OnnxValueMapType, name: string): Float32Array {
  const tensor = results[name]
  if (tensor === undefined) throw new Error(`the graph gives no '${name}'`)
  return tensor.data as Float32Array
}

function int64(values: ArrayLike<number>, dims: number[]): Tensor {
  const elements = new BigInt64Array(values.length)
  for (let i = 0; i < values.length; i++) elements[i] = BigInt(values[i] as number)
  return new Tensor('int64', elements, dims)
}
