import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { InferenceSession, Tensor } from 'onnxruntime-node'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { float, OnnxGraph, type StoredTensor } from './onnx.js'

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-onnx-'))
})
afterAll(async () => {
  await rm(folder, { recursive: true })
})

/** Writes the graph with `weights` beside it and runs it. */
async function run(graph: OnnxGraph, weights: Float32Array, feeds: Record<string, Tensor>) {
  await writeFile(join(folder, 'weights.bin'), weights)
  await writeFile(join(folder, 'graph.onnx'), graph.encode())
  const session = await InferenceSession.create(join(folder, 'graph.onnx'), { logSeverityLevel: 3 })
  const results = await session.run(feeds)
  await session.release()
  return results
}

const stored = (name: string, at: number, dims: number[]): StoredTensor => ({
  name,
  type: 'float32',
  dims,
  offset: at * 4,
  bytes: dims.reduce((a, b) => a * b, 4),
})

describe('a graph that ONNX Runtime runs', () => {
  test('has its weights in the file beside it, by offset', async () => {
    const graph = new OnnxGraph('weights', 'weights.bin')
    const x = graph.input('x', 'float32', ['n', 2])
    const w = graph.weight(stored('w', 3, [2, 2]))
    const product = graph.op('MatMul', [x, w])
    graph.node({ kind: 'Add', domain: '', inputs: [product, graph.weight(stored('b', 1, [2]))], outputs: ['y'] })
    graph.output('y', 'float32', ['n', 2])
    const x12 = new Tensor('float32', [1, 2], [1, 2])
    const { y } = await run(graph, Float32Array.of(9, 10, 20, 1, 2, 3, 4), { x: x12 })
    // [1 2] [[1 2] [3 4]] + [10 20]
    expect([...(y!.data as Float32Array)]).toEqual([17, 30])
  })

  test('takes integer, float and list attributes, and operators of com.microsoft', async () => {
    const graph = new OnnxGraph('attributes', 'weights.bin')
    const x = graph.input('x', 'float32', [2, 2])
    const turned = graph.op('Transpose', [x], { perm: [1, 0] })
    const scaled = graph.contrib('FusedMatMul', [turned, x], { alpha: float(0.5), transB: 1 })
    const [left] = graph.split(scaled, [1, 1], 1)
    graph.node({ kind: 'Identity', domain: '', inputs: [left!], outputs: ['y'] })
    graph.output('y', 'float32', [2, 1])
    const { y } = await run(graph, Float32Array.of(0), { x: new Tensor('float32', [1, 2, 3, 4], [2, 2]) })
    // Half of x^T x^T, left column: x^T = [[1 3] [2 4]].
    expect([...(y!.data as Float32Array)]).toEqual([3.5, 5])
    expect(y!.dims).toEqual([2, 1])
  })

  test('holds one copy of equal constants and of a tensor that is used twice', () => {
    const bytes = (uses: number) => {
      const graph = new OnnxGraph('shared', 'weights.bin')
      for (let i = 0; i < uses; i++) {
        expect(graph.ints(1, 2)).toBe('ints[1,2]')
        expect(graph.weight(stored('a-long-name-of-a-tensor', 0, [4]))).toBe('a-long-name-of-a-tensor')
      }
      return graph.encode().length
    }
    expect(bytes(5)).toBe(bytes(1))
  })

  test('sees one stored tensor in several shapes', async () => {
    const graph = new OnnxGraph('views', 'weights.bin')
    const x = graph.input('x', 'float32', [1, 4])
    const flat = stored('w', 0, [4])
    const sum = graph.op('Add', [x, graph.weight(flat)])
    graph.node({ kind: 'MatMul', domain: '', inputs: [sum, graph.weight(flat, [4, 1])], outputs: ['y'] })
    graph.output('y', 'float32', [1, 1])
    const { y } = await run(graph, Float32Array.of(1, 2, 3, 4), { x: new Tensor('float32', [0, 0, 0, 1], [1, 4]) })
    expect([...(y!.data as Float32Array)]).toEqual([34])
  })
})

test('a fraction must be wrapped, so that no float attribute is written as an integer', () => {
  const graph = new OnnxGraph('fraction', 'weights.bin')
  expect(() => graph.contrib('QuickGelu', ['x'], { alpha: 0.5 })).toThrow(/attribute alpha is not an integer/)
})
