import { mkdir, mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { buildTokenizerJson, tokenizerTraits } from '../prompt/gguf-tokenizer.js'
import { editGguf } from '../testing/edit-gguf.js'
import { writeToyModel } from '../testing/toy-model.js'
import { type ImportOptions, importGguf } from './import.js'

let folder: string
let path: string
let options: ImportOptions
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-import-'))
  path = join(folder, 'toy.gguf')
  await writeToyModel(path, { architecture: 'qwen3', quantization: 'Q4_1' })
  const tokenizer = { build: buildTokenizerJson, traits: tokenizerTraits }
  options = { dataDir: join(folder, 'data'), kv: 'fp16', tokenizer }
})
afterEach(async () => {
  await rm(folder, { recursive: true })
})

const models = async () => (await readdir(join(folder, 'data', 'models'))).sort()

describe('an import', () => {
  test('leaves one folder, named by digest and K/V, with a manifest that describes it', async () => {
    const { directory, manifest } = await importGguf(path, options)
    expect(await models()).toEqual([`${manifest.weightsDigest.slice(0, 32)}-fp16`])
    expect((await readdir(directory)).sort()).toEqual([
      'graph-decode.onnx',
      'graph-prefill.onnx',
      'graph-split.onnx',
      'manifest.json',
      'network.json',
      'tokenizer.json',
      'weights.bin',
    ])
    expect(JSON.parse(await readFile(join(directory, 'manifest.json'), 'utf8'))).toEqual(
      JSON.parse(JSON.stringify(manifest)),
    )
    expect(manifest).toMatchObject({
      architecture: 'qwen3',
      name: 'toy qwen3 Q4_1 1',
      layers: 2,
      heads: 4,
      kvHeads: 2,
      headDim: 32,
      dim: 128,
      contextLength: 4096,
      kv: 'fp16',
      bosTokenId: 1,
    })
    expect([...manifest.eosTokenIds].sort()).toEqual([0, 2])
    const tokenizer = JSON.parse(await readFile(join(directory, 'tokenizer.json'), 'utf8'))
    expect(Object.keys(tokenizer.model.vocab).length + 3).toBeGreaterThanOrEqual(manifest.vocabSize)
  })

  test('is made once, and told of while it is made', async () => {
    const told: string[] = []
    const onProgress: ImportOptions['onProgress'] = (phase, done, total) => told.push(`${phase} ${done === total}`)
    const first = await importGguf(path, { ...options, onProgress })
    expect([told[0], told.at(-1)]).toEqual(['digest true', 'weights true'])
    const { ino } = await stat(join(first.directory, 'weights.bin'))
    told.length = 0
    const second = await importGguf(path, { ...options, onProgress })
    expect(second).toEqual(first)
    expect((await stat(join(first.directory, 'weights.bin'))).ino).toBe(ino)
    expect(told.filter((line) => line.startsWith('weights'))).toEqual([])
  })

  test('fp32 and fp16 K/V are two folders', async () => {
    await importGguf(path, options)
    const { manifest } = await importGguf(path, { ...options, kv: 'fp32' })
    expect(manifest.kv).toBe('fp32')
    expect(await models()).toHaveLength(2)
  })
})

describe('a folder that does not hold what it promises is built anew', () => {
  test.each<[string, (directory: string) => Promise<void>]>([
    ['a short file', async (directory) => await truncate(join(directory, 'weights.bin'), 1000)],
    ['a missing file', async (directory) => await rm(join(directory, 'graph-prefill.onnx'))],
    ['a torn manifest', async (directory) => await truncate(join(directory, 'manifest.json'), 100)],
    ['no manifest', async (directory) => await rm(join(directory, 'manifest.json'))],
    [
      'another importer',
      async (directory) => {
        const file = join(directory, 'manifest.json')
        const text = await readFile(file, 'utf8')
        await writeFile(file, text.replace(/"importer": \d+/, '"importer": 0'))
      },
    ],
  ])('%s', async (_, harm) => {
    const { directory, manifest } = await importGguf(path, options)
    const sizes = async () =>
      Promise.all(
        (await readdir(directory)).sort().map(async (name) => [name, (await stat(join(directory, name))).size]),
      )
    const whole = await sizes()
    await harm(directory)
    expect(await importGguf(path, options)).toEqual({ directory, manifest })
    expect(await sizes()).toEqual(whole)
    expect(await models()).toHaveLength(1)
  })
})

describe('imports side by side', () => {
  test('give one whole folder, also where a torn one lay before', async () => {
    const { directory } = await importGguf(path, options)
    await truncate(join(directory, 'weights.bin'), 1000)
    const results = await Promise.all([1, 2, 3, 4].map(async () => await importGguf(path, options)))
    for (const result of results) expect(result).toEqual(results[0])
    expect(await importGguf(path, options)).toEqual(results[0])
    expect(await models()).toHaveLength(1)
  })

  test('what a dead process left is swept, what a live one builds stays', async () => {
    const left = (pid: number) => join(folder, 'data', 'models', `.importing-${hostname()}-${pid}-abcd`)
    // Above the largest pid that Linux gives.
    await mkdir(left(2 ** 22 + 5), { recursive: true })
    await mkdir(left(process.ppid), { recursive: true })
    await importGguf(path, options)
    expect((await models()).filter((name) => name.startsWith('.'))).toEqual([
      `.importing-${hostname()}-${process.ppid}-abcd`,
    ])
  })
})

describe('an import that fails leaves nothing behind', () => {
  test('aborted in the middle', async () => {
    const abort = new AbortController()
    const onProgress: ImportOptions['onProgress'] = (phase) => {
      if (phase === 'weights') abort.abort(new Error('enough'))
    }
    await expect(importGguf(path, { ...options, onProgress, signal: abort.signal })).rejects.toThrow('enough')
    expect(await models()).toEqual([])
  })

  test('of a file that is not supported', async () => {
    const mixture = join(folder, 'experts.gguf')
    await editGguf(path, mixture, { metadata: { 'qwen3.expert_count': 4 } })
    await expect(importGguf(mixture, options)).rejects.toMatchObject({ fault: 'unsupported' })
    expect(await models()).toEqual([])
  })

  test('of a tokenizer that is not supported', async () => {
    const unknown = join(folder, 'tokens.gguf')
    await editGguf(path, unknown, { metadata: { 'tokenizer.ggml.model': 't5' } })
    await expect(importGguf(unknown, options)).rejects.toMatchObject({
      fault: 'unsupported',
      message: expect.stringContaining("tokenizer.ggml.model 't5'"),
    })
    expect(await models()).toEqual([])
  })

  test('of no file', async () => {
    await expect(importGguf(join(folder, 'absent.gguf'), options)).rejects.toMatchObject({ code: 'ENOENT' })
  })
})
