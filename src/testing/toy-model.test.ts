import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Gguf } from '../model/gguf.js'
import type { TensorType } from '../model/tensor-type.js'
import { referenceGreedy, referenceLogits } from './reference-forward.js'
import { type ToyModelOptions, writeToyModel } from './toy-model.js'
import { byteSpellings, TOY_SPECIALS, toyTokens } from './toy-vocabulary.js'

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-toy-'))
})
afterAll(async () => {
  await rm(folder, { recursive: true })
})

async function toy(options: ToyModelOptions): Promise<string> {
  const path = join(folder, `${JSON.stringify(options).replace(/\W+/g, '-')}.gguf`)
  await writeToyModel(path, options)
  return path
}

const bytes = (text: string) => [...Buffer.from(text)].map((byte) => byte + TOY_SPECIALS.length)
const prompt = [1, ...bytes('user\nhello there, how do you do?'), 2, 13]

/** What llama-server (release 11434, fp32 weights and KV, greedy) answers to `prompt`: ids, byte for byte the same file. */
const peer: [ToyModelOptions, number[]][] = [
  [{ architecture: 'llama' }, [41, 60, 80, 117, 76, 288, 126, 113, 61, 61, 61, 97, 276, 260, 46, 111]],
  [
    { architecture: 'llama', ropeFactors: 'llama3' },
    [279, 288, 108, 53, 40, 272, 36, 92, 276, 95, 97, 39, 278, 269, 97, 112],
  ],
  [
    { architecture: 'qwen2', output: 'own' },
    [124, 268, 279, 109, 279, 124, 40, 79, 106, 106, 124, 48, 266, 277, 291, 279],
  ],
  [{ architecture: 'qwen3', dim: 160 }, [264, 277, 118, 274, 57, 124, 77, 282, 86, 111, 70, 71, 293, 71, 109, 95]],
]

describe('the reference', () => {
  for (const [options, expected] of peer) {
    test(`continues ${JSON.stringify(options)} as llama.cpp does`, async () => {
      expect(await referenceGreedy(await toy(options), prompt, expected.length)).toEqual(expected)
    })
  }

  test('is causal: later tokens change nothing before them', async () => {
    const path = await toy({ architecture: 'qwen3' })
    const short = await referenceLogits(path, prompt.slice(0, 6))
    const long = await referenceLogits(path, prompt.slice(0, 9))
    expect(short).toEqual(long.slice(0, 6))
  })

  test('rounding K and V moves logits a little', async () => {
    const path = await toy({ architecture: 'llama' })
    const exact = await referenceLogits(path, prompt)
    const rounded = await referenceLogits(path, prompt, { roundKv: true })
    const drift = exact.map((row, position) =>
      row.reduce((most, value, id) => Math.max(most, Math.abs(value - rounded[position]![id]!)), 0),
    )
    expect(Math.max(...drift)).toBeGreaterThan(1e-5)
    expect(Math.max(...drift)).toBeLessThan(0.1)
  })
})

describe('toy models', () => {
  test('equal options give equal bytes, another seed another model', async () => {
    const first = await readFile(await toy({ architecture: 'qwen2', seed: 4 }))
    const again = await readFile(await toy({ architecture: 'qwen2', seed: 4 }))
    const other = await readFile(await toy({ architecture: 'qwen2', seed: 5 }))
    expect(first.equals(again)).toBe(true)
    expect(first.equals(other)).toBe(false)
  })

  test.each(['F16', 'BF16', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q4_K', 'Q5_K', 'Q6_K'] satisfies TensorType[])(
    '%s: greedy text varies and hangs on the prompt',
    async (quantization) => {
      const path = await toy({ architecture: 'llama', quantization })
      const greedy = await referenceGreedy(path, prompt, 8)
      expect(new Set(greedy).size).toBeGreaterThanOrEqual(4)
      const elsewhere = prompt.with(3, prompt[3]! + 1)
      const [last, changed] = [await referenceLogits(path, prompt), await referenceLogits(path, elsewhere)]
      const difference = last.at(-1)!.map((value, id) => Math.abs(value - changed.at(-1)![id]!))
      expect(Math.max(...difference)).toBeGreaterThan(0.1)
    },
  )

  test('the vocabulary spells every byte once and every merge from earlier tokens', async () => {
    expect(new Set(byteSpellings()).size).toBe(256)
    const gguf = await Gguf.open(await toy({ architecture: 'llama' }))
    const tokens = gguf.need('tokenizer.ggml.tokens', 'strings')
    expect(tokens).toEqual(toyTokens())
    expect(new Set(tokens).size).toBe(tokens.length)
    for (const merge of gguf.need('tokenizer.ggml.merges', 'strings')) {
      const [left, right] = merge.split(' ') as [string, string]
      const whole = tokens.indexOf(left + right)
      expect(tokens.indexOf(left)).toBeGreaterThanOrEqual(0)
      expect(tokens.indexOf(left)).toBeLessThan(whole)
      expect(tokens.indexOf(right)).toBeLessThan(whole)
    }
    await gguf.close()
  })

  test('a dimension that no block fits is refused', async () => {
    await expect(toy({ architecture: 'llama', quantization: 'Q4_K', headDim: 32 })).rejects.toThrow(/rows of 128; Q4_K/)
    await expect(toy({ architecture: 'llama', dim: 160 })).rejects.toThrow(/dim = heads \* headDim/)
  })
})
