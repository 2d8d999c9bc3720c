// Runs the `split` form of a graph for tests: one sequence at a time, with any mask, past kept as plain arrays. The
// engine's runner does the same for the forms that serve; this one exists to ask a graph questions that it never asks.

import { InferenceSession, Tensor } from 'onnxruntime-node'
import type { ModelShape } from '../model/graph/shape.js'

/** K/V of the tokens so far: for each layer k, then v, each [kvHeads, length, headDim]. */
export interface Past {
  readonly length: number
  readonly rows: readonly Float32Array[]
}

export interface GraphRun {
  readonly ids: readonly number[]
  readonly past?: Past
  /** Default: after the past, one after the other. */
  readonly positions?: readonly number[]
  /** Rows whose logits are wanted; default: all. */
  readonly last?: readonly number[]
  /** Whether row i sees column j of past and new tokens; default: every one up to itself. */
  readonly sees?: (row: number, column: number) => boolean
}

type Shape = Pick<ModelShape, 'layers' | 'kvHeads' | 'headDim' | 'vocabSize'>

export class GraphSession {
  readonly #session: InferenceSession
  readonly #shape: Shape

  private constructor(session: InferenceSession, shape: Shape) {
    this.#session = session
    this.#shape = shape
  }

  /** Loads a .onnx file that has its weights beside it. */
  static async open(path: string, shape: Shape): Promise<GraphSession> {
    const options = { intraOpNumThreads: 1, logSeverityLevel: 3 } as const
    return new GraphSession(await InferenceSession.create(path, options), shape)
  }

  get empty(): Past {
    return { length: 0, rows: Array.from({ length: 2 * this.#shape.layers }, () => new Float32Array(0)) }
  }

  /** Logits of the rows asked for, and the past with this run's tokens appended. */
  async run({ ids, past = this.empty, ...run }: GraphRun): Promise<{ logits: Float32Array[]; past: Past }> {
    const { layers, kvHeads, headDim, vocabSize } = this.#shape
    const rows = ids.map((_, i) => i)
    const columns = past.length + ids.length
    const sees = run.sees ?? ((row, column) => column <= past.length + row)
    const mask = new Float32Array(ids.length * columns)
    for (const row of rows) {
      for (let column = 0; column < columns; column++) if (!sees(row, column)) mask[row * columns + column] = -1e9
    }
    const last = run.last ?? rows
    const feeds: Record<string, Tensor> = {
      input_ids: int64(ids),
      pos: int64(run.positions ?? rows.map((row) => past.length + row)),
      last: int64(last),
      mask: new Tensor('float32', mask, [1, 1, ids.length, columns]),
    }
    for (let layer = 0; layer < layers; layer++) {
      for (const [i, letter] of ['k', 'v'].entries()) {
        const values = past.rows[2 * layer + i] as Float32Array
        feeds[`past.${layer}.${letter}`] = new Tensor('float32', values, [1, kvHeads, past.length, headDim])
      }
    }
    const results = await this.#session.run(feeds)
    const data = (name: string) => results[name]?.data as Float32Array
    const logits = last.map((_, i) => data('logits').subarray(i * vocabSize, (i + 1) * vocabSize))
    const appended = past.rows.map((before, i) => {
      const fresh = data(`new.${i >> 1}.${i % 2 === 0 ? 'k' : 'v'}`)
      return this.#append(before, fresh, past.length, ids.length)
    })
    return { logits, past: { length: columns, rows: appended } }
  }

  /** `count` tokens by greedy decoding after `ids`. */
  async greedy(ids: readonly number[], count: number): Promise<number[]> {
    const out: number[] = []
    let { logits, past } = await this.run({ ids, last: [ids.length - 1] })
    for (;;) {
      const row = logits[0] as Float32Array
      const best = row.reduce((top, value, id) => (value > (row[top] as number) ? id : top), 0)
      out.push(best)
      if (out.length === count) return out
      ;({ logits, past } = await this.run({ ids: [best], past }))
    }
  }

  async close(): Promise<void> {
    await this.#session.release()
  }

  #append(before: Float32Array, fresh: Float32Array, length: number, count: number): Float32Array {
    const { kvHeads, headDim } = this.#shape
    const joined = new Float32Array(kvHeads * (length + count) * headDim)
    for (let head = 0; head < kvHeads; head++) {
      const at = head * (length + count) * headDim
      joined.set(before.subarray(head * length * headDim, (head + 1) * length * headDim), at)
      joined.set(fresh.subarray(head * count * headDim, (head + 1) * count * headDim), at + length * headDim)
    }
    return joined
  }
}

function int64(values: readonly number[]): Tensor {
  return new Tensor('int64', BigInt64Array.from(values, BigInt), [1, values.length])
}
